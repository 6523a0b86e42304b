"""IFCA with private choices (Ghosh et al. 2020; R-DPCFL, appendix C.6), and training in known clusters."""

from dataclasses import dataclass, field, replace

import torch

from sightline.algorithms.clustered import cluster_training
from sightline.algorithms.clustered.cluster_training import (
    ASSIGNMENT,
    SELECTING,
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
    train_clusters,
)
from sightline.algorithms.contract import DERIVED, Algorithm, AlgorithmFacts, Round, State
from sightline.config import Experiment
from sightline.data.partition import cluster_of
from sightline.errors import did_you_mean, invalid
from sightline.mechanisms import Public
from sightline.topology import cluster_channel, cluster_count


@dataclass(frozen=True)
class OracleClusters:
    """The clusters from which the data were generated."""

    known: tuple[int, ...] = field(default=(), metadata={DERIVED: True})


def init_oracle(start: Public, clients: range, settings: OracleClusters) -> State:
    """Start every cluster from the same model."""
    models = {cluster_name(m): start for m in range(max(settings.known) + 1)}
    return assign_clusters({START: start} | models, Public(torch.tensor([float(m) for m in settings.known])), "known")


def run_oracle_round(state: State, r: Round, settings: OracleClusters) -> State:
    """Run FedAvg in each cluster, with its own cohort."""
    channels = [cluster_channel(r.channels[0], members) for members in members_of(state)]
    names = [cluster_name(m) for m in range(len(channels))]
    many = [(r.train(r.sample(c), state[name]), c) for c, name in zip(channels, names, strict=True)]
    steps = r.release_means(many)
    return dict(state) | {name: state[name] + step for name, step in zip(names, steps, strict=True)}


def complete_oracle(settings: OracleClusters, experiment: Experiment) -> OracleClusters:
    """Look up the clusters in the partition of the data."""
    sizes = experiment.data.clusters
    if sizes is None:
        reason = "oracle_clusters needs data with known clusters"
        invalid("data.partition", experiment.data.partition, reason, 'use "rotation" or "label_shift"')
    count = cluster_count(experiment.topology.settings, experiment.data.clients)
    if count is not None and count != len(sizes):
        invalid("topology.count", count, f"the data have {len(sizes)} clusters", f'use count = {len(sizes)} or "auto"')
    return replace(settings, known=tuple(int(number) for number in cluster_of(sizes)))


ORACLE_FACTS = AlgorithmFacts(
    says="Who belongs to which cluster is taken as known and public: an oracle to compare with, outside the guarantee.",
    topologies=("clusters",),
    complete=complete_oracle,
    clusters=cluster_training.cluster_state,
)
ORACLE = Algorithm(
    "oracle_clusters", OracleClusters, init_oracle, run_oracle_round, cluster_training.current_models, ORACLE_FACTS
)


SELECTS = ("first", "always")


@dataclass(frozen=True)
class IFCA(Selecting):
    """Settings of IFCA: clients choose in the first tenth of the rounds, or in all."""

    selects: str = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selects not in SELECTS:
            invalid("algorithm.selects", self.selects, "unknown rule", did_you_mean(str(self.selects), list(SELECTS)))


def init_state(start: Public, clients: range, settings: IFCA) -> State:
    """Return one model per cluster, all from one start; round one makes them differ."""
    return {START: start} | {cluster_name(m): start for m in range(settings.count or 1)}


def run_round(state: State, r: Round, settings: IFCA) -> State:
    """Round one: random clusters. Then clients choose among the models, then they stay. Train every time."""
    cohort, count = r.sample(), settings.count or 1
    # Equal models cannot be told apart by a choice, so round one assigns clusters at random and trains.
    if r.time == 1:
        lots = Public(torch.full((len(r.clients), count), 1 / count))
        state = assign_clusters(state, draw_clusters(r, lots), "drawn")
    elif r.time <= 1 + (settings.selection_rounds or 0) and count > 1:
        state = moved_to(state, r, choose_clusters(state, r, cohort, settings.epsilon()), "chosen")
    else:
        state = moved_to(state, r, state[ASSIGNMENT], "kept")
    return train_clusters(state, r, cohort)


def complete_ifca(settings: IFCA, experiment: Experiment) -> IFCA:
    """Set choices to rounds 2 .. E/10, at least one; or to all rounds from the second."""
    if settings.selects == "always" and settings.selection_rounds is not None:
        invalid("algorithm.selection_rounds", settings.selection_rounds, 'selects = "always" chooses in all rounds')
    whole: IFCA = complete_settings(settings, experiment)
    if whole.count is None:
        invalid("topology.count", "auto", "ifca cannot find the number of clusters", "e.g. count = 4")
    if settings.selection_rounds is None:
        first = min(max(experiment.rounds // SELECTING, 2), experiment.rounds) - 1
        rounds = experiment.rounds - 1 if settings.selects == "always" else first
        return replace(whole, selection_rounds=rounds)
    return whole


def check_experiment(experiment: Experiment) -> None:
    """Raise `Refused` for a trusted server, which hides single senders, and for tasks without correct answers."""
    refuse_trusted_server("ifca", experiment)
    refuse_no_answers("ifca", experiment)


FACTS = AlgorithmFacts(
    says="Clients tell the server which cluster they join by a private choice, which is counted with their updates. "
    "What is said of clients of the same and of other clusters holds for the choices as they came out, and the "
    "worst of all kinds holds whatever they are.",
    check=check_experiment,
    topologies=("clusters",),
    complete=complete_ifca,
    clusters=cluster_training.cluster_state,
)
ALGORITHM = Algorithm("ifca", IFCA, init_state, run_round, cluster_training.current_models, FACTS)
