"""`sightline serve`: a local web page over the runs folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sightline.apps.serve import Server

EXAMPLES = """
\b
Examples:
  sightline serve
  sightline serve --runs runs/quickstart-sweep --port 9000 --open
  ssh -L 8710:127.0.0.1:8710 machine     # and sightline serve there: the safe way to look from elsewhere

The page reads runs and never writes. It listens to this machine only unless --host says otherwise.
"""


@click.command("serve", epilog=EXAMPLES)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Runs folder.")
@click.option("--port", type=click.IntRange(0, 65535), default=8710, show_default=True, help="0 takes any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further name that this server goes by.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def command(runs: Path, port: int, host: str, allow_host: tuple[str, ...], show: bool, as_json: bool) -> int:
    """Show the runs folder as a page in the browser: live progress, reports, comparison, ledger, calculator."""
    from sightline.apps.serve import Server
    from sightline.errors import invalid

    if not runs.is_dir():
        invalid("--runs", runs, "no such folder", "make a first run with sightline run, or name another folder")
    server = Server(runs, host=host, port=port, names=allow_host)
    with server:
        announce_server(server, as_json)
        if show:
            click.launch(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("", err=True)
    return 0


def announce_server(server: "Server", as_json: bool) -> None:
    """Where to look, and who else can."""
    from sightline.apps.serve.guard import LOCAL

    if as_json:
        click.echo(json.dumps({"url": server.url, "host": server.host, "port": server.server_port}))
    else:
        click.echo(f"Sightline is at  {server.url}\nThe address holds a token: whoever has it can read. Ctrl-C stops.")
    if server.host not in LOCAL:
        click.echo(
            f"sightline: --host={server.host}: other machines can reach this, and what is sent is not encrypted; "
            "ssh -L is safer",
            err=True,
        )
