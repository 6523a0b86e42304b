"""Loss over training, a picture for each figure of the paper."""

from pathlib import Path
from statistics import fmean
from typing import Any

from papers.upcycled.cells import ALGORITHMS, SYNTHETIC
from papers.upcycled.claims import CURVES
from papers.upcycled.numbers import DATA, Pair, Row, select_pair

Panel = tuple[str, str, str]
"""Data, part, variant."""
FIGURES: dict[str, tuple[Panel, ...]] = {
    **{figure: tuple((data, part, "") for data, part in panels) for figure, panels in CURVES.items()},
    "Figure 3": tuple((name, "figure3", word) for word in ("printed", "coded", "epsilon2") for name in SYNTHETIC),
    "Figure 4": tuple((name, "figure4", "objective-epsilon8") for name in SYNTHETIC),
}
WORDS = {"": "", "printed": ", as printed", "coded": ", as coded", "epsilon2": ", epsilon 2"}
EQUAL_ROUNDS = ("table1", "table3", "letters", "letters30", "tweets", "tweets30")
"""Parts that compare at equal rounds; in the others an upcycled round is two iterations."""


def draw_curves(rows: list[Row], folder: Path) -> list[str]:
    """A section for each figure that was run."""
    found = []
    for figure, panels in sorted(FIGURES.items()):
        pairs = {panel: find_pairs(rows, panel) for panel in panels}
        there = {panel: own for panel, own in pairs.items() if own}
        if there:
            name = f"upcycled-{figure.lower().replace(' ', '')}-curves.svg"
            draw_panels(there, folder / name)
            found.append(f"### {figure}\n\n![{figure}: test loss]({name})")
    return found


def find_pairs(rows: list[Row], panel: Panel) -> dict[str, Pair]:
    """Algorithm -> both arms."""
    data, part, variant = panel
    found = {algorithm: select_pair(rows, part, data, algorithm, variant) for algorithm in ALGORITHMS}
    return {algorithm: pair for algorithm, pair in found.items() if pair}


def draw_panels(panels: dict[Panel, dict[str, Pair]], path: Path) -> None:
    """Test loss over iterations."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "upcycled", "svg.fonttype": "none"}
    from matplotlib import pyplot

    wide = min(4, len(panels))
    high = -(-len(panels) // wide)
    canvas, axes = pyplot.subplots(high, wide, figsize=(4 * wide, 3.2 * high), squeeze=False)
    for axis, ((data, part, variant), pairs) in zip(axes.ravel(), panels.items(), strict=False):
        for number, (algorithm, pair) in enumerate(pairs.items()):
            draw_pair(axis, pair, algorithm, f"C{number}", doubled=part not in EQUAL_ROUNDS)
        axis.set(title=DATA[data] + WORDS.get(variant, ", epsilon 8"))
        axis.set(xlabel="rounds" if part in EQUAL_ROUNDS else "iterations")
        axis.set_yscale("log" if part in EQUAL_ROUNDS else "linear")
        axis.legend(fontsize=7)
    for axis in axes.ravel()[len(panels) :]:
        axis.axis("off")
    axes[0][0].set_ylabel("test loss")
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


def draw_pair(axis: Any, pair: Pair, algorithm: str, colour: str, *, doubled: bool) -> None:
    """Dashed: plain; solid: upcycled."""
    for arm, style in ((pair.plain, "--"), (pair.upcycled, "-")):
        curves = [run["curve"] for run in arm.values()]
        losses = [fmean(curve[place][1] for curve in curves) for place in range(len(curves[0]))]
        factor = 2 if doubled and style == "-" else 1
        axis.plot(
            [factor * point[0] for point in curves[0]], losses, style, color=colour,
            label=algorithm if style == "-" else None,
        )  # fmt: skip
