"""`sightline report`, `compare`, `sweep` and `serve`: the page of a run, runs side by side, and a local web page."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.main import complete_over, end_words, set_option
from sightline.errors import printable

if TYPE_CHECKING:
    from sightline.apps.report import RunView
    from sightline.apps.report.comparison import Comparison
    from sightline.apps.report.comparison_figure import FigureChoice
    from sightline.apps.serve import Server
    from sightline.apps.sweep import SweepJob, Swept


REPORT_EXAMPLES = """
\b
Examples:
  sightline report runs/quickstart
  sightline report runs/quickstart --open
  sightline report runs/quickstart --ledger ledger.json
  sightline report runs/quickstart --officer --open
  sightline report runs/quickstart --json | jq .epsilon
"""


@click.command("report", epilog=REPORT_EXAMPLES)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
@click.option("--ledger", "ledger_file", type=click.Path(path_type=Path), help="Export the ledger to this JSON file.")
@click.option("--officer", is_flag=True, help="Write officer.html instead: the record for a data protection officer.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
def report_command(run_dir: Path, as_json: bool, ledger_file: Path | None, officer: bool, show: bool) -> None:
    """Rewrite report.html of the run in RUN_DIR from its own records."""
    from sightline.apps.report import RunView, summarise_officer, write_officer, write_page
    from sightline.apps.report.run_view import checked_records

    # Summary and page are made before anything is printed: a damaged record is one line and no output.
    with checked_records(run_dir):
        run = RunView.read(run_dir)
        summary = report_summary(run, ledger_file)
        if officer:
            summary |= {"officer": summarise_officer(run)}
        page = write_officer(run) if officer else write_page(run)
    if ledger_file is not None:
        write_ledger_json(run, ledger_file)
    if as_json:
        click.echo(json.dumps(summary, allow_nan=False))
    else:
        click.echo(str(page))
        if ledger_file is not None:
            click.echo(str(ledger_file))
    if show:
        click.launch(page.resolve().as_uri())


def write_ledger_json(run: "RunView", path: Path) -> None:
    """Write the ledger as one JSON file, atomically."""
    from sightline.errors import invalid
    from sightline.formatting import write_whole
    from sightline.ledger import export_ledger

    # allow_nan=False: NaN and Infinity are not JSON, and other readers would fail on them.
    text = json.dumps(export_ledger(run.ledger), allow_nan=False)
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        invalid("--ledger", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def report_summary(run: "RunView", ledger_file: Path | None) -> dict[str, Any]:
    """Return the facts of a run for scripts: those of `sightline run --json`, its name, and its ledger."""
    from sightline.apps.report import summarise_run

    ledger = {} if ledger_file is None else {"ledger": str(ledger_file)}
    return summarise_run(run) | {"name": run.name, "ledger_head": run.head} | ledger


@dataclass(frozen=True)
class ComparisonOutput:
    """How a comparison is printed and drawn."""

    as_json: bool
    table: str | None
    columns: tuple[str, ...]
    figure: Path | None
    choice: "FigureChoice"


def _complete_panels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sightline.apps.report.comparison_figure import PANELS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in PANELS if name.startswith(last) and name not in before.split(",")]


OUTPUT_OPTIONS = (
    click.option("--figure", type=click.Path(path_type=Path), help="Also draw it to this .html, .png, .svg or .pdf."),
    click.option(
        "--panels", metavar="NAME,NAME", default="", shell_complete=_complete_panels,
        help="Panels of the figure: swept (metric by setting), rounds, epsilon, time, traffic, energy (default: all).",
    ),
    click.option("--metric", default="", metavar="NAME", help="What the figure shows (default: the main metric)."),
    click.option("--x", default="", metavar="KEY", help="Setting on the axis of panel swept (default: the first)."),
    click.option("--size", metavar="WIDTH", help="Size of the figure: column, text, page, or WIDTHxHEIGHT in inches."),
    click.option("--table", type=click.Choice(("latex", "csv")), help="Print the table in this format."),
    click.option("--columns", default="", metavar="NAME,NAME", help="Measures in the table: test_accuracy,epsilon,..."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout."),
)  # fmt: skip


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a comparison is shown; they arrive checked as one `output`."""

    @wraps(command)
    def call(
        *given: Any, figure: Path | None, panels: str, metric: str, x: str, size: str | None, table: str | None,
        columns: str, as_json: bool, **more: Any,
    ) -> Any:  # fmt: skip
        from sightline.apps.report.comparison_figure import FigureChoice, check_figure, read_panels, read_size
        from sightline.errors import invalid

        # Checked before hours of runs, not after them.
        if figure is not None:
            check_figure(figure)
        if table and as_json:
            invalid("--table", table, "--json is given too", "keep one of the two")
        choice = FigureChoice(read_panels(panels), metric, x, None if size is None else read_size(size))
        names = tuple(name.strip() for name in columns.split(",") if name.strip())
        return command(*given, output=ComparisonOutput(as_json, table, names, figure, choice), **more)

    for option in reversed(OUTPUT_OPTIONS):
        call = option(call)
    return call


