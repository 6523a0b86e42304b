"""A worker: one model's weights and gradient as flat vectors, and the gradients that fill them.

`Worker` is the seam for speed. The autograd worker below runs any torch module and is the readable reference; faster
workers exist for layers whose gradients are written by hand. All of them give the same numbers up to float32 rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sightline.models.flat import FlatModel, bind
from sightline.models.mixing import refuse_mixing_layers
from sightline.training.clipping import Balls, Clip, clipped_rows, clipped_rows_apart
from sightline.training.examples import Rows, choose_rows

DROPOUT = nn.modules.dropout._DropoutNd


class Worker:
    """Any torch module, differentiated by autograd.

    `weights` and `gradient` are (d,) vectors; the module's parameters are views into them, so that one fused operation
    on the vector moves the whole model.
    """

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.module = model.module()
        self.weights = torch.zeros(model.parameters)
        self.gradient = torch.zeros(model.parameters)
        bind(self.module, model.layout, self.weights, self.gradient)
        self.dropout = any(isinstance(layer, DROPOUT) and layer.p > 0 for layer in self.module.modules())
        self.rows: Rows | None = None
        self.probing = False  # a probe wants no dropout and no way round a failure

    def inputs(self, x: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        """A shard's inputs in the memory layout this worker likes; examples on the first axis."""
        return torch.from_numpy(np.ascontiguousarray(x))

    def logits(self, x: Tensor) -> Tensor:
        """The logits of a batch, without dropout and without a tape."""
        self.module.eval()
        with torch.no_grad():
            output: Tensor = self.module(x)
        return output

    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        """Write the gradient of the batch's mean cross entropy to `gradient`."""
        self.module.train(not self.probing)
        self.gradient.zero_()
        functional.cross_entropy(self.module(x), y).backward()  # type: ignore[no-untyped-call]

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        r"""Write sum_j g_j min(1, C / |g_j|) to `gradient`, g_j being the gradient of example j alone.

        With several `views` x holds that many rows for each label, one after the other, and g_j is their mean gradient.
        With `Balls` the tensors of every ball are clipped by themselves to its radius.

        Guarantees: a non-finite g_j contributes zero; memory is bounded whatever the batch.
        """
        refuse_mixing_layers(self.module)
        if self.rows is None:
            self.rows = choose_rows(self.module, self.model)
        self.module.train(not self.probing)
        self.gradient.zero_()
        for some in chunks(len(y), max(1, ROW_BYTES // (4 * self.model.parameters * views))):
            labels = y[some].repeat_interleave(views)
            found = self.rows(self.module, self.model, self.weights, x[stretched(some, views)], labels)
            gradients = found.view(-1, views, found.shape[1]).mean(1)
            if isinstance(clip, Balls):
                self.gradient += clipped_rows_apart(gradients, clip, self.model.layout)
            else:
                self.gradient += clipped_rows(gradients, clip)


ROW_BYTES = 1 << 26
"""How much memory instantiated per-example gradients may take."""


def chunks(length: int, size: int) -> Iterator[slice]:
    """Consecutive slices of nearly equal length, at most `size`, that cover `length`."""
    pieces = -(-length // size)
    edges = [length * piece // pieces for piece in range(pieces + 1)] if pieces else [0]
    return (slice(start, stop) for start, stop in pairwise(edges))


def stretched(some: slice, views: int) -> slice:
    """The rows of some examples that have several views each."""
    return slice(some.start * views, some.stop * views)


@contextmanager
def own_dropout(worker: Worker, rng: np.random.Generator) -> Iterator[None]:
    """Draw the module's dropout masks from the client's own generator, when it has any."""
    if not worker.dropout:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        yield
