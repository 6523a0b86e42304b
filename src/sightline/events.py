"""Events: what one release reveals about a subject; units, adjacency, and the sampling that hides the subject."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from sightline.errors import did_you_mean, invalid


class Unit(StrEnum):
    """What is protected as a whole."""

    SAMPLE = "sample"
    CLIENT = "client"
    NONE = "none"


class Adjacency(StrEnum):
    """Which two data sets must be hard to tell apart.

    `ADD_REMOVE`: with the subject, or with its contribution zeroed out (all counts and denominators stay public).
    `REPLACE`: the subject's data exchanged for any other.
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"


# Limit on steps, uses, parts and repetitions: every whole number up to here is exact in a double.
MOST_COUNTED = 10**15

# Nesting limit of events: a hostile ledger file must not exhaust the stack.
DEEPEST = 64


@dataclass(frozen=True)
class Event:
    """Base of all events. An event is a value: equal settings are equal events."""

    kind: ClassVar[str]
    registry: ClassVar[dict[str, type["Event"]]] = {}

    def __init_subclass__(cls, *, stored: bool = True) -> None:
        # Kinds are stored in ledgers: renaming a class would make old ledgers unreadable.
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if stored:
            Event.registry[cls.kind] = cls


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of standard deviation `noise_multiplier` x sensitivity on a sum or mean."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_event(
            self,
            "noise_multiplier",
            self.noise_multiplier > 0,
            "noise must be positive",
            "use Clear() for a release without noise",
        )


@dataclass(frozen=True)
class Clear(Event):
    """A value sent without noise: epsilon is infinite against every observer that sees it."""


@dataclass(frozen=True)
class Pure(Event):
    """Any release that is epsilon-DP and about which nothing more is known."""

    epsilon: float

    def __post_init__(self) -> None:
        check_event(self, "epsilon", self.epsilon >= 0, "epsilon must be >= 0")


@dataclass(frozen=True)
class Exponential(Event):
    """A choice by the exponential mechanism with parameter epsilon: epsilon-DP, and epsilon^2/8-zCDP."""

    epsilon: float

    def __post_init__(self) -> None:
        check_event(self, "epsilon", self.epsilon >= 0, "epsilon must be >= 0")


@dataclass(frozen=True)
class Poisson(Event):
    """The subject takes part with probability `rate`, by hidden Poisson sampling; inside it is `event`."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "rate", 0 < self.rate <= 1, "a participation probability must lie in (0, 1]")


@dataclass(frozen=True)
class Cohort(Event, stored=False):
    """A hidden cohort of exactly `cohort` out of `population`; inside it is `event`."""

    cohort: int
    population: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "population", self.population >= 1, "must be >= 1")
        check_event(self, "cohort", 1 <= self.cohort <= self.population, "a cohort must have 1 to `population` members")


@dataclass(frozen=True)
class WithoutReplacement(Cohort):
    """A hidden cohort under replace-one adjacency."""


@dataclass(frozen=True)
class FixedCohort(Cohort):
    """A hidden cohort under zero-out adjacency.

    A subject that is zeroed out can still be drawn, and then adds nothing. A client drawn instead of the subject adds
    no more than the subject could.
    """


@dataclass(frozen=True)
class Split(Event):
    """The subject is sent to one of `parts` disjoint parts, uniformly and hidden; each part is released by `event`."""

    parts: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "parts", self.parts >= 1, "must be >= 1")


@dataclass(frozen=True)
class Allocation(Event):
    """The subject takes part in exactly `uses` of `steps` releases, a uniformly random hidden subset.

    One Allocation is the event of all its steps together; the releases that share it carry one `joint` name in the
    ledger and are charged once.
    """

    steps: int
    uses: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "steps", self.steps >= 1, "must be >= 1")
        check_event(self, "uses", 1 <= self.uses <= self.steps, "must be 1 to `steps`")


@dataclass(frozen=True)
class Pooled(Event):
    """A sum that holds `noises` independent noises, each by itself enough for the Gaussian `event`.

    They are the noises unknown to a single observer who added one itself: it is Gaussian(z sqrt(noises)). An outsider
    knows none, so one more counts against it; a coalition may know one for each of its members. Against an observer of
    the summands only `event` counts.
    """

    noises: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "noises", self.noises >= 1, "must be >= 1")


@dataclass(frozen=True)
class BallSegment(Event, stored=False):
    """`steps` hidden steps with Poisson batches of `rate`, each scaled onto a ball; only their sum is released.

    The subject can bend the path from the step of its first draw on: by `first_step` of a step's largest effect then,
    by all of it in every later step. The noise of the Gaussian `event` is relative to that effect over all the steps.
    """

    steps: int
    rate: float
    first_step: float
    event: Event

    def __post_init__(self) -> None:
        check_segment(self)
        reason = "must lie in (0, 1]: the first step has at most the effect of a later one"
        check_event(self, "first_step", 0 < self.first_step <= 1, reason)


@dataclass(frozen=True)
class Segment(BallSegment):
    """A `BallSegment` under add/remove adjacency."""

    @property
    def known(self) -> Event:
        """Return the event with known draws: at worst the first step drew the subject."""
        return shorten_shift(self.event, (self.steps - 1 + self.first_step) / self.steps)


@dataclass(frozen=True)
class ReplacedSegment(BallSegment):
    """A `BallSegment` under replace-one adjacency: the subject's data exchanged for any other, with the same draws."""

    @property
    def known(self) -> Event:
        """Return the event with known draws: both data sets bend the first step, within one ball."""
        return shorten_shift(self.event, (self.steps - 1 + min(1.0, 2 * self.first_step)) / self.steps)


