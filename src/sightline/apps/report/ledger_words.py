"""Events in words, for people who meet them for the first time."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import singledispatch

from sightline.apps.report.numbers import format_count, format_short
from sightline.events import (
    Allocation,
    Clear,
    ConvexSegment,
    Event,
    Exponential,
    FixedCohort,
    Gaussian,
    Poisson,
    Pooled,
    PooledDraws,
    Product,
    Pure,
    Repeat,
    ReplacedSegment,
    Segment,
    Split,
    Unit,
    WithoutReplacement,
    to_json,
)
from sightline.ledger import NOBODY, Parties, Release, write_parties
from sightline.shown import digits_down, digits_up

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


@singledispatch
def explain_event(event: Event, who: str = "subject") -> str:
    """What an event did, in words; `who` is the unit that is sampled.

    >>> explain_event(Poisson(0.5, Gaussian(1.2)), who="client")
    'Gaussian noise, z = 1.2, each client sampled in secret with probability 0.5'
    """
    plain = to_json(event)
    settings = ", ".join(f"{name} = {value}" for name, value in plain.items() if name != "kind")
    return str(plain["kind"]).replace("_", " ") + (f" ({settings})" if settings else "")


@explain_event.register
def _(event: Gaussian, who: str = "subject") -> str:
    return f"Gaussian noise, z = {digits_down(event.noise_multiplier, 4)}"


@explain_event.register
def _(event: Clear, who: str = "subject") -> str:
    return "without noise"


@explain_event.register
def _(event: Pure, who: str = "subject") -> str:
    return f"pure differential privacy, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Exponential, who: str = "subject") -> str:
    return f"a choice by the exponential mechanism, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Poisson, who: str = "subject") -> str:
    inside = explain_event(event.event, who)
    return f"{inside}, each {who} sampled in secret with probability {format_short(event.rate, 4)}"


@explain_event.register(WithoutReplacement)
@explain_event.register(FixedCohort)
def _(event: WithoutReplacement | FixedCohort, who: str = "subject") -> str:
    return (
        f"{explain_event(event.event, who)}, a hidden cohort of exactly {event.cohort:,} of {event.population:,} {who}s"
    )


@explain_event.register
def _(event: Split, who: str = "subject") -> str:
    return f"{explain_event(event.event, who)}, each {who} hidden in one of {format_count(event.parts)} parts"


@explain_event.register
def _(event: Allocation, who: str = "subject") -> str:
    hidden = f"each {who} in exactly {format_count(event.uses)} of {format_count(event.steps)} steps, a hidden choice"
    return f"{explain_event(event.event, who)}, {hidden}"


@explain_event.register
def _(event: Pooled, who: str = "subject") -> str:
    return f"{explain_event(event.event, who)}, in a sum with the noise of {format_count(event.noises)} {who}s"


@explain_event.register
def _(event: Segment | ReplacedSegment, who: str = "subject") -> str:
    steps = "1 hidden step" if event.steps == 1 else f"{format_count(event.steps)} hidden steps"
    inside = f"each {who} sampled in secret with probability {format_short(event.rate, 4)} at every step"
    first = f"{format_short(event.first_step, 4)} of a step's effect at its first draw"
    other = "" if isinstance(event, Segment) else f", for any other {who} in its place"
    return f"{explain_event(event.event, who)}, the end of {steps} in a ball, {inside}, {first}{other}"


@explain_event.register
def _(event: ConvexSegment, who: str = "subject") -> str:
    steps = "1 hidden step" if event.steps == 1 else f"{format_count(event.steps)} hidden steps"
    inside = f"each {who} sampled in secret with probability {format_short(event.rate, 4)} at every step"
    return f"{explain_event(event.event, who)}, the end of {steps} of a convex objective, {inside}"


@explain_event.register
def _(event: PooledDraws, who: str = "subject") -> str:
    drawn = f"each of {format_count(event.others + 1)} sends with probability {format_short(event.rate, 4)}"
    return f"{explain_event(event.event, who)}, in a sum with the noise of the other {who}s who send: {drawn}"


@explain_event.register
def _(event: Repeat, who: str = "subject") -> str:
    return f"{format_count(event.times)} times: {explain_event(event.event, who)}"


@explain_event.register
def _(event: Product, who: str = "subject") -> str:
    if not event.events:
        return "nothing new: worked out from earlier releases alone"
    return "together: " + "; ".join(explain_event(part, who) for part in event.events)


def sentence_shape(words: str) -> str:
    """The words without their numbers: explanations of one shape can be told as one."""
    return NUMBER.sub("#", words)


def told_as_one(explanations: Collection[str]) -> str:
    """Explanations of one shape as one, with the range of each number that differs.

    >>> told_as_one(["Gaussian noise, z = 1.2", "Gaussian noise, z = 0.8", "Gaussian noise, z = 1"])
    'Gaussian noise, z = 0.8 to 1.2'
    """
    texts = sorted(set(explanations))
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([sorted(set(column), key=_number_in) for column in columns])

    def spanned(_: re.Match[str]) -> str:
        found = next(ranges)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return NUMBER.sub(spanned, texts[0])


def _number_in(text: str) -> float:
    return float(text.replace(",", ""))


Key = tuple[str, str, str, Parties, int, Parties]


@dataclass
class LedgerRow:
    """Releases of one kind: from whom, what, of whom, how hidden, to whom, when, how often."""

    what: str
    audience: Parties
    peers: int
    coins_known_to: Parties
    clear: bool
    of_itself: bool
    first: int
    last: int
    sources: set[str] = field(default_factory=set)
    subjects: set[Parties] = field(default_factory=set)
    explanations: set[str] = field(default_factory=set)
    count: int = 0

    @property
    def source(self) -> str:
        """Who published."""
        return write_parties(frozenset(self.sources))

    @property
    def about(self) -> str:
        """Whose data it depends on."""
        if self.of_itself:
            return "itself" if len(self.sources) == 1 else "each of itself"
        everyone = write_parties(NOBODY.union(*self.subjects)) or "nobody"
        sizes = sorted(len(some) for some in self.subjects)
        span = (
            format_count(sizes[0])
            if sizes[0] == sizes[-1]
            else f"{format_count(sizes[0])} to {format_count(sizes[-1])}"
        )
        return everyone if len(self.subjects) == 1 else f"{everyone}, {span} at a time"

    @property
    def seen_by(self) -> str:
        """Who saw it; peers are others of the senders' own kind."""
        peers = "the others" if self.peers == len(self.sources) - 1 else f"{format_count(self.peers)} of the others"
        words = [peers] if self.peers and self.of_itself else []
        return ", ".join(filter(None, [*words, write_parties(self.audience)])) or "nobody"

    @property
    def how(self) -> str:
        """How it was hidden; when somebody knows the sampling, that too."""
        words = told_as_one(self.explanations)
        return words + (f"; sampling known to {write_parties(self.coins_known_to)}" if self.coins_known_to else "")

    @property
    def when(self) -> str:
        """The rounds it was made in."""
        return (
            format_count(self.first)
            if self.first == self.last
            else f"{format_count(self.first)}–{format_count(self.last)}"
        )

    def take(self, release: Release, words: str) -> None:
        """One more release of this kind."""
        self.count += 1
        self.first, self.last = min(self.first, release.time), max(self.last, release.time)
        self.sources.add(release.source)
        self.explanations.add(words)
        if not self.of_itself:
            self.subjects.add(release.subjects)


