"""What adaptive control decided before every round, and by which weights."""

from sightline.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.report.curves import ROUNDS
from sightline.report.numbers import format_number, format_short
from sightline.report.run import RunView
from sightline.report.section import Content, Section

STEPS = Axis("local steps", tick=format_short, value=lambda v: f"{format_short(v)} steps", from_zero=True, whole=True)
DEVICES = Axis("devices", tick=format_short, value=lambda v: f"{format_short(v)} devices", from_zero=True, whole=True)
SIZE = Axis("step size", tick=format_short, value=format_number, floor=0.0, from_zero=True)
TERM = Axis("share of the objective", tick=format_short, value=format_number, floor=0.0, from_zero=True)


def control_content(run: RunView) -> Content | None:
    """The decisions of a controlled run; None for every other run."""
    if not run.fact("control") or not run.rounds:
        return None
    weights = run.fact("control")
    charts = [
        _decision_chart(run, "tau", "Length of the interval", STEPS, {"local steps": "tau"}),
        _decision_chart(run, "devices", "Devices of a subnet that take part, in the mean", DEVICES,
               {"trusted edge": "devices_trusted", "untrusted edge": "devices_untrusted"}),
        _decision_chart(run, "step-size", "Step size", SIZE, {"gamma": "step_size"}),
        _decision_chart(run, "terms", "What the decision weighed", TERM,
               {"energy": "energy_term", "delay": "delay_term", "accuracy": "accuracy_term"}),
    ]  # fmt: skip
    return {
        "weights": ", ".join(
            f"{name} {format_short(float(weights.get(name, 1)))}" for name in ("energy", "delay", "accuracy")
        ),
        "tau_max": weights.get("tau_max", 40),
        "rounds": len(run.rounds),
        "planned": run.fact("rounds_planned"),
        "charts": [chart for chart in charts if chart],
    }


CONTROL_SECTION = Section("control", "Decisions of the control", control_content)


def _decision_chart(run: RunView, key: str, title: str, axis: Axis, names: dict[str, str]) -> Chart | None:
    rounds = [float(row["round"]) for row in run.rounds]
    known = {name: [value or None for value in run.series(metric)] for name, metric in names.items()}
    lines = [ChartLine(name, values) for name, values in known.items()]
    return line_chart(f"control-{key}", title, rounds, lines, x_axis=ROUNDS, y_axis=axis)
