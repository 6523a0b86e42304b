"""A run as a Python object: its numbers, its ledger, its report, and the model that it trained."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sightline import engine, models
from sightline import formatting as shown
from sightline.apps import report
from sightline.apps.report.curves import worst_epsilons
from sightline.config import Data, Experiment, read
from sightline.data import Kind, Shard
from sightline.data.federation import Targets
from sightline.data.tables import to_array
from sightline.data.targets import check_targets
from sightline.engine import RunRecord
from sightline.engine.evaluation import MetricFunction, OwnMetrics, read_metrics
from sightline.engine.metadata import ModelShape
from sightline.errors import invalid
from sightline.formatting import metric_named
from sightline.ledger import Ledger, write_parties
from sightline.mechanisms.convex_solver import unit_shard
from sightline.mechanisms.registry import feature_norm
from sightline.models import FlatModel, Module
from sightline.models.task import Task
from sightline.topology import client_name
from sightline.training import evaluate_model

# Examples predicted at a time.
BATCH = 1024


@dataclass(frozen=True, init=False)
class Run:
    """A finished (or budget-stopped) run: its numbers, its ledger, its report, its model.

    It holds nothing open. Every property reads the run directory on access, without writing to it, and returns a value
    that is entirely in memory. `sightline.Run("runs/NAME")` opens an existing run.
    """

    directory: Path
    built: FlatModel | None = field(repr=False, compare=False)
    """The model as this program built it; None: it is built from the run's settings."""
    live: list[Callable[[], dict[str, Tensor]]] = field(repr=False, compare=False)
    """While the run is at work in this program: returns the models after the last finished round."""

    def __init__(self, directory: Path | str, built: FlatModel | None = None) -> None:
        object.__setattr__(self, "directory", Path(directory))
        object.__setattr__(self, "built", built)
        object.__setattr__(self, "live", [])

    @property
    def metadata(self) -> dict[str, Any]:
        """Return what was run and how it ended: `status`, `delta`, `unit` and the other facts of the report."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.facts

    @property
    def experiment(self) -> Experiment:
        """Return the settings of the run, every key resolved."""
        path = self.directory / engine.CONFIG
        if not path.is_file():
            invalid(
                "run",
                self.directory,
                f"the folder has no {engine.CONFIG}",
                "give the folder that sightline run printed",
            )
        return read(path)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Return the metrics of every round."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.rounds()

    @property
    def history(self) -> Any:
        """Return the numbers of every round: a pandas DataFrame if pandas is installed, else a list of dicts."""
        return self.to_frame() if find_spec("pandas") is not None else [flatten_row(row) for row in self.rounds]

    def to_frame(self) -> Any:
        """Return the numbers of every round as a pandas DataFrame; raise `InvalidInput` if pandas is missing."""
        return shown.make_frame([flatten_row(row) for row in self.rounds])

    @property
    def ledger(self) -> Ledger:
        """Return the read-only ledger: every release, and the epsilon of any subject against any observer."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.ledger()

    @property
    def report(self) -> Path:
        """Return the path of the HTML page."""
        return self.directory / report.REPORT

    @property
    def summary(self) -> dict[str, Any]:
        """Return what `sightline run --json` prints."""
        return report.summarise_run(report.RunView.read(self.directory))

    @property
    def test_accuracy(self) -> float:
        """Return the accuracy of the last evaluated model on the test set; NaN if there is none."""
        return _number_or(self.summary["test_accuracy"], math.nan)

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last evaluated model on the test set, the main one first; NaN before the first."""
        return {name: _number_or(value, math.nan) for name, value in self.summary["metrics"].items()}

    @property
    def epsilon(self) -> float:
        """Return the worst epsilon over untrusted observers; infinite if nothing is promised."""
        return _number_or(self.summary["epsilon"], math.inf)

    def state_dict(
        self, *, client: int | None = None, cluster: int | None = None, best: bool = False
    ) -> dict[str, Tensor]:
        """Return the published tensors by name, as `load_state_dict` of the module takes them.

        If every client has its own model, `client` or `cluster` selects one; members of a cluster share a model. `best`
        selects the model of the best round, which `keep_best` keeps. In `on_round` it is the model after that round.
        """
        tensors = (
            self.live[0]() if self.live and not best else self._load_tensors(engine.BEST if best else engine.MODEL)
        )
        owned = {name.partition("/")[0] for name in tensors if name.startswith("client-") and "/" in name}
        if not owned:
            for key, value in (("client", client), ("cluster", cluster)):
                if value is not None:
                    invalid(key, value, "the run has one model for all", f"omit {key}")
            return tensors
        prefix = f"{client_name(self._find_owner(client, cluster, owned))}/"
        shared = {name: one for name, one in tensors.items() if name.partition("/")[0] not in owned}
        return shared | {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}

    def _load_tensors(self, file: str) -> dict[str, Tensor]:
        path = self.directory / file
        if not path.is_file() and file == engine.BEST:
            invalid("best", True, "the run kept no model of a best round", 'set keep_best = "accuracy" before you run')
        if not path.is_file():
            reason = f"{file} is missing because the run has not ended"
            invalid("run", self.directory, reason, "resume it: sightline.run(..., resume=True)")
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            invalid("run", self.directory, f"its {file} cannot be read ({type(error).__name__})")

    def _find_owner(self, client: int | None, cluster: int | None, owned: set[str]) -> int:
        """Return the client whose model is wanted."""
        if (client is None) == (cluster is None):
            reason = f"each of the {len(owned)} clients has its own model"
            invalid("client", client, reason, "choose one: run.model(client=0), or cluster=0 in a clustered run")
        if cluster is not None:
            result = [row["clusters"]["assignment"] for row in self.rounds if row.get("clusters")]
            members = [number for number, own in enumerate(result[-1] if result else []) if own == cluster]
            if not members:
                invalid("cluster", cluster, "this cluster has no clients", "use client=0 for the model of one client")
            return members[0]
        if client is None or client_name(client) not in owned:
            invalid("client", client, "no model was saved for this client", f"use 0 to {len(owned) - 1}")
        return client

    def model(self, *, client: int | None = None, cluster: int | None = None, best: bool = False) -> Module:
        """Return the trained `torch.nn.Module` in evaluation mode; `client`, `cluster` and `best` as in `state_dict`.

        It is built from the run's settings. A model that a program passed in is known to that program only: elsewhere,
        load `state_dict()` into it.
        """
        flat, vector = self.flat_model().load(self.state_dict(client=client, cluster=cluster, best=best))
        module = flat.module()
        module.load_state_dict(flat.named_tensors(vector))
        return module.eval()

    def flat_model(self) -> FlatModel:
        """Return the model as one vector, with the names and offsets of its tensors."""
        if self.built is not None:
            return self.built
        experiment, facts = self.experiment, self.metadata
        if models.is_given_model(experiment.model.name):
            reason = f"its model {experiment.model.name} was passed by a Python program"
            invalid("run", self.directory, reason, "build the module and load run.state_dict() into it")
        # A run of an earlier version did not record the shape.
        if "input_shape" not in facts:
            return engine.build_experiment(experiment).model
        shape, model = ModelShape.from_stored(facts), experiment.model
        own = None if model.loss is None else models.own_loss(model.loss)
        return models.build_model(
            model.name,
            input_shape=tuple(shape.input_shape),
            classes=shape.outputs,
            kind=Kind(shape.kind),
            vocabulary=shape.vocabulary,
            settings=model.settings,
            task=Task(model.target, tuple(shape.target_shape), shape.whole_targets, model.loss, own),
        )

    def predict(
        self,
        x: Any,
        *,
        probabilities: bool = False,
        client: int | None = None,
        cluster: int | None = None,
        best: bool = False,
    ) -> NDArray[Any]:
        """Return what the model predicts for every example, by its task.

        Labels (classification, binary), sets of labels (n, labels), numbers (regression), or the next token at every
        position; `probabilities` gives those of each label or token. For a user's own loss, the module's outputs. `x`
        holds examples as the training data did, in a numpy array, a torch tensor or a list. Labels are the names of
        their classes if `data.classes` lists them.
        """
        module, flat = self.model(client=client, cluster=cluster, best=best), self.flat_model()
        inputs = self._scale_inputs(read_inputs(x, flat))
        with torch.no_grad():
            outputs = [module(torch.from_numpy(inputs[at : at + BATCH])) for at in range(0, len(inputs), BATCH)]
        result = torch.cat(outputs) if outputs else torch.empty(0, flat.classes)
        predictions: NDArray[Any] = flat.task.predictions(result, probabilities=probabilities).numpy()
        names = self.experiment.data.class_names
        if names is None or probabilities or flat.task.name not in ("classification", "binary"):
            return predictions
        labels: NDArray[Any] = np.array(names)[predictions]
        return labels

    def evaluate(
        self,
        x: Any,
        y: Any,
        *,
        metrics: Iterable[MetricFunction] | Mapping[str, MetricFunction] = (),
        client: int | None = None,
        cluster: int | None = None,
        best: bool = False,
    ) -> dict[str, float]:
        """Return the task's metrics, the loss and `metrics` of the model on these examples; also inside `on_round`.

        The result is computed from the examples without noise: on private ones it is a diagnostic, not a release.
        """
        flat, vector = self.flat_model().load(self.state_dict(client=client, cluster=cluster, best=best))
        inputs = self._scale_inputs(read_inputs(x, flat))
        shard = Shard(inputs, read_targets(y, inputs, flat, self.experiment.data))
        own = OwnMetrics(read_metrics(metrics))
        own.check(flat, vector, shard)
        result = evaluate_model(flat, vector, shard)
        return (
            flat.task.rate_sums(result.sums, result.examples)
            | {"loss": result.loss}
            | own.of_shard(flat, vector, shard)
        )

    def _scale_inputs(self, inputs: NDArray[Any]) -> NDArray[Any]:
        # Convex mechanisms train on examples scaled to a fixed norm, so predictions must scale them too.
        norm = feature_norm(self.experiment)
        return inputs if norm is None else unit_shard(Shard(inputs, np.zeros(len(inputs), dtype=np.int64)), norm).x

    def _fact_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, object]]:
        """Return what a reader wants to know first: how far it is, how good, and what it promises."""
        spent = {kind: _number_or(value, math.inf) for kind, value in summary["observers"].items()}
        promise: list[tuple[str, object]] = [("privacy", "none")]
        trusted = summary["trusted"]
        if summary["unit"] != "none":
            promise = [(f"epsilon against {kind}", shown.rounded_up(value)) for kind, value in spent.items()]
            promise += (
                [(f"epsilon against {write_parties(frozenset(trusted))}", "infinite: trusted")] if trusted else []
            )
            promise += [("delta, unit", f"{summary['delta']}, {summary['unit']}")]
            promise += [("trusted", ", ".join(trusted) or "none")]
        return [
            ("status", summary["status"]),
            ("rounds", summary["rounds_done"]),
            *(
                (f"test {metric_named(name).title}", metric_named(name).format_value(v))
                for name, v in summary["metrics"].items()
            ),
            *promise,
        ]

    def __str__(self) -> str:
        return shown.text_table(str(self.directory), ("", ""), self._fact_rows(self.summary))

    def _repr_html_(self) -> str:
        done, summary = report.RunView.read(self.directory), self.summary
        facts = self._fact_rows(summary)
        drawn = shown.svg_curve(
            f"test {done.metric.title} over the rounds", done.series(done.metric.test_key), done.metric.format_value
        )
        drawn += shown.svg_curve("worst epsilon over the rounds", worst_epsilons(done), shown.rounded_up)
        link = f'<p><a href="{quote(self.report.as_posix())}">report</a></p>'
        return shown.html_table(str(self.directory), ("", ""), facts) + drawn + link


def read_inputs(x: Any, model: FlatModel) -> NDArray[np.float32] | NDArray[np.int64]:
    """Return examples as the model takes them. Raises if they have another shape."""
    inputs: NDArray[Any]
    try:
        inputs = np.array(to_array(x), dtype=np.int64 if model.kind is Kind.TEXT else np.float32, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        invalid("x", type(x).__name__, f"must be an array of numbers ({' '.join(str(error).split())[:120]})")
    if inputs.shape[1:] != model.input_shape or not inputs.ndim:
        reason = f"{model.name} takes examples of shape {model.input_shape}"
        invalid("x", inputs.shape, reason, f"give (n, {', '.join(map(str, model.input_shape))})")
    return inputs


def read_targets(y: Any, inputs: NDArray[Any], model: FlatModel, settings: Data) -> Targets:
    """Return targets as the model's task takes them; labels may be names of classes. Raises if they do not fit."""
    targets = check_targets("y", to_array(y), inputs, settings, model.task.name)
    if targets.shape != (len(inputs), *model.task.target_shape):
        invalid(
            "y", targets.shape, f"expected {(len(inputs), *model.task.target_shape)}", "give one target per example"
        )
    return targets.astype(np.int64) if model.task.whole else targets.astype(np.float32)


def flatten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a round with one name each; other values, such as cluster assignments, are left out.

    >>> flatten_row({"round": 1, "epsilon": {"server": None, "public": 0.25}, "clusters": {"assignment": [0, 1]}})
    {'round': 1, 'epsilon.server': inf, 'epsilon.public': 0.25}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten_row({f"{name}.{key}": number for key, number in value.items()})
        elif isinstance(value, int | float | None):
            # JSON has no infinity or NaN: the record stores both as null. A missing epsilon must never look finite.
            missing = math.inf if name.startswith("epsilon") else math.nan
            flat[name] = missing if value is None else value
    return flat


def _number_or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
