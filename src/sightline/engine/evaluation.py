"""How good the models are, on the common test set, on every client's own, and cluster by cluster."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.algorithms.clustered.mixture import cluster_purity
from sightline.algorithms.contract import ClusterState, State
from sightline.data import Federation
from sightline.engine.build import BuiltExperiment
from sightline.ledger import Release
from sightline.mechanisms import Public
from sightline.topology import client_name
from sightline.training import Evaluation, evaluate_many, evaluate_model


def true_clusters(federation: Federation) -> list[int] | None:
    """The cluster that each client's data were made for; None where the partition made none."""
    found = [client.cluster for client in federation.clients]
    known = [cluster for cluster in found if cluster is not None]
    return known if len(known) == len(found) and len(set(known)) > 1 else None


def smallest_cluster(truth: Sequence[int]) -> int:
    """The smallest true cluster; the first of equals.

    >>> smallest_cluster([0, 1, 1, 2, 2])
    0
    """
    return min(sorted(set(truth)), key=truth.count)


def cluster_metrics(setting: BuiltExperiment, own: Sequence[Evaluation]) -> dict[str, Any]:
    """Mean accuracy of clients on their own test shards, by true cluster, the minority apart; nothing without truth."""
    truth = true_clusters(setting.federation)
    if truth is None:
        return {}
    means = by_cluster(own, truth)
    return {"true_cluster_accuracy": means, "minority_accuracy": means[smallest_cluster(truth)]}


def by_cluster(own: Sequence[Evaluation], clusters: Sequence[int]) -> list[float]:
    """Mean accuracy over the members of each cluster 0, 1, ...; NaN for one without members."""
    return [
        _finite_mean(
            [one.accuracy for one, cluster in zip(own, clusters, strict=True) if cluster == m and one.examples]
        )
        for m in range(max(clusters) + 1)
    ]


def _finite_mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def cluster_row(setting: BuiltExperiment, state: State) -> dict[str, Any]:
    """Who is where after a round, for its row: empty for algorithms without clusters."""
    found = setting.algorithm.found(state)
    if found is None:
        return {}
    truth = true_clusters(setting.federation)
    own = None if truth is None else cluster_purity(found.cluster_of, truth)
    return {"clusters": {"assignment": list(found.cluster_of), "how": found.how, "purity": own}}


def cluster_facts(setting: BuiltExperiment, state: State) -> dict[str, Any]:
    """What the report draws once: first-round updates as points, components, confidences, and the truth if known."""
    found = setting.algorithm.found(state)
    truth = true_clusters(setting.federation)
    if found is None and truth is None:
        return {}
    known = {} if found is None else dict(found.facts)
    apart = None if truth is None else smallest_cluster(truth)
    return {"clusters": {"count": None, "mss": None} | known | {"truth": truth, "minority": apart}}


def cluster_notes(
    found: ClusterState | None, rows: Sequence[Mapping[str, Any]], releases: Iterable[Release], asked: int | None
) -> list[str]:
    """What happened to clusters and clients that a reader would not expect, in sentences."""
    if found is None:
        return []
    count = int(found.facts["count"])
    notes = list(_of_the_mixture(found, count, asked))
    whereabouts = [row["clusters"]["assignment"] for row in rows if row.get("clusters")]
    for m in range(count):
        empty = sum(m not in some for some in whereabouts)
        if empty:
            notes.append(f"cluster {m} was empty in {_rounds_word(empty)}: its model stayed as it was.")
    notes += _count_absences(releases, len(rows), len(found.cluster_of))
    return notes


def _of_the_mixture(found: ClusterState, count: int, asked: int | None) -> Iterable[str]:
    mss = found.facts.get("mss")
    if asked is not None and count < asked:
        yield f"topology.count={asked}, but the updates of round one tell only {count} apart."
    if mss is not None and count == 1:
        yield "One cluster was found: there was nothing to choose from (choices that were planned are counted)."
    elif mss is not None and mss < 2:
        yield f"The clusters of round one overlap (MSS {mss:.2f}, below 2): they may not be the true ones."


