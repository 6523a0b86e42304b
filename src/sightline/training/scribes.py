"""One scribe per layer type: it writes the books of that layer from its input and its output gradient."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.training.books import AffineNorms, gram_rounding, square_norms, unfold_patches
from sightline.training.layers import size_pair
from sightline.training.unrolled import DirectionRun


class ClippingRule(ABC):
    """Keeps one layer's books for one chunk; `gradient` maps parameter names to views of the flat gradient."""

    def __init__(self, layer: nn.Module, gradient: dict[str, Tensor]) -> None:
        self.layer, self.gradient = layer, gradient

    @abstractmethod
    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Take input and output gradient; give |gradient|^2 of every example for each of this layer's parameters."""

    @abstractmethod
    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Add sum_j s_j g_j to the gradient of each parameter."""


class AffineRule(ClippingRule):
    """Linear layers, on vectors (B, K) or sequences (B, ..., K)."""

    def norms_of(self, x: Tensor, g: Tensor) -> AffineNorms:
        """The affine map's inputs and output gradients as (B, P, K) and (B, P, O)."""
        batch = len(x)
        return AffineNorms(
            x.reshape(batch, -1, x.shape[-1]), g.reshape(batch, -1, g.shape[-1]), bias="bias" in self.gradient
        )

    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Norms from the book."""
        self.page = self.norms_of(x, g)
        return self.page.norms()

    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Add the weight's and the bias' clipped sums."""
        self.gradient["weight"] += self.as_weight(self.page.weight_sum(factors["weight"]))
        bias = self.page.bias_sum(factors["bias"]) if "bias" in factors else None
        if bias is not None:
            self.gradient["bias"] += bias
        del self.page

    def as_weight(self, total: Tensor) -> Tensor:
        """(O, K) in the weight's own layout."""
        return total


class ConvolutionRule(AffineRule):
    """Convolutions, as affine maps of their patches."""

    layer: nn.Conv2d

    def norms_of(self, x: Tensor, g: Tensor) -> AffineNorms:
        """Patches and output pixels."""
        how = (size_pair(self.layer.kernel_size), size_pair(self.layer.stride), size_pair(self.layer.padding))
        return AffineNorms(unfold_patches(x, *how), g.permute(0, 2, 3, 1).flatten(1, 2), bias="bias" in self.gradient)

    def as_weight(self, total: Tensor) -> Tensor:
        """(O, kh, kw, C) -> (O, C, kh, kw)."""
        size = size_pair(self.layer.kernel_size)
        return total.view(len(total), *size, -1).permute(0, 3, 1, 2)


class NormRule(ClippingRule):
    """GroupNorm and LayerNorm: gradients are small, so they are instantiated."""

    layer: nn.GroupNorm | nn.LayerNorm

    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Rows of scale and shift: sum over positions of g times the normalised input, and of g."""
        self.rows = {"weight": self.sum_positions(g * self.normalise_input(x)), "bias": self.sum_positions(g)}
        self.rows = {name: self.rows[name] for name in self.gradient}
        return {name: square_norms(rows) for name, rows in self.rows.items()}

    def normalise_input(self, x: Tensor) -> Tensor:
        """The input before scale and shift."""
        if isinstance(self.layer, nn.GroupNorm):
            return functional.group_norm(x, self.layer.num_groups, eps=self.layer.eps)
        return functional.layer_norm(x, list(self.layer.normalized_shape), eps=self.layer.eps)

    def sum_positions(self, values: Tensor) -> Tensor:
        """Sum over everything but the example and the parameter's own axes."""
        if isinstance(self.layer, nn.GroupNorm):
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        return values.reshape(len(values), -1, *self.layer.normalized_shape).sum(1)

    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Add s @ rows."""
        for name, rows in self.rows.items():
            self.gradient[name] += (factors[name] @ rows.flatten(1)).view(rows.shape[1:])
        del self.rows


class EmbeddingRule(ClippingRule):
    """Embeddings: |G|^2 = sum over pairs of positions with the same token of g_p . g_q; the sum is a scatter."""

    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Norms from the Gram matrix of the gradients, masked by equality of tokens."""
        self.tokens, self.g = x.flatten(1), g.flatten(1, -2)
        same = (self.tokens[:, :, None] == self.tokens[:, None, :]).to(g.dtype)
        inner = (torch.bmm(self.g, self.g.transpose(1, 2)) * same).sum((1, 2)).clamp_min(0)
        slack = gram_rounding(torch.linalg.vector_norm(self.g, dim=2), self.g.shape[1] + self.g.shape[2])
        return {"weight": inner + slack}

    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Scatter the scaled gradients to their tokens' rows."""
        scaled = (self.g * factors["weight"][:, None, None]).flatten(0, 1)
        self.gradient["weight"].index_add_(0, self.tokens.flatten(), scaled)
        del self.tokens, self.g


class RecurrentRule:
    """One direction of an LSTM layer: two affine maps, of inputs and of states before, with the gates' gradient."""

    def __init__(self, gradient: dict[str, Tensor]) -> None:
        self.gradient = gradient

    def read(self, run: DirectionRun, g: Tensor) -> Tensor:
        """|gradient|^2 of every example over both weights and both biases."""
        self.pages = {
            "ih": AffineNorms(run.inputs, g, bias="bias_ih" in self.gradient),
            "hh": AffineNorms(run.before, g, bias="bias_hh" in self.gradient),
        }
        both = [torch.stack(list(page.norms().values())).sum(0) for page in self.pages.values()]
        return both[0] + both[1]

    def add_clipped(self, factors: Tensor) -> None:
        """Add the clipped sums of both maps."""
        for name, page in self.pages.items():
            self.gradient[f"weight_{name}"] += page.weight_sum(factors)
            bias = page.bias_sum(factors)
            if bias is not None:
                self.gradient[f"bias_{name}"] += bias
        del self.pages


def rule_for(layer: nn.Module) -> Callable[[nn.Module, dict[str, Tensor]], ClippingRule] | None:
    """The scribe that can write this layer's books, or None. A subclass may do something else, so types are exact."""
    kind = type(layer)
    if kind in (nn.GroupNorm, nn.LayerNorm):
        return NormRule
    if kind is nn.Linear:
        return AffineRule
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        plain = layer.groups == 1 and size_pair(layer.dilation) == (1, 1) and layer.padding_mode == "zeros"
        return ConvolutionRule if plain and not isinstance(layer.padding, str) else None
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        plain = (
            layer.padding_idx is None and layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        )
        return EmbeddingRule if plain else None
    return None
