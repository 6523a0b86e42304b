"""Shared parts of clustered algorithms: one model per cluster, assignments, and private choices of clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sightline.algorithms.contract import DERIVED, ClusterState, Round, State
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.mechanisms import Cohort, Public, combine_public
from sightline.topology import Channel, client_name, cluster_channel, cluster_count, read_candidates

SHARE = 0.03
"""Share of the total epsilon for one choice."""
SELECTING = 10
"""One round in this many has choices."""


@dataclass(frozen=True)
class Selecting:
    """Settings of cluster choices; `selection_epsilon` is the cost of one (0.03 of `privacy.epsilon` by default)."""

    selection_epsilon: float | None = None
    selection_rounds: int | None = None
    count: int | None = field(default=None, metadata={DERIVED: True})
    candidates: tuple[int, ...] = field(default=(), metadata={DERIVED: True})
    rounds: int = field(default=0, metadata={DERIVED: True})

    def __post_init__(self) -> None:
        epsilon, rounds = self.selection_epsilon, self.selection_rounds
        number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
        if epsilon is not None and not (number and 0 < epsilon < float("inf")):
            invalid("algorithm.selection_epsilon", epsilon, "must be positive", "e.g. 0.1")
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0):
            invalid("algorithm.selection_rounds", rounds, "must be a whole number >= 0")

    def epsilon(self) -> float:
        """Return the cost of one choice; unused without privacy."""
        return self.selection_epsilon or 0.0


def complete_settings(settings: Any, experiment: Experiment) -> Any:
    """Return the settings with the experiment's rounds, clusters and share of epsilon filled in."""
    epsilon = settings.selection_epsilon
    privacy = experiment.privacy
    if epsilon is None and privacy.unit != "none":
        if privacy.epsilon is None:
            reason = f"the default is {SHARE:g} of privacy.epsilon, which is not set"
            invalid("algorithm.selection_epsilon", "missing", reason, "e.g. selection_epsilon = 0.1")
        epsilon = SHARE * privacy.epsilon
    rounds = settings.selection_rounds
    return replace(
        settings,
        selection_epsilon=epsilon,
        selection_rounds=experiment.rounds // SELECTING if rounds is None else rounds,
        count=cluster_count(experiment.topology.settings, experiment.data.clients),
        candidates=read_candidates(experiment.topology.settings, experiment.data.clients),
        rounds=experiment.rounds,
    )


def refuse_trusted_server(algorithm: str, experiment: Experiment) -> None:
    """Raise `Refused` unless clients add their own noise: the server works on single clients' releases."""
    privacy = experiment.privacy
    if privacy.unit != "none" and privacy.place != "client":
        reason = f"{algorithm} assigns clusters from each client's own release, so clients must add the noise"
        refuse("privacy.where", privacy.place, reason, 'use where = "client"')


def refuse_no_answers(algorithm: str, experiment: Experiment) -> None:
    """Raise `Refused` for tasks without correct answers, such as regression: clients choose by them."""
    if experiment.model.target not in ("classification", "binary", "multilabel"):
        reason = f"{algorithm}'s clients choose by correct predictions, which this task does not count"
        refuse(
            "model.task", experiment.model.target, reason, "use fedavg, or task = classification, binary or multilabel"
        )


START, ASSIGNMENT, ALIKE, HOW = "start", "assignment", "alike", "how"
HOWS = ("known", "drawn", "chosen", "kept")
"""Known in advance; drawn at random by the server; chosen privately by the clients; kept from before."""


def cluster_name(number: int) -> str:
    """Return the name of a cluster's model in the state."""
    return f"cluster-{number}"


def count_of(state: State) -> int:
    """Return the number of clusters."""
    return sum(name.startswith("cluster-") for name in state)


def members_of(state: State) -> list[list[int]]:
    """Return the members of each cluster."""
    numbers = state[ASSIGNMENT].value.tolist()
    return [[n for n, number in enumerate(numbers) if number == m] for m in range(count_of(state))]


def assign_clusters(state: State, clusters: Public, how: str) -> State:
    """Return the state with every client in its given cluster."""
    before = state[ALIKE].value.tolist() if ALIKE in state else [0.0] * len(clusters.value)
    # A class of equal history is split when its members go to different clusters, and never merged again.
    pairs = list(zip(before, clusters.value.tolist(), strict=True))
    numbers = {pair: float(number) for number, pair in enumerate(dict.fromkeys(pairs))}
    return dict(state) | {
        ASSIGNMENT: clusters,
        ALIKE: Public(torch.tensor([numbers[pair] for pair in pairs]), clusters.sources),
        HOW: Public(torch.tensor([float(HOWS.index(how))])),
    }


