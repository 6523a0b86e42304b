"""The pages of a run (its report, drawn again as the run goes on, and its ledger) and the comparison of runs."""

import re
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sightline.apps.report import RunView, render_run
from sightline.apps.report.chart import nice_step
from sightline.apps.report.comparison import Comparison, each_by_itself, group_runs
from sightline.apps.report.comparison import plain_comparison as plain_of
from sightline.apps.report.comparison_figure import comparison_content
from sightline.apps.report.ledger_rows import explain_event, holds_clear
from sightline.apps.report.officer import render_officer
from sightline.apps.report.page import section_contents
from sightline.apps.serve.guard import query_value
from sightline.apps.serve.pages import PageServer, html_response, json_response, run_row
from sightline.engine.record import RunRecord, replace_nonfinite
from sightline.errors import invalid
from sightline.events import from_json
from sightline.formatting import format_count, format_plural
from sightline.ledger import Pages, Row

PAGE = 100
SPANS = 80
"""The most bars in the chart of releases by round."""


def timeline_page(site: PageServer, request: Request) -> Response:
    """Return a page of the ledger."""
    id, timeline = query_value(request, "run"), read_timeline(site, request)
    rows = [release_words(row) for row in timeline["rows"]]
    return site.draw(
        request,
        "timeline.html",
        f"Ledger of {site.glance(id).name}",
        run=id,
        **{name: timeline[name] for name in ("start", "total", "q", "round", "before", "after", "spans", "matches")},
        even=pace_words(timeline["spans"]),
        last=format_count(timeline["spans"][-1]["last"]) if timeline["spans"] else "",
        rows=rows,
        broken=not all(row.whole for row in timeline["rows"]),
        words=_set_words(timeline),
    )


def timeline_api(site: PageServer, request: Request) -> Response:
    """Return the same page as JSON: releases as they are stored."""
    timeline = read_timeline(site, request)
    rows = [{"id": row.id, "hash": row.hash, "whole": row.whole} | row.plain for row in timeline["rows"]]
    return json_response(
        {"releases": rows, "total": timeline["total"], "before": timeline["before"], "after": timeline["after"]}
    )


def read_timeline(site: PageServer, request: Request) -> dict[str, Any]:
    """Read the rows of a page, where the pages before and after start, and the bars."""
    with RunRecord.open_to_read(site.runs_folder.directory(query_value(request, "run"))) as record:
        pages, q = record.pages, query_value(request, "q").strip()[:200]
        total = pages.count_releases()
        start = min(_whole_number(query_value(request, "start")), max(0, total - 1))
        if query_value(request, "round"):
            start = pages.first_of(_whole_number(query_value(request, "round")))
        # One row more than the page shows: it tells whether and where the next page starts.
        rows = pages.matching_rows(q, start, PAGE + 1) if q else pages.rows(start, PAGE + 1)
        return {
            "rows": rows[:PAGE],
            "start": start,
            "total": total,
            "q": q,
            "round": query_value(request, "round"),
            "matches": pages.count_matches(q) if q else total,
            "before": _start_before(pages, q, start),
            "after": rows[PAGE].id if len(rows) > PAGE else None,
            "spans": round_spans(pages, query_value(request, "run")),
        }


def _start_before(pages: Pages, q: str, start: int) -> int | None:
    if start <= 0:
        return None
    return pages.matching_before(q, start, PAGE) if q else max(0, start - PAGE)


def _whole_number(text: str) -> int:
    return min(int(text), 2**53) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def round_spans(pages: Pages, run: str) -> list[dict[str, Any]]:
    """Return the bars: releases by span of rounds, in percent of the width and height, with the round each links to."""
    last = pages.last_time()
    if not last:
        return []
    width = int(nice_step((last + 1) / SPANS, whole=True))
    held = pages.by_time(width)
    number, most = last // width + 1, max(held.values())
    return [
        {
            "left": round(100 * index / number, 3),
            "width": round(86 / number, 3),
            "height": round(100 * held.get(index, 0) / most, 2),
            "round": max(1, index * width),
            "made": held[index],
            "last": min(last, (index + 1) * width - 1),
            "words": _span_words(max(1, index * width), min(last, (index + 1) * width - 1), held.get(index, 0)),
        }
        for index in range(number)
        if held.get(index, 0)
    ]


def pace_words(spans: list[dict[str, Any]]) -> str:
    """Return how many releases each span made if all made the same number (bars would be equal), otherwise ""."""
    long = [span["last"] - span["round"] + 1 for span in spans]
    paces = {span["made"] / rounds for span, rounds in zip(spans, long, strict=True)}
    if len(paces) != 1 or sum(long) != spans[-1]["last"]:
        return ""
    width = max(long)
    made = format_plural(round(paces.pop() * width), "release")
    return f"{made} in every round" if width == 1 else f"{made} in every {format_count(width)} rounds"


def _span_words(first: int, last: int, made: int) -> str:
    when = f"round {format_count(first)}" if first == last else f"rounds {format_count(first)} to {format_count(last)}"
    return f"{when}: {format_plural(made, 'release')}"


