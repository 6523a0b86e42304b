"""The pictures of the page."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.clustered.tables import ALGORITHMS, NAMES, Row, known_fits, of_part

COLOURS = {"principal": "C1", "spanning": "C0"}


def drawn(rows: list[Row], folder: Path) -> str:
    """All pictures that the results allow, as Markdown."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "clustered"
    pictures = []
    if of_part(rows, "first"):
        words = "MSS over the number of clusters at epsilon = 3, one line per seed (figure 10)."
        pictures.append(_saved(_curves(rows), folder / "clustered-count.svg", words))
        words = "Fits with M = 4 known, also at 3 to 400 times the noise: MSS and whether they are right (figure 13)."
        pictures.append(_saved(_confidence(rows), folder / "clustered-mss.svg", words))
    if of_part(rows, "accuracy"):
        words = "Accuracy of all clients and of the minority, mean over seeds (figures 11 and 12)."
        pictures.append(_saved(_accuracy(rows), folder / "clustered-accuracy.svg", words))
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


def _accuracy(rows: list[Row]) -> Any:
    from matplotlib import pyplot

    runs = [row for row in of_part(rows, "accuracy") if row["partition"] == "rotation" and not row["auto"]]
    canvas, axes = pyplot.subplots(1, 2, figsize=(10.5, 3.2), sharey=True)
    epsilons = sorted({row["epsilon"] for row in runs})
    for axis, (name, title) in zip(axes, (("accuracy", "all clients"), ("minority_accuracy", "minority")), strict=True):
        for place, (algorithm, label) in enumerate(ALGORITHMS.items()):
            for shift, epsilon in enumerate(epsilons):
                own = [row[name] for row in runs if (row["algorithm"], row["epsilon"]) == (algorithm, epsilon)]
                if own:
                    axis.bar(
                        shift + 0.13 * place, 100 * fmean(own), 0.12, color=f"C{place}", label=None if shift else label
                    )
        axis.set(title=title, xticks=[s + 0.33 for s in range(len(epsilons))])
        axis.set_xticklabels([f"epsilon {epsilon:g}" for epsilon in epsilons])
    axes[0].set_ylabel("accuracy, %")
    axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return canvas
