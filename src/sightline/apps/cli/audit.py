"""`sightline audit`: attack the mechanism that a file runs and compare the result with its claimed epsilon."""

import json
import math
from pathlib import Path
from typing import Any

import click

AUDIT_EXAMPLES = """
\b
Examples:
  sightline audit examples/quickstart.toml
  sightline audit examples/balanced.toml --trials 2000 --rounds 40 --json
  sightline audit examples/quickstart.toml --set privacy.arithmetic=integer --delta 0.01
  sightline audit examples/overlapping-groups.toml --set data.clients=40 --subject client-3 --plot audit.svg

Exit codes: 0 no claim was refuted, 1 one was, 2 bad input. See docs/auditing.md for what the numbers mean.
"""

METHODS = {
    "repeated": "by repeated runs",
    "canaries": "by canaries in one run",
    "own model": "by a canary before the file's own model",
    "curve": "by guesses against the claimed curve",
    "scores": "by independent scores against the claimed curve",
}


@click.command("audit", epilog=AUDIT_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. privacy.epsilon=4.")
@click.option("--trials", type=int, default=1000, show_default=True, help="Runs with the subject, and as many without.")
@click.option("--canaries", type=int, default=1000, show_default=True, help="Canaries of the one run, at most.")
@click.option(
    "--runs", type=int, default=4, show_default=True, help="Runs of canaries pooled against the claimed curve."
)
@click.option("--rounds", type=int, help="Rounds to audit (default: the file's, at most 10); both numbers are of them.")
@click.option("--delta", type=float, help="The delta of every number (default: the file's; see docs/auditing.md).")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="With which the lower bound holds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the audit's own random draws.")
@click.option("--observer", help="Whose view to attack from, e.g. edge-1 (default: the one with the largest claim).")
@click.option("--subject", help="Whose data to attack, e.g. client-3 (default: the one with the largest claim).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw bounds and claims to this .svg or .html file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def audit_command(config: Path, overrides: tuple[str, ...], as_json: bool, plot: Path | None, **numbers: Any) -> int:
    """Attack the mechanism that CONFIG runs: how large must epsilon be at least, and how large is it claimed to be?"""
    from sightline.apps.audit import audit
    from sightline.apps.report.audit_picture import check_plot, draw_audit
    from sightline.config import read
    from sightline.console import CountBar

    # Check the path first: an audit takes minutes.
    check_plot(plot)
    experiment = read(config, [*overrides])
    with CountBar(f"audit {experiment.name}", "runs") as bar:
        found = audit(experiment, progress=bar.advance, **numbers)
    told = found.told()
    if plot is not None:
        draw_audit(experiment.name, told, plot)
        told["plot"] = str(plot)
    if as_json:
        click.echo(json.dumps({name: _infinite_or(value) for name, value in told.items()}, allow_nan=False))
    else:
        _print_audit(told)
    if found.broken:
        cause = _name_cause(found.unbounded, told)
        click.echo(f"sightline: {cause}: the claim is refuted, do not trust this run", err=True)
        return 1
    return 0


def _name_cause(unbounded: bool, told: dict[str, Any]) -> str:
    """Return what refutes the claim."""
    if unbounded:
        return "one example moves a sum by more than the clip norm"
    if told.get("twin_worlds_refuted"):
        return str(told["twin_worlds"])
    larger = any(one["epsilon_lower"] > one["epsilon_upper"] for one in told["findings"])
    return "epsilon_lower > epsilon_upper" if larger else "more was guessed than the claimed curve allows"


def _print_audit(told: dict[str, Any]) -> None:
    from sightline.apps.report.audit_picture import audit_verdict
    from sightline.apps.report.elements import format_upper

    claimed = format_upper(told["epsilon_upper"], digits=4)
    click.echo(
        f"{told['observer']} about {told['subject']} ({told['unit']}), {told['rounds']} of {told['rounds_planned']} "
        f"rounds, delta = {told['delta']:g}"
    )
    click.echo(f"epsilon >= {_round_down(told['epsilon_lower'])}  with confidence {told['confidence']:g}, by attacks")
    other = f" (at the file's delta = {told['file_delta']:g}: {format_upper(told['file_epsilon'], digits=4)})"
    click.echo(f"epsilon <= {claimed}  as claimed" + (other if told["file_delta"] != told["delta"] else ""))
    # Each finding with its own delta: bounds at different deltas are different claims.
    for one in told["findings"]:
        told_so = {name: value for name, value in one.items() if not name.startswith(("epsilon", "delta", "method"))}
        rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told_so.items())
        bounds = f"{_round_down(one['epsilon_lower'])} <= epsilon <= {format_upper(one['epsilon_upper'], digits=4)}"
        bounds += f" at delta {one['delta']:g}" if one["delta"] != told["delta"] else ""
        click.echo(f"  {bounds}  {METHODS.get(one['method'], one['method'])}: {rest}")
    if not told.get("twin_worlds_refuted", True):
        click.echo(told["twin_worlds"])
    if "plot" in told:
        click.echo(f"wrote {told['plot']}")
    click.echo(audit_verdict(told))


def _round_down(value: float) -> str:
    # Lower bounds are rounded down and upper bounds up, so that no printed number claims more than was proven.
    return f"{math.floor(value * 1000) / 1000:.3f}" if math.isfinite(value) else "infinity"


def _infinite_or(value: Any) -> Any:
    """Replace infinity by None, as all JSON output does."""
    if isinstance(value, list):
        return [{name: _infinite_or(one) for name, one in row.items()} for row in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
