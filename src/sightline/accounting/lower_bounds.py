"""Lower bounds: laws dominated by the true ratio in convex order, for the lower end of the interval of epsilon.

Where the upper laws split the mass of a cell between its ends, these collapse it to its mean. Means fall anywhere, so a
lower law is a list of atoms; only before composition are neighbouring atoms merged so that every mean falls on a
lattice point.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from scipy.special import ndtr, ndtri

from sightline import events as ev
from sightline.accounting.cohort_laws import cohort_atoms
from sightline.accounting.dominating_pairs import (
    NoLaw,
    allocation_blocks,
    check_noise,
    native_law,
    pooled_chances,
    share_and_noise,
)
from sightline.accounting.likelihood_ratio import Array, Law, LawCache, cell_splits
from sightline.accounting.mixtures import TooFar, collapsed_panels, segment_pair
from sightline.events import Event

# With fewer cells than this a closed form is cut eight times finer than the lattice.
MANY = 30_000
# Width of the bins over the spread of the law.
FINENESS = 0.02


@dataclass(frozen=True, eq=False)
class Atoms:
    """Q-masses at increasing values of log L; their mean in L is one."""

    loss: Array
    mass: Array

    @property
    def spread(self) -> float:
        """Return the standard deviation of the loss."""
        mean = float(np.dot(self.mass, self.loss))
        return math.sqrt(max(float(np.dot(self.mass, (self.loss - mean) ** 2)), 1e-300))


SURE = Atoms(np.zeros(1), np.ones(1))


@LawCache
def lower_law(event: Event, step: float) -> Law:
    """Return a lattice law dominated by the event's."""
    atoms = atoms_for(event, step)
    if len(atoms.loss) < MANY:
        atoms = atoms_for(event, step / 8)
    return merge_atoms(atoms, step)


def atoms_for(event: Event, width: float) -> Atoms:
    """Return atoms of an event, about `width` apart where a closed form gives them."""
    if isinstance(event, ev.Gaussian):
        return gaussian_atoms(check_noise(event), width)
    if isinstance(event, ev.Poisson) and isinstance(event.event, ev.Gaussian):
        inner = gaussian_atoms(check_noise(event.event), width, rate=event.rate)
        return sampled_atoms(inner, event.rate)
    if isinstance(event, ev.Segment | ev.ConvexSegment):
        return segment_atoms(event, width)
    if isinstance(event, ev.Cohort):
        rate, noise = share_and_noise(event)
        return Atoms(*cohort_atoms(rate, noise, zero_out=isinstance(event, ev.FixedCohort), width=width))
    if isinstance(event, ev.PooledDraws):
        return pooled_atoms(event, width)
    return native_atoms(event)


def pooled_atoms(event: ev.PooledDraws, width: float) -> Atoms:
    """Return atoms of all possible numbers of noises, and of the release without the subject."""
    each = [(chance, gaussian_atoms(noise, width)) for chance, noise in pooled_chances(event)]
    loss = np.concatenate([np.zeros(1), *(atoms.loss for _, atoms in each)])
    mass = np.concatenate([[1 - event.rate], *(event.rate * chance * atoms.mass for chance, atoms in each)])
    order = np.argsort(loss, kind="stable")
    return Atoms(loss[order], mass[order])


@LawCache
def native_atoms(event: Event) -> Atoms:
    """Return atoms of an event, as fine as its spread needs."""
    return atoms_of(event)


@singledispatch
def atoms_of(event: Event) -> Atoms:
    """Return atoms of an event; registered per kind. Kinds without them raise `NoLaw`."""
    raise NoLaw


@atoms_of.register
def _(event: ev.Gaussian) -> Atoms:
    return gaussian_atoms(check_noise(event), FINENESS / event.noise_multiplier)


@atoms_of.register
def _(event: ev.Pure) -> Atoms:
    odds = 1 / (1 + math.exp(event.epsilon))
    return Atoms(np.array([-event.epsilon, event.epsilon]), np.array([1 - odds, odds]))


@atoms_of.register
def _(event: ev.Exponential) -> Atoms:
    # A choice between two options whose scores change equally in opposite directions: log ratios +-eps/2.
    return atoms_of(ev.Pure(event.epsilon / 2))


@atoms_of.register
def _(event: ev.PooledDraws) -> Atoms:
    return pooled_atoms(event, native_law(event, 1e-14).step)


@atoms_of.register(ev.WithoutReplacement)
@atoms_of.register(ev.FixedCohort)
def _(event: ev.Cohort) -> Atoms:
    # Only for a Gaussian: no lower bound is known for other events in a cohort.
    return atoms_for(event, native_law(event, 1e-14).step)


@atoms_of.register
def _(event: ev.Poisson) -> Atoms:
    return sampled_atoms(native_atoms(event.event), event.rate)


