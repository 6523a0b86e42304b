"""A run's page: its report, drawn anew as the run goes on."""

from http import HTTPStatus
from typing import Any

from sightline.apps.report import RunView, render_run
from sightline.apps.report.comparison import Comparison, each_by_itself, group_runs
from sightline.apps.report.comparison import plain_comparison as plain_of
from sightline.apps.report.comparison_page import comparison_content
from sightline.apps.report.numbers import format_count
from sightline.apps.report.page import section_contents
from sightline.apps.serve.listing import run_row
from sightline.apps.serve.message import HTML, Request, Response, json_response
from sightline.apps.serve.pages import PageServer
from sightline.engine.record import replace_nonfinite
from sightline.errors import invalid

LONG = 20_000
"""More releases than these take a while to read and check for the first time."""


def run_page(site: PageServer, request: Request) -> Response:
    """The report of a run, live; of a long run that is not in memory yet, first a page that says so and asks again."""
    id = request.one("run")
    glance, directory = site.glance(id), site.runs_folder.directory(id)
    if not {"part", "wait"} & set(request.query) and glance.releases > LONG and not site.live.knows(directory):
        about = {"run": id, "row": run_row(glance), "running": glance.status == "running", "sections": []}
        return site.draw(request, "running.html", glance.name, reading=format_count(glance.releases), **about)
    with site.live.held(directory) as (run, made):
        sections = made.once("sections", lambda: drawn_sections(site, run))
    running = glance.status == "running"
    about = {"run": id, "row": run_row(glance), "running": running, "sections": sections}
    return site.draw(request, "running.html", run.name, reading="", **about)


def drawn_sections(site: PageServer, run: RunView) -> list[tuple[str, str, str]]:
    """Name, title and drawing of every section of the report."""
    return [
        (section.name, section.title, site.templates.get_template(section.template).render(content=content))
        for section, content in section_contents(run)
    ]


def download_report(site: PageServer, request: Request) -> Response:
    """The report as one file that needs nothing else."""
    directory = site.runs_folder.directory(request.one("run"))
    with site.live.held(directory) as (run, _):
        text = render_run(run)
    name = (
        "".join(
            letter for letter in directory.resolve().name if letter.isascii() and (letter.isalnum() or letter in "-_.")
        )
        or "run"
    )
    headers = {"Content-Disposition": f'attachment; filename="{name}.html"'}
    return Response(HTTPStatus.OK, text.encode(errors="replace"), HTML, headers)


def run_api(site: PageServer, request: Request) -> Response:
    """The numbers of a run; null is infinite or unknown."""
    directory = site.runs_folder.directory(request.one("run"))
    glance = site.glance(request.one("run"))
    with site.live.held(directory) as (run, _):
        found: dict[str, Any] = {
            "run": request.one("run"),
            "name": run.name,
            "status": run.fact("status"),
            "rounds_done": run.rounds_done,
            "rounds_planned": run.fact("rounds_planned"),
            "test_accuracy": run.last("test_accuracy"),
            "test_loss": run.last("test_loss"),
            "epsilon": run.epsilon,
            "observers": run.spent,
            "delta": run.delta,
            "unit": str(run.unit),
            "trusted": run.trusted,
            "releases": len(run.ledger),
            "ledger_head": run.head,
            "left": glance.left,
            "silent": glance.silent,
        }
    return json_response(replace_nonfinite(found))


MOST = 40


def comparison_page(site: PageServer, request: Request) -> Response:
    """The comparison of the runs in the query."""
    ids = list(dict.fromkeys(request.query.get("run", [])))
    together = request.one("by") == "settings"
    found = comparison_content(compare_chosen(site, ids, together)) if ids else None
    return site.draw(request, "comparing.html", "Comparison", ids=ids, together=together, found=found)


def comparison_api(site: PageServer, request: Request) -> Response:
    """The same, as `sightline compare --json` prints it."""
    ids = list(dict.fromkeys(request.query.get("run", [])))
    return json_response(plain_of(compare_chosen(site, ids, request.one("by") == "settings")))


def compare_chosen(site: PageServer, ids: list[str], together: bool) -> Comparison:
    """Runs one by one, or those that differ only in their seed as one."""
    if len(ids) > MOST:
        invalid("run", f"{len(ids)} runs", f"at most {MOST} fit side by side", "choose fewer, or sightline compare")
    runs = [_read_run(site, id) for id in ids]
    return group_runs(runs) if together else each_by_itself(runs, ids)


def _read_run(site: PageServer, id: str) -> RunView:
    with site.live.held(site.runs_folder.directory(id)) as (run, _):
        _ = run.spent  # worked out while the run is held still
        return run
