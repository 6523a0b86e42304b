"""One step of SGD on flat vectors: the same lines for one client (d,) and for a stack of clients (n, d)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.training.work import LocalTerms, LocalWork, client_rows


@dataclass(eq=False)
class Descent:
    """The update w <- w - learning_rate v with momentum, weight decay and the terms of the local objective."""

    work: LocalWork
    proximal: float
    anchor: Tensor | None
    linear: Tensor | None
    mask: Tensor | None
    velocity: Tensor | None

    @classmethod
    def begin(cls, work: LocalWork, terms: LocalTerms, start: Tensor, clients: list[int] | int) -> "Descent":
        """The state before the first step of these clients from `start`; the velocity is zero."""
        anchor = None
        if terms.proximal:
            anchor = start.clone() if terms.anchor is None else client_rows(terms.anchor, clients)
        linear = None if terms.linear is None else client_rows(terms.linear, clients)
        mask = None if terms.mask is None else client_rows(terms.mask, clients)
        velocity = torch.zeros_like(start) if work.momentum else None
        return cls(work, terms.proximal, anchor, linear, mask, velocity)

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Move `weights` in place; `gradient` is used up."""
        self.add_terms(weights, gradient)
        if self.work.step_norm is not None:
            norms = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
            gradient.mul_((self.work.step_norm / norms).clamp_max_(1.0))
        direction = gradient
        if self.velocity is not None:
            direction = self.velocity.mul_(self.work.momentum).add_(gradient)
        weights.add_(direction, alpha=-self.work.learning_rate)

    def add_terms(self, weights: Tensor, gradient: Tensor) -> None:
        """Add the gradient of weight decay, proximal and linear terms; then hold what the mask holds."""
        if self.work.weight_decay:
            gradient.add_(weights, alpha=self.work.weight_decay)
        if self.anchor is not None:
            gradient.add_(weights - self.anchor, alpha=self.proximal)
        if self.linear is not None:
            gradient.add_(self.linear)
        if self.mask is not None:
            gradient.mul_(self.mask)

    def first(self, count: int) -> "Descent":
        """The same state for the first `count` clients of a stack, sharing memory with this one."""

        def head(value: Tensor | None) -> Tensor | None:
            return value if value is None or value.dim() == 1 else value[:count]

        parts = (head(self.anchor), head(self.linear), head(self.mask), head(self.velocity))
        return Descent(self.work, self.proximal, *parts)
