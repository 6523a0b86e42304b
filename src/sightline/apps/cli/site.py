"""`sightline site` and `sightline flower`: approvals, budget and answers of a site; experiments as Flower apps."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.main import examples_epilog

if TYPE_CHECKING:
    from sightline.runtimes.site.approval import Approval
    from sightline.runtimes.site.site import Site


SITE_EXAMPLES = """
\b
Examples:
  sightline flower shards examples/sites.toml sites --epsilon 8
  sightline site approve examples/sites.toml --site sites/site-0
  sightline site serve sites/site-0 --socket sites/site-0/socket
  sightline site status sites/site-0
  sightline site revoke 9f86d081884c7d659a2feaa0c55ad015-1 --site sites/site-0
"""
FOLDER = click.Path(path_type=Path)


@click.group("site", epilog=SITE_EXAMPLES)
def site_command() -> None:
    """Own a site: approve and revoke experiments, see what is left of the budget, answer their questions."""


@site_command.command("approve", epilog=examples_epilog("site approve examples/sites.toml --site sites/site-0"))
@click.argument("config", type=FOLDER)
@click.option("--site", "folder", type=FOLDER, help="The site's folder, with site.toml and the data.")
@click.option("--policy", type=FOLDER, help="Or its site.toml: the folder that it is in is the site's.")
@click.option("--data", type=FOLDER, help="The data to be used; they must be those that the policy names.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. rounds=4.")
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

    cannot = InvalidInput("stdin: it is closed or at its end, and this command asks first; give --yes")
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
    from sightline.runtimes.site.site import Site

    if (folder is None) == (policy is None):
        invalid("--site", folder, "one of --site and --policy says which site it is", "e.g. --site sites/site-0")
    if policy is not None and policy.name != POLICY:
        invalid("--policy", policy, f"a site's policy is a file named {POLICY}")
    site = Site(folder if folder is not None else (policy or Path()).parent)
    named = site.folder / site.policy.data
    # The policy decides which data are used; a command-line option only confirms it.
    if data is not None and data.resolve() != named.resolve():
        invalid("--data", data, f"the policy names {named}", "change data in the policy")
    site.check()
    return site


def _facts_of(approval: "Approval") -> dict[str, Any]:
    from sightline.engine import replace_nonfinite

    facts = {"approval": approval.id, "digest": approval.digest, "epsilon": approval.epsilon, "noise": approval.noise}
    facts |= {"calls": len(approval.calls), "steps": max((call.steps for call in approval.calls), default=0)}
    return dict(replace_nonfinite(facts | {"signed_by": approval.signed_by}))


@site_command.command("status", epilog=examples_epilog("site status sites/site-0 --json"))
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def status_command(folder: Path, as_json: bool) -> None:
    """Show the budget of the site in FOLDER: what is approved, what is reserved, what is left."""
    from sightline.apps.report.elements import format_upper
    from sightline.engine import replace_nonfinite
    from sightline.runtimes.site.approval import percent_up
    from sightline.runtimes.site.site import Site

    site = Site(folder)
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
    for one in approved:
        cost = f"{percent_up(one['share']):.1f} %  epsilon {format_upper(one['epsilon'], digits=4)} alone"
        calls = f"{one['answered']} of {one['calls']} calls answered, {one['left']} left"
        click.echo(f"{one['approval']}  {cost}  {calls}{_ending(one)}")


def _approvals_of(site: "Site") -> list[dict[str, Any]]:
    """Return the facts of every approval: its cost, its progress, and whether it has ended."""
    ended, whole = site.budget.record().ended, site.budget.filter
    shares = {one.approval: whole.used_share([one.bound]) for one in site.budget.status().reservations}
    found = []
    for approval in site.approvals.all():
        answered, left = site.progress(approval)
        more = {"share": shares.get(approval.id), "answered": answered, "left": left}
        found.append(_facts_of(approval) | more | {"state": ended.get(approval.id, "open")})
    return found


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
    from sightline.runtimes.site.site import Site

    site = Site(folder)
    site.require_known(approval)
    if not yes and not _confirm(f"Revoke {approval} for good? Its share of the budget stays spent."):
        click.echo("not revoked", err=True)
        raise click.exceptions.Exit(1)
    done = site.revoke(approval)
    click.echo(f"revoked: {approval}" if done else f"{approval} had ended before: nothing was changed")


@site_command.command("serve", epilog=examples_epilog("site serve sites/site-0 --socket sites/site-0/socket"))
@click.argument("folder", type=FOLDER)
@click.option("--socket", type=FOLDER, required=True, help="Where the SuperNode's app finds this site.")
def serve_command(folder: Path, socket: Path) -> None:
    """Answer for the site in FOLDER as a process of its own, until it is ended."""
    from sightline.runtimes.site.process import serve_site
    from sightline.runtimes.site.site import Site

    site = Site(folder)
    site.check()
    serve_site(site, socket, ready=lambda: click.echo(f"site {site.policy.client} answers at {socket}", err=True))


@site_command.command("keygen", epilog=examples_epilog("site keygen researcher.key"))
@click.argument("key", type=FOLDER)
def keygen_command(key: Path) -> None:
    """Make a researcher's Ed25519 key in the file KEY and print the public one, for known_keys of a site's policy."""
    from sightline.runtimes.site.policy import make_key

    click.echo(make_key(key))


@site_command.command("sign", epilog=examples_epilog("site sign examples/sites.toml --key researcher.key > signature"))
@click.argument("config", type=FOLDER)
@click.option("--key", type=FOLDER, required=True, help="The private key, made by sightline site keygen.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. rounds=4.")
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
APP_FOLDER = click.Path(path_type=Path)


@click.group("flower", epilog=FLOWER_EXAMPLES)
def flower_command() -> None:
    """Run experiments on Flower, with sites that keep their own data and budget."""


@flower_command.command("export", epilog=examples_epilog("flower export examples/quickstart.toml app"))
@click.argument("config", type=APP_FOLDER)
@click.argument("directory", type=APP_FOLDER)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. privacy.epsilon=4.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def export_command(config: Path, directory: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Write the experiment in CONFIG as a Flower app into DIRECTORY, for `flwr run`."""
    from sightline.config import read
    from sightline.runtimes.flower.export import export_app

    made = export_app(read(config, overrides), directory)
    click.echo(json.dumps({"app": str(made)}) if as_json else f"flwr run {made}")


@flower_command.command("shards", epilog=examples_epilog("flower shards examples/sites.toml sites --epsilon 8"))
@click.argument("config", type=APP_FOLDER)
@click.argument("directory", type=APP_FOLDER)
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


@flower_command.command("site", epilog=examples_epilog("flower site sites/site-0 --socket sites/site-0/socket"))
@click.argument("folder", type=APP_FOLDER)
@click.option("--socket", type=APP_FOLDER, required=True, help="Where the SuperNode's app finds this site.")
def flower_site(folder: Path, socket: Path) -> None:
    """Answer for the site in FOLDER as a process of its own, until it is ended."""
    from sightline.runtimes.site.process import serve_site
    from sightline.runtimes.site.site import Site

    site = Site(folder)
    site.check()
    serve_site(site, socket, ready=lambda: click.echo(f"site {site.policy.client} answers at {socket}", err=True))


@flower_command.command("spent", epilog=examples_epilog("flower spent sites/site-0 --json"))
@click.argument("folder", type=APP_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def spent_command(folder: Path, as_json: bool) -> None:
    """Show how much of its budget the site in FOLDER has spent, over all runs."""
    from sightline.apps.report.elements import format_upper
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
