"""`sightline groups`: who could learn how much of whom in overlapping groups, before anything is trained."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.shown import digits_up

if TYPE_CHECKING:
    from sightline.ledger.group_privacy import Answer

EXAMPLES = """
\b
Examples:
  sightline groups --structure ring --workers 100 --groups 4 --period 10 --epochs 200 --noise 2 --rate 0.7 --delta 1e-5
  sightline groups --structure groups.json --period 5 --epochs 60 --noise 3 --delta 1e-5 --plot heatmap.png
  sightline groups --structure ring --workers 40 --groups 8 --period 25 --epochs 201 --noise 3 --delta 1e-5 --bottleneck

A membership file is {"workers": 3, "groups": [[0, 1], [1, 2]]}; see docs/groups.md for schedules, rates and factors.
--epochs T: the models of the epochs 1 to T are seen; a training run of R rounds equals --epochs R+1.
"""


@click.command("groups", epilog=EXAMPLES)
@click.option("--structure", required=True, metavar="NAME|FILE", help="global, clusters, ring, string, or a JSON file.")
@click.option("--workers", type=int, help="How many workers there are.")
@click.option("--groups", "count", type=int, help="How many groups there are.")
@click.option("--period", type=int, default=1, show_default=True, help="Epochs from one exchange to the next.")
@click.option("--epochs", type=int, required=True, help="The models of the epochs 1 to T are seen.")
@click.option("--noise", type=float, required=True, help="Noise multiplier: sigma over the sensitivity.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Probability to take part in an epoch.")
@click.option("--delta", type=float, required=True, help="The delta of every epsilon.")
@click.option("--plus", is_flag=True, help="DP-OGL+: one release an interval, each worker alone through it.")
@click.option("--threat", type=click.Choice(["everyone", "out-of-group"]), default="everyone", show_default=True)
@click.option("--accountant", type=click.Choice(["pld", "rdp"]), default="pld", show_default=True)
@click.option("--bottleneck", is_flag=True, help="Take the least of the flow count and the bottleneck bound (DP-OGL).")
@click.option("--out", type=click.Path(path_type=Path), help="Write epsilon and releases of all pairs to this .npz.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the heatmap and the curves to this PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(as_json: bool, out: Path | None, plot: Path | None, **given: Any) -> None:
    """Epsilon of every pair of workers in overlapping groups (DP-OGL, DP-OGL+), from who is in which group."""
    from sightline.ledger.group_privacy import Question, answer_question, save_npz

    question = Question(**given)
    answer = answer_question(question)
    if out is not None:
        save_npz(answer, out)
    if plot is not None:
        from sightline.apps.report.groups import draw_groups

        draw_groups(answer, plot)
    found = summarise_answer(answer, out, plot)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        print_answer(answer, found)


def summarise_answer(answer: "Answer", out: Path | None, plot: Path | None) -> dict[str, Any]:
    """What `--json` prints; null where a threat model speaks of nobody."""
    from sightline.accounting import large_delta_note

    question = answer.question
    found: dict[str, Any] = {
        "epsilon_mean": _finite_or_none(answer.mean),
        "epsilon_max": _finite_or_none(answer.largest),
        "matrix_shape": [answer.workers, answer.workers],
        "delta": question.delta,
        "accountant": question.accountant,
        "threat": question.threat,
        "algorithm": "dp_ogl_plus" if question.plus else "dp_ogl",
        "structure": question.structure,
        "workers": answer.workers,
        "groups": answer.groups,
        "classes": len(answer.pairs),
        "period": question.period,
        "epochs": question.epochs,
        "noise": question.noise,
        "rate": question.rate,
        "releases_max": answer.releases_max,
        "bottleneck": question.bottleneck,
        **answer.claim.facts(),
    }
    if question.bottleneck:
        found["pairs_tightened"] = answer.tightened
    note = large_delta_note(question.delta, answer.workers, "workers")
    if note is not None:
        found["notes"] = [note]
    if out is not None:
        found["out"] = str(out)
    if plot is not None:
        found["plot"] = str(plot)
    return found


def print_answer(answer: "Answer", found: dict[str, Any]) -> None:
    """A few lines for people."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{found['workers']} workers in {found['groups']} groups, {found['classes']} different memberships; "
        f"against {found['observer']} at delta = {found['delta']:g} ({found['accountant'].upper()}), "
        f"adjacency {found['adjacency']}, noise relative to {found['noise_relative_to']}"
    )
    if found["epsilon_max"] is None:
        console.print(
            "epsilon: nobody is outside anybody's groups" if math.isnan(answer.largest) else "epsilon: infinite"
        )
        return
    mean, largest = (digits_up(found[name]) for name in ("epsilon_mean", "epsilon_max"))
    console.print(f"epsilon, worst observer: mean over workers {mean}, largest {largest}")
    if found["bottleneck"]:
        console.print(f"the bottleneck bound is below the flow count for {found['pairs_tightened']:,} pairs of workers")
    for note in found.get("notes", []):
        console.print(f"note: {note}")
    for name in ("out", "plot"):
        if name in found:
            console.print(f"wrote {found[name]}", markup=False)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
