"""Forecast of a run: epsilon by observer, noise and traffic, before anything is trained."""

from collections.abc import Mapping, Sequence
from math import fsum, inf
from typing import Any

import numpy as np
from typing_extensions import override

from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import DryExecution
from sightline.engine.metadata import collect_facts
from sightline.engine.plan import plan_releases
from sightline.events import Unit
from sightline.mechanisms import CohortSampler, Schedules
from sightline.topology import Channel, Clusters

TRAFFIC_ROUNDS = 50
"""Rounds from which the traffic of a run is extrapolated."""


def plan_run(built: BuiltExperiment) -> dict[str, Any]:
    """Return what a calibrated run will release, to whom and at which epsilon, and what clients send.

    Guarantees: nothing is trained or written. Epsilon is that of the whole plan, with every client in the rounds of the
    busiest; what a run spends is at most that, unless rounds are repeated or added.
    """
    privacy, ledger = built.experiment.privacy, plan_releases(built)
    spent = {
        kind: inf if built.unit is Unit.NONE else ledger.worst_of(lines, privacy.delta, accountant=built.accountant)
        for kind, lines in built.topology.lines.items()
    }
    if isinstance(built.topology, Clusters):
        # A plan has every client in one cluster, so that others seem to see nothing: take the worst for all.
        spent = dict.fromkeys(spent, max(spent.values(), default=inf))
    facts, rounds = collect_facts(built).to_stored(), built.experiment.rounds
    sent: list[Mapping[str, float]] = []
    typical = TypicalExecution(built.federation.sizes.tolist())
    plan_releases(built, rounds=min(rounds, TRAFFIC_ROUNDS), execution=typical, on_round=sent.append)
    names = ("uplink_floats", "downlink_floats")
    names_of_facts = (
        "name", "algorithm", "topology", "clients", "parameters", "unit", "adjacency", "delta", "accountant",
        "clip_norm", "noise_source", "target_epsilon", "stop_at_epsilon", "trusted",
        "guarantee", "notes",
    )  # fmt: skip
    # The noise under the names of a run's summary: every client may have its own.
    noise = facts["noise_multiplier"]
    least, most = (noise["min"], noise["max"]) if isinstance(noise, Mapping) else (noise, noise)
    return {
        "rounds": rounds,
        "examples": int(built.federation.sizes.sum()),
        **{name: facts[name] for name in names_of_facts},
        "noise_multiplier": least,
        "noise_multiplier_max": most,
        "epsilon": max(spent.values(), default=inf),
        "observers": spent,
        "releases": len(ledger),
        **{name: rounds * fsum(row[name] for row in sent) / len(sent) for name in names},
    }


class TypicalExecution(DryExecution):
    """A plan with cohorts as a run would draw them, from separate streams: for traffic, never for guarantees."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self._schedules = Schedules(self.secret)

    @override
    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        return tuple(channel.members[index] for index in sampler.draw(time, rng, self._schedules, line=line))
