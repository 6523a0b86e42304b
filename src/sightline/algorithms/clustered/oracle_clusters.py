"""Federated averaging inside clusters that somebody told us: what clustering could reach at best (O-DPCFL)."""

from dataclasses import dataclass, field, replace

import torch

from sightline.algorithms.clustered import cluster_training
from sightline.algorithms.clustered.cluster_training import START, assign_clusters, cluster_name, members_of
from sightline.algorithms.contract import DERIVED, Algorithm, Round, State
from sightline.config import Experiment
from sightline.data.partition import cluster_of
from sightline.errors import invalid
from sightline.mechanisms import Public
from sightline.topology import cluster_channel, cluster_count


@dataclass(frozen=True)
class OracleClusters:
    """The clusters are those that the data were made of."""

    known: tuple[int, ...] = field(default=(), metadata={DERIVED: True})


def init_state(start: Public, clients: range, settings: OracleClusters) -> State:
    """Every cluster begins with the same model."""
    models = {cluster_name(m): start for m in range(max(settings.known) + 1)}
    return assign_clusters({START: start} | models, Public(torch.tensor([float(m) for m in settings.known])), "known")


def run_round(state: State, r: Round, settings: OracleClusters) -> State:
    """FedAvg in each cluster, with a cohort of its own."""
    channels = [cluster_channel(r.channels[0], members) for members in members_of(state)]
    names = [cluster_name(m) for m in range(len(channels))]
    many = [(r.train(r.sample(c), state[name]), c) for c, name in zip(channels, names, strict=True)]
    steps = r.release_means(many)
    return dict(state) | {name: state[name] + step for name, step in zip(names, steps, strict=True)}


def complete_oracle(settings: OracleClusters, experiment: Experiment) -> OracleClusters:
    """Look the clusters up in the way the data were dealt."""
    sizes = experiment.data.clusters
    if sizes is None:
        law = "oracle_clusters needs data whose clusters are known"
        invalid("data.partition", experiment.data.partition, law, 'use "rotation" or "label_shift"')
    count = cluster_count(experiment.topology.settings, experiment.data.clients)
    if count is not None and count != len(sizes):
        invalid("topology.count", count, f"the data have {len(sizes)} clusters", 'or "auto"')
    return replace(settings, known=tuple(int(number) for number in cluster_of(sizes)))


SAYS = "Who belongs to which cluster is taken as known and public: an oracle to compare with, outside the guarantee."

ALGORITHM = Algorithm(
    "oracle_clusters",
    OracleClusters,
    init_state,
    run_round,
    cluster_training.current_models,
    says=SAYS,
    topologies=("clusters",),
    complete=complete_oracle,
    found=cluster_training.cluster_state,
)
