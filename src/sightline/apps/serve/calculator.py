"""The calculator: a form for every registered scheme, and its epsilon, or the noise that an epsilon needs."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sightline import accounting
from sightline.accounting import SCHEMES, Accountant, Parameter, Scheme, SchemeFamily, schemes
from sightline.accounting.schemes import Picture
from sightline.apps.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.apps.report.guarantee import NEIGHBOURS
from sightline.apps.serve.guard import query_value
from sightline.apps.serve.pages import PageServer, json_response
from sightline.engine.record import replace_nonfinite
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.events import Adjacency, with_known_coins
from sightline.formatting import format_short, format_upper


@dataclass(frozen=True)
class Knob:
    """One number of a scheme: name, label, range and start. Its scale is logarithmic."""

    name: str
    label: str
    low: float
    high: float
    start: float
    whole: bool = False
    command: str = "account"
    """The command that has no such range."""

    def starting_at(self, start: float) -> "Knob":
        """Return the knob with another start."""
        return replace(self, start=start)

    def read(self, text: str) -> float:
        """Return the number in a text; raise InvalidInput outside the range."""
        try:
            value = float(text) if text else self.start
        except ValueError:
            invalid(self.name, text, "must be a number")
        # Written so that NaN fails too. The limits keep every answer within seconds.
        if not self.low <= value <= self.high:
            reason = f"the calculator's range is {self.low:g} to {self.high:g}"
            invalid(self.name, text, reason, f"use sightline {self.command}")
        if self.whole and value != int(value):
            invalid(self.name, text, "must be a whole number")
        return int(value) if self.whole else value


def make_knob(parameter: Parameter) -> Knob:
    """Return the knob of a parameter that has a range."""
    low, high, start = (number or 0.0 for number in (parameter.low, parameter.high, parameter.start))
    return Knob(parameter.name, parameter.label or parameter.name, low, high, start, whole=parameter.whole)


NOISE, RATE = make_knob(schemes.NOISE), make_knob(schemes.RATE)
DELTA = Knob("delta", "Delta", 1e-12, 0.1, 1e-5)
EPSILON = Knob("epsilon", "Epsilon", 0.01, 1000, 8.0, command="calibrate")


def drawn_knob(knob: Knob, request: Request) -> dict[str, Any]:
    """Return a knob as the page draws it, at the value of the request."""
    return {
        "name": knob.name,
        "label": knob.label,
        "value": _number_text(query_value(request, knob.name) or format_short(knob.start, 12)),
        "low": f"{math.log10(knob.low):.4f}",
        "high": f"{math.log10(knob.high):.4f}",
        "whole": knob.whole,
    }


def _number_text(text: str) -> str:
    """Return the text if it is a finite number, otherwise "": a number field takes nothing else."""
    try:
        return text if math.isfinite(float(text)) else ""
    except ValueError:
        return ""


Numbers = Mapping[str, Any]
"""The values of a scheme's parameters, by name."""


def known_sampling(scheme: Scheme) -> Scheme:
    """Return the scheme against an observer who knows every draw: no amplification."""
    return Scheme(scheme.name, scheme.noise_multiplier, tuple((with_known_coins(e), n) for e, n in scheme.events))


def comparison_lines(family: SchemeFamily, numbers: Numbers) -> dict[str, tuple[Scheme, Accountant]]:
    """Return what the calculator compares, by name; the scheme comes first."""
    complete = family.complete_numbers(numbers)
    scheme = family.make(**complete)
    lines = {"this scheme": (scheme, Accountant.PLD), "by RDP": (scheme, Accountant.RDP)}
    if family.matched_poisson is not None:
        rate, steps = family.matched_poisson(complete)
        plain = accounting.poisson(noise=numbers["noise"], rate=min(1.0, rate), steps=int(steps))
        lines["Poisson sampling"] = (plain, Accountant.PLD)
    if (known := known_sampling(scheme)).events != scheme.events:
        lines["no amplification"] = (known, Accountant.PLD)
    return lines


POINTS = (7, 0, 14, 3, 11, 1, 5, 9, 13, 2, 4, 6, 8, 10, 12)
"""The order in which the 15 points of a curve are computed: coarse first."""
SPAN = 3.0
"""A curve reaches from the chosen value divided by this to the chosen value times this."""
PATIENCE = 2.5
"""Processor seconds for a curve or a search for noise; points not begun by then are left out."""
SOLVE = {"epsilon": "epsilon, given the noise", "noise": "the noise, given epsilon"}
"""What the calculator can compute."""

