"""Models of the user's own by their certified graph: plain steps, private steps in one backward pass, evaluation.

The certificate is a proof about the graph, so the graph is what runs, and never the module's own Python code.
"""

from collections.abc import Callable, Mapping
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from sightline.models.certificate import Certificate, CertifiedGraph
from sightline.models.flat import FlatModel, bind_parameters, flatten_module, probe_inputs
from sightline.training.fast import graph_recurrent, graph_rules
from sightline.training.fast.autograd_worker import NoClippingRule
from sightline.training.fast.graph_records import TensorGradients, join_records
from sightline.training.fast.graph_tape import SITES, RecordingGraph, copy_graph, feed_graph
from sightline.training.gradients import (
    Balls,
    Clip,
    GradientWorker,
    clipped_rows,
    equal_chunks,
    factors_of,
    stretch_views,
)

Losses = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the loss of every example, (B,); entry j depends on row j only."""

CHUNK_BYTES = 1 << 28
"""How much a chunk of examples of a private step may take."""

RULES_OF = (graph_rules, graph_recurrent)
"""The modules that fill `SITES`."""


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of every example."""
    return functional.cross_entropy(outputs, targets, reduction="none")


class GraphWorker(GradientWorker):
    """A certified model, run as its graph.

    Guarantees: as those of `GradientWorker.clipped_sum`; that no example reaches another's gradient is the
    certificate's proof here, and nothing is given to the module itself. `losses` must treat rows apart.

    Raises `NoClippingRule` when the graph uses a trained value where no rule is known.
    """

    def __init__(self, model: FlatModel, certificate: Certificate, *, losses: Losses = cross_entropies) -> None:
        super().__init__(model)
        self.state = None  # nothing of the module runs, so nothing can change
        self.losses, self.certificate = losses, certificate
        self.plain = copy_graph(certificate)
        self.evaluation = copy_graph(certificate.evaluation)
        self.recording = RecordingGraph(certificate, [slot.name for slot in model.layout])
        self.dropout = self.dropout or draws_at_random(certificate)
        self.tensors = dict(chain(self.module.named_parameters(), self.module.named_buffers()))
        self.slots = model.split(self.gradient)
        self.example_bytes = 0

    def feed(self, graph: CertifiedGraph, x: Tensor) -> list[Tensor]:
        """What a graph is given for a batch."""
        return feed_graph(graph, self.tensors, x)

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """The outputs of a batch without dropout; the graph for evaluation is certified too, so all are apart."""
        with torch.no_grad():
            output: Tensor = self.evaluation(*self.feed(self.certificate.evaluation, x))[0]
        return output

    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        """Write the gradient of the batch's mean loss to `gradient`."""
        self.gradient.zero_()
        output = self.plain(*self.feed(self.certificate, x))[0]
        self.losses(output, y).mean().backward()  # type: ignore[no-untyped-call]

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Ghost clipping over the graph, chunk by chunk; see `GradientWorker.clipped_sum`."""
        self.gradient.zero_()
        if not len(y):
            return
        if not self.example_bytes:
            self.example_bytes = self.measure_example(x[:1], y[:1])
        for some in equal_chunks(len(y), max(1, CHUNK_BYTES // (self.example_bytes * views))):
            self.add_clipped(x[stretch_views(some, views)], y[some], clip, views)

    def measure_example(self, x: Tensor, y: Tensor) -> int:
        """The bytes that one example takes: what lies between the nodes, twice, and its gradients."""
        with torch.random.fork_rng(devices=[]):
            gradients = self.gradients_of(x, y, 1)
        return 4 * (2 * self.recording.activation_numbers() + sum(one.numbers for one in gradients.values()) + 1)

    def gradients_of(self, x: Tensor, y: Tensor, views: int) -> dict[str, TensorGradients]:
        """The per-example gradients of one chunk, tensor by tensor."""
        output = self.recording.run(self.tensors, x)
        records = self.recording.records(self.losses(output, y.repeat_interleave(views, 0)), views)
        with torch.no_grad():
            return {name: join_records(some, self.slots[name].shape) for name, some in records.items()}

    def add_clipped(self, x: Tensor, y: Tensor, clip: Clip, views: int) -> None:
        """Add the clipped sum of one chunk; an example that is not finite anywhere is left out."""
        gradients = self.gradients_of(x, y, views)
        if not gradients:
            return
        with torch.no_grad():
            finite, factors = factors_of([{name: one.square_norms()} for name, one in gradients.items()], clip)
            if bool(finite.all()):
                for name, one in gradients.items():
                    one.add_clipped(factors(name), self.slots[name])
                return
        if bool(finite.any()):
            del gradients
            self.add_clipped(x[finite.repeat_interleave(views)], y[finite], clip, views)


RANDOM = ("rand", "bernoulli", "dropout", "normal", "uniform", "exponential", "multinomial", "rrelu", "geometric")


def draws_at_random(graph: CertifiedGraph) -> bool:
    """Whether a graph may draw random numbers: then they come from the client's own generator."""
    named = (str(node.target) for node in graph.exported.graph.nodes if node.op == "call_function")
    return any(word in name for name in named for word in (*RANDOM, "scaled_dot_product_attention", "lstm", "gru"))
