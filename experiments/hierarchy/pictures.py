"""The figures of the page: accuracy over intervals, accuracy for energy, and what control decided."""

from pathlib import Path
from typing import Any

Row = dict[str, Any]
CURVES = {"HFL": "without privacy", "p=1": "p_c = 1", "p=0.5": "p_c = 0.5", "p=0": "p_c = 0 (HFL-DP)"}

COMPARED = {
    ("fig5", "control"): "with control",
    ("fig4", "p=0.5"): "H2FDP",
    ("fig4", "p=0"): "HFL-DP",
    ("fig5", "PEDPFL"): "PEDPFL",
}


def draw(rows: list[Row], data: list[str], path: Path) -> str:
    """Draw beside the page, and return the lines that show it."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "hierarchy"
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(len(data), 3, figsize=(13, 3.6 * len(data)), squeeze=False)
    for line, name in zip(axes, data, strict=True):
        mine = [row for row in rows if row["data"] == name and row["seed"] == 0]
        accuracy_over_intervals(line[0], mine, name)
        accuracy_for_energy(line[1], mine)
        decisions(line[2], mine)
    canvas.tight_layout()
    picture = path.with_name("hierarchy.svg")
    canvas.savefig(picture, metadata={"Date": None})
    pyplot.close(canvas)
    return (
        f"![figures]({picture.name})\n\nLeft: figure 4. Middle: accuracy for the energy spent (figure 5). Right: what "
        "control decided, interval by interval. Seed 0."
    )


def accuracy_over_intervals(axis: Any, rows: list[Row], title: str) -> None:
    for name, label in CURVES.items():
        for row in rows:
            if (row["figure"], row["name"]) == ("fig4", name):
                axis.plot([p[0] for p in row["curve"]], [100 * p[1] for p in row["curve"]], label=label)
    axis.set(title=title, xlabel="interval", ylabel="test accuracy, %")
    axis.legend(fontsize=8)


def accuracy_for_energy(axis: Any, rows: list[Row]) -> None:
    for row in rows:
        label = COMPARED.get((row["figure"], row["name"]))
        if label:
            axis.plot([p[2] for p in row["curve"]], [100 * p[1] for p in row["curve"]], label=label)
    axis.set(xlabel="joule", ylabel="test accuracy, %")
    axis.legend(fontsize=8)


def decisions(axis: Any, rows: list[Row]) -> None:
    for row in rows:
        if (row["figure"], row["name"]) == ("fig5", "control") and row["control"]:
            chosen = row["control"]
            times = range(1, len(chosen["tau"]) + 1)
            axis.step(times, chosen["tau"], where="mid", label="tau")
            axis.step(times, chosen["devices_trusted"], where="mid", label="devices, trusted")
            axis.step(times, chosen["devices_untrusted"], where="mid", label="devices, untrusted")
            axis.legend(fontsize=8)
    axis.set(xlabel="interval", ylim=(0, None))
