"""DP-OGL on overlapping groups (Kiani, Boenisch and Draper, Algorithm 1), and DP-OGL+ in a sound form."""

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
    """DP-OGL has no settings: structure, groups and period belong to the topology."""


def init_state(start: Public, clients: range, settings: DPOGL) -> State:
    """Line 1: start every group from the same model."""
    return {START: start}


def run_round(state: State, r: Round, settings: DPOGL) -> State:
    """Lines 4-25: run one epoch of every group, each with its own cohort and noise."""
    merging = (r.time - 1) % r.period == 0  # line 9
    if merging:
        show_to_newcomers(state, r)
    many = []
    for channel in r.channels:
        starts = merge_models(state, r.channels, channel) if merging else model_of(state, channel.name)  # lines 9-16
        cohort = r.sample(channel)  # line 17
        many.append((r.train(cohort, starts), channel))  # lines 18-20, 29-36
    # All groups are claimed in one transaction. With one call per group a budget could stop the run between two of
    # them: the first release would be charged and its value lost.
    return move_models(state, r.channels, r.release_means(many))  # lines 21-25


def move_models(state: State, channels: tuple[Channel, ...], steps: list[Public]) -> State:
    """Line 24: add the steps to the groups' models, and store who is in which group now."""
    found = dict(state)
    for channel, step in zip(channels, steps, strict=True):
        found[channel.name] = model_of(state, channel.name) + step
    members = {name + MEMBERS: value for name, value in members_of(channels).items()}
    return {name: value for name, value in found.items() if not name.endswith(MEMBERS)} | members


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
    found: dict[int, tuple[str, ...]] = {}
    for name, workers in members.items():
        for worker in workers:
            found[worker] = (*found.get(worker, ()), name)
    return found


def mean_model(models: list[Public]) -> Public:
    """Return the mean of public models; a single model is returned as it is."""
    if len(models) == 1:
        return models[0]
    return combine_public(lambda *values: torch.stack(values).double().mean(0).float(), *models)


def show_to_newcomers(state: State, r: Round) -> None:
    """Show a group's model to workers that have joined it; others have seen it before."""
    # It costs nothing, but it flows: without this record the ledger would not know that newcomers hold the model.
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
    "workers has an epsilon of its own. A worker's personal model is the mean of its groups' models. Optimisers are "
    "started afresh for every group and epoch, so nothing crosses between groups but released models."
)

ALGORITHM = Algorithm("dp_ogl", DPOGL, init_state, run_round, current_models, says=SAYS, topologies=("groups",))


@dataclass(frozen=True)
class DPOGLPlus:
    """DP-OGL+ has no settings: structure, groups and period belong to the topology."""


def run_plus_round(state: State, r: Round, settings: DPOGLPlus) -> State:
    """Run one epoch: the first of an interval records the starts, the last one trains and releases."""
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
    """Return the group with the clip norm of an interval, sqrt(S) c; the noise scales with it."""
    return replace(channel, clip_factor=channel.clip_factor * math.sqrt(period))


def show_starts(state: State, r: Round) -> None:
    """Record the start of an interval as seen by the whole group.

    Members learn it at the end of the interval at the latest. Counting it at once makes the ledger of a run that stops
    inside an interval an upper bound on everything that its workers hold.
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
    """Raise unless rounds are whole intervals and the privacy unit is not the single example."""
    period = experiment.topology.settings.get("period", 1)
    if isinstance(period, int) and period >= 1 and experiment.rounds % period:
        law = f"dp_ogl_plus releases at the end of an interval of period={period}"
        invalid("rounds", experiment.rounds, law, f"use a multiple of {period}")
    if experiment.privacy.unit == "sample":
        law = "dp_ogl_plus clips a worker's sum over an interval, which protects workers"
        refuse("privacy.unit", "sample", law, 'use unit = "client", or algorithm.name = "dp_ogl"')


def count_cohorts(experiment: Experiment) -> Cohorts:
    """Return one cohort per group at the end of every interval."""
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
