"""Accuracies of the runs: means over seeds, differences paired by seed, and whether a claim holds in a regime."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from statistics import fmean
from typing import Any

from papers.findings import Point, Verdict
from papers.groups.cells import SEEDS, Cell
from papers.paired import Estimate, measure_mean, pair_by_seed

Row = dict[str, Any]
SOURCES = {"mnist": ("3", "MNIST"), "fashion_mnist": ("5", "Fashion-MNIST")}
REGIME_WORDS = {"printed": "printed rate", "tuned": "tuned rate"}
ONE_SEED = 1.0
"""Points of accuracy by which a single pair of runs has to differ."""


class Known:
    """Last accuracies in % of one data set, by cell, regime and seed."""

    def __init__(self, rows: Sequence[Row], source: str = "mnist") -> None:
        self.rows: Mapping[str, Row] = {row["key"]: row for row in rows}
        self.source = source
        self.figure, self.name = SOURCES[source]

    def values(
        self, cell: Cell, regime: str, *, private: bool = True, metric: str = "test_accuracy"
    ) -> dict[int, float]:
        """Seed -> the last evaluation; losses as they are, accuracies in %."""
        scale = 100 if "accuracy" in metric else 1
        keys = {s: replace(cell, source=self.source, regime=regime, private=private, seed=s).key for s in SEEDS}
        return {seed: scale * self.rows[key][metric][-1] for seed, key in keys.items() if key in self.rows}

    def has(self, regime: str, *cells: Cell, private: bool = True) -> bool:
        """Whether all of them ran with a seed at least."""
        return all(self.values(cell, regime, private=private) for cell in cells)

    def mean(self, cell: Cell, regime: str, *, private: bool = True) -> Estimate:
        """Over its seeds."""
        return measure_mean(list(self.values(cell, regime, private=private).values()))

    def gap(self, first: Cell, second: Cell, regime: str, *, private: bool = True) -> Estimate:
        """`second - first`, by seed."""
        return pair_by_seed(self.values(first, regime, private=private), self.values(second, regime, private=private))

    def say(self, first: Cell, second: Cell, regime: str, *, private: bool = True) -> str:
        """Both means, over the seeds that both have, and their difference."""
        found = [self.values(cell, regime, private=private) for cell in (first, second)]
        shared = found[0].keys() & found[1].keys()
        one, two = (fmean(own[seed] for seed in shared) for own in found)
        return f"{one:.1f} -> {two:.1f}, {self.gap(first, second, regime, private=private)}"

    def point(self, label: str, first: Cell, second: Cell, regime: str, *, private: bool = True) -> Point:
        """The difference, for the picture."""
        gap = self.gap(first, second, regime, private=private)
        return Point(label, None, gap.mean, 0.0 if isnan(gap.error) else gap.error)


def holds(gap: Estimate, sign: int = 1) -> bool:
    """The sign, by more than a standard error; by more than a point where one seed ran."""
    return sign * gap.mean > (ONE_SEED if isnan(gap.error) else gap.error)


def judge_regimes(found: Mapping[str, bool]) -> Verdict:
    """Reproduced where it holds wherever it was run; in some regimes only: that; in none: not."""
    if all(found.values()):
        return Verdict.REPRODUCED
    return Verdict.REGIME if any(found.values()) else Verdict.NOT_REPRODUCED