def _count_absences(releases: Iterable[Release], rounds: int, clients: int) -> Iterable[str]:
    there = {(name, release.time) for release in releases for name in release.subjects}
    times = Counter(name for name, _ in there)
    names = [client_name(n) for n in range(clients)]
    absent = {name: rounds - times[name] for name in names if times[name] < rounds}
    if absent:
        worst = max(absent, key=lambda name: absent[name])
        who = "1 client was" if len(absent) == 1 else f"{len(absent)} clients were"
        yield (
            f"{who} absent at times ({worst} in {_rounds_word(absent[worst])}): the absent keep their cluster, "
            "change no model and pay nothing; one who misses round one is drawn into any cluster until it chooses."
        )


def _rounds_word(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


Metrics = dict[str, Any]


def evaluate_models(setting: BuiltExperiment, models: Public | Mapping[int, Public]) -> Metrics:
    """Accuracy and loss of the global model, or of everybody's own; NaN where there is nothing to test on."""
    shards = [client.test for client in setting.federation.clients]
    if isinstance(models, Public):
        whole = evaluate_model(setting.model, models.value, setting.federation.test)
        return _of_clients(setting, evaluate_many(setting.model, models.value, shards)) | {
            "test_accuracy": whole.accuracy,
            "test_loss": whole.loss,
        }
    rows = torch.stack([models[client].value for client in setting.clients])
    found = evaluate_many(setting.model, rows, shards)
    own = _of_clients(setting, found)
    own |= {"test_accuracy": own["client_accuracy_mean"], "test_loss": own["client_loss_mean"]}
    return own | _of_groups(setting, rows, found) if setting.topology.compares_channels else own


def _of_groups(setting: BuiltExperiment, rows: Tensor, found: list[Evaluation]) -> Metrics:
    """The workers' mean training loss, and how unequally groups are served: means over members, worst and best."""
    shards = [] if setting.federation.elsewhere else [client.train for client in setting.federation.clients]
    train = evaluate_many(setting.model, rows, shards) if shards else []
    means = [
        _mean_finite([found[member].accuracy for member in channel.members if found[member].examples])
        for channel in setting.topology.channels
    ]
    means = [mean for mean in means if not math.isnan(mean)]
    return {
        "client_train_loss_mean": _mean_finite([e.loss for e in train if e.examples]),
        "group_accuracy_worst": min(means, default=math.nan),
        "group_accuracy_best": max(means, default=math.nan),
    }


def evaluated_kept(setting: BuiltExperiment, kept: Mapping[int, Tensor], otherwise: Public) -> Metrics:
    """The models that clients keep, each on its owner's test shard; `test_*` pool all shards, as one model's would.

    A client that keeps none yet is judged by the global model, `otherwise`.
    """
    rows = torch.stack([kept.get(client, otherwise.value) for client in setting.clients])
    own = evaluate_many(setting.model, rows, [client.test for client in setting.federation.clients])
    examples = sum(e.examples for e in own)
    pooled = {"test_accuracy": math.nan, "test_loss": math.nan}
    if examples:
        pooled["test_accuracy"] = math.fsum(e.accuracy * e.examples for e in own if e.examples) / examples
        pooled["test_loss"] = math.fsum(e.loss * e.examples for e in own if e.examples) / examples
    return _of_clients(setting, own) | pooled


def _of_clients(setting: BuiltExperiment, found: list[Evaluation]) -> Metrics:
    accuracies = [e.accuracy for e in found if e.examples]
    losses = [e.loss for e in found if e.examples]
    worst = min(accuracies, default=math.nan)
    return {
        "client_accuracy_mean": _mean_finite(accuracies),
        "client_accuracy_decile": tenth_percentile(accuracies),
        "client_accuracy_worst": worst,
        "client_worst_examples": max((e.examples for e in found if e.examples and e.accuracy == worst), default=0),
        "client_loss_mean": _mean_finite(losses),
        **cluster_metrics(setting, found),
    }


def tenth_percentile(values: list[float]) -> float:
    """The 10th percentile: the largest value below which no more than a tenth lie.

    >>> tenth_percentile([0.0, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 1.0, 1.0]), tenth_percentile([0.5])
    (0.5, 0.5)
    """
    return sorted(values)[len(values) // 10] if values else math.nan


def _mean_finite(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
