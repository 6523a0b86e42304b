"""What the Upcycled-FL paper claims of its figures and tables, and what came out."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from experiments.claims import Claim, judged
from experiments.upcycled.numbers import DATA, PAPER, TABLE_OF, Pairs, gain, mean_of, shown, verdict

MODULE = "python -m experiments.upcycled"
CURVES = {
    "Figure 2": (("table1", "iid"), ("table1", "syn55"), ("letters", "letters")),
    "Figure 5": (("table1", "syn00"), ("table1", "syn11"), ("tweets", "tweets")),
    "Figure 6": tuple(("table3", name) for name in ("iid", "syn00", "syn55", "syn11")),
}
"""Figure -> the runs whose losses it shows."""
PRIVATE = {
    "published": ("Figure 3, as published", "published"),
    "output": ("Figure 3, with a guarantee", "output"),
    "gradient": ("Figure 3, gradients in its place", "gradient"),
    "objective": ("Figure 4, with a guarantee", "objective"),
    "figure7-output": ("Figure 7, left, as published", "figure7"),
    "figure7-objective": ("Figure 7, right, with a guarantee", "figure7"),
    "figure8-output": ("Figure 8, left, as published", "figure8"),
    "figure9-output": ("Figure 9, left, as published", "figure9"),
    "figure9-objective": ("Figure 9, right, with a guarantee", "figure9"),
}
"""Part -> (result, what the command is told)."""


def claims(parts: dict[str, Pairs]) -> list[Claim]:
    """Everything but the cells of Tables 1, 3 and 4."""
    return [*curves(parts), *private(parts), *times(parts)]


def cells(parts: dict[str, Pairs]) -> Iterator[Claim]:
    """Tables 1, 3 and 4, cell by cell."""
    for part, name in TABLE_OF.items():
        for (data, algorithm), pair in parts.get(part, {}).items():
            plain, up = PAPER[name][algorithm][data]
            here = f"{shown(pair[False], 'accuracy', 100)} → {shown(pair[True], 'accuracy', 100)}"
            result = f"Table {name.removeprefix('table')}, {DATA[data]}, {algorithm}"
            word = verdict(*gain(pair), up - plain)
            yield Claim(result, f"{plain:.2f} → {up:.2f}", here, word, f"{MODULE} {part}")


def curves(parts: dict[str, Pairs]) -> Iterator[Claim]:
    """Figures 2, 5 and 6: the loss along training, at equal training time, which is equal rounds."""
    for figure, runs in CURVES.items():
        for part, data in runs:
            pairs = [pair for (name, _), pair in parts.get(part, {}).items() if name == data]
            if pairs:
                ends = sum(mean_of(pair[True], "loss") < mean_of(pair[False], "loss") for pair in pairs)
                along = sum(mean_loss(pair[True]) < mean_loss(pair[False]) for pair in pairs)
                here = f"lower along training for {along} of {len(pairs)} algorithms, at the end for {ends}"
                word = judged(along > len(pairs) / 2)
                paper = "upcycled has the lower loss in most cases"
                yield Claim(f"{figure}, {DATA[data]}", paper, here, word, f"{MODULE} {part}")


def mean_loss(runs: list[dict[str, Any]]) -> float:
    """Mean over seeds and evaluations."""
    return fmean(point[1] for run in runs for point in run["curve"])


def private(parts: dict[str, Pairs]) -> Iterator[Claim]:
    """Figures 3, 4 and 7 to 9: the lower loss under the smaller epsilon."""
    for part, (result, name) in PRIVATE.items():
        if part in parts:
            pairs = parts[part].values()
            better = sum(gain(pair, "loss", 1.0)[0] < 0 for pair in pairs)
            spent = "no guarantee for either" if "published" in result else "at equal epsilon"
            here = f"lower loss in {better} of {len(pairs)} cells with half the releases, {spent}"
            word = ("not reproduced", "partly", "reproduced")[(better > 0) + (better == len(pairs))]
            yield Claim(result, "upcycled has the lower loss at less privacy spent", here, word, f"{MODULE} {name}")


def times(parts: dict[str, Pairs]) -> Iterator[Claim]:
    """Table 5."""
    for (_, algorithm), pair in parts.get("table5", {}).items():
        plain, up = PAPER["table5"][algorithm]["iid"]
        ratio = mean_of(pair[True], "training_seconds") / mean_of(pair[False], "training_seconds")
        here = f"ratio {ratio:.2f}"
        paper = f"{plain:.1f} s → {up:.1f} s: ratio {up / plain:.2f}"
        yield Claim(f"Table 5, {algorithm}", paper, here, judged(ratio < 0.75), f"{MODULE} table5")
