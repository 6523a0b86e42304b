"""Local training without any exchange between clients: the baseline that federation has to beat."""

from dataclasses import dataclass

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State
from sightline.mechanisms import Public
from sightline.topology import client_name


@dataclass(frozen=True)
class Local:
    """Local training has no settings."""


def init_state(start: Public, clients: range, settings: Local) -> State:
    """Start every client from the same model."""
    return {client_name(client): start for client in clients}


def run_round(state: State, r: Round, settings: Local) -> State:
    """Train the cohort's members on from their own models; the others keep theirs."""
    cohort = r.sample()
    updates = r.train(cohort, current_models(state, r.clients))
    steps = r.release_each(updates)
    return dict(state) | {client_name(client): state[client_name(client)] + step for client, step in steps.items()}


def current_models(state: State, clients: range) -> dict[int, Public]:
    """Return every client's own model."""
    return {client: state[client_name(client)] for client in clients}


FACTS = AlgorithmFacts(
    personal=True,
    says="Clients train alone; epsilon is for publishing every client's own model after each round.",
    topologies=("star",),
)
ALGORITHM = Algorithm("local", Local, init_state, run_round, current_models, FACTS)
