"""Evaluation of models on the common test set, on every client's own test shard, and per cluster."""

import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.algorithms.clustered.mixture import cluster_purity
from sightline.algorithms.contract import ClusterState, State
from sightline.data import Federation, Shard
from sightline.data.targets import IGNORED
from sightline.engine.build import BuiltExperiment
from sightline.errors import did_you_mean, invalid, one_line, refuse
from sightline.formatting import METRICS, Metric, metric_named
from sightline.ledger import Release
from sightline.mechanisms import Public
from sightline.models import FlatModel, Task
from sightline.topology import client_name
from sightline.training import Evaluation, evaluate_many, evaluate_model, predict_examples


def true_clusters(federation: Federation) -> list[int] | None:
    """Return the cluster for which each client's data were made; None if the partition made none."""
    result = [client.cluster for client in federation.clients]
    known = [cluster for cluster in result if cluster is not None]
    return known if len(known) == len(result) and len(set(known)) > 1 else None


def smallest_cluster(truth: Sequence[int]) -> int:
    """Return the smallest true cluster; the first among equals.

    >>> smallest_cluster([0, 1, 1, 2, 2])
    0
    """
    return min(sorted(set(truth)), key=truth.count)


def cluster_metrics(built: BuiltExperiment, reached: Sequence[float | None]) -> dict[str, Any]:
    """Return the mean client metric per true cluster, and the minority's; empty without known clusters."""
    truth = true_clusters(built.federation)
    if truth is None:
        return {}
    means, name = by_cluster(reached, truth), built.model.task.metric.name
    return {f"true_cluster_{name}": means, f"minority_{name}": means[smallest_cluster(truth)]}


def by_cluster(reached: Sequence[float | None], clusters: Sequence[int]) -> list[float]:
    """Return the mean metric of each cluster 0, 1, ...; NaN for one without evaluated members."""
    return [
        _finite_mean([one for one, cluster in zip(reached, clusters, strict=True) if cluster == m and one is not None])
        for m in range(max(clusters) + 1)
    ]


def _finite_mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def cluster_row(built: BuiltExperiment, state: State) -> dict[str, Any]:
    """Return each client's cluster after a round for its row; empty for algorithms without clusters."""
    result = built.algorithm.facts.clusters(state)
    if result is None:
        return {}
    truth = true_clusters(built.federation)
    own = None if truth is None else cluster_purity(result.cluster_of, truth)
    return {"clusters": {"assignment": list(result.cluster_of), "how": result.how, "purity": own}}


def cluster_facts(built: BuiltExperiment, state: State) -> dict[str, Any]:
    """Return what the report draws once: first updates as points, components, confidences, and known clusters."""
    result = built.algorithm.facts.clusters(state)
    truth = true_clusters(built.federation)
    if result is None and truth is None:
        return {}
    known = {} if result is None else dict(result.facts)
    apart = None if truth is None else smallest_cluster(truth)
    return {"clusters": {"count": None, "mss": None} | known | {"truth": truth, "minority": apart}}


def cluster_notes(
    clusters: ClusterState | None, rows: Sequence[Mapping[str, Any]], releases: Iterable[Release], asked: int | None
) -> list[str]:
    """Return sentences on unexpected events: overlapping or empty clusters, absent clients."""
    if clusters is None:
        return []
    count = int(clusters.facts["count"])
    notes = list(_mixture_notes(clusters, count, asked))
    whereabouts = [row["clusters"]["assignment"] for row in rows if row.get("clusters")]
    for m in range(count):
        empty = sum(m not in some for some in whereabouts)
        if empty:
            notes.append(f"cluster {m} was empty in {_rounds_word(empty)}: its model stayed as it was.")
    notes += _count_absences(releases, len(rows), len(clusters.cluster_of))
    return notes


def _mixture_notes(clusters: ClusterState, count: int, asked: int | None) -> Iterable[str]:
    mss = clusters.facts.get("mss")
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


