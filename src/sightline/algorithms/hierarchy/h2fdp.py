"""H2FDP: noise where trust ends in a hierarchy (Lin and Brinton, Algorithm 1), and its baselines."""

import math
from dataclasses import dataclass, replace
from typing import Any

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse
from sightline.mechanisms import Cohort, Public, Updates, share_training, sum_weighted
from sightline.topology import Channel

SCHEDULES = {"inverse_sqrt": lambda k: 1 / math.sqrt(k + 1), "constant": lambda k: 1.0}
"""eta_k / gamma in interval k; the first is Theorem 4.3's."""


@dataclass(frozen=True)
class H2FDP:
    """Settings of H2FDP; tau is `local.steps`, gamma is `local.learning_rate`, G is `privacy.clip_norm`."""

    local_aggregation: int = 5
    """Steps from one aggregation to the next."""
    schedule: str = "inverse_sqrt"

    def __post_init__(self) -> None:
        whole = isinstance(self.local_aggregation, int) and not isinstance(self.local_aggregation, bool)
        if not whole or self.local_aggregation < 1:
            invalid("algorithm.local_aggregation", self.local_aggregation, "is a whole number of steps >= 1", "e.g. 5")
        if str(self.schedule) not in SCHEDULES:
            law = "no such step size schedule"
            invalid("algorithm.schedule", self.schedule, law, did_you_mean(str(self.schedule), list(SCHEDULES)))


def init_state(start: Public, clients: range, settings: H2FDP) -> State:
    """Line 1: return one global model, sent to every device."""
    return {"model": start}


def run_round(state: State, r: Round, settings: H2FDP) -> State:
    """Lines 5-28: run one interval of tau steps in K_l segments, each released once; the last goes to the cloud."""
    # The number of segments follows the planned steps, not the chosen pace: a round makes the same releases at any
    # pace.
    segments = segments_of(settings, r.planned.steps or 1)
    work = plan_segment(r, settings, segments)
    models = [state["model"]] * len(r.channels)
    for _ in range(segments - 1):  # lines 9-16: local aggregations
        updates = r.train(draw_cohort(r), start_models(r.channels, models), **work.asked)  # line 7, eqs. (7) and (8)
        steps = r.release_means(share_training(updates, work.of(r.channels)))  # eqs. (9) and (10)
        models = [model + step for model, step in zip(models, steps, strict=True)]
    updates = r.train(r.sample(), start_models(r.channels, models), **work.asked)
    return {"model": global_model(r, work, models, updates)}  # lines 19-28, eq. (14)


def segments_of(settings: H2FDP, steps: int) -> int:
    """Return K_l + 1: how often an interval of `steps` planned steps gathers, the last time for the cloud."""
    return steps // settings.local_aggregation