COMPARE_EXAMPLES = """
\b
Examples:
  sightline compare runs/quickstart runs/quickstart-2
  sightline compare runs --figure comparison.html
  sightline compare runs/prox-sweep --json | jq '.groups[] | {settings, test_accuracy}'
  sightline compare runs/prox-sweep --table latex --columns test_accuracy,epsilon > table.tex

A folder of runs means every run in it. Runs that differ only in their seed become one row.
"""


@click.command("compare", epilog=COMPARE_EXAMPLES)
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@output_options
def compare_command(runs: tuple[Path, ...], output: ComparisonOutput) -> None:
    """Compare runs side by side: the settings that differ, metrics, clusters, epsilon, time, traffic and energy."""
    from sightline.apps.report.comparison import check_columns, compare_runs
    from sightline.apps.report.comparison_figure import draw_comparison
    from sightline.apps.report.run_view import checked_records

    with checked_records(", ".join(map(str, runs))):
        comparison = compare_runs(runs)
        check_columns(output.columns, comparison.columns)
        if output.figure is not None:
            draw_comparison(comparison, output.figure, choice=output.choice)
        print_comparison(comparison, output, output.figure)


def print_comparison(comparison: "Comparison", output: ComparisonOutput, figure: Path | None, **more: object) -> None:
    """Print one JSON object, a table for a paper, or a table with its notes."""
    from sightline.apps.report.comparison import comparison_notes, csv_table, latex_table, plain_comparison

    if output.as_json:
        drawn = {} if figure is None else {"figure": str(figure)}
        click.echo(json.dumps(plain_comparison(comparison) | more | drawn, allow_nan=False))
        return
    # A table in another format goes into a file: nothing else may be on stdout.
    if output.table:
        click.echo((latex_table if output.table == "latex" else csv_table)(comparison, output.columns))
    else:
        print_table(comparison, output.columns)
    for note in comparison_notes(comparison):
        click.echo(f"note: {printable(note)}", err=bool(output.table))
    if figure is not None:
        click.echo(f"figure  {figure}", err=bool(output.table))


def print_table(comparison: "Comparison", columns: tuple[str, ...] = ()) -> None:
    """Print the table within the width of a terminal, or as wide as needed into a file."""
    from rich.console import Console

    from sightline.apps.report.comparison import comparison_table

    header, rows = comparison_table(comparison, columns)
    console = Console()
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    width = console.width if console.is_terminal else None
    click.echo(format_table(cells[0], cells[1:], left=header.index("Runs"), width=width))


