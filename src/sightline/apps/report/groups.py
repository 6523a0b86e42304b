"""Overlapping groups on the page and as a picture: who is with whom, and what each pair may learn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.apps.report.matrix import draw_heat
from sightline.apps.report.numbers import format_plural, format_upper
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Section
from sightline.errors import invalid
from sightline.events import Unit
from sightline.ledger import LedgerPairs, ledger_pairs, write_parties
from sightline.ledger.group_privacy import Answer, spread_over
from sightline.ledger.pairs import Route, group_alike, next_hops, trace_routes
from sightline.topology import client_name

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


MOST = 48
"""Up to so many different memberships every cell tells by which paths releases got through."""
MAPPED = 200
"""More different memberships than these are not drawn."""
SIZE = 480
"""Height and width of the drawing, in its own units."""


@dataclass(frozen=True)
class Square:
    """One cell: where it lies, how dark it is, and what it says."""

    x: float
    y: float
    side: float
    shade: str
    words: str


def groups_content(run: RunView) -> Content | None:
    """The heatmap of a run on overlapping groups; None for every other run."""
    if run.fact("topology") != "groups" or run.unit is Unit.NONE or not len(run.ledger):
        return None
    names = [client_name(n) for n in range(int(run.fact("clients", 0)))]
    number = len(group_alike(run.ledger, names))
    about: Content = {"few": number <= MOST, "classes": format_plural(number, "different membership"), "map": None}
    if not number or number > MAPPED:
        return about | {"few": False}
    pairs = ledger_pairs(run.ledger, names)
    epsilons = [[_pair_epsilon(run, pairs, n, i) for i in range(len(row))] for n, row in enumerate(pairs.compositions)]
    if number > MOST:
        words = [write_parties(frozenset(some)) for some in pairs.classes]
        return about | {"map": draw_heat(epsilons, words, words)}
    top = max((value for row in epsilons for value in row if value is not None and math.isfinite(value)), default=0.0)
    squares = _draw_squares(run, pairs, epsilons, top)
    return about | {
        "size": SIZE,
        "squares": squares,
        "across": len(pairs.classes),
        "data": {"words": [square.words for square in squares], "across": len(pairs.classes)},
        "least": "0",
        "most": format_upper(top),
        "worst": max(squares, key=lambda square: float(square.shade)).words,
    }


SECTION = Section("groups", "Every pair of workers", groups_content)


def _pair_epsilon(run: RunView, pairs: LedgerPairs, subject: int, observer: int) -> float | None:
    composed = pairs.compositions[subject][observer]
    return None if composed is None else run.epsilon_of(frozenset(composed.items()))


def _draw_squares(
    run: RunView, pairs: LedgerPairs, epsilons: Sequence[Sequence[float | None]], top: float
) -> list[Square]:
    side = SIZE / len(pairs.classes)
    found = []
    hops = [next_hops(run.ledger, names[0]) for names in pairs.classes]
    for n, row in enumerate(epsilons):
        for i, value in enumerate(row):
            subject = next((name for name in pairs.classes[n] if name != pairs.classes[i][0]), "")
            ways = trace_routes(run.ledger, subject, hops[i]) if subject else []
            words = _pair_words(pairs.classes[n], pairs.classes[i], value, ways)
            shade = 0.0 if value is None else min(1.0, value / top) if top else 0.0
            found.append(Square(round(i * side, 2), round(n * side, 2), round(side, 2), f"{shade:.3f}", words))
    return found


def _pair_words(subjects: Sequence[str], observers: Sequence[str], epsilon: float | None, ways: Sequence[Route]) -> str:
    who, whom = write_parties(frozenset(observers)), write_parties(frozenset(subjects))
    if epsilon is None:
        return f"{whom}: nobody observes itself."
    if not epsilon:
        return f"Of {whom}, {who} learned nothing: no release got through."
    counted = "; ".join(
        f"{format_plural(way.releases, 'release')} of {way.source} up to round {way.last}"
        + (" seen directly" if len(way.path) == 1 else f" by way of {' → '.join(way.path)}")
        for way in ways
    )
    return f"Of {whom}, seen by {who}: epsilon {format_upper(epsilon)}. {counted}."
