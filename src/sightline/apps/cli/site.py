"""`sightline site` and `sightline flower`: approvals, budget and answers of a site; experiments as Flower apps."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.main import WholeSentences, examples_epilog, set_option

if TYPE_CHECKING:
    from sightline.runtimes.site.approval import Approval
    from sightline.runtimes.site.site import Site


SITE_EXAMPLES = """
\b
Examples:
  sightline site init st-mary --data st-mary.npz --classes 10 --epsilon 8
  sightline site init st-mary --data patients.csv --label state --classes healthy,ill,unsure --epsilon 8
  sightline site join st-mary invitation.toml --start
  sightline site status st-mary
  sightline site approve experiment.toml --site st-mary
  sightline site revoke 9f86d081884c7d659a2feaa0c55ad015-1 --site st-mary
"""
FOLDER = click.Path(path_type=Path)


@click.group("site", cls=WholeSentences, epilog=SITE_EXAMPLES)
def site_command() -> None:
    """Own a site: join a server, approve and revoke experiments, see what is left of the budget, answer questions."""


USERS = "Users of its processes, comma-separated (default as root: one each, made if missing). Empty: the current user."


def service_options(command: Any) -> Any:
    """Add the options that write files for systemd and Docker Compose."""
    unit = click.option("--systemd", is_flag=True, help="Also write a systemd unit into FOLDER.")
    compose = click.option("--compose", is_flag=True, help="Also write a docker-compose.yml into FOLDER.")
    return unit(compose(command))


def write_services(folder: Path, kind: str, users: list[str], *, systemd: bool, compose: bool) -> None:
    """Write the files asked for, and print how to use them."""
    from sightline.runtimes.flower.services import write_compose, write_unit

    if systemd:
        unit = write_unit(folder, kind, users)
        click.echo(f"systemd: cp {shlex.quote(str(unit))} /etc/systemd/system/ && systemctl enable --now {unit.name}")
    if compose:
        made = write_compose(folder, kind, users)
        click.echo(f"compose: docker compose --file {shlex.quote(str(made))} up --detach")


@site_command.command(
    "init", epilog=examples_epilog("site init st-mary --data st-mary.npz --classes 10 --epsilon 8 --delta 1e-4")
)
@click.argument("folder", type=FOLDER)
@click.option("--data", type=FOLDER, required=True, help="The examples: .npz of train_x, train_y, or .csv, .parquet.")
@click.option("--classes", required=True, metavar="NUMBER|NAME,NAME", help="How many classes, or the labels in a fixed "
              "order if they are text; the same at every site.")  # fmt: skip
@click.option("--epsilon", type=float, required=True, help="The budget for the life of these data.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="The delta of the budget.")
@click.option("--unit", type=click.Choice(["sample", "client"]), default="sample", show_default=True,
              help="What the budget protects: an example, or the whole site.")  # fmt: skip
@click.option("--label", help="The column of labels in a table.")
@click.option("--vocabulary", type=int, default=0, help="The number of tokens, for text.")
@click.option("--trust-server", is_flag=True, help="Hand clipped values without noise to the server.")
@click.option("--counter", help="File of the counter; best on another disk or host.")
@click.option("--name", help="Name of this site for the operator (default: the folder's name).")
@click.option("--users", help=USERS)
@service_options
def init_command(
    folder: Path, data: Path, classes: str, epsilon: float, delta: float, unit: str, label: str | None,
    vocabulary: int, trust_server: bool, counter: str | None, name: str | None, users: str | None,
    systemd: bool, compose: bool,
) -> None:  # fmt: skip
    """Make a site in FOLDER: a copy of its data, its policy, a key for its node, and a request for the operator."""
    federation = import_federation()
    count, names = read_classes(classes)
    content, examples = _read_examples(data, classes=list(names) or count, vocabulary=vocabulary, label=label)
    policy = {"classes": count, "vocabulary": vocabulary, "unit": unit, "epsilon": epsilon, "delta": delta}
    policy |= {"trust_server": trust_server, "counter": counter or "../counter/number"}
    _check_policy(policy, examples)
    who = federation.find_users(users, federation.SITE_USERS)
    request = federation.init_site(folder, name or folder.resolve().name, policy, content, examples, who, names)
    click.echo(f"site {request.name}: {examples} examples, epsilon {epsilon:g} at delta={delta:g} per {unit}")
    click.echo(f"send this file to the operator: {federation.request_path(folder, request.name)}")
    click.echo(f"and tell them the fingerprint of its key by telephone: {federation.fingerprint_key(request.key)}")
    write_services(folder, "site", who, systemd=systemd, compose=compose)


def import_federation() -> Any:
    """Return the module that makes keys; raise InvalidInput if what it needs is not installed."""
    from sightline.errors import invalid

    try:
        from sightline.runtimes.flower import federation
    except ImportError as error:
        invalid("package", error.name, "is not installed", 'pip install "sightline[flower]"')
    return federation


def read_classes(text: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes, and their names if they have names.

    >>> read_classes("3"), read_classes("healthy,ill")
    ((3, ()), (2, ('healthy', 'ill')))
    """
    from sightline.errors import invalid

    if text.strip().isascii() and text.strip().isdigit():
        return int(text), ()
    names = tuple(name.strip() for name in text.split(","))
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        invalid("--classes", text, "is neither a number nor a list of different names", "e.g. --classes healthy,ill")
    return len(names), names


