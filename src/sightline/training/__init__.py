"""Local training: (start vectors, shards, work) -> end vectors, by local SGD or DP-SGD, and evaluation."""

from sightline.training.call import LocalTask
from sightline.training.dispatch import clipping_note
from sightline.training.evaluation import Evaluation, evaluate_many, evaluate_model, predict_examples
from sightline.training.local_training import clipped_gradient_sum, dp_sgd, train_local
from sightline.training.local_work import Adam, LocalTerms, LocalWork, RateSchedule

__all__ = [
    "Adam",
    "Evaluation",
    "LocalTask",
    "LocalTerms",
    "LocalWork",
    "RateSchedule",
    "clipped_gradient_sum",
    "clipping_note",
    "dp_sgd",
    "evaluate_many",
    "evaluate_model",
    "predict_examples",
    "train_local",
]
