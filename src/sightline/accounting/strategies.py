r"""Strategies of correlated noise over the rounds of a channel: their sensitivity, their cost and their gain.

Round t publishes its clipped sum plus n_t, where n = C^-1 z and the rows of z are independent Gaussian with standard
deviation sigma (in clip norms). C is lower-triangular Toeplitz; its first column c is the *strategy*. Seeing all sums x
+ C^-1 z is seeing C x + z, so the whole stream is one Gaussian release of noise multiplier Z = sigma / sens, also if
later sums depend on earlier results (Denisov et al. 2022). A subject takes part at most `uses` times, at least
`separation` rounds apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sightline.errors import did_you_mean, invalid, refuse
from sightline.events import Gaussian, Poisson

# Banded square root, optimised bands, buffered linear Toeplitz.
STRATEGIES = ("bsr", "band", "blt")
# Rounds of a stream; its coefficients are held in memory.
MOST_STEPS = 1_000_000
# Digits that optimised coefficients keep. The loss is of second order, and different processors agree on the result.
DECIMALS = 6
# Twice the relative error of one rounded operation.
UNIT = 2.0**-52

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Strategy:
    """The first column of C, in the floating-point numbers that are really used: 1 = c_0 >= c_1 >= ... >= 0.

    `coefficients` ends where only zeros follow (`bands` of them), or has all `steps` entries (`blt`, whose noise is
    made from the buffers of `weights` and `decays`: c_i = sum_j w_j th_j^(i-1)).

    Guarantees: c is monotone, so that `compute_sensitivity` is a bound; anything else is refused.

    >>> Strategy("band", steps=8, coefficients=(1.0, 0.0, 0.0, 0.9), bands=4)
    Traceback (most recent call last):
    ...
    sightline.errors.Refused: coefficients[3]=0.9: coefficients must not rise: the sensitivity \
