"""R-DPCFL: clusters found from full-batch first updates; drawn softly at first, then chosen privately, then frozen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.algorithms.clustered import cluster_training
from sightline.algorithms.clustered.cluster_training import (
    ASSIGNMENT,
    START,
    Selecting,
    assign_clusters,
    choose_clusters,
    cluster_name,
    complete_settings,
    draw_clusters,
    members_of,
    moved_to,
    refuse_no_answers,
    refuse_trusted_server,
    show_models,
    train_clusters,
    with_sources_of,
)
from sightline.algorithms.clustered.mixture import (
    KINDS,
    Mixture,
    candidate_counts,
    confidence_by_count,
    fit_mixture,
    surest_mixture,
    switch_round,
)
from sightline.algorithms.contract import Algorithm, AlgorithmFacts, ClusterState, Round, State
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse
from sightline.mechanisms import Cohort, Public, combine_public
from sightline.mechanisms.contract import weighted_mean
from sightline.topology import PUBLIC

CONFIDENCE, POINTS, CENTRES, RADII, SCORES, CURVE = "confidence", "points", "centres", "radii", "scores", "curve"
SEEDS = 2**31


def run_first_round(state: State, r: Round, cohort: Cohort, settings: Any) -> State:
    """Train all present clients from the common start, by default with full batches, and release the noisy results.

    The rest is the server's post-processing of released values: a mixture, its posteriors, the switch round E_c, and
    cluster models that start from the mean of their likeliest members' models.
    """
    batch = {"whole_batch": True} if settings.first_batch is None else {"batch_size": settings.first_batch}
    updates = r.train(cohort, state[START], **batch)  # b^1 of Lemma 4.2
    steps = r.release_each(updates)
    # A plan has no values to fit. It assumes the most expensive case: there are clusters to choose from.
    mixture, curve = (
        (unseen_mixture(len(steps), settings), [])
        if r.rehearsal or not steps
        else fit_updates(list(steps.values()), r, settings)
    )
    sources = Public(torch.zeros(0), frozenset[int]().union(*(step.sources for step in steps.values())))

    def public(value: Any) -> Public:
        tensor = torch.as_tensor(np.array(value), dtype=torch.float32)
        return combine_public(lambda _: tensor, sources)

    chances = for_all(mixture, list(steps), len(r.clients))
    last_drawn = max(r.time, 0 if r.rehearsal else last_soft(mixture, settings))
    state = dict(state) | {
        CONFIDENCE: public(chances),
        POINTS: public(at_places(in_plane(mixture.points), list(steps), len(r.clients))),
        CENTRES: public(in_plane(mixture.centres)),
        RADII: public(mixture.radii),
        SCORES: public([mixture.mss, mixture.mpo, last_drawn, mixture.points.shape[1]]),
        CURVE: public(curve),
    }
    return start_clusters(state, r, steps, updates.sizes())


def last_soft(mixture: Mixture, settings: Selecting) -> int:
    """Return E_c, limited so that all choices fit into the run."""
    # The number of choices must not depend on released values: it is part of the stated epsilon. Only their order may
    # adapt, which composition of a fixed list covers.
    return min(switch_round(mixture, settings.rounds), settings.rounds - (settings.selection_rounds or 0))


def unseen_mixture(clients: int, settings: Selecting) -> Mixture:
    """Return a mixture without information; a plan uses it, so that every choice is counted."""
    count = settings.count or 2
    zeros = np.zeros((clients, 2))
    return Mixture(zeros, np.zeros((count, 2)), np.ones(count), np.full((clients, count), 1 / count))


def fit_updates(steps: Sequence[Public], r: Round, settings: Any) -> tuple[Mixture, list[tuple[int, float]]]:
    """Return the mixture over the released updates, and the confidence of every count that was tried."""
    points_of = KINDS[settings.points](torch.stack([step.value for step in steps]).numpy())
    seed, clients = int(r.server_rng().integers(SEEDS)), len(steps)
    if settings.count is not None:
        return fit_mixture(points_of(settings.count), settings.count, seed=seed), []
    counts = [count for count in settings.candidates or candidate_counts(clients) if count <= clients]
    tried = confidence_by_count(points_of, clients=clients, seed=seed, counts=counts)
    return surest_mixture(points_of, clients=clients, seed=seed, counts=counts), list(tried.items())


def for_all(mixture: Mixture, present: Sequence[int], clients: int) -> np.ndarray[Any, Any]:
    """Return every client's probabilities; uniform for a client that was absent."""
    chances = np.full((clients, mixture.count), 1 / mixture.count)
    chances[list(present)] = mixture.posteriors
    return chances


