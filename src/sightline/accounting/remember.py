"""A cache that is bounded by what it holds, not by how many: laws differ in size by a factor of a thousand."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
MOST_POINTS = 2**21
"""Lattice points that one cache keeps (16 MB of doubles)."""


class LawCache(Generic[Value]):
    """A function of hashable arguments whose newest results are kept up to a total number of lattice points."""

    def __init__(self, function: Callable[..., Value]) -> None:
        self.function = function
        self.held: OrderedDict[Hashable, Value] = OrderedDict()
        self.points = 0
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *key: Hashable) -> Value:
        """The kept result, or a new one."""
        if key in self.held:
            self.held.move_to_end(key)
            return self.held[key]
        value = self.function(*key)
        self.held[key] = value
        self.points += count_points(value)
        while self.points > MOST_POINTS and len(self.held) > 1:
            _, dropped = self.held.popitem(last=False)
            self.points -= count_points(dropped)
        return value


def count_points(value: Any) -> int:
    """Lattice points of a law."""
    return len(value.mass)
