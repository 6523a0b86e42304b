"""How values show themselves to a person: bounds rounded up; tables and curves for notebooks, words escaped."""

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape

WIDTH, HEIGHT = 320, 80


def rounded_up(bound: float) -> str:
    """An upper bound with three decimals, never less than the bound itself.

    >>> rounded_up(7.99321), rounded_up(8.0), rounded_up(math.inf)
    ('7.994', '8.000', 'infinite')
    """
    if not math.isfinite(bound):
        return "infinite"
    return str(Decimal(bound).quantize(Decimal("0.001"), rounding=ROUND_CEILING))


def digits_up(bound: float, digits: int = 6) -> str:
    """A bound, or a noise that is needed, to some significant digits: never less than it is.

    >>> digits_up(8.00000049), digits_up(2.0), digits_up(1e-9)
    ('8.00001', '2', '1e-09')
    """
    return _to_digits(bound, digits, ROUND_CEILING)


def digits_down(bound: float, digits: int = 6) -> str:
    """A lower bound to some significant digits, never more than it is.

    >>> digits_down(7.9999996)
    '7.99999'
    """
    return _to_digits(bound, digits, ROUND_FLOOR)


def _to_digits(bound: float, digits: int, rounding: str) -> str:
    rounded = Context(prec=digits, rounding=rounding).create_decimal(repr(float(bound)))
    return f"{float(rounded):.{digits}g}"


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as an HTML table under a title; whatever the cells hold is shown as text."""
    head = "".join(f"<th>{escape(word)}</th>" for word in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def svg_curve(title: str, values: Sequence[float | None]) -> str:
    """A line over 1, 2, ..., as an SVG from zero to its largest value; what is missing or infinite is a gap."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    top, last = max(*known, 0.0) or 1.0, max(len(values) - 1, 1)
    strokes = [""]
    for place, value in enumerate(values):
        if value is None or not math.isfinite(value):
            strokes.append("")
        else:
            strokes[-1] += f"{WIDTH * place / last:.1f},{HEIGHT * (1 - value / top):.1f} "
    lines = "".join(f'<polyline points="{stroke.strip()}"/>' for stroke in strokes if stroke)
    drawing = f'<g fill="none" stroke="currentColor" stroke-width="1.5">{lines}</g>'
    svg = f'<svg viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH}" role="img">{drawing}</svg>'
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"
