"""Loss and accuracy over epochs, as Figures 3 and 5 have them."""

from pathlib import Path
from statistics import fmean
from typing import Any

from papers.groups.accuracies import REGIME_WORDS
from papers.groups.cells import NOISE, PERIODS, SIZES, STRUCTURES

Row = dict[str, Any]
PANELS = {"structures": STRUCTURES, "small groups": SIZES, "periods": PERIODS, "noise": NOISE}
METRICS = {"client_train_loss_mean": "mean training loss", "test_accuracy": "mean test accuracy"}


def draw_curves(rows: list[Row], path: Path) -> str:
    """Draw beside the page, and return the lines that show it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "groups", "svg.fonttype": "none"}
    from matplotlib import pyplot

    found = list(dict.fromkeys((row["source"], row["regime"]) for row in rows if row["regime"] in REGIME_WORDS))
    canvas, axes = pyplot.subplots(2 * len(found), 4, figsize=(16, 5.4 * len(found)), squeeze=False)
    places = [(source, regime, metric) for source, regime in found for metric in METRICS]
    for own, (source, regime, metric) in zip(axes, places, strict=True):
        for axis, (title, cells) in zip(own, PANELS.items(), strict=True):
            for number, cell in enumerate(cells):
                wanted = (source, regime, cell.name, True)
                same = [r for r in rows if (r["source"], r["regime"], r["name"], r["private"]) == wanted]
                if same:
                    values = [fmean(v) for v in zip(*(row[metric] for row in same), strict=True)]
                    axis.plot(same[0]["epochs"], values, "-o", ms=3, color=f"C{number}", label=cell.name)
            axis.set(title=f"{source}, {REGIME_WORDS[regime]}: {title}")
            axis.set_ylabel(METRICS[metric] if title == "structures" else "")
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7) if axis.lines else axis.set_visible(False)
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return f"![losses and accuracies]({path.name})\n\nOver epochs, with noise, mean over seeds (Figures 3 and 5)."