would be larger than what is charged; give coefficients that never rise
    """

    name: str
    steps: int
    coefficients: tuple[float, ...] = field(repr=False)
    bands: int | None
    weights: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_strategy(self.name)
        check_steps(self.steps)
        if not 1 <= len(self.coefficients) <= self.steps:
            reason = f"must have 1 to {self.steps} values, at most one for each step"
            invalid("len(coefficients)", len(self.coefficients), reason)
        if self.bands is not None and self.bands != len(self.coefficients):
            invalid("bands", self.bands, f"must be the number of coefficients, which is {len(self.coefficients)}")
        if self.coefficients[0] != 1.0:
            invalid("coefficients[0]", self.coefficients[0], "the first coefficient must be 1")
        check_monotone(self.coefficients)
        if (self.weights or self.decays) and self.coefficients != expand_buffers(self.weights, self.decays, self.steps):
            reason = "must be those that weights w and decays t generate, c_i = sum_j w_j t_j^(i-1)"
            invalid("coefficients", str(self.coefficients)[:60], reason)


def check_strategy(name: str) -> None:
    """Raise for an unknown strategy."""
    if name not in STRATEGIES:
        invalid("strategy", name, "unknown strategy", did_you_mean(name, list(STRATEGIES)))


def check_steps(steps: int) -> None:
    """Raise unless the number of rounds is a whole number from 1 to MOST_STEPS."""
    if not (1 <= steps <= MOST_STEPS and int(steps) == steps):
        invalid("steps", steps, f"must be a whole number from 1 to {MOST_STEPS}")


def check_monotone(coefficients: Sequence[float]) -> None:
    """Raise for coefficients that are negative or rise: the bound on the sensitivity would not hold."""
    before = math.inf
    for index, value in enumerate(coefficients):
        if not (math.isfinite(value) and value >= 0):
            refuse(f"coefficients[{index}]", value, "coefficients must not be negative", "give numbers from 0 to 1")
        if value > before:
            refuse(
                f"coefficients[{index}]",
                value,
                "coefficients must not rise: the sensitivity would be larger than what is charged",
                "give coefficients that never rise",
            )
        before = value


def check_participation(*, separation: int, uses: int) -> None:
    """Raise for an invalid participation, and for one in which correlated noise gains nothing."""
    for name, value in (("separation", separation), ("uses", uses)):
        if not (value >= 1 and int(value) == value):
            invalid(name, value, "must be a whole number >= 1")
    if separation == 1:
        refuse(
            "separation",
            separation,
            "a client that takes part in every round gains nothing from correlated noise",
            "use separation 2 or more, or independent noise",
        )


def make_strategy(
    name: str,
    *,
    steps: int,
    separation: int,
    uses: int,
    bands: int | None = None,
    workload: Sequence[float] | None = None,
) -> Strategy:
    """Return the strategy of this name for a participation.

    `bsr`: the square root of the prefix sums, cut to `bands` (default: `separation`). `band`: the same number of
    coefficients, with the least mean squared error of the workload at equal privacy. `blt`: two buffers, likewise.
    `workload` is the first column of the Toeplitz matrix whose results matter; the prefix sums (all ones) by default.

    Guarantees: the same numbers give the same strategy.

    >>> make_strategy("bsr", steps=100, separation=10, uses=10, bands=4).coefficients
    (1.0, 0.5, 0.375, 0.3125)
    """
    column = None if workload is None else tuple(map(float, workload))
    return _make_strategy(name, steps, separation, uses, bands, column)


@lru_cache(maxsize=256)
def _make_strategy(
    name: str, steps: int, separation: int, uses: int, bands: int | None, workload: tuple[float, ...] | None
) -> Strategy:
    # Cached because a search takes up to seconds, and the same numbers give the same strategy.
    check_strategy(name)
    check_steps(steps)
    check_participation(separation=separation, uses=uses)
    if steps == 1:
        refuse("steps", steps, "the noise of a single step has nothing to cancel", "give 2 or more")
    column = read_workload(workload, steps)
    if name == "blt":
        if bands is not None:
            refuse("bands", bands, 'does not apply to strategy = "blt"', 'remove it, or use "bsr" or "band"')
        return find_buffers(steps, separation, uses, column)
    width = check_bands(min(separation, steps) if bands is None else bands, steps)
    if name == "bsr":
        return Strategy("bsr", steps, square_root(width), width)
    return Strategy("band", steps, find_bands(width, steps, separation, uses, column), width)


def check_bands(bands: int, steps: int) -> int:
    """Return the bands. Raises for an invalid number, and for one band, which is independent noise."""
    if not (1 <= bands <= steps and int(bands) == bands):
        invalid("bands", bands, f"must be a whole number from 2 to the number of steps, {steps}")
    if bands == 1:
        refuse("bands", bands, "one band is independent noise, with no gain", "give 2 or more")
    return int(bands)


def read_workload(workload: Sequence[float] | None, steps: int) -> Array:
    """Return the first column of the workload; prefix sums by default."""
    if workload is None:
        return np.ones(steps)
    column = np.array(workload, dtype=np.float64)
    if column.shape != (steps,):
        invalid("workload", len(workload), f"must have one number for each of the {steps} steps")
    if not (np.isfinite(column).all() and column.any()):
        invalid("workload", "", "must have finite numbers, not all zero")
    return column


def square_root(bands: int) -> tuple[float, ...]:
    """Return the first coefficients of 1 / sqrt(1 - x): c_i = c_(i-1) (2i - 1) / (2i)."""
    result = [1.0]
    for i in range(1, bands):
        result.append(result[-1] * (2 * i - 1) / (2 * i))
    return tuple(result)


def expand_buffers(weights: Sequence[float], decays: Sequence[float], steps: int) -> tuple[float, ...]:
    """Return all coefficients of a buffered strategy: c_0 = 1, c_i = sum_j w_j th_j^(i-1)."""
    if len(weights) != len(decays) or not weights:
        invalid("weights", len(weights), f"must have one weight for each of the {len(decays)} decays")
    terms, result = list(weights), [1.0]
    for _ in range(1, steps):
        result.append(math.fsum(terms))
        terms = [term * decay for term, decay in zip(terms, decays, strict=True)]
    return tuple(result)


def make_buffers(weights: Sequence[float], decays: Sequence[float], *, steps: int) -> Strategy:
    """Return the buffered strategy of these weights (not negative, sum at most 1) and decays (from 0 to 1).

    >>> make_buffers((0.25, 0.25), (0.5, 0.0), steps=4).coefficients
    (1.0, 0.5, 0.125, 0.0625)
    """
    check_steps(steps)
    for name, numbers in (("weights", weights), ("decays", decays)):
        if not all(0 <= one <= 1 for one in numbers):
            refuse(
                name,
                " ".join(map(str, numbers)),
                "must lie in [0, 1], or coefficients could rise",
                "give values from 0 to 1",
            )
    pairs = (tuple(map(float, weights)), tuple(map(float, decays)))
    return Strategy("blt", steps, expand_buffers(*pairs, steps), None, *pairs)


def count_uses(steps: int, separation: int, uses: int) -> int:
    """Return how often a subject takes part at most: `uses`, or as often as the separation allows."""
    return min(int(uses), -(-steps // separation))


def compute_sensitivity(strategy: Strategy, *, separation: int, uses: int) -> float:
    r"""Return how far a subject moves C x, in clip norms: |sum_(j < k) C[:, j b]|, rounded up.

    It is the largest over all participations with `separation` b and at most `uses` k: for i <= j the inner product of
    columns is <C_i, C_j> = sum_(u < T - j) c_u c_(u + j - i), not negative, and for c that never rises it is the larger
    the smaller j and j - i are. The a-th use of any participation is at least at round a b, so every product is at most
    that of the columns a b. Updates of norm 1 in other directions only lower it.

    Guarantees: not less than the exact value for the coefficients as they are. The columns are added in at most k
    rounded additions of numbers that are not negative, their squares without loss; the margin exceeds all rounding.

    >>> bsr = make_strategy("bsr", steps=64, separation=16, uses=4)
    >>> round(compute_sensitivity(bsr, separation=16, uses=4), 6)
    2.788461
    """
    check_participation(separation=separation, uses=uses)
    columns = count_uses(strategy.steps, separation, uses)
    moved = sum_columns(np.array(strategy.coefficients), strategy.steps, separation, columns)
    return round_up(math.sqrt(math.fsum(moved * moved)), columns + 4)


def sum_columns(coefficients: Array, steps: int, separation: int, columns: int) -> Array:
    """Return sum_(j < columns) C[:, j b]."""
    total = np.zeros(steps)
    for start in range(0, columns * separation, separation):
        reached = total[start : start + len(coefficients)]
        reached += coefficients[: len(reached)]
    return total


def fold_columns(coefficients: Array, separation: int, columns: int) -> Array:
    """Return an approximation of `sum_columns` for full columns, quickly."""
    # Differences of cumulative sums cancel, so the result is not a bound: use it in searches only.
    rows = np.zeros((-(-len(coefficients) // separation), separation))
    rows.ravel()[: len(coefficients)] = coefficients
    total = np.cumsum(rows, axis=0)
    total[columns:] -= total[:-columns].copy()
    return total.ravel()[: len(coefficients)]


def round_up(value: float, operations: int) -> float:
    """Return a value not less than the exact result of `operations` rounded operations on non-negative numbers."""
    return math.nextafter(value * (1 + (operations + 2) * UNIT), math.inf)


def redo_multiplier(strategy: Strategy, *, separation: int, uses: int) -> float:
    """Return r = sum_(j < k) c_(j b), rounded up: how far a subject moves one row of C x.

    A round that was seen and is repeated with fresh noise costs `Gaussian(sigma / r)` more.

    >>> bsr = make_strategy("bsr", steps=100, separation=10, uses=10)
    >>> round(redo_multiplier(bsr, separation=10, uses=10), 6)
    1.0
    """
    check_participation(separation=separation, uses=uses)
    columns = count_uses(strategy.steps, separation, uses)
    reached = strategy.coefficients[: columns * separation : separation]
    return round_up(math.fsum(reached), 1)


def column_norm(strategy: Strategy) -> float:
    """Return |c|, rounded up: how far one use moves C x."""
    squares = np.array(strategy.coefficients) ** 2
    return round_up(math.sqrt(math.fsum(squares)), 4)


def charge_stream(strategy: Strategy, *, noise: float, separation: int, uses: int) -> Gaussian:
    """Return the single event of a whole stream whose rows of z have standard deviation `noise` (in clip norms).

    >>> bsr = make_strategy("bsr", steps=100, separation=10, uses=10)
    >>> round(charge_stream(bsr, noise=2.5, separation=10, uses=10).noise_multiplier, 6)
    0.590678
    """
    check_noise(noise)
    return Gaussian(round_down(noise / compute_sensitivity(strategy, separation=separation, uses=uses)))


def charge_turns(strategy: Strategy, *, noise: float, groups: int, rate: float) -> tuple[Poisson, int]:
    """Return the cost of public turns with hidden draws: the event of one round of a group, and the number of rounds.

    Round t draws each member of group t mod `groups` with probability `rate`, hidden. With at most as many bands as
    groups, uses of one subject reach disjoint rows of C x: each is a sampled release of noise `noise` / |c|
    (Choquette-Choo et al. 2023). A group has at most ceil(T / groups) rounds; all are charged, drawn or not.

    >>> bsr = make_strategy("bsr", steps=100, separation=10, uses=10)
    >>> event, times = charge_turns(bsr, noise=2.0, groups=10, rate=0.5)
    >>> round(event.event.noise_multiplier, 4), times
    (1.4943, 10)
    """
    check_noise(noise)
    check_participation(separation=groups, uses=1)
    if strategy.bands is None or strategy.bands > groups:
        has = "has unlimited bands" if strategy.bands is None else f"has {strategy.bands} bands"
        refuse(
            "groups",
            groups,
            f"hidden draws amplify privacy only with at most one band for each group, and {strategy.name} {has}",
            f"use bsr or band with bands <= {groups}, or turns without a rate",
        )
    return Poisson(rate, Gaussian(round_down(noise / column_norm(strategy)))), -(-strategy.steps // groups)


def check_noise(noise: float) -> None:
    """Raise unless the noise is positive and finite."""
    if not (noise > 0 and math.isfinite(noise)):
        invalid("noise", noise, "noise must be positive and finite")


def round_down(value: float) -> float:
    """Return the next smaller number: not more than the exact result of one rounded operation."""
    return math.nextafter(value, 0.0)


def compute_errors(strategy: Strategy, workload: Sequence[float] | None = None) -> tuple[float, float]:
    """Return the mean and the largest squared error of the workload over the rounds, for rows of z with variance 1.

    Row t of the results has the variance sum_(i <= t) beta_i^2, where beta is the first column of A C^-1.

    >>> bsr = make_strategy("bsr", steps=64, separation=16, uses=4)
    >>> [round(error, 6) for error in compute_errors(bsr)]
    [2.866917, 4.443427]
    """
    rows = error_rows(strategy, workload)
    return float(rows.mean()), float(rows[-1])


def error_rows(strategy: Strategy, workload: Sequence[float] | None = None) -> Array:
    """Return the squared error of the workload after every round, for rows of z with variance 1."""
    column = read_workload(workload, strategy.steps)
    return np.cumsum(divide_by_strategy(strategy, column) ** 2)


def invert_strategy(strategy: Strategy) -> Array:
    """Return the first column of C^-1: how much of a row of z the noise of each later round holds."""
    first = np.zeros(strategy.steps)
    first[0] = 1.0
    return divide_by_strategy(strategy, first)


def divide_by_strategy(strategy: Strategy, column: Array) -> Array:
    """Return C^-1 column by division of power series, with the buffers' fraction if there are buffers."""
    if strategy.weights:
        return divide_series(column, *buffer_fraction(strategy.weights, strategy.decays))
    return divide_series(column, np.array(strategy.coefficients), np.ones(1))