class _Teller:
    """Gathers releases; what is costly is done once per different event and audience."""

    def __init__(self, unit: Unit) -> None:
        self.who = "example" if unit is Unit.SAMPLE else "client"
        self.rows: dict[Key, LedgerRow] = {}
        self._words: dict[Event, tuple[str, str]] = {}
        self._audiences: dict[tuple[str, Parties], tuple[Parties, int]] = {}

    def add(self, release: Release) -> None:
        """Put a release into the row of its kind."""
        words, form = self._words.get(release.event) or self._explain_event(release.event)
        of_itself = release.subjects == {release.source}
        source = kind_of(release.source) if of_itself else release.source
        rest, peers = self._split_audience(source, release) if of_itself else (release.audience, 0)
        key = (source, release.what, form, rest, peers, release.coins_known_to)
        if key not in self.rows:
            self.rows[key] = _start_row(release, rest, peers, of_itself)
        self.rows[key].take(release, words)

    def _explain_event(self, event: Event) -> tuple[str, str]:
        words = explain_event(event, self.who)
        return self._words.setdefault(event, (words, sentence_shape(words)))

    def _split_audience(self, kind: str, release: Release) -> tuple[Parties, int]:
        """An audience as its members of other kinds, and how many of the sender's own kind besides the sender."""
        key = (kind, release.audience)
        if key not in self._audiences:
            rest = frozenset(name for name in release.audience if kind_of(name) != kind)
            self._audiences[key] = (rest, len(release.audience) - len(rest))
        rest, peers = self._audiences[key]
        return rest, peers - (release.source in release.audience)


def _start_row(release: Release, audience: Parties, peers: int, of_itself: bool) -> LedgerRow:
    return LedgerRow(
        what=release.what,
        audience=audience,
        peers=peers,
        coins_known_to=release.coins_known_to,
        clear=holds_clear(release.event),
        of_itself=of_itself,
        first=release.time,
        last=release.time,
    )


def tell_ledger(releases: Iterable[Release], unit: Unit) -> list[LedgerRow]:
    """The rows, in the order in which their kinds first appeared."""
    teller = _Teller(unit)
    for release in releases:
        teller.add(release)
    return list(teller.rows.values())


def holds_clear(event: Event) -> bool:
    """Whether anything in the event goes without noise."""
    if isinstance(event, Product):
        return any(holds_clear(part) for part in event.events)
    inner = getattr(event, "event", None)
    return holds_clear(inner) if isinstance(inner, Event) else isinstance(event, Clear)


def kind_of(name: str) -> str:
    """The kind in a participant's name.

    >>> kind_of("client-12"), kind_of("server")
    ('client', 'server')
    """
    return re.sub(r"-\d+$", "", name)