Asked = tuple[SchemeFamily, dict[str, Any], float]


def calculator_page(site: PageServer, request: Request) -> Response:
    """Return the form and the numbers, or with `part=curve` the curve."""
    name, solve = chosen_scheme(request), solved_for(request)
    family = SCHEMES[name]
    content: dict[str, Any] = {"numbers": None, "ticks": [], "mistake": "", "note": None, "charts": [], "facts": []}
    try:
        family, numbers, delta = read_question(request)
        if query_value(request, "part") == "curve":
            content["charts"] = drawn_charts(request, family, numbers, delta)
        elif solve == "noise":
            content["numbers"] = solve_noises(family, numbers, delta)
            content["facts"] = list_facts(family, _with_noise(numbers, content["numbers"][0]["noise"]), delta)
        else:
            content["numbers"] = epsilon_rows(family, numbers, delta)
            content["facts"] = list_facts(family, numbers, delta)
        if content["numbers"]:
            content["ticks"] = bar_scale(row[solve] for row in content["numbers"]).ticks
        content["note"] = family.note_delta(numbers, delta)
    except SightlineError as error:
        content["mistake"] = str(error)
    return site.draw(
        request,
        "curve.html" if query_value(request, "part") == "curve" else "calculator.html",
        "Calculator",
        scheme=name,
        schemes=[(key, one.title) for key, one in SCHEMES.items()],
        words=family.hint,
        solve=solve,
        solves=list(SOLVE.items()),
        knobs=[drawn_knob(knob, request) for knob in (*knobs_of(family, solve), DELTA)],
        choices=[drawn_choice(family, one, request) for one in family.chosen_parameters],
        against=query_value(request, "against", "noise"),
        ways=[knob.name for knob in family_knobs(family) if knob.name in ("noise", "steps")],
        **content,
    )


def calculator_api(site: PageServer, request: Request) -> Response:
    """Return epsilon of every line, or with `solve=noise` the noise multiplier; null is infinite or not computed."""
    family, numbers, delta = read_question(request)
    answer: dict[str, Any] = {"scheme": chosen_scheme(request), **numbers, "delta": delta}
    answer |= family.state_claim(family.complete_numbers(numbers))
    if solved_for(request) == "noise":
        answer["noise_multiplier"] = {row["name"]: row["noise"] for row in solve_noises(family, numbers, delta)}
    else:
        answer["epsilon"] = {row["name"]: row["epsilon"] for row in epsilon_rows(family, numbers, delta)}
    note = family.note_delta(numbers, delta)
    return json_response(replace_nonfinite(answer | ({"note": note} if note else {})))


def solved_for(request: Request) -> str:
    """Return what to compute."""
    name = query_value(request, "solve", "epsilon")
    if name not in SOLVE:
        invalid("solve", name, "must be epsilon or noise", did_you_mean(name, list(SOLVE)))
    return name


def family_knobs(family: SchemeFamily) -> list[Knob]:
    """Return a knob for each parameter that has a range."""
    return [make_knob(parameter) for parameter in family.ranged_parameters]


def knobs_of(family: SchemeFamily, solve: str) -> list[Knob]:
    """Return the knobs of the form; when the noise is computed, epsilon takes its place."""
    return [EPSILON if knob.name == "noise" and solve == "noise" else knob for knob in family_knobs(family)]


def chosen_scheme(request: Request) -> str:
    """Return the name of the chosen scheme."""
    name = query_value(request, "scheme", "poisson")
    if name not in SCHEMES:
        invalid("scheme", name, "no such scheme", did_you_mean(name, list(SCHEMES)))
    return name


def read_question(request: Request) -> Asked:
    """Return the scheme, its numbers and delta."""
    family = SCHEMES[chosen_scheme(request)]
    numbers: dict[str, Any] = {
        k.name: k.read(query_value(request, k.name)) for k in knobs_of(family, solved_for(request))
    }
    words = {one.name: read_choice(family, one, request) for one in family.chosen_parameters}
    return family, numbers | words, DELTA.read(query_value(request, "delta"))


def read_choice(family: SchemeFamily, parameter: Parameter, request: Request) -> str:
    """Return the chosen option; raise InvalidInput for an unknown one."""
    word = query_value(request, parameter.name) or str(family.defaults[parameter.name])
    if word not in parameter.choices:
        invalid(parameter.name, word, "no such choice", did_you_mean(word, list(parameter.choices)))
    return word


