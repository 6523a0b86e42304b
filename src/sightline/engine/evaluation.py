"""How good the models are: on the common test set, and on every client's own."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.engine.clusters import cluster_metrics
from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import Public
from sightline.training import Evaluation, evaluate_many, evaluate_model

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
    return own | _of_groups(setting, rows, found) if setting.experiment.topology.kind == "groups" else own


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
