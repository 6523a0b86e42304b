"""The base of every section of an experiment file: strict, frozen, finite numbers only, no unknown key."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A table of the experiment file whose keys are all known here."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenSection(Section):
    """A table whose further keys belong to the thing it names; the room that builds it checks them."""

    model_config = ConfigDict(extra="allow")

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that are not declared here."""
        return dict(self.model_extra or {})
