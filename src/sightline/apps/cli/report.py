"""`sightline report`: rebuild the page of a run, and export its ledger."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sightline.apps.report import RunView

EXAMPLES = """
\b
Examples:
  sightline report runs/quickstart
  sightline report runs/quickstart --open
  sightline report runs/quickstart --ledger ledger.json
  sightline report runs/quickstart --json | jq .epsilon
"""


@click.command("report", epilog=EXAMPLES)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
@click.option("--ledger", "ledger_file", type=click.Path(path_type=Path), help="Export the ledger to this JSON file.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
def command(run_dir: Path, as_json: bool, ledger_file: Path | None, show: bool) -> None:
    """Write report.html of the run in RUN_DIR anew, from its own records."""
    from sightline.apps.report import RunView, write_page
    from sightline.apps.report.run_view import checked_records

    with checked_records(run_dir):
        run = RunView.read(run_dir)
        told = report_summary(run, ledger_file)
        page = write_page(run)
    if ledger_file is not None:
        export_ledger(run, ledger_file)
    if as_json:
        click.echo(json.dumps(told, allow_nan=False))
    else:
        click.echo(str(page))
        if ledger_file is not None:
            click.echo(str(ledger_file))
    if show:
        click.launch(page.resolve().as_uri())


def export_ledger(run: "RunView", path: Path) -> None:
    """Write the ledger as one JSON file, whole or not at all."""
    from sightline.apps.report.section import write_whole
    from sightline.errors import invalid
    from sightline.ledger import export_ledger

    text = json.dumps(export_ledger(run.ledger), allow_nan=False)
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        invalid("--ledger", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def report_summary(run: "RunView", ledger_file: Path | None) -> dict[str, Any]:
    """The facts of a run for scripts: those of `sightline run --json`, its name, and its ledger."""
    from sightline.apps.report import summarise_run

    ledger = {} if ledger_file is None else {"ledger": str(ledger_file)}
    return summarise_run(run) | {"name": run.name, "ledger_head": run.head} | ledger
