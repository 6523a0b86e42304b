"""Epsilon of all pairs of workers in planned overlapping groups, by the flow count and by the bottleneck bound."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.accounting import Accountant, Claim
from sightline.accounting.accountant import Bridged, bridged_epsilon
from sightline.accounting.schemes import CLIP_NORM
from sightline.errors import did_you_mean, invalid, refuse
from sightline.events import Clear, Event, FixedCohort, Gaussian, Poisson, Unit
from sightline.ledger.group_pairs import (
    Costing,
    Floats,
    GroupPlan,
    Ints,
    Pairs,
    Rhythm,
    Threat,
    epsilon_matrix,
    planned_pairs,
    worst_by_class,
)
from sightline.ledger.release import Release
from sightline.topology import STRUCTURES, Memberships, constant_memberships, group_name, read_memberships

# The distance between groups that are not connected.
FAR = 10**6
# Number of cuts to try around the observer and around the subject.
RADII = 4

# With more groups that the observer does not see, cuts are not improved one by one: it would take too long.
FREE = 16

LEAVE_OUT = "use the flow count: remove --bottleneck"

Ingredients = tuple[frozenset[tuple[Event, int]], frozenset[tuple[Bridged, int]]]


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """Bounds for a planned run of DP-OGL, unit `client`, whose memberships do not change."""

    pairs: Pairs

    def __post_init__(self) -> None:
        plan = self.pairs.plan
        if plan.rhythm is not Rhythm.EPOCH:
            reason = "the bottleneck bound only applies to DP-OGL, not to DP-OGL+"
            refuse("bottleneck", plan.rhythm, reason, "remove --plus or --bottleneck")
        if len(plan.schedule.eras) > 1:
            reason = "the bottleneck bound is proven for constant memberships only"
            refuse("bottleneck", f"{len(plan.schedule.eras)} memberships", reason, "remove --bottleneck")

    def check_run(self, releases: Sequence[Release]) -> None:
        """Raise for releases of a run, or of its plan, to which the bound does not apply.

        Guarantees: unit `client`; every group releases the planned event at most once an epoch, with noise of its own;
        a release is computed from the group's own earlier models and, when an interval begins, from those of groups
        that share a worker with it. What workers keep in `Round.train(memory=...)` is among the inputs of a release.
        """
        plan = self.pairs.plan
        groups = {group_name(number): number for number in range(plan.schedule.count)}
        near = self.distance <= 1
        made: set[tuple[int, int]] = set()
        for release in releases:
            if not release.subjects or isinstance(release.event, Clear):
                continue
            if release.unit is not Unit.CLIENT:
                refuse(
                    "bottleneck",
                    f"unit {release.unit}",
                    "the bottleneck bound is for clipped updates of clients",
                    LEAVE_OUT,
                )
            group = groups.get(release.source)
            if group is None or release.joint or release.event != plan.events[group] or (release.time, group) in made:
                reason = f"{release.event} of {release.source} is not the one planned release of a group in this epoch"
                refuse("bottleneck", f"round {release.time}", reason, LEAVE_OUT)
            made.add((release.time, group))
            begins = (release.time - 1) % plan.period == 0
            for other in sorted(_groups_behind(release, releases, groups)):
                if other != group and not (begins and near[group, other]):
                    reason = (
                        f"{release.source} uses {group_name(other)} within an interval, which the bound allows at "
                        "its start only"
                    )
                    refuse("bottleneck", f"round {release.time}", reason, LEAVE_OUT)

    @property
    def member(self) -> NDArray[np.bool_]:
        """Return the membership of classes in groups, shape (classes, groups)."""
        return self.pairs.kinds[:, 0]

    @cached_property
    def distance(self) -> NDArray[np.int64]:
        """Return the number of exchanges from one group to another, shape (groups, groups)."""
        member = self.member.astype(np.float32)
        near = ((member.T @ member) > 0) | np.eye(member.shape[1], dtype=bool)
        result = np.where(np.eye(len(near), dtype=bool), 0, FAR)
        reach, steps = np.eye(len(near), dtype=bool), 0
        while True:
            wider = (reach.astype(np.float32) @ near.astype(np.float32)) > 0
            steps += 1
            if (wider == reach).all():
                return result
            result[wider & ~reach] = steps
            reach = wider

    def epsilon(self, subject: int, observer: int, costing: Costing) -> float:
        """Return the least bound over the cuts tried, for a subject and an observer of two classes."""
        # Every cut gives a valid bound, so trying a few and taking the least is safe.
        cuts = self.candidate_cuts(subject, observer)
        cuts.append(
            self.improve_cut(subject, observer, min(cuts, key=lambda cut: self.cut_strength(subject, observer, cut)))
        )
        tried = {self.cut_ingredients(subject, observer, seen) for seen in cuts}
        return min(self.cut_epsilon(one, costing) for one in tried)

    def cut_strength(self, subject: int, observer: int, seen: frozenset[int]) -> float:
        """Return the expected squared shift over noise variance, summed: the cost of a cut at small Renyi orders."""
        direct, bridged = self.cut_ingredients(subject, observer, seen)
        total = 0.0
        for event, times in direct:
            noise, rate = gaussian_of(event)
            total += times * (rate / noise) ** 2
        for one, times in bridged:
            mean, spread = one.rate * (one.own + 2 * one.bridges), one.rate * (1 - one.rate)
            total += times * (mean**2 + spread * (one.own + 4 * one.bridges)) / one.noise_multiplier**2
        return total

    def improve_cut(self, subject: int, observer: int, seen: frozenset[int]) -> frozenset[int]:
        """Return the cut with single groups added or removed while that makes it weaker; only for few groups."""
        free = np.flatnonzero(~self.member[observer]).tolist()
        if len(free) > FREE:
            return seen
        least = self.cut_strength(subject, observer, seen)
        while True:
            other = min((seen ^ {group} for group in free), default=seen,
                        key=lambda cut: self.cut_strength(subject, observer, cut))  # fmt: skip
            result = self.cut_strength(subject, observer, other)
            if result >= least * (1 - 1e-12):
                return seen
            seen, least = other, result

    @cached_property
    def _costs(self) -> dict[tuple[Ingredients, Costing], float]:
        return {}

    def cut_epsilon(self, ingredients: Ingredients, costing: Costing) -> float:
        """Return epsilon of a cut's ingredients; equal ones are accounted once."""
        key = (ingredients, costing)
        if key not in self._costs:
            direct, bridged = dict(ingredients[0]), dict(ingredients[1])
            self._costs[key] = bridged_epsilon(direct, bridged, costing.delta, accountant=costing.accountant)
        return self._costs[key]

    def candidate_cuts(self, subject: int, observer: int) -> list[frozenset[int]]:
        """Return sets of seen groups: balls around the observer's groups, and all but balls around the subject's."""
        from_subject, to_observer = self._distances_from(subject), self._distances_from(observer)
        own = frozenset(np.flatnonzero(self.member[observer]).tolist())
        result = []
        for radius in range(RADII):
            result.append(frozenset(np.flatnonzero(to_observer <= radius).tolist()))
            result.append(own | frozenset(np.flatnonzero(from_subject > radius).tolist()))
        return list(dict.fromkeys(result))

    def _distances_from(self, kind: int) -> NDArray[np.int64]:
        """Return the distance of every group from the nearest group of a class."""
        mine = self.distance[self.member[kind]]
        return mine.min(0) if len(mine) else np.full(self.member.shape[1], FAR)

    def cut_ingredients(self, subject: int, observer: int, seen: frozenset[int]) -> Ingredients:
        """Return what the seen groups reveal about a subject: its own releases, and those felt through bridges."""
        direct: Counter[Event] = Counter()
        bridged: Counter[Bridged] = Counter()
        arrival, to_observer = self._distances_from(subject), self._distances_from(observer)
        hidden = np.ones(self.member.shape[1], dtype=bool)
        hidden[list(seen)] = False
        for group in seen:
            upto = self.pairs.plan.intervals - int(to_observer[group])
            own = int(self.member[subject, group])
            if upto >= 1 and (own or arrival[group] < FAR):
                self._charge_intervals(
                    direct, bridged, group, upto, own, self._start_thresholds(group, subject, hidden, arrival)
                )
        return frozenset(direct.items()), frozenset(bridged.items())

    def _start_thresholds(
        self, group: int, subject: int, hidden: NDArray[np.bool_], arrival: NDArray[np.int64]
    ) -> dict[int, int]:
        """Return by interval how many more members start, from it on, from a hidden model that the subject reached."""
        result: Counter[int] = Counter()
        for kind in np.flatnonzero(self.member[:, group]):
            others = self.member[kind] & hidden
            if others.any():
                workers = int(self.pairs.sizes[kind]) - (kind == subject)
                result[int(arrival[others].min()) + 2] += workers
        return dict(result)

    def _charge_intervals(
        self, direct: Counter[Event], bridged: Counter[Bridged], group: int, upto: int, own: int, more: dict[int, int]
    ) -> None:
        """Add what the intervals 1 .. upto of a seen group reveal."""
        made, event = self.pairs.plan.made, self.pairs.plan.events[group]
        noise, rate = gaussian_of(event)
        starts = sorted({1, *(k for k in more if k <= upto)})
        for first, after in zip(starts, [*starts[1:], upto + 1], strict=True):
            bridges = sum(workers for interval, workers in more.items() if interval <= first)
            intervals = after - first
            epochs = int(made[after - 1] - made[first - 1])
            # Bridging workers bring the subject in only at the start of an interval: one bridged release per interval,
            # the other epochs are direct.
            if bridges:
                bridged[Bridged(noise, rate, bridges, own)] += intervals
            if own and (left := epochs - (intervals if bridges else 0)):
                direct[event] += left


