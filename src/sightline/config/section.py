"""The base of every section of an experiment file: strict, frozen, finite numbers only, no unknown keys."""

import math
import re
from datetime import date, time
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sightline.errors import invalid

# Nesting limit of lists and tables.
DEEPEST = 16

Count = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0)]
# Squares of much smaller gradients underflow to zero in float32: they would pass any clip norm.
ClipNorm = Annotated[float, Field(ge=1e-12)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


LONGEST_NAME = 200


def _check_name(name: str) -> str:
    """Return the name. Raises for a malformed one; whether it is known is checked by the package that looks it up."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError('must be a name, or your own object as "package.module:OBJECT"')
    return name


NAME = re.compile(r"[A-Za-z_][\w.-]*(?::[A-Za-z_][\w.]*)?")
Name = Annotated[str, AfterValidator(_check_name)]
"""A built-in name, one that an installed package offers, or "package.module:OBJECT"; looked up when it is built."""


class Section(BaseModel):
    """A table of the experiment file whose keys are all declared here."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenSection(Section):
    """A table whose further keys belong to the object it names; the package that builds it checks them."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        for name, value in self.settings.items():
            check_plain(name, value)
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Return the keys that are not declared here."""
        return dict(self.model_extra or {})


def check_plain(name: str, value: Any) -> None:
    """Raise for values that the resolved TOML file could not hold."""
    # A loop, not recursion: a hostile file could nest deeper than Python's stack.
    waiting = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, float) and not math.isfinite(part):
            invalid(name, part, "numbers must be finite")
        if isinstance(part, date | time):
            invalid(name, part, "a setting cannot be a date or a time", "put it in quotes")
        if isinstance(part, int) and abs(part) >= 2**63:
            invalid(name, part, "whole numbers must fit 64 bits")
        if depth > DEEPEST:
            invalid(name, "[[[...", f"lists and tables can be nested at most {DEEPEST} deep")
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        waiting += [(one, depth + 1) for one in inside]