def main_metric(task: Task, evaluation: Evaluation) -> float | None:
    """Return one evaluation by the task's main metric; None without test examples."""
    if not evaluation.examples:
        return None
    name = task.metric.name
    return evaluation.loss if name == "loss" else task.rate_sums(evaluation.sums, evaluation.examples)[name]


def task_row(built: BuiltExperiment) -> Metrics:
    """Return the name of the metric for a round's row, if it is not accuracy."""
    name = built.model.task.metric.name
    return {} if name == "accuracy" else {"metric": name}


def _test_metrics(task: Task, loss: float, sums: Sequence[float], examples: int) -> Metrics:
    """Return loss and metrics on the common test set under their names in a row."""
    return {f"test_{name}": value for name, value in task.rate_sums(sums, examples).items()} | {"test_loss": loss}


def evaluate_models(built: BuiltExperiment, models: Public | Mapping[int, Public]) -> Metrics:
    """Return metrics and loss of the global model, or of all clients' own models; NaN without test data."""
    # Metrics are diagnostics outside the guarantee, as the report says. No algorithm can read them.
    shards, task = [client.test for client in built.federation.clients], built.model.task
    if isinstance(models, Public):
        whole = evaluate_model(built.model, models.value, built.federation.test)
        own = _client_metrics(built, evaluate_many(built.model, models.value, shards))
        return own | _test_metrics(task, whole.loss, whole.sums, whole.examples)
    rows = torch.stack([models[client].value for client in built.clients])
    result = evaluate_many(built.model, rows, shards)
    own = _client_metrics(built, result) | _mean_metrics(task, result)
    return own | _group_metrics(built, rows, result) if built.topology.compares_channels else own


def _mean_metrics(task: Task, evaluations: Sequence[Evaluation]) -> Metrics:
    """Return means over clients, each evaluated by its own model."""
    rated = [task.rate_sums(one.sums, one.examples) for one in evaluations if one.examples]
    names = [name for name in task.kind.metrics if name != "loss"]
    means = {f"test_{name}": _mean_finite([one[name] for one in rated]) for name in names}
    return means | {"test_loss": _mean_finite([one.loss for one in evaluations if one.examples])}


def _group_metrics(built: BuiltExperiment, rows: Tensor, evaluations: list[Evaluation]) -> Metrics:
    """Return the mean training loss, and the worst and best group mean."""
    shards = [] if built.federation.elsewhere else [client.train for client in built.federation.clients]
    train = evaluate_many(built.model, rows, shards) if shards else []
    task = built.model.task
    reached = [main_metric(task, one) for one in evaluations]
    means = [
        _mean_finite([one for member in channel.members if (one := reached[member]) is not None])
        for channel in built.topology.channels
    ]
    means = [mean for mean in means if not math.isnan(mean)]
    ends = min(means, default=math.nan), max(means, default=math.nan)
    worst, best = ends if task.metric.higher else ends[::-1]
    return {
        "client_train_loss_mean": _mean_finite([e.loss for e in train if e.examples]),
        f"group_{task.metric.name}_worst": worst,
        f"group_{task.metric.name}_best": best,
    }


def evaluated_kept(built: BuiltExperiment, kept: Mapping[int, Tensor], otherwise: Public) -> Metrics:
    """Return metrics of the models that clients keep, each on its owner's test shard; `test_*` pool all shards.

    A client without a kept model is evaluated by the global model, `otherwise`.
    """
    rows = torch.stack([kept.get(client, otherwise.value) for client in built.clients])
    own = evaluate_many(built.model, rows, [client.test for client in built.federation.clients])
    judged = [one for one in own if one.examples]
    examples = sum(one.examples for one in judged)
    loss = math.fsum(one.loss * one.examples for one in judged) / examples if examples else math.nan
    sums = [math.fsum(column) for column in zip(*(one.sums for one in judged), strict=True)]
    return _client_metrics(built, own) | _test_metrics(built.model.task, loss, sums, examples)