def drawn_choice(family: SchemeFamily, parameter: Parameter, request: Request) -> dict[str, Any]:
    """Return a choice as the page draws it, at the value of the request."""
    chosen = query_value(request, parameter.name) or family.defaults[parameter.name]
    return {"name": parameter.name, "label": parameter.label, "words": parameter.choices, "chosen": chosen}


def list_facts(family: SchemeFamily, numbers: Numbers, delta: float) -> list[tuple[str, str]]:
    """Return for whom the numbers hold, and further facts about the scheme, as text."""
    complete = family.complete_numbers(numbers)
    facts = family.state_claim(complete) | family.make(**complete).list_facts(delta=delta)
    return [(name.replace("_", " "), format_fact(name, value)) for name, value in facts.items()]


def format_fact(name: str, value: Any) -> str:
    """Return a fact as text: bounds rounded up, other numbers rounded."""
    if name == "adjacency":
        return f"one {NEIGHBOURS[Adjacency(value)]}"
    if isinstance(value, float):
        return format_upper(value, digits=4) if name in UPPER_FACTS else format_short(value, 4)
    return ", ".join(format_fact(name, one) for one in value) if isinstance(value, list) else str(value)


UPPER_FACTS = ("noise_std", "sensitivity", "sensitivity_of_a_turn")
"""Facts that are upper bounds, or noise that is needed."""


