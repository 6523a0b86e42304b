"""How good the models are: on the common test set, and on every client's own."""

import math
from collections.abc import Mapping

import torch

from sightline.engine.setting import Setting
from sightline.mechanisms import Public
from sightline.training import Evaluation, evaluate, evaluate_many

Metrics = dict[str, float]


def evaluated(setting: Setting, models: Public | Mapping[int, Public]) -> Metrics:
    """Accuracy and loss of the global model, or of everybody's own; NaN where there is nothing to test on."""
    shards = [client.test for client in setting.federation.clients]
    if isinstance(models, Public):
        whole = evaluate(setting.model, models.value, setting.federation.test)
        return _of_clients(evaluate_many(setting.model, models.value, shards)) | {
            "test_accuracy": whole.accuracy,
            "test_loss": whole.loss,
        }
    rows = torch.stack([models[client].value for client in setting.clients])
    own = _of_clients(evaluate_many(setting.model, rows, shards))
    return own | {"test_accuracy": own["client_accuracy_mean"], "test_loss": own["client_loss_mean"]}


def _of_clients(found: list[Evaluation]) -> Metrics:
    accuracies = [e.accuracy for e in found if e.examples]
    losses = [e.loss for e in found if e.examples]
    return {
        "client_accuracy_mean": _mean(accuracies),
        "client_accuracy_worst": min(accuracies, default=math.nan),
        "client_loss_mean": _mean(losses),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
