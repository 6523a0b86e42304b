"""H2FDP: noise where trust ends in a hierarchy (Lin and Brinton, Algorithm 1), and its baselines."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State, global_model, with_facts
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse
from sightline.mechanisms import Cohort, Public, Updates, share_training, sum_weighted
from sightline.topology import Channel

SCHEDULES = {"inverse_sqrt": lambda k: 1 / math.sqrt(k + 1), "constant": lambda k: 1.0}
"""eta_k / gamma in interval k; the first is Theorem 4.3's."""


@dataclass(frozen=True)
class H2FDP:
    """Settings of H2FDP; tau is `local.steps`, gamma is `local.learning_rate`, G is `privacy.clip_norm`."""

    local_aggregation: int | Sequence[int] = 5
    """Steps from one aggregation to the next: one number, or one for each subnet (K_c^l)."""
    schedule: str = "inverse_sqrt"
    subnet_weights: str | Sequence[float] = "data"
    """Weights of the subnets in the global model: "data", "equal", or one number each."""

    def __post_init__(self) -> None:
        for every in lengths_of(self.local_aggregation) or (None,):
            if not isinstance(every, int) or isinstance(every, bool) or every < 1:
                invalid(
                    "algorithm.local_aggregation",
                    every,
                    "must be a whole number of steps >= 1, or a list of them",
                    "e.g. 5",
                )
        numbers = not isinstance(self.subnet_weights, str) and self.subnet_weights
        if not (numbers and all(_is_weight(one) for one in numbers)) and self.subnet_weights not in ("data", "equal"):
            reason = 'must be "data", "equal", or a positive number for each subnet'
            invalid("algorithm.subnet_weights", self.subnet_weights, reason, 'e.g. "equal"')
        if str(self.schedule) not in SCHEDULES:
            reason = "unknown step size schedule"
            invalid("algorithm.schedule", self.schedule, reason, did_you_mean(str(self.schedule), list(SCHEDULES)))


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def lengths_of(local_aggregation: Any) -> tuple[Any, ...]:
    """Return the lengths of segments that are given: one for all subnets, or one each."""
    given = local_aggregation
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def init_state(start: Public, clients: range, settings: H2FDP) -> State:
    """Line 1: return one global model, sent to every device."""
    return {"model": start}


def run_round(state: State, r: Round, settings: H2FDP) -> State:
    """Lines 5-28: run one interval of tau steps in segments, each released once; the last goes to the cloud."""
    models, last = {c.name: state["model"] for c in r.channels}, []
    for every, subnets in group_subnets(r, settings):
        # The number of segments follows the planned steps, not the chosen ones: a round makes the same releases at any
        # schedule.
        segments = (r.control.planned.steps or 1) // every  # K_c^l + 1
        work = plan_segment(r, settings, segments)
        for _ in range(segments - 1):  # lines 9-16: local aggregations
            updates = r.train(draw_cohort(r, subnets), start_models(subnets, models), **work.asked)  # eqs. (7) and (8)
            steps = r.release_means(share_training(updates, work.of(subnets)))  # eqs. (9) and (10)
            models |= {c.name: models[c.name] + step for c, step in zip(subnets, steps, strict=True)}
        cohort = r.sample() if subnets == r.channels else draw_cohort(r, subnets)
        updates = r.train(cohort, start_models(subnets, models), **work.asked)
        last += share_training(updates, work.of(gathering_channels(r, subnets)))
    return {"model": release_global(r, settings, models, last)}  # lines 19-28, eq. (14)


def group_subnets(r: Round, settings: H2FDP) -> list[tuple[int, tuple[Channel, ...]]]:
    """Return the lengths of segments, and the subnets with each."""
    lengths = lengths_of(settings.local_aggregation)
    if len(lengths) == 1:
        return [(lengths[0], r.channels)]
    _check_per_subnet(r, "local_aggregation", lengths)
    groups: dict[int, tuple[Channel, ...]] = {}
    for every, channel in zip(lengths, r.channels, strict=True):
        groups[every] = (*groups.get(every, ()), channel)
    return sorted(groups.items())


def _check_per_subnet(r: Round, name: str, given: Sequence[object]) -> None:
    """Raise unless there is one value for each subnet, and every subnet is summed by itself."""
    if len(given) != len(r.channels):
        reason = f"has {len(given)} values for {len(r.channels)} subnets"
        invalid(f"algorithm.{name}", list(given), reason, "give one for each subnet")
    if {c.name for c in r.control.gathering_channels} != {c.name for c in r.channels}:
        reason = "a trusted region sums several subnets before the noise, so they need the same value"
        refuse(
            f"algorithm.{name}",
            list(given),
            reason,
            "give one value for all, or trust only one of the levels in topology.trusted",
        )


def gathering_channels(r: Round, subnets: tuple[Channel, ...]) -> tuple[Channel, ...]:
    """Return the channels through which the last segment of these subnets reaches the cloud."""
    names = {c.name for c in subnets}
    every = r.control.gathering_channels
    return every if subnets == r.channels else tuple(c for c in every if c.name in names)


