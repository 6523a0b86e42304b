"""The figure: accuracy over rounds, one panel for each data set and budget."""

from pathlib import Path
from typing import Any

from papers.correlated.runs import CLIENTS, EPSILONS, NO_NOISE, Row

TITLES = {"mnist": "MNIST, MLP 784-32-10", "emnist_letters": "EMNIST letters, linear"}
LOOKS = {
    "correlated": ("#c1440e", "-", "correlated, public turns"),
    "balanced": ("#2a7f62", "--", "balanced, hidden"),
    "poisson": ("#1f6fb4", "--", "Poisson, hidden"),
    "independent": ("#777777", "-", "independent, public turns"),
    NO_NOISE: ("#bbbbbb", ":", "no noise"),
}


def draw_figure(arms: list[Row], path: Path) -> None:
    """Draw the arms that were run into an SVG that is the same whenever it is drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "correlated", "svg.fonttype": "none"}
    from matplotlib import pyplot

    rows = [data for data in CLIENTS if any(arm["data"] == data for arm in arms)]
    columns = [epsilon for epsilon in EPSILONS if any(arm["epsilon"] == epsilon for arm in arms)]
    size = (5 * len(columns), 3.6 * len(rows))
    canvas, panels = pyplot.subplots(len(rows), len(columns), figsize=size, squeeze=False, constrained_layout=True)
    for line, data in zip(panels, rows, strict=True):
        for panel, epsilon in zip(line, columns, strict=True):
            mine = [arm for arm in arms if arm["data"] == data and arm["epsilon"] in (epsilon, None)]
            draw_panel(panel, mine, f"{TITLES[data]}, epsilon {epsilon:g}")
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


def draw_panel(panel: Any, arms: list[Row], title: str) -> None:
    """Means as lines, the seeds' last accuracies as dots."""
    for name, (colour, dashes, label) in LOOKS.items():
        for arm in (one for one in arms if one["arm"] == name):
            percent = [100 * value for value in arm["mean_curve"]]
            panel.plot(arm["rounds"], percent, dashes, color=colour, label=f"{label}  {percent[-1]:.1f} %")
            last = arm["rounds"][-1]
            panel.plot([last] * len(arm["seeds"]), [100 * seed for seed in arm["seeds"]], ".", color=colour, ms=5)
    panel.set(title=title, xlabel="round", ylabel="test accuracy, %")
    panel.grid(alpha=0.2)
    panel.legend(fontsize=8, loc="lower right")
