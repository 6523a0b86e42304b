"""The report's curves: metric, loss and epsilon over rounds, the metric against epsilon, costs and decisions."""

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from sightline.apps.report.chart import Axis, Chart, ChartLine, Values, line_chart
from sightline.apps.report.guarantee import ALARMS, most_hits, power_words
from sightline.apps.report.run_view import CLASSES, Content, RunView, Section
from sightline.events import Unit
from sightline.formatting import (
    NONE,
    Metric,
    floats_as_bytes,
    format_count,
    format_duration,
    format_metric,
    format_number,
    format_percent,
    format_short,
    format_upper,
)
from sightline.topology.graph import NEIGHBOURS

ROUNDS = Axis("round", tick=lambda value: f"{value:,g}", value=lambda value: f"round {value:,g}", whole=True)
LOSS = Axis("loss", tick=format_short, value=format_number)
EPSILON = Axis("epsilon", tick=format_short, value=format_upper, floor=0.0, from_zero=True)
SPENT = Axis(
    "epsilon spent, the worst observer's",
    tick=format_short,
    value=lambda value: f"epsilon {format_upper(value)}",
    floor=0.0,
)

CLIP = Axis("clip norm", tick=format_short, value=format_number, floor=0.0, from_zero=True)

TICKS = 12
"""Up to this many distances are all named on the axis."""
STYLES = 6
"""Number of lines of a chart that look different."""
ROWS = 60
"""Limit of rounds printed as a table."""


def distance_words(hops: float) -> str:
    """Return a distance in a graph.

    >>> distance_words(1.0), distance_words(8.0)
    ('neighbours', '8 hops')
    """
    return NEIGHBOURS if hops == 1 else f"{hops:,g} hops"


def metric_axis(metric: Metric) -> Axis:
    """Return the axis of a metric: shares in percent from 0 to 1, anything else unbounded."""
    if metric.percent:
        return Axis(
            metric.title, tick=lambda value: f"{100 * value:.4g} %", value=format_percent, floor=0.0, ceiling=1.0
        )
    return Axis(metric.title, tick=format_short, value=format_number)


def curves_content(run: RunView) -> Content | None:
    """Return the charts for which the run has numbers, and the numbers themselves."""
    if not run.rounds:
        return None
    charts = [
        metric_chart(run, run.metric),
        *(metric_chart(run, one) for one in run.own_metrics),
        loss_chart(run),
        epsilon_chart(run),
        metric_for_epsilon(run),
        clip_norm_chart(run),
    ]
    return {"charts": [chart for chart in charts if chart], "silence": explain_silence(run), "table": rounds_table(run)}


CURVES_SECTION = Section("curves", "Over the rounds", curves_content)


def metric_chart(run: RunView, metric: Metric) -> Chart | None:
    """Return test set, mean client, the clients' decile at the worse end, and the worst client."""
    names = {
        "test set": metric.test_key,
        "mean client": metric.client_key("mean"),
        metric.decile_title: metric.client_key("decile"),
        "worst client": metric.client_key("worst"),
    }
    series = {name: run.series(key) for name, key in names.items()}
    lines = [ChartLine(name, values) for name, values in series.items() if any(value is not None for value in values)]
    axis = metric_axis(metric)
    return line_chart(metric.name, better_title(metric), _evaluated_rows(run), lines, x_axis=ROUNDS, y_axis=axis)


def better_title(metric: Metric) -> str:
    """Return a chart's title, with the direction if less is better."""
    return metric.heading if metric.higher else f"{metric.heading} (less is better)"


def loss_chart(run: RunView) -> Chart | None:
    """Return test set and mean client; None if the loss is the metric already."""
    if run.metric.name == "loss":
        return None
    lines = [ChartLine("test set", run.series("test_loss")), ChartLine("mean client", run.series("client_loss_mean"))]
    return line_chart("loss", "Loss", _evaluated_rows(run), lines, x_axis=ROUNDS, y_axis=LOSS)


