"""What a figure or table of a paper states, our result, and the reason for any difference."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path

HEADER = (
    "figure or table: what it says",
    "printed setting",
    "as published / as coded (no guarantee where there is none)",
    "ours, with a guarantee",
    "verdict",
    "cause of any difference, and the run that isolates it",
)
UNSURE = re.compile(r"\b(probably|perhaps|guess(ed|es)?|presumably|seems|maybe|likely)\b", re.IGNORECASE)
"""Words that a run has to take the place of."""


class Verdict(StrEnum):
    """The five possible verdicts."""

    REPRODUCED = "reproduced"
    SAME_SIGN = "same sign"
    """The paper's direction, of another size."""
    REGIME = "depends on the regime"
    """It holds in the regime that is named, and not in the other that is named."""
    NOT_REPRODUCED = "not reproduced"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Point:
    """One number of the picture: the paper's, if it prints one, and ours with its standard error."""

    label: str
    paper: float | None
    ours: float | None
    error: float = 0.0
    published: float | None = None
    """As published or as coded, run here."""


@dataclass(frozen=True)
class Finding:
    """One row of a system's table.

    Guarantees: a verdict other than `reproduced` names its cause, and the command that isolates it, in code ticks;
    no cause is a conjecture.
    """

    result: str
    """Figure or table, as `Figure 3 (a)`; findings of one result share a picture."""
    claim: str
    """What the paper says of it."""
    printed: str
    """The paper's setting, and what was scaled down here."""
    published: str
    """What comes out as published or as coded; `-` where that is the same as ours."""
    ours: str
    verdict: Verdict
    cause: str
    command: str
    """What makes the numbers of this row."""
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict is not Verdict.REPRODUCED and "`" not in self.cause:
            raise ValueError(f"{self.result}, {self.claim}: {self.verdict} and no run that isolates the cause")
        if found := UNSURE.search(" ".join((self.cause, self.ours, self.published))):
            raise ValueError(f"{self.result}, {self.claim}: {found.group()!r} in the place of a run")

    @property
    def cells(self) -> list[str]:
        """Return the cells of its table row."""
        why = f"{self.cause} " if self.cause else ""
        said = f"**{self.result}**: {self.claim}"
        return [said, self.printed, self.published, self.ours, self.verdict, f"{why}(`{self.command}`)"]


def write_table(findings: Iterable[Finding]) -> str:
    """Return the findings as a Markdown table."""
    lines = [list(HEADER), ["---"] * len(HEADER), *(finding.cells for finding in findings)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)


def count_verdicts(findings: Iterable[Finding]) -> dict[Verdict, int]:
    """Return the number of findings per verdict, for all five."""
    counts = Counter(finding.verdict for finding in findings)
    return {verdict: counts[verdict] for verdict in Verdict}


def group_results(findings: Iterable[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """Group the findings by figure, in the order of their first appearance."""
    ordered = sorted(findings, key=lambda finding: finding.result)
    for result, own in groupby(ordered, key=lambda finding: finding.result):
        yield result, list(own)


def draw_results(findings: Iterable[Finding], folder: Path, system: str) -> str:
    """Draw one picture per figure or table, paper and ours side by side; return the Markdown lines that show them."""
    lines = []
    for result, own in group_results(findings):
        points = [point for finding in own for point in finding.points]
        if points:
            name = f"{system}-{re.sub('[^a-z0-9]+', '-', result.lower()).strip('-')}.svg"
            draw_points(points, result, folder / name)
            lines.append(f"![{result}: paper and ours]({name})")
    return "\n\n".join(lines)


def draw_points(points: list[Point], title: str, path: Path) -> None:
    """Draw a line for each number: the paper's as a ring, as published as a square, ours as a dot with its error."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": title, "svg.fonttype": "none"}  # letters, not outlines: a tenth of the size
    from matplotlib import pyplot

    canvas, axis = pyplot.subplots(figsize=(7, 0.9 + 0.28 * len(points)))
    rows = range(len(points))
    axis.plot(_or_nan([p.paper for p in points]), rows, "o", mfc="none", mec="#b3541e", ms=9, label="paper")
    if any(point.published is not None for point in points):
        axis.plot(
            _or_nan([p.published for p in points]), rows, "s", color="#7a7a7a", ms=5, label="as published, run here"
        )
    axis.errorbar(
        _or_nan([p.ours for p in points]),
        list(rows),
        xerr=[point.error for point in points],
        fmt="o", color="#1f5fa8", ms=4, capsize=3, label="ours, with standard error",
    )  # fmt: skip
    axis.set_yticks(list(rows), [point.label for point in points], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(title, fontsize=10, loc="left")
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.9 / (1 + 0.28 * len(points))), ncols=3)
    canvas.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(canvas)


def _or_nan(values: list[float | None]) -> list[float]:
    """Return the numbers, with nan for missing ones, which a picture omits."""
    return [float("nan") if value is None else value for value in values]
