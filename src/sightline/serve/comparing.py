"""Runs side by side, each by itself or seeds together."""

from sightline.errors import invalid
from sightline.report import RunView
from sightline.report.comparison import Comparison, each_by_itself, group_runs
from sightline.report.comparison_page import comparison_content
from sightline.report.comparison_plain import plain_comparison as plain_of
from sightline.serve.message import Request, Response, json_response
from sightline.serve.site import PageServer

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
    with site.live.held(site.shelf.directory(id)) as (run, _):
        _ = run.spent  # worked out while the run is held still
        return run