@dataclass(frozen=True)
class ConvexSegment(Event):
    """`steps` hidden steps of a convex, smooth objective with Poisson batches of `rate`; only their end is released.

    Every draw of the subject moves the end by at most one sensitivity, which the Gaussian `event` is relative to.
    """

    steps: int
    rate: float
    event: Event

    def __post_init__(self) -> None:
        check_segment(self)

    @property
    def known(self) -> Event:
        """Return the event with known draws: at worst every step drew the subject."""
        return shorten_shift(self.event, self.steps)


HiddenSteps = Segment | ReplacedSegment | ConvexSegment


@dataclass(frozen=True)
class PooledDraws(Event):
    """Noises of publicly known senders that add up, before the draw: each client sends with probability `rate`.

    The subject is among them and its own noise counts, as does that of each drawn one of `others` members; the
    observer's own does not. In a run the draws have been made, and the event is `Pooled`.
    """

    rate: float
    others: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "rate", 0 < self.rate <= 1, "a participation probability must lie in (0, 1]")
        check_event(self, "others", self.others >= 0, "must be >= 0")


@dataclass(frozen=True)
class Repeat(Event):
    """`times` independent (adaptively chosen) releases of the same `event`."""

    times: int
    event: Event

    def __post_init__(self) -> None:
        check_event(self, "times", self.times >= 0, "must be >= 0")


@dataclass(frozen=True)
class Product(Event):
    """Several releases made together, each of its own kind; inside a wrapper they share its draw."""

    events: tuple[Event, ...]


def check_event(event: Event, name: str, holds: bool, reason: str, way_out: str = "") -> None:
    """Raise unless the number is finite, not too large, and `holds` is true."""
    value = getattr(event, name)
    if isinstance(value, bool):
        invalid(f"{event.kind}.{name}", value, "must be a number, not true or false")
    if isinstance(value, int) and abs(value) > MOST_COUNTED:
        invalid(f"{event.kind}.{name}", value, f"whole numbers must be at most {MOST_COUNTED:.0e}")
    if not (holds and math.isfinite(value)):
        invalid(f"{event.kind}.{name}", value, reason, way_out)


def check_segment(event: BallSegment | ConvexSegment) -> None:
    """Raise unless a segment has steps, a rate, and Gaussian noise."""
    check_event(event, "steps", event.steps >= 1, "must be >= 1")
    check_event(event, "rate", 0 < event.rate <= 1, "a participation probability must lie in (0, 1]")
    if not isinstance(event.event, Gaussian | Clear):
        invalid(f"{event.kind}.event", event.event.kind, "a segment must be released with Gaussian noise")


def shorten_shift(event: Event, factor: float) -> Event:
    """Return the Gaussian for a subject that moves the value by `factor` sensitivities."""
    # Rounded to less noise, so that the cost is never understated.
    return Gaussian(event.noise_multiplier / (factor * (1 + 1e-15))) if isinstance(event, Gaussian) else event


def inner_events(event: Event) -> tuple[Event, ...]:
    """Return the events directly inside an event."""
    if isinstance(event, Product):
        return event.events
    inner = getattr(event, "event", None)
    return (inner,) if isinstance(inner, Event) else ()


def rebuild_event(event: Event, change: Callable[[Event], Event]) -> Event:
    """Return the event with `change` applied to the events directly inside it."""
    inner = tuple(change(part) for part in inner_events(event))
    if isinstance(event, Product):
        return Product(inner)
    return replace(event, event=inner[0]) if inner else event  # type: ignore[call-arg]


