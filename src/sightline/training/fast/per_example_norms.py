"""Ghost clipping in one backward pass: per-example norms and clipped sums from inputs and output gradients of a layer.

For an affine map y_p = W a_p + b applied at positions p = 1..P of every example (P = 1 dense, P = pixels convolution,
P = tokens in a sequence) the gradient of one example is G = sum_p g_p a_p^T. Two ways to its norm:

    instantiate   G itself, for a chunk of examples: P K O products, K O memory an example
    Gram          |G|^2 = sum_{p,q} (a_p . a_q) (g_p . g_q): P^2 (K + O) products, P^2 memory (P = 1: |a|^2 |g|^2)

and the clipped sum_j s_j G_j is s @ G, or one matrix product with the gradients scaled by s. No second backward pass.
References: Goodfellow 2015; Li et al. 2022 (ghost clipping); Bu et al. 2023 (in one backward pass).
"""

import torch
from torch import Tensor

from sightline.training.clipping import LARGEST, square_norms

ROUNDING = 2.0**-22
"""Relative error of a float32 product and sum, with room to spare."""
SMALLEST = 2.0**-126
"""What float32 may lose of a square or a product: its smallest normal number."""


def outer_squares(a: Tensor, g: Tensor, *, bias: bool = False) -> Tensor:
    """|g_j a_j^T|^2 = |a_j|^2 |g_j|^2 of every example, with a bias + |g_j|^2; in double, where no factor underflows.

    A factor longer than `LARGEST` counts as not finite: beside one that is small enough the product would look harmless
    though float32 loses digits of what is summed.
    """
    inputs, outputs = square_norms(a), square_norms(g)
    products = (inputs + 1.0 if bias else inputs) * outputs
    return torch.where(torch.maximum(inputs, outputs) <= LARGEST**2, products, torch.inf)


def gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether P^2 (K + O) products beat writing and reading K O numbers an example."""
    return positions == 1 or 2 * positions * (inputs + outputs) < inputs * outputs


def gram_rounding(sizes: Tensor, terms: int) -> Tensor:
    """How far a Gram sum may lie below |G|^2 when its terms cancel: u (P + K + O) (sum_p |a_p| |g_p|)^2.

    Inner products of K and O numbers in float32 are off by K 2^-24 and O 2^-24 of |a_p| |a_q| and |g_p| |g_q|, whatever
    the order, their product by 2^-24 more; it is summed in double precision. u is 2^-22, which also leaves room for
    lengths that are short themselves. Added to the squared norm, so that an example whose positions cancel is clipped a
    little more, never less.
    """
    return ROUNDING * terms * sizes.sum(1).square_()


class AffineNorms:
    """The records of one affine layer for one chunk: a (B, P, K) inputs, g (B, P, O) output gradients.

    `a` may be given as its transpose view; the weight's gradient is laid out (O, K).
    """

    def __init__(self, a: Tensor, g: Tensor, *, bias: bool) -> None:
        self.a, self.g = a, g
        self.rows: Tensor | None = None
        self.bias_rows = g.sum(1) if bias and g.shape[1] > 1 else (g[:, 0] if bias else None)

    def join_views(self, views: int) -> "AffineNorms":
        """Consecutive rows as one example: positions of one view after those of the other."""
        a, g = (rows.reshape(-1, views * rows.shape[1], rows.shape[2]) for rows in (self.a, self.g))
        return AffineNorms(a, g, bias=self.bias_rows is not None)

    def norms(self) -> dict[str, Tensor]:
        """|G|^2 of every example, and |bias gradient|^2."""
        cheap = gram_is_cheaper(self.a.shape[1], self.a.shape[2], self.g.shape[2])
        weight = self.gram_norms() if cheap else self.row_norms()
        return (
            {"weight": weight} if self.bias_rows is None else {"weight": weight, "bias": square_norms(self.bias_rows)}
        )

    def gram_norms(self) -> Tensor:
        """From the two Gram matrices."""
        if self.a.shape[1] == 1:
            return outer_squares(self.a, self.g)
        inner = torch.bmm(self.a, self.a.transpose(1, 2)) * torch.bmm(self.g, self.g.transpose(1, 2))
        a, g = torch.linalg.vector_norm(self.a, dim=2), torch.linalg.vector_norm(self.g, dim=2)
        terms = self.a.shape[1] + self.a.shape[2] + self.g.shape[2]
        lost: Tensor = a.sum(1).square() * (SMALLEST * self.g.shape[2])
        lost += g.sum(1).square() * (SMALLEST * self.a.shape[2])
        return inner.sum((1, 2), dtype=torch.float64).clamp_min(0) + gram_rounding(a * g, terms) + lost

    def blank(self, broken: Tensor) -> None:
        """Forget what these examples have: a factor of zero does not make a NaN zero."""
        away = broken[:, None, None]
        self.a, self.g = self.a.masked_fill(away, 0.0), self.g.masked_fill(away, 0.0)
        self.rows = None if self.rows is None else self.rows.masked_fill(away, 0.0)
        self.bias_rows = None if self.bias_rows is None else self.bias_rows.masked_fill(away[:, 0], 0.0)

    def row_norms(self) -> Tensor:
        """From the instantiated gradients, kept for the sum."""
        self.rows = torch.bmm(self.g.transpose(1, 2), self.a)
        return square_norms(self.rows)

    def weight_sum(self, factors: Tensor) -> Tensor:
        """sum_j s_j G_j, (O, K)."""
        if self.rows is not None:
            return (factors @ self.rows.flatten(1)).view(self.rows.shape[1:])
        scaled = (self.g * factors[:, None, None]).flatten(0, 1)
        return scaled.t() @ self.a.flatten(0, 1)

    def bias_sum(self, factors: Tensor) -> Tensor | None:
        """sum_j s_j (bias gradient)_j."""
        return None if self.bias_rows is None else factors @ self.bias_rows


class RowNorms:
    """The record of one layer whose gradients are written down: rows (B, weights) in the weight's own order."""

    def __init__(self, rows: Tensor, bias_rows: Tensor | None) -> None:
        self.rows, self.bias_rows = rows, bias_rows

    def join_views(self, views: int) -> "RowNorms":
        """Consecutive rows added up as one example."""
        bias = None if self.bias_rows is None else self.bias_rows.view(-1, views, self.bias_rows.shape[1]).sum(1)
        return RowNorms(self.rows.view(-1, views, self.rows.shape[1]).sum(1), bias)

    def norms(self) -> dict[str, Tensor]:
        """|G|^2 of every example, and |bias gradient|^2."""
        weight = square_norms(self.rows)
        return (
            {"weight": weight} if self.bias_rows is None else {"weight": weight, "bias": square_norms(self.bias_rows)}
        )

    def blank(self, broken: Tensor) -> None:
        """Forget what these examples have."""
        self.rows = self.rows.masked_fill(broken[:, None], 0.0)
        self.bias_rows = None if self.bias_rows is None else self.bias_rows.masked_fill(broken[:, None], 0.0)

    def weight_sum(self, factors: Tensor) -> Tensor:
        """sum_j s_j G_j, (weights,)."""
        return factors @ self.rows

    def bias_sum(self, factors: Tensor) -> Tensor | None:
        """sum_j s_j (bias gradient)_j."""
        return None if self.bias_rows is None else factors @ self.bias_rows