def divide_series(column: Array, top: Array, bottom: Array) -> Array:
    """Return the power series column / (top / bottom), up to the length of the column."""
    # Slow to load, and most of accounting does not need it.
    from scipy.signal import lfilter

    return np.asarray(lfilter(bottom, top, column))


def buffer_fraction(weights: Sequence[float], decays: Sequence[float]) -> tuple[Array, Array]:
    """Return C(x) = 1 + x sum_j w_j / (1 - th_j x) as numerator and denominator, lowest power first."""
    bottom, top = np.ones(1), np.zeros(1)
    for weight, decay in zip(weights, decays, strict=True):
        factor = np.array([1.0, -decay])
        top = np.convolve(top, factor) + np.append(weight * bottom, 0.0)
        bottom = np.convolve(bottom, factor)
    return bottom + np.append(0.0, top[:-1]), bottom


def measure_gain(
    strategy: Strategy, *, separation: int, uses: int, workload: Sequence[float] | None = None, hidden: bool = False
) -> float:
    """Return the root mean squared error of independent noise at equal privacy, over that of the strategy.

    With `hidden` every turn is charged by itself, and a use moves as much as one column.

    >>> bsr = make_strategy("bsr", steps=64, separation=16, uses=4)
    >>> round(measure_gain(bsr, separation=16, uses=4), 3)
    2.415
    """
    alone = Strategy(strategy.name, strategy.steps, (1.0,), 1)
    less = math.sqrt(compute_errors(alone, workload)[0] / compute_errors(strategy, workload)[0])
    if hidden:
        return less / column_norm(strategy)
    moved = compute_sensitivity(strategy, separation=separation, uses=uses)
    return compute_sensitivity(alone, separation=separation, uses=uses) / moved * less