@dataclass(frozen=True)
class Segment:
    """The m steps between two aggregations: how devices work, and how far that can move them."""

    steps: int
    learning_rate: float
    asked: dict[str, Any]
    """Fields of the local task."""

    def of(self, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
        """Return the channels with eta m G as the norm of what each device sends; the noise scales with it."""
        return tuple(replace(c, clip_factor=c.clip_factor * self.learning_rate * self.steps) for c in channels)


def plan_segment(r: Round, settings: H2FDP, segments: int) -> Segment:
    """Return tau_k / K_l steps of size eta_k = gamma / sqrt(k + 1), each gradient scaled onto the ball of radius G."""
    steps, most = (max(1, (tau or 1) // segments) for tau in (r.pace.steps, r.most_steps))
    eta = (r.pace.learning_rate or 1.0) * SCHEDULES[settings.schedule](r.time - 1)
    asked: dict[str, Any] = {"steps": steps, "most_steps": most, "learning_rate": eta}
    return Segment(steps, eta, asked if r.clip_norm is None else asked | {"step_norm": r.clip_norm})


def draw_cohort(r: Round) -> Cohort:
    """Draw the participants of a segment, separately for every edge."""
    # Fresh draws per segment: the event of a segment assumes draws that are independent of earlier ones.
    return Cohort(tuple(sorted(n for channel in r.channels for n in r.sample(channel).members)))


def start_models(channels: tuple[Channel, ...], models: list[Public]) -> dict[int, Public]:
    """Return every device's start: its edge's model."""
    return {n: model for channel, model in zip(channels, models, strict=True) for n in channel.members}


def global_model(r: Round, work: Segment, models: list[Public], updates: Updates) -> Public:
    """Return the cloud's mean of the edges' models and of the last segment, noised where trust ends on the way up.

    The cloud receives every edge's part by itself; the parts come from the same releases, so they reveal no more.
    """
    steps = r.release_means(share_training(updates, work.of(r.gathers)))
    return r.publish(
        sum_weighted(models, r.channel_shares(r.channels)) + sum_weighted(steps, r.channel_shares(r.gathers))
    )


def current_models(state: State, clients: range) -> Public:
    """Return the global model."""
    return state["model"]


def check_experiment(experiment: Experiment) -> None:
    """Raise for settings that break the bound eta m G on a segment, or the count of releases per round."""
    name, local = experiment.algorithm.name, experiment.local
    every = experiment.algorithm.settings.get("local_aggregation", H2FDP.local_aggregation)
    if local.steps is None:
        invalid(
            "local.epochs", local.epochs, f"{name} counts steps, tau of them in an interval", "e.g. local.steps = 20"
        )
    if isinstance(every, int) and every >= 1 and local.steps % every:
        law = f"an interval of local.steps={local.steps} is cut into segments of equal length"
        invalid("algorithm.local_aggregation", every, law, "give a divisor of local.steps")
    if experiment.sampling.clients.scheduled and every != local.steps:
        law = f"a schedule counts one use a round, and {name} draws a cohort for every segment"
        refuse("sampling.clients.scheme", experiment.sampling.clients.scheme, law, 'use scheme = "poisson" or "full"')
    if experiment.privacy.noise == "correlated" and every != local.steps:
        law = f"a stream of noise has one row a round, and {name} releases every segment"
        refuse("privacy.noise", "correlated", law, "use local_aggregation = local.steps, or independent noise")
    if local.schedule not in (None, "constant") or local.warmup is not None:
        law = f"{name} has a schedule of its own"
        invalid("local.schedule", local.schedule or "warmup", law, "use algorithm.schedule, and remove it here")
    if experiment.privacy.unit != "none":
        check_private(experiment)


def check_private(experiment: Experiment) -> None:
    """Raise `Refused` for settings that break the bound in private runs."""
    name, privacy = experiment.algorithm.name, experiment.privacy
    if experiment.local.momentum:
        law = "momentum carries a gradient into steps after its segment, beyond eta m G"
        refuse("local.momentum", experiment.local.momentum, law, "use momentum = 0")
    if experiment.local.adaptive:
        law = "its steps are not gradients of at most the clip norm, and a segment's sum of them not at most eta m G"
        refuse("local.optimizer", experiment.local.optimizer, law, 'use optimizer = "sgd"')
    # Refused instead of silently becoming where = "edge": the user has to name the place of the noise.
    if privacy.place == "server":
        law = "edges publish to their devices between global rounds, before the cloud could add noise"
        refuse("privacy.where", "server", law, 'use where = "edge" with trusted edges')
    if privacy.unit == "sample" and privacy.place != "edge":
        law = f"{name} noises sums of clipped steps, where trust ends"
        refuse("privacy.where", privacy.place, law, 'use where = "edge", with trusted = 0.0 for noise at every device')
    if privacy.unit == "sample" and experiment.samples_scheme not in ("poisson", "full"):
        law = "a segment's rate is that of independent Poisson batches"
        refuse("sampling.samples.scheme", experiment.samples_scheme, law, 'use scheme = "poisson"')


SAYS = (
    "What is released is the sum of a device's steps since the last release, every gradient scaled to at most the clip "
    "norm. Each segment is released once; what edges and the cloud make of it afterwards costs nothing."
)

ALGORITHM = Algorithm(
    "h2fdp",
    H2FDP,
    init_state,
    run_round,
    current_models,
    says=SAYS,
    check=check_experiment,
    topologies=("tree",),
    aggregations=segments_of,
)


def check_hfl(experiment: Experiment) -> None:
    """Check HFL: H2FDP without privacy."""
    check_experiment(experiment)
    if experiment.privacy.unit != "none":
        law = "hfl is hierarchical averaging without privacy"
        invalid("privacy.unit", experiment.privacy.unit, law, 'use unit = "none", or algorithm.name = "h2fdp"')


def check_hfl_dp(experiment: Experiment) -> None:
    """Check HFL-DP: H2FDP in which no server is trusted."""
    _check_local(experiment)
    check_experiment(experiment)


def check_pedpfl(experiment: Experiment) -> None:
    """Check PEDPFL: HFL-DP with all devices in one subnet, or around one server."""
    check_hfl_dp(experiment)
    topology = experiment.topology
    given = topology.settings
    if topology.kind == "tree" and (given.get("subnets", 1) != 1 or "levels" in given or "file" in given):
        law = "pedpfl has all devices in one subnet"
        invalid("topology.subnets", given.get("subnets", "not 1"), law, 'use subnets = 1 alone, or kind = "star"')


def _check_local(experiment: Experiment) -> None:
    privacy, name = experiment.privacy, experiment.algorithm.name
    if privacy.unit != "client":
        law = f"{name} protects devices by noise of their own"
        invalid("privacy.unit", privacy.unit, law, 'use unit = "client"')
    if privacy.place != "client":
        law = f"in {name} nobody is trusted and every device adds noise"
        refuse("privacy.where", privacy.place, law, 'use where = "client"')


HFL = replace(ALGORITHM, name="hfl", check=check_hfl, says="")
HFL_DP = replace(ALGORITHM, name="hfl_dp", check=check_hfl_dp)
PEDPFL = replace(ALGORITHM, name="pedpfl", check=check_pedpfl, topologies=("star", "tree"))

BASELINES = (HFL, HFL_DP, PEDPFL)
