"""A release, the sets of parties that it is about and that see it, and how releases are shown."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NoReturn

from sightline import formatting as shown
from sightline.errors import InvalidInput, invalid, one_line
from sightline.events import Adjacency, Event, Product, Unit, from_json, to_json

Parties = frozenset[str]
NOBODY: Parties = frozenset()

# A set with more participants is a mistake, or an attempt to exhaust memory.
MOST = 10**7
_RANGE = re.compile(r"(.+)-(\d+)\.\.(\d+)")
_NUMBERED = re.compile(r"(.*?)[-_ ]?(\d+)", re.DOTALL)


@lru_cache(maxsize=4096)
def write_parties(parties: Parties) -> str:
    """Return the short text form of a set: sorted, with runs of numbers as ranges.

    >>> write_parties(frozenset({"client-0", "client-1", "client-2", "client-7", "server"}))
    'client-0..2, client-7, server'
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    texts = []
    for name in parties:
        kind, _, digits = name.rpartition("-")
        if kind and digits.isdecimal() and str(number := int(digits)) == digits:
            numbers[kind].append(number)
        else:
            texts.append(name)
    for kind, result in numbers.items():
        texts += [_write_range(kind, low, high) for low, high in _number_runs(sorted(result))]
    return ", ".join(sorted(texts, key=_natural_key))


@lru_cache(maxsize=4096)
def read_parties(text: str) -> Parties:
    """Return the set that `write_parties` wrote. Raises for ranges that are too long or run downwards."""
    # Count all members before any name is made, so that a hostile file cannot fill the memory.
    names: set[str] = set()
    ranges: list[tuple[str, range]] = []
    count = 0
    for part_name in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part_name)
        if match is None:
            names.add(part_name)
            continue
        low, high = int(match[2]), int(match[3])
        if not low <= high < low + MOST - count:
            invalid("parties", part_name, "ranges must run upwards, with at most 10 million members together")
        ranges.append((match[1], range(low, high + 1)))
        count += high + 1 - low
    return frozenset(names.union(*([f"{kind}-{number}" for number in numbers] for kind, numbers in ranges)))


def parties(*names: str | Iterable[str]) -> Parties:
    """Return a set from names and collections of names."""
    result: set[str] = set()
    for name in names:
        result.update([name] if isinstance(name, str) else name)
    return frozenset(result)


def refuse_unknown(role: str, name: str, known: Parties) -> NoReturn:
    """Raise for an unknown participant.

    An epsilon of 0 for a mistyped name would look like a guarantee.

    >>> refuse_unknown("observer", "publik", frozenset({"client-0", "client-1", "public"}))
    Traceback (most recent call last):
    ...
    sightline.errors.InvalidInput: observer=publik: no participant has this name; did you mean "public"?
    """
    invalid(role, name, "no participant has this name", suggest_name(str(name), known))


