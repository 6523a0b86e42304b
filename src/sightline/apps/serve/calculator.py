"""The calculator of schemes: a form for every registered scheme, its numbers turned by knobs, its cost or its noise."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline import accounting
from sightline.accounting import SCHEMES, Accountant, Parameter, Scheme, SchemeFamily, schemes
from sightline.accounting.schemes import Picture
from sightline.apps.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.apps.report.numbers import format_short, format_upper
from sightline.apps.serve.guard import Request, Response, json_response
from sightline.apps.serve.pages import PageServer
from sightline.engine.record import replace_nonfinite
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.events import with_known_coins


@dataclass(frozen=True)
class Knob:
    """One number of a scheme: its name, its meaning, its range, and where it starts. Its scale is logarithmic."""

    name: str
    label: str
    low: float
    high: float
    start: float
    whole: bool = False
    command: str = "account"
    """Which command goes further."""

    def starting_at(self, start: float) -> "Knob":
        """The same knob with another start."""
        return replace(self, start=start)

    def read(self, text: str) -> float:
        """The number in a text; outside of its range it is refused."""
        try:
            value = float(text) if text else self.start
        except ValueError:
            invalid(self.name, text, "is not a number")
        if not self.low <= value <= self.high:
            law = f"the calculator goes from {self.low:g} to {self.high:g}"
            invalid(self.name, text, law, f"use sightline {self.command}")
        if self.whole and value != int(value):
            invalid(self.name, text, "a whole number")
        return int(value) if self.whole else value


def make_knob(parameter: Parameter) -> Knob:
    """The knob of a scheme's number that has a range."""
    low, high, start = (number or 0.0 for number in (parameter.low, parameter.high, parameter.start))
    return Knob(parameter.name, parameter.label or parameter.name, low, high, start, whole=parameter.whole)


NOISE, RATE = make_knob(schemes.NOISE), make_knob(schemes.RATE)
DELTA = Knob("delta", "Delta", 1e-12, 0.1, 1e-5)
EPSILON = Knob("epsilon", "Epsilon", 0.01, 1000, 8.0, command="calibrate")


def drawn_knob(knob: Knob, request: Request) -> dict[str, Any]:
    """A knob as the page draws it, where the request left it."""
    return {
        "name": knob.name,
        "label": knob.label,
        "value": _number_text(request.one(knob.name) or format_short(knob.start, 12)),
        "low": f"{math.log10(knob.low):.4f}",
        "high": f"{math.log10(knob.high):.4f}",
        "whole": knob.whole,
    }


def _number_text(text: str) -> str:
    """The text, where it is a number: nothing else goes into a field for numbers."""
    try:
        return text if math.isfinite(float(text)) else ""
    except ValueError:
        return ""


Numbers = Mapping[str, Any]
"""Numbers and chosen words of a scheme, by the names of its parameters."""


def known_sampling(scheme: Scheme) -> Scheme:
    """The scheme against somebody who knows every draw: no amplification."""
    return Scheme(scheme.name, scheme.noise_multiplier, tuple((with_known_coins(e), n) for e, n in scheme.events))


def comparison_lines(family: SchemeFamily, numbers: Numbers) -> dict[str, tuple[Scheme, Accountant]]:
    """What the calculator sets side by side, by name: the scheme first."""
    complete = family.complete_numbers(numbers)
    scheme = family.make(**complete)
    found = {"this scheme": (scheme, Accountant.PLD), "by RDP": (scheme, Accountant.RDP)}
    if family.matched_poisson is not None:
        rate, steps = family.matched_poisson(complete)
        plain = accounting.poisson(noise=numbers["noise"], rate=min(1.0, rate), steps=int(steps))
        found["Poisson sampling"] = (plain, Accountant.PLD)
    if (known := known_sampling(scheme)).events != scheme.events:
        found["no amplification"] = (known, Accountant.PLD)
    return found


POINTS = (7, 0, 14, 3, 11, 1, 5, 9, 13, 2, 4, 6, 8, 10, 12)
"""In which order the 15 points of a curve are worked out: coarse first."""
SPAN = 3.0
"""A curve goes from the chosen value over this number to the chosen value times it."""
PATIENCE = 2.5
"""Processor seconds that a curve, or a search for noise, may take; what is not begun by then is left out."""
SOLVE = {"epsilon": "epsilon, of a noise", "noise": "the noise, for an epsilon"}
"""What the calculator works out."""

Asked = tuple[SchemeFamily, dict[str, Any], float]


