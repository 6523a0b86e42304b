"""`sightline server`: a server for real sites on Flower, from an empty folder to a finished run."""

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.main import WholeSentences, examples_epilog
from sightline.apps.cli.site import (
    FOLDER,
    USERS,
    _confirm,
    import_federation,
    say_line,
    service_options,
    write_services,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sightline.runtimes.remote.monitor import Metric

SERVER_EXAMPLES = """
\b
Examples:
  sightline server init server --address link.example.org:8000 --listen 10.0.0.5
  sightline server invite server examples/sites.toml st-mary.request.toml st-john.request.toml
  sightline server start server
  sightline server run server
  sightline server status server
"""


@click.group("server", cls=WholeSentences, epilog=SERVER_EXAMPLES)
def server_command() -> None:
    """Operate a server for real sites: make it, invite sites, run an experiment."""


@server_command.command("init", epilog=examples_epilog("server init server --address 127.0.0.1:8000 --systemd"))
@click.argument("folder", type=FOLDER)
@click.option("--address", required=True, metavar="HOST:PORT", help="Where the sites reach this server.")
@click.option("--listen", help="IP address to listen at, in a private network (default: that of --address).")
@click.option("--users", help=USERS)
@service_options
def init_command(
    folder: Path, address: str, listen: str | None, users: str | None, systemd: bool, compose: bool
) -> None:
    """Make a server in FOLDER: a certificate authority, its certificate, and folders for its processes."""
    federation = import_federation()
    server = federation.init_server(folder, address, listen, federation.find_users(users, federation.SERVER_USERS))
    click.echo(f"server for {server.address}, to listen at {server.listen}")
    write_services(folder, "server", server.users, systemd=systemd, compose=compose)
    click.echo(f"next: sightline server invite {folder} EXPERIMENT.toml NAME.request.toml ...")


@server_command.command(
    "invite",
    epilog=examples_epilog("server invite server examples/sites.toml st-mary.request.toml st-john.request.toml"),
)
@click.argument("folder", type=FOLDER)
@click.argument("config", type=FOLDER)
@click.argument("requests", type=FOLDER, nargs=-1)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. data.clients=2.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True, max=365), default=14.0, show_default=True,
              help="How long sites can join by this invitation.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask whether the fingerprints were compared.")
def invite_command(
    folder: Path, config: Path, requests: tuple[Path, ...], overrides: tuple[str, ...], days: float, yes: bool
) -> None:
    """Invite the sites of REQUESTS, and those invited before, to the experiment in CONFIG."""
    from sightline.config import read
    from sightline.runtimes.remote.clients import refuse_a_known_seed

    federation = import_federation()
    federation.read_server(folder)
    experiment = read(config, overrides)
    refuse_a_known_seed(experiment)
    new = [federation.read_section(request, federation.SiteRequest, "REQUEST") for request in requests]
    sites = federation.assign_numbers(federation.read_sites(folder), new)
    for site in sites:
        click.echo(
            f"client-{site.client}  {site.name}  {site.examples} examples  {federation.fingerprint_key(site.key)}"
        )
    if new and not yes and not _confirm("Did every site tell you the same fingerprint, by telephone or in person?"):
        click.echo("not invited: nothing was written", err=True)
        raise click.exceptions.Exit(1)
    content = federation.write_invitation(folder, experiment, sites, days)
    click.echo(f"send this file to every site: {folder / federation.INVITATION}")
    click.echo(f"and tell them its fingerprint by telephone: {federation.fingerprint_file(content)}")


HEALTH = "The port of /health and /metrics on loopback; 0 is 9400 or the next free."


@server_command.command("start", epilog=examples_epilog("server start server --health-port 9400"))
@click.argument("folder", type=FOLDER)
@click.option("--health-port", type=int, default=0, help=HEALTH)
def start_command(folder: Path, health_port: int) -> None:
    """Start the processes of the server in FOLDER, each as its own user, and restart them as needed until Ctrl-C."""
    federation = import_federation()
    from sightline.runtimes.flower.processes import Operator, Supervisor, server_programs

    server = federation.read_server(folder)
    programs = server_programs(folder, server, health_port)
    # Sites may be invited while the server runs: their keys are registered as soon as the register has them.
    Supervisor(programs, folder, say_line).run(Operator(folder, server, say_line).register_keys)


@server_command.command("run", epilog=examples_epilog("server run server", "server run server --test test.npz"))
@click.argument("folder", type=FOLDER)
@click.option("--test", type=FOLDER, help="An .npz of test_x and test_y to evaluate the model on.")
@click.option("--wait", type=float, default=3600.0, show_default=True, help="Seconds to wait for the sites.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds that a round waits for answers.")
@click.option("--resume", is_flag=True, help="Continue the last run.")
def run_command(folder: Path, test: Path | None, wait: float, timeout: float, resume: bool) -> None:
    """Run the experiment of the invitation on its sites, once `sightline server start` runs."""
    federation = import_federation()
    from sightline.errors import SightlineError, invalid
    from sightline.runtimes.flower.processes import Operator

    server = federation.read_server(folder)
    if not (folder / federation.INVITATION).exists():
        invalid("FOLDER", folder, "no site is invited", "sightline server invite")
    operator = Operator(folder, server, say_line)
    if not operator.is_up():
        invalid("FOLDER", folder, f"no server listens at {server.here}", f"sightline server start {folder}")
    out, app, config = _prepare_run(federation, folder, server, test, wait=wait, timeout=timeout, resume=resume)
    operator.start_run(app, config, _say_unless_flower)
    if not (out / "report.html").exists():
        raise SightlineError(f"run={out}: it did not finish; continue with sightline server run {folder} --resume")
    click.echo(f"finished: {out}")
    click.echo(f"report: {out / 'report.html'}")