def suggest_name(name: str, known: Parties) -> str:
    """Return a suggestion for a mistyped participant: the nearest name with its number, or all names in short.

    >>> suggest_name("cleint7", frozenset({"client-0", "client-7", "server"}))
    'did you mean "client-7"?'
    >>> suggest_name("client-9", frozenset({"client-0", "client-1", "server"}))
    'known: client-0..1, server'
    """
    match = _NUMBERED.fullmatch(name)
    number = str(int(match[2])) if match and len(match[2]) < 19 else ""
    kinds = {kind for kind, digits in (one.rsplit("-", 1) for one in known if "-" in one) if digits.isdecimal()}
    likely = {f"{kind}-{number}" for kind in kinds} & known if number else set()
    likely |= {one for one in known if one.rpartition("-")[0] not in kinds}
    near = get_close_matches(name.lower(), sorted(likely), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"known: {_shorten_text(write_parties(known)) or 'nobody'}"


def _shorten_text(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _number_runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _write_range(kind: str, low: int, high: int) -> str:
    return f"{kind}-{low}" if low == high else f"{kind}-{low}..{high}"


def _natural_key(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-(\d+)(?:\.\.\d+)?", name)
    return (match[1], int(match[2])) if match else (name, -1)


POST_PROCESSING = Product(())
"""The event of a value computed only from earlier releases: it costs nothing."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The name of a random stream that hides who is in a release; used for one release only."""

    purpose: str
    round: int
    participant: int
    use: int
    part: int = 0
    """The channel, where members of several channels draw in one training call."""
    again: int = 0
    """For restarted streams, the number of the release at which they restarted."""

    def __str__(self) -> str:
        client = "" if self.participant < 0 else f" of client-{self.participant}"
        more = (f", part {self.part}" if self.part else "") + (f", begun at release {self.again}" if self.again else "")
        return f"{self.purpose}{client} in round {self.round}, use {self.use}{more}"


@dataclass(frozen=True, slots=True)
class Release:
    """One row of the ledger. `event` is what the value reveals about `subjects` *given* the values in `inputs`.

    `subjects` are all who could be in it (all eligible ones if hidden sampling chose among them), never the realised
    cohort of a claimed sampling. Releases with the same `joint` name are charged once, by their common event.
    """

    time: int
    source: str
    subjects: Parties
    unit: Unit
    adjacency: Adjacency
    event: Event
    audience: Parties
    # Inputs cover the starting points of all who could be drawn. The realised cohort's alone would tell who took part,
    # and epsilon would depend on luck.
    inputs: tuple[int, ...] = ()
    coins_known_to: Parties = NOBODY
    joint: str = ""
    what: str = ""
    id: int = -1
    draw: Draw | None = field(default=None, compare=False)
    """The draw that the event claims, while the run is active; it is not stored."""

    def with_id(self, id: int) -> "Release":
        """Return the same release with its index in the ledger. Raises if an input is not earlier."""
        _check_order(self.inputs, id)
        return replace(self, id=id)

    def body(self) -> str:
        """Return the canonical text of the release: what is stored, hashed and exported."""
        # Order of keys and separators are part of the hash chain and must not change.
        plain = {
            "time": self.time,
            "source": self.source,
            "subjects": write_parties(self.subjects),
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "event": _event_plain(self.event),
            "audience": write_parties(self.audience),
            "inputs": list(self.inputs),
            "coins_known_to": write_parties(self.coins_known_to),
            "joint": self.joint,
            "what": self.what,
        }
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def _check_order(inputs: tuple[int, ...], id: int) -> None:
    if any(not 0 <= earlier < id for earlier in inputs):
        raise InvalidInput(f"inputs={inputs}: a release can only be computed from earlier releases")


def release_from(plain: dict[str, Any], id: int) -> Release:
    """Return the release that `Release.body` wrote. Raises `InvalidInput` for a malformed one; nothing is guessed."""
    try:
        return Release(
            time=_whole_number(plain["time"]),
            source=str(plain["source"]),
            subjects=read_parties(plain["subjects"]),
            unit=Unit(plain["unit"]),
            adjacency=Adjacency(plain["adjacency"]),
            event=_event_read(json.dumps(plain["event"])),
            audience=read_parties(plain["audience"]),
            inputs=tuple(_whole_number(number) for number in plain["inputs"]),
            coins_known_to=read_parties(plain["coins_known_to"]),
            joint=str(plain["joint"]),
            what=str(plain["what"]),
        ).with_id(id)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(one_line("release", id, f"not a release ({type(error).__name__}: {error})"[:300])) from None


def _whole_number(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("rounds and releases must be whole numbers >= 0")
    return number


_NUMBERS = r"(?:0|[1-9]\d{0,17})"
_BODY = re.compile(
    rf'\{{"time":({_NUMBERS}),(.*),"inputs":\[((?:{_NUMBERS}(?:,{_NUMBERS})*)?)\],("coins_known_to":.*)\}}', re.DOTALL
)


def release_like(body: str, id: int) -> Release | None:
    """Return the release of a stored body; None unless it is written exactly as `Release.body` writes it."""
    # Bodies that differ in time and inputs only are parsed once; long runs repeat the rest of the body in every round.
    result = _BODY.fullmatch(body) if isinstance(body, str) else None
    like = None if result is None else _release_of_body(f'{{"time":0,{result[2]},"inputs":[],{result[4]}}}')
    if result is None or like is None:
        return None
    inputs = tuple(int(number) for number in result[3].split(",")) if result[3] else ()
    _check_order(inputs, id)
    return Release(
        int(result[1]), like.source, like.subjects, like.unit, like.adjacency, like.event, like.audience, inputs,
        like.coins_known_to, like.joint, like.what, id,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _release_of_body(body: str) -> Release | None:
    """Return the release of a body without time and inputs; None unless written as `Release.body` writes it."""
    try:
        release = release_from(json.loads(body), 0)
    except (ValueError, InvalidInput, RecursionError):
        return None
    return release if release.body() == body else None


@lru_cache(maxsize=4096)
def _event_plain(event: Event) -> dict[str, Any]:
    return to_json(event)


@lru_cache(maxsize=4096)
def _event_read(text: str) -> Event:
    return from_json(json.loads(text))


# Most kinds of releases to show; the table says how many were left out.
ROWS = 20


Overview = tuple[str, tuple[str, ...], list[tuple[object, ...]]]


def overview_table(releases: Collection[Release]) -> Overview:
    """Return title, header and rows: what was released, by and about whom, seen by whom, by which event, how often."""
    kinds: dict[tuple[object, ...], list[Release]] = {}
    for release in releases:
        # What every client releases about itself, or makes of what its neighbours sent, is one kind.
        own = release.subjects <= {release.source}
        audience = _own_audience(release) if own else ""
        concerned = () if own and (audience or release.subjects) else (release.source, release.subjects)
        key = (release.what, release.event, audience or release.audience, concerned, bool(release.subjects))
        kinds.setdefault(key, []).append(release)
    rows: list[tuple[object, ...]] = [
        (
            alike[0].what,
            write_parties(frozenset(release.source for release in alike)),
            _subject_words(alike),
            _own_audience(alike[0])
            if len({release.audience for release in alike}) > 1
            else write_parties(alike[0].audience) or "nobody",
            describe_event(alike[0].event),
            len(alike),
            _time_span([release.time for release in alike]),
        )
        for alike in kinds.values()
    ]
    left = f", {len(rows) - ROWS:,} kinds not shown" if len(rows) > ROWS else ""
    first = next(iter(releases), None)
    promise = f", unit {first.unit}, adjacency {first.adjacency}" if first else ""
    header = ("what", "from", "about", "seen by", "event", "times", "rounds")
    return f"{len(releases):,} releases{promise}{left}", header, rows[:ROWS]


def _own_audience(release: Release) -> str:
    """Return the audience in words if it is the source itself, alone or with others of its kind; otherwise ""."""
    source, kind = release.source, release.source.rpartition("-")[0]
    others = release.audience - {source}
    if source not in release.audience or not kind or any(name.rpartition("-")[0] != kind for name in others):
        return ""
    return f"itself and {shown.format_plural(len(others), 'other')}" if others else "itself only"


def _subject_words(alike: list[Release]) -> str:
    """Return whose data the releases depend on; the cost of post-processing is that of the releases it is made of."""
    names = write_parties(frozenset[str]().union(*{release.subjects for release in alike}))
    return names or ("subjects of its inputs" if alike[0].inputs else "nobody")


def describe_event(event: Event) -> str:
    """Return an event on one line, its numbers to four digits.

    >>> from sightline.events import Gaussian, Poisson, Product
    >>> describe_event(Poisson(1 / 3, Gaussian(1.23456))), describe_event(Product(()))
    ('Poisson(0.3333, Gaussian(1.235))', 'post-processing')
    """
    if event == POST_PROCESSING:
        return "post-processing"
    return f"{type(event).__name__}({', '.join(_describe_value(getattr(event, part.name)) for part in fields(event))})"


def _describe_value(value: object) -> str:
    if isinstance(value, Event):
        return describe_event(value)
    if isinstance(value, tuple):
        return ", ".join(map(_describe_value, value))
    return shown.format_short(value, 4) if isinstance(value, float) else str(value)


def _time_span(times: list[int]) -> str:
    return str(times[0]) if min(times) == max(times) else f"{min(times)} to {max(times)}"


def frame_row(release: Release) -> dict[str, object]:
    """Return the row of a release in a data frame."""
    return {
        "id": release.id,
        "round": release.time,
        "what": release.what,
        "source": release.source,
        "subjects": write_parties(release.subjects),
        "audience": write_parties(release.audience),
        "event": type(release.event).__name__,
        "detail": str(release.event),
        "unit": str(release.unit),
        "adjacency": str(release.adjacency),
        "inputs": release.inputs,
        "joint": release.joint,
    }
