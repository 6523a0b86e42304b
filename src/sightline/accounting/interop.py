"""Conversion between Sightline's events and `DpEvent`s of dp_accounting, for the kinds that both libraries have.

The noise of a Gaussian is relative to the sensitivity under the adjacency of the release. dp_accounting's accountants
read their event differently under REPLACE_ONE: give them add/remove releases, or twice the noise.
"""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

from sightline.accounting.compositions import Composition
from sightline.errors import invalid
from sightline.events import Clear, Event, Gaussian, Poisson, Product, Pure, Repeat, WithoutReplacement
from sightline.plugins import import_extra


def to_dp_event(events: Event | Composition) -> Any:
    """Return the `DpEvent` of an event or a composition. Raises for kinds that dp_accounting does not have.

    >>> to_dp_event(Poisson(0.1, Gaussian(2.0)))
    PoissonSampledDpEvent(sampling_probability=0.1, event=GaussianDpEvent(noise_multiplier=2.0))
    """
    if isinstance(events, Event):
        return convert_event(events)
    dp = load_dp_accounting()
    return dp.ComposedDpEvent([dp.SelfComposedDpEvent(convert_event(event), times) for event, times in events.items()])


def from_dp_event(event: Any) -> Event:
    """Return the Sightline event of a `DpEvent`. Laplace noise and randomised response become `Pure` releases.

    Raises for a `DpEvent` that has no equivalent.
    """
    readers: dict[str, Callable[[Any], Event]] = {
        "NoOpDpEvent": lambda e: Product(()),
        "NonPrivateDpEvent": lambda e: Clear(),
        "GaussianDpEvent": lambda e: Gaussian(e.noise_multiplier) if e.noise_multiplier > 0 else Clear(),
        # Pure(epsilon) is an upper bound for Laplace noise: its exact law is narrower than randomised response, but
        # Sightline has no event for it.
        "LaplaceDpEvent": lambda e: Pure(1 / e.noise_multiplier) if e.noise_multiplier > 0 else Clear(),
        "RandomizedResponseDpEvent": lambda e: Pure(response_epsilon(e.noise_parameter, e.num_buckets)),
        "SelfComposedDpEvent": lambda e: Repeat(e.count, from_dp_event(e.event)),
        "ComposedDpEvent": lambda e: Product(tuple(from_dp_event(inner) for inner in e.events)),
        "PoissonSampledDpEvent": lambda e: sample_event(e.sampling_probability, from_dp_event(e.event)),
        "SampledWithoutReplacementDpEvent": lambda e: WithoutReplacement(
            e.sample_size, e.source_dataset_size, from_dp_event(e.event)
        ),
    }
    name = type(event).__name__
    if name not in readers:
        invalid("dp_event", name, "Sightline has no equivalent event", f"known: {', '.join(sorted(readers))}")
    return readers[name](event)


def sample_event(rate: float, event: Event) -> Event:
    """Return the event under Poisson sampling; at rate zero nothing about the subject is released."""
    return Poisson(rate, event) if rate > 0 else Product(())


def response_epsilon(noise_parameter: float, num_buckets: int) -> float:
    """Return epsilon of randomised response that answers at random with probability `noise_parameter`."""
    if noise_parameter <= 0:
        invalid("noise_parameter", noise_parameter, "a release without noise has no finite epsilon", "use Clear()")
    return math.log1p(num_buckets * (1 - noise_parameter) / noise_parameter)


@singledispatch
def convert_event(event: Event) -> Any:
    """Return the `DpEvent` of one event. Raises for kinds without a registered conversion."""
    invalid("event", event.kind, "dp_accounting has no equivalent event", "account it with Sightline")


@convert_event.register
def _(event: Gaussian) -> Any:
    return load_dp_accounting().GaussianDpEvent(event.noise_multiplier)


@convert_event.register
def _(event: Clear) -> Any:
    return load_dp_accounting().NonPrivateDpEvent()


@convert_event.register
def _(event: Pure) -> Any:
    # Randomised response with two answers dominates every epsilon-DP release.
    return load_dp_accounting().RandomizedResponseDpEvent(2 / (1 + math.exp(event.epsilon)), 2)


@convert_event.register
def _(event: Poisson) -> Any:
    return load_dp_accounting().PoissonSampledDpEvent(event.rate, convert_event(event.event))


@convert_event.register
def _(event: WithoutReplacement) -> Any:
    return load_dp_accounting().SampledWithoutReplacementDpEvent(
        event.population, event.cohort, convert_event(event.event)
    )


@convert_event.register
def _(event: Repeat) -> Any:
    return load_dp_accounting().SelfComposedDpEvent(convert_event(event.event), event.times)


@convert_event.register
def _(event: Product) -> Any:
    return load_dp_accounting().ComposedDpEvent([convert_event(inner) for inner in event.events])


def load_dp_accounting() -> Any:
    """Import dp_accounting on first use and return it: it is an extra, and slow to load."""
    return import_extra("dp_accounting", "interop")
