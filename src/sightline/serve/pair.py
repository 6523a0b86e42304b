"""One line of sight in full: what it adds up to, and by which way each release got through."""

import math

from sightline.ledger.propagation_paths import Route, next_hops, routes
from sightline.report import Run
from sightline.report.explain import explain
from sightline.report.numbers import count, plural, short, upper
from sightline.serve.message import Request, Response
from sightline.serve.sight import epsilon_of
from sightline.serve.site import Site


def page(site: Site, request: Request) -> Response:
    """One pair in full: what it adds up to, and by which way each release got through."""
    subject, observer = request.one("subject"), request.one("observer")
    with site.live.held(site.shelf.directory(request.one("run"))) as (run, made):
        view = run.ledger.view(observer)
        composed = view.composition(subject)
        hops = made.once(("hops", view.observers), lambda: next_hops(run.ledger, view.observers))
        content = {
            "subject": subject,
            "observer": observer,
            "epsilon": _epsilon_words(run, epsilon_of(run, composed)),
            "events": [f"{count(times)} × {explain(event, run.who)}" for event, times in composed.items()],
            "ways": [_way(way) for way in routes(run.ledger, subject, hops)],
        }
    return site.draw(request, "pair.html", "Pair", **content)


def _epsilon_words(run: Run, value: float) -> str:
    if math.isinf(value):
        return "no bound: something came in the clear, or nothing is promised"
    return f"epsilon {upper(value)}" + (f" at δ = {short(run.delta)}" if run.delta else "")


def _way(way: Route) -> str:
    seen = "seen directly" if len(way.path) == 1 else f"by way of {' → '.join(way.path)}"
    return f"{plural(way.releases, 'release')} of {way.source} up to round {count(way.last)}, {seen}"
