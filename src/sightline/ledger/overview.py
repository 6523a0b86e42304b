"""A ledger at a glance, for notebooks: releases that differ only in time are one row."""

from collections.abc import Collection

from sightline import shown
from sightline.events import Event
from sightline.ledger.parties import Parties, write_parties
from sightline.ledger.release import Release

ROWS = 20
"""At most so many kinds of releases are shown; how many were left out is said."""


def overview_table(releases: Collection[Release]) -> str:
    """An HTML table: what was released, by whom, of whom, to whom, by which event, how often and when."""
    kinds: dict[tuple[str, str, Parties, Parties, Event], list[int]] = {}
    for release in releases:
        kind = (release.what, release.source, release.subjects, release.audience, release.event)
        kinds.setdefault(kind, []).append(release.time)
    rows = [
        (
            what,
            source,
            write_parties(subjects) or "nobody",
            write_parties(audience) or "nobody",
            event,
            len(times),
            _time_span(times),
        )
        for (what, source, subjects, audience, event), times in kinds.items()
    ]
    left = f", {len(rows) - ROWS:,} kinds not shown" if len(rows) > ROWS else ""
    first = next(iter(releases), None)
    promise = f", unit {first.unit}, adjacency {first.adjacency}" if first else ""
    header = ("what", "from", "about", "seen by", "event", "times", "rounds")
    return shown.html_table(f"{len(releases):,} releases{promise}{left}", header, rows[:ROWS])


def _time_span(times: list[int]) -> str:
    return str(times[0]) if min(times) == max(times) else f"{min(times)} to {max(times)}"