def _read_examples(path: Path, *, classes: int | list[str], vocabulary: int, label: str | None) -> tuple[bytes, int]:
    """Return the examples of a file as a site keeps them, checked, and their number."""
    import io

    import numpy as np

    from sightline.config import Data
    from sightline.data.formats import read_arrays
    from sightline.data.own import checked_client
    from sightline.data.tables import FileTable, TableReader
    from sightline.runtimes.site.policy import ARRAYS

    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            names = [name for name in ARRAYS if name in archive.files or name.startswith("train")]
        given = read_arrays(path, names)
    else:
        x, y = TableReader({} if label is None else {"label": label}).read_pair("site", FileTable(path))
        given = {"train_x": x, "train_y": y}
    given.setdefault("test_x", given["train_x"][:0])
    given.setdefault("test_y", given["train_y"][:0])
    checked = checked_client(
        "site", tuple(given[name] for name in ARRAYS), Data.model_validate({"source": str(path), "classes": classes})
    )
    content = io.BytesIO()
    train, test = checked.train, checked.test
    np.savez(content, train_x=train.x, train_y=train.y, test_x=test.x, test_y=test.y)
    return content.getvalue(), len(train)


def _check_policy(policy: dict[str, Any], examples: int) -> None:
    """Raise InvalidInput for a policy that the site would not open with."""
    from pydantic import ValidationError

    from sightline import accounting
    from sightline.errors import invalid
    from sightline.runtimes.site.policy import SitePolicy

    try:
        SitePolicy.model_validate(policy | {"client": 0})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        invalid(f"--{first['loc'][0]}", first["input"], first["msg"])
    if policy["unit"] == "sample":
        accounting.refuse_large_delta("--delta", policy["delta"], examples, "examples")


