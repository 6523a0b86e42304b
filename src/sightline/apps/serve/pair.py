"""One line of sight in full: what it adds up to, and by which way each release got through."""

import math

from sightline.apps.report import RunView
from sightline.apps.report.ledger_words import explain_event
from sightline.apps.report.numbers import format_count, format_plural, format_short, format_upper
from sightline.apps.serve.message import Request, Response
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.sight import epsilon_of
from sightline.ledger.pairs import Route, next_hops, trace_routes


def pair_page(site: PageServer, request: Request) -> Response:
    """One pair in full: what it adds up to, and by which way each release got through."""
    subject, observer = request.one("subject"), request.one("observer")
    with site.live.held(site.runs_folder.directory(request.one("run"))) as (run, made):
        view = run.ledger.view(observer)
        composed = view.composition(subject)
        hops = made.once(("hops", view.observers), lambda: next_hops(run.ledger, view.observers))
        content = {
            "subject": subject,
            "observer": observer,
            "epsilon": _pair_words(run, epsilon_of(run, composed)),
            "events": [f"{format_count(times)} × {explain_event(event, run.who)}" for event, times in composed.items()],
            "ways": [_way_words(way) for way in trace_routes(run.ledger, subject, hops)],
        }
    return site.draw(request, "pair.html", "Pair", **content)


def _pair_words(run: RunView, value: float) -> str:
    if math.isinf(value):
        return "no bound: something came without noise, or nothing is promised"
    return f"epsilon {format_upper(value)}" + (f" at δ = {format_short(run.delta)}" if run.delta else "")


def _way_words(way: Route) -> str:
    seen = "seen directly" if len(way.path) == 1 else f"by way of {' → '.join(way.path)}"
    return f"{format_plural(way.releases, 'release')} of {way.source} up to round {format_count(way.last)}, {seen}"
