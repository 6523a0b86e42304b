"""The front page: every run with its progress, to filter, to open and to choose for comparison."""

from collections.abc import Iterable
from typing import Any

from sightline.apps.report.numbers import (
    NONE,
    format_duration,
    format_metric,
    format_plural,
    format_short,
    format_upper,
)
from sightline.apps.serve.guard import Request, Response, json_response
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.run_folder import Glance
from sightline.shown import metric_named

STATUSES = ("running", "finished", "stopped")
NAMED = 12
"""So many runs that cannot be read are named; more are counted."""


def listing_page(site: PageServer, request: Request) -> Response:
    """The list of runs."""
    found, unreadable = site.runs()
    chosen = filter_runs(found, request)
    return site.draw(
        request,
        "listing.html",
        "Runs",
        folder=str(site.runs_folder.folder),
        rows=[run_row(one) for one in chosen],
        metric=_common_metric(chosen),
        shown=f"{len(chosen)} of {format_plural(len(found), 'run')}"
        if len(chosen) < len(found)
        else format_plural(len(found), "run"),
        any=bool(found),
        unreadable=unreadable[:NAMED],
        more_unreadable=max(0, len(unreadable) - NAMED),
        q=request.one("q"),
        selects=[
            ("status", "Status", STATUSES, request.one("status")),
            ("algorithm", "Algorithm", sorted({one.algorithm for one in found} - {""}), request.one("algorithm")),
            ("unit", "Protects", sorted({one.unit for one in found}), request.one("unit")),
        ],
        running=any(one.status == "running" for one in found),
    )


def listing_api(site: PageServer, request: Request) -> Response:
    """The same, as JSON."""
    return json_response({"runs": [one.plain() for one in filter_runs(site.runs()[0], request)]})


def filter_runs(found: Iterable[Glance], request: Request) -> list[Glance]:
    """Runs that have every word of `q` somewhere, and the chosen status, algorithm and unit."""
    words = request.one("q").lower().split()
    wanted = {name: request.one(name) for name in ("status", "algorithm", "unit") if request.one(name)}
    return [
        one
        for one in found
        if all(word in _search_text(one) for word in words)
        and all(getattr(one, n) == value for n, value in wanted.items())
    ]


def _search_text(one: Glance) -> str:
    return f"{one.run} {one.name} {one.algorithm} {one.source} {one.topology} {one.unit} seed {one.seed}".lower()


def run_row(one: Glance) -> dict[str, Any]:
    """One run in words."""
    return {
        "run": one.run,
        "folder": one.run.rpartition("/")[0],
        "title": one.run.rpartition("/")[2] if one.run != "." else one.name,
        "status": one.status,
        "share": f"{min(1.0, one.round / one.planned):.4f}" if one.planned else "0",
        "rounds": f"{one.round:,} of {one.planned:,}" if one.planned else f"{one.round:,}",
        "left": progress_words(one),
        "about": [word for word in (one.algorithm, one.source, one.topology) if word],
        "metric": metric_named(one.metric).heading,
        "reached": format_metric(metric_named(one.metric), one.reached),
        "epsilon": epsilon_words(one),
        "note": epsilon_note(one),
        "time": format_duration(one.seconds) if one.seconds else NONE,
        "created": one.created[:16].replace("T", " "),
    }


def _common_metric(found: Iterable[Glance]) -> str:
    """The heading of the column: the metric of all runs, or the word for one where they differ."""
    names = {one.metric for one in found}
    return metric_named(names.pop() if names else None).heading if len(names) < 2 else "Metric"


def progress_words(one: Glance) -> str:
    """What is to be said of a run that is at work."""
    if one.silent is not None:
        return f"silent for {format_duration(one.silent)}"
    return f"about {format_duration(one.left)} left" if one.left else ""


def epsilon_words(one: Glance) -> str:
    """Epsilon as the last round that knew it wrote it, rounded up."""
    if one.unit == "none":
        return "none"
    return NONE if one.epsilon is None else format_upper(one.epsilon)


def epsilon_note(one: Glance) -> str:
    """At which delta, and whether releases have been made that the number does not count yet."""
    if one.unit == "none":
        return "no guarantee"
    words = f"δ = {format_short(one.delta)}" if one.delta else ""
    return words + (f", {format_plural(one.since, 'release')} since" if one.since else "")
