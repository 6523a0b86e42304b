"""The plan of a run: its releases, computed before any data is touched, and the noise that they need."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch

from sightline import accounting
from sightline.engine.algorithm_laws import ROUNDS, check_first_algorithm
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import DryExecution
from sightline.engine.followed_plan import FollowedPlan
from sightline.engine.round import TrainingRound
from sightline.errors import refuse
from sightline.events import Event
from sightline.ledger import Ledger
from sightline.mechanisms import (
    ClientState,
    Public,
)
from sightline.topology import client_name


def plan_releases(setting: BuiltExperiment, *, rounds: int | None = None, real_nodes: bool = False) -> Ledger:
    """Return the releases of the whole training if all clients take part, by running the algorithm without data.

    The noise is that of `setting.mechanism`: unit noise before calibration.
    """
    # The algorithm's own round is run with claims only. A separate formula per algorithm would be a second description
    # of the same thing, and the two would drift apart.
    ledger = Ledger(participants=setting.participants)
    execution = DryExecution(setting.federation.sizes.tolist(), real_nodes=real_nodes)
    state: Any = setting.algorithm.init(Public(torch.zeros(1)), setting.clients, setting.settings)
    memories: Mapping[str, ClientState] = {}
    for time in range(1, (rounds or setting.experiment.rounds) + 1):
        r = TrainingRound(setting, ledger, execution, time, memories)
        state = setting.algorithm.round(state, r, setting.settings)
        memories = r.memories
        state = {name: Public(value.value, ledger.frontier(value.sources)) for name, value in state.items()}
    return ledger


def follow_plan(setting: BuiltExperiment, *, rounds: int | None = None, real_nodes: bool = False) -> FollowedPlan:
    """Return the plan of a run, to hold the run to it and to charge what the run leaves out."""
    rounds = None if rounds is None else min(rounds, setting.experiment.rounds)
    return FollowedPlan(plan_releases(setting, rounds=rounds, real_nodes=real_nodes), setting.topology)


def calibrate_noise(setting: BuiltExperiment, *, real_nodes: bool = False) -> BuiltExperiment:
    """Return the experiment with its noise: as given, or the smallest that meets `privacy.epsilon`.

    With `real_nodes` it meets epsilon also if some of them do not answer.
    """
    # A plugin algorithm is checked first: a plan of claims that follow released values would be worthless.
    check_first_algorithm(setting, lambda: follow_plan(setting, rounds=ROUNDS))
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return rehearse_round(setting)
    # With delta near 1 / n even a mechanism that publishes one random subject would satisfy the guarantee.
    if not privacy.allow_large_delta:
        accounting.refuse_large_delta("privacy.delta", privacy.delta, *setting.protected)
    if privacy.noise_multiplier is not None:
        multipliers = dict.fromkeys(setting.clients, privacy.noise_multiplier)
    elif privacy.epsilon is not None:
        multipliers = needed_noise(setting, plan_releases(setting, real_nodes=real_nodes))
    else:
        return rehearse_round(setting)  # an absolute amount of noise
    return rehearse_round(setting.with_noise(multipliers))


def rehearse_round(setting: BuiltExperiment) -> BuiltExperiment:
    """Return the experiment after planning its first round, so that a refusal comes before a run exists."""
    privacy = setting.experiment.privacy
    if privacy.mechanism != "gaussian" or setting.splitter is not None or privacy.noise == "correlated":
        plan_releases(setting, rounds=1)
    return setting


def needed_noise(setting: BuiltExperiment, planned: Ledger) -> dict[int, float]:
    """Return, per client, the smallest noise multiplier that meets (epsilon, delta) against all untrusted observers."""
    # Many clients have equal compositions; each one is solved once.
    solved: dict[tuple[frozenset[tuple[Event, int]], frozenset[tuple[Event, int]]], float] = {}
    needed = {}
    for client in setting.clients:
        name = client_name(client)
        lines = {line for some in setting.topology.lines.values() for line in some if name not in line.exempt}
        views = [(line.observer, planned.composition(name, line.observer)) for line in lines]
        worst = 0.0
        for observer, composition in views:
            for spent in _spent_before(setting, name, observer):
                key = frozenset(composition.items()), frozenset(spent.items())
                if key not in solved:
                    solved[key] = _least_noise(setting, dict(composition), spent)
                worst = max(worst, solved[key])
        needed[client] = worst
    return needed


def _spent_before(setting: BuiltExperiment, subject: str, observer: str) -> list[Counter[Event]]:
    """Return the possible costs of earlier runs if the budget includes them; one empty cost otherwise."""
    if not setting.experiment.privacy.continue_ledger or setting.earlier is None:
        return [Counter()]
    found = setting.earlier.sums(subject, observer)
    if found is None:
        law = "the earlier runs differ in data and in what they show of their clients, in too many ways to calibrate"
        refuse("privacy.continue_ledger", True, law, "give noise_multiplier and stop_at_epsilon in place of epsilon")
    return found


def _least_noise(setting: BuiltExperiment, composition: dict[Event, int], spent: Counter[Event]) -> float:
    privacy, mechanism = setting.experiment.privacy, setting.mechanism
    before = accounting.epsilon(spent, privacy.delta, accountant=setting.accountant)
    if before >= cast(float, privacy.epsilon):
        law = f"the runs that model.init comes from have spent {before:.4g}, and privacy.continue_ledger counts them"
        refuse("privacy.epsilon", privacy.epsilon, law, "give a larger one")
    return accounting.calibrate(
        lambda noise: Counter({mechanism.scaled(event, noise): times for event, times in composition.items()}) + spent,
        epsilon=cast(float, privacy.epsilon),
        delta=privacy.delta,
        accountant=setting.accountant,
    )