def _groups_behind(release: Release, releases: Sequence[Release], groups: dict[str, int]) -> set[int]:
    """Return the groups whose releases a release was computed from, directly or through values that were only shown."""
    result, waiting, seen = set[int](), list(release.inputs), set[int]()
    while waiting:
        earlier = releases[waiting.pop()]
        if earlier.id in seen:
            continue
        seen.add(earlier.id)
        if earlier.subjects and earlier.source in groups:
            result.add(groups[earlier.source])
        elif not earlier.subjects:
            waiting += earlier.inputs
    return result


def gaussian_of(event: Event) -> tuple[float, float]:
    """Return noise multiplier and rate of a release of DP-OGL. Raises for any other event."""
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return event.event.noise_multiplier, event.rate
    # A fixed cohort does not hide bridging workers, so no amplification is claimed for them.
    if isinstance(event, FixedCohort):
        return gaussian_of(event.event)
    if isinstance(event, Gaussian):
        return event.noise_multiplier, 1.0
    refuse(
        "bottleneck", event.kind, "the bottleneck bound needs Gaussian sums with Poisson cohorts", "remove --bottleneck"
    )


def tighten_matrix(pairs: Pairs, epsilon: Floats, releases: NDArray[np.int64], costing: Costing) -> Floats:
    """Return the matrix of the flow count with every entry lowered to the bottleneck bound where that is less."""
    bounds = Bottleneck(pairs)
    result = epsilon.copy()
    for subject, observer in np.argwhere(~np.isnan(epsilon) & (releases > 0)):
        # Otherwise the observer sees every release itself, and the flow count is already tight.
        if (bounds.member[subject] & ~bounds.member[observer]).any():
            bound = bounds.epsilon(int(subject), int(observer), costing)
            result[subject, observer] = min(result[subject, observer], bound)
    return result


