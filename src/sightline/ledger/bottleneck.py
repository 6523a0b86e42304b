"""The bottleneck bound: what reaches an observer from groups it does not see passes through few bridging workers.

Choose any set of groups that contains the observer's and call what they publish seen. Given what was seen before, a
seen model is a Gaussian whose mean depends on hidden models only through the clipped updates of members that start from
them. The proof is in docs/groups.md. Every choice gives a valid bound, so the least of several is one.

It holds for unit `client`, where a whole update is clipped, and only when workers keep nothing from one epoch to the
next: a member that remembers what it started an interval from brings it into every epoch. `check_run` holds a ledger to
both.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sightline.accounting.accountant import Bridged, bridged_epsilon
from sightline.errors import refuse
from sightline.events import Clear, Event, FixedCohort, Gaussian, Poisson, Unit
from sightline.ledger.group_pairs import Costing, Floats, Pairs, Rhythm
from sightline.ledger.release import Release
from sightline.topology import group_name

FAR = 10**6
"""The distance between groups that are not connected."""
RADII = 4
"""How many cuts around the observer and around the subject are tried."""

FREE = 16
"""With more groups than these that the observer does not see, cuts are not improved one by one."""

LEAVE_OUT = "use the flow count: leave out --bottleneck"

Ingredients = tuple[frozenset[tuple[Event, int]], frozenset[tuple[Bridged, int]]]


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """Bounds for a planned run of DP-OGL, unit `client`, whose memberships do not change."""

    pairs: Pairs

    def __post_init__(self) -> None:
        plan = self.pairs.plan
        if plan.rhythm is not Rhythm.EPOCH:
            law = "the bottleneck bound is for DP-OGL: an interval of DP-OGL+ is one release already"
            refuse("bottleneck", plan.rhythm, law, "leave out --plus or --bottleneck")
        if len(plan.schedule.eras) > 1:
            law = "the bottleneck bound is proved for memberships that do not change"
            refuse("bottleneck", f"{len(plan.schedule.eras)} memberships", law, "leave out --bottleneck")

    def check_run(self, releases: Sequence[Release]) -> None:
        """Refuse the releases of a run, or of its plan, to which the bound does not apply.

        Guarantees: unit `client`; every group releases the planned event at most once an epoch, with noise of its own;
        what a release was computed from is the group's own earlier models and, when an interval begins, those of groups
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
                refuse("bottleneck", f"unit {release.unit}", "the bound is for clipped updates of clients", LEAVE_OUT)
            group = groups.get(release.source)
            if group is None or release.joint or release.event != plan.events[group] or (release.time, group) in made:
                law = f"{release.event} of {release.source} is not a group's one planned release of an epoch"
                refuse("bottleneck", f"round {release.time}", law, LEAVE_OUT)
            made.add((release.time, group))
            begins = (release.time - 1) % plan.period == 0
            for other in sorted(_groups_behind(release, releases, groups)):
                if other != group and not (begins and near[group, other]):
                    law = f"{release.source} works from {group_name(other)} in the middle of an interval: state is kept"
                    refuse("bottleneck", f"round {release.time}", law, LEAVE_OUT)

    @property
    def member(self) -> NDArray[np.bool_]:
        """(classes, groups)."""
        return self.pairs.kinds[:, 0]

    @cached_property
    def distance(self) -> NDArray[np.int64]:
        """(groups, groups): exchanges that it takes from one group to another."""
        member = self.member.astype(np.float32)
        near = ((member.T @ member) > 0) | np.eye(member.shape[1], dtype=bool)
        found = np.where(np.eye(len(near), dtype=bool), 0, FAR)
        reach, steps = np.eye(len(near), dtype=bool), 0
        while True:
            wider = (reach.astype(np.float32) @ near.astype(np.float32)) > 0
            steps += 1
            if (wider == reach).all():
                return found
            found[wider & ~reach] = steps
            reach = wider

    def epsilon(self, subject: int, observer: int, costing: Costing) -> float:
        """The least bound over the cuts that are tried, for a subject and an observer of two classes."""
        cuts = self.candidate_cuts(subject, observer)
        cuts.append(
            self.improve_cut(subject, observer, min(cuts, key=lambda cut: self.cut_strength(subject, observer, cut)))
        )
        tried = {self.cut_ingredients(subject, observer, seen) for seen in cuts}
        return min(self.cut_epsilon(one, costing) for one in tried)

    def cut_strength(self, subject: int, observer: int, seen: frozenset[int]) -> float:
        """Expected squared shift over noise variance, summed: what small orders charge for a cut."""
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
        """A cut with single groups added or removed as long as that makes it weaker; few groups only."""
        free = np.flatnonzero(~self.member[observer]).tolist()
        if len(free) > FREE:
            return seen
        least = self.cut_strength(subject, observer, seen)
        while True:
            other = min((seen ^ {group} for group in free), default=seen,
                        key=lambda cut: self.cut_strength(subject, observer, cut))  # fmt: skip
            found = self.cut_strength(subject, observer, other)
            if found >= least * (1 - 1e-12):
                return seen
            seen, least = other, found

    @cached_property
    def _costs(self) -> dict[tuple[Ingredients, Costing], float]:
        return {}

    def cut_epsilon(self, ingredients: Ingredients, costing: Costing) -> float:
        """Epsilon of a cut's ingredients; equal ones are accounted once."""
        key = (ingredients, costing)
        if key not in self._costs:
            direct, bridged = dict(ingredients[0]), dict(ingredients[1])
            self._costs[key] = bridged_epsilon(direct, bridged, costing.delta, accountant=costing.accountant)
        return self._costs[key]

    def candidate_cuts(self, subject: int, observer: int) -> list[frozenset[int]]:
        """Sets of seen groups: balls around the observer's groups, and all but balls around the subject's."""
        from_subject, to_observer = self._distances_from(subject), self._distances_from(observer)
        own = frozenset(np.flatnonzero(self.member[observer]).tolist())
        found = []
        for radius in range(RADII):
            found.append(frozenset(np.flatnonzero(to_observer <= radius).tolist()))
            found.append(own | frozenset(np.flatnonzero(from_subject > radius).tolist()))
        return list(dict.fromkeys(found))

    def _distances_from(self, kind: int) -> NDArray[np.int64]:
        """Distance of every group from the nearest one of a class."""
        mine = self.distance[self.member[kind]]
        return mine.min(0) if len(mine) else np.full(self.member.shape[1], FAR)

    def cut_ingredients(self, subject: int, observer: int, seen: frozenset[int]) -> Ingredients:
        """What the seen groups reveal of a subject: its own releases, and releases felt through bridging workers."""
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
        """Interval -> how many more members start, from it on, from a hidden model that the subject has reached."""
        found: Counter[int] = Counter()
        for kind in np.flatnonzero(self.member[:, group]):
            others = self.member[kind] & hidden
            if others.any():
                workers = int(self.pairs.sizes[kind]) - (kind == subject)
                found[int(arrival[others].min()) + 2] += workers
        return dict(found)

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
            if bridges:
                bridged[Bridged(noise, rate, bridges, own)] += intervals
            if own and (left := epochs - (intervals if bridges else 0)):
                direct[event] += left


