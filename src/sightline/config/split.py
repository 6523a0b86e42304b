"""`algorithm.split`: every subject trains one hidden part of the model."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from sightline.config.section import Count, Positive, Section
from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment


class Split(Section):
    """Into how many parts, what stays whole, and how the two are clipped."""

    by: Literal["blocks", "dropout"] = "blocks"
    parts: Count = 2
    unsplit: Annotated[tuple[str, ...], Field(strict=False)] = ()
    partitions: Count = 1
    unsplit_clip_norm: Positive | None = None
    unsplit_noise: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _a_word_will_do(cls, given: Any) -> Any:
        return {"by": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _dropout_has_two_parts(self) -> "Split":
        if self.by == "dropout":
            own = {"parts": self.parts != 2, "unsplit": bool(self.unsplit), "partitions": self.partitions != 1}
            for key, given in own.items():
                if given:
                    law = "dropout has two parts, and the model's layers say what is unsplit"
                    invalid(f"algorithm.split.{key}", getattr(self, key), law, "remove it")
        return self


def check_split(experiment: "Experiment") -> None:
    """Refuse what has no amplification, or no law of its own yet."""
    privacy = experiment.privacy
    if experiment.algorithm.split is None:
        return
    if experiment.local.augment is not None:
        law = "views of an example would be averaged over parts"
        refuse("local.augment", "given", law, "remove local.augment or algorithm.split")
    if privacy.unit == "none":
        return
    if privacy.mechanism != "gaussian":
        law = f"{privacy.mechanism} perturbation trains the whole model"
        refuse("algorithm.split", "given", law, 'use mechanism = "gaussian", or remove split')
    if privacy.adjacency == "replace":
        law = "splitting is accounted as add/remove: a subject against none"
        refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or remove algorithm.split')