@atoms_of.register
def _(event: ev.Segment | ev.ConvexSegment) -> Atoms:
    return segment_atoms(event, FINENESS * segment_atoms(event, 0.02).spread)


def segment_atoms(event: ev.Segment | ev.ConvexSegment, width: float) -> Atoms:
    """Return panels of the line collapsed to their means. Raises `NoLaw` for shifts out of reach."""
    try:
        pair = segment_pair(event, 1e-22)
    except TooFar:
        raise NoLaw from None
    return Atoms(*collapsed_panels(pair, width))


@atoms_of.register
def _(event: ev.Split) -> Atoms:
    return mean_atoms(native_atoms(event.event), event.parts)


@atoms_of.register
def _(event: ev.Product) -> Atoms:
    held = SURE
    for inner in event.events:
        held = pair_atoms(held, native_atoms(inner), None)
    return held


@atoms_of.register
def _(event: ev.Repeat) -> Atoms:
    held, power, rest = SURE, native_atoms(event.event), event.times
    while rest:
        held = pair_atoms(held, power, None) if rest & 1 else held
        rest >>= 1
        power = pair_atoms(power, power, None) if rest else power
    return held


@atoms_of.register
def _(event: ev.Allocation) -> Atoms:
    return native_atoms(ev.Product(tuple(ev.Repeat(times, block) for block, times in allocation_blocks(event))))


def gaussian_atoms(noise_multiplier: float, width: float, *, rate: float = 1.0) -> Atoms:
    """Return cells of the lognormal collapsed to their means; with a rate, of about equal width after sampling."""
    s = 1 / noise_multiplier
    reach = float(-ndtri(1e-22))
    low, high = -s * reach - s * s / 2, s * reach + s * s / 2
    if rate < 1:
        ends = np.log1p(rate * np.expm1(np.array([low, min(high, 650.0)])))
        sampled = np.linspace(ends[0], ends[1], max(2, math.ceil((ends[1] - ends[0]) / width)))
        inner = np.log1p(np.expm1(sampled[1:]) / rate)
        coarse = np.linspace(low, high, 400)
        # Cells of equal width after sampling are very wide at low X; the coarse grid keeps them from losing the low
        # tail.
        both = np.unique(np.concatenate([inner[np.isfinite(inner) & (inner > low)], coarse]))
        log_x = both[np.diff(both, prepend=-np.inf) > 1e-9 * (high - low)]
    else:
        log_x = np.linspace(low, high, max(2, math.ceil((high - low) / width)))
    u = log_x / s + s / 2
    lower, upper = cell_splits(u, s)
    mass = lower + upper
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = log_x[:-1] + np.log1p(np.expm1(np.diff(log_x)) * (upper / mass))
    below, above = float(ndtr(u[0])), float(ndtr(-u[-1]))
    tails = [(below, float(ndtr(u[0] - s))), (above, float(ndtr(s - u[-1])))]
    ends_loss = [math.log(p / q) for q, p in tails]
    held = Atoms(np.concatenate([ends_loss[:1], loss, ends_loss[1:]]), np.concatenate([[below], mass, [above]]))
    keep = held.mass > 0
    return Atoms(held.loss[keep], held.mass[keep])


def sampled_atoms(atoms: Atoms, rate: float) -> Atoms:
    """Return the atoms of 1 - g + g L, exactly."""
    return Atoms(np.log1p(rate * np.expm1(atoms.loss)), atoms.mass)


def bin_atoms(loss: Array, mass: Array, width: float) -> Atoms:
    """Return the atoms with all that fall into one bin collapsed to their mean in L."""
    base = float(loss.min())
    index = np.floor((loss - base) / width).astype(np.int64)
    held = np.bincount(index, mass).astype(np.float64)
    inside = loss - base - index * width
    climb = np.bincount(index, mass * np.expm1(inside))
    keep = held > 0
    edges = base + width * np.flatnonzero(keep)
    return Atoms(np.asarray(edges + np.log1p(climb[keep] / held[keep])), held[keep])


def pair_atoms(one: Atoms, other: Atoms, share: float | None) -> Atoms:
    """Return the product of two independent ratios, or (with a share) their weighted mean, collapsed into bins."""
    one, other = thin_atoms(one), thin_atoms(other)
    mass = np.outer(one.mass, other.mass).ravel()
    if share is None:
        loss = np.add.outer(one.loss, other.loss).ravel()
        spread = math.hypot(one.spread, other.spread)
    else:
        loss = np.logaddexp.outer(one.loss + math.log(share), other.loss + math.log1p(-share)).ravel()
        spread = math.hypot(share * one.spread, (1 - share) * other.spread)
    keep = mass > 0
    width = max(FINENESS * spread, float(loss.max() - loss.min()) / 20000)
    return bin_atoms(loss[keep], mass[keep], width)


