"""What a model is trained for: per-example loss, shapes of outputs and targets, and metrics.

A user's own loss is a function of one example's output and target. It is the user's code, like a user's own module: it
gets one example at a time, or runs by torch.func over single examples, never on a batch, so no example can reach
another's gradient through it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, nan, prod, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sightline.data.federation import Federation, Kind
from sightline.data.targets import IGNORED
from sightline.errors import invalid
from sightline.formatting import METRICS, Metric

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs of a batch, targets) -> one loss per example."""

Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs of a batch, targets) -> (n, k) numbers per example, whose sums over examples give the metrics."""


def class_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of the softmax over classes."""
    return functional.cross_entropy(outputs, y, reduction="none")


def binary_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of the sigmoid of one logit."""
    return functional.binary_cross_entropy_with_logits(outputs.reshape(len(y)), y.to(outputs.dtype), reduction="none")


def label_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean over labels of the cross entropy of each label's sigmoid."""
    return functional.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(1)


def square_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error over an example's targets."""
    return (outputs.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(1)


def token_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy of the next token over an example's counted positions; zero if there are none."""
    each = functional.cross_entropy(outputs.transpose(1, 2), y, ignore_index=IGNORED, reduction="none")
    # The mean is over the example's own positions: a mean over all tokens of the batch would couple examples.
    return each.sum(1) / (y != IGNORED).sum(1).clamp_min(1)


def class_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return whether the largest logit is the label's."""
    return (outputs.argmax(1) == y).double()[:, None]


def binary_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return (right, true positives, false positives, false negatives)."""
    said, true = outputs.reshape(len(y)) > 0, y > 0
    return torch.stack([said == true, said & true, said & ~true, ~said & true], 1).double()


def label_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return (all labels right, share of right labels), then true positives, false positives, misses per label."""
    said, true = outputs > 0, y > 0
    whole = torch.stack([(said == true).all(1).double(), (said == true).double().mean(1)], 1)
    return torch.cat([whole, (said & true).double(), (said & ~true).double(), (~said & true).double()], 1)


def square_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return, per target: squared error, absolute error, the target and its square."""
    out, true = outputs.reshape(len(y), -1).double(), y.reshape(len(y), -1).double()
    return torch.cat([(out - true).square(), (out - true).abs(), true, true.square()], 1)


def token_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return (summed cross entropy, number of counted positions, number of right tokens)."""
    there = y != IGNORED
    each = functional.cross_entropy(outputs.transpose(1, 2), y, ignore_index=IGNORED, reduction="none")
    right = (outputs.argmax(2) == y) & there
    return torch.stack([each.double().sum(1), there.double().sum(1), right.double().sum(1)], 1)


def no_scores(outputs: Tensor, y: Tensor) -> Tensor:
    """Return no scores: with a user's own loss only the loss is known."""
    return torch.empty(len(y), 0, dtype=torch.float64)


Sums = Sequence[float]
"""Sums of scores over examples."""


def _rate_accuracy(sums: Sums, examples: int) -> dict[str, float]:
    return {"accuracy": sums[0] / examples}


def _rate_binary(sums: Sums, examples: int) -> dict[str, float]:
    return {"accuracy": sums[0] / examples, "f1": _f1(*sums[1:4])}


def _rate_labels(sums: Sums, examples: int) -> dict[str, float]:
    """Return label metrics; macro F1 is the mean over labels that occur or are predicted, 1 if there are none."""
    labels = (len(sums) - 2) // 3
    hits, alarms, misses = (sums[2 + part * labels : 2 + (part + 1) * labels] for part in range(3))
    counted = [_f1(*counts) for counts in zip(hits, alarms, misses, strict=True) if sum(counts)]
    macro = sum(counted) / len(counted) if counted else 1.0
    return {"macro_f1": macro, "exact_match": sums[0] / examples, "label_accuracy": sums[1] / examples}


def _f1(hits: float, alarms: float, misses: float) -> float:
    return 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else 1.0


def _rate_numbers(sums: Sums, examples: int) -> dict[str, float]:
    """Return regression metrics; R² is the mean over targets, NaN if a target is constant."""
    targets = len(sums) // 4
    squares, absolute, values, powers = (sums[part * targets : (part + 1) * targets] for part in range(4))
    shares = []
    for square, value, power in zip(squares, values, powers, strict=True):
        spread = power - value * value / examples
        shares.append(1 - square / spread if spread > 1e-12 * max(power, 1e-300) else nan)
    rmse, mae = sqrt(sum(squares) / (examples * targets)), sum(absolute) / (examples * targets)
    return {"rmse": rmse, "mae": mae, "r2": sum(shares) / targets}


def _rate_tokens(sums: Sums, examples: int) -> dict[str, float]:
    if not sums[1]:
        return {"perplexity": nan, "token_accuracy": nan}
    return {"perplexity": _exp(sums[0] / sums[1]), "token_accuracy": sums[2] / sums[1]}


def _exp(value: float) -> float:
    return exp(value) if value < 700 else inf if value == value else nan


@dataclass(frozen=True)
class TaskKind:
    """What all models of a task share."""

    losses: Loss
    scores: Score
    rate: Callable[[Sums, int], dict[str, float]]
    metrics: tuple[str, ...]
    """Names in `formatting.METRICS`, the main one first."""
    counts_right: bool = False
    """Whether the first score is 1 for a right example and 0 for a wrong one."""


TASKS: Mapping[str, TaskKind] = {
    "classification": TaskKind(class_losses, class_scores, _rate_accuracy, ("accuracy",), True),
    "binary": TaskKind(binary_losses, binary_scores, _rate_binary, ("accuracy", "f1"), True),
    "multilabel": TaskKind(
        label_losses, label_scores, _rate_labels, ("macro_f1", "exact_match", "label_accuracy"), True
    ),
    "regression": TaskKind(square_losses, square_scores, _rate_numbers, ("rmse", "mae", "r2")),
    "language": TaskKind(token_losses, token_scores, _rate_tokens, ("perplexity", "token_accuracy")),
    "own": TaskKind(no_scores, no_scores, lambda sums, examples: {}, ("loss",)),
}
"""Every task by its name in the experiment file; "own" is a user's own loss without a task."""


@dataclass(frozen=True)
class Task:
    """What one model is trained for.

    Guarantees: `losses` gives one number per example, the j-th a function of the j-th output and target alone. The
    losses of classification are torch's cross entropy, to the bit in every reduction.

    >>> REGRESSION = Task("regression", target_shape=(), whole=False)
    >>> REGRESSION.losses(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 3.0]))
    tensor([1., 0.])
    """

    name: str = "classification"
    target_shape: tuple[int, ...] = ()
    whole: bool = True
    """Whether targets are whole numbers."""
    loss_name: str | None = None
    own_loss: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, repr=False, compare=False)
    """The user's own loss of one example's output and target."""

    def __post_init__(self) -> None:
        if (self.own_loss is None) != (self.loss_name is None):
            reason = "a custom loss must have a name, which reports show"
            invalid("loss_name", self.loss_name, reason, "give both")

    @property
    def kind(self) -> TaskKind:
        """What all models of the task share."""
        return TASKS[self.name]

    @property
    def classic(self) -> bool:
        """Whether it is classification by cross entropy, which the hand-written gradients cover."""
        return self.name == "classification" and self.own_loss is None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of this task, the main one first."""
        return tuple(METRICS[name] for name in self.kind.metrics)

    @property
    def metric(self) -> Metric:
        """The main metric."""
        return self.metrics[0]

    def losses(self, outputs: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Return the loss of every example, (n,), or their mean or sum."""
        # torch's own reduction: a mean computed here would differ in its last bits.
        if self.classic:
            return functional.cross_entropy(outputs, y, reduction=reduction)
        each = self.kind.losses(outputs, y) if self.own_loss is None else apply_apart(self.own_loss, outputs, y)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    def output_gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of every example's loss with respect to its own output."""
        if self.classic:
            return torch.softmax(outputs, 1).scatter_add_(1, y[:, None], outputs.new_full((len(y), 1), -1.0))
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            # The sum separates into per-example gradients, since each loss depends on its own output only.
            (result,) = torch.autograd.grad(self.losses(leaf, y, "sum"), leaf)
        return result

    def predictions(self, outputs: Tensor, *, probabilities: bool = False) -> Tensor:
        """Return what outputs predict: labels, sets of labels, numbers or tokens, or the probabilities of each.

        For a user's own loss, the outputs. Raises if there are no probabilities.
        """
        if self.name in ("classification", "language"):
            return torch.softmax(outputs, dim=-1) if probabilities else outputs.argmax(dim=-1)
        if self.name in ("binary", "multilabel"):
            rows = outputs.reshape(len(outputs)) if self.name == "binary" else outputs
            return torch.sigmoid(rows) if probabilities else (rows > 0).long()
        if probabilities:
            invalid("probabilities", True, f"a {self.name} model has no probabilities", "omit it")
        return outputs.reshape(len(outputs)) if self.name == "regression" and not self.target_shape else outputs

    def rate_sums(self, sums: Sums, examples: int) -> dict[str, float]:
        """Return the metrics of a set of examples from the sums of their scores; NaN for an empty set."""
        if not examples:
            return {name: nan for name in self.kind.metrics if name != "loss"}
        return self.kind.rate(sums, examples)

    def fits_output(self, shape: tuple[int, ...], batch: int, outputs: int) -> bool:
        """Return whether outputs of this shape can be compared with targets."""
        if self.name == "own":
            return len(shape) >= 1 and shape[0] == batch
        if self.name == "language":
            return shape == (batch, *self.target_shape, outputs)
        single = outputs == 1 and self.name in ("binary", "regression") and shape == (batch,)
        return single or shape == (batch, outputs)

    def describe_output(self, outputs: int) -> str:
        """Return what a module must return, as text for messages."""
        if self.name == "own":
            return "return a tensor with one row per example"
        if self.name == "language":
            return f"return logits of shape (batch, {', '.join(map(str, self.target_shape))}, {outputs})"
        what = "predictions" if self.name == "regression" else "logits"
        return f"return {what} of shape (batch, {outputs})"