def unfold_patches(x: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """im2col in channels_last: x (B, C, H, W) -> (B, P, kh * kw * C), one row per output pixel.

    Guarantees: columns are ordered (kh, kw, C), so a row is kh contiguous runs of the padded image.
    """
    image = x.permute(0, 2, 3, 1)
    if any(padding):
        image = torch.nn.functional.pad(image, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    image = image.contiguous()
    batch, height, width, channels = image.shape
    rows, columns = (height - size[0]) // stride[0] + 1, (width - size[1]) // stride[1] + 1
    line = width * channels
    view = image.as_strided(
        (batch, rows, columns, size[0], size[1] * channels),
        (height * line, stride[0] * line, stride[1] * channels, line, 1),
    )
    return view.reshape(batch, rows * columns, size[0] * size[1] * channels)


def patches_by_pixel(x: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """im2col for few channels: x (B, C, H, W) -> (C * kh * kw, B, P), one row per weight, in the weight's own order.

    Guarantees: a row is copied in runs as long as the output is wide, which makes it fast where a pixel holds one or
    three numbers; strides that divide the kernel are taken apart into phases first, so that their runs are whole too.
    """
    rows, columns = output_size(x, size, stride, padding)
    if any(padding):
        x = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    apart = stride if stride_divides(stride, size) else (1, 1)
    image = split_phases(x, apart)
    channels, _, _, batch, height, width = image.shape
    step, line = (stride[0] // apart[0], stride[1] // apart[1]), batch * height * width
    view = image.as_strided(
        (channels, size[0] // apart[0], apart[0], size[1] // apart[1], apart[1], batch, rows, columns),
        (image.stride(0), width, apart[1] * line, 1, line, height * width, step[0] * width, step[1]),
    )
    return view.reshape(channels * size[0] * size[1], batch, rows * columns)


def stride_divides(stride: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether the stride divides the kernel on both axes."""
    return size[0] % stride[0] == 0 and size[1] % stride[1] == 0


def fold_patches(
    rows: Tensor, shape: tuple[int, ...], size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The transpose of `patches` for a stride that divides the kernel: (B * P, kh * kw * C) -> (B, C, H, W).

    Every weight's rows are added at the pixels they were copied from, all weights of one phase at once.
    """
    batch, channels, height, width = shape
    down, right = (
        (height + 2 * padding[0] - size[0]) // stride[0] + 1,
        (width + 2 * padding[1] - size[1]) // stride[1] + 1,
    )
    tall, wide = size[0] // stride[0], size[1] // stride[1]
    parts = rows.view(batch, down, right, tall, stride[0], wide, stride[1], channels)
    lines, columns = -(-(height + 2 * padding[0]) // stride[0]), -(-(width + 2 * padding[1]) // stride[1])
    image = rows.new_zeros(batch, lines, stride[0], columns, stride[1], channels)
    for i in range(tall):
        for j in range(wide):
            image[:, i : i + down, :, j : j + right] += parts[:, :, :, i, :, j].transpose(2, 3)
    whole = image.view(batch, lines * stride[0], columns * stride[1], channels)
    cut = whole[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return cut.contiguous().permute(0, 3, 1, 2)


def output_size(x: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a convolution's output."""
    height, width = ((x.shape[axis + 2] + 2 * padding[axis] - size[axis]) // stride[axis] + 1 for axis in range(2))
    return height, width


def split_phases(x: Tensor, apart: tuple[int, int]) -> Tensor:
    """(B, C, H, W) -> contiguous (C, sh, sw, B, H / sh, W / sw): every sh-th line and sw-th column together."""
    down, right = -x.shape[2] % apart[0], -x.shape[3] % apart[1]
    if down or right:
        x = torch.nn.functional.pad(x, (0, right, 0, down))
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // apart[0], apart[0], width // apart[1], apart[1])
    return split.permute(1, 3, 5, 0, 2, 4).contiguous()