@dataclass(frozen=True)
class BarScale:
    """The logarithmic scale of the bars, in powers of ten: numbers that differ by hundreds have bars of use."""

    low: int
    high: int

    def share(self, value: float) -> str:
        """Return the length of a bar in percent: nothing for zero, all of it for infinity."""
        if math.isnan(value) or value <= 0:
            return "0"
        if math.isinf(value):
            return "100"
        return f"{100 * (math.log10(value) - self.low) / (self.high - self.low):.1f}"

    @property
    def ticks(self) -> list[dict[str, str]]:
        """Return place and text of round numbers: at most seven powers of ten, or also 2 and 5 of few."""
        span = self.high - self.low
        between = [2.0, 5.0] if span <= 2 else []
        powers = range(self.low, self.high + 1, -(-span // 6))
        values = [factor * 10.0**power for power in powers for factor in (1.0, *between)]
        shown = [value for value in values if value <= 1.01 * 10.0**self.high]
        return [{"at": self.share(value), "text": format_short(value)} for value in shown]


def bar_scale(values: Iterable[float | None]) -> BarScale:
    """Return the scale whose first power of ten is below every value and whose last is not."""
    logs = [math.log10(value) for value in values if value and math.isfinite(value)] or [0.0]
    low = math.floor(min(logs) - 0.02)
    return BarScale(low, max(low + 1, math.ceil(max(logs))))


def bar_rows(key: str, values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return name, value, text and bar of every number; None is not computed, NaN is without an observer."""
    scale, rows = bar_scale(values.values()), []
    for name, value in values.items():
        words = "no observer" if value is not None and math.isnan(value) else format_upper(value, digits=4)
        words, share = ("–", "0") if value is None else (words, scale.share(value))
        rows.append({"name": name, key: value, "words": words, "share": share})
    return rows


def cached_epsilon(scheme: Scheme, accountant: Accountant, delta: float) -> float:
    """Return epsilon; the accountant caches its answers."""
    return scheme.epsilon(delta=delta, accountant=accountant)


def epsilon_rows(family: SchemeFamily, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """Return name, epsilon, its text, and the length of its bar."""
    epsilons = {name: cached_epsilon(*pair, delta) for name, pair in comparison_lines(family, numbers).items()}
    return bar_rows("epsilon", epsilons)


def least_noise(family: SchemeFamily, numbers: Numbers, line: str, delta: float) -> float:
    """Return the least noise multiplier with which a line costs at most `numbers["epsilon"]`."""

    def line_at(noise: float) -> tuple[Scheme, Accountant]:
        return comparison_lines(family, _with_noise(numbers, noise))[line]

    _, accountant = line_at(1.0)
    return accounting.calibrate(
        lambda noise: line_at(noise)[0].composition, epsilon=numbers["epsilon"], delta=delta, accountant=accountant
    )


def _with_noise(numbers: Numbers, noise: float) -> dict[str, float]:
    """Return the parameters of the scheme: the noise replaces the budget."""
    return {name: value for name, value in numbers.items() if name != "epsilon"} | {"noise": noise}


def solve_noises(family: SchemeFamily, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """Return the least noise multiplier of every line whose epsilon is at most `numbers["epsilon"]`.

    Guarantees: every noise was evaluated, meets the budget, and is rounded up. The scheme itself is always searched,
    the other lines while there is time.
    """
    # Processor time of this thread: on a busy machine the wall clock would cut the search short.
    begun = time.thread_time()
    noises: dict[str, float | None] = dict.fromkeys(comparison_lines(family, _with_noise(numbers, 1.0)))
    # The scheme itself first, RDP last: if time runs out, the least important line is missing.
    for name in sorted(noises, key=lambda name: (name != "this scheme", name == "by RDP")):
        if name == "this scheme" or time.thread_time() - begun < PATIENCE:
            noises[name] = least_noise(family, numbers, name, delta)
    return bar_rows("noise", noises)


def drawn_charts(request: Request, family: SchemeFamily, numbers: Numbers, delta: float) -> list[Chart]:
    """Return the curve around the chosen noise, or the one that meets the chosen epsilon, and the scheme's pictures."""
    if solved_for(request) == "noise":
        numbers = _with_noise(numbers, least_noise(family, numbers, "this scheme", delta))
    curve = epsilon_curve(family, numbers, delta, query_value(request, "against", "noise"))
    pictures = family.make(**family.complete_numbers(numbers)).list_pictures()
    return [chart for chart in (curve, *map(draw_picture, pictures)) if chart is not None]


def draw_picture(picture: Picture) -> Chart | None:
    """Return a picture of a scheme as a chart."""
    x_axis = Axis(picture.x_label, tick=lambda x: format_short(x, 4), value=lambda x: f"{picture.x_label} {x:g}")
    y_axis = Axis(picture.y_label, tick=lambda y: format_short(y, 3), value=lambda y: format_short(y, 4))
    lines = [ChartLine(name, list(values)) for name, values in picture.lines.items()]
    return line_chart(picture.name, picture.title, picture.x, lines, x_axis=x_axis, y_axis=y_axis)


def epsilon_curve(family: SchemeFamily, numbers: Numbers, delta: float, against: str) -> Chart | None:
    """Return the chart of epsilon around the chosen noise or number of steps."""
    drawn_by = {one.name: one for one in family_knobs(family) if one.name in ("noise", "steps")}
    knob = drawn_by.get(against, drawn_by["noise"])
    xs, curves = _curve_points(family, numbers, delta, knob)
    # The chart is drawn in logarithms, but a label must show the computed epsilon rounded up, not 10^log.
    exact: dict[float, float] = {math.log10(v): v for v in sorted(v for row in curves.values() for v in row if v)}
    logs = {name: [math.log10(value) if value else None for value in row] for name, row in curves.items()}
    axis = Axis("epsilon", tick=_tick_word, value=lambda log: format_upper(exact.get(log, 10**log), digits=4))
    title = f"Epsilon by {knob.name}, logarithmic"
    x_axis = Axis(knob.label, tick=lambda x: format_short(x, 4), value=lambda x: f"{knob.name} {format_short(x, 4)}")
    here = {row["name"]: row["words"] for row in epsilon_rows(family, numbers, delta)}
    drawn = [ChartLine(name, row, here[name]) for name, row in logs.items()]
    return line_chart("calculator", title, xs, drawn, x_axis=x_axis, y_axis=axis, joined=True)


def _tick_word(log: float) -> str:
    value = 10**log
    return f"{value:,.0f}" if value > 9.5 else format_short(value, 2)


def _curve_points(
    family: SchemeFamily, numbers: Numbers, delta: float, knob: Knob
) -> tuple[list[float], dict[str, list[float | None]]]:
    middle = numbers[knob.name]
    low, high = max(min(knob.low, middle), middle / SPAN), min(max(knob.high, middle), middle * SPAN)
    # A schedule cannot use a member more often than it has steps.
    if knob.name == "steps" and "uses" in numbers:
        low = max(low, numbers["uses"])
    grid = [low * (high / low) ** (index / (len(POINTS) - 1)) for index in range(len(POINTS))]
    xs = sorted({round(x) if knob.whole else float(f"{x:.4g}") for x in grid})
    curves: dict[str, list[float | None]] = {name: [None] * len(xs) for name in comparison_lines(family, numbers)}
    begun = time.thread_time()
    for index in POINTS:
        if index < len(xs) and time.thread_time() - begun < PATIENCE:
            lines = comparison_lines(family, {**numbers, knob.name: xs[index]})
            for name in curves.keys() & lines.keys():
                curves[name][index] = cached_epsilon(*lines[name], delta)
    return [float(x) for x in xs], curves