CLASSIFICATION = Task()


def apply_apart(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor) -> Tensor:
    """Return a user's loss of every example alone: by torch.func if it can trace it, else one by one."""
    if len(y) > 1:
        try:
            with warnings.catch_warnings():
                # torch.func warns where it has no batching rule and falls back to a slow loop; our own loop is as good.
                warnings.simplefilter("error")
                result: Tensor = torch.func.vmap(loss, randomness="different")(outputs, y)
            if result.shape == (len(y),):
                return result
        # torch.func cannot trace it, or it fails on single examples too; then the loop below raises the real error.
        except Exception:
            pass
    rows = [loss(outputs[index], y[index]).reshape(()) for index in range(len(y))]
    return torch.stack(rows) if rows else outputs.sum() * y.new_zeros(0, dtype=outputs.dtype)


def build_task(
    name: str, federation: Federation, own: Callable[..., Any] | None = None, loss: str | None = None
) -> Task:
    """Return the named task for these data; raise if the data lack such targets."""
    shape, kind = federation.target_shape, federation.test.y.dtype.kind
    task = Task(name, shape, kind != "f", loss, own)
    problem = _target_problem(name, federation, shape, kind == "f")
    if problem:
        invalid("model.task", name, f"{federation.source}: {problem}", "choose a task that fits, or other data")
    return task


