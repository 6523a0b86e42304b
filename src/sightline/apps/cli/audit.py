"""`sightline audit`: attack the mechanism that a file runs, compare the result with its claimed epsilon, draw both."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from sightline.apps.cli.main import set_option
from sightline.errors import invalid
from sightline.formatting import format_upper, write_whole

AUDIT_EXAMPLES = """
\b
Examples:
  sightline audit examples/quickstart.toml
  sightline audit examples/balanced.toml --trials 2000 --rounds 40 --json
  sightline audit examples/quickstart.toml --set privacy.arithmetic=integer --delta 0.01
  sightline audit examples/overlapping-groups.toml --set data.clients=40 --subject client-3 --plot audit.svg

Exit codes: 0 no claim refuted, 1 a claim refuted, 2 bad input. docs/auditing.md explains the numbers.
"""

METHODS = {
    "repeated": "by repeated runs",
    "canaries": "by canaries in one run",
    "own model": "by a canary before the file's own model",
    "curve": "by guesses against the claimed curve",
    "scores": "by independent scores against the claimed curve",
}

WIDTH, LEFT, ROW, TOP = 720, 130, 56, 108
FOUND, CLAIM, WRONG, INK, SOFT = "#1f6fb2", "#0b8068", "#b03060", "#1c2230", "#5a6272"
"""Measures and colours of the picture."""


@click.command("audit", epilog=AUDIT_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@set_option("Change a key, e.g. privacy.epsilon=4.")
@click.option("--trials", type=int, default=1000, show_default=True, help="Runs with the subject, and as many without.")
@click.option("--canaries", type=int, default=1000, show_default=True, help="Most canaries in one run.")
@click.option(
    "--runs", type=int, default=4, show_default=True, help="Runs of canaries pooled against the claimed curve."
)
@click.option("--rounds", type=int, help="Rounds to audit, and to claim for (default: the file's, at most 10).")
@click.option("--delta", type=float, help="The delta of every number (default: the file's; see docs/auditing.md).")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the lower bounds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the audit's own random draws.")
@click.option("--observer", help="Whose view to attack from, e.g. edge-1 (default: the one with the largest claim).")
@click.option("--subject", help="Whose data to attack, e.g. client-3 (default: the one with the largest claim).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw bounds and claims to this .svg or .html file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def audit_command(config: Path, overrides: tuple[str, ...], as_json: bool, plot: Path | None, **numbers: Any) -> int:
    """Attack the mechanism that CONFIG runs: how large must epsilon be at least, and how large is it claimed to be?"""
    from sightline.apps.audit import audit
    from sightline.config import read
    from sightline.console import CountBar

    # Check the path first: an audit takes minutes.
    check_plot(plot)
    experiment = read(config, [*overrides])
    with CountBar(f"audit {experiment.name}", "runs") as bar:
        result = audit(experiment, progress=bar.advance, **numbers)
    facts = result.describe()
    if result.broken:
        facts["cause"] = _name_cause(result.unbounded, facts)
    if plot is not None:
        draw_audit(experiment.name, facts, plot)
        facts["plot"] = str(plot)
    if as_json:
        click.echo(json.dumps({name: _none_if_infinite(value) for name, value in facts.items()}, allow_nan=False))
    else:
        _print_audit(facts)
    if result.broken:
        click.echo(f"sightline: {facts['cause']}: the claim is refuted, do not trust this run", err=True)
        return 1
    return 0


def _name_cause(unbounded: bool, facts: dict[str, Any]) -> str:
    """Return what refutes the claim."""
    if unbounded:
        return "one example moves a sum by more than the clip norm"
    if facts.get("twin_worlds_refuted"):
        return str(facts["twin_worlds"])
    larger = any(finding["epsilon_lower"] > finding["epsilon_upper"] for finding in facts["findings"])
    return "epsilon_lower > epsilon_upper" if larger else "more was guessed than the claimed curve allows"


def _print_audit(facts: dict[str, Any]) -> None:
    claimed = format_upper(facts["epsilon_upper"], digits=4)
    click.echo(
        f"{facts['observer']} about {facts['subject']} ({facts['unit']}), "
        f"{facts['rounds']} of {facts['rounds_planned']} rounds, delta = {facts['delta']:g}"
    )
    click.echo(f"epsilon >= {_round_down(facts['epsilon_lower'])}  with confidence {facts['confidence']:g}, by attacks")
    other = f" (at the file's delta = {facts['file_delta']:g}: {format_upper(facts['file_epsilon'], digits=4)})"
    click.echo(f"epsilon <= {claimed}  as claimed" + (other if facts["file_delta"] != facts["delta"] else ""))
    # Each finding with its own delta: bounds at different deltas are different claims.
    for finding in facts["findings"]:
        names = [name for name in finding if not name.startswith(("epsilon", "delta", "method"))]
        rest = ", ".join(f"{name.replace('_', ' ')} {finding[name]}" for name in names)
        lower, upper = _round_down(finding["epsilon_lower"]), format_upper(finding["epsilon_upper"], digits=4)
        bounds = f"{lower} <= epsilon <= {upper}"
        bounds += f" at delta {finding['delta']:g}" if finding["delta"] != facts["delta"] else ""
        click.echo(f"  {bounds}  {METHODS.get(finding['method'], finding['method'])}: {rest}")
    if not facts.get("twin_worlds_refuted", True):
        click.echo(facts["twin_worlds"])
    if "plot" in facts:
        click.echo(f"wrote {facts['plot']}")
    click.echo(audit_verdict(facts))


def _round_down(value: float) -> str:
    # Lower bounds are rounded down and upper bounds up, so that no printed number claims more than was proven.
    return f"{math.floor(value * 1000) / 1000:.3f}" if math.isfinite(value) else "infinity"


def _none_if_infinite(value: Any) -> Any:
    """Replace infinity by None, as all JSON output does."""
    if isinstance(value, list):
        return [{name: _none_if_infinite(entry) for name, entry in row.items()} for row in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw_audit(name: str, facts: Mapping[str, Any], path: Path) -> None:
    """Write the picture to an .svg file, or to an .html page that holds nothing else."""
    write_whole(path, audit_svg(name, facts) if path.suffix == ".svg" else audit_page(name, facts))


def check_plot(path: Path | None) -> None:
    """Raise InvalidInput unless a picture of that name can be drawn; called before the work, not after it."""
    if path is not None and path.suffix not in (".svg", ".html"):
        invalid("plot", path, "an audit is drawn as .svg or .html", "e.g. --plot audit.svg")
    if path is not None and not path.absolute().parent.is_dir():
        invalid("plot", path, "there is no such folder", "make it first")


def audit_verdict(facts: Mapping[str, Any]) -> str:
    """Return one sentence: whether the claim is refuted, and how close the attacks came."""
    if facts["refuted"]:
        return f"REFUTED: {facts.get('cause', 'epsilon is larger than claimed')}; do not trust this run"
    nearest = _found_share(facts)
    # Rounded down: the picture must not claim a stronger attack than was made.
    return f"not refuted: the attacks found {math.floor(100 * nearest)}% of what is claimed"


def audit_page(name: str, facts: Mapping[str, Any]) -> str:
    """Return the picture on its own page."""
    title = f"Audit of {escape(name)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>{audit_svg(name, facts)}</html>\n'
    )


def audit_svg(name: str, facts: Mapping[str, Any]) -> str:
    """Return the picture as SVG; all text is escaped."""
    findings: Sequence[Mapping[str, Any]] = facts["findings"]
    # The small number avoids a division by zero if every bound is zero.
    most = max(1e-9, *(_zero_if_infinite(row[end]) for row in findings for end in ("epsilon_lower", "epsilon_upper")))
    height = TOP + ROW * len(findings) + 20
    pair = f"{facts['observer']} about {facts['subject']} ({facts['unit']}), {facts['rounds']} rounds"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" aria-label="{escape(audit_verdict(facts))}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _svg_text(16, 26, f"Audit of {name}: {audit_verdict(facts)}", size=15, weight=650),
        _svg_text(16, 46, f"{pair}; bounds hold with confidence {facts['confidence']:g}", fill=SOFT),
        _svg_text(16, 72, _headline(facts), size=15, weight=650, fill=WRONG if facts["refuted"] else FOUND),
    ]
    for index, finding in enumerate(findings):
        lines += _method_row(finding, TOP + ROW * index, most)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _headline(facts: Mapping[str, Any]) -> str:
    """Return what was found and what is claimed, at one delta."""
    claim = format_upper(facts["epsilon_upper"], digits=4)
    return f"epsilon ≥ {_round_down(facts['epsilon_lower'])} found, ≤ {claim} claimed, at delta = {facts['delta']:g}"


def _method_row(finding: Mapping[str, Any], y: int, most: float) -> list[str]:
    """Return the row of a method: the bound as a bar, the claim as a mark."""
    wide = WIDTH - LEFT - 90
    lower, claim = (LEFT + wide * _zero_if_infinite(finding[f"epsilon_{end}"]) / most for end in ("lower", "upper"))
    colour = WRONG if _found_share(finding) > 1 else FOUND
    low = _round_down(finding["epsilon_lower"])
    return [
        _svg_text(16, y + 14, str(finding["method"]), weight=600),
        _svg_text(16, y + 30, f"delta {finding['delta']:g}", fill=SOFT),
        f'<rect x="{LEFT}" y="{y}" width="{max(1.0, lower - LEFT):.1f}" height="18" fill="{colour}"/>',
        f'<path d="M{claim:.1f} {y - 6}v30" stroke="{CLAIM}" stroke-width="3"/>',
        _svg_text(LEFT, y + 34, f"epsilon ≥ {low} found", fill=colour),
        _svg_text(round(claim + 6), y + 14, f"≤ {format_upper(finding['epsilon_upper'], digits=4)}", fill=CLAIM),
    ]


def _found_share(finding: Mapping[str, Any]) -> float:
    """Return the found share of the claim."""
    lower, upper = finding["epsilon_lower"], finding["epsilon_upper"]
    return float(lower / upper) if upper else math.inf * lower


def _zero_if_infinite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _svg_text(x: int, y: int, text: str, *, fill: str = INK, size: int = 13, weight: int = 400) -> str:
    return f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