def _groups_behind(release: Release, releases: Sequence[Release], groups: dict[str, int]) -> set[int]:
    """The groups whose releases a release was computed from, directly or through values that were only shown."""
    found, waiting, seen = set[int](), list(release.inputs), set[int]()
    while waiting:
        earlier = releases[waiting.pop()]
        if earlier.id in seen:
            continue
        seen.add(earlier.id)
        if earlier.subjects and earlier.source in groups:
            found.add(groups[earlier.source])
        elif not earlier.subjects:
            waiting += earlier.inputs
    return found


def gaussian_of(event: Event) -> tuple[float, float]:
    """Noise multiplier and rate of a release of DP-OGL."""
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return event.event.noise_multiplier, event.rate
    if isinstance(event, FixedCohort):  # bridging workers are not hidden in it
        return gaussian_of(event.event)
    if isinstance(event, Gaussian):
        return event.noise_multiplier, 1.0
    refuse("bottleneck", event.kind, "the bound is for Gaussian sums with Poisson cohorts", "leave out --bottleneck")


def tighten_matrix(pairs: Pairs, epsilon: Floats, releases: NDArray[np.int64], costing: Costing) -> Floats:
    """The matrix of the flow count with every entry lowered to the bottleneck bound where that is less."""
    bounds = Bottleneck(pairs)
    found = epsilon.copy()
    for subject, observer in np.argwhere(~np.isnan(epsilon) & (releases > 0)):
        if (bounds.member[subject] & ~bounds.member[observer]).any():  # else every release is seen as it is
            bound = bounds.epsilon(int(subject), int(observer), costing)
            found[subject, observer] = min(found[subject, observer], bound)
    return found
