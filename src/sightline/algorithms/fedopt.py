"""FedAdagrad, FedAdam and FedYogi: adaptive optimisers at the server (Reddi et al. 2021, Algorithm 2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.algorithms.contract import Algorithm, Round, RoundFunction, State, global_model
from sightline.errors import invalid
from sightline.mechanisms import Public, combine_public


@dataclass(frozen=True)
class FedAdagrad:
    """Settings of FedAdagrad, by the paper's symbols: eta, beta_1, tau. The paper's runs have no momentum here."""

    server_learning_rate: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name, 0) < 1:
                invalid(f"algorithm.{name}", getattr(self, name), "must be in [0, 1)", "e.g. 0.9")
        if not self.tau > 0:
            invalid("algorithm.tau", self.tau, "must be positive", "e.g. 1e-3")


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """Settings of FedAdam and FedYogi: also beta_2, the memory of the second moment."""

    beta1: float = 0.9
    beta2: float = 0.99


def init_state(start: Public, clients: range, settings: FedAdagrad) -> State:
    """Return zero moments, and v = tau^2, the smallest start that the paper allows (v_-1 >= tau^2)."""
    zero = 0.0 * start
    return {"model": start, "first": zero, "second": combine_public(lambda z: z + settings.tau**2, zero)}


def _round_with(second_moment: Callable[[Tensor, Tensor, Any], Tensor]) -> RoundFunction:
    """Return lines 12-16 with one of the lines 13-15; there is no bias correction, as in the paper."""

    def run_round(state: State, r: Round, settings: FedAdagrad) -> State:
        # The moments are computed from the released mean: post-processing, which costs no privacy.
        step = r.release_mean(r.train(r.sample(), state["model"]))
        first = settings.beta1 * state["first"] + (1 - settings.beta1) * step  # line 12
        second = combine_public(lambda v, d: second_moment(v, d, settings), state["second"], step)
        move = combine_public(lambda m, v: m / (v.sqrt() + settings.tau), first, second)  # line 16
        return {"model": state["model"] + settings.server_learning_rate * move, "first": first, "second": second}

    return run_round


def adagrad_moment(second: Tensor, step: Tensor, settings: FedAdagrad) -> Tensor:
    """Line 13: v <- v + D^2."""
    return second + step**2


def yogi_moment(second: Tensor, step: Tensor, settings: FedAdam) -> Tensor:
    """Line 14: v <- v - (1 - beta_2) D^2 sign(v - D^2): move towards D^2 by at most a fixed share of it.

    >>> yogi_moment(torch.tensor([4.0, 0.0]), torch.tensor([1.0, 1.0]), FedAdam(beta2=0.9))
    tensor([3.9000, 0.1000])
    """
    square = step**2
    return second - (1 - settings.beta2) * square * torch.sign(second - square)


def adam_moment(second: Tensor, step: Tensor, settings: FedAdam) -> Tensor:
    """Line 15: v <- beta_2 v + (1 - beta_2) D^2."""
    return settings.beta2 * second + (1 - settings.beta2) * step**2


SECOND_MOMENTS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "adagrad": adagrad_moment,
    "adam": adam_moment,
    "yogi": yogi_moment,
}
ADAGRAD = Algorithm("fedadagrad", FedAdagrad, init_state, _round_with(adagrad_moment), global_model)
ADAM = Algorithm("fedadam", FedAdam, init_state, _round_with(adam_moment), global_model)
YOGI = Algorithm("fedyogi", FedAdam, init_state, _round_with(yogi_moment), global_model)
