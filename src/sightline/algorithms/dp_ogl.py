"""DP-OGL on overlapping groups (Kiani, Boenisch and Draper, Algorithm 1), and DP-OGL+ in a sound form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State
from sightline.algorithms.fedopt import SECOND_MOMENTS, FedAdam
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.mechanisms import COUNTED, Cohorts, Public, combine_public
from sightline.topology import Channel

START = "start"
MEMBERS = " members"
FIRST, SECOND = " first moment", " second moment"
OPTIMIZERS = ("sgd", *SECOND_MOMENTS)
ROBUST = ("median", "trimmed")
"""Words of robust aggregation, which the noise does not cover."""


@dataclass(frozen=True)
class DPOGL:
    """The optimiser of every group's master (Section V-C); structure, groups and period belong to the topology."""

    server_optimizer: str = "sgd"
    """"sgd", "adagrad", "adam" or "yogi"."""
    server_learning_rate: float | None = None
    """1 for "sgd", 0.1 for the others."""
    server_momentum: float = 0.0
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if any(word in self.server_optimizer for word in ROBUST):
            reason = "one worker moves it further than the noise covers (papers/docs/errata.md, erratum 13)"
            refuse("algorithm.server_optimizer", self.server_optimizer, reason, f"use {', '.join(OPTIMIZERS)}")
        if self.server_optimizer not in OPTIMIZERS:
            invalid("algorithm.server_optimizer", self.server_optimizer, "is unknown", f"use {', '.join(OPTIMIZERS)}")
        if self.server_learning_rate is not None and not self.server_learning_rate > 0:
            invalid("algorithm.server_learning_rate", self.server_learning_rate, "must be positive")
        if not 0 <= self.server_momentum < 1:
            invalid("algorithm.server_momentum", self.server_momentum, "must be in [0, 1)")
        FedAdam(beta2=self.beta2, tau=self.tau)  # validates both

    @property
    def plain(self) -> bool:
        """Whether a master adds the mean to its model as it is, line 24 as printed."""
        return (self.server_optimizer, self.server_momentum, self.server_learning_rate or 1.0) == ("sgd", 0.0, 1.0)


def init_state(start: Public, clients: range, settings: DPOGL) -> State:
    """Line 1: start every group from the same model."""
    return {START: start}


def run_round(state: State, r: Round, settings: DPOGL) -> State:
    """Lines 4-25: run one epoch of every group, each with its own cohort and noise."""
    merging = (r.time - 1) % r.control.period == 0  # line 9
    if merging:
        state = show_to_newcomers(state, r)
    many = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel) if merging else model_of(state, channel.name)  # lines 9-16
        cohort = r.sample(channel)  # line 17
        many.append((r.train(cohort, starts), channel))  # lines 18-20, 29-36
    # All groups are claimed in one transaction. With one call per group a budget could stop the run between two of
    # them: the first release would be charged and its value lost.
    return move_models(state, r.channels, r.release_means(many), settings)  # lines 21-25


def move_models(state: State, channels: tuple[Channel, ...], steps: list[Public], settings: DPOGL) -> State:
    """Line 24: move the groups' models by their steps, and store who is in which group now."""
    result = dict(state)
    for channel, step in zip(channels, steps, strict=True):
        move = step if settings.plain else optimise_step(result, channel.name, step, settings)
        result[channel.name] = model_of(state, channel.name) + move
    members = {name + MEMBERS: value for name, value in members_of(channels).items()}
    return {name: value for name, value in result.items() if not name.endswith(MEMBERS)} | members


def optimise_step(state: dict[str, Public], group: str, step: Public, settings: DPOGL) -> Public:
    """Return how far a group's model moves by the master's optimiser, and update the moments in `state`."""
    # Each master uses its own group's released means only: post-processing, so every bound stays as it is.
    zero, beta = 0.0 * step, settings.server_momentum
    if settings.server_optimizer == "sgd":
        state[group + FIRST] = first = beta * state.get(group + FIRST, zero) + step
        return (settings.server_learning_rate or 1.0) * first
    before = state.get(group + SECOND) or combine_public(lambda z: z + settings.tau**2, zero)
    moment, numbers = SECOND_MOMENTS[settings.server_optimizer], FedAdam(beta2=settings.beta2)
    state[group + FIRST] = first = beta * state.get(group + FIRST, zero) + (1 - beta) * step
    state[group + SECOND] = second = combine_public(lambda v, d: moment(v, d, numbers), before, step)
    scaled = combine_public(lambda m, v: m / (v.sqrt() + settings.tau), first, second)
    return (settings.server_learning_rate or 0.1) * scaled


def members_of(channels: tuple[Channel, ...]) -> dict[str, Public]:
    """Return the public lists of members as vectors that a checkpoint can keep."""
    return {channel.name: Public(torch.tensor(channel.members, dtype=torch.float32)) for channel in channels}


def model_of(state: State, name: str) -> Public:
    """Return a group's model; before its first release, the common start."""
    return state.get(name, state[START])


