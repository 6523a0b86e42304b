"""Chains of hand-written layers with bfloat16 products and convolutions; sums and weights stay in float32.

Per-example clipping: a layer's records, the inputs a and output gradients g of every example, are bfloat16 numbers.
Norms and clipped sums are computed from those same numbers in float32, as `layers.py` does from float32 numbers: what
is clipped is what is summed. One more thing is needed. A product of another number of rows is summed in another order,
and where float32 would change in its last bit, a number rounded to bfloat16 changes by 2^-8: one example more or less
would change the others' gradients. So every pass has the same shape, filled up with zeros, and before the first pass a
test checks that the position in a batch does not change a single bit (`rows_alike`).
"""

from collections.abc import Callable
from math import lcm
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.clipping import Clip
from sightline.training.fast.dense_stack import ChainWorker
from sightline.training.fast.layers import (
    Affine,
    Convolution,
    Dense,
    FirstConvolution,
    GroupedConvolution,
    Layer,
    ProductConvolution,
    Tanh,
)
from sightline.training.fast.per_example_norms import patches_by_pixel
from sightline.training.machine import BF16
from sightline.training.passes import OneSize

ROWS = 32
"""Rows of one private pass: small batches waste few of them, kernels are busy, and float32 fills whole lanes."""


class HalfAffine(Affine):
    """Shared parts of layers with bfloat16 products."""

    def seen(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the recorded numbers as float32."""
        return self.x.float(), g.float()

    def half_bias(self) -> Tensor | None:
        """Return the bias in bfloat16."""
        return None if self.bias is None else self.bias.bfloat16()


class HalfDense(HalfAffine, Dense):
    """y = x W^T + b with bfloat16 products."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, in bfloat16."""
        self.x, self.kernel = x.bfloat16(), self.weight.bfloat16()
        bias = self.half_bias()
        return torch.mm(self.x, self.kernel.t()) if bias is None else torch.addmm(bias, self.x, self.kernel.t())

    def backward(self, g: Tensor) -> Tensor | None:
        """Return g W; write the summed gradients."""
        g = g.bfloat16()
        self.weight_gradient.copy_(torch.mm(g.t(), self.x))
        if self.bias_gradient is not None:
            torch.sum(g, 0, dtype=torch.float32, out=self.bias_gradient)
        return g @ self.kernel if self.wanted else None

    def descend(self, g: Tensor, rate: float) -> Tensor | None:
        """Return g W for the old weights, and take a step."""
        g = g.bfloat16()
        before = g @ self.kernel if self.wanted else None
        self.weight.add_(torch.mm(g.t(), self.x), alpha=-rate)
        if self.bias is not None:
            self.bias.add_(g.sum(0, dtype=torch.float32), alpha=-rate)
        return before

    def record(self, g: Tensor) -> Tensor | None:
        """Return g W; keep the record."""
        return super().record(g.bfloat16())


class HalfConvolution(HalfAffine, Convolution):
    """A convolution in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution, in bfloat16."""
        self.x = x.bfloat16()
        self.kernel = self.weight.to(torch.bfloat16, memory_format=torch.channels_last)
        return torch.conv2d(self.x, self.kernel, self.half_bias(), self.stride, self.padding)

    def derive_gradients(self, g: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (input, weight, bias) gradients in bfloat16, those that the mask asks for."""
        return super().derive_gradients(g.bfloat16(), mask)

    def backward(self, g: Tensor) -> Tensor | None:
        """Return the input gradient; write the summed weight and bias gradients."""
        before, weight, _ = self.derive_gradients(g, [self.wanted, True, False])
        self.weight_gradient.copy_(weight)
        if self.bias_gradient is not None:
            torch.sum(g, (0, 2, 3), dtype=torch.float32, out=self.bias_gradient)
        return before

    def descend(self, g: Tensor, rate: float) -> Tensor | None:
        """Return the input gradient; move weight and bias by their gradients."""
        before, weight, _ = self.derive_gradients(g, [self.wanted, True, False])
        self.weight.add_(weight, alpha=-rate)
        if self.bias is not None:
            self.bias.add_(g.sum((0, 2, 3), dtype=torch.float32), alpha=-rate)
        return before

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches of a first convolution, for its record only."""
        return patches_by_pixel(x, self.size, self.stride, self.padding)


class HalfGrouped(HalfConvolution, GroupedConvolution):
    """Recorded by one grouped convolution in float32."""


class HalfFirst(HalfConvolution, FirstConvolution):
    """Recorded from its patches."""


class HalfProduct(HalfConvolution, ProductConvolution):
    """Recorded by products with its patches."""


HALF: dict[type[Affine], Callable[..., HalfAffine]] = {
    Dense: HalfDense,
    Convolution: HalfConvolution,
    GroupedConvolution: HalfGrouped,
    FirstConvolution: HalfFirst,
    ProductConvolution: HalfProduct,
}


def half_layer(layer: Layer) -> Layer:
    """Return the equivalent of a layer with bfloat16 products; a layer without weights is returned as it is."""
    if not isinstance(layer, Affine):
        return layer
    tensors = (layer.weight, layer.bias, layer.weight_gradient, layer.bias_gradient)
    how: dict[str, Any] = {}
    if isinstance(layer, Convolution):
        how = {"stride": layer.stride, "padding": layer.padding}
    twin = HALF[type(layer)](*tensors, **how)
    twin.name, twin.wanted = layer.name, layer.wanted
    return twin


class HalfChainWorker(ChainWorker):
    """Worker with a bfloat16 chain over float32 weights; outputs and losses are float32."""

    def __init__(self, model: FlatModel, record: str = "unfold") -> None:
        super().__init__(model, record)
        self.layers = [half_layer(layer) for layer in self.layers]
        self.alike: dict[int, bool] = {}
        """Number of rows -> whether every position of a batch computes the same bits."""

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """Return the outputs of a batch as float32."""
        return super().logits(x).float()

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Write the clipped sum as `ChainWorker` does, with the same number of rows in every pass."""
        self.require_alike(rows_of(views))
        self.passes[views] = OneSize(rows_of(views) // views)
        super().clipped_sum(x, y, clip, views=views)

    def require_alike(self, rows: int) -> None:
        """Raise if an example's position among this many rows changes its contribution."""
        if rows not in self.alike:
            self.alike[rows] = rows_alike(self, rows)
        if not self.alike[rows]:
            law = f"on this machine an example's gradient in {self.model.name} would depend on its place in the batch"
            invalid("local.precision", BF16, law, 'use precision = "float32" for per-example clipping')


def rows_of(views: int) -> int:
    """Return the rows of a private pass for any batch: whole lanes and whole examples."""
    return lcm(ROWS, views)


DRAWS = 4
"""Number of inputs and weights that are tried."""
LANES = 64
"""Most numbers that an element-wise loop takes at once; the remainder runs through other code."""


def rows_alike(worker: HalfChainWorker, rows: int) -> bool:
    """Return whether in passes of this many rows every row computes the same bits.

    Every product gets equal rows of large numbers of both signs among small ones: if two rows were summed in another
    order, their sums would differ in many places. The order depends on shapes, not on numbers.
    """
    kept, generator = worker.weights.clone(), torch.Generator().manual_seed(rows)
    shape = (rows, *worker.model.input_shape)
    try:
        for _ in range(DRAWS):
            worker.weights.copy_(torch.randint(0, 2, kept.shape, generator=generator) * 2 - 1)
            x = worker.inputs(np.zeros(shape, np.float32))
            for layer in worker.layers:
                if isinstance(layer, HalfAffine) and not layer_alike(layer, x, generator):
                    return False
                # tanh takes another code path for what does not fill a vector register, which may round differently.
                if isinstance(layer, Tanh) and x.numel() % LANES:
                    return False
                x = layer.forward(x)
    finally:
        worker.weights.copy_(kept)
        worker.record(False)
    return True


def layer_alike(layer: HalfAffine, like: Tensor, generator: torch.Generator) -> bool:
    """Return whether equal rows have equal outputs and input gradients in one layer."""
    y = layer.forward(equal_rows(like, layer.weight[0].numel(), generator))
    before = layer.record(equal_rows(y, layer.weight[:, 0].numel(), generator))
    layer.affine_norms = None
    return all(bool((found == found[:1]).all()) for found in (y, before) if found is not None)


def equal_rows(like: Tensor, terms: int, generator: torch.Generator) -> Tensor:
    """Return equal rows in a tensor's layout: about eight terms are huge and may cancel, the others small."""
    one = torch.randn(like.shape[1:], generator=generator)
    huge = HUGE * (torch.randint(0, 2, one.shape, generator=generator) * 2 - 1)
    one = torch.where(torch.rand(one.shape, generator=generator) < min(0.5, 8 / terms), huge, one)
    return torch.empty_like(like, dtype=torch.bfloat16).copy_(one)


HUGE = 2.0**20
