"""FedAvg (McMahan et al. 2017, Algorithm 1; with privacy: McMahan et al. 2018, DP-FedAvg)."""

from dataclasses import dataclass

from sightline.algorithms.contract import Algorithm, Round, State, global_model
from sightline.mechanisms import Public


@dataclass(frozen=True)
class FedAvg:
    """Settings of FedAvg."""

    server_learning_rate: float = 1.0


def init_state(start: Public, clients: range, settings: FedAvg) -> State:
    """Line 2: return one global model."""
    return {"model": start}


def run_round(state: State, r: Round, settings: FedAvg) -> State:
    """Lines 3-8: train a cohort from the global model and move it by the mean of the updates."""
    cohort = r.sample()  # lines 4-5
    updates = r.train(cohort, state["model"])  # lines 6-7, ClientUpdate
    step = r.release_mean(updates)  # line 8
    return {"model": state["model"] + settings.server_learning_rate * step}


ALGORITHM = Algorithm("fedavg", FedAvg, init_state, run_round, global_model)
