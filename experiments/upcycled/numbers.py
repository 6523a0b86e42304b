"""Results as the page reads them: runs by part and cell, means, gains paired by seed; and the paper's tables."""

import json
from collections import defaultdict
from collections.abc import Iterable
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

Row = dict[str, Any]
Pairs = dict[tuple[str, str], dict[bool, list[Row]]]

PAPER = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
TABLE_OF = {"table1": "table1", "table3": "table3", "letters": "table1", "letters26": "table4", "tweets": "table1"}
DATA = {
    "iid": "Syn(iid)", "syn00": "Syn(0,0)", "syn55": "Syn(.5,.5)", "syn11": "Syn(1,1)", "letters": "letters a-j",
    "letters26": "26 letters", "tweets": "tweets",
    "figure7": "letters a-j", "figure8": "tweets", "figure9": "26 letters",
}  # fmt: skip


def by_part(rows: Iterable[Row]) -> dict[str, Pairs]:
    """part -> (data, algorithm) -> upcycled? -> its runs, only seeds that both have."""
    parts: dict[str, Pairs] = defaultdict(lambda: defaultdict(lambda: {False: [], True: []}))
    for row in rows:
        parts[row["part"]][row["data"], row["algorithm"]][row["upcycled"]].append(row)
    for pairs in parts.values():
        for key, pair in list(pairs.items()):
            both = {r["seed"] for r in pair[False]} & {r["seed"] for r in pair[True]}
            pairs[key] = {up: [r for r in runs if r["seed"] in both] for up, runs in pair.items()}
            if not both:
                del pairs[key]
    return {part: pairs for part, pairs in parts.items() if pairs}


def mean_of(runs: list[Row], name: str, factor: float = 1.0) -> float:
    return factor * fmean(run[name] for run in runs)


def shown(runs: list[Row], name: str, factor: float = 1.0, digits: int = 2) -> str:
    values = [factor * run[name] for run in runs]
    return f"{fmean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def gain(pair: dict[bool, list[Row]], name: str = "accuracy", factor: float = 100.0) -> tuple[float, float]:
    """Mean and standard error of upcycled minus plain over the seeds."""
    plain = {run["seed"]: run[name] for run in pair[False]}
    gains = [factor * (run[name] - plain[run["seed"]]) for run in pair[True]]
    return fmean(gains), pstdev(gains) / sqrt(max(1, len(gains) - 1))


def verdict(ours: float, error: float, paper: float) -> str:
    """Whether the sign of the gain is the paper's."""
    if abs(ours) <= error:
        return "tie"
    return "agrees" if (ours > 0) == (paper >= 0) else "differs"
