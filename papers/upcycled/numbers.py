"""Results as the page reads them: runs of both arms by seed, gains paired by seed; and the paper's tables."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from papers.findings import Finding, Verdict
from papers.paired import Estimate, measure_mean, pair_by_seed

Row = dict[str, Any]
MODULE = "python -m papers.upcycled"

PAPER = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
DATA = {
    "iid": "Syn(iid)", "syn00": "Syn(0,0)", "syn55": "Syn(.5,.5)", "syn11": "Syn(1,1)", "letters": "letters a-j",
    "letters26": "26 letters", "sent140": "Sent140",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pair:
    """The runs of both arms that share their seeds."""

    plain: Mapping[int, Row]
    upcycled: Mapping[int, Row]

    def __bool__(self) -> bool:
        return bool(self.plain.keys() & self.upcycled.keys())

    def list_gaps(self, name: str, factor: float = 1.0) -> dict[int, float]:
        """Upcycled minus plain of every seed that both have."""
        seeds = sorted(self.plain.keys() & self.upcycled.keys())
        return {s: factor * (read_value(self.upcycled[s], name) - read_value(self.plain[s], name)) for s in seeds}

    def differ_in(self, name: str, factor: float = 1.0) -> Estimate:
        """The mean of these gaps."""
        gaps = self.list_gaps(name, factor)
        return pair_by_seed(dict.fromkeys(gaps, 0.0), gaps)

    def means_of(self, name: str, factor: float = 1.0) -> tuple[float, float]:
        """Of the plain and of the upcycled arm, over the seeds that both have."""
        seeds = self.plain.keys() & self.upcycled.keys()
        first, second = (
            fmean(factor * read_value(arm[seed], name) for seed in seeds) for arm in (self.plain, self.upcycled)
        )
        return first, second


def read_value(row: Row, name: str) -> float:
    """A number of a run; `path` is the mean of its losses along training."""
    return fmean(point[1] for point in row["curve"]) if name == "path" else float(row[name])


def select_pair(rows: Iterable[Row], part: str, data: str, algorithm: str, variant: str = "", u: str = "") -> Pair:
    """Both arms of a cell; `u` chooses among several upcycled ones."""
    own = [r for r in rows if (r["part"], r["data"], r["algorithm"], r["variant"]) == (part, data, algorithm, variant)]
    return Pair(
        {row["seed"]: row for row in own if not row["upcycled"]},
        {row["seed"]: row for row in own if row["upcycled"] and row["setting"].endswith(u)},
    )


def average_gains(pairs: Iterable[Pair], name: str = "accuracy", factor: float = 100.0) -> Estimate:
    """Mean over the pairs of upcycled minus plain, and its standard error over the seeds that all of them have."""
    by_pair = [pair.list_gaps(name, factor) for pair in pairs]
    seeds = set.intersection(*(set(gaps) for gaps in by_pair))
    found = measure_mean([fmean(gaps[seed] for gaps in by_pair) for seed in sorted(seeds)])
    return Estimate(found.mean, found.error, found.seeds, signed=True)


def write_estimate(found: Estimate, digits: int = 2) -> str:
    """A difference with its standard error."""
    spread = "" if isnan(found.error) else f" ± {found.error:.{digits}f}"
    return f"{found.mean:+.{digits}f}{spread} ({found.seeds} seed{'s' if found.seeds > 1 else ''})"


def is_clear(found: Estimate) -> bool:
    """Whether a difference is larger than its standard error."""
    return not isnan(found.error) and abs(found.mean) > found.error


def write_arrow(pair: Pair, name: str = "accuracy", factor: float = 100.0, digits: int = 1) -> str:
    """Plain and upcycled."""
    plain, up = pair.means_of(name, factor)
    return f"{plain:.{digits}f} → {up:.{digits}f}"


def or_zero(error: float) -> float:
    """One seed has no error to draw."""
    return 0.0 if isnan(error) else error


def not_run(result: str, claim: str, printed: str, command: str) -> Finding:
    """A row whose runs are not there."""
    cause = f"its runs are not kept here: `{command}` makes them."
    return Finding(result, claim, printed, "-", "-", Verdict.NOT_RUN, cause, command)