def in_plane(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the first two columns for drawing, with zeros as the second if there is one only."""
    return rows[:, :2] if rows.shape[1] > 1 else np.hstack([rows, np.zeros_like(rows)])


def at_places(rows: np.ndarray[Any, Any], present: Sequence[int], clients: int) -> np.ndarray[Any, Any]:
    """Return one row per client, NaN for absent clients."""
    result = np.full((clients, rows.shape[1]), np.nan)
    result[list(present)] = rows
    return result


def start_clusters(state: State, r: Round, steps: dict[int, Public], sizes: dict[int, int]) -> State:
    """Start each cluster from the mean of its likeliest members' first models; an empty one from the common start."""
    likeliest = combine_public(lambda rows: rows.argmax(1).float(), state[CONFIDENCE])
    count = state[CONFIDENCE].value.shape[1]
    names = [cluster_name(m) for m in range(count)]
    state = assign_clusters(dict(state) | dict.fromkeys(names, state[START]), likeliest, "drawn")
    means = {}
    for m, members in enumerate(members_of(state)):
        here = [n for n in members if n in steps]
        if here:

            def mean(*values: Tensor, here: list[int] = here) -> Tensor:
                return weighted_mean(zip(here, values, strict=True), sizes, len(values[0]))

            means[cluster_name(m)] = state[START] + combine_public(mean, *(steps[n] for n in here))
    # Who is in a cluster follows from all clients' updates, and so does its model, even if the cluster is empty.
    state = dict(state) | {name: with_sources_of(means.get(name, state[START]), likeliest) for name in names}
    show_models(
        state, r, [frozenset(members) for members in members_of(state)], "after round one", also=frozenset({PUBLIC})
    )
    return state


def mixture_metadata(state: State) -> dict[str, Any]:
    """Return what the report draws: released updates as points, components, confidences, scores."""
    mss, mpo, last_drawn, dimensions = state[SCORES].value.tolist()
    return {
        "mss": mss,
        "mpo": mpo,
        "switch_round": int(last_drawn),
        "dimensions": int(dimensions),
        "points": state[POINTS].value.tolist(),
        "centres": state[CENTRES].value.tolist(),
        "radii": state[RADII].value.tolist(),
        "confidence": state[CONFIDENCE].value.tolist(),
        "tried": [[int(count), mss] for count, mss in state[CURVE].value.tolist()],
    }


@dataclass(frozen=True)
class RDPCFL(Selecting):
    """Settings of R-DPCFL: `points` are as many principal components as the centres span, two, or raw updates."""

    points: str = "spanning"
    first_batch: int | None = None
    """Batch size of round one, b^1; by default the whole shard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.points) not in KINDS:
            invalid(
                "algorithm.points", self.points, "unknown kind of points", did_you_mean(str(self.points), list(KINDS))
            )
        batch = self.first_batch
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            invalid("algorithm.first_batch", batch, "must be a whole number >= 1", "omit it for the whole shard")


def init_state(start: Public, clients: range, settings: RDPCFL) -> State:
    """Return one model for all clients until there are clusters."""
    return {START: start}


def run_round(state: State, r: Round, settings: RDPCFL) -> State:
    """Find the clusters in round one; afterwards train clients in theirs."""
    if SCORES not in state:
        everyone = r.everyone()
        return run_first_round(state, r, everyone, settings) if everyone.members else state
    cohort = r.sample()
    return train_clusters(place_clients(state, r, settings), r, cohort)


def place_clients(state: State, r: Round, settings: RDPCFL) -> State:
    """Place clients for this round: up to E_c drawn from the posteriors, then chosen, then frozen."""
    choices = settings.selection_rounds or 0
    last_drawn = int(state[SCORES].value[2])
    if r.time <= last_drawn:
        return moved_to(state, r, draw_clusters(r, state[CONFIDENCE]), "drawn")
    if r.time <= last_drawn + choices and settings.count != 1:  # also when one was found: see `last_soft`
        # All clients choose, also those that do not train now. When the choices begin was computed from released
        # values: if only the cohort chose, the number of a client's choices would depend on them too.
        return moved_to(state, r, choose_clusters(state, r, r.everyone(), settings.epsilon()), "chosen")
    if choices == 0:
        likeliest = combine_public(lambda rows: rows.argmax(1).float(), state[CONFIDENCE])
        return moved_to(state, r, likeliest, "kept")
    return moved_to(state, r, state[ASSIGNMENT], "kept")


def mixture_state(state: State) -> ClusterState | None:
    """Return who is in which cluster, and the mixture of the first round."""
    return cluster_training.cluster_state(state, mixture_metadata(state) if SCORES in state else None)


def check_experiment(experiment: Experiment) -> None:
    """Raise `Refused` for settings without a full batch, own releases of each client, or a proof."""
    refuse_trusted_server("rdpcfl", experiment)
    refuse_no_answers("rdpcfl", experiment)
    if experiment.privacy.stop_at_epsilon is not None:
        reason = "released values decide when rdpcfl's choices begin, and so the round in which this would stop"
        refuse("privacy.stop_at_epsilon", experiment.privacy.stop_at_epsilon, reason, "use privacy.epsilon, or ifca")
    if experiment.local.steps is not None:
        reason = "rdpcfl's first round takes one full-batch step per epoch"
        invalid("local.steps", experiment.local.steps, reason, "give local.epochs")
    if experiment.privacy.unit == "client" and experiment.privacy.adjacency == "replace":
        reason = (
            "rdpcfl weighs the first models by shard size, but a client's replacement may have more or fewer examples"
        )
        refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or unit = "sample"')
    if experiment.privacy.mechanism != "gaussian":
        reason = "rdpcfl's first round takes full-batch gradient steps"
        refuse("privacy.mechanism", experiment.privacy.mechanism, reason, 'use mechanism = "gaussian"')


FACTS = AlgorithmFacts(
    says="Clusters are found from the noisy updates of round one: one release per client, and all that the server "
    "makes of it is post-processing. Later choices of clusters are private too and counted. Who is in which "
    "cluster follows from released values: what is said of clients of the same and of other clusters holds for "
    "the clusters as they came out, and the worst of all kinds holds whatever they are.",
    check=check_experiment,
    topologies=("clusters",),
    complete=complete_settings,
    clusters=mixture_state,
)
ALGORITHM = Algorithm("rdpcfl", RDPCFL, init_state, run_round, cluster_training.current_models, FACTS)