def epsilon_chart(run: RunView) -> Chart | None:
    """Return what each kind of observer could have learned by each round."""
    if run.unit is Unit.NONE:
        return None
    lines = [ChartLine(kind, values) for kind, values in epsilons_by_observer(run).items()]
    # More lines than styles cannot be told apart: an even choice from the first to the last.
    if len(lines) > STYLES and run.fact("topology") == "graph":
        lines = [lines[round(index * (len(lines) - 1) / (STYLES - 1))] for index in range(STYLES)]
    target = run.fact("target_epsilon")
    mark = (float(target), f"target {format_short(target)}") if target else None
    title = f"Epsilon per {run.who} by observer"
    title += f", at δ\u00a0=\u00a0{format_short(run.delta)}" if run.delta else ""
    return line_chart("epsilon", title, _evaluated_rows(run), lines, x_axis=ROUNDS, y_axis=EPSILON, mark=mark)


FINDS = Axis("share of true cases found", tick=lambda value: f"{100 * value:.4g} %", value=power_words, floor=0.0,
             ceiling=1.0, from_zero=True)  # fmt: skip


def distance_content(run: RunView) -> Content | None:
    """Return epsilon, and what the best attack finds, by distance in a graph; None for every other run."""
    kinds = list(run.spent)
    if run.fact("topology") != "graph" or run.unit is Unit.NONE or not len(run.ledger) or len(kinds) < 2:
        return None
    # A graph is connected, and its kinds of observers are its distances in order.
    hops = [float(distance) for distance in range(1, len(kinds) + 1)]
    ticks = tuple((hop, f"{hop:g}") for hop in hops) if len(hops) <= TICKS else ()
    axis = Axis("hops between subject and observer", tick=format_short, value=distance_words, whole=True, ticks=ticks)
    observers = {line.observer for lines in run.lines.values() for line in lines}
    reached = {name: frozenset(run.ledger.view(name).by_subject()) for name in observers}
    worst, least = [run.spent[kind] for kind in kinds], [_least_epsilon(run, kind, reached) for kind in kinds]
    # The round's own number and the ledger's may differ in the last digits.
    alike = all(
        few is not None and math.isclose(few, most, rel_tol=1e-6) for few, most in zip(least, worst, strict=True)
    )
    series: dict[str, Values] = {"every pair" if alike else "worst pair": worst}
    series |= {} if alike else {"best protected pair": least}
    finds = {
        f"at {100 * alarms:g} % false alarms": [most_hits(run, kind, alarms) for kind in kinds] for alarms in ALARMS
    }
    title = f"Epsilon per {run.who}" + (f" at δ\u00a0=\u00a0{format_short(run.delta)}" if run.delta else "")
    charts = [
        line_chart("distance", title, hops, _marked_lines(series, format_upper), x_axis=axis, y_axis=EPSILON),
        line_chart(
            "distance-attack", "What the best attack finds of the true cases", hops, _marked_lines(finds, power_words),
            x_axis=axis, y_axis=FINDS,
        ),
    ]  # fmt: skip
    return {"who": run.who, "charts": [chart for chart in charts if chart]}


def _marked_lines(series: Mapping[str, Values], show: Callable[[float], str]) -> list[ChartLine]:
    """Return a line with a dot at every distance; its legend has the first and the last value."""
    known = {name: [value for value in values if value is not None] for name, values in series.items()}
    ends = {name: (show(values[0]), show(values[-1])) for name, values in known.items() if values}
    return [
        ChartLine(name, series[name], final=first if first == last else f"{first} to {last}", marks=True)
        for name, (first, last) in ends.items()
    ]


DISTANCE_SECTION = Section("distance", "Epsilon by distance", distance_content)


def _least_epsilon(run: RunView, kind: str, reached: Mapping[str, frozenset[str]]) -> float | None:
    """Return the least epsilon at one distance; None if there are too many different ones to account for a page."""
    seen, everyone = run.compositions_seen_by(kind), frozenset().union(*reached.values())
    if len(seen) > CLASSES:
        return None
    # A subject of whom nothing reached the observer has no composition.
    if any(everyone - line.exempt - reached[line.observer] for line in run.lines.get(kind, ())):
        return 0.0
    return min((run.epsilon_of(composed) for composed in seen), default=0.0)


def metric_for_epsilon(run: RunView) -> Chart | None:
    """Return the metric on the test set against the worst epsilon so far."""
    if run.unit is Unit.NONE:
        return None
    values = run.series(run.metric.test_key)
    pairs = [(spent, reached) for spent, reached in zip(worst_epsilons(run), values, strict=True)]
    # Rounds without an evaluation or without a stated epsilon have no point.
    pairs = [(spent, reached) for spent, reached in pairs if spent is not None and reached is not None]
    if len(pairs) < 2:
        return None
    xs, ys = [float(spent or 0.0) for spent, _ in pairs], [reached for _, reached in pairs]
    title, axis = f"{run.metric.heading} for the epsilon spent", metric_axis(run.metric)
    return line_chart("price", title, xs, [ChartLine("test set", ys)], x_axis=SPENT, y_axis=axis)


