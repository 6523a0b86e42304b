"""What a client is asked to do: steps and loss terms, paths, batches of each step, and the optimiser's step."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import repeat
from math import cos, isfinite, pi, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid
from sightline.training.clipping import row_norms
from sightline.training.machine import FLOAT32, PRECISIONS


# Paths differ in their last bits. A run therefore records its paths and resumes with the same ones: with the same noise
# on another value, the difference of the two would show what the noise hid.
@dataclass(frozen=True)
class Paths:
    """The path that each kind of work takes.

    Guarantees: every path computes the same function of the same data and the same random words, up to float32
    rounding. Which path is fastest depends on the processor.
    """

    plain: str = "stack"
    """Plain steps of convolutional chains: `stack` (clients stacked), `loop` (one after the other), `compiled`."""
    record: str = "unfold"
    """Per-example gradients of convolutions: `unfold` (patches and products) or `grouped` (one grouped convolution)."""
    noise: str = "torch"
    """Normal numbers of DP-SGD steps from raw words: `torch` or `compiled`."""

    def describe(self) -> dict[str, str]:
        """Return field -> path, as a run records them."""
        return asdict(self)


BY_RULE = Paths()
"""The default paths, used where nothing was measured."""

KNOWN = {
    "plain": ("stack", "loop", "compiled"),
    "record": ("unfold", "grouped"),
    "noise": ("torch", "compiled"),
}
"""Field -> all known paths, the default first; whether one exists for a model is checked elsewhere."""


def read_paths(recorded: Mapping[str, Any] | None) -> Paths:
    """Return the paths that a run recorded, with defaults for missing fields; raise for an unknown path.

    >>> read_paths({"plain": "loop"})
    Paths(plain='loop', record='unfold', noise='torch')
    """
    given = dict(recorded or {})
    for name, path in given.items():
        if name not in KNOWN or path not in KNOWN[name]:
            known = ", ".join(KNOWN.get(name, [field.name for field in fields(Paths)]))
            invalid(f"paths.{name}", path, f"must be one of {known}", "use the version that started the run")
    return Paths(**given)


@dataclass(frozen=True)
class Adam:
    """Settings of Adam: m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, and a step along m / (sqrt s + eps).

    Both means are divided by 1 - b^k at step k. With `decoupled`, weight decay shrinks the weights directly (AdamW) and
    does not enter the gradient. References: Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            invalid("betas", self.betas, "must be in [0, 1)")
        if not (isfinite(self.eps) and self.eps > 0):
            invalid("adam_eps", self.eps, "must be a positive number")


