"""FedProx: FedAvg with a proximal term that keeps clients near the global model (Li et al. 2020, Algorithm 2)."""

from dataclasses import dataclass

from sightline.algorithms.contract import Algorithm, Round, State, global_model
from sightline.errors import invalid
from sightline.mechanisms import Public


@dataclass(frozen=True)
class FedProx:
    """Settings of FedProx."""

    mu: float = 0.5
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.mu < 0:
            invalid("algorithm.mu", self.mu, "must not be negative", "0 is FedAvg")


def init_state(start: Public, clients: range, settings: FedProx) -> State:
    """Return one global model."""
    return {"model": start}


def run_round(state: State, r: Round, settings: FedProx) -> State:
    """Lines 3-6: client i approximately minimises F_i(w) + mu / 2 |w - w_t|^2, starting from w_t."""
    cohort = r.sample()  # line 3
    updates = r.train(cohort, state["model"], proximal=float(settings.mu))  # lines 4-5
    step = r.release_mean(updates)  # line 6
    return {"model": state["model"] + settings.server_learning_rate * step}


ALGORITHM = Algorithm("fedprox", FedProx, init_state, run_round, global_model)
