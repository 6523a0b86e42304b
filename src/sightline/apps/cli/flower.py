"""`sightline flower`: an experiment as a Flower app, data for sites to try it with, and the site's own process."""

import json
from pathlib import Path

import click

from sightline.apps.cli.main import examples_epilog

EXAMPLES = """
\b
Examples:
  sightline flower export examples/quickstart.toml app
  sightline flower shards examples/sites.toml sites --epsilon 8
  sightline flower site sites/site-0 --socket sites/site-0/socket
  sightline flower spent sites/site-0
"""
FOLDER = click.Path(path_type=Path)


@click.group("flower", epilog=EXAMPLES)
def command() -> None:
    """Run experiments on Flower, with sites that keep their own data and budget."""


@command.command("export", epilog=examples_epilog("flower export examples/quickstart.toml app"))
@click.argument("config", type=FOLDER)
@click.argument("directory", type=FOLDER)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. privacy.epsilon=4.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def export_command(config: Path, directory: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Write the experiment in CONFIG as a Flower app into DIRECTORY, for `flwr run`."""
    from sightline.config import read
    from sightline.runtimes.flower.export import export_app

    made = export_app(read(config, overrides), directory)
    click.echo(json.dumps({"app": str(made)}) if as_json else f"flwr run {made}")


@command.command("shards", epilog=examples_epilog("flower shards examples/sites.toml sites --epsilon 8"))
@click.argument("config", type=FOLDER)
@click.argument("directory", type=FOLDER)
@click.option("--epsilon", type=float, required=True, help="The budget that every site's policy starts with.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. data.clients=3.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def shards_command(config: Path, directory: Path, epsilon: float, overrides: tuple[str, ...], as_json: bool) -> None:
    """Deal the data of CONFIG out to folders of sites, and write a register, to try a deployment with."""
    from sightline.config import read
    from sightline.runtimes.flower.export import export_shards

    made = [str(folder) for folder in export_shards(read(config, overrides), directory, epsilon=epsilon)]
    more = {"test": str(directory / "test.npz"), "register": str(directory / "register.toml")}
    click.echo(json.dumps({"sites": made} | more) if as_json else "\n".join(made))


@command.command("site", epilog=examples_epilog("flower site sites/site-0 --socket sites/site-0/socket"))
@click.argument("folder", type=FOLDER)
@click.option("--socket", type=FOLDER, required=True, help="Where the SuperNode's app finds this site.")
def site_command(folder: Path, socket: Path) -> None:
    """Answer for the site in FOLDER as a process of its own, until it is ended."""
    from sightline.runtimes.site.process import serve_site
    from sightline.runtimes.site.site import Site

    site = Site(folder)
    site.check()
    serve_site(site, socket, ready=lambda: click.echo(f"site {site.policy.client} answers at {socket}", err=True))


@command.command("spent", epilog=examples_epilog("flower spent sites/site-0 --json"))
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def spent_command(folder: Path, as_json: bool) -> None:
    """How much of its budget the site in FOLDER has spent, over all runs."""
    from sightline.apps.report.numbers import format_upper
    from sightline.engine import replace_nonfinite
    from sightline.runtimes.site.approval import percent_up
    from sightline.runtimes.site.site import Site

    site = Site(folder)
    status, policy = site.budget.status(), site.policy
    spent = status.spent
    if as_json:
        facts = {"epsilon": spent, "budget": policy.epsilon, "delta": policy.delta, "unit": policy.unit}
        click.echo(json.dumps(replace_nonfinite(facts)))
    else:
        whole = f"epsilon {policy.epsilon:g} at delta={policy.delta:g} per {policy.unit}"
        used = f"{percent_up(status.used):.1f} % of the budget for life ({whole})"
        click.echo(f"epsilon {format_upper(spent, digits=4)}, {used}")
