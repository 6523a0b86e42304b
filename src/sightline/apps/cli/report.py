"""`sightline report`, `compare` and `serve`: the page of a run, runs side by side, and a local web page."""

import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.errors import printable

if TYPE_CHECKING:
    from sightline.apps.report import RunView
    from sightline.apps.report.comparison import Comparison
    from sightline.apps.serve import Server


REPORT_EXAMPLES = """
\b
Examples:
  sightline report runs/quickstart
  sightline report runs/quickstart --open
  sightline report runs/quickstart --ledger ledger.json
  sightline report runs/quickstart --json | jq .epsilon
"""


@click.command("report", epilog=REPORT_EXAMPLES)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
@click.option("--ledger", "ledger_file", type=click.Path(path_type=Path), help="Export the ledger to this JSON file.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
def report_command(run_dir: Path, as_json: bool, ledger_file: Path | None, show: bool) -> None:
    """Rewrite report.html of the run in RUN_DIR from its own records."""
    from sightline.apps.report import RunView, write_page
    from sightline.apps.report.run_view import checked_records

    # Summary and page are made before anything is printed: a damaged record is one line and no output.
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
    """Write the ledger as one JSON file, atomically."""
    from sightline.apps.report.elements import write_whole
    from sightline.errors import invalid
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


COMPARE_EXAMPLES = """
\b
Examples:
  sightline compare runs/quickstart runs/quickstart-2
  sightline compare runs --figure comparison.html
  sightline compare runs/prox-sweep --json | jq '.groups[] | {settings, test_accuracy}'

A folder of runs stands for every run in it. Runs that differ in nothing but the seed become one row.
"""


@click.command("compare", epilog=COMPARE_EXAMPLES)
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option("--figure", type=click.Path(path_type=Path), help="Also draw it to this .html, .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def compare_command(runs: tuple[Path, ...], figure: Path | None, as_json: bool) -> None:
    """Set runs side by side: the settings that differ, metrics, epsilon, time, traffic and energy."""
    from sightline.apps.report.comparison import compare_runs, draw_comparison
    from sightline.apps.report.run_view import checked_records

    with checked_records(", ".join(map(str, runs))):
        comparison = compare_runs(runs)
        if figure is not None:
            draw_comparison(comparison, figure)
        print_comparison(comparison, as_json, figure)


def print_comparison(comparison: "Comparison", as_json: bool, figure: Path | None = None, **more: object) -> None:
    """Print one JSON object, or a table with its notes."""
    from sightline.apps.report.comparison import comparison_notes, plain_comparison

    if as_json:
        drawn = {} if figure is None else {"figure": str(figure)}
        click.echo(json.dumps(plain_comparison(comparison) | more | drawn, allow_nan=False))
        return
    print_table(comparison)
    for note in comparison_notes(comparison):
        click.echo(f"note: {printable(note)}")
    if figure is not None:
        click.echo(f"figure  {figure}")


def print_table(comparison: "Comparison") -> None:
    """Print the table within the width of a terminal, or as wide as needed into a file."""
    from rich.console import Console

    from sightline.apps.report.comparison import comparison_table

    header, rows = comparison_table(comparison)
    console = Console(highlight=False)
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    left = header.index("Runs")
    for line in lay_out(cells[0], cells[1:], left=left, width=console.width if console.is_terminal else None):
        click.echo(line)


def lay_out(header: list[str], rows: list[list[str]], *, left: int, width: int | None) -> list[str]:
    """Return a table as lines of text, the first `left` columns aligned left; nothing is ever cut off.

    If the table is wider than `width`, long headings are broken; if that is not enough, the columns are set below each
    other in blocks with numbered rows.

    >>> print("\\n".join(lay_out(["privacy.epsilon", "Runs"], [["2", "4"]], left=1, width=14)))
    privacy.
    epsilon   Runs
    --------------
    2            4
    """
    columns = [_Column(name, [row[place] for row in rows], place < left) for place, name in enumerate(header)]
    if width is None or _table_width(columns) <= width:
        return _draw_table(columns)
    # Least intrusive first: break headings, then split the table. Nothing is dropped, since each column is a result.
    columns = [column.broken() for column in columns]
    if _table_width(columns) <= width:
        return _draw_table(columns)
    number = _Column("", [str(place) for place in range(1, len(rows) + 1)], False)
    room = max(1, width - number.width - len(GAP))
    blocks: list[list[_Column]] = [[]]
    for column in (column.folded(room) for column in columns):
        if blocks[-1] and _table_width([*blocks[-1], column]) > room:
            blocks.append([])
        blocks[-1].append(column)
    lines = [line for block in blocks for line in (*_draw_table([number, *block]), "")]
    return lines[:-1]


GAP = "  "


@dataclass(frozen=True)
class _Column:
    """A heading and its cells; each may take several lines."""

    heading: str
    cells: list[str]
    left: bool

    @property
    def width(self) -> int:
        return max(_cell_width(line) for text in (self.heading, *self.cells) for line in text.split("\n"))

    def broken(self) -> "_Column":
        """Break the heading at spaces, dots and underscores, into lines no wider than necessary."""
        pieces = [piece for piece in re.findall(r"[^ ._]*[._]?", self.heading) if piece]
        # The longest piece or cell: breaking further would not make the column narrower.
        most = max(max(map(_cell_width, pieces), default=0), *(_cell_width(cell) for cell in self.cells), 1)
        lines = [""]
        for piece in pieces:
            space = "" if not lines[-1] or lines[-1][-1] in "._" else " "
            if lines[-1] and _cell_width(lines[-1] + space + piece) > most:
                lines.append(piece)
            else:
                lines[-1] += space + piece
        return replace(self, heading="\n".join(lines))

    def folded(self, most: int) -> "_Column":
        """Fold all text to lines of at most `most` cells."""
        from rich.cells import chop_cells

        def fold(text: str) -> str:
            return "\n".join(part for line in text.split("\n") for part in (chop_cells(line, most) or [""]))

        return replace(self, heading=fold(self.heading), cells=[fold(cell) for cell in self.cells])


def _table_width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _draw_table(columns: Sequence[_Column]) -> list[str]:
    rows = zip(*(column.cells for column in columns), strict=True)
    body = [line for row in rows for line in _row_lines(columns, row)]
    return [
        *_row_lines(columns, [column.heading for column in columns], bottom=True),
        "-" * _table_width(columns),
        *body,
    ]


def _row_lines(columns: Sequence[_Column], texts: Sequence[str], bottom: bool = False) -> list[str]:
    """Return the lines of one row: cells start at its top, headings end at its bottom."""
    split = [text.split("\n") for text in texts]
    high = max(len(lines) for lines in split)
    padded = [[""] * (high - len(s)) + s if bottom else s + [""] * (high - len(s)) for s in split]
    return [
        GAP.join(_pad_cell(text, column) for text, column in zip(line, columns, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _pad_cell(text: str, column: _Column) -> str:
    space = " " * (column.width - _cell_width(text))
    return text + space if column.left else space + text


def _cell_width(text: str) -> int:
    # Width in terminal cells, not characters: East Asian characters take two.
    from rich.cells import cell_len

    return cell_len(text)


SERVE_EXAMPLES = """
\b
Examples:
  sightline serve
  sightline serve --runs runs/quickstart-sweep --port 9000 --open
  ssh -L 8710:127.0.0.1:8710 machine     # with sightline serve there: the safe way from another machine

The page reads runs and never writes. Only this machine can reach it unless --host says otherwise.
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
        invalid("--runs", runs, "no such folder", "make a first run with sightline run, or name another folder")
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
    """Raise the line that says how to install the server's packages if one is missing."""
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