def release_words(row: Row) -> dict[str, Any]:
    """Return a release as text; sets of participants keep their short form."""
    stored, event = row.plain, from_json(row.plain["event"])
    inputs = list(stored.get("inputs", ()))
    return {
        "id": row.id,
        "round": format_count(row.time),
        "source": stored.get("source", ""),
        "what": stored.get("what", "") or "a value",
        "subjects": stored.get("subjects", "") or "nobody",
        "how": explain_event(event, "example" if stored.get("unit") == "sample" else "client"),
        "bare": holds_clear(event),
        "audience": stored.get("audience", "") or "nobody",
        "sampling_known_to": stored.get("coins_known_to", ""),
        "inputs": inputs[:6],
        "more": len(inputs) - 6 if len(inputs) > 6 else 0,
        "hash": row.hash,
        "whole": row.whole,
    }


def _set_words(timeline: dict[str, Any]) -> str:
    total = format_plural(timeline["total"], "release")
    return f"{format_count(timeline['matches'])} of {total} hold “{timeline['q']}”" if timeline["q"] else total


LONG = 20_000
"""Runs with more releases take seconds to read and check for the first time."""


def run_page(site: PageServer, request: Request) -> Response:
    """Return the live report of a run; for a long run that is not in memory yet, first a page that says so."""
    id = query_value(request, "run")
    glance, directory = site.glance(id), site.runs_folder.directory(id)
    # Answer at once and let the script fetch the report, or the browser shows an empty window for seconds.
    if not {"part", "wait"} & request.query_params.keys() and glance.releases > LONG and not site.live.knows(directory):
        about = {"run": id, "row": run_row(glance), "running": glance.status == "running", "sections": []}
        return site.draw(request, "running.html", glance.name, reading=format_count(glance.releases), **about)
    with site.live.held(directory) as (run, made):
        sections = made.once("sections", lambda: drawn_sections(site, run))
    running = glance.status == "running"
    about = {"run": id, "row": run_row(glance), "running": running, "sections": sections}
    return site.draw(request, "running.html", run.name, reading="", **about)


def drawn_sections(site: PageServer, run: RunView) -> list[tuple[str, str, str]]:
    """Return name, title and HTML of every section of the report."""
    return [
        (section.name, section.title, site.templates.get_template(section.template).render(content=content))
        for section, content in section_contents(run)
    ]


def download_report(site: PageServer, request: Request) -> Response:
    """Return the report as one self-contained file."""
    return _download(site, request, render_run, "")


def download_officer(site: PageServer, request: Request) -> Response:
    """Return the record for a data protection officer as one self-contained file."""
    return _download(site, request, render_officer, "-record")


def _download(site: PageServer, request: Request, render: Callable[[RunView], str], ending: str) -> Response:
    directory = site.runs_folder.directory(query_value(request, "run"))
    with site.live.held(directory) as (run, _):
        text = render(run)
    # A header must not contain quotes or line breaks: only plain characters of the folder's name remain.
    name = re.sub(r"[^A-Za-z0-9_.-]", "", directory.resolve().name) or "run"
    return html_response(text, headers={"Content-Disposition": f'attachment; filename="{name}{ending}.html"'})


def run_api(site: PageServer, request: Request) -> Response:
    """Return the numbers of a run; null is infinite or unknown."""
    directory = site.runs_folder.directory(query_value(request, "run"))
    glance = site.glance(query_value(request, "run"))
    with site.live.held(directory) as (run, _):
        content: dict[str, Any] = {
            "run": query_value(request, "run"),
            "name": run.name,
            "status": run.fact("status"),
            "rounds_done": run.rounds_done,
            "rounds_planned": run.fact("rounds_planned"),
            "test_accuracy": run.last("test_accuracy"),
            "metric": run.metric.name,
            "metrics": {metric.name: run.last(metric.test_key) for metric in run.metrics},
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
    return json_response(replace_nonfinite(content))


MOST = 40


def comparison_page(site: PageServer, request: Request) -> Response:
    """Return the comparison of the runs in the query."""
    ids = list(dict.fromkeys(request.query_params.getlist("run")))
    together = query_value(request, "by") == "settings"
    content = comparison_content(compare_chosen(site, ids, together)) if ids else None
    return site.draw(request, "comparing.html", "Comparison", ids=ids, together=together, found=content)


def comparison_api(site: PageServer, request: Request) -> Response:
    """Return the comparison as `sightline compare --json` prints it."""
    ids = list(dict.fromkeys(request.query_params.getlist("run")))
    return json_response(plain_of(compare_chosen(site, ids, query_value(request, "by") == "settings")))


def compare_chosen(site: PageServer, ids: list[str], together: bool) -> Comparison:
    """Compare runs one by one, or group those that differ only in their seed."""
    if len(ids) > MOST:
        invalid(
            "run", f"{len(ids)} runs", f"at most {MOST} runs fit on one page", "choose fewer, or use sightline compare"
        )
    runs = [_read_run(site, id) for id in ids]
    return group_runs(runs) if together else each_by_itself(runs, ids)


def _read_run(site: PageServer, id: str) -> RunView:
    with site.live.held(site.runs_folder.directory(id)) as (run, _):
        # Computed while the run is locked: the ledger may grow as soon as the lock is released.
        _ = run.spent
        return run