def clip_norm_chart(run: RunView) -> Chart | None:
    """Return the clip norm of every round if it adapts; the mean over channels."""
    values = run.series("clip_norm")
    if all(value is None for value in values):
        return None
    rounds = [float(row["round"]) for row in run.rounds]
    return line_chart("clip-norm", "Clip norm", rounds, [ChartLine("clip norm", values)], x_axis=ROUNDS, y_axis=CLIP)


def epsilons_by_observer(run: RunView) -> dict[str, Values]:
    """Return epsilon over rounds by kind of observer; None where it is infinite or unknown."""
    # Long runs state epsilon in some rounds only: a row without one stays empty, never an older, smaller number.
    kinds = dict.fromkeys(kind for row in run.rounds for kind in row.get("epsilon") or {})
    return {kind: [(row.get("epsilon") or {}).get(kind) for row in run.rounds] for kind in kinds}


def worst_epsilons(run: RunView) -> Values:
    """Return the worst epsilon of each round; None if one observer's is infinite."""
    worst: list[float | None] = []
    for row in run.rounds:
        values = list((row.get("epsilon") or {}).values())
        # An infinite epsilon is stored as None: the maximum of the others would understate it.
        worst.append(max(values) if values and None not in values else None)
    return worst


def explain_silence(run: RunView) -> str:
    """Return why there is no curve of epsilon against some observer."""
    if run.unit is Unit.NONE:
        return "There is no curve of epsilon: without noise there is no guarantee to draw."
    without = [kind for kind, value in run.spent.items() if math.isinf(value)]
    return f"No guarantee, hence no curve, against: {', '.join(without)}." if without else ""


