"""The calculator: epsilon of a scheme at once, against Poisson sampling, RDP and no amplification."""

import math
import time
from typing import Any

from sightline.accounting import Accountant, Scheme
from sightline.engine.record import finite
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.report.chart import Axis, Chart, Line, line_chart
from sightline.report.numbers import short, upper
from sightline.serve.knobs import DELTA, Knob, drawn_knob
from sightline.serve.message import Request, Response, plain
from sightline.serve.schemes import SCHEMES, Entry, Numbers, lines
from sightline.serve.site import Site

POINTS = (7, 0, 14, 3, 11, 1, 5, 9, 13, 2, 4, 6, 8, 10, 12)
"""In which order the 15 points of a curve are worked out: coarse first."""
SPAN = 3.0
"""A curve goes from the chosen value over this number to the chosen value times it."""
PATIENCE = 2.5
"""Processor seconds that a curve may take; what is not worked out by then is left out."""

Asked = tuple[Entry, dict[str, float], float]


def page(site: Site, request: Request) -> Response:
    """The form, the numbers, and with `part=curve` the curve."""
    name = chosen(request)
    entry = SCHEMES[name]
    content: dict[str, Any] = {"numbers": None, "mistake": "", "chart": None}
    try:
        entry, numbers, delta = asked(request)
        if request.one("part") == "curve":
            content["chart"] = curve(entry, numbers, delta, request.one("against", "noise"))
        else:
            content["numbers"] = worked_out(entry, numbers, delta)
    except SightlineError as error:
        content["mistake"] = str(error)
    return site.draw(
        request,
        "curve.html" if request.one("part") == "curve" else "calculator.html",
        "Calculator",
        scheme=name,
        schemes=[(key, one.title) for key, one in SCHEMES.items()],
        words=entry.words,
        knobs=[drawn_knob(knob, request) for knob in (*entry.knobs, DELTA)],
        against=request.one("against", "noise"),
        ways=[knob.name for knob in entry.knobs if knob.name in ("noise", "steps")],
        **content,
    )


def api(site: Site, request: Request) -> Response:
    """Epsilon of every line as JSON; null is infinite."""
    entry, numbers, delta = asked(request)
    found = {row["name"]: row["epsilon"] for row in worked_out(entry, numbers, delta)}
    return plain(finite({"scheme": chosen(request), **numbers, "delta": delta, "epsilon": found}))


def chosen(request: Request) -> str:
    """The scheme's name."""
    name = request.one("scheme", "balanced")
    if name not in SCHEMES:
        invalid("scheme", name, "no such scheme", did_you_mean(name, list(SCHEMES)))
    return name


def asked(request: Request) -> Asked:
    """The scheme, its numbers and delta."""
    entry = SCHEMES[chosen(request)]
    return entry, {k.name: k.read(request.one(k.name)) for k in entry.knobs}, DELTA.read(request.one("delta"))


def epsilon(scheme: Scheme, accountant: Accountant, delta: float) -> float:
    """Epsilon; the accountant remembers what it was asked before."""
    return scheme.epsilon(delta=delta, accountant=accountant)


def worked_out(entry: Entry, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """Name, epsilon, its words, and its length against the longest."""
    found = {name: epsilon(*pair, delta) for name, pair in lines(entry, numbers).items()}
    top = max([value for value in found.values() if math.isfinite(value)], default=1.0)
    return [
        {"name": name, "epsilon": value, "words": upper(value, digits=4), "share": _share(value, top)}
        for name, value in found.items()
    ]


def _share(value: float, top: float) -> str:
    if not math.isfinite(value):
        return "100"
    return f"{100 * value / top:.1f}" if top > 0 else "0"


def curve(entry: Entry, numbers: Numbers, delta: float, against: str) -> Chart | None:
    """Epsilon of every line around the chosen noise, or number of steps."""
    knob = next((one for one in entry.knobs if one.name == against and one.name in ("noise", "steps")), entry.knobs[0])
    xs, found = _points(entry, numbers, delta, knob)
    exact: dict[float, float] = {math.log10(v): v for v in sorted(v for row in found.values() for v in row if v)}
    logs = {name: [math.log10(value) if value else None for value in row] for name, row in found.items()}
    axis = Axis("epsilon", tick=_tick, value=lambda log: upper(exact.get(log, 10**log), digits=4))
    title = f"Epsilon by {knob.name}, logarithmic"
    x_axis = Axis(knob.label, tick=lambda x: short(x, 4), value=lambda x: f"{knob.name} {short(x, 4)}")
    here = {row["name"]: row["words"] for row in worked_out(entry, numbers, delta)}
    drawn = [Line(name, row, here[name]) for name, row in logs.items()]
    return line_chart("calculator", title, xs, drawn, x_axis=x_axis, y_axis=axis, joined=True)


def _tick(log: float) -> str:
    value = 10**log
    return f"{value:,.0f}" if value > 9.5 else short(value, 2)


def _points(
    entry: Entry, numbers: Numbers, delta: float, knob: Knob
) -> tuple[list[float], dict[str, list[float | None]]]:
    middle = numbers[knob.name]
    low, high = max(knob.low, middle / SPAN), min(knob.high, middle * SPAN)
    if knob.name == "steps" and "uses" in numbers:
        low = max(low, numbers["uses"])
    grid = [low * (high / low) ** (place / (len(POINTS) - 1)) for place in range(len(POINTS))]
    xs = sorted({round(x) if knob.whole else float(f"{x:.4g}") for x in grid})
    found: dict[str, list[float | None]] = {name: [None] * len(xs) for name in lines(entry, numbers)}
    begun = time.thread_time()
    for place in POINTS:
        if place < len(xs) and time.thread_time() - begun < PATIENCE:
            for name, pair in lines(entry, {**numbers, knob.name: xs[place]}).items():
                found[name][place] = epsilon(*pair, delta)
    return [float(x) for x in xs], found