# Up to this many workers a matrix is written pair by pair, above by class.
FULL = 4096
# Limit on workers, groups, period and epochs of a query.
MOST = 10**7
# With more distinct memberships a matrix is not written or drawn.
MOST_CLASSES = 4096


@dataclass(frozen=True)
class PairQuery:
    """The settings, with the names of the command line."""

    structure: str
    epochs: int
    noise: float
    delta: float
    workers: int | None = None
    count: int | None = None
    period: int = 1
    rate: float = 1.0
    plus: bool = False
    threat: str = "everyone"
    accountant: str = "pld"
    bottleneck: bool = False

    @cached_property
    def schedule(self) -> Memberships:
        """Return the memberships. Raises for missing or contradictory settings."""
        if self.structure in STRUCTURES:
            if self.workers is None:
                invalid("--workers", "missing", f"{self.structure} needs the number of workers")
            if self.count is None and self.structure != "global":
                invalid("--groups", "missing", f"{self.structure} needs the number of groups")
            return constant_memberships(self.workers, STRUCTURES[self.structure](self.workers, self.count or 1))
        if not self.structure.endswith(".json"):
            way_out = did_you_mean(self.structure, [*STRUCTURES]) + ", or give a .json file"
            invalid("--structure", self.structure, "unknown structure", way_out)
        result = read_memberships(self.structure)
        for name, given, held in (("workers", self.workers, result.workers), ("groups", self.count, result.count)):
            if given is not None and given != held:
                invalid(f"--{name}", given, f"the membership file has {held} {name}", "leave it out")
        return result

    def planned_run(self) -> GroupPlan:
        """Return the run that the query is about."""
        schedule = self.schedule
        rates = schedule.rates or (self.rate,) * schedule.count
        factors = schedule.noise_factors or (1.0,) * schedule.count
        events = tuple(sampled_event(rate, self.noise * factor) for rate, factor in zip(rates, factors, strict=True))
        return GroupPlan(schedule, self.period, self.epochs, events, Rhythm.INTERVAL if self.plus else Rhythm.EPOCH)

    @property
    def costing(self) -> Costing:
        """Return the parameters that turn counts into epsilon."""
        return Costing(self.delta, Accountant(self.accountant))


def sampled_event(rate: float, noise: float) -> Event:
    """Return the event of one release of a group."""
    return Gaussian(noise) if rate == 1 else Poisson(rate, Gaussian(noise))


AGAINST = {"everyone": "every other worker", "out-of-group": "workers outside one's groups"}


