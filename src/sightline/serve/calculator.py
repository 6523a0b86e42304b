"""The calculator: epsilon of a scheme, or the noise for one, against Poisson sampling, RDP and no amplification."""

import math
import time
from typing import Any

from sightline.accounting import Accountant, Scheme
from sightline.engine.record import replace_nonfinite
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.report.numbers import format_short, format_upper
from sightline.serve.knobs import DELTA, EPSILON, NOISE, Knob, drawn_knob
from sightline.serve.message import Request, Response, json_response
from sightline.serve.schemes import SCHEMES, Entry, Numbers, comparison_lines
from sightline.serve.site import PageServer

POINTS = (7, 0, 14, 3, 11, 1, 5, 9, 13, 2, 4, 6, 8, 10, 12)
"""In which order the 15 points of a curve are worked out: coarse first."""
SPAN = 3.0
"""A curve goes from the chosen value over this number to the chosen value times it."""
PATIENCE = 2.5
"""Processor seconds that a curve, or a search for noise, may take; what is not begun by then is left out."""
SOLVE = {"epsilon": "epsilon, of a noise", "noise": "the noise, for an epsilon"}
"""What the calculator works out."""

Asked = tuple[Entry, dict[str, float], float]


def calculator_page(site: PageServer, request: Request) -> Response:
    """The form, the numbers, and with `part=curve` the curve."""
    name, solve = chosen_scheme(request), solved_for(request)
    entry = SCHEMES[name]
    content: dict[str, Any] = {"numbers": None, "mistake": "", "chart": None}
    try:
        entry, numbers, delta = read_question(request)
        if request.one("part") == "curve":
            content["chart"] = drawn_curve(request, entry, numbers, delta)
        elif solve == "noise":
            content["numbers"] = noises(entry, numbers, delta)
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
        solve=solve,
        solves=list(SOLVE.items()),
        knobs=[drawn_knob(knob, request) for knob in (*knobs_of(entry, solve), DELTA)],
        against=request.one("against", "noise"),
        ways=[knob.name for knob in entry.knobs if knob.name in ("noise", "steps")],
        **content,
    )


def calculator_api(site: PageServer, request: Request) -> Response:
    """Epsilon of every line as JSON, or with `solve=noise` the noise multiplier; null is infinite or not worked out."""
    entry, numbers, delta = read_question(request)
    told: dict[str, Any] = {"scheme": chosen_scheme(request), **numbers, "delta": delta}
    if solved_for(request) == "noise":
        told["noise_multiplier"] = {row["name"]: row["noise"] for row in noises(entry, numbers, delta)}
    else:
        told["epsilon"] = {row["name"]: row["epsilon"] for row in worked_out(entry, numbers, delta)}
    return json_response(replace_nonfinite(told))


def solved_for(request: Request) -> str:
    """What is to be worked out."""
    name = request.one("solve", "epsilon")
    if name not in SOLVE:
        invalid("solve", name, "epsilon or noise is worked out", did_you_mean(name, list(SOLVE)))
    return name


def knobs_of(entry: Entry, solve: str) -> list[Knob]:
    """The numbers that are turned: where the noise is worked out, epsilon in its place."""
    return [EPSILON if knob is NOISE and solve == "noise" else knob for knob in entry.knobs]


def chosen_scheme(request: Request) -> str:
    """The scheme's name."""
    name = request.one("scheme", "poisson")
    if name not in SCHEMES:
        invalid("scheme", name, "no such scheme", did_you_mean(name, list(SCHEMES)))
    return name


def read_question(request: Request) -> Asked:
    """The scheme, its numbers and delta."""
    entry = SCHEMES[chosen_scheme(request)]
    knobs = knobs_of(entry, solved_for(request))
    return entry, {k.name: k.read(request.one(k.name)) for k in knobs}, DELTA.read(request.one("delta"))


def cached_epsilon(scheme: Scheme, accountant: Accountant, delta: float) -> float:
    """Epsilon; the accountant remembers what it was asked before."""
    return scheme.epsilon(delta=delta, accountant=accountant)