def merge_models(state: State, channels: tuple[Channel, ...], channel: Channel) -> Mapping[int, Public]:
    """Lines 11-13 and 26-28: return the mean of the models of all its groups as each member's start."""
    groups = groups_of({other.name: other.members for other in channels})
    # One `Public` per set of groups, not per worker: equal starts are one object, so training can share them.
    means = {names: mean_model([model_of(state, name) for name in names]) for names in set(groups.values())}
    return {worker: means[groups[worker]] for worker in channel.members}


def groups_of(members: Mapping[str, tuple[int, ...]]) -> dict[int, tuple[str, ...]]:
    """Return worker -> the names of its groups."""
    result: dict[int, tuple[str, ...]] = {}
    for name, workers in members.items():
        for worker in workers:
            result[worker] = (*result.get(worker, ()), name)
    return result


def mean_model(models: list[Public]) -> Public:
    """Return the mean of public models; a single model is returned as it is."""
    if len(models) == 1:
        return models[0]
    return combine_public(lambda *values: torch.stack(values).double().mean(0).float(), *models)


def show_to_newcomers(state: State, r: Round) -> State:
    """Show a group's model to workers that have joined it; others have seen it before."""
    # It costs nothing, but it flows: without this record the ledger would not know that newcomers hold the model.
    before = known_members(state)
    if not before:
        return state
    shown = []
    for channel in r.channels:
        new = frozenset(channel.members) - frozenset(before.get(channel.name, ()))
        if new and channel.name in state:
            audience = frozenset(f"client-{worker}" for worker in new)
            shown.append((model_of(state, channel.name), channel, audience, "the group's model, for new members"))
    names = [channel.name for _, channel, _, _ in shown]
    return dict(state) | dict(zip(names, r.show(shown) if shown else (), strict=True))


def known_members(state: State) -> dict[str, tuple[int, ...]]:
    """Return group -> members in the last epoch."""
    return {
        name.removesuffix(MEMBERS): tuple(int(worker) for worker in value.value.tolist())
        for name, value in state.items()
        if name.endswith(MEMBERS)
    }


def current_models(state: State, clients: range) -> dict[int, Public]:
    """Return worker n's personal model: the mean of its groups' models (constraint of eq. (1))."""
    groups = groups_of(known_members(state))
    means = {names: mean_model([model_of(state, name) for name in names]) for names in set(groups.values())}
    return {client: means[groups[client]] if client in groups else state[START] for client in clients}


SAYS = (
    "Groups overlap: what one group releases reaches members of others only through common workers, and every pair of "
    "workers has its own epsilon. A worker's personal model is the mean of its groups' models. Optimisers are "
    "started afresh for every group and epoch, so nothing crosses between groups but released models."
)

FACTS = AlgorithmFacts(
    says=SAYS,
    topologies=("groups",),
)
ALGORITHM = Algorithm("dp_ogl", DPOGL, init_state, run_round, current_models, FACTS)


def run_plus_round(state: State, r: Round, settings: DPOGL) -> State:
    """Run one epoch: the first of an interval records the starts, the last one trains and releases."""
    period = r.control.period
    if (r.time - 1) % period == 0:
        state = show_to_newcomers(state, r)
        count_starts(state, r)
    if r.time % period:
        return state
    many = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel)
        wide = for_interval(channel, period)
        many.append((r.train(r.sample(channel), starts, repeat=period), wide))
    return move_models(state, r.channels, r.release_means(many), settings)


def for_interval(channel: Channel, period: int) -> Channel:
    """Return the group with the clip norm of an interval, sqrt(S) c; the noise scales with it."""
    return replace(channel, clip_factor=channel.clip_factor * math.sqrt(period))


def count_starts(state: State, r: Round) -> None:
    """Count the start of an interval as seen by the whole group.

    Members learn it at the end of the interval at the latest. Counting it at once makes the ledger of a run that stops
    inside an interval an upper bound on everything that its workers hold.
    """
    shown = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel)
        sources = frozenset[int]().union(*(start.sources for start in starts.values()))
        if sources:
            what = "where an interval starts, counted as seen"
            shown.append((Public(COUNTED, sources), channel, channel.audience, what))
    if shown:
        r.show(shown)


def check_experiment(experiment: Experiment) -> None:
    """Raise unless rounds are whole intervals and the privacy unit is not the single example."""
    period = experiment.topology.settings.get("period", 1)
    if isinstance(period, int) and period >= 1 and experiment.rounds % period:
        reason = f"dp_ogl_plus releases at the end of an interval of period={period}"
        invalid("rounds", experiment.rounds, reason, f"use a multiple of {period}")
    if experiment.privacy.unit == "sample":
        reason = "dp_ogl_plus clips a worker's sum over an interval, which protects workers, not single examples"
        refuse("privacy.unit", "sample", reason, 'use unit = "client", or algorithm.name = "dp_ogl"')


def count_cohorts(experiment: Experiment) -> Cohorts:
    """Return one cohort per group at the end of every interval."""
    period = int(experiment.topology.settings.get("period", 1))
    return Cohorts(experiment.rounds // period, period)


PLUS_FACTS = AlgorithmFacts(
    says=SAYS + " Each sampled worker trains alone through an interval; nothing is released inside it.",
    check=check_experiment,
    topologies=("groups",),
    cohorts=count_cohorts,
)
PLUS = Algorithm("dp_ogl_plus", DPOGL, init_state, run_plus_round, current_models, PLUS_FACTS)