@dataclass(frozen=True)
class RateSchedule:
    """Learning rate over the rounds: a linear warm-up, then constant, half a cosine, linear decay, or steps."""

    kind: str = "constant"
    rounds: int = 1
    warmup: int = 0
    decay_every: int = 1
    decay: float = 1.0

    def rate_at(self, time: int, learning_rate: float) -> float:
        """Return the learning rate of round `time` = 1, 2, ..., `rounds`; positive in every round.

        >>> [RateSchedule("linear", rounds=4, warmup=2).rate_at(time, 1.0) for time in (1, 2, 3, 4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        if time <= self.warmup:
            return learning_rate * (time / self.warmup)
        since, whole = time - 1 - self.warmup, max(1, self.rounds - self.warmup)
        if self.kind == "cosine":
            return learning_rate * ((1 + cos(pi * since / whole)) / 2)
        if self.kind == "linear":
            return learning_rate * (1 - since / whole)
        if self.kind == "step":
            return float(learning_rate * self.decay ** (since // self.decay_every))
        return learning_rate


@dataclass(frozen=True)
class LocalWork:
    """Local SGD: `epochs` passes over the shard or `steps` mini-batches, with momentum and weight decay; or Adam.

    v <- momentum v + g + weight_decay w;  w <- w - learning_rate v.  `batch_size` None uses the whole shard in every
    step. With `step_norm` the gradient of every step, loss terms included, is scaled onto the ball of that radius.
    """

    learning_rate: float
    momentum: float = 0.0
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    weight_decay: float = 0.0
    step_norm: float | None = None
    # A setting, not a choice at run time: compiled steps differ in the last bits, and a compiler that happens to be
    # installed must not change the bits of a resumed run.
    compiled: bool = False
    """Whether linear models are trained by compiled code: faster, and equal up to float32 rounding."""
    adam: Adam | None = None
    """Adam or AdamW instead of momentum."""
    paths: Paths = BY_RULE
    """Which of the exact paths to take."""
    precision: str = "float32"
    """`bf16` computes products and convolutions in bfloat16; weights, losses, norms, clipping and
    noise do not."""

    def __post_init__(self) -> None:
        if self.adam is not None and (self.momentum or self.compiled):
            name = "momentum" if self.momentum else "compiled"
            invalid(name, getattr(self, name), "cannot be combined with Adam", "remove one of them")
        if self.precision not in PRECISIONS:
            invalid("precision", self.precision, "must be float32 or bf16")
        if self.compiled and self.precision != FLOAT32:
            invalid(
                "compiled", True, "compiled code computes in float32", 'use precision = "float32", or remove compiled'
            )
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            invalid("learning_rate", self.learning_rate, "must be a positive number")
        if not 0 <= self.momentum < 1:
            invalid("momentum", self.momentum, "must be in [0, 1)")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            invalid("weight_decay", self.weight_decay, "must be a number >= 0")
        if self.batch_size is not None and self.batch_size < 1:
            invalid("batch_size", self.batch_size, "must be a whole number >= 1", "use None for the whole shard")
        if self.step_norm is not None and not (isfinite(self.step_norm) and self.step_norm > 0):
            invalid("step_norm", self.step_norm, "must be a positive number", "use None for steps of any length")
        for name, count in (("epochs", self.epochs), ("steps", self.steps)):
            if count is not None and count < 0:
                invalid(name, count, "must be a whole number >= 0")
        if self.epochs is not None and self.steps is not None:
            invalid("steps", self.steps, f"epochs={self.epochs} is given too", "give only one of them")


@dataclass(frozen=True, eq=False)
class LocalTerms:
    """Terms added to client i's objective, and a mask of the parameters that may move.

    f_i(w) + proximal / 2 |w - anchor|^2 + <linear, w>; `anchor` defaults to the client's start; each tensor is (d,) for
    all clients or (n, d). Parameters where `mask` (zeros and ones) is zero stay at their start.
    """

    proximal: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.proximal) and self.proximal >= 0):
            invalid("proximal", self.proximal, "must be a number >= 0")
        if self.anchor is not None and not self.proximal:
            invalid("anchor", tuple(self.anchor.shape), "has no effect while proximal is 0", "give proximal > 0")


def client_rows(value: Tensor, clients: "list[int] | int") -> Tensor:
    """Return the row or rows of a per-client tensor; a shared (d,) tensor is returned as it is."""
    return value if value.dim() == 1 else value[clients]


Index = NDArray[np.intp]


def steps_of(examples: int, work: LocalWork, epochs: float | None = None) -> int:
    """Return how many steps a client with this many examples takes; `epochs` overrides the work's own number."""
    if examples == 0:
        return 0
    per_epoch = 1 if work.batch_size is None else -(-examples // work.batch_size)
    if epochs is None and work.steps is not None:
        return work.steps
    passes = epochs if epochs is not None else (1 if work.epochs is None else work.epochs)
    return round(passes * per_epoch)


def shuffled_batches(examples: int, work: LocalWork, steps: int, rng: np.random.Generator) -> Iterator[Index | None]:
    """Yield the batches of `steps` steps: a fresh permutation per epoch, cut in order; the last batch may be smaller.

    Guarantees: every example is used once per epoch. None stands for the whole shard in its own order: `batch_size`
    None yields it and draws nothing.
    """
    order: Index = np.empty(0, np.intp)
    for _ in range(steps):
        if work.batch_size is None:
            yield None
            continue
        if order.size == 0:
            order = rng.permutation(examples)
        batch, order = order[: work.batch_size], order[work.batch_size :]
        yield batch


def batch_table(
    examples: int, work: LocalWork, steps: int, rng: np.random.Generator, *, width: int, first: int, nothing: int
) -> NDArray[np.int64]:
    """Return `shuffled_batches` as one (steps, width) array of row numbers from `first`, padded with `nothing`."""
    per_epoch = max(1, -(-examples // (work.batch_size or 1)))
    result = np.full((steps, width), nothing, np.int64)
    for step in range(0, steps, per_epoch):
        rows = np.full(per_epoch * width, nothing, np.int64)
        # The same draws in the same order as `shuffled_batches`: stacked and looped clients see the same batches.
        rows[:examples] = first + rng.permutation(examples)
        result[step : step + per_epoch] = rows.reshape(per_epoch, width)[: steps - step]
    return result


def poisson_batches(examples: int, rate: float, steps: int, rng: np.random.Generator) -> Iterator[Index | None]:
    """Yield the batches of `steps` steps in which every example is drawn independently at every step.

    Guarantees: each example is in each batch with probability `rate`, independently of everything else. A batch may be
    empty. Rate 1 yields the whole shard (None) and draws nothing.
    """
    if rate >= 1.0:
        yield from repeat(None, steps)
        return
    # Drawing a block of steps at once yields the same numbers as drawing one step at a time.
    ahead = max(1, (1 << 14) // max(examples, 1))
    for first in range(0, steps, ahead):
        for drawn in rng.random((min(ahead, steps - first), examples)) < rate:
            yield np.flatnonzero(drawn)


@dataclass(eq=False)
class Descent:
    """Optimiser state of one client: SGD with momentum, weight decay and loss terms, or Adam.

    Guarantees: the state starts at zero with a client's training and ends with it. It is a function of the gradients it
    was given: if those are already noised, a step reveals nothing more.
    """

    work: LocalWork
    proximal: float
    anchor: Tensor | None
    linear: Tensor | None
    mask: Tensor | None
    velocity: Tensor | None
    square: Tensor | None = None
    """Adam's running mean of squared gradients; `velocity` is then the running mean of gradients."""
    steps: int = 0

    @classmethod
    def begin(cls, work: LocalWork, terms: LocalTerms, start: Tensor, clients: list[int] | int) -> "Descent":
        """Return the state before the first step of these clients from `start`, with zero velocity."""
        anchor = None
        if terms.proximal:
            anchor = start.clone() if terms.anchor is None else client_rows(terms.anchor, clients).to(start.device)
        linear = None if terms.linear is None else client_rows(terms.linear, clients).to(start.device)
        mask = None if terms.mask is None else client_rows(terms.mask, clients).to(start.device)
        velocity = torch.zeros_like(start) if work.momentum or work.adam else None
        square = torch.zeros_like(start) if work.adam else None
        return cls(work, terms.proximal, anchor, linear, mask, velocity, square)

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Move `weights` in place; `gradient` is overwritten."""
        self.add_terms(weights, gradient)
        if self.work.step_norm is not None:
            # The norm is summed in double: a segment is claimed to be at most steps x step_norm long, and a float32
            # norm can be too short.
            norms = row_norms(gradient.view(-1, gradient.shape[-1])).view(*gradient.shape[:-1], 1)
            gradient.mul_((self.work.step_norm / norms).clamp_max_(1.0).float())
        if self.work.adam is not None and self.velocity is not None and self.square is not None:
            self.step_adam(self.work.adam, weights, gradient, self.velocity, self.square)
            return
        direction = gradient
        if self.velocity is not None:
            direction = self.velocity.mul_(self.work.momentum).add_(gradient)
        weights.add_(direction, alpha=-self.work.learning_rate)

    def step_adam(self, adam: Adam, weights: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
        """Apply w <- w - learning_rate mean / (sqrt square + eps), both moments corrected for their start at zero."""
        self.steps += 1
        rate, (keep, keep_square) = self.work.learning_rate, adam.betas
        if adam.decoupled and self.work.weight_decay:
            shrink = rate * self.work.weight_decay
            weights.mul_(1 - shrink if self.mask is None else 1 - shrink * self.mask)
        mean.mul_(keep).add_(gradient, alpha=1 - keep)
        square.mul_(keep_square).addcmul_(gradient, gradient, value=1 - keep_square)
        root = square.sqrt().div_(sqrt(1 - keep_square**self.steps)).add_(adam.eps)
        weights.addcdiv_(mean, root, value=-rate / (1 - keep**self.steps))

    def add_terms(self, weights: Tensor, gradient: Tensor) -> None:
        """Add the gradients of weight decay, proximal and linear terms, then zero what the mask holds."""
        if self.work.weight_decay and not (self.work.adam is not None and self.work.adam.decoupled):
            gradient.add_(weights, alpha=self.work.weight_decay)
        if self.anchor is not None:
            gradient.add_(weights - self.anchor, alpha=self.proximal)
        if self.linear is not None:
            gradient.add_(self.linear)
        # The mask comes last: no term of the objective may move a parameter that is held.
        if self.mask is not None:
            gradient.mul_(self.mask)

    def first(self, count: int) -> "Descent":
        """Return the state of the first `count` clients of a stack, sharing memory with this one."""

        def head(value: Tensor | None) -> Tensor | None:
            return value if value is None or value.dim() == 1 else value[:count]

        parts = (head(self.anchor), head(self.linear), head(self.mask), head(self.velocity), head(self.square))
        return Descent(self.work, self.proximal, *parts, self.steps)
