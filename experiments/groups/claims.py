"""What the DP-OGL paper claims of Figures 2 to 5, and what came out."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from experiments.claims import Claim, judged
from experiments.groups.cells import NOISE, PERIODS, SIZES, STRUCTURES, Cell
from experiments.groups.counts import EXAMPLE, curves, heatmaps

Row = dict[str, Any]
SOURCES = {"mnist": ("3", "MNIST"), "fashion_mnist": ("5", "Fashion-MNIST")}
GL, CL, LB, RI, PLUS = STRUCTURES
MODULE = "python -m experiments.groups"


def claims(rows: list[Row], counted: dict[str, Any]) -> list[Claim]:
    """Accounting first, then accuracy by data set; `counted` is figure4.json."""
    found = [EXAMPLE, *curves(counted), *heatmaps(counted)] if counted else []
    for source in SOURCES:
        known = Known(rows, source)
        parts = (structures, sizes, periods, noise)
        found += [claim for part in parts for claim in part(known)]
    return found


class Known:
    """Accuracies in % of one data set."""

    def __init__(self, rows: list[Row], source: str) -> None:
        self.rows = {row["key"]: row for row in rows}
        self.source = source
        self.figure, self.name = SOURCES[source]

    def of(self, cell: Cell, *, private: bool = True, seeds: tuple[int, ...] = (0,)) -> float | None:
        """Mean over the seeds of the last evaluation; None when one of them was not run."""
        keys = [replace(cell, source=self.source, private=private, seed=seed).key for seed in seeds]
        if not set(keys) <= set(self.rows):
            return None
        return 100 * fmean(self.rows[key]["test_accuracy"][-1] for key in keys)

    def all_of(self, *cells: Cell, **how: Any) -> list[float]:
        """The same of several; empty when one is missing."""
        found = [self.of(cell, **how) for cell in cells]
        return [value for value in found if value is not None] if None not in found else []

    def command(self, *parts: str) -> str:
        """What ran the cells of some parts on this data set."""
        return f"{MODULE} {' '.join(parts) if self.source == 'mnist' else 'fashion'}"

    def result(self, first: str, second: str) -> str:
        """Fashion-MNIST's figure has two panels where MNIST's has four."""
        return f"Figure {self.figure} {first if self.figure == '3' else second}"


def structures(known: Known) -> Iterator[Claim]:
    """Panels (a), (b)."""
    noisy = known.all_of(*STRUCTURES, seeds=(0, 1))
    clear = known.all_of(*STRUCTURES, private=False)
    if not noisy or not clear:
        return
    result, command = known.result("(a), (b)", "(a), (b)"), known.command("structures")
    one, ring = noisy[0], noisy[3]
    here = f"{known.name}: ring {ring:.1f}, global {one:.1f}; without noise {clear[3]:.1f} and {clear[0]:.1f}"
    best = judged(ring == max(noisy))
    yield Claim(result, "the ring is most accurate, above global at equal noise", here, best, command)
    ahead = [cell.curve for cell, value in zip(STRUCTURES, noisy, strict=True) if value > one]
    ahead_clear = [cell.curve for cell, value in zip(STRUCTURES, clear, strict=True) if value > clear[0]]
    here = f"with noise: {', '.join(ahead) or 'none'}; without: {', '.join(ahead_clear) or 'none'}"
    verdict = "reproduced" if len(ahead) == 4 else "partly" if ahead or ahead_clear else "not reproduced"
    yield Claim(result, "all multi-group structures beat global", here, verdict, command)
    here = f"DP-OGL+ {noisy[4]:.1f}, DP-OGL {ring:.1f}"
    yield Claim(result, "DP-OGL+ converges worse than DP-OGL", here, judged(noisy[4] < ring), command)


def sizes(known: Known) -> Iterator[Claim]:
    """Panels (c), (d)."""
    one_40, ring_10, ring_40, plus_10, _ = SIZES
    found = known.all_of(RI, ring_10, ring_40, PLUS, plus_10, GL, one_40)
    if not found:
        return
    result, command = known.result("(c), (d)", "(c), (d)"), known.command("structures", "sizes")
    large, small, few, plus, plus_small, one, one_few = found
    here = f"DP-OGL {small:.1f} (N = 100) and {few:.1f} (N = 40) against {large:.1f}; "
    here += f"DP-OGL+ {plus_small:.1f} against {plus:.1f}"
    holds = max(small, few) < large and plus_small < plus
    yield Claim(
        result, "groups of N/M = 10 do worse than of 25: noise does not shrink with them", here, judged(holds), command
    )
    here = f"{one_few:.1f} against {one:.1f}"
    yield Claim(
        result, "global does slightly better with 40 workers than with 100", here, judged(one_few > one), command
    )


def periods(known: Known) -> Iterator[Claim]:
    """Panels (e), (f)."""
    labels_2, ring_2, plus_4 = PERIODS
    found = known.all_of(RI, ring_2, LB, labels_2, PLUS, plus_4)
    if not found:
        return
    result, command = known.result("(e), (f)", "(a), (b)"), known.command("structures", "periods")
    ring, ring_short, labels, labels_short, plus, plus_long = found
    here = f"ring {ring_short:.1f} -> {ring:.1f}, labels {labels_short:.1f} -> {labels:.1f}"
    helped = (ring > ring_short) + (labels > labels_short)
    verdict = ("not reproduced", "partly", "reproduced")[helped]
    yield Claim(result, "S from 2 to 10 helps DP-OGL, the ring more than labels", here, verdict, command)
    here = f"{plus:.1f} -> {plus_long:.1f}"
    yield Claim(result, "S from 2 to 4 hurts DP-OGL+", here, judged(plus_long < plus), command)


def noise(known: Known) -> Iterator[Claim]:
    """Panels (g), (h)."""
    _, ring_loud, few_loud, plus_loud, few_plus_quiet = SIZES
    ring, few, plus, few_plus_loud = NOISE
    found = known.all_of(ring_loud, ring, few_loud, few, plus_loud, plus, few_plus_loud, few_plus_quiet)
    if found:
        pairs = [f"{loud:.1f} -> {quiet:.1f}" for loud, quiet in zip(found[::2], found[1::2], strict=True)]
        here = f"ring {pairs[0]} (N = 100), {pairs[1]} (N = 40); DP-OGL+ {pairs[2]}, {pairs[3]}"
        holds = all(quiet > loud for loud, quiet in zip(found[::2], found[1::2], strict=True))
        result, command = known.result("(g), (h)", "(c), (d)"), known.command("sizes", "noise")
        yield Claim(result, "noise 1.3 in the place of 2 mends small groups", here, judged(holds), command)
