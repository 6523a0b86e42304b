"""Loss over training, a picture for each figure of the paper."""

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.upcycled.claims import CURVES
from experiments.upcycled.numbers import DATA, Pairs

FOUR = ("iid", "syn00", "syn55", "syn11")
FIGURES: dict[str, tuple[tuple[str, str], ...]] = {
    **CURVES,
    "Figure 3": (*(("published", name) for name in FOUR), *(("output", name) for name in FOUR)),
    "Figure 4": tuple(("objective", name) for name in FOUR),
    "Figure 7": (("figure7-output", "figure7"), ("figure7-objective", "figure7")),
    "Figure 8": (("figure8-output", "figure8"),),
    "Figure 9": (("figure9-output", "figure9"), ("figure9-objective", "figure9")),
}
"""Figure -> its panels as (part, data)."""
WORDS = {
    "table1": "", "table3": ", 30% stragglers", "letters": "", "tweets": "", "published": ", as published",
    "output": ", strongly convex", "objective": ", objective", "figure7-output": ", output",
    "figure7-objective": ", objective", "figure8-output": ", output", "figure9-output": ", output",
    "figure9-objective": ", objective",
}  # fmt: skip


def drawn(parts: dict[str, Pairs], folder: Path) -> list[str]:
    """A section for each figure that was run."""
    found = []
    for figure, panels in sorted(FIGURES.items()):
        there = [(part, data) for part, data in panels if any(name == data for name, _ in parts.get(part, {}))]
        if there:
            name = f"upcycled-{figure.lower().replace(' ', '')}.svg"
            draw(parts, there, folder / name)
            found.append(f"### {figure}\n\n![test loss]({name})")
    return found


def draw(parts: dict[str, Pairs], panels: list[tuple[str, str]], path: Path) -> None:
    """Test loss over iterations; an upcycled round is two where its rounds were halved, one at equal time."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "upcycled"
    from matplotlib import pyplot

    wide = min(4, len(panels))
    high = -(-len(panels) // wide)
    canvas, axes = pyplot.subplots(high, wide, figsize=(4 * wide, 3.2 * high), squeeze=False)
    for axis, (part, data) in zip(axes.ravel(), panels, strict=False):
        pairs = {algorithm: pair for (name, algorithm), pair in parts[part].items() if name == data}
        for number, (algorithm, pair) in enumerate(pairs.items()):
            show(axis, pair, algorithm, f"C{number}")
        axis.set(title=DATA[data] + WORDS[part], xlabel="rounds" if part in EQUAL else "iterations")
        axis.set_yscale("log" if part in EQUAL else "linear")
        axis.legend(fontsize=7)
    for axis in axes.ravel()[len(panels) :]:
        axis.axis("off")
    axes[0][0].set_ylabel("test loss")
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


EQUAL = ("table1", "table3", "letters", "tweets")
"""Parts that compare at equal rounds."""


def show(axis: Any, pair: dict[bool, list[dict[str, Any]]], algorithm: str, colour: str) -> None:
    """Dashed: plain; solid: upcycled."""
    part = pair[True][0]["part"]
    for up, style in ((False, "--"), (True, "-")):
        curves = [run["curve"] for run in pair[up]]
        losses = [fmean(curve[place][1] for curve in curves) for place in range(len(curves[0]))]
        factor = 2 if up and part not in EQUAL else 1
        times = [factor * point[0] for point in curves[0]]
        axis.plot(times, losses, style, color=colour, label=algorithm if up else None)