@site_command.command("join", epilog=examples_epilog("site join st-mary invitation.toml --start"))
@click.argument("folder", type=FOLDER)
@click.argument("invitation", type=FOLDER)
@click.option(
    "--fingerprint", help="The invitation's fingerprint, from the operator; without it you are asked to compare."
)
@click.option("--signature", type=FOLDER, help="The researcher's signature of the experiment.")
@click.option("--yes", is_flag=True, help="Approve the experiment without asking; needs --fingerprint.")
@click.option("--start", "starts", is_flag=True, help="Then start the site, as sightline site start does.")
@click.option("--health-port", type=int, default=0, help="With --start: the port of /health and /metrics on loopback.")
def join_command(
    folder: Path, invitation: Path, fingerprint: str | None, signature: Path | None, yes: bool, starts: bool,
    health_port: int,
) -> None:  # fmt: skip
    """Join the server that an INVITATION is from, and approve its experiment if agreed."""
    import subprocess

    from sightline.errors import invalid

    federation = import_federation()
    known, content, experiment = federation.read_invitation(invitation)
    shown = federation.fingerprint_file(content)
    click.echo(f"server: {known.server}   experiment: {experiment.name}   sites: {len(known.sites)}")
    click.echo(f"fingerprint of the invitation: {shown}")
    if fingerprint is not None and fingerprint.replace(" ", "").lower() != shown.replace(" ", ""):
        reason = "the invitation has another fingerprint: it is not the file that the operator made"
        invalid("--fingerprint", fingerprint, reason, "ask the operator for it again, over another channel")
    if fingerprint is None:
        if yes:
            invalid(
                "--fingerprint",
                "missing",
                "--yes does not compare fingerprints",
                "give the one that the operator told you",
            )
        if not _confirm("Did the operator tell you the same fingerprint, by telephone or in person?"):
            click.echo("not joined", err=True)
            raise click.exceptions.Exit(1)
    number = federation.join_server(folder, known, content)
    click.echo(f"joined as client-{number}")
    words = ["site", "approve", str((folder / federation.EXPERIMENT).resolve()), "--site", str(folder.resolve())]
    words += ["--yes"] if yes else []
    words += [] if signature is None else ["--signature", str(signature.resolve())]
    # A process of its own: it becomes the site's user, and this one may still have to start others.
    done = subprocess.run([sys.executable, "-m", "sightline", *words], check=False)
    if done.returncode:
        raise click.exceptions.Exit(done.returncode)
    if starts:
        _start_site(folder, health_port)


@site_command.command("start", epilog=examples_epilog("site start st-mary --health-port 9401"))
@click.argument("folder", type=FOLDER)
@click.option(
    "--health-port", type=int, default=0, help="The port of /health and /metrics; 0 is 9400 or the next free."
)
def start_command(folder: Path, health_port: int) -> None:
    """Start the processes of the site in FOLDER, each as its own user, and restart them as needed until Ctrl-C."""
    _start_site(folder, health_port)


def _start_site(folder: Path, health_port: int) -> None:
    federation = import_federation()
    from sightline.runtimes.flower.processes import Supervisor, WaitingForServer, site_programs

    node = federation.read_node(folder)
    programs = site_programs(folder, node, health_port)
    Supervisor(programs, folder, say_line).run(WaitingForServer(node.server, folder / federation.CA, say_line))


def say_line(line: str) -> None:
    """Print a line for the administrator, with its time."""
    import time

    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def become_owner(folder: Path) -> None:
    """Let root continue as the owner of a site's folder, so that only the owner writes its files."""
    import os

    owner = (folder / "state" if (folder / "state").exists() else folder).stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)