def find_bands(bands: int, steps: int, separation: int, uses: int, column: Array) -> tuple[float, ...]:
    """Return the banded coefficients with the least mean squared error at equal privacy, by L-BFGS."""
    columns = count_uses(steps, separation, uses)

    def cost(free: Array) -> tuple[float, Array]:
        """Return log(sens^2 mean error) and its gradient."""
        kept = free_fractions(free)
        coefficients = np.append(1.0, np.cumprod(kept))
        value, slope = weigh_coefficients(coefficients, steps, separation, columns, column)
        tail = np.cumsum((slope * coefficients)[:0:-1])[::-1]
        return value, (1 - kept) * tail

    # Ratios of successive coefficients are sigmoids, so every candidate is monotone; the start is the square root.
    start = np.log(2 * np.arange(1, bands) - 1.0)
    result = np.cumprod(free_fractions(minimize_smoothly(cost, start)[1]))
    return tuple(float(c) for c in np.round(np.append(1.0, result), DECIMALS))


def free_fractions(free: Array) -> Array:
    """Return sigmoids of the numbers: values between 0 and 1."""
    return np.asarray(1 / (1 + np.exp(-np.clip(free, -30.0, 30.0))))


def weigh_coefficients(
    coefficients: Array, steps: int, separation: int, columns: int, workload: Array
) -> tuple[float, Array]:
    """Return log(sens^2 mean error) of a banded strategy, and its derivatives by the coefficients."""
    moved = sum_columns(coefficients, steps, separation, columns)
    squared = float(moved @ moved)
    # The share of rows that each coefficient of beta is in.
    left = np.arange(steps, 0, -1) / steps
    beta = divide_series(workload, coefficients, np.ones(1))
    again = divide_series(beta, coefficients, np.ones(1))
    error = float(left @ beta**2)
    weighted = left * beta
    by_error = np.array([-2 * (weighted[i:] @ again[: steps - i]) for i in range(len(coefficients))])
    starts = range(0, columns * separation, separation)
    padded = np.append(moved, np.zeros(len(coefficients)))
    by_moved = 2 * sum(padded[first : first + len(coefficients)] for first in starts)
    return math.log(squared) + math.log(error), by_moved / squared + by_error / error


