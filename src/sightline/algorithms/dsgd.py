"""Decentralised SGD: nodes of a graph train, send noisy models to their neighbours and average (Lian et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State
from sightline.algorithms.local import current_models
from sightline.config import Experiment
from sightline.errors import refuse
from sightline.mechanisms import Public, sum_weighted
from sightline.topology import Channel, client_name


@dataclass(frozen=True)
class DSGD:
    """Decentralised SGD has no settings: who is connected belongs to the topology."""


def init_state(start: Public, clients: range, settings: DSGD) -> State:
    """Start every node from the same model."""
    return {client_name(client): start for client in clients}


def run_round(state: State, r: Round, settings: DSGD) -> State:
    """Train every node from its own model, send what it releases to its neighbours, and mix by Metropolis weights."""
    many = [(r.train(r.sample(node), state[node.name]), node) for node in r.channels]
    # All nodes are claimed in one transaction: a budget cannot stop the run between two of them.
    steps = r.release_means(many)
    models = [state[node.name] + step for node, step in zip(r.channels, steps, strict=True)]
    # A step alone does not tell a neighbour the model that it was made from.
    shown = [(one, node, node.audience, "a node's model") for one, node in zip(models, r.channels, strict=True)]
    sent = r.show(shown)
    mixed = metropolis_weights(r.channels)
    received = dict(zip((node.name for node in r.channels), sent, strict=True))
    return {name: mix_models(received, weights) for name, weights in mixed.items()}


def mix_models(sent: State, weights: dict[str, float]) -> Public:
    """Return the weighted mean of what a node has received, its own model included."""
    return sum_weighted([sent[name] for name in weights], list(weights.values()))


def metropolis_weights(channels: Sequence[Channel]) -> dict[str, dict[str, float]]:
    """Return node -> (it or a neighbour -> weight): 1 / (1 + the larger degree), and the rest for itself.

    The weights are symmetric and sum to one, so that the mean of all models is kept (Xiao and Boyd 2004).

    >>> line = [Channel(name, (n,), frozenset(seen)) for n, (name, seen) in enumerate(zip("abc", ("ab", "abc", "bc")))]
    >>> [[round(weight, 3) for weight in weights.values()] for weights in metropolis_weights(line).values()]
    [[0.333, 0.667], [0.333, 0.333, 0.333], [0.333, 0.667]]
    """
    degree = {node.name: len(node.audience) - 1 for node in channels}
    result = {}
    for node in channels:
        others = [name for name in degree if name in node.audience and name != node.name]
        weights = {name: 1 / (1 + max(degree[node.name], degree[name])) for name in others}
        result[node.name] = weights | {node.name: 1 - sum(weights.values())}
    return result


def check_experiment(experiment: Experiment) -> None:
    """Raise `Refused` for cohorts of all clients: a node decides by itself whether it trains."""
    if experiment.sampling.clients.scheme not in ("full", "poisson"):
        reason = "all nodes of a graph take part in every round"
        refuse("sampling.clients.scheme", experiment.sampling.clients.scheme, reason, 'use scheme = "full"')


FACTS = AlgorithmFacts(
    personal=True,
    says="There is no server: a node sends its noisy model to its neighbours only, and what others learn of it reaches "
    "them through the models on the way. The further away an observer is, the fewer releases can have reached it.",
    check=check_experiment,
    topologies=("graph",),
)
ALGORITHM = Algorithm("dsgd", DSGD, init_state, run_round, current_models, FACTS)