@dataclass(frozen=True, eq=False)
class PairResult:
    """Epsilon of all pairs, by class; matrices are computed on first use."""

    query: PairQuery
    pairs: Pairs

    @property
    def claim(self) -> Claim:
        """Return the conditions under which the epsilons hold."""
        return Claim(AGAINST[self.query.threat], "add_remove", CLIP_NORM)

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return self.pairs.plan.schedule.workers

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return self.pairs.plan.schedule.count

    @cached_property
    def flow(self) -> tuple[Floats, Ints]:
        """Return epsilon and releases by the flow count, shape (classes, classes). Raises for too many classes."""
        if len(self.pairs) > MOST_CLASSES:
            reason = f"a matrix of {len(self.pairs)} different memberships is too large"
            refuse("--structure", self.query.structure, reason, "remove --out, --plot and --bottleneck")
        return epsilon_matrix(self.pairs, Threat(self.query.threat), self.query.costing)

    @cached_property
    def matrix(self) -> Floats:
        """Return epsilon, shape (classes, classes); NaN where the threat model does not apply."""
        epsilon, releases = self.flow
        return tighten_matrix(self.pairs, epsilon, releases, self.query.costing) if self.query.bottleneck else epsilon

    @cached_property
    def worst(self) -> Floats:
        """Return the epsilon of the worst observer per worker; NaN if there is none."""
        if not self.query.bottleneck:
            by_class = worst_by_class(self.pairs, Threat(self.query.threat), self.query.costing)
        else:
            defined = ~np.isnan(self.matrix)
            by_class = np.where(defined.any(1), np.where(defined, self.matrix, -np.inf).max(1), np.nan)
        return np.asarray(by_class[self.pairs.class_of])

    @property
    def mean(self) -> float:
        """Return the mean over the workers that have an observer."""
        result = self.worst[~np.isnan(self.worst)]
        return float(result.mean()) if len(result) else math.nan

    @property
    def largest(self) -> float:
        """Return the epsilon of the worst pair."""
        result = self.worst[~np.isnan(self.worst)]
        return float(result.max()) if len(result) else math.nan

    @property
    def releases_max(self) -> int:
        """Return the largest number of releases charged between two workers."""
        threat = Threat(self.query.threat)
        return max(
            int(
                np.where(self.pairs.allowed_pairs(threat, rows), self.pairs.release_counts(rows).sum(0), 0).max(
                    initial=0
                )
            )
            for rows in self.pairs.subject_chunks()
        )

    @property
    def tightened(self) -> int:
        """Return the number of pairs of workers for which the bottleneck bound is below the flow count."""
        less = self.matrix < self.flow[0] * (1 - 1e-9)
        sizes = self.pairs.sizes
        ordered = sizes[:, None] * sizes[None, :] - np.diag(sizes)
        return int((ordered * less).sum())

    def at(self, epochs: int) -> "PairResult":
        """Return the result for another number of epochs."""
        return query_pairs(replace(self.query, epochs=epochs))


def query_pairs(query: PairQuery) -> PairResult:
    """Return the result to a query. Raises for invalid settings."""
    if not (query.noise > 0 and math.isfinite(query.noise)):
        invalid("--noise", query.noise, "a noise multiplier must be positive and finite")
    for name, value in (("workers", query.workers), ("groups", query.count), ("period", query.period),
                        ("epochs", query.epochs)):  # fmt: skip
        if value is not None and value > MOST:
            invalid(f"--{name}", value, f"at most {MOST:.0e} are supported")
    if not 0 < query.rate <= 1:
        invalid("--rate", query.rate, "a probability must lie in (0, 1]")
    if not 0 < query.delta < 1:
        invalid("--delta", query.delta, "delta must lie in (0, 1)", "e.g. 1e-5")
    result = PairResult(query, planned_pairs(query.planned_run()))
    if query.bottleneck:
        Bottleneck(result.pairs)
    return result


def spread_over(matrix: Any, class_of: Ints) -> Any:
    """Return a matrix by class as one by worker."""
    return matrix[np.ix_(class_of, class_of)]


def save_npz(result: PairResult, path: Path) -> None:
    """Write `epsilon` and `releases` (row = subject, column = observer); by class above `FULL` workers.

    By class: `epsilon_by_class`, `releases_by_class`, and `class_of` holds each worker's class.
    """
    if path.suffix != ".npz":
        invalid("--out", path, "the file name must end in .npz", "e.g. --out matrix.npz")
    of = result.pairs.class_of
    releases = result.flow[1]
    arrays: dict[str, Floats | Ints] = {"worst": result.worst, "class_of": of}
    if result.workers <= FULL:
        epsilon, counts = spread_over(result.matrix, of).copy(), spread_over(releases, of).copy()
        np.fill_diagonal(epsilon, np.nan)
        np.fill_diagonal(counts, 0)
        arrays |= {"epsilon": epsilon, "releases": counts}
    else:
        arrays |= {"epsilon_by_class": result.matrix, "releases_by_class": releases}
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        invalid("--out", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")