def segments_of(settings: H2FDP, steps: int) -> int:
    """Return K_l + 1: how often an interval of `steps` planned steps gathers, the last time for the cloud."""
    return steps // int(max(lengths_of(settings.local_aggregation)))


@dataclass(frozen=True)
class SegmentWork:
    """The m steps between two aggregations: how devices work, and how far that can move them."""

    steps: int
    learning_rate: float
    asked: dict[str, Any]
    """Fields of the local task."""

    def of(self, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
        """Return the channels with eta m G as the norm of what each device sends; the noise scales with it."""
        return tuple(replace(c, clip_factor=c.clip_factor * self.learning_rate * self.steps) for c in channels)


def plan_segment(r: Round, settings: H2FDP, segments: int) -> SegmentWork:
    """Return tau_k / K_l steps of size eta_k = gamma / sqrt(k + 1), each gradient scaled onto the ball of radius G."""
    control, schedule = r.control, r.control.schedule
    steps, most = (max(1, (tau or 1) // segments) for tau in (schedule.steps, control.most_steps))
    eta = (schedule.learning_rate or 1.0) * SCHEDULES[settings.schedule](r.time - 1)
    asked: dict[str, Any] = {"steps": steps, "most_steps": most, "learning_rate": eta}
    return SegmentWork(steps, eta, asked if control.clip_norm is None else asked | {"step_norm": control.clip_norm})


def draw_cohort(r: Round, subnets: tuple[Channel, ...]) -> Cohort:
    """Draw the participants of a segment, separately for every edge."""
    # Fresh draws per segment: the event of a segment assumes draws that are independent of earlier ones.
    return Cohort(tuple(sorted(n for channel in subnets for n in r.sample(channel).members)))


def start_models(subnets: tuple[Channel, ...], models: Mapping[str, Public]) -> dict[int, Public]:
    """Return every device's start: its edge's model."""
    return {n: models[channel.name] for channel in subnets for n in channel.members}


def release_global(
    r: Round, settings: H2FDP, models: Mapping[str, Public], last: list[tuple[Updates, Channel]]
) -> Public:
    """Return the cloud's mean of the edges' models and of the last segment, noised where trust ends on the way up.

    The cloud receives every edge's part by itself; the parts come from the same releases, so they reveal no more.
    """
    gathering = tuple(channel for _, channel in last)
    steps = r.release_means(last)
    own = lift_models(r, models)
    shares = subnet_shares(r, settings)
    return r.publish(sum_weighted(own, shares(r.channels)) + sum_weighted(steps, shares(gathering)))


def lift_models(r: Round, models: Mapping[str, Public]) -> list[Public]:
    """Return the edges' models after each has sent its own to the servers above it, unless these hold it."""
    own = [models[c.name] for c in r.channels]
    sent = [n for n, c in enumerate(r.channels) if not own[n].is_held_by(c.above)]
    shown = [(own[n], r.channels[n], r.channels[n].above, "an edge's model, sent up") for n in sent]
    for n, model in zip(sent, r.show(shown) if shown else (), strict=True):
        own[n] = model
    return own


def subnet_shares(r: Round, settings: H2FDP) -> Callable[[Sequence[Channel]], list[float]]:
    """Return the weights of subnets in the global model; public numbers, so they cost nothing."""
    if settings.subnet_weights == "data":
        return r.control.channel_shares
    weights = [1.0] * len(r.channels) if isinstance(settings.subnet_weights, str) else list(settings.subnet_weights)
    _check_per_subnet(r, "subnet_weights", weights)
    total = math.fsum(weights)
    of = {c.name: weight / total for c, weight in zip(r.channels, weights, strict=True)}
    return lambda channels: [of[c.name] for c in channels]


def check_experiment(experiment: Experiment) -> None:
    """Raise for settings that break the bound eta m G on a segment, or the count of releases per round."""
    name, local = experiment.algorithm.name, experiment.local
    every = experiment.algorithm.settings.get("local_aggregation", H2FDP.local_aggregation)
    if local.steps is None:
        invalid(
            "local.epochs", local.epochs, f"{name} counts steps, tau of them in an interval", "e.g. local.steps = 20"
        )
    for length in lengths_of(every):
        if isinstance(length, int) and length >= 1 and local.steps % length:
            reason = f"an interval of local.steps={local.steps} is cut into segments of equal length"
            invalid("algorithm.local_aggregation", length, reason, "give a divisor of local.steps")
    if len(lengths_of(every)) > 1:
        check_lengths(experiment, every)
    if experiment.sampling.clients.scheduled and every != local.steps:
        reason = f"a schedule allows one use per round, but {name} draws a cohort for every segment"
        refuse(
            "sampling.clients.scheme", experiment.sampling.clients.scheme, reason, 'use scheme = "poisson" or "full"'
        )
    if experiment.privacy.noise == "correlated" and every != local.steps:
        reason = f"correlated noise has one row per round, but {name} releases every segment"
        refuse("privacy.noise", "correlated", reason, "use local_aggregation = local.steps, or independent noise")
    if local.schedule not in (None, "constant") or local.warmup is not None:
        reason = f"{name} sets the step sizes by algorithm.schedule"
        invalid("local.schedule", local.schedule or "warmup", reason, "remove it, and use algorithm.schedule")
    if experiment.privacy.unit != "none":
        check_private(experiment)


def check_lengths(experiment: Experiment, every: object) -> None:
    """Raise `Refused` for what counts one length of segments."""
    asked = {"privacy.sensitivity": experiment.privacy.sensitivity == "convex",
             "algorithm.control": experiment.algorithm.settings.get("control") is not None}  # fmt: skip
    for name, given in asked.items():
        if given:
            reason = f"{name} needs segments of one length"
            refuse("algorithm.local_aggregation", every, reason, f"give one number, or remove {name}")


def check_private(experiment: Experiment) -> None:
    """Raise `Refused` for settings that break the bound in private runs."""
    name, privacy = experiment.algorithm.name, experiment.privacy
    if experiment.local.momentum:
        reason = "momentum carries a gradient into steps after its segment, beyond eta m G"
        refuse("local.momentum", experiment.local.momentum, reason, "use momentum = 0")
    if experiment.local.adaptive:
        reason = "its steps are not clipped gradients, so their sum over a segment can exceed eta m G"
        refuse("local.optimizer", experiment.local.optimizer, reason, 'use optimizer = "sgd"')
    # Refused instead of silently becoming where = "edge": the user has to name the place of the noise.
    if privacy.place == "server":
        reason = "edges publish to their devices between global rounds, before the cloud could add noise"
        refuse("privacy.where", "server", reason, 'use where = "edge" with trusted edges')
    if privacy.unit == "sample" and privacy.place != "edge":
        reason = f"{name} adds noise to sums of clipped steps, where trust ends"
        refuse(
            "privacy.where", privacy.place, reason, 'use where = "edge", with trusted = 0.0 for noise at every device'
        )
    if privacy.unit == "sample" and experiment.samples_scheme not in ("poisson", "full"):
        reason = "the rate of a segment is derived for independent Poisson batches"
        refuse("sampling.samples.scheme", experiment.samples_scheme, reason, 'use scheme = "poisson"')


FACTS = AlgorithmFacts(
    says="What is released is the sum of a device's steps since the last release, every gradient scaled to at most "
    "the clip norm. Each segment is released once; what edges and the cloud make of it afterwards costs "
    "nothing.",
    check=check_experiment,
    topologies=("tree",),
    aggregations=segments_of,
)
ALGORITHM = Algorithm("h2fdp", H2FDP, init_state, run_round, global_model, FACTS)


def check_hfl(experiment: Experiment) -> None:
    """Check HFL: H2FDP without privacy."""
    check_experiment(experiment)
    if experiment.privacy.unit != "none":
        reason = "hfl is hierarchical averaging without privacy"
        invalid("privacy.unit", experiment.privacy.unit, reason, 'use unit = "none", or algorithm.name = "h2fdp"')


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
        reason = "pedpfl has all devices in one subnet"
        invalid("topology.subnets", given.get("subnets", "not 1"), reason, 'use subnets = 1 alone, or kind = "star"')


def _check_local(experiment: Experiment) -> None:
    privacy, name, topology = experiment.privacy, experiment.algorithm.name, experiment.topology
    if privacy.unit == "none":
        reason = f"{name} protects devices or data points with noise that each device adds"
        invalid("privacy.unit", privacy.unit, reason, 'use unit = "client" or "sample"')
    if privacy.unit == "client":
        if privacy.place != "client":
            reason = f"{name} trusts no server, so every device adds noise"
            refuse("privacy.where", privacy.place, reason, 'use where = "client"')
        return
    # For data points noise goes where trust ends, which must be the device: a tree of untrusted servers.
    if topology.kind != "tree":
        reason = f"{name} for data points runs on a tree without trusted servers"
        invalid("topology.kind", topology.kind, reason, 'use kind = "tree" with subnets = 1')
    trusted = topology.settings.get("trusted", None if "file" in topology.settings else 0.0)
    if trusted not in (0, [], ()):
        reason = f"{name} trusts no server, so every device adds noise"
        refuse("topology.trusted", trusted, reason, "use trusted = 0.0")


HFL = replace(with_facts(ALGORITHM, check=check_hfl, says=""), name="hfl")
HFL_DP = replace(with_facts(ALGORITHM, check=check_hfl_dp), name="hfl_dp")
PEDPFL = replace(with_facts(ALGORITHM, check=check_pedpfl, topologies=("star", "tree")), name="pedpfl")

BASELINES = (HFL, HFL_DP, PEDPFL)
