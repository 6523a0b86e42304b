"""The picture of `sightline groups`: a heatmap of every pair, and the mean over workers as epochs go by."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import invalid
from sightline.ledger.group_privacy import Answer, spread_over

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 1500
"""More workers than these are drawn by class."""
POINTS = 40
"""Epochs at which the curve is computed."""


def draw_groups(answer: Answer, path: Path) -> None:
    """Write a PNG with the heatmap and the curve."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        invalid("--plot", path, "figures need matplotlib", 'pip install "sightline[figures]"')
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    draw_heatmap(left, answer)
    draw_curve(right, answer)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        invalid("--plot", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def draw_heatmap(axes: "Axes", answer: Answer, *, top: float | None = None) -> Any:
    """Epsilon of subject (row) against observer (column); white where the threat model says nothing."""
    by_worker = answer.workers <= MOST_DRAWN
    values = spread_over(answer.matrix, answer.pairs.class_of).copy() if by_worker else answer.matrix
    if by_worker:
        np.fill_diagonal(values, np.nan)
    image = axes.imshow(values, cmap="magma", vmin=0.0, vmax=top, interpolation="nearest")
    what = "worker" if by_worker else "class of workers"
    axes.set(xlabel=f"observer ({what})", ylabel=f"subject ({what})", title=plot_title(answer))
    axes.figure.colorbar(image, ax=axes, label=f"epsilon at delta = {answer.question.delta:g}", shrink=0.9)
    return image


def plot_title(answer: Answer) -> str:
    """One line that says what is drawn."""
    q = answer.question
    name = "DP-OGL+" if q.plus else "DP-OGL"
    structure = q.structure if not q.structure.endswith(".json") else Path(q.structure).stem
    return f"{name}, {structure}, M = {answer.groups}, S = {q.period}, T = {q.epochs}"


def draw_curve(axes: "Axes", answer: Answer) -> None:
    """Mean over workers of the worst observer's epsilon, with one standard deviation, epoch by epoch."""
    epochs = sampled_epochs(answer.question.epochs)
    rows = [answer.at(int(epoch)).worst for epoch in epochs]
    mean, deviation = mean_and_deviation(rows)
    axes.plot(epochs, mean, color="#b5367a", label="mean over workers")
    axes.fill_between(epochs, mean - deviation, mean + deviation, color="#b5367a", alpha=0.25, label="± one sd")
    axes.plot(
        epochs, [float(np.nanmax(row, initial=0.0)) for row in rows], color="#51127c", lw=1, ls="--", label="largest"
    )
    axes.set(xlabel="epoch t", ylabel="epsilon of the worst observer", title=f"threat: {answer.question.threat}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def sampled_epochs(epochs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """1 .. T, thinned out."""
    return np.unique(np.linspace(1, epochs, min(POINTS, epochs)).round().astype(np.int64))


def mean_and_deviation(rows: list[Any]) -> tuple[Any, Any]:
    """Over the workers that have an observer; zero where nobody has one."""
    held = [row[~np.isnan(row)] for row in rows]
    mean = np.array([some.mean() if len(some) else 0.0 for some in held])
    return mean, np.array([some.std() if len(some) else 0.0 for some in held])