def worked_out(entry: Entry, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """Name, epsilon, its words, and its length against the longest."""
    found = {name: cached_epsilon(*pair, delta) for name, pair in comparison_lines(entry, numbers).items()}
    top = max([value for value in found.values() if math.isfinite(value)], default=1.0)
    return [
        {"name": name, "epsilon": value, "words": format_upper(value, digits=4), "share": _bar_share(value, top)}
        for name, value in found.items()
    ]


def least_noise(scheme: Scheme, accountant: Accountant, budget: float, delta: float) -> float:
    """The least noise multiplier with which the scheme costs at most the budget."""
    return scheme.calibrated(epsilon=budget, delta=delta, accountant=accountant).noise_multiplier


def _with_noise(numbers: Numbers, noise: float) -> dict[str, float]:
    """The numbers of the scheme itself: a noise in place of the budget."""
    return {name: value for name, value in numbers.items() if name != "epsilon"} | {"noise": noise}


def noises(entry: Entry, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """The same for the least noise multiplier whose epsilon is at most `numbers["epsilon"]`.

    Guarantees: what is shown was evaluated and meets the budget, and is rounded up. The scheme itself is always
    searched, the others while there is time.
    """
    begun = time.thread_time()
    schemes = comparison_lines(entry, _with_noise(numbers, 1.0))
    found: dict[str, float | None] = dict.fromkeys(schemes)
    for name in sorted(schemes, key=lambda name: (name != "this scheme", name == "by RDP")):
        if name == "this scheme" or time.thread_time() - begun < PATIENCE:
            found[name] = least_noise(*schemes[name], numbers["epsilon"], delta)
    top = max(value for value in found.values() if value)
    return [
        {"name": name, "noise": value, "words": format_upper(value, digits=4), "share": _bar_share(value, top)}
        if value
        else {"name": name, "noise": None, "words": "–", "share": "0"}
        for name, value in found.items()
    ]


def drawn_curve(request: Request, entry: Entry, numbers: dict[str, float], delta: float) -> Chart | None:
    """The curve around the chosen noise, or around the one that meets the chosen epsilon."""
    if solved_for(request) == "noise":
        scheme, accountant = comparison_lines(entry, _with_noise(numbers, 1.0))["this scheme"]
        numbers = _with_noise(numbers, least_noise(scheme, accountant, numbers["epsilon"], delta))
    return epsilon_curve(entry, numbers, delta, request.one("against", "noise"))


def _bar_share(value: float, top: float) -> str:
    if not math.isfinite(value):
        return "100"
    return f"{100 * value / top:.1f}" if top > 0 else "0"


def epsilon_curve(entry: Entry, numbers: Numbers, delta: float, against: str) -> Chart | None:
    """Epsilon of every line around the chosen noise, or number of steps."""
    knob = next((one for one in entry.knobs if one.name == against and one.name in ("noise", "steps")), entry.knobs[0])
    xs, found = _curve_points(entry, numbers, delta, knob)
    exact: dict[float, float] = {math.log10(v): v for v in sorted(v for row in found.values() for v in row if v)}
    logs = {name: [math.log10(value) if value else None for value in row] for name, row in found.items()}
    axis = Axis("epsilon", tick=_tick_word, value=lambda log: format_upper(exact.get(log, 10**log), digits=4))
    title = f"Epsilon by {knob.name}, logarithmic"
    x_axis = Axis(knob.label, tick=lambda x: format_short(x, 4), value=lambda x: f"{knob.name} {format_short(x, 4)}")
    here = {row["name"]: row["words"] for row in worked_out(entry, numbers, delta)}
    drawn = [ChartLine(name, row, here[name]) for name, row in logs.items()]
    return line_chart("calculator", title, xs, drawn, x_axis=x_axis, y_axis=axis, joined=True)


def _tick_word(log: float) -> str:
    value = 10**log
    return f"{value:,.0f}" if value > 9.5 else format_short(value, 2)


def _curve_points(
    entry: Entry, numbers: Numbers, delta: float, knob: Knob
) -> tuple[list[float], dict[str, list[float | None]]]:
    middle = numbers[knob.name]
    low, high = max(min(knob.low, middle), middle / SPAN), min(max(knob.high, middle), middle * SPAN)
    if knob.name == "steps" and "uses" in numbers:
        low = max(low, numbers["uses"])
    grid = [low * (high / low) ** (place / (len(POINTS) - 1)) for place in range(len(POINTS))]
    xs = sorted({round(x) if knob.whole else float(f"{x:.4g}") for x in grid})
    found: dict[str, list[float | None]] = {name: [None] * len(xs) for name in comparison_lines(entry, numbers)}
    begun = time.thread_time()
    for place in POINTS:
        if place < len(xs) and time.thread_time() - begun < PATIENCE:
            for name, pair in comparison_lines(entry, {**numbers, knob.name: xs[place]}).items():
                found[name][place] = cached_epsilon(*pair, delta)
    return [float(x) for x in xs], found
