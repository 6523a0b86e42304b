"""Events and releases in words: what each did, and the ledger in rows of one kind each."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sightline import events
from sightline.events import Event, Unit, to_json
from sightline.formatting import digits_down, digits_up, format_count, format_short
from sightline.ledger import NOBODY, Parties, Release, write_parties

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def explain_event(event: Event, who: str = "subject") -> str:
    """Return what an event did, in words; `who` is the sampled unit.

    >>> explain_event(events.Poisson(0.5, events.Gaussian(1.2)), who="client")
    'Gaussian noise, z = 1.2, each client sampled in secret with probability 0.5'
    """
    match event:
        case events.Gaussian():
            return f"Gaussian noise, z = {digits_down(event.noise_multiplier, 4)}"
        case events.Clear():
            return "without noise"
        case events.Pure():
            return f"pure differential privacy, ε = {digits_up(event.epsilon, 4)}"
        case events.Exponential():
            return f"a choice by the exponential mechanism, ε = {digits_up(event.epsilon, 4)}"
        case events.Repeat():
            return f"{format_count(event.times)} times: {explain_event(event.event, who)}"
        case events.Product(()):
            return "nothing new: worked out from earlier releases alone"
        case events.Product():
            return "together: " + "; ".join(explain_event(part, who) for part in event.events)
        case events.Poisson():
            how = _explain_sampling(event.rate, who)
        case events.WithoutReplacement() | events.FixedCohort():
            how = f"a hidden cohort of exactly {event.cohort:,} of {event.population:,} {who}s"
        case events.Split():
            how = f"each {who} hidden in one of {format_count(event.parts)} parts"
        case events.Allocation():
            steps = f"{format_count(event.uses)} of {format_count(event.steps)} steps"
            how = f"each {who} in exactly {steps}, a hidden choice"
        case events.Pooled():
            how = f"in a sum with the noise of {format_count(event.noises)} {who}s"
        case events.PooledDraws():
            drawn = f"each of {format_count(event.others + 1)} sends with probability {format_short(event.rate, 4)}"
            how = f"in a sum with the noise of the other {who}s who send: {drawn}"
        case events.ConvexSegment():
            how = f"the end of {_hidden_steps(event.steps)} of a convex objective, "
            how += f"{_explain_sampling(event.rate, who)} at every step"
        case events.Segment() | events.ReplacedSegment():
            how = f"the end of {_hidden_steps(event.steps)} in a ball, {_explain_sampling(event.rate, who)} at every "
            how += f"step, {format_short(event.first_step, 4)} of a step's effect at its first draw"
            how += "" if isinstance(event, events.Segment) else f", for any other {who} in its place"
        case _:
            # Event types without their own words, such as those of plugins.
            plain = to_json(event)
            fields = ", ".join(f"{name} = {value}" for name, value in plain.items() if name != "kind")
            return str(plain["kind"]).replace("_", " ") + (f" ({fields})" if fields else "")
    return f"{explain_event(event.event, who)}, {how}"


def _explain_sampling(rate: float, who: str) -> str:
    return f"each {who} sampled in secret with probability {format_short(rate, 4)}"


def _hidden_steps(steps: int) -> str:
    return "1 hidden step" if steps == 1 else f"{format_count(steps)} hidden steps"


def sentence_shape(words: str) -> str:
    """Return the words without their numbers: explanations of one shape can be merged."""
    return NUMBER.sub("#", words)


def told_as_one(explanations: Collection[str]) -> str:
    """Merge explanations of one shape into one, with the range of each number that differs.

    >>> told_as_one(["Gaussian noise, z = 1.2", "Gaussian noise, z = 0.8", "Gaussian noise, z = 1"])
    'Gaussian noise, z = 0.8 to 1.2'
    """
    texts = sorted(set(explanations))
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([sorted(set(column), key=_number_in) for column in columns])

    def spanned(_: re.Match[str]) -> str:
        first, *others = next(ranges)
        return f"{first} to {others[-1]}" if others else first

    return NUMBER.sub(spanned, texts[0])


def _number_in(text: str) -> float:
    return float(text.replace(",", ""))


Key = tuple[str, str, str, Parties, int, Parties]


@dataclass
class LedgerRow:
    """Releases of one kind: source, content, subjects, protection, audience, rounds and count."""

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
        """Return who published it."""
        return write_parties(frozenset(self.sources))

    @property
    def about(self) -> str:
        """Return whose data it depends on."""
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
        """Return who saw it; peers are others of the senders' own kind."""
        peers = "the others" if self.peers == len(self.sources) - 1 else f"{format_count(self.peers)} of the others"
        words = [peers] if self.peers and self.of_itself else []
        return ", ".join(filter(None, [*words, write_parties(self.audience)])) or "nobody"

    @property
    def how(self) -> str:
        """Return how it was protected, and who knows the sampling draws."""
        words = told_as_one(self.explanations)
        return words + (f"; sampling known to {write_parties(self.coins_known_to)}" if self.coins_known_to else "")

    @property
    def when(self) -> str:
        """Return the rounds in which it was made."""
        return (
            format_count(self.first)
            if self.first == self.last
            else f"{format_count(self.first)}–{format_count(self.last)}"
        )

    def take(self, release: Release, words: str) -> None:
        """Add one more release of this kind."""
        self.count += 1
        self.first, self.last = min(self.first, release.time), max(self.last, release.time)
        self.sources.add(release.source)
        self.explanations.add(words)
        if not self.of_itself:
            self.subjects.add(release.subjects)


class _Teller:
    """Groups releases into rows; costly work is done once per distinct event and audience."""

    def __init__(self, unit: Unit) -> None:
        self.who = "example" if unit is Unit.SAMPLE else "client"
        self.rows: dict[Key, LedgerRow] = {}
        self._words: dict[Event, tuple[str, str]] = {}
        self._audiences: dict[tuple[str, Parties], tuple[Parties, int]] = {}

    def add(self, release: Release) -> None:
        """Add a release to the row of its kind."""
        words, form = self._words.get(release.event) or self._explain_event(release.event)
        # Releases of many clients about themselves become one row; their sources are listed by kind.
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
        """Return the audience's members of other kinds, and the number of members of the sender's own kind."""
        key = (kind, release.audience)
        if key not in self._audiences:
            rest = frozenset(name for name in release.audience if kind_of(name) != kind)
            self._audiences[key] = (rest, len(release.audience) - len(rest))
        rest, peers = self._audiences[key]
        # The cache is shared by all senders of a kind; whether the sender is in its own audience is not.
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
    """Return the rows, in the order in which their kinds first appeared."""
    teller = _Teller(unit)
    for release in releases:
        teller.add(release)
    return list(teller.rows.values())


def holds_clear(event: Event) -> bool:
    """Return whether anything in the event has no noise."""
    if isinstance(event, events.Product):
        return any(holds_clear(part) for part in event.events)
    inner = getattr(event, "event", None)
    return holds_clear(inner) if isinstance(inner, Event) else isinstance(event, events.Clear)


def kind_of(name: str) -> str:
    """Return the kind in a participant's name.

    >>> kind_of("client-12"), kind_of("server")
    ('client', 'server')
    """
    return re.sub(r"-\d+$", "", name)
