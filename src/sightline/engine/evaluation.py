"""Evaluation of models on the common test set, on every client's own test shard, and per cluster."""

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
from sightline.models import Task
from sightline.topology import client_name
from sightline.training import Evaluation, evaluate_many, evaluate_model


def true_clusters(federation: Federation) -> list[int] | None:
    """Return the cluster for which each client's data were made; None if the partition made none."""
    found = [client.cluster for client in federation.clients]
    known = [cluster for cluster in found if cluster is not None]
    return known if len(known) == len(found) and len(set(known)) > 1 else None


def smallest_cluster(truth: Sequence[int]) -> int:
    """Return the smallest true cluster; the first among equals.

    >>> smallest_cluster([0, 1, 1, 2, 2])
    0
    """
    return min(sorted(set(truth)), key=truth.count)


def cluster_metrics(setting: BuiltExperiment, reached: Sequence[float | None]) -> dict[str, Any]:
    """Return the mean client metric per true cluster, and the minority's; empty without known clusters."""
    truth = true_clusters(setting.federation)
    if truth is None:
        return {}
    means, name = by_cluster(reached, truth), setting.model.task.metric.name
    return {f"true_cluster_{name}": means, f"minority_{name}": means[smallest_cluster(truth)]}


def by_cluster(reached: Sequence[float | None], clusters: Sequence[int]) -> list[float]:
    """Return the mean metric of each cluster 0, 1, ...; NaN for one without evaluated members."""
    return [
        _finite_mean([one for one, cluster in zip(reached, clusters, strict=True) if cluster == m and one is not None])
        for m in range(max(clusters) + 1)
    ]


def _finite_mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def cluster_row(setting: BuiltExperiment, state: State) -> dict[str, Any]:
    """Return each client's cluster after a round for its row; empty for algorithms without clusters."""
    found = setting.algorithm.found(state)
    if found is None:
        return {}
    truth = true_clusters(setting.federation)
    own = None if truth is None else cluster_purity(found.cluster_of, truth)
    return {"clusters": {"assignment": list(found.cluster_of), "how": found.how, "purity": own}}


def cluster_facts(setting: BuiltExperiment, state: State) -> dict[str, Any]:
    """Return what the report draws once: first updates as points, components, confidences, and known clusters."""
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
    """Return sentences on unexpected events: overlapping or empty clusters, absent clients."""
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


def main_metric(task: Task, found: Evaluation) -> float | None:
    """Return one evaluation by the task's main metric; None without test examples."""
    if not found.examples:
        return None
    name = task.metric.name
    return found.loss if name == "loss" else task.rate_sums(found.sums, found.examples)[name]


def task_row(setting: BuiltExperiment) -> Metrics:
    """Return the name of the metric for a round's row, if it is not accuracy."""
    name = setting.model.task.metric.name
    return {} if name == "accuracy" else {"metric": name}


def _test_metrics(task: Task, loss: float, sums: Sequence[float], examples: int) -> Metrics:
    """Return loss and metrics on the common test set under their names in a row."""
    return {f"test_{name}": value for name, value in task.rate_sums(sums, examples).items()} | {"test_loss": loss}


def evaluate_models(setting: BuiltExperiment, models: Public | Mapping[int, Public]) -> Metrics:
    """Return metrics and loss of the global model, or of all clients' own models; NaN without test data."""
    # Metrics are diagnostics outside the guarantee, as the report says. No algorithm can read them.
    shards, task = [client.test for client in setting.federation.clients], setting.model.task
    if isinstance(models, Public):
        whole = evaluate_model(setting.model, models.value, setting.federation.test)
        own = _of_clients(setting, evaluate_many(setting.model, models.value, shards))
        return own | _test_metrics(task, whole.loss, whole.sums, whole.examples)
    rows = torch.stack([models[client].value for client in setting.clients])
    found = evaluate_many(setting.model, rows, shards)
    own = _of_clients(setting, found) | _mean_metrics(task, found)
    return own | _of_groups(setting, rows, found) if setting.topology.compares_channels else own


def _mean_metrics(task: Task, found: Sequence[Evaluation]) -> Metrics:
    """Return means over clients, each evaluated by its own model."""
    rated = [task.rate_sums(one.sums, one.examples) for one in found if one.examples]
    names = [name for name in task.kind.metrics if name != "loss"]
    means = {f"test_{name}": _mean_finite([one[name] for one in rated]) for name in names}
    return means | {"test_loss": _mean_finite([one.loss for one in found if one.examples])}


def _of_groups(setting: BuiltExperiment, rows: Tensor, found: list[Evaluation]) -> Metrics:
    """Return the mean training loss, and the worst and best group mean."""
    shards = [] if setting.federation.elsewhere else [client.train for client in setting.federation.clients]
    train = evaluate_many(setting.model, rows, shards) if shards else []
    task = setting.model.task
    reached = [main_metric(task, one) for one in found]
    means = [
        _mean_finite([one for member in channel.members if (one := reached[member]) is not None])
        for channel in setting.topology.channels
    ]
    means = [mean for mean in means if not math.isnan(mean)]
    ends = min(means, default=math.nan), max(means, default=math.nan)
    worst, best = ends if task.metric.higher else ends[::-1]
    return {
        "client_train_loss_mean": _mean_finite([e.loss for e in train if e.examples]),
        f"group_{task.metric.name}_worst": worst,
        f"group_{task.metric.name}_best": best,
    }


def evaluated_kept(setting: BuiltExperiment, kept: Mapping[int, Tensor], otherwise: Public) -> Metrics:
    """Return metrics of the models that clients keep, each on its owner's test shard; `test_*` pool all shards.

    A client without a kept model is evaluated by the global model, `otherwise`.
    """
    rows = torch.stack([kept.get(client, otherwise.value) for client in setting.clients])
    own = evaluate_many(setting.model, rows, [client.test for client in setting.federation.clients])
    judged = [one for one in own if one.examples]
    examples = sum(one.examples for one in judged)
    loss = math.fsum(one.loss * one.examples for one in judged) / examples if examples else math.nan
    sums = [math.fsum(column) for column in zip(*(one.sums for one in judged), strict=True)]
    return _of_clients(setting, own) | _test_metrics(setting.model.task, loss, sums, examples)


def _of_clients(setting: BuiltExperiment, found: list[Evaluation]) -> Metrics:
    metric = setting.model.task.metric
    every = [main_metric(setting.model.task, one) for one in found]
    reached = [one for one in every if one is not None]
    judged = [one for one in reached if not math.isnan(one)]
    worst = min(judged, default=math.nan) if metric.higher else max(judged, default=math.nan)
    examples = [one.examples for one, value in zip(found, every, strict=True) if value == worst]
    return {
        f"client_{metric.name}_mean": _mean_finite(reached),
        f"client_{metric.name}_decile": tenth_percentile(judged, higher=metric.higher),
        f"client_{metric.name}_worst": worst,
        "client_worst_examples": max(examples, default=0),
        "client_loss_mean": _mean_finite([e.loss for e in found if e.examples]),
        **cluster_metrics(setting, every),
    }


def tenth_percentile(values: list[float], *, higher: bool = True) -> float:
    """Return the 10th percentile: the largest value below which at most a tenth lie; from above if less is better.

    >>> tenth_percentile([0.0, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 1.0, 1.0]), tenth_percentile([0.5, 2.0], higher=False)
    (0.5, 2.0)
    """
    return sorted(values, reverse=not higher)[len(values) // 10] if values else math.nan


def _mean_finite(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