def draw_clusters(r: Round, chances: Public) -> Public:
    """Draw every client's cluster from its row of probabilities with the server's generator."""
    return combine_public(lambda rows: _one_of_each(rows, r), chances)


def _one_of_each(rows: Tensor, r: Round) -> Tensor:
    # Inverse transform in double precision; the clamp covers a point that rounds up to the end of the last interval.
    ends = rows.double().cumsum(1)
    points = torch.from_numpy(r.server_rng().random(len(rows))) * ends[:, -1]
    return (ends <= points.unsqueeze(1)).sum(1).clamp_max(rows.shape[1] - 1).float()


def choose_clusters(state: State, r: Round, cohort: Cohort, epsilon: float) -> Public:
    """Let every present client choose privately among all clusters' models; absent clients stay where they are.

    All models are shown to all clients for it.
    """
    models = [state[cluster_name(m)] for m in range(count_of(state))]
    show_models(
        state, r, [frozenset(r.clients) - frozenset(members) for members in members_of(state)], "to choose from"
    )
    choices = r.select_models(cohort, models, epsilon=epsilon)

    def changed(before: Tensor, *values: Tensor) -> Tensor:
        after = before.clone()
        for client, value in zip(choices, values, strict=True):
            after[client] = value[0]
        return after

    return combine_public(changed, state[ASSIGNMENT], *choices.values())


def moved_to(state: State, r: Round, clusters: Public, how: str) -> State:
    """Return the state after a change of clusters, and send newcomers their models."""
    after = assign_clusters(state, clusters, how)
    # Clients that chose have been shown all models already.
    if how != "chosen":
        new = [frozenset(now) - frozenset(old) for old, now in zip(members_of(state), members_of(after), strict=True)]
        show_models(after, r, new, "for new members")
    return after


def show_models(
    state: State, r: Round, to: Sequence[frozenset[int]], what: str, *, also: frozenset[str] = frozenset()
) -> None:
    """Send clusters' models to clients that do not have them."""
    # Absent members count as receivers too: an upper bound, which keeps the views of equal histories equal.
    shown = [
        (state[cluster_name(m)], r.channels[0], frozenset(map(client_name, clients)) | also, f"cluster's model {what}")
        for m, clients in enumerate(to)
        if clients or also
    ]
    if shown:
        r.show(shown)


def train_clusters(state: State, r: Round, cohort: Cohort) -> State:
    """Train each cluster's present members from its model and move the model to their mean; empty ones stay."""
    many: list[tuple[Any, Channel]] = []
    moved = []
    present = frozenset(cohort.members)
    # Who trains where depends on the assignment, so its sources belong to every model, also to one that does not move.
    starts = {
        cluster_name(m): with_sources_of(state[cluster_name(m)], state[ASSIGNMENT]) for m in range(count_of(state))
    }
    for (name, start), members in zip(starts.items(), members_of(state), strict=True):
        here = Cohort(tuple(n for n in members if n in present))
        if here.members:
            many.append((r.train(here, start), cluster_channel(r.channels[0], members)))
            moved.append(name)
    steps = r.release_means(many) if many else []
    return dict(state) | starts | {name: starts[name] + step for name, step in zip(moved, steps, strict=True)}


def with_sources_of(model: Public, other: Public) -> Public:
    """Return the model with the sources of `other` added, because its use depends on that value too."""
    return combine_public(lambda value, _: value, model, other)


def current_models(state: State, clients: range) -> dict[int, Public]:
    """Return every client's model: its cluster's, or the start before there are clusters."""
    if ASSIGNMENT not in state:
        return dict.fromkeys(clients, state[START])
    return {n: state[cluster_name(m)] for m, some in enumerate(members_of(state)) for n in some}


def cluster_state(state: State, facts: Mapping[str, Any] | None = None) -> ClusterState | None:
    """Return who is in which cluster and what else the server knows; None before there are clusters."""
    if ASSIGNMENT not in state:
        return None
    whole = {"count": count_of(state)} | dict(facts or {})
    cluster_of, alike = (tuple(map(int, state[name].value.tolist())) for name in (ASSIGNMENT, ALIKE))
    return ClusterState(cluster_of, alike, HOWS[int(state[HOW].value[0])], whole)
