"""Energy and delay of the uploads, over the rounds and against what they bought."""

from itertools import accumulate

from sightline.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.report.curves import ACCURACY, ROUNDS
from sightline.report.numbers import format_number, format_short
from sightline.report.run import RunView
from sightline.report.section import Content, Section

KINDS = {
    "energy_joule": (
        "Energy",
        "joule",
        Axis("joule", tick=format_short, value=lambda v: f"{format_number(v)} J", from_zero=True),
    ),
    "delay_seconds": (
        "Delay",
        "seconds",
        Axis("seconds", tick=format_short, value=lambda v: f"{format_number(v)} s", from_zero=True),
    ),
}


def costs_content(run: RunView) -> Content | None:
    """Totals, means and curves of a run with a resource model; None for every other run."""
    if not run.fact("resources") or not run.rounds:
        return None
    rows = [
        (name, f"{format_number(run.total(key))} {unit}", f"{format_number(run.total(key) / len(run.rounds))} {unit}")
        for key, (name, unit, _) in KINDS.items()
    ]
    charts = [_each_round(run, key) for key in KINDS] + [_accuracy_bought(run, key) for key in KINDS]
    return {"model": run.fact("resources")["model"], "rows": rows, "charts": [chart for chart in charts if chart]}


COSTS_SECTION = Section("costs", "Energy and delay", costs_content)


def _each_round(run: RunView, key: str) -> Chart | None:
    name, _unit, axis = KINDS[key]
    numbers = [float(row["round"]) for row in run.rounds]
    return line_chart(
        key, f"{name} of a round", numbers, [ChartLine(name, run.series(key))], x_axis=ROUNDS, y_axis=axis
    )


def _accuracy_bought(run: RunView, key: str) -> Chart | None:
    """Accuracy against all that was spent until then."""
    name, unit, _ = KINDS[key]
    spent = list(accumulate(value or 0.0 for value in run.series(key)))
    pairs = [
        (cost, reached) for cost, reached in zip(spent, run.series("test_accuracy"), strict=True) if reached is not None
    ]
    if len(pairs) < 2:
        return None
    across = Axis(f"{unit} so far", tick=format_short, value=lambda v: f"{format_number(v)} {unit}", floor=0.0)
    line = ChartLine("test set", [reached for _, reached in pairs])
    title = f"Accuracy for the {name.lower()} spent"
    return line_chart(f"{key}-bought", title, [cost for cost, _ in pairs], [line], x_axis=across, y_axis=ACCURACY)
