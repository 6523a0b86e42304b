"""The first round of R-DPCFL: full-batch updates, each released once, and the clusters that the server sees in them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.algorithms.clustered import (
    START,
    assign_clusters,
    cluster_name,
    members_of,
    show_models,
    with_sources_of,
)
from sightline.algorithms.clustered_settings import Selecting
from sightline.algorithms.contract import Round, State
from sightline.algorithms.mixture import Mixture, fit_mixture, switch_round
from sightline.algorithms.mixture_count import confidence_by_count, surest_mixture
from sightline.algorithms.mixture_points import KINDS
from sightline.mechanisms import Cohort, Public, combine_public
from sightline.mechanisms.open import weighted_mean
from sightline.topology import PUBLIC

CONFIDENCE, POINTS, CENTRES, RADII, SCORES, CURVE = "confidence", "points", "centres", "radii", "scores", "curve"
SEEDS = 2**31


def run_first_round(state: State, r: Round, cohort: Cohort, settings: Any) -> State:
    """All who are there train from the common start, every step on the whole shard, and send the noisy result.

    The rest is the server's own work on released values: a mixture, its posteriors, the switch round E_c, and cluster
    models that start from the mean of the models of those likeliest to be in them.
    """
    updates = r.train(cohort, state[START], whole_batch=True)
    steps = r.release_each(updates)
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
    """E_c, but early enough for all choices.

    How many choices there are must not depend on what was released: their number is in the epsilon that is stated.
    """
    return min(switch_round(mixture, settings.rounds), settings.rounds - (settings.selection_rounds or 0))


def unseen_mixture(clients: int, settings: Selecting) -> Mixture:
    """Clusters of which nothing is known: what a plan takes for granted, so that every choice is counted."""
    count = settings.count or 2
    zeros = np.zeros((clients, 2))
    return Mixture(zeros, np.zeros((count, 2)), np.ones(count), np.full((clients, count), 1 / count))


def fit_updates(steps: Sequence[Public], r: Round, settings: Any) -> tuple[Mixture, list[tuple[int, float]]]:
    """The mixture over the released updates, and the confidence of every count that was tried."""
    points_of = KINDS[settings.points](torch.stack([step.value for step in steps]).numpy())
    seed, clients = int(r.server_rng().integers(SEEDS)), len(steps)
    if settings.count is not None:
        return fit_mixture(points_of(settings.count), settings.count, seed=seed), []
    tried = confidence_by_count(points_of, clients=clients, seed=seed)
    return surest_mixture(points_of, clients=clients, seed=seed), list(tried.items())


def for_all(mixture: Mixture, present: Sequence[int], clients: int) -> np.ndarray[Any, Any]:
    """Every client's chances; of one who was not there nothing is known, so all clusters are as likely."""
    chances = np.full((clients, mixture.count), 1 / mixture.count)
    chances[list(present)] = mixture.posteriors
    return chances


def in_plane(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The first two columns, for drawing; a line is drawn with a second one of zeros."""
    return rows[:, :2] if rows.shape[1] > 1 else np.hstack([rows, np.zeros_like(rows)])


def at_places(rows: np.ndarray[Any, Any], present: Sequence[int], clients: int) -> np.ndarray[Any, Any]:
    """One row per client, NaN for those who were not there."""
    found = np.full((clients, rows.shape[1]), np.nan)
    found[list(present)] = rows
    return found


def start_clusters(state: State, r: Round, steps: dict[int, Public], sizes: dict[int, int]) -> State:
    """Clusters of the likeliest, each with the mean of its members' first models; one without members starts afresh."""
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
    # who is in a cluster follows from everybody's updates, so its model does, also one that nobody is in
    state = dict(state) | {name: with_sources_of(means.get(name, state[START]), likeliest) for name in names}
    show_models(
        state, r, [frozenset(members) for members in members_of(state)], "after round one", also=frozenset({PUBLIC})
    )
    return state


def mixture_metadata(state: State) -> dict[str, Any]:
    """What the report draws: released updates as points, components, confidences, scores."""
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