def _target_problem(name: str, federation: Federation, shape: tuple[int, ...], floats: bool) -> str:
    """Return why the targets of a federation do not fit a task, or an empty string."""
    labels = not shape and not floats
    if name in ("classification", "binary") and not labels:
        return "its targets are not labels"
    if name == "binary" and federation.classes != 2:
        return f"it has {federation.classes} classes, but a binary task has two"
    if name == "multilabel" and not (floats and len(shape) == 1):
        return "its targets are not sets of labels (n, labels)"
    if name == "regression" and not (floats and len(shape) <= 1):
        return "its targets are labels, but a regression predicts numbers"
    if name == "language" and not (federation.kind is Kind.TEXT and shape == federation.input_shape and not floats):
        return "its examples are not token sequences with a next token each"
    return ""


def count_outputs(task: Task, federation: Federation) -> int:
    """Return the number of outputs per example, or per position."""
    if task.name == "binary":
        return 1
    if task.name == "language":
        return federation.vocabulary
    if task.name in ("multilabel", "regression"):
        return prod(task.target_shape)
    return federation.classes


def probe_targets(task: Task, outputs: int, batch: int) -> Tensor:
    """Return made-up targets of the task's type and shape, always the same."""
    if task.name == "classification":
        return torch.arange(batch) % outputs
    size = (batch, *task.target_shape)
    count = torch.arange(prod(size)).view(size)
    if task.name in ("binary", "multilabel"):
        return (count % 2).to(torch.int64 if task.whole else torch.float32)
    if task.whole:
        return (3 * count + 1) % max(outputs, 1)
    return torch.cos(count.float())