def with_known_coins(event: Event) -> Event:
    """Return the event against an observer who knows the random draws of sampling, splitting and scheduling.

    >>> with_known_coins(Poisson(0.1, Gaussian(2.0)))
    Gaussian(noise_multiplier=2.0)
    >>> with_known_coins(Allocation(10, 3, Gaussian(2.0)))
    Repeat(times=3, event=Gaussian(noise_multiplier=2.0))
    """
    if isinstance(event, Poisson | Cohort | Split | Pooled | PooledDraws):
        return with_known_coins(event.event)
    if isinstance(event, Allocation):
        return Repeat(event.uses, with_known_coins(event.event))
    if isinstance(event, HiddenSteps):
        return event.known
    return rebuild_event(event, with_known_coins)


def against_coalition(event: Event, members: int, parties: int) -> Event:
    """Return the event against a coalition of `parties` parties, of whom `members` may be in it themselves.

    >>> against_coalition(Pooled(4, Gaussian(2.0)), 0, 2)
    Pooled(noises=3, event=Gaussian(noise_multiplier=2.0))
    >>> against_coalition(WithoutReplacement(2, 9, Gaussian(2.0)), 3, 3)
    WithoutReplacement(cohort=2, population=6, event=Gaussian(noise_multiplier=2.0))
    """
    # Noises that the coalition may have added, one each, protect no one. Each member knows whether it was in a cohort
    # of a fixed size: at worst none was, and the cohort came from the others.
    inner = rebuild_event(event, lambda held: against_coalition(held, members, parties))
    if isinstance(inner, Pooled):
        return Pooled(max(1, inner.noises + 1 - parties), inner.event)
    if isinstance(inner, PooledDraws):
        return PooledDraws(inner.rate, max(0, inner.others + 1 - parties), inner.event)
    if isinstance(inner, Cohort):
        left = inner.population - members
        return replace(inner, population=left) if inner.cohort < left else inner.event
    return inner


def against_outsider(event: Event) -> Event:
    """Return the event against a single observer who adds no noise of its own: one more noise protects the subject.

    >>> against_outsider(Poisson(0.5, Pooled(4, Gaussian(2.0))))
    Poisson(rate=0.5, event=Pooled(noises=5, event=Gaussian(noise_multiplier=2.0)))
    """
    if isinstance(event, Pooled):
        # Capped so that the event stays valid; fewer noises only raise the cost.
        return Pooled(min(event.noises + 1, MOST_COUNTED), event.event)
    return rebuild_event(event, against_outsider)


def scale_noise(event: Event, factor: float) -> Event:
    """Return the event with every Gaussian's noise multiplied by `factor`; choices and pure releases keep theirs.

    >>> scale_noise(Poisson(0.1, Gaussian(1.0)), 3.0)
    Poisson(rate=0.1, event=Gaussian(noise_multiplier=3.0))
    """
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier * factor)
    return rebuild_event(event, lambda inner: scale_noise(inner, factor))


def to_json(event: Event) -> dict[str, Any]:
    """Return a plain dictionary `{"kind": ..., fields...}`; `from_json` is its inverse."""
    return {"kind": event.kind} | {f.name: _to_plain(getattr(event, f.name)) for f in fields(event)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, Event):
        return to_json(value)
    return [to_json(part) for part in value] if isinstance(value, tuple) else value


def from_json(plain: Any, *, depth: int = 0) -> Event:
    """Return the event that `to_json` wrote. Raises for anything else."""
    if depth > DEEPEST:
        invalid("event", "nested", f"events can be nested at most {DEEPEST} deep")
    if not isinstance(plain, dict):
        invalid("event", plain, 'must be an object with a "kind"')
    kind = str(plain.get("kind"))
    cls = Event.registry.get(kind)
    if cls is None:
        invalid("event.kind", kind, "unknown event", did_you_mean(kind, sorted(Event.registry)))
    types = {f.name: f.type for f in fields(cls)}
    if set(plain) - {"kind"} != set(types):
        invalid(f"event.{kind}", sorted(set(plain) - {"kind"}), f"its fields are {sorted(types)}")
    return cls(
        **{name: _read_value(f"event.{kind}.{name}", type_, plain[name], depth + 1) for name, type_ in types.items()}
    )


def _read_value(name: str, type_: Any, value: Any, depth: int) -> Any:
    if type_ is Event:
        return from_json(value, depth=depth)
    if isinstance(value, list) and type_ not in (int, float):
        return tuple(from_json(part, depth=depth) for part in value)
    allowed = (int,) if type_ is int else (int, float)
    if isinstance(value, bool) or type_ not in (int, float) or not isinstance(value, allowed):
        invalid(name, value, "has the wrong type for this field")
    return value
