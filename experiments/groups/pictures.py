"""Loss and accuracy over epochs, as Figures 3 and 5 have them."""

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.groups.cells import NOISE, PERIODS, SIZES, STRUCTURES

Row = dict[str, Any]
PANELS = {"structures": STRUCTURES, "small groups": SIZES, "periods": PERIODS, "noise": NOISE}
METRICS = {"client_train_loss_mean": "mean training loss", "test_accuracy": "mean test accuracy"}


def draw(rows: list[Row], path: Path) -> str:
    """Draw beside the page, and return the lines that show it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "groups"
    from matplotlib import pyplot

    sources = list(dict.fromkeys(row["source"] for row in rows))
    canvas, axes = pyplot.subplots(2 * len(sources), 4, figsize=(16, 6 * len(sources)), squeeze=False, sharex=True)
    for place, (source, metric) in enumerate((source, metric) for source in sources for metric in METRICS):
        for axis, (title, cells) in zip(axes[place], PANELS.items(), strict=True):
            for number, cell in enumerate(cells):
                same = [r for r in rows if (r["source"], r["name"], r["private"]) == (source, cell.name, True)]
                if same:
                    values = [fmean(v) for v in zip(*(row[metric] for row in same), strict=True)]
                    axis.plot(same[0]["epochs"], values, "-o", ms=3, color=f"C{number}", label=cell.name)
            axis.set(title=f"{source}: {title}", ylabel=METRICS[metric] if title == "structures" else None)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7) if axis.lines else None
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return f"![losses and accuracies]({path.name})\n\nOver epochs, with noise, mean over seeds (figures 3 and 5)."
