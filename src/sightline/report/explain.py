"""Events in words, for people who meet them for the first time."""

import re
from collections.abc import Collection
from functools import singledispatch

from sightline.events import (
    Allocation,
    Clear,
    Event,
    Exponential,
    Gaussian,
    Poisson,
    Pooled,
    Product,
    Pure,
    Repeat,
    Split,
    WithoutReplacement,
    to_json,
)
from sightline.report.numbers import format_count, format_short
from sightline.shown import digits_down, digits_up

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


@singledispatch
def explain_event(event: Event, who: str = "subject") -> str:
    """What an event did, in words; `who` is the unit that its coins are tossed for.

    >>> explain_event(Poisson(0.5, Gaussian(1.2)), who="client")
    'Gaussian noise, z = 1.2, each client by a hidden coin of probability 0.5'
    """
    plain = to_json(event)
    settings = ", ".join(f"{name} = {value}" for name, value in plain.items() if name != "kind")
    return str(plain["kind"]).replace("_", " ") + (f" ({settings})" if settings else "")


@explain_event.register
def _(event: Gaussian, who: str = "subject") -> str:
    return f"Gaussian noise, z = {digits_down(event.noise_multiplier, 4)}"


@explain_event.register
def _(event: Clear, who: str = "subject") -> str:
    return "in the clear, no noise"


@explain_event.register
def _(event: Pure, who: str = "subject") -> str:
    return f"pure differential privacy, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Exponential, who: str = "subject") -> str:
    return f"a choice by the exponential mechanism, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Poisson, who: str = "subject") -> str:
    return (
        f"{explain_event(event.event, who)}, each {who} by a hidden coin of probability {format_short(event.rate, 4)}"
    )


@explain_event.register
def _(event: WithoutReplacement, who: str = "subject") -> str:
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
