"""FedAvg, judged by a moving average of its models."""

from dataclasses import dataclass

from sightline.algorithms import Algorithm, Round, State
from sightline.errors import invalid
from sightline.mechanisms import Public


@dataclass(frozen=True)
class FedEMA:
    """Settings of FedEMA."""

    decay: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            invalid("algorithm.decay", self.decay, "the weight of the past lies in [0, 1)", "use 0.5")


def init_state(start: Public, clients: range, settings: FedEMA) -> State:
    """The average starts where the model does."""
    return {"model": start, "average": start}


def run_round(state: State, r: Round, settings: FedEMA) -> State:
    """A round of FedAvg; the average of what was released is post-processing."""
    updates = r.train(r.sample(), state["model"])
    model = state["model"] + r.release_mean(updates)
    return {"model": model, "average": settings.decay * state["average"] + (1 - settings.decay) * model}


def current_models(state: State, clients: range) -> Public:
    """The average."""
    return state["average"]


ALGORITHM = Algorithm("fedema", FedEMA, init_state, run_round, current_models)
