"""The frozen facts of privacy: events, units, adjacency."""

from sightline.events.event import (
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
    against_coalition,
    from_json,
    scaled,
    to_json,
    with_known_coins,
)
from sightline.events.unit import Adjacency, Unit

__all__ = [
    "Adjacency",
    "Allocation",
    "Clear",
    "Event",
    "Exponential",
    "Gaussian",
    "Poisson",
    "Pooled",
    "Product",
    "Pure",
    "Repeat",
    "Split",
    "Unit",
    "WithoutReplacement",
    "against_coalition",
    "from_json",
    "scaled",
    "to_json",
    "with_known_coins",
]
