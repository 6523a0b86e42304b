"""FedAvgM: FedAvg with momentum at the server (Hsu et al. 2019, section 4.3)."""

from dataclasses import dataclass
from itertools import accumulate

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State, global_model
from sightline.errors import invalid
from sightline.mechanisms import Public


@dataclass(frozen=True)
class FedAvgM:
    """Settings of FedAvgM."""

    server_momentum: float = 0.3
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.server_momentum < 1:
            invalid("algorithm.server_momentum", self.server_momentum, "must be in [0, 1)", "0 is FedAvg")


def init_state(start: Public, clients: range, settings: FedAvgM) -> State:
    """Return one global model with zero velocity."""
    return {"model": start, "velocity": 0.0 * start}


def run_round(state: State, r: Round, settings: FedAvgM) -> State:
    """Update v <- beta v + mean update; w <- w + eta v."""
    updates = r.train(r.sample(), state["model"])
    # Momentum acts on released means only: post-processing, so it costs no privacy.
    velocity = settings.server_momentum * state["velocity"] + r.release_mean(updates)
    return {"model": state["model"] + settings.server_learning_rate * velocity, "velocity": velocity}


def momentum_sums(settings: FedAvgM, rounds: int) -> list[float]:
    """Return 1 + beta + ... + beta^i: the weight of a mean in the model i rounds later, over the learning rate."""
    return list(accumulate(settings.server_momentum**i for i in range(rounds)))


ALGORITHM = Algorithm("fedavgm", FedAvgM, init_state, run_round, global_model, AlgorithmFacts(workload=momentum_sums))