def calculator_page(site: PageServer, request: Request) -> Response:
    """The form, the numbers, and with `part=curve` the curve."""
    name, solve = chosen_scheme(request), solved_for(request)
    family = SCHEMES[name]
    content: dict[str, Any] = {"numbers": None, "mistake": "", "note": None, "charts": [], "facts": []}
    try:
        family, numbers, delta = read_question(request)
        if request.one("part") == "curve":
            content["charts"] = drawn_charts(request, family, numbers, delta)
        elif solve == "noise":
            content["numbers"] = solve_noises(family, numbers, delta)
            content["facts"] = list_facts(family, _with_noise(numbers, content["numbers"][0]["noise"]), delta)
        else:
            content["numbers"] = worked_out(family, numbers, delta)
            content["facts"] = list_facts(family, numbers, delta)
        content["note"] = family.note_delta(numbers, delta)
    except SightlineError as error:
        content["mistake"] = str(error)
    return site.draw(
        request,
        "curve.html" if request.one("part") == "curve" else "calculator.html",
        "Calculator",
        scheme=name,
        schemes=[(key, one.title) for key, one in SCHEMES.items()],
        words=family.hint,
        solve=solve,
        solves=list(SOLVE.items()),
        knobs=[drawn_knob(knob, request) for knob in (*knobs_of(family, solve), DELTA)],
        choices=[drawn_choice(family, one, request) for one in family.chosen_parameters],
        against=request.one("against", "noise"),
        ways=[knob.name for knob in family_knobs(family) if knob.name in ("noise", "steps")],
        **content,
    )


def calculator_api(site: PageServer, request: Request) -> Response:
    """Epsilon of every line as JSON, or with `solve=noise` the noise multiplier; null is infinite or not worked out."""
    family, numbers, delta = read_question(request)
    told: dict[str, Any] = {"scheme": chosen_scheme(request), **numbers, "delta": delta}
    told |= family.state_claim(family.complete_numbers(numbers))
    if solved_for(request) == "noise":
        told["noise_multiplier"] = {row["name"]: row["noise"] for row in solve_noises(family, numbers, delta)}
    else:
        told["epsilon"] = {row["name"]: row["epsilon"] for row in worked_out(family, numbers, delta)}
    note = family.note_delta(numbers, delta)
    return json_response(replace_nonfinite(told | ({"note": note} if note else {})))


def solved_for(request: Request) -> str:
    """What is to be worked out."""
    name = request.one("solve", "epsilon")
    if name not in SOLVE:
        invalid("solve", name, "epsilon or noise is worked out", did_you_mean(name, list(SOLVE)))
    return name


def family_knobs(family: SchemeFamily) -> list[Knob]:
    """The numbers of a scheme that have a range, as knobs."""
    return [make_knob(parameter) for parameter in family.ranged_parameters]


def knobs_of(family: SchemeFamily, solve: str) -> list[Knob]:
    """The numbers that are turned: where the noise is worked out, epsilon in its place."""
    return [EPSILON if knob.name == "noise" and solve == "noise" else knob for knob in family_knobs(family)]


def chosen_scheme(request: Request) -> str:
    """The scheme's name."""
    name = request.one("scheme", "poisson")
    if name not in SCHEMES:
        invalid("scheme", name, "no such scheme", did_you_mean(name, list(SCHEMES)))
    return name


def read_question(request: Request) -> Asked:
    """The scheme, its numbers and delta."""
    family = SCHEMES[chosen_scheme(request)]
    numbers: dict[str, Any] = {k.name: k.read(request.one(k.name)) for k in knobs_of(family, solved_for(request))}
    words = {one.name: read_choice(family, one, request) for one in family.chosen_parameters}
    return family, numbers | words, DELTA.read(request.one("delta"))


def read_choice(family: SchemeFamily, parameter: Parameter, request: Request) -> str:
    """The word that was chosen of those it may be."""
    word = request.one(parameter.name) or str(family.defaults[parameter.name])
    if word not in parameter.choices:
        invalid(parameter.name, word, "no such choice", did_you_mean(word, list(parameter.choices)))
    return word


def drawn_choice(family: SchemeFamily, parameter: Parameter, request: Request) -> dict[str, Any]:
    """A choice of words as the page draws it, where the request left it."""
    chosen = request.one(parameter.name) or family.defaults[parameter.name]
    return {"name": parameter.name, "label": parameter.label, "words": parameter.choices, "chosen": chosen}


def list_facts(family: SchemeFamily, numbers: Numbers, delta: float) -> list[tuple[str, str]]:
    """For whom the numbers hold, and what the scheme knows of itself besides its cost, in words."""
    complete = family.complete_numbers(numbers)
    facts = family.state_claim(complete) | family.make(**complete).list_facts(delta=delta)
    return [(name.replace("_", " "), format_fact(name, value)) for name, value in facts.items()]


def format_fact(name: str, value: Any) -> str:
    """A fact as the page shows it: bounds rounded up, other numbers as they are."""
    if isinstance(value, float):
        return format_upper(value, digits=4) if name in UPPER_FACTS else format_short(value, 4)
    return ", ".join(format_fact(name, one) for one in value) if isinstance(value, list) else str(value)


UPPER_FACTS = ("noise_std", "sensitivity", "sensitivity_of_a_turn")
"""Facts that are bounds, or noise that is needed."""


def cached_epsilon(scheme: Scheme, accountant: Accountant, delta: float) -> float:
    """Epsilon; the accountant remembers what it was asked before."""
    return scheme.epsilon(delta=delta, accountant=accountant)


