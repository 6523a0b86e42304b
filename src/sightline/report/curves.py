"""Accuracy, loss and epsilon over rounds, and accuracy against epsilon."""

import math
from typing import Any

from sightline.events import Unit
from sightline.report.chart import Axis, Chart, Line, line_chart
from sightline.report.numbers import NONE, count, number, percent, short, upper
from sightline.report.run import Run
from sightline.report.scale import Values
from sightline.report.section import Content, Section

ROUNDS = Axis("round", tick=lambda value: f"{value:,g}", value=lambda value: f"round {value:,g}", whole=True)
ACCURACY = Axis("accuracy", tick=lambda value: f"{100 * value:.4g} %", value=percent, floor=0.0, ceiling=1.0)
LOSS = Axis("loss", tick=short, value=number)
EPSILON = Axis("epsilon", tick=short, value=upper, floor=0.0, from_zero=True)
SPENT = Axis("epsilon spent", tick=short, value=lambda value: f"epsilon {upper(value)}", floor=0.0)

ROWS = 60
"""At most so many rounds are printed as a table."""


def content(run: Run) -> Content | None:
    """The charts that the run has numbers for, and the numbers themselves."""
    if not run.rounds:
        return None
    charts = [accuracy(run), loss(run), epsilon(run), accuracy_for_epsilon(run)]
    return {"charts": [chart for chart in charts if chart], "silence": silence(run), "table": table(run)}


SECTION = Section("curves", "Over the rounds", content)


def accuracy(run: Run) -> Chart | None:
    """Test set, mean client, 10th percentile of the clients, and the worst."""
    names = {
        "test set": "test_accuracy",
        "mean client": "client_accuracy_mean",
        "10th percentile": "client_accuracy_decile",
        "worst client": "client_accuracy_worst",
    }
    found = {name: run.series(key) for name, key in names.items()}
    lines = [Line(name, values) for name, values in found.items() if any(value is not None for value in values)]
    return line_chart("accuracy", "Accuracy", _numbers(run), lines, x_axis=ROUNDS, y_axis=ACCURACY)


def loss(run: Run) -> Chart | None:
    """Test set and mean client."""
    lines = [Line("test set", run.series("test_loss")), Line("mean client", run.series("client_loss_mean"))]
    return line_chart("loss", "Loss", _numbers(run), lines, x_axis=ROUNDS, y_axis=LOSS)


def epsilon(run: Run) -> Chart | None:
    """What each kind of observer could have learned by then."""
    if run.unit is Unit.NONE:
        return None
    lines = [Line(kind, values) for kind, values in epsilons(run).items()]
    target = run.fact("target_epsilon")
    mark = (float(target), f"target {short(target)}") if target else None
    title = f"Epsilon by observer, at δ\u00a0=\u00a0{short(run.delta)}" if run.delta else "Epsilon by observer"
    return line_chart("epsilon", title, _numbers(run), lines, x_axis=ROUNDS, y_axis=EPSILON, mark=mark)


def accuracy_for_epsilon(run: Run) -> Chart | None:
    """What the privacy bought: test accuracy against the worst epsilon so far."""
    if run.unit is Unit.NONE:
        return None
    pairs = [(spent, reached) for spent, reached in zip(worst(run), run.series("test_accuracy"), strict=True)]
    pairs = [(spent, reached) for spent, reached in pairs if spent is not None and reached is not None]
    if len(pairs) < 2:
        return None
    xs, ys = [float(spent or 0.0) for spent, _ in pairs], [reached for _, reached in pairs]
    title = "Accuracy for the epsilon spent"
    return line_chart("price", title, xs, [Line("test set", ys)], x_axis=SPENT, y_axis=ACCURACY)


def epsilons(run: Run) -> dict[str, Values]:
    """Epsilon over rounds by kind of observer; None where it is infinite or unknown."""
    kinds = dict.fromkeys(kind for row in run.rounds for kind in row.get("epsilon") or {})
    return {kind: [(row.get("epsilon") or {}).get(kind) for row in run.rounds] for kind in kinds}


def worst(run: Run) -> Values:
    """The worst epsilon of each round; None as soon as one observer's is infinite."""
    found: list[float | None] = []
    for row in run.rounds:
        values = list((row.get("epsilon") or {}).values())
        found.append(max(values) if values and None not in values else None)
    return found


def silence(run: Run) -> str:
    """Why there is no curve of epsilon against somebody."""
    if run.unit is Unit.NONE:
        return "There is no curve of epsilon: without noise there is no guarantee to draw."
    without = [kind for kind, value in run.spent.items() if math.isinf(value)]
    return f"No guarantee, hence no curve, against: {', '.join(without)}." if without else ""


def table(run: Run) -> dict[str, Any]:
    """The evaluated rounds as rows, evenly thinned when there are many."""
    rows, spent = run.rounds, worst(run)
    shown = [place for place, row in enumerate(rows) if row.get("test_accuracy") is not None] or list(range(len(rows)))
    places = [*shown[: -1 : -(-len(shown) // ROWS)], shown[-1]]
    private = run.unit is not Unit.NONE
    header = ["Round", "Test accuracy", "Test loss", "Mean client", "Worst client", *(["Epsilon"] if private else [])]
    body = [_cells(rows[place], spent[place], private) for place in places]
    return {"header": header, "rows": body, "all": len(body) == len(rows), "count": count(len(rows))}


def _cells(row: dict[str, Any], spent: float | None, private: bool) -> list[str]:
    known = bool(row.get("epsilon"))
    cells = [count(row["round"]), percent(row.get("test_accuracy")), number(row.get("test_loss"))]
    cells += [percent(row.get("client_accuracy_mean")), percent(row.get("client_accuracy_worst"))]
    return cells + ([upper(spent) if known else NONE] if private else [])


def _numbers(run: Run) -> list[float]:
    return [float(row["round"]) for row in run.rounds]
