"""Runs side by side, each by itself or seeds together."""

from sightline.errors import invalid
from sightline.report import Run
from sightline.report.comparison import Comparison, each_by_itself, grouped
from sightline.report.comparison_page import content
from sightline.report.comparison_plain import plain as plain_of
from sightline.serve.message import Request, Response, plain
from sightline.serve.site import Site

MOST = 40


def page(site: Site, request: Request) -> Response:
    """The comparison of the runs in the query."""
    ids = list(dict.fromkeys(request.query.get("run", [])))
    together = request.one("by") == "settings"
    found = content(comparison(site, ids, together)) if ids else None
    return site.draw(request, "comparing.html", "Comparison", ids=ids, together=together, found=found)


def api(site: Site, request: Request) -> Response:
    """The same, as `sightline compare --json` prints it."""
    ids = list(dict.fromkeys(request.query.get("run", [])))
    return plain(plain_of(comparison(site, ids, request.one("by") == "settings")))


def comparison(site: Site, ids: list[str], together: bool) -> Comparison:
    """Runs one by one, or those that differ only in their seed as one."""
    if len(ids) > MOST:
        invalid("run", f"{len(ids)} runs", f"at most {MOST} fit side by side", "choose fewer, or sightline compare")
    runs = [_read(site, id) for id in ids]
    return grouped(runs) if together else each_by_itself(runs, ids)


def _read(site: Site, id: str) -> Run:
    with site.live.held(site.shelf.directory(id)) as (run, _):
        _ = run.spent  # worked out while the run is held still
        return run
