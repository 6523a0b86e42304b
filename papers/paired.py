"""Means over seeds and differences of runs that share a seed, with their standard errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from statistics import fmean, stdev

from papers.findings import Verdict


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error (nan for one seed).

    >>> str(measure_mean([1.0, 2.0, 3.0]))
    '2.0 ± 0.6 (3 seeds)'
    """

    mean: float
    error: float
    seeds: int
    signed: bool = False

    def __str__(self) -> str:
        sign = "+" if self.signed else ""
        spread = "" if isnan(self.error) else f" ± {self.error:.1f}"
        return f"{self.mean:{sign}.1f}{spread} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


def measure_mean(values: Sequence[float]) -> Estimate:
    """Return the mean and its standard error."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else nan
    return Estimate(fmean(values), error, len(values))


def pair_by_seed(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """Return `second - first` by seed, so that common effects cancel.

    >>> str(pair_by_seed({0: 50.0, 1: 60.0, 2: 70.0}, {0: 52.0, 1: 62.0, 2: 72.5}))
    '+2.2 ± 0.2 (3 seeds)'
    """
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise ValueError("no seed is shared: nothing to pair")
    plain = measure_mean([second[seed] - first[seed] for seed in shared])
    return Estimate(plain.mean, plain.error, plain.seeds, signed=True)


def judge_difference(paper: float, ours: Estimate) -> Verdict:
    """Return the verdict: reproduced means the paper's sign, and half its size or within two standard errors of it.

    >>> judge_difference(4.0, Estimate(2.5, 0.3, 3)).value, judge_difference(4.0, Estimate(0.5, 0.1, 3)).value
    ('reproduced', 'same sign')
    >>> judge_difference(4.0, Estimate(-0.5, 0.1, 3)).value
    'not reproduced'
    """
    if paper * ours.mean <= 0:
        return Verdict.NOT_REPRODUCED
    near = not isnan(ours.error) and abs(ours.mean - paper) <= 2 * ours.error
    return Verdict.REPRODUCED if near or abs(ours.mean) >= abs(paper) / 2 else Verdict.SAME_SIGN