def format_table(header: list[str], rows: list[list[str]], *, left: int, width: int | None) -> str:
    """Return a table as text, the first `left` columns aligned left; nothing is ever cut off.

    If the table is wider than `width`, each row becomes a list of its values, one per line.

    >>> print(format_table(["algorithm", "Runs"], [["fedavg", "4"]], left=1, width=80))
    algorithm  Runs
    ---------------
    fedavg        4
    >>> print(format_table(["algorithm", "Runs"], [["fedavg", "4"]], left=1, width=12))
    algorithm: f
    edavg
    Runs: 4
    """
    from rich.box import Box
    from rich.cells import cell_len, chop_cells
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Like rich.box.SIMPLE_HEAD, in ASCII.
    box = Box("    \n    \n -- \n" + 5 * "    \n", ascii=True)
    table = Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, name in enumerate(header):
        table.add_column(Text(name), justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    wide = Console(width=100_000, color_system=None)
    with wide.capture() as drawn:
        wide.print(table)
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    if width is not None and max(map(cell_len, lines)) > width:
        pairs = [[f"{name}: {value}" for name, value in zip(header, row, strict=True)] for row in rows]
        blocks = [[part for line in block for part in chop_cells(line, width)] for block in pairs]
        return "\n\n".join("\n".join(block) for block in blocks)
    return "\n".join(lines)


SWEEP_EXAMPLES = """
\b
Examples:
  sightline sweep examples/quickstart.toml --over algorithm.name=fedavg,fedprox --seeds 4
  sightline sweep examples/quickstart.toml --over privacy.epsilon=2,4,8 --over privacy.clip_norm=0.5,1 --workers 2
  sightline sweep examples/quickstart.toml --over 'model.hidden=[64],[64,32]' --set rounds=10 --figure sweep.png
  sightline sweep examples/quickstart.toml --over privacy.epsilon=1,2,4,8 --seeds 5 --figure fig.pdf \\
    --panels swept --size column

Run the same command again to continue an interrupted sweep; more values or seeds extend it.
Exit codes: 0 all done, 1 some failed, 2 bad input, 130 interrupted (by SIGTERM 143, by SIGHUP 129).
"""


@click.command("sweep", epilog=SWEEP_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--over", multiple=True, metavar="KEY=V,V", shell_complete=complete_over,
              help="Values of one key; several --over are combined.")  # fmt: skip
@click.option("--seeds", type=int, help="Number of seeds of every combination, from the file's own upwards.")
@set_option("Change a key in every run.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs (default: runs/NAME-sweep).")
@click.option("--workers", type=int, help="Runs at a time (default: one per core).")
@output_options
def sweep_command(
    config: Path, over: tuple[str, ...], seeds: int | None, overrides: tuple[str, ...], out: Path | None,
    workers: int | None, output: ComparisonOutput,
) -> int:  # fmt: skip
    """Run CONFIG with every combination of the values given, and compare the results side by side."""
    from sightline.apps.report.comparison import check_columns
    from sightline.apps.sweep import list_jobs, run_sweep
    from sightline.config import read
    from sightline.console import SweepBar
    from sightline.errors import invalid

    check_columns(output.columns)
    keys = [choices.partition("=")[0].strip() for choices in over]
    if output.choice.x and output.choice.x not in keys:
        invalid(
            "--x", output.choice.x, "the sweep does not vary this key", f"give {' or '.join(keys) or 'a key of --over'}"
        )
    out = out or Path("runs") / f"{read(config, overrides).name}-sweep"
    planned = list_jobs(config, over=over, seeds=seeds, given=overrides, out=out)
    rounds = sum(job.experiment.rounds for job in planned if job.experiment)
    with SweepBar(out.name, len(planned), rounds) as bar:
        swept = run_sweep(planned, workers=workers, on_message=lambda job, message: bar.take(job.name, message))
    return conclude_sweep(planned, swept, out, output)


def conclude_sweep(planned: "list[SweepJob]", swept: "Swept", out: Path, output: ComparisonOutput) -> int:
    """Print the table of the finished runs and a line for every other one; write the page and return the exit code."""
    from sightline.errors import InvalidInput

    done = swept.done_directories(planned)
    for job, reason in swept.failed:
        click.echo(f"sightline: failed: {printable(f'{job.name}: {reason}')}", err=True)
    if not done and not swept.interrupted:
        raise InvalidInput(f"sweep={out}: none of its {len(planned)} runs finished; see the reasons above")
    # What is done is shown even if other jobs failed: the same command continues later.
    if done or output.as_json:
        _print_sweep(planned, swept, done, out, output)
    if swept.interrupted:
        left = len(planned) - len(done) - len(swept.failed)
        click.echo(
            f"sightline: {end_words()}; {left} of {len(planned)} runs left; repeat the command to continue", err=True
        )
    return 130 if swept.interrupted else 1 if swept.failed else 0


def _print_sweep(
    planned: "list[SweepJob]", swept: "Swept", done: list[Path], out: Path, output: ComparisonOutput
) -> None:
    from sightline.apps.report.comparison import compare_runs
    from sightline.apps.report.comparison_figure import draw_comparison

    comparison = compare_runs(done)
    page = output.figure or out / "sweep.html"
    if done:
        draw_comparison(comparison, page, title=out.name, choice=output.choice)
    failed = [{"settings": list(job.settings), "reason": reason} for job, reason in swept.failed]
    about = {"out": str(out), "planned": len(planned), "done": len(done), "done_before": swept.before}
    drawn = page if done else None
    print_comparison(comparison, output, drawn, **about, failed=failed, interrupted=swept.interrupted)


SERVE_EXAMPLES = """
\b
Examples:
  sightline serve
  sightline serve --runs runs/quickstart-sweep --port 9000 --open
  ssh -L 8710:127.0.0.1:8710 machine     # with sightline serve there: the safe way from another machine

The server only reads the runs. Only this machine can reach it, unless --host is given.
"""


@click.command("serve", epilog=SERVE_EXAMPLES)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Runs folder.")
@click.option("--port", type=click.IntRange(0, 65535), default=8710, show_default=True, help="0 takes any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Accept a further host name.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def serve_command(runs: Path, port: int, host: str, allow_host: tuple[str, ...], show: bool, as_json: bool) -> int:
    """Show the runs folder as a page in the browser: live progress, reports, comparison, ledger, calculator."""
    from sightline.errors import invalid

    check_installed()
    from sightline.apps.serve import Server

    if not runs.is_dir():
        invalid("--runs", runs, "no such folder", "make a first run with sightline run, or give another folder")
    with closing(Server(runs, host=host, port=port, names=allow_host)) as server:
        try:
            announce_server(server, as_json)
            if show:
                click.launch(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        # End the line on which the terminal shows ^C.
        click.echo("", err=True)
    return 0


def check_installed() -> None:
    """Raise InvalidInput, which says what to install, if a package of `sightline serve` is missing."""
    from importlib.util import find_spec

    from sightline.errors import InvalidInput

    # Found without importing: the extra is optional, and the message must come before a traceback.
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise InvalidInput('sightline serve needs sightline[serve]: pip install "sightline[serve]"')


def announce_server(server: "Server", as_json: bool) -> None:
    """Print the address; warn if other machines can reach it."""
    from sightline.apps.serve.guard import LOCAL

    if as_json:
        click.echo(json.dumps({"url": server.url, "host": server.host, "port": server.server_port}))
    else:
        click.echo(
            f"Sightline is at  {server.url}\nAnyone with this address can read the runs. Ctrl-C stops the server."
        )
    # The token protects the pages but travels unencrypted.
    if server.host not in LOCAL:
        click.echo(
            f"sightline: --host={server.host}: other machines can reach this server, and its traffic is not encrypted; "
            "ssh -L is safer",
            err=True,
        )