def rounds_table(run: RunView) -> dict[str, Any]:
    """Return the evaluated rounds as rows, evenly thinned if there are many."""
    rows, spent, metric = run.rounds, worst_epsilons(run), run.metric
    shown = [index for index, row in enumerate(rows) if row.get(metric.test_key) is not None] or list(range(len(rows)))
    # The last round is always in the table.
    places = [*shown[: -1 : -(-len(shown) // ROWS)], shown[-1]]
    private = run.unit is not Unit.NONE
    header = ["Round", f"Test {metric.title}", "Test loss", "Mean client", "Worst client"]
    header += [f"Test {own.title}" for own in run.own_metrics] + (["Epsilon"] if private else [])
    body = [_row_cells(run, rows[index], spent[index], private) for index in places]
    return {"header": header, "rows": body, "all": len(body) == len(rows), "count": format_count(len(rows))}


def _row_cells(run: RunView, row: dict[str, Any], spent: float | None, private: bool) -> list[str]:
    metric = run.metric
    known, keys = bool(row.get("epsilon")), [metric.client_key("mean"), metric.client_key("worst")]
    cells = [format_count(row["round"]), format_metric(metric, row.get(metric.test_key))]
    cells += [format_number(row.get("test_loss")), *(format_metric(metric, row.get(key)) for key in keys)]
    cells += [format_metric(own, row.get(own.test_key)) for own in run.own_metrics]
    return cells + ([format_upper(spent) if known else NONE] if private else [])


def _evaluated_rows(run: RunView) -> list[float]:
    return [float(row["round"]) for row in run.rounds]


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
    """Return totals, means and curves of a run with a resource model; None for every other run."""
    # Energy and delay are simulated: without a resource model there is nothing to show.
    if not run.fact("resources") or not run.rounds:
        return None
    rows = [
        (name, f"{format_number(run.total(key))} {unit}", f"{format_number(run.total(key) / len(run.rounds))} {unit}")
        for key, (name, unit, _) in KINDS.items()
    ]
    charts = [_each_round(run, key) for key in KINDS] + [_metric_bought(run, key) for key in KINDS]
    return {"model": run.fact("resources")["model"], "rows": rows, "charts": [chart for chart in charts if chart]}


COSTS_SECTION = Section("costs", "Energy and delay", costs_content)


def _each_round(run: RunView, key: str) -> Chart | None:
    name, _unit, axis = KINDS[key]
    numbers = [float(row["round"]) for row in run.rounds]
    return line_chart(
        key, f"{name} of a round", numbers, [ChartLine(name, run.series(key))], x_axis=ROUNDS, y_axis=axis
    )


def _metric_bought(run: RunView, key: str) -> Chart | None:
    """Return the metric against the accumulated cost."""
    name, unit, _ = KINDS[key]
    spent = list(accumulate(value or 0.0 for value in run.series(key)))
    values = run.series(run.metric.test_key)
    pairs = [(cost, reached) for cost, reached in zip(spent, values, strict=True) if reached is not None]
    if len(pairs) < 2:
        return None
    across = Axis(f"{unit} so far", tick=format_short, value=lambda v: f"{format_number(v)} {unit}", floor=0.0)
    line = ChartLine("test set", [reached for _, reached in pairs])
    title, axis = f"{run.metric.heading} for the {name.lower()} spent", metric_axis(run.metric)
    return line_chart(f"{key}-bought", title, [cost for cost, _ in pairs], [line], x_axis=across, y_axis=axis)


def traffic_content(run: RunView) -> Content | None:
    """Return totals and the mean of a round for each direction."""
    if not run.rounds:
        return None
    done = len(run.rounds)
    rows = []
    for name, key in (("Clients to server", "uplink_floats"), ("Server to clients", "downlink_floats")):
        if any(value is not None for value in run.series(key)):
            total = run.total(key)
            rows.append((name, format_count(total), floats_as_bytes(total), floats_as_bytes(total / done)))
    seconds = run.fact("seconds") or run.total("seconds") or None
    if not rows and seconds is None:
        return None
    return {"rows": rows, "seconds": format_duration(seconds), "pace": format_duration(run.total("seconds") / done)}


TRAFFIC_SECTION = Section("traffic", "Traffic and time", traffic_content)


STEPS = Axis("local steps", tick=format_short, value=lambda v: f"{format_short(v)} steps", from_zero=True, whole=True)
DEVICES = Axis("devices", tick=format_short, value=lambda v: f"{format_short(v)} devices", from_zero=True, whole=True)
SIZE = Axis("step size", tick=format_short, value=format_number, floor=0.0, from_zero=True)
TERM = Axis("share of the objective", tick=format_short, value=format_number, floor=0.0, from_zero=True)


def control_content(run: RunView) -> Content | None:
    """Return the decisions of a controlled run; None for every other run."""
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


COEFFICIENT = Axis("coefficient", tick=format_short, value=format_number, floor=0.0, from_zero=True)
STEP = Axis("step", tick=format_short, value=format_short, whole=True)
NOISE = Axis("noise of the sum", tick=format_short, value=format_number, floor=0.0, from_zero=True)


def stream_content(run: RunView) -> Content | None:
    """Return the strategy of correlated noise and its effect on sums; None for every other run."""
    stream = run.fact("stream")
    if not stream:
        return None
    lags = [float(lag) for lag in range(len(stream["coefficients"]))]
    shown = [float(step) for step in stream["shown"]]
    sums = [ChartLine("correlated", stream["errors"]), ChartLine("independent, same epsilon", stream["independent"])]
    strategy = [ChartLine(str(stream["strategy"]), stream["coefficients"])]
    charts = [
        line_chart("stream-error", f"Noise of sums over {stream['of']}", shown, sums, x_axis=STEP, y_axis=NOISE),
        line_chart("stream-strategy", "Strategy", lags, strategy, x_axis=STEP, y_axis=COEFFICIENT),
    ]
    facts = {key: stream[key] for key in ("strategy", "steps", "separation", "uses", "of")}
    return facts | {"gain": format_number(float(stream["gain"])), "charts": [chart for chart in charts if chart]}


STREAM_SECTION = Section("stream", "Correlated noise", stream_content)
CONTROL_SECTION = Section("control", "Decisions of the control", control_content)


def _decision_chart(run: RunView, key: str, title: str, axis: Axis, names: dict[str, str]) -> Chart | None:
    rounds = [float(row["round"]) for row in run.rounds]
    known = {name: [value or None for value in run.series(metric)] for name, metric in names.items()}
    lines = [ChartLine(name, values) for name, values in known.items()]
    return line_chart(f"control-{key}", title, rounds, lines, x_axis=ROUNDS, y_axis=axis)
