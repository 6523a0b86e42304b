"""FedYogi: an adaptive optimiser at the server (Reddi et al. 2021, Algorithm 2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.errors import invalid
from sightline.mechanisms import Public, combine_public


@dataclass(frozen=True)
class FedYogi:
    """Settings of FedYogi, by the paper's symbols: eta, beta_1, beta_2, tau."""

    server_learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                invalid(f"algorithm.{name}", getattr(self, name), "lies in [0, 1)", "e.g. 0.9")
        if not self.tau > 0:
            invalid("algorithm.tau", self.tau, "the degree of adaptivity is positive", "e.g. 1e-3")


def init_state(start: Public, clients: range, settings: FedYogi) -> State:
    """Return zero moments, and v = tau^2, the smallest start that the paper allows (v_-1 >= tau^2)."""
    zero = 0.0 * start
    return {"model": start, "first": zero, "second": combine_public(lambda z: z + settings.tau**2, zero)}


def run_round(state: State, r: Round, settings: FedYogi) -> State:
    """Lines 12-16: update the moments of the released mean, then take one scaled step (post-processing)."""
    step = r.release_mean(r.train(r.sample(), state["model"]))
    first = settings.beta1 * state["first"] + (1 - settings.beta1) * step  # line 12
    second = combine_public(lambda v, d: yogi_moment(v, d, settings.beta2), state["second"], step)  # line 14
    move = combine_public(lambda m, v: m / (v.sqrt() + settings.tau), first, second)  # line 16
    return {"model": state["model"] + settings.server_learning_rate * move, "first": first, "second": second}


def yogi_moment(second: Tensor, step: Tensor, beta2: float) -> Tensor:
    """Update v <- v - (1 - beta_2) D^2 sign(v - D^2): move towards D^2 by at most a fixed share of it.

    >>> yogi_moment(torch.tensor([4.0, 0.0]), torch.tensor([1.0, 1.0]), 0.9)
    tensor([3.9000, 0.1000])
    """
    square = step**2
    return second - (1 - beta2) * square * torch.sign(second - square)


def current_models(state: State, clients: range) -> Public:
    """Return the global model."""
    return state["model"]


ALGORITHM = Algorithm("fedyogi", FedYogi, init_state, run_round, current_models)