def thin_atoms(atoms: Atoms, most: int = 1500) -> Atoms:
    """Return at most about `most` atoms, collapsed in bins of equal width."""
    if len(atoms.loss) <= most:
        return atoms
    return bin_atoms(atoms.loss, atoms.mass, float(atoms.loss[-1] - atoms.loss[0]) / most)


def mean_atoms(atoms: Atoms, copies: int) -> Atoms:
    """Return the mean of independent copies, by doubling."""
    power, size, rest = atoms, 1, copies
    held, count = atoms, 0
    while rest:
        if rest & 1:
            held = power if count == 0 else pair_atoms(held, power, count / (count + size))
            count += size
        rest >>= 1
        if rest:
            power, size = pair_atoms(power, power, 0.5), 2 * size
    return held


def merge_atoms(atoms: Atoms, step: float) -> Law:
    """Return a lattice law of neighbouring atoms merged so that all means are lattice points.

    Atoms are merged from both ends towards the middle.

    Guarantees: the result is dominated by `atoms` in convex order and has the same mean.
    """
    value, mass = np.expm1(atoms.loss), atoms.mass
    heaviest = heaviest_mean(atoms, step)
    start = heaviest - step * (math.ceil((heaviest - float(atoms.loss[0])) / step) + 1)
    size = math.ceil((float(atoms.loss[-1]) - start) / step) + 3
    lattice = np.expm1(start + step * np.arange(size))
    middle = int(np.searchsorted(np.cumsum(mass), 0.5))
    out = np.zeros(size)
    below = mass[: middle + 1].copy()
    above = mass[middle + 1 :].copy()
    sink = Sink(out, lattice)
    rest_low = sink.merge_inward(value[: middle + 1], below, upward=True)
    rest_high = sink.merge_inward(value[middle + 1 :], above, upward=False)
    sink.merge_leftover(*(a + b for a, b in zip(rest_low, rest_high, strict=True)))
    return Law(start, step, out)


def heaviest_mean(atoms: Atoms, step: float) -> float:
    """Return log of the mean of the heaviest cell."""
    # A lattice point there leaves little mass over if most of it is concentrated.
    cells = bin_atoms(atoms.loss, atoms.mass, step)
    return float(cells.loss[np.argmax(cells.mass)])


@dataclass(frozen=True, eq=False)
class Sink:
    """A lattice that takes in atoms group by group, each group at its mean."""

    mass: Array
    lattice: Array

    def merge_inward(self, value: Array, mass: Array, *, upward: bool) -> tuple[float, float]:
        """Merge atoms from the outer end inward and return the leftover (mass, moment)."""
        sign = 1.0 if upward else -1.0
        values = (sign * value if upward else sign * value[::-1]).tolist()
        masses = (mass if upward else mass[::-1]).tolist()
        points = (sign * self.lattice if upward else sign * self.lattice[::-1]).tolist()
        at, point, held, moment = 0, 0, 0.0, 0.0
        while at < len(values):
            while points[point] <= (values[at] if held == 0 else moment / held):
                point += 1
            goal = points[point]
            gap = values[at] - goal
            reached = moment - goal * held + masses[at] * gap
            if gap <= 0 or reached < 0:
                held, moment, at = held + masses[at], moment + masses[at] * values[at], at + 1
                continue
            part = (goal * held - moment) / gap
            self.mass[point if upward else len(points) - 1 - point] += held + part
            masses[at] -= part
            held = moment = 0.0
        return held, sign * moment

    def merge_leftover(self, mass: float, moment: float) -> None:
        """Merge the leftover with mass of neighbouring lattice points, so that its mean becomes a lattice point too."""
        if mass <= 0:
            return
        above = int(np.searchsorted(self.lattice, moment / mass))
        upward = self.find_partners(above, range(above + 1, len(self.lattice)), mass, moment)
        downward = self.find_partners(above - 1, range(above - 2, -1, -1), mass, moment)
        result = [taken for taken in (upward, downward) if taken is not None]
        if not result:
            raise NoLaw
        goal, parts = min(result, key=lambda taken: len(taken[1]))
        for partner, amount in parts:
            self.mass[partner] -= amount
        self.mass[goal] += mass + sum(amount for _, amount in parts)

    def find_partners(
        self, goal: int, order: range, mass: float, moment: float
    ) -> tuple[int, list[tuple[int, float]]] | None:
        """Return masses beyond the goal, nearest first, that pull the mean onto it; None if there is too little."""
        need = abs(self.lattice[goal] * mass - moment)
        taken: list[tuple[int, float]] = []
        for partner in order:
            pull = abs(self.lattice[partner] - self.lattice[goal])
            amount = min(float(self.mass[partner]), need / pull)
            taken.append((partner, amount))
            need -= amount * pull
            if amount < self.mass[partner] or need <= 0:
                return goal, taken
        return None
