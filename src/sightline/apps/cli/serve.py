"""`sightline serve`: a local web page over the runs folder."""

import json
from contextlib import closing
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
  ssh -L 8710:127.0.0.1:8710 machine     # with sightline serve there: the safe way from another machine

The page reads runs and never writes. Only this machine can reach it unless --host says otherwise.
"""


@click.command("serve", epilog=EXAMPLES)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Runs folder.")
@click.option("--port", type=click.IntRange(0, 65535), default=8710, show_default=True, help="0 takes any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Accept a further host name.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def command(runs: Path, port: int, host: str, allow_host: tuple[str, ...], show: bool, as_json: bool) -> int:
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
        click.echo("", err=True)  # ends the line on which the terminal shows ^C
    return 0


def check_installed() -> None:
    """Raise the line that says how to install the server's packages if one is missing."""
    from importlib.util import find_spec

    from sightline.errors import InvalidInput

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
    if server.host not in LOCAL:
        click.echo(
            f"sightline: --host={server.host}: other machines can reach this server, and its traffic is not encrypted; "
            "ssh -L is safer",
            err=True,
        )
