"""What a client is asked to do: how many steps of which size, and what is added to its objective."""

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from sightline.errors import invalid


@dataclass(frozen=True)
class LocalWork:
    """Local SGD: `epochs` passes over the shard or `steps` mini-batches, with momentum and weight decay.

    v <- momentum v + g + weight_decay w;  w <- w - learning_rate v.  `batch_size` None: the whole shard every step.
    With `step_norm` the gradient of every step, its terms included, is scaled onto the ball of that radius.
    """

    learning_rate: float
    momentum: float = 0.0
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    weight_decay: float = 0.0
    step_norm: float | None = None
    compiled: bool = False
    """Whether linear models are trained by compiled code: faster, and equal up to float32 rounding."""

    def __post_init__(self) -> None:
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            invalid("learning_rate", self.learning_rate, "is a positive number")
        if not 0 <= self.momentum < 1:
            invalid("momentum", self.momentum, "lies in [0, 1)")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            invalid("weight_decay", self.weight_decay, "is a number >= 0")
        if self.batch_size is not None and self.batch_size < 1:
            invalid("batch_size", self.batch_size, "is a whole number >= 1", "or None for the whole shard")
        if self.step_norm is not None and not (isfinite(self.step_norm) and self.step_norm > 0):
            invalid("step_norm", self.step_norm, "is a positive number", "or None for steps of any length")
        for name, count in (("epochs", self.epochs), ("steps", self.steps)):
            if count is not None and count < 0:
                invalid(name, count, "is a whole number >= 0")
        if self.epochs is not None and self.steps is not None:
            invalid("steps", self.steps, f"epochs={self.epochs} is given too", "give one of the two")


@dataclass(frozen=True, eq=False)
class LocalTerms:
    """What is added to client i's objective, and where it may move.

    f_i(w) + proximal / 2 |w - anchor|^2 + <linear, w>; `anchor` defaults to the client's start; each tensor is (d,) for
    all clients or (n, d). `mask` (zeros and ones) holds the parameters where it is zero at their start.
    """

    proximal: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.proximal) and self.proximal >= 0):
            invalid("proximal", self.proximal, "is a number >= 0")
        if self.anchor is not None and not self.proximal:
            invalid("anchor", tuple(self.anchor.shape), "has no effect while proximal is 0", "give proximal > 0")


def client_rows(value: Tensor, clients: "list[int] | int") -> Tensor:
    """The row or rows of a per-client tensor; a shared (d,) tensor is the same for everybody."""
    return value if value.dim() == 1 else value[clients]