# Weights and decays from which the search for buffers starts.
BUFFER_STARTS = ((0.3, 0.15, 0.97, 0.6), (0.2, 0.2, 0.995, 0.8), (0.25, 0.25, 0.9, 0.4), (0.1, 0.3, 0.999, 0.7))
# Buffers whose decays differ by less are merged.
SAME_DECAY = 1e-3


def find_buffers(steps: int, separation: int, uses: int, column: Array) -> Strategy:
    """Return the two buffers with the least mean squared error at equal privacy, from several starts."""
    left = np.arange(steps, 0, -1) / steps
    columns = count_uses(steps, separation, uses)

    def cost(free: Array) -> float:
        weights, decays = free_buffers(free)
        powers = np.power.outer(np.array(decays), np.arange(steps - 1))
        coefficients = np.append(1.0, np.array(weights) @ powers)
        moved = fold_columns(coefficients, separation, columns)
        beta = divide_series(column, *buffer_fraction(weights, decays))
        return math.log(moved @ moved) + math.log(left @ beta**2)

    tried = [minimize_smoothly(cost, bind_buffers(start)) for start in BUFFER_STARTS]
    # Costs are compared after rounding, so that every processor picks the same start.
    weights, decays = free_buffers(min(tried, key=lambda one: round(one[0], 9))[1])
    pairs = sorted(zip(decays, weights, strict=True), reverse=True)
    # How the weight is divided between equal decays is arbitrary, so the two become one buffer.
    if pairs[0][0] - pairs[1][0] < SAME_DECAY:
        total = pairs[0][1] + pairs[1][1]
        pairs = [(sum(decay * weight for decay, weight in pairs) / total, total)]
    # Rounded down, so that the sum stays at most 1.
    kept = [math.floor(weight * 10**DECIMALS) / 10**DECIMALS for _, weight in pairs]
    return make_buffers(kept, [round(decay, DECIMALS) for decay, _ in pairs], steps=steps)