def _say_unless_flower(line: str) -> None:
    """Pass on what the experiment says, without Flower's own log."""
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
    if plain and not re.match(r"(INFO|DEBUG|WARNING)\b|[\u2500-\u257f\u2580-\u259f]", plain):
        say_line(plain)


def _prepare_run(
    federation: Any, folder: Path, server: Any, test: Path | None, *, wait: float, timeout: float, resume: bool
) -> tuple[Path, Path, Path]:
    """Write the app and the configuration of a run; return its directory, the app and the configuration."""
    import tomli_w

    from sightline.config import read
    from sightline.errors import invalid
    from sightline.runtimes.flower.export import export_app

    experiment = read(folder / federation.EXPERIMENT)
    runs, name = (folder / "apps" / "runs").resolve(), experiment.name
    there = [path for path in runs.glob(f"{name}*") if (path / "run.sqlite").exists()]
    if resume and not there:
        invalid("--resume", runs, "there is no run to continue", "leave it out")
    out = max(there, key=lambda path: path.stat().st_ctime) if resume else runs / name
    if not resume and out.exists():
        out = next(path for n in itertools.count(2) if not (path := runs / f"{name}-{n}").exists())
    home = federation.make_folder(folder / "operator", None)
    app = home / "app"
    shutil.rmtree(app, ignore_errors=True)
    export_app(experiment, app)
    settings = {"sites": True, "register": str((folder / federation.REGISTER).resolve()), "out": str(out)}
    settings |= {"wait": wait, "timeout": timeout, "resume": resume}
    if test is not None:
        copy = folder.resolve() / "apps" / "test.npz"
        federation.write_for(copy, test.read_bytes(), server.users[1] if server.users else None)
        settings["test"] = str(copy)
    config = home / "run.toml"
    federation.write_public(config, tomli_w.dumps(settings))
    return out, app.resolve(), config.resolve()


@server_command.command("monitor", epilog=examples_epilog("server monitor server --health-port 9400"))
@click.argument("folder", type=FOLDER)
@click.option("--health-port", type=int, default=0, help=HEALTH)
def monitor_command(folder: Path, health_port: int) -> None:
    """Serve /health and /metrics of the server in FOLDER on loopback; sightline server start starts this too."""
    from sightline.runtimes.remote.monitor import Monitor, labelled, metric

    def health() -> dict[str, str]:
        facts = _server_facts(folder)
        return {"status": "ok"} if facts["up"] else {"status": "down", "why": f"nothing listens at {facts['here']}"}

    def metrics() -> "Iterable[Metric]":
        facts = _server_facts(folder)
        runs, gauge = facts["runs"], "gauge"
        yield metric("server_sites_registered", gauge, "Sites in the register.", len(facts["sites"]))
        # Rounds and epsilon follow from the experiment and its public ledger, not from anyone's data.
        for name, text in RUN_FACTS.items():
            yield labelled(f"run_{name}", gauge, text, "run", {run: float(known[name]) for run, known in runs.items()})

    monitor = Monitor(health, metrics, health_port)
    message = f"http://127.0.0.1:{monitor.port}/health and /metrics"
    click.echo(json.dumps({"event": "start", "message": message}), err=True)
    while True:
        time.sleep(3600.0)


RUN_FACTS = {
    "rounds_done": "Rounds that a run has finished.",
    "epsilon": "The largest epsilon that a run has spent.",
    "finished": "1 if a run has finished.",
}


@server_command.command("status", epilog=examples_epilog("server status server --json"))
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def status_command(folder: Path, as_json: bool) -> None:
    """Show whether the server in FOLDER listens, its sites, and its runs."""
    from sightline.engine import replace_nonfinite
    from sightline.formatting import format_upper

    facts = _server_facts(folder)
    if as_json:
        click.echo(json.dumps(replace_nonfinite(facts)))
        return
    click.echo(f"{facts['address']}: {'up' if facts['up'] else 'down'}, listens at {facts['here']}")
    click.echo(f"sites: {', '.join(facts['sites']) or 'no site is invited'}")
    for name, run in facts["runs"].items():
        epsilon, state = format_upper(run["epsilon"], digits=4), "finished" if run["finished"] else "not finished"
        click.echo(f"run {name}: {run['rounds_done']} rounds, epsilon {epsilon}, {state}")


def _server_facts(folder: Path) -> dict[str, Any]:
    """Return what an administrator may know of a server: nothing that depends on anyone's data."""
    from contextlib import suppress

    from sightline.engine.record import RunRecord
    from sightline.errors import SightlineError

    federation = import_federation()
    from sightline.runtimes.flower.processes import check_server

    server, runs = federation.read_server(folder), dict[str, Any]()
    for path in sorted((folder / "apps" / "runs").iterdir()):
        with suppress(SightlineError, OSError), RunRecord.open_to_read(path) as record:
            rows, state = list(record.rounds()), record.facts.get("status")
            spent = ((rows[-1].get("epsilon") or {}) if rows else {}).values()
            known = {"rounds_done": len(rows), "epsilon": float(max(spent, default=0.0))}
            runs[path.name] = known | {"finished": state == "finished"}
    up = check_server(server.here, folder / federation.CA)
    sites = [f"client-{site.client} ({site.name})" for site in federation.read_sites(folder)]
    return {"address": server.address, "here": server.here, "up": up, "sites": sites, "runs": runs}
