"""Every event has words of its own."""

from sightline.apps.report import explain_event
from sightline.apps.report.ledger_rows import sentence_shape, told_as_one
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
    WithoutReplacement,
)
from tests.loops import for_every

NOISE = Gaussian(1.25)
WORDS = {
    NOISE: ["Gaussian noise", "z = 1.25"],
    Clear(): ["without noise"],
    Pure(0.5): ["pure", "0.5"],
    Exponential(0.125): ["exponential mechanism", "0.125"],
    Poisson(0.3, NOISE): ["z = 1.25", "each client", "sampled in secret with probability 0.3"],
    WithoutReplacement(5, 2000, NOISE): ["z = 1.25", "exactly 5 of 2,000 clients"],
    FixedCohort(5, 2000, NOISE): ["z = 1.25", "exactly 5 of 2,000 clients"],
    Split(3, NOISE): ["z = 1.25", "one of 3 parts"],
    Allocation(100, 7, NOISE): ["z = 1.25", "exactly 7 of 100 steps"],
    Repeat(4, NOISE): ["4 times", "z = 1.25"],
    Pooled(4, NOISE): ["z = 1.25", "4"],
    Segment(5, 0.05, 0.125, NOISE): ["z = 1.25", "5 hidden steps", "0.05", "0.125"],
    ReplacedSegment(5, 0.05, 0.125, NOISE): ["z = 1.25", "5 hidden steps", "any other client"],
    ConvexSegment(5, 0.05, NOISE): ["z = 1.25", "5 hidden steps", "convex", "0.05"],
    PooledDraws(0.5, 4, NOISE): ["z = 1.25", "each of 5 sends with probability 0.5"],
    Product((NOISE, Pure(0.5))): ["together", "z = 1.25", "0.5"],
    Product(()): ["nothing new"],
}


@for_every(sorted(Event.registry))
def test_every_registered_event_has_words_and_is_under_test(kind: str) -> None:
    events = [event for event in WORDS if type(event) is Event.registry[kind]]
    assert events, f"no words are tested for {kind}"
    fallback = kind.replace("_", " ") + " ("
    assert not any(explain_event(event).startswith(fallback) for event in events), f"explain has no words for {kind}"


@for_every(WORDS)
def test_the_words_hold_every_setting(event: Event) -> None:
    told = explain_event(event, who="client")
    assert [word for word in WORDS[event] if word not in told] == []


def test_the_sentence_of_the_quickstart() -> None:
    told = explain_event(Poisson(0.5, Gaussian(1.2)), who="client")
    assert told == "Gaussian noise, z = 1.2, each client sampled in secret with probability 0.5"


def test_numbers_are_rounded_to_the_private_side() -> None:
    told = explain_event(Product((Gaussian(1.99998), Pure(0.30001))))
    assert [word in told for word in ("z = 1.999", "ε = 0.3001")] == [True] * 2


def test_words_of_one_shape_are_told_as_one_with_ranges() -> None:
    texts = [explain_event(Repeat(3 * n, Poisson(0.1 * n, Gaussian(2.0))), who="example") for n in (2, 1, 4)]
    assert len({sentence_shape(text) for text in texts}) == 1
    assert told_as_one(texts) == (
        "3 to 12 times: Gaussian noise, z = 2, each example sampled in secret with probability 0.1 to 0.4"
    )
    assert sentence_shape(texts[0]) != sentence_shape(explain_event(Gaussian(2.0)))
