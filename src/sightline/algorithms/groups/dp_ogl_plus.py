"""DP-OGL+ in a sound form: each sampled worker trains alone through a whole interval.

Kiani, Boenisch and Draper, Sec. III-B, let group-mates train from un-noised models inside an interval (eqs. (11)-(13)),
so removing one worker moves everybody's clipped sum; see docs/groups.md. Here nothing leaves a worker before its summed
update is clipped to sqrt(S) c and the group's sum is noised with variance S c^2 sigma^2.
"""

import math
from dataclasses import dataclass, replace

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.algorithms.groups import dp_ogl
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.mechanisms import Cohorts
from sightline.topology import Channel


@dataclass(frozen=True)
class DPOGLPlus:
    """DP-OGL+ has no settings of its own: structure, groups and period are the topology's."""


def run_round(state: State, r: Round, settings: DPOGLPlus) -> State:
    """One epoch: the first of an interval names where everybody starts, the last one trains and releases."""
    if (r.time - 1) % r.period == 0:
        dp_ogl.show_to_newcomers(state, r)
        show_starts(state, r)
    if r.time % r.period:
        return state
    many = []
    for channel in r.channels:
        starts = dp_ogl.merge_models(state, r.channels, channel)
        wide = for_interval(channel, r.period)
        many.append((r.train(r.sample(channel), starts, repeat=r.period), wide))
    return dp_ogl.move_models(state, r.channels, r.release_means(many))


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
        starts = dp_ogl.merge_models(state, r.channels, channel)
        value = dp_ogl.mean_model(list({id(start): start for start in starts.values()}.values()))
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


SAYS = dp_ogl.SAYS + " Each sampled worker trains alone through an interval; nothing is released inside it."

ALGORITHM = Algorithm(
    "dp_ogl_plus",
    DPOGLPlus,
    dp_ogl.init_state,
    run_round,
    dp_ogl.current_models,
    says=SAYS,
    check=check_experiment,
    topologies=("groups",),
    cohorts=count_cohorts,
)