def evaluate_validation(
    built: BuiltExperiment, models: Public | Mapping[int, Public], kept: Mapping[int, Tensor] | None = None
) -> Metrics:
    """Return means over clients, each client's model on the examples that it holds out; empty if none are held out.

    These examples are private: the metrics are diagnostics, and a setting that is chosen by them depends on them.
    """
    shards = [client.validation for client in built.federation.clients]
    there = [shard for shard in shards if shard is not None]
    if len(there) < len(shards) or not there:
        return {}
    vectors: Tensor
    if not isinstance(models, Public):
        vectors = torch.stack([models[client].value for client in built.clients])
    elif kept is None:
        vectors = models.value
    else:
        vectors = torch.stack([kept.get(client, models.value) for client in built.clients])
    means = _mean_metrics(built.model.task, evaluate_many(built.model, vectors, there))
    return {name.replace("test_", "validation_", 1): value for name, value in means.items()}


def _client_metrics(built: BuiltExperiment, evaluations: list[Evaluation]) -> Metrics:
    metric = built.model.task.metric
    every = [main_metric(built.model.task, one) for one in evaluations]
    reached = [one for one in every if one is not None]
    judged = [one for one in reached if not math.isnan(one)]
    worst = min(judged, default=math.nan) if metric.higher else max(judged, default=math.nan)
    examples = [one.examples for one, value in zip(evaluations, every, strict=True) if value == worst]
    return {
        f"client_{metric.name}_mean": _mean_finite(reached),
        f"client_{metric.name}_decile": tenth_percentile(judged, higher=metric.higher),
        f"client_{metric.name}_worst": worst,
        "client_worst_examples": max(examples, default=0),
        "client_loss_mean": _mean_finite([e.loss for e in evaluations if e.examples]),
        **cluster_metrics(built, every),
    }


