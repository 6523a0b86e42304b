"""Overlapping groups: DP-OGL (Kiani, Boenisch and Draper, Algorithm 1), and DP-OGL+ in a sound form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.mechanisms import Cohorts, Public, combine_public
from sightline.topology import Channel

START = "start"
MEMBERS = " members"


@dataclass(frozen=True)
class DPOGL:
    """DP-OGL has no settings of its own: structure, groups and period are the topology's."""


def init_state(start: Public, clients: range, settings: DPOGL) -> State:
    """Line 1: every group begins with the same model."""
    return {START: start}


def run_round(state: State, r: Round, settings: DPOGL) -> State:
    """Lines 4-25: one epoch of every group, each with a cohort and a noise of its own."""
    merging = (r.time - 1) % r.period == 0  # line 9
    if merging:
        show_to_newcomers(state, r)
    many = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel) if merging else model_of(state, channel.name)  # lines 9-16
        cohort = r.sample(channel)  # line 17
        many.append((r.train(cohort, starts), channel))  # lines 18-20, 29-36
    return move_models(state, r.channels, r.release_means(many))  # lines 21-25


def move_models(state: State, channels: tuple[Channel, ...], steps: list[Public]) -> State:
    """Line 24, and who is in which group now."""
    found = dict(state)
    for channel, step in zip(channels, steps, strict=True):
        found[channel.name] = model_of(state, channel.name) + step
    members = {name + MEMBERS: value for name, value in members_of(channels).items()}
    return {name: value for name, value in found.items() if not name.endswith(MEMBERS)} | members


def members_of(channels: tuple[Channel, ...]) -> dict[str, Public]:
    """The public lists of members, as vectors that a checkpoint can keep."""
    return {channel.name: Public(torch.tensor(channel.members, dtype=torch.float32)) for channel in channels}


def model_of(state: State, name: str) -> Public:
    """A group's model; before its first release it is everybody's start."""
    return state.get(name, state[START])


def merge_models(state: State, channels: tuple[Channel, ...], channel: Channel) -> Mapping[int, Public]:
    """Lines 11-13 and 26-28: every member starts from the mean of the models of all its groups."""
    groups = groups_of({other.name: other.members for other in channels})
    means = {names: mean_model([model_of(state, name) for name in names]) for names in set(groups.values())}
    return {worker: means[groups[worker]] for worker in channel.members}


def groups_of(members: Mapping[str, tuple[int, ...]]) -> dict[int, tuple[str, ...]]:
    """Worker -> the names of its groups."""
    found: dict[int, tuple[str, ...]] = {}
    for name, workers in members.items():
        for worker in workers:
            found[worker] = (*found.get(worker, ()), name)
    return found


def mean_model(models: list[Public]) -> Public:
    """The mean of public models; of one model, that model itself."""
    if len(models) == 1:
        return models[0]
    return combine_public(lambda *values: torch.stack(values).double().mean(0).float(), *models)


def show_to_newcomers(state: State, r: Round) -> None:
    """A worker that joins a group receives the group's model, which others have seen before it."""
    before = known_members(state)
    if not before:
        return
    shown = []
    for channel in r.channels:
        new = frozenset(channel.members) - frozenset(before.get(channel.name, ()))
        if new and channel.name in state:
            audience = frozenset(f"client-{worker}" for worker in new)
            shown.append((model_of(state, channel.name), channel, audience, "the group's model, for new members"))
    if shown:
        r.show_values(shown)


def known_members(state: State) -> dict[str, tuple[int, ...]]:
    """Group -> members, as the last epoch had them."""
    return {
        name.removesuffix(MEMBERS): tuple(int(worker) for worker in value.value.tolist())
        for name, value in state.items()
        if name.endswith(MEMBERS)
    }


def current_models(state: State, clients: range) -> dict[int, Public]:
    """Worker n's personal model: the mean of its groups' models (constraint of eq. (1))."""
    groups = groups_of(known_members(state))
    means = {names: mean_model([model_of(state, name) for name in names]) for names in set(groups.values())}
    return {client: means[groups[client]] if client in groups else state[START] for client in clients}


SAYS = (
    "Groups overlap: what one group releases reaches members of others only through common workers, and every pair of "
    "workers has an epsilon of its own. A worker's personal model is the mean of its groups' models. Optimisers are "
    "started afresh for every group and epoch, so nothing crosses between groups but released models."
)

ALGORITHM = Algorithm("dp_ogl", DPOGL, init_state, run_round, current_models, says=SAYS, topologies=("groups",))


@dataclass(frozen=True)
class DPOGLPlus:
    """DP-OGL+ has no settings of its own: structure, groups and period are the topology's."""


def run_plus_round(state: State, r: Round, settings: DPOGLPlus) -> State:
    """One epoch: the first of an interval names where everybody starts, the last one trains and releases."""
    if (r.time - 1) % r.period == 0:
        show_to_newcomers(state, r)
        show_starts(state, r)
    if r.time % r.period:
        return state
    many = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel)
        wide = for_interval(channel, r.period)
        many.append((r.train(r.sample(channel), starts, repeat=r.period), wide))
    return move_models(state, r.channels, r.release_means(many))


def for_interval(channel: Channel, period: int) -> Channel:
    """The group with the clip norm of an interval, sqrt(S) c; the noise follows it."""
    return replace(channel, clip_factor=channel.clip_factor * math.sqrt(period))


def show_starts(state: State, r: Round) -> None:
    """Count where an interval starts as seen by the whole group.

    Members learn of it at the interval's end at the latest; counting it at once makes the ledger of a run that stops
    inside an interval an upper bound on everything that its workers hold by then.
    """
    shown = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel)
        value = mean_model(list({id(start): start for start in starts.values()}.values()))
        if value.sources:
            shown.append((value, channel, channel.audience, "where an interval starts, counted as seen"))
    if shown:
        r.show_values(shown)


def check_experiment(experiment: Experiment) -> None:
    """Whole intervals only, and privacy of clients: the steps of single examples are counted per epoch elsewhere."""
    period = experiment.topology.settings.get("period", 1)
    if isinstance(period, int) and period >= 1 and experiment.rounds % period:
        law = f"dp_ogl_plus releases at the end of an interval of period={period}"
        invalid("rounds", experiment.rounds, law, f"use a multiple of {period}")
    if experiment.privacy.unit == "sample":
        law = "dp_ogl_plus clips a worker's sum over an interval, which protects workers"
        refuse("privacy.unit", "sample", law, 'use unit = "client", or algorithm.name = "dp_ogl"')


def count_cohorts(experiment: Experiment) -> Cohorts:
    """One cohort of each group at the end of every interval."""
    period = int(experiment.topology.settings.get("period", 1))
    return Cohorts(experiment.rounds // period, period)


SAYS_PLUS = SAYS + " Each sampled worker trains alone through an interval; nothing is released inside it."

PLUS = Algorithm(
    "dp_ogl_plus",
    DPOGLPlus,
    init_state,
    run_plus_round,
    current_models,
    says=SAYS_PLUS,
    check=check_experiment,
    topologies=("groups",),
    cohorts=count_cohorts,
)
