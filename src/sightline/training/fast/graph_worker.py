"""Train and evaluate a user's own model as its certified graph; private steps take one backward pass.

The certificate is a proof about the graph, so the graph runs, never the module's own Python code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, fx
from typing_extensions import override

from sightline.models.certificate import Certificate, CertifiedGraph
from sightline.models.flat import FlatModel, bind_parameters, flatten_module, probe_inputs
from sightline.models.task import probe_targets
from sightline.training.clipping import Clip, clipped_rows, factors_of
from sightline.training.fast import graph_rules
from sightline.training.fast.autograd_worker import NoClippingRule
from sightline.training.fast.graph_tape import (
    WITHOUT_DROPOUT,
    RecordingGraph,
    arguments_of,
    copy_graph,
    feed_graph,
    holds_batch,
    operation_name,
)
from sightline.training.fast.per_example_norms import TensorGradients, join_records
from sightline.training.gradients import GradientWorker

CHUNK_BYTES = 1 << 28
"""Memory limit for a chunk of examples of a private step."""

RULES = graph_rules
"""The module that fills `SITES` when it is imported."""


class GraphWorker(GradientWorker):
    """Worker that runs a certified model as its graph.

    Guarantees: those of `GradientWorker.clipped_sum`. Here the certificate proves that no example reaches another's
    gradient, and the module itself never runs. The task's losses keep rows apart.

    Raises `NoClippingRule` if the graph uses a trained value where no rule is known, or draws for all rows at once.
    """

    def __init__(self, model: FlatModel, certificate: Certificate) -> None:
        refuse_shared_draws(certificate)
        super().__init__(model)
        # The module never runs, so it cannot change.
        self.state = None
        self.losses, self.certificate = model.task.losses, certificate
        self.plain = copy_graph(certificate)
        self.evaluation = copy_graph(certificate.evaluation)
        self.recording = RecordingGraph(certificate, [slot.name for slot in model.layout])
        self.dropout = self.dropout or draws_at_random(certificate.exported.graph)
        self.tensors = dict(chain(self.module.named_parameters(), self.module.named_buffers()))
        self.slots = model.split(self.gradient)
        self.example_bytes = 0

    def feed(self, graph: CertifiedGraph, x: Tensor) -> list[Tensor]:
        """Return the graph's inputs for a batch."""
        return feed_graph(graph, self.tensors, x)

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """Return the outputs of a batch without dropout; the evaluation graph is certified, so examples stay apart."""
        with torch.no_grad():
            output: Tensor = self.evaluation(*self.feed(self.certificate.evaluation, x))[0]
        return output

    @override
    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        self.gradient.zero_()
        output = self.run_cast(lambda: self.plain(*self.feed(self.certificate, x))[0])
        self.losses(output, y).mean().backward()  # type: ignore[no-untyped-call]

    @override
    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        self.gradient.zero_()
        self.add_passes(x, y, clip, views)

    @override
    def most_examples(self, views: int) -> int:
        if not self.example_bytes:
            self.example_bytes = self.measure_example()
        return max(1, CHUNK_BYTES // (self.example_bytes * views))

    def measure_example(self) -> int:
        """Return the bytes of one example: activations between the nodes, twice, and its gradients."""
        with torch.random.fork_rng(devices=[]):
            gradients = self.gradients_of(probe_inputs(self.model, 1), self.trial_targets(), 1)
        return 4 * (
            2 * self.recording.activation_numbers() + sum(gradient.numbers for gradient in gradients.values()) + 1
        )

    def gradients_of(self, x: Tensor, y: Tensor, views: int) -> dict[str, TensorGradients]:
        """Return the per-example gradients of one chunk, tensor by tensor."""
        output = self.recording.run(self.tensors, x)
        records = self.recording.records(self.losses(output, y.repeat_interleave(views, 0)), views)
        with torch.no_grad():
            return {name: join_records(uses, self.slots[name].shape) for name, uses in records.items()}

    def add_clipped(self, x: Tensor, y: Tensor, examples: int, clip: Clip, views: int) -> None:
        """Add the clipped sum of the first examples of one pass, without examples that are non-finite anywhere.

        Nothing is computed again without them: that would draw new random numbers for all others.
        """
        gradients = self.gradients_of(x, y, views)
        if not gradients:
            return
        with torch.no_grad():
            squares = [{name: gradient.square_norms()} for name, gradient in gradients.items()]
            broken, factors = factors_of(squares, clip, examples)
            for name, gradient in gradients.items():
                if broken is not None:
                    gradient.blank(broken)
                gradient.add_clipped(factors(name), self.slots[name])

    @override
    def pass_squares(self, x: Tensor, y: Tensor, views: int) -> list[dict[str, Tensor]]:
        result = self.gradients_of(x, y, views)
        with torch.no_grad():
            return [{name: gradient.square_norms() for name, gradient in result.items()}]

    def try_pass(self, size: int, views: int) -> Tensor:
        """Return the trial of `GradientWorker.try_pass` without dropout; graphs that draw otherwise always fail it."""
        with self.without_dropout():
            if draws_at_random(self.plain.graph):
                # Columns that all differ: every example then has a pass of its own.
                return torch.arange(size).expand(1, -1)
            return super().try_pass(size, views)

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Run both graphs without dropout, so that a batch can be compared with its examples alone."""
        kept = self.plain, self.recording
        self.plain = copy_graph(self.certificate, dropout=False)
        self.recording = RecordingGraph(self.certificate, [slot.name for slot in self.model.layout], dropout=False)
        try:
            yield
        finally:
            self.plain, self.recording = kept


def refuse_shared_draws(certificate: Certificate) -> None:
    """Raise `NoClippingRule` if all rows of a pass share a random number (such as dropout of a weight).

    A batch has several passes, and their number depends on the examples: with one more pass, all later examples would
    have another number. One example at a time nothing is shared. A number that each row draws for itself (a dropout
    mask) is allowed: rows' draws are independent of each other and of the data, with one distribution for all. So for
    two batches that differ in one example there is a coupling in which every other example has the same draws in both.
    """
    for node in certificate.exported.graph.nodes:
        if node.op == "call_function" and node_draws(node) and not holds_batch(certificate.axes[node]):
            raise NoClippingRule(f"{node.target} draws one random number for all examples of a pass")


RANDOM = "rand bernoulli dropout normal uniform exponential multinomial rrelu geometric cauchy".split()
OFF = (False, 0.0)


def draws_at_random(graph: fx.Graph) -> bool:
    """Return whether a graph draws random numbers; they then come from the client's own generator."""
    return any(node_draws(node) for node in graph.nodes if node.op == "call_function")


def node_draws(node: fx.Node) -> bool:
    """Return whether a node draws random numbers."""
    name = operation_name(node)
    if name in WITHOUT_DROPOUT:
        given = arguments_of(node)
        return given[WITHOUT_DROPOUT[name][0]] not in OFF and given.get("p", 1.0) != 0.0
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return seeded or any(operation in name for operation in RANDOM)


def agrees_with_examples(worker: GraphWorker, *, examples: int = 3) -> bool:
    """Return whether clipped sum and mean gradient of a batch equal those of its examples alone, tensor by tensor.

    The examples are differentiated by the module itself; if it draws at random, by the graph, whose output the
    certificate has compared with the module's. Weights are moved off the start, where LoRA's factors are zero.
    """
    model, generator = worker.model, torch.Generator().manual_seed(1)
    x, y = probe_inputs(model, examples), probe_targets(model.task, model.classes, examples)
    start = flatten_module(model.module())
    # At the start LoRA's second factor is zero, and with it gradients that the probe must compare.
    worker.weights.copy_(start + 0.05 * torch.randn(start.shape, generator=generator))
    with torch.random.fork_rng(devices=[]), worker.without_dropout():
        torch.manual_seed(0)
        random = draws_at_random(worker.plain.graph)
        rows = (
            graph_rows(worker, x, y)
            if draws_at_random(worker.certificate.exported.graph)
            else module_rows(worker, x, y)
        )
        clip_norm = float(rows.norm(dim=1).median())
        if not 0 < clip_norm < float("inf"):
            return False
        batches = [slice(index, index + 1) for index in range(examples)] if random else [slice(0, examples)]
        for batch in batches:
            torch.manual_seed(batch.start)
            worker.clipped_sum(x[batch], y[batch], clip_norm)
            if not close_by_tensor(model, worker.gradient, clipped_rows(rows[batch], clip_norm), 1e-5 * clip_norm):
                return False
            torch.manual_seed(batch.start)
            worker.mean_gradient(x[batch], y[batch])
            if not close_by_tensor(model, worker.gradient, rows[batch].mean(0), 1e-5 * clip_norm):
                return False
    return True


def graph_rows(worker: GraphWorker, x: Tensor, y: Tensor) -> Tensor:
    """Return every example's gradient by the graph and plain autograd, example i drawn from seed i."""
    rows = torch.empty(len(y), worker.model.parameters)
    for index in range(len(y)):
        torch.manual_seed(index)
        worker.mean_gradient(x[index : index + 1], y[index : index + 1])
        rows[index] = worker.gradient
    return rows


def module_rows(worker: GraphWorker, x: Tensor, y: Tensor) -> Tensor:
    """Return every example's gradient by the module in training mode and plain autograd."""
    module = worker.model.module().train()
    bind_parameters(module, worker.model.layout, worker.weights.clone())
    rows = torch.zeros(len(y), worker.model.parameters)
    parameters = [module.get_parameter(slot.name) for slot in worker.model.layout]
    for index in range(len(y)):
        row = slice(index, index + 1)
        loss = worker.losses(module(x[row].clone()), y[row]).sum()
        for slot, part in zip(
            worker.model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.to_dense().reshape(-1)
    return rows


def close_by_tensor(model: FlatModel, got: Tensor, expected: Tensor, least: float) -> bool:
    """Return whether every named tensor agrees to a thousandth of its own norm."""
    wrong, right = model.split(got - expected), model.split(expected)
    return all(float(wrong[name].norm()) <= 1e-3 * float(right[name].norm()) + least for name in right)
