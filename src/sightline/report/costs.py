"""Energy and delay of the uploads, over the rounds and against what they bought."""

from itertools import accumulate

from sightline.report.chart import Axis, Chart, Line, line_chart
from sightline.report.curves import ACCURACY, ROUNDS
from sightline.report.numbers import number, short
from sightline.report.run import Run
from sightline.report.section import Content, Section

KINDS = {
    "energy_joule": ("Energy", "joule", Axis("joule", tick=short, value=lambda v: f"{number(v)} J", from_zero=True)),
    "delay_seconds": (
        "Delay",
        "seconds",
        Axis("seconds", tick=short, value=lambda v: f"{number(v)} s", from_zero=True),
    ),
}


def content(run: Run) -> Content | None:
    """Totals, means and curves of a run with a resource model; None for every other run."""
    if not run.fact("resources") or not run.rounds:
        return None
    rows = [
        (name, f"{number(run.total(key))} {unit}", f"{number(run.total(key) / len(run.rounds))} {unit}")
        for key, (name, unit, _) in KINDS.items()
    ]
    charts = [_each(run, key) for key in KINDS] + [_bought(run, key) for key in KINDS]
    return {"model": run.fact("resources")["model"], "rows": rows, "charts": [chart for chart in charts if chart]}


SECTION = Section("costs", "Energy and delay", content)


def _each(run: Run, key: str) -> Chart | None:
    name, _unit, axis = KINDS[key]
    numbers = [float(row["round"]) for row in run.rounds]
    return line_chart(key, f"{name} of a round", numbers, [Line(name, run.series(key))], x_axis=ROUNDS, y_axis=axis)


def _bought(run: Run, key: str) -> Chart | None:
    """Accuracy against all that was spent until then."""
    name, unit, _ = KINDS[key]
    spent = list(accumulate(value or 0.0 for value in run.series(key)))
    pairs = [
        (cost, reached) for cost, reached in zip(spent, run.series("test_accuracy"), strict=True) if reached is not None
    ]
    if len(pairs) < 2:
        return None
    across = Axis(f"{unit} so far", tick=short, value=lambda v: f"{number(v)} {unit}", floor=0.0)
    line = Line("test set", [reached for _, reached in pairs])
    title = f"Accuracy for the {name.lower()} spent"
    return line_chart(f"{key}-bought", title, [cost for cost, _ in pairs], [line], x_axis=across, y_axis=ACCURACY)
