"""Every fit of the first rounds as curves and points, beside the pictures of the findings."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from papers.clustered.tables import NAMES, Row, known_fits, of_part

COLOURS = {"principal": "C1", "spanning": "C0"}


def draw_fits(rows: list[Row], folder: Path) -> str:
    """All pictures that the results allow, as Markdown."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "clustered", "svg.fonttype": "none"}
    pictures = []
    if of_part(rows, "first"):
        words = "MSS over the number of clusters at epsilon = 3, one line per seed (figure 10)."
        pictures.append(_saved(_curves(rows), folder / "clustered-count.svg", words))
        words = "Fits with M = 4 known, also at 3 to 400 times the noise: MSS and whether they are right (figure 13)."
        pictures.append(_saved(_confidence(rows), folder / "clustered-mss.svg", words))
    return "\n\n".join(pictures)


def _saved(canvas: Any, path: Path, words: str) -> str:
    from matplotlib import pyplot

    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return f"![{words}]({path.name})\n\n{words}"


def _curves(rows: list[Row]) -> Any:
    from matplotlib import pyplot

    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in of_part(rows, "first"):
        groups[row["source"], row["partition"]].append(row)
    canvas, axes = pyplot.subplots(1, len(groups), figsize=(3.1 * len(groups), 2.9), squeeze=False)
    for axis, ((source, partition), some) in zip(axes[0], groups.items(), strict=True):
        for points, colour in COLOURS.items():
            curves = [c["curve"] for row in some for c in row["cells"] if (c["epsilon"], c["points"]) == (3, points)]
            for place, curve in enumerate(curves):
                label = points if place == 0 else None
                axis.plot([int(m) for m in curve], list(curve.values()), "o-", ms=3, lw=1, color=colour, label=label)
        axis.axvline(4, color="grey", lw=0.7, ls=":")
        axis.set(title=f"{NAMES[source]}, {partition.replace('_', ' ')}", xlabel="clusters", yscale="log")
    axes[0][0].set_ylabel("MSS")
    axes[0][0].legend(fontsize=8)
    return canvas


def _confidence(rows: list[Row]) -> Any:
    from matplotlib import pyplot

    canvas, axis = pyplot.subplots(figsize=(6.4, 2.2))
    for points, colour in COLOURS.items():
        fits = [fit for fit in known_fits(rows) if fit["points"] == points]
        height = [fit["known_right"] + (0.08 if points == "principal" else -0.08) for fit in fits]
        axis.plot([fit["mss"] for fit in fits], height, "o", ms=4, alpha=0.5, color=colour, label=points)
    axis.axvline(2, color="grey", lw=0.7, ls=":")
    axis.set(xlabel="MSS", xscale="log", yticks=[0, 1], yticklabels=["wrong", "right"], ylim=(-0.4, 1.4))
    axis.legend(fontsize=8)
    return canvas
