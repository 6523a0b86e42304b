"""MR-MTL: personal models regularised towards their mean (Z. Liu et al. 2022, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any

from sightline.algorithms import local
from sightline.algorithms.clustered.cluster_training import with_sources_of
from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State
from sightline.algorithms.dp_ogl import mean_model
from sightline.errors import invalid
from sightline.mechanisms import Public
from sightline.topology import client_name


@dataclass(frozen=True)
class MRMTL:
    """Settings of MR-MTL; `penalty` is the paper's lambda: 0 is local training, a large one nearly a global model."""

    penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.penalty < 0:
            invalid("algorithm.penalty", self.penalty, "must not be negative", "0 is local training")


def init_state(start: Public, clients: range, settings: MRMTL) -> State:
    """Start every client from the same model."""
    return local.init_state(start, clients, local.Local())


def run_round(state: State, r: Round, settings: MRMTL) -> State:
    """Client i lowers F_i(w) + lambda / 2 |w - mean|^2 from its own model; the mean is over all released models."""
    own = local.current_models(state, r.clients)
    centre = mean_model(list(own.values()))
    # The mean enters as the anchor, not as the start: its releases must be among the inputs all the same.
    starts = {client: with_sources_of(model, centre) for client, model in own.items()}
    pull: dict[str, Any] = {"proximal": float(settings.penalty), "anchor": centre.value} if settings.penalty else {}
    steps = r.release_each(r.train(r.sample(), starts, **pull))
    return dict(state) | {client_name(client): own[client] + step for client, step in steps.items()}


FACTS = AlgorithmFacts(
    personal=True,
    says="Every client releases its own model after each round; the mean that holds them together is computed from "
    "those.",
)
ALGORITHM = Algorithm("mrmtl", MRMTL, init_state, run_round, local.current_models, FACTS)