def tenth_percentile(values: list[float], *, higher: bool = True) -> float:
    """Return the 10th percentile: the largest value below which at most a tenth lie; from above if less is better.

    >>> tenth_percentile([0.0, 0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 1.0, 1.0]), tenth_percentile([0.5, 2.0], higher=False)
    (0.5, 2.0)
    """
    return sorted(values, reverse=not higher)[len(values) // 10] if values else math.nan


def _mean_finite(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


MetricFunction = Callable[[Any, Any], Any]
"""(targets, predictions) -> one number."""

PROBABILITIES = frozenset({"y_score", "y_prob", "y_proba", "probabilities"})
"""Names of a metric's second argument that ask for probabilities in place of labels, as in scikit-learn."""
OF_PROBABILITIES = frozenset({"log_loss", "d2_log_loss_score", "d2_brier_score"})
"""Metrics of scikit-learn that take probabilities under another name."""


@dataclass(frozen=True)
class OwnMetrics:
    """A user's metrics by name: functions of targets and predictions, diagnostics like every other metric.

    A function that fails after its first trial gives NaN and one note; it does not end a run that has spent budget.
    """

    functions: Mapping[str, MetricFunction] = field(default_factory=dict)
    on_note: Callable[[str], None] = lambda note: None
    failed: set[str] = field(default_factory=set)

    def check(self, model: FlatModel, vector: Tensor, test: Shard) -> None:
        """Try every metric on some examples. Raises if one fails or gives no number."""
        task = model.task
        for name, function in self.functions.items() if len(test) else ():
            wanted = takes_probabilities(function)
            if wanted and task.name not in ("classification", "binary", "multilabel"):
                reason = f"it takes probabilities, which a {task.name} model does not produce"
                invalid("metrics", name, reason, "give a function of targets and predictions")
            predicted = _predictions(model, vector, [test], wanted)[0]
            try:
                result = np.asarray(function(*_paired(task, test, predicted)))
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())
                hint = f'set its arguments by functools.partial, e.g. partial({name}, average="macro")'
                what = f"targets of shape {test.y.shape} and predictions of shape {predicted.shape}"
                invalid("metrics", name, f"fails on {what} ({said[:300]})", hint)
            if result.size != 1 or result.dtype.kind not in "biuf":
                what = type(result.item()).__name__ if result.size == 1 else f"an array of shape {result.shape}"
                invalid("metrics", name, f"returns {what}, not one number", "return a float")

    def of_shard(self, model: FlatModel, vector: Tensor, shard: Shard) -> dict[str, float]:
        """Return every metric of one model on one shard."""
        return {
            name: self.rate(name, model.task, shard, result, "the examples")
            for name, function in self.functions.items()
            for result in _predictions(model, vector, [shard], takes_probabilities(function))
        }

    def rate(self, name: str, task: Task, shard: Shard, predicted: NDArray[Any], who: str) -> float:
        """Return one metric of one shard; NaN without examples, or if the function fails."""
        if not len(shard):
            return math.nan
        try:
            with warnings.catch_warnings():
                # A small shard lacks classes, and scikit-learn would say so for every client in every round.
                warnings.simplefilter("ignore")
                return float(self.functions[name](*_paired(task, shard, predicted)))
        except Exception as error:
            if name not in self.failed:
                self.failed.add(name)
                self.on_note(
                    one_line("metrics", name, f"{type(error).__name__} on {who}: {error}", "counts as missing")
                )
            return math.nan

    def evaluate(
        self, built: BuiltExperiment, models: Public | Mapping[int, Public], kept: Mapping[int, Tensor] | None = None
    ) -> Metrics:
        """Return every metric on the test set and over the clients, by the rules of the task's own metrics.

        `test_*` is on the common test set; if every client has a model, the mean over clients; if clients keep models,
        over the union of their test shards.
        """
        if not self.functions:
            return {}
        shards, task, row = [client.test for client in built.federation.clients], built.model.task, Metrics()
        vectors: Tensor | list[Tensor]
        if kept is not None and isinstance(models, Public):
            vectors = [kept.get(client, models.value) for client in built.clients]
        else:
            vectors = models.value if isinstance(models, Public) else [models[client].value for client in built.clients]
        outputs = {
            wanted: _predictions(built.model, vectors, shards, wanted)
            for wanted in set(map(takes_probabilities, self.functions.values()))
        }
        for name, function in self.functions.items():
            metric, wanted = metric_named(name), takes_probabilities(function)
            rate = partial(self.rate, name, task)
            own = [
                rate(shard, result, client_name(client))
                for client, shard, result in zip(built.clients, shards, outputs[wanted], strict=True)
            ]
            judged = [value for value in own if not math.isnan(value)]
            mean = _mean_finite(judged)
            row |= {
                metric.test_key: mean,
                metric.client_key("mean"): mean,
                metric.client_key("decile"): tenth_percentile(judged, higher=metric.higher),
                metric.client_key("worst"): (min if metric.higher else max)(judged, default=math.nan),
            }
            if isinstance(vectors, Tensor):
                test = built.federation.test
                row[metric.test_key] = rate(test, _predictions(built.model, vectors, [test], wanted)[0], "the test set")
            elif kept is not None:
                whole = _join(shards)
                row[metric.test_key] = rate(whole, np.concatenate(outputs[wanted]), "the clients' test shards")
        return row


def read_metrics(given: Iterable[MetricFunction] | Mapping[str, MetricFunction]) -> dict[str, MetricFunction]:
    """Return a user's metrics by name: the given one, or that of the function. Raises for unusable names."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        reason = "is a list of functions of targets and predictions"
        invalid("metrics", given, reason, "e.g. metrics=[sklearn.metrics.balanced_accuracy_score]")
    pairs = given.items() if isinstance(given, Mapping) else [(_name_of(function), function) for function in given]
    result: dict[str, MetricFunction] = {}
    for name, function in pairs:
        if not callable(function):
            invalid("metrics", function, "is not a function of targets and predictions")
        if not isinstance(name, str) or not name.isidentifier():
            invalid("metrics", name, "the function has no name for a column", 'name it: metrics={"recall": function}')
        if name in METRICS or name in result or name == "train_loss":
            reason = "is given twice" if name in result else "is the name of a built-in metric"
            invalid("metrics", name, reason, f'choose another: metrics={{"my_{name}": function}}')
        result[name] = function
    return result


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def takes_probabilities(function: MetricFunction) -> bool:
    """Return whether a metric takes probabilities: its second argument says so, or it is known to."""
    try:
        words = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        words = []
    return _name_of(function) in OF_PROBABILITIES or (len(words) > 1 and words[1] in PROBABILITIES)


def _predictions(
    model: FlatModel, vectors: Tensor | list[Tensor], shards: Sequence[Shard], probabilities: bool
) -> list[NDArray[Any]]:
    """Return the predictions for every shard, by one model or by one each; of two classes the second's probability."""
    find = partial(predict_examples, model, probabilities=probabilities)
    if isinstance(vectors, Tensor):
        whole = find(vectors, _join(shards))
        parts = list(torch.split(whole, [len(shard) for shard in shards])) if len(whole) else [whole] * len(shards)
    else:
        parts = [find(vector, shard) for vector, shard in zip(vectors, shards, strict=True)]
    arrays: list[NDArray[Any]] = [
        part.cpu().double().numpy() if part.is_floating_point() else part.cpu().numpy() for part in parts
    ]
    if probabilities and model.task.name == "classification":
        # float32 probabilities do not add up to one to the digits that scikit-learn checks.
        arrays = [array / array.sum(-1, keepdims=True) if len(array) else array for array in arrays]
    two = probabilities and model.task.name == "classification" and model.classes == 2
    return [array[:, 1] if two and array.ndim == 2 else array for array in arrays]


def _join(shards: Sequence[Shard]) -> Shard:
    return Shard(np.concatenate([shard.x for shard in shards]), np.concatenate([shard.y for shard in shards]))


def _paired(task: Task, shard: Shard, predicted: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return targets and predictions as metrics take them: copies, sets of labels as 0 and 1, only counted tokens."""
    if task.name == "language":
        counted = shard.y != IGNORED
        return shard.y[counted], predicted[counted]
    if task.name == "multilabel":
        return (shard.y > 0).astype(np.int64), predicted.copy()
    return shard.y.copy(), predicted.copy()


def best_metric(built: BuiltExperiment, own: Iterable[str]) -> Metric | None:
    """Return the metric by which the best round is chosen, if one is. Raise `Refused` if the choice is not private.

    A model that is chosen by private examples depends on them without noise.
    """
    experiment, task = built.experiment, built.model.task
    name = experiment.keep_best
    if name is None:
        return None
    known = [*dict.fromkeys([*task.kind.metrics, "loss", *own])]
    if name not in known:
        invalid("keep_best", name, f"the run measures {', '.join(known)}", did_you_mean(name, known))
    if built.unit.value == "none":
        return metric_named(name)
    if not experiment.data.public_test:
        reason = "choosing a model by private test examples would release them without noise"
        refuse("keep_best", name, reason, "set data.public_test = true if the test set is public")
    first = built.algorithm.models(
        built.algorithm.init(Public(built.start), built.clients, built.settings), built.clients
    )
    if built.algorithm.facts.kept or not isinstance(first, Public):
        reason = f"{built.algorithm.name} tests every client's model on that client's examples, which are private"
        refuse("keep_best", name, reason, "omit it")
    shared, tested = _count_shared(built.federation), len(built.federation.test)
    if shared and shared == tested:
        reason = f"{shared} of the {tested} examples of the test set are also examples of clients, which are private"
        refuse("data.public_test", True, reason, "pass a test set (test=) without them, or omit keep_best")
    return metric_named(name)


def _count_shared(federation: Federation) -> int:
    """Return how many examples of the common test set are also a client's."""
    held = {row for client in federation.clients for shard in (client.test, client.train) for row in _row_hashes(shard)}
    return sum(row in held for row in _row_hashes(federation.test))


def _row_hashes(shard: Shard) -> Iterable[int]:
    return (hash(x.tobytes() + y.tobytes()) for x, y in zip(shard.x, shard.y, strict=True))
