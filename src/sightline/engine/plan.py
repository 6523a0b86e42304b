"""The plan of a run: its releases before any data is touched, the noise that they need, and a forecast of the run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import fsum, inf
from typing import Any, cast

import numpy as np
from typing_extensions import override

from sightline import accounting
from sightline.engine.algorithm_laws import ROUNDS, check_first_algorithm
from sightline.engine.build import BuiltExperiment, count_protected
from sightline.engine.execution import DryExecution
from sightline.engine.metadata import collect_facts
from sightline.engine.release_gate import FollowedPlan
from sightline.engine.round import walk_rounds
from sightline.errors import refuse
from sightline.events import Event, Unit
from sightline.ledger import Ledger
from sightline.mechanisms import CohortSampler, Schedules
from sightline.topology import Channel, Clusters, client_name

TRAFFIC_ROUNDS = 50
"""Rounds from which the traffic of a run is extrapolated."""


def plan_releases(
    built: BuiltExperiment,
    *,
    rounds: int | None = None,
    real_nodes: bool = False,
    execution: DryExecution | None = None,
    on_round: Callable[[Mapping[str, float]], None] = lambda counts: None,
) -> Ledger:
    """Return the releases of the whole training if all clients take part, by running the algorithm without data.

    The noise is that of `built.mechanism`: unit noise before calibration. `on_round` gets the traffic of every round.
    """
    if real_nodes:
        _refuse_peers(built)
    # The algorithm's own round is run with claims only. A separate formula per algorithm would be a second description
    # of the same thing, and the two would drift apart.
    ledger = Ledger(participants=built.participants)
    execution = execution or DryExecution(built.federation.sizes.tolist(), real_nodes=real_nodes)
    walk_rounds(built, ledger, execution, rounds or built.experiment.rounds, on_round)
    return ledger


def _refuse_peers(built: BuiltExperiment) -> None:
    """Raise `Refused` if clients send to each other: real nodes send to one server, which would see it all."""
    nodes = {client_name(client) for client in built.clients}
    if any(channel.name in nodes for channel in built.topology.channels):
        reason = "its nodes send to each other, but real nodes send to one server, which would see everything"
        refuse("topology.kind", built.experiment.topology.kind, reason, "run it in the simulator")


def follow_plan(built: BuiltExperiment, *, rounds: int | None = None, real_nodes: bool = False) -> FollowedPlan:
    """Return the plan of a run, to hold the run to it and to charge what the run leaves out."""
    rounds = None if rounds is None else min(rounds, built.experiment.rounds)
    return FollowedPlan(plan_releases(built, rounds=rounds, real_nodes=real_nodes), built.topology)


def calibrate_noise(built: BuiltExperiment, *, real_nodes: bool = False) -> BuiltExperiment:
    """Return the experiment with its noise: as given, or the smallest that meets `privacy.epsilon`.

    With `real_nodes` it meets epsilon also if some of them do not answer.
    """
    if real_nodes:
        _refuse_peers(built)
    # A plugin algorithm is checked first: a plan of claims that follow released values would be worthless.
    check_first_algorithm(built, lambda: follow_plan(built, rounds=ROUNDS))
    privacy = built.experiment.privacy
    if privacy.unit == "none":
        return rehearse_round(built)
    # With delta near 1 / n even a mechanism that publishes one random subject would satisfy the guarantee.
    if not privacy.allow_large_delta:
        accounting.refuse_large_delta("privacy.delta", privacy.delta, *count_protected(built))
    if privacy.noise_multiplier is not None:
        multipliers = dict.fromkeys(built.clients, privacy.noise_multiplier)
    elif privacy.epsilon is not None:
        multipliers = needed_noise(built, plan_releases(built, real_nodes=real_nodes))
    else:
        return rehearse_round(built)  # an absolute amount of noise
    return rehearse_round(built.with_noise(multipliers))


def rehearse_round(built: BuiltExperiment) -> BuiltExperiment:
    """Return the experiment after planning its first round, so that a refusal comes before a run exists."""
    privacy = built.experiment.privacy
    own = built.splitter is not None or privacy.noise == "correlated" or built.mechanism.facts.numbers
    if privacy.mechanism != "gaussian" or own:
        plan_releases(built, rounds=1)
    return built


def needed_noise(built: BuiltExperiment, planned: Ledger) -> dict[int, float]:
    """Return, per client, the smallest noise multiplier that meets (epsilon, delta) against all untrusted observers."""
    # Many clients have equal compositions; each one is solved once.
    solved: dict[tuple[frozenset[tuple[Event, int]], frozenset[tuple[Event, int]]], float] = {}
    needed = {}
    for client in built.clients:
        name = client_name(client)
        lines = {line for some in built.topology.lines.values() for line in some if name not in line.exempt}
        views = [(line.observer, planned.composition(name, line.observer)) for line in lines]
        worst = 0.0
        for observer, composition in views:
            for spent in _spent_before(built, name, observer):
                key = frozenset(composition.items()), frozenset(spent.items())
                if key not in solved:
                    solved[key] = _least_noise(built, dict(composition), spent)
                worst = max(worst, solved[key])
        needed[client] = worst
    return needed


def _spent_before(built: BuiltExperiment, subject: str, observer: str) -> list[Counter[Event]]:
    """Return the possible costs of earlier runs if the budget includes them; one empty cost otherwise."""
    if not built.experiment.privacy.continue_ledger or built.earlier is None:
        return [Counter()]
    result = built.earlier.sums(subject, observer)
    if result is None:
        reason = "the earlier runs differ too much in data and in what they released to calibrate noise with them"
        refuse("privacy.continue_ledger", True, reason, "give noise_multiplier and stop_at_epsilon instead of epsilon")
    return result


def _least_noise(built: BuiltExperiment, composition: dict[Event, int], spent: Counter[Event]) -> float:
    privacy, mechanism = built.experiment.privacy, built.mechanism
    before = accounting.epsilon(spent, privacy.delta, accountant=built.accountant)
    if before >= cast(float, privacy.epsilon):
        reason = f"the runs behind model.init spent {before:.4g}, which privacy.continue_ledger counts"
        refuse("privacy.epsilon", privacy.epsilon, reason, "give a larger one")
    return accounting.calibrate(
        lambda noise: Counter({mechanism.scaled(event, noise): times for event, times in composition.items()}) + spent,
        epsilon=cast(float, privacy.epsilon),
        delta=privacy.delta,
        accountant=built.accountant,
    )


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