def bind_buffers(numbers: Sequence[float]) -> Array:
    """Return the free numbers of two weights and two decays; the inverse of `free_buffers`."""
    first, second, *decays = numbers
    rest = 1 - first - second
    return np.array([math.log(first / rest), math.log(second / rest), *(math.log(th / (1 - th)) for th in decays)])


def free_buffers(free: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two weights (positive, sum below 1) and two decays (between 0 and 1) from any four numbers."""
    first, second = np.exp(np.clip(free[:2], -30.0, 30.0))
    kept = free_fractions(free[2:])
    whole = 1 + first + second
    return (float(first / whole), float(second / whole)), (float(kept[0]), float(kept[1]))


def minimize_smoothly(cost: Callable[[Array], float | tuple[float, Array]], start: Array) -> tuple[float, Array]:
    """Return the least cost that L-BFGS finds from a start, and its location.

    A cost without a gradient is differentiated numerically.
    """
    given = isinstance(cost(start), tuple)
    options = {"maxiter": 500, "maxfun": 100_000, "ftol": 1e-11, "gtol": 1e-7, "maxcor": 30}
    # Slow to load, and most schemes have closed forms.
    from scipy.optimize import minimize

    result = minimize(cost, start, jac=True if given else "3-point", method="L-BFGS-B", options=options)
    return float(result.fun), np.asarray(result.x)
