"""By which path a release reached an observer: the shortest chain of publishers from it to what the observer saw."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from sightline.ledger.ledger import Ledger
from sightline.ledger.parties import parties


@dataclass(frozen=True)
class Route:
    """Releases of one publisher that count between a subject and an observer, and how the last of them travelled."""

    source: str
    releases: int
    last: int
    """The round of the last one that gets through."""
    path: tuple[str, ...]
    """Publishers on the way, the first is the source, the last one's value is seen by the observer."""


def next_hops(ledger: Ledger, observer: str | Iterable[str]) -> dict[int, int | None]:
    """Release -> the next release on its shortest way to the observer, or coalition; None where it is seen itself."""
    observers = parties(observer)
    hops: dict[int, int | None] = {release.id: None for release in ledger if observers & release.audience}
    waiting = deque(sorted(hops))
    while waiting:
        later = waiting.popleft()
        for earlier in ledger[later].inputs:
            if earlier not in hops:
                hops[earlier] = later
                waiting.append(earlier)
    return hops


def trace_routes(ledger: Ledger, subject: str, hops: dict[int, int | None]) -> list[Route]:
    """What of a subject reaches the observer of `hops`, by publisher."""
    counted: Counter[str] = Counter()
    latest: dict[str, int] = {}
    for id in hops:
        release = ledger[id]
        if subject in release.subjects:
            counted[release.source] += 1
            latest[release.source] = max(id, latest.get(release.source, -1))
    return [
        Route(source, times, ledger[latest[source]].time, trace_publishers(ledger, latest[source], hops))
        for source, times in sorted(counted.items())
    ]


def trace_publishers(ledger: Ledger, id: int, hops: dict[int, int | None]) -> tuple[str, ...]:
    """The publishers on the way of a release, repetitions left out."""
    path: list[str] = []
    here: int | None = id
    while here is not None:
        if not path or path[-1] != ledger[here].source:
            path.append(ledger[here].source)
        here = hops[here]
    return tuple(path)