@site_command.command("approve", epilog=examples_epilog("site approve examples/sites.toml --site sites/site-0"))
@click.argument("config", type=FOLDER)
@click.option("--site", "folder", type=FOLDER, help="The site's folder, with site.toml and the data.")
@click.option("--policy", type=FOLDER, help="Its site.toml, instead of --site: the file's folder is the site.")
@click.option("--data", type=FOLDER, help="Data file; it must be the one that the policy names.")
@set_option("Change a key, e.g. rounds=4.")
@click.option("--signature", type=FOLDER, help="The researcher's signature, made by sightline site sign.")
@click.option("--yes", is_flag=True, help="Approve without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def approve_command(
    config: Path, folder: Path | None, policy: Path | None, data: Path | None, overrides: tuple[str, ...],
    signature: Path | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show what the experiment in CONFIG would compute at a site and what it costs, and pin it if agreed."""
    from sightline.config import read
    from sightline.errors import invalid

    site = _open_site(folder, policy, data)
    try:
        signed = None if signature is None else signature.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        invalid("--signature", signature, f"cannot be read ({type(error).__name__})")
    drawn = site.draw_up(read(config, overrides), signature=signed)
    # The description always appears: an owner must see the cost before agreeing, also with --json.
    click.echo("\n".join(site.describe(drawn)), err=as_json)
    if not yes and not _confirm("Approve this for one run?"):
        click.echo("not approved: nothing is reserved", err=True)
        raise click.exceptions.Exit(1)
    # Approving draws up nothing new: what was shown is what is reserved and stored.
    made = site.approve(drawn)
    click.echo(json.dumps(_facts_of(made)) if as_json else f"approved: {made.id}")


def _confirm(question: str) -> bool:
    """Ask on the terminal; raise InvalidInput where nothing can be read."""
    from sightline.errors import InvalidInput

    cannot = InvalidInput("stdin=closed: this command asks for confirmation; give --yes")
    if sys.stdin is None:
        raise cannot
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise cannot from None
        raise


def _open_site(folder: Path | None, policy: Path | None, data: Path | None) -> "Site":
    from sightline.errors import invalid
    from sightline.runtimes.site.policy import POLICY

    if (folder is None) == (policy is None):
        invalid("--site", folder, "give either --site or --policy", "e.g. --site sites/site-0")
    if policy is not None and policy.name != POLICY:
        invalid("--policy", policy, f"a site's policy is a file named {POLICY}")
    site = _site_in(folder if folder is not None else (policy or Path()).parent)
    named = site.folder / site.policy.data
    # The policy decides which data are used; a command-line option only confirms it.
    if data is not None and data.resolve() != named.resolve():
        invalid("--data", data, f"the policy names {named}", "change data in the policy")
    site.check()
    return site


def _site_in(folder: Path) -> "Site":
    """Open the site in a folder as its owner."""
    from sightline.runtimes.site.policy import site_folder
    from sightline.runtimes.site.site import Site

    folder = site_folder(folder)
    if folder.is_dir():
        become_owner(folder)
    return Site(folder)


def _facts_of(approval: "Approval") -> dict[str, Any]:
    from sightline.engine import replace_nonfinite

    facts = {"approval": approval.id, "digest": approval.digest, "epsilon": approval.epsilon, "noise": approval.noise}
    facts |= {"calls": len(approval.whole_list), "steps": max((call.steps for call in approval.whole_list), default=0)}
    return dict(replace_nonfinite(facts | {"signed_by": approval.signed_by}))


@site_command.command("status", epilog=examples_epilog("site status sites/site-0 --json"))
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def status_command(folder: Path, as_json: bool) -> None:
    """Show the budget of the site in FOLDER: what is approved, what is reserved, what is left."""
    from sightline.engine import replace_nonfinite
    from sightline.formatting import format_upper
    from sightline.runtimes.site.approval import percent_up

    site = _site_in(folder)
    site.check()
    policy, budget = site.policy, site.budget.status()
    approved = _approvals_of(site)
    if as_json:
        facts: dict[str, Any] = {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "unit": policy.unit,
            "reserved": budget.spent,
        }
        facts |= {"used": budget.used, "mu_left": budget.mu_left, "epsilon_left": budget.epsilon_left}
        facts |= {"counter": budget.counter, "handed_over": site.handed_over(), "approvals": approved}
        click.echo(json.dumps(replace_nonfinite(facts)))
        return
    used = percent_up(budget.used)
    click.echo(f"budget for life: epsilon {policy.epsilon:g} at delta={policy.delta:g} per {policy.unit}")
    click.echo(f"reserved: {used:.1f} %, which is epsilon {format_upper(budget.spent, digits=4)} if nothing is added")
    # What is left is rounded down, what is used is rounded up.
    room = math.floor(1000 * budget.epsilon_left) / 1000
    click.echo(f"left: {100 - used:.1f} %, room for one Gaussian experiment of epsilon {room:g} (percents add up, "
               "epsilons do not)")  # fmt: skip
    click.echo(f"counter: {budget.counter}")
    if handed := site.handed_over():
        click.echo(f"the server was handed {handed} answers without noise: against it there is no budget")
    for row in approved:
        cost = f"{percent_up(row['share']):.1f} %  epsilon {format_upper(row['epsilon'], digits=4)} alone"
        calls = f"{row['answered']} of {row['calls']} calls answered, {row['left']} left"
        click.echo(f"{row['approval']}  {cost}  {calls}{_ending(row)}")
        last = f", last answer {row['last_answer']}" if row["last_answer"] else ""
        click.echo(f"  {row['experiment']} on {row['server'] or 'no server known'}: {row['progress']}{last}")


def _approvals_of(site: "Site") -> list[dict[str, Any]]:
    """Return the facts of every approval: its cost, its progress, and whether it has ended."""
    ended, whole = site.budget.record().ended, site.budget.filter
    shares = {held.approval: whole.used_share([held.bound]) for held in site.budget.status().reservations}
    approvals, server = [], _server_of(site)
    for approval in site.approvals.all():
        answered, left = site.progress(approval)
        more = {"share": shares.get(approval.id), "answered": answered, "left": left}
        more |= {"server": server} | site.describe_run(approval)
        approvals.append(_facts_of(approval) | more | {"state": ended.get(approval.id, "open")})
    return approvals


def _server_of(site: "Site") -> str | None:
    """Return the server that the site has joined, if `site init` made it."""
    import tomllib
    from contextlib import suppress

    with suppress(OSError, ValueError):
        joined = tomllib.loads((site.folder.parent / "node.toml").read_text(encoding="utf-8")).get("server")
        return str(joined) if joined else None
    return None


def _ending(facts: dict[str, Any]) -> str:
    return "" if facts["state"] == "open" else f"  {facts['state']}: nothing more is answered, its share stays reserved"


@site_command.command(
    "revoke", epilog=examples_epilog("site revoke 9f86d081884c7d659a2feaa0c55ad015-1 --site sites/site-0")
)
@click.argument("approval")
@click.option("--site", "folder", type=FOLDER, required=True, help="The site's folder.")
@click.option("--yes", is_flag=True, help="Revoke without asking.")
def revoke_command(approval: str, folder: Path, yes: bool) -> None:
    """End an APPROVAL that `sightline site status` lists: nothing more is answered, what it reserved stays spent.

    A site that is being served stops answering at once. An approval that has ended stays so.
    """
    site = _site_in(folder)
    site.require_known(approval)
    if not yes and not _confirm(f"Revoke {approval} for good? Its share of the budget stays spent."):
        click.echo("not revoked", err=True)
        raise click.exceptions.Exit(1)
    done = site.revoke(approval)
    click.echo(f"revoked: {approval}" if done else f"{approval} had ended before: nothing was changed")


SERVE_EXAMPLES = (
    "site serve sites/site-0 --socket sites/site-0/socket",
    "flower site sites/site-0 --socket sites/site-0/socket",
)


@site_command.command("serve", epilog=examples_epilog(*SERVE_EXAMPLES))
@click.argument("folder", type=FOLDER)
@click.option("--socket", type=FOLDER, required=True, help="Where the SuperNode's app finds this site.")
@click.option("--health-port", type=int, help="Serve /health and /metrics at this port on loopback; 0 chooses one.")
@click.option("--log", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="Write the log as text, or as one JSON object per line with a line per answer.")  # fmt: skip
def serve_command(folder: Path, socket: Path, health_port: int | None, log: str) -> None:
    """Answer for the site in FOLDER as a process of its own, until it is ended."""
    import logging

    from sightline.runtimes.remote.monitor import Monitor, log_json
    from sightline.runtimes.site.process import serve_site

    if log == "json":
        log_json()
    site = _site_in(folder)
    site.check()
    message = f"site {site.policy.client} answers at {socket}"
    if health_port is not None:
        message += f"; http://127.0.0.1:{Monitor(site.health, site.metrics, health_port).port}/health and /metrics"

    def ready() -> None:
        if log == "json":
            logging.getLogger("sightline.site").info("%s", message, extra={"fields": {"event": "start"}})
        else:
            click.echo(message, err=True)

    serve_site(site, socket, ready=ready)


@site_command.command("keygen", epilog=examples_epilog("site keygen researcher.key"))
@click.argument("key", type=FOLDER)
def keygen_command(key: Path) -> None:
    """Make a researcher's Ed25519 key in the file KEY and print the public one, for known_keys of a site's policy."""
    from sightline.runtimes.site.policy import make_key

    click.echo(make_key(key))


@site_command.command("sign", epilog=examples_epilog("site sign examples/sites.toml --key researcher.key > signature"))
@click.argument("config", type=FOLDER)
@click.option("--key", type=FOLDER, required=True, help="The private key, made by sightline site keygen.")
@set_option("Change a key, e.g. rounds=4.")
def sign_command(config: Path, key: Path, overrides: tuple[str, ...]) -> None:
    """Print the signature of the experiment in CONFIG, for sightline site approve --signature."""
    from sightline.config import read
    from sightline.runtimes.remote.message import experiment_digest
    from sightline.runtimes.site.policy import sign_digest

    click.echo(sign_digest(key, experiment_digest(read(config, overrides))))


FLOWER_EXAMPLES = """
\b
Examples:
  sightline flower export examples/quickstart.toml app
  sightline flower shards examples/sites.toml sites --epsilon 8
  sightline flower site sites/site-0 --socket sites/site-0/socket
  sightline flower spent sites/site-0
"""


@click.group("flower", cls=WholeSentences, epilog=FLOWER_EXAMPLES)
def flower_command() -> None:
    """Run experiments on Flower, with sites that keep their own data and budget."""


@flower_command.command("export", epilog=examples_epilog("flower export examples/quickstart.toml app"))
@click.argument("config", type=FOLDER)
@click.argument("directory", type=FOLDER)
@set_option("Change a key, e.g. privacy.epsilon=4.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def export_command(config: Path, directory: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Write the experiment in CONFIG as a Flower app into DIRECTORY, for `flwr run`."""
    from sightline.config import read
    from sightline.runtimes.flower.export import export_app

    made = export_app(read(config, overrides), directory)
    click.echo(json.dumps({"app": str(made)}) if as_json else f"flwr run {made}")


@flower_command.command("shards", epilog=examples_epilog("flower shards examples/sites.toml sites --epsilon 8"))
@click.argument("config", type=FOLDER)
@click.argument("directory", type=FOLDER)
@click.option("--epsilon", type=float, required=True, help="The budget that every site's policy starts with.")
@set_option("Change a key, e.g. data.clients=3.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def shards_command(config: Path, directory: Path, epsilon: float, overrides: tuple[str, ...], as_json: bool) -> None:
    """Deal the data of CONFIG out to folders of sites, and write a register, to try a deployment with."""
    from sightline.config import read
    from sightline.runtimes.flower.export import export_shards

    made = [str(folder) for folder in export_shards(read(config, overrides), directory, epsilon=epsilon)]
    more = {"test": str(directory / "test.npz"), "register": str(directory / "register.toml")}
    click.echo(json.dumps({"sites": made} | more) if as_json else "\n".join(made))


# The same command under the name that deployments on Flower use.
flower_command.add_command(serve_command, "site")


@flower_command.command("spent", epilog=examples_epilog("flower spent sites/site-0 --json"))
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def spent_command(folder: Path, as_json: bool) -> None:
    """Show how much of its budget the site in FOLDER has spent, over all runs."""
    from sightline.engine import replace_nonfinite
    from sightline.formatting import format_upper
    from sightline.runtimes.site.approval import percent_up

    site = _site_in(folder)
    status, policy = site.budget.status(), site.policy
    spent = status.spent
    if as_json:
        facts = {"epsilon": spent, "budget": policy.epsilon, "delta": policy.delta, "unit": policy.unit}
        click.echo(json.dumps(replace_nonfinite(facts)))
    else:
        whole = f"epsilon {policy.epsilon:g} at delta={policy.delta:g} per {policy.unit}"
        used = f"{percent_up(status.used):.1f} % of the budget for life ({whole})"
        click.echo(f"epsilon {format_upper(spent, digits=4)}, {used}")