def worked_out(family: SchemeFamily, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """Name, epsilon, its words, and its length against the longest."""
    found = {name: cached_epsilon(*pair, delta) for name, pair in comparison_lines(family, numbers).items()}
    top = max([value for value in found.values() if math.isfinite(value)], default=1.0)
    return [
        {"name": name, "epsilon": value, "words": format_upper(value, digits=4), "share": _bar_share(value, top)}
        for name, value in found.items()
    ]


def least_noise(family: SchemeFamily, numbers: Numbers, line: str, delta: float) -> float:
    """The least noise multiplier with which a line of the comparison costs at most `numbers["epsilon"]`."""

    def line_at(noise: float) -> tuple[Scheme, Accountant]:
        return comparison_lines(family, _with_noise(numbers, noise))[line]

    _, accountant = line_at(1.0)
    return accounting.calibrate(
        lambda noise: line_at(noise)[0].composition, epsilon=numbers["epsilon"], delta=delta, accountant=accountant
    )


def _with_noise(numbers: Numbers, noise: float) -> dict[str, float]:
    """The numbers of the scheme itself: a noise in place of the budget."""
    return {name: value for name, value in numbers.items() if name != "epsilon"} | {"noise": noise}


def solve_noises(family: SchemeFamily, numbers: Numbers, delta: float) -> list[dict[str, Any]]:
    """The same for the least noise multiplier whose epsilon is at most `numbers["epsilon"]`.

    Guarantees: what is shown was evaluated and meets the budget, and is rounded up. The scheme itself is always
    searched, the others while there is time.
    """
    begun = time.thread_time()
    found: dict[str, float | None] = dict.fromkeys(comparison_lines(family, _with_noise(numbers, 1.0)))
    for name in sorted(found, key=lambda name: (name != "this scheme", name == "by RDP")):
        if name == "this scheme" or time.thread_time() - begun < PATIENCE:
            found[name] = least_noise(family, numbers, name, delta)
    top = max(value for value in found.values() if value)
    return [
        {"name": name, "noise": value, "words": format_upper(value, digits=4), "share": _bar_share(value, top)}
        if value
        else {"name": name, "noise": None, "words": "–", "share": "0"}
        for name, value in found.items()
    ]


def drawn_charts(request: Request, family: SchemeFamily, numbers: Numbers, delta: float) -> list[Chart]:
    """The curve around the chosen noise, or around the one that meets the chosen epsilon; the scheme's own pictures."""
    if solved_for(request) == "noise":
        numbers = _with_noise(numbers, least_noise(family, numbers, "this scheme", delta))
    curve = epsilon_curve(family, numbers, delta, request.one("against", "noise"))
    pictures = family.make(**family.complete_numbers(numbers)).list_pictures()
    return [chart for chart in (curve, *map(draw_picture, pictures)) if chart is not None]


def draw_picture(picture: Picture) -> Chart | None:
    """A picture of a scheme as a chart."""
    x_axis = Axis(picture.x_label, tick=lambda x: format_short(x, 4), value=lambda x: f"{picture.x_label} {x:g}")
    y_axis = Axis(picture.y_label, tick=lambda y: format_short(y, 3), value=lambda y: format_short(y, 4))
    lines = [ChartLine(name, list(values)) for name, values in picture.lines.items()]
    return line_chart(picture.name, picture.title, picture.x, lines, x_axis=x_axis, y_axis=y_axis)


def _bar_share(value: float, top: float) -> str:
    if not math.isfinite(value):
        return "100"
    return f"{100 * value / top:.1f}" if top > 0 else "0"


def epsilon_curve(family: SchemeFamily, numbers: Numbers, delta: float, against: str) -> Chart | None:
    """Epsilon of every line around the chosen noise, or number of steps."""
    drawn_by = {one.name: one for one in family_knobs(family) if one.name in ("noise", "steps")}
    knob = drawn_by.get(against, drawn_by["noise"])
    xs, found = _curve_points(family, numbers, delta, knob)
    exact: dict[float, float] = {math.log10(v): v for v in sorted(v for row in found.values() for v in row if v)}
    logs = {name: [math.log10(value) if value else None for value in row] for name, row in found.items()}
    axis = Axis("epsilon", tick=_tick_word, value=lambda log: format_upper(exact.get(log, 10**log), digits=4))
    title = f"Epsilon by {knob.name}, logarithmic"
    x_axis = Axis(knob.label, tick=lambda x: format_short(x, 4), value=lambda x: f"{knob.name} {format_short(x, 4)}")
    here = {row["name"]: row["words"] for row in worked_out(family, numbers, delta)}
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
    if knob.name == "steps" and "uses" in numbers:
        low = max(low, numbers["uses"])
    grid = [low * (high / low) ** (place / (len(POINTS) - 1)) for place in range(len(POINTS))]
    xs = sorted({round(x) if knob.whole else float(f"{x:.4g}") for x in grid})
    found: dict[str, list[float | None]] = {name: [None] * len(xs) for name in comparison_lines(family, numbers)}
    begun = time.thread_time()
    for place in POINTS:
        if place < len(xs) and time.thread_time() - begun < PATIENCE:
            lines = comparison_lines(family, {**numbers, knob.name: xs[place]})
            for name in found.keys() & lines.keys():
                found[name][place] = cached_epsilon(*lines[name], delta)
    return [float(x) for x in xs], found
