"""The picture of an audit: for every method a bar up to the bound that was found, and a mark at the claim."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sightline.apps.report.elements import format_upper, write_whole
from sightline.errors import invalid

WIDTH, LEFT, ROW, TOP = 720, 130, 56, 108
FOUND, CLAIM, WRONG, INK, SOFT = "#1f6fb2", "#0b8068", "#b03060", "#1c2230", "#5a6272"


def draw_audit(name: str, told: Mapping[str, Any], path: Path) -> None:
    """Write the picture to an .svg file, or to an .html page that holds nothing else."""
    write_whole(path, audit_svg(name, told) if path.suffix == ".svg" else audit_page(name, told))


def check_plot(path: Path | None) -> None:
    """Raise InvalidInput unless a picture of that name can be drawn; called before the work, not after it."""
    if path is not None and path.suffix not in (".svg", ".html"):
        invalid("plot", path, "an audit is drawn as .svg or .html", "e.g. --plot audit.svg")
    if path is not None and not path.absolute().parent.is_dir():
        invalid("plot", path, "there is no such folder", "make it first")


def audit_verdict(told: Mapping[str, Any]) -> str:
    """Return one sentence: whether the claim is refuted, and how close the attacks came."""
    if told["refuted"]:
        return "REFUTED: epsilon is larger than claimed, do not trust this run"
    nearest = _found_share(told)
    # Rounded down: the picture must not claim a stronger attack than was made.
    return f"not refuted: the attacks found {math.floor(100 * nearest)}% of what is claimed"


def audit_page(name: str, told: Mapping[str, Any]) -> str:
    """Return the picture on its own page."""
    title = f"Audit of {escape(name)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>{audit_svg(name, told)}</html>\n'
    )


def audit_svg(name: str, told: Mapping[str, Any]) -> str:
    """Return the picture; every text of the file is escaped."""
    findings: Sequence[Mapping[str, Any]] = told["findings"]
    # The small number avoids a division by zero if every bound is zero.
    most = max([_finite_or(one[end]) for one in findings for end in ("epsilon_lower", "epsilon_upper")] + [1e-9])
    height = TOP + ROW * len(findings) + 20
    who = f"{told['observer']} about {told['subject']} ({told['unit']}), {told['rounds']} rounds"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" aria-label="{escape(audit_verdict(told))}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _svg_text(16, 26, f"Audit of {name}: {audit_verdict(told)}", size=15, weight=650),
        _svg_text(16, 46, f"{who}; bounds hold with confidence {told['confidence']:g}", fill=SOFT),
        _svg_text(16, 72, _headline(told), size=15, weight=650, fill=WRONG if told["refuted"] else FOUND),
    ]
    for place, one in enumerate(findings):
        lines += _method_row(one, TOP + ROW * place, most)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _headline(told: Mapping[str, Any]) -> str:
    """Return what was found and what is claimed, at one delta."""
    claim = format_upper(told["epsilon_upper"], digits=4)
    return f"epsilon ≥ {_round_down(told['epsilon_lower'])} found, ≤ {claim} claimed, at delta = {told['delta']:g}"


def _round_down(value: float) -> str:
    return f"{math.floor(1000 * value) / 1000:.3f}" if math.isfinite(value) else "infinity"


def _method_row(one: Mapping[str, Any], y: int, most: float) -> list[str]:
    """Return the row of a method: the bound as a bar, the claim as a mark."""
    wide = WIDTH - LEFT - 90
    lower, claim = (LEFT + wide * _finite_or(one[f"epsilon_{end}"]) / most for end in ("lower", "upper"))
    colour = WRONG if _found_share(one) > 1 else FOUND
    low = _round_down(one["epsilon_lower"])
    return [
        _svg_text(16, y + 14, str(one["method"]), weight=600),
        _svg_text(16, y + 30, f"delta {one['delta']:g}", fill=SOFT),
        f'<rect x="{LEFT}" y="{y}" width="{max(1.0, lower - LEFT):.1f}" height="18" fill="{colour}"/>',
        f'<path d="M{claim:.1f} {y - 6}v30" stroke="{CLAIM}" stroke-width="3"/>',
        _svg_text(LEFT, y + 34, f"epsilon ≥ {low} found", fill=colour),
        _svg_text(round(claim + 6), y + 14, f"≤ {format_upper(one['epsilon_upper'], digits=4)}", fill=CLAIM),
    ]


def _found_share(one: Mapping[str, Any]) -> float:
    """Return the found share of the claim."""
    return (
        float(one["epsilon_lower"] / one["epsilon_upper"]) if one["epsilon_upper"] else math.inf * one["epsilon_lower"]
    )


def _finite_or(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _svg_text(x: int, y: int, words: str, *, fill: str = INK, size: int = 13, weight: int = 400) -> str:
    return f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" font-weight="{weight}">{escape(words)}</text>'
