"""Per-example norms and clipped sums from one backward pass, for layers and for tensors with several uses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from sightline.training.clipping import LARGEST, square_norms

# Norms here are upper bounds: each form adds what its float32 products may have lost. An example may be clipped a
# little more than necessary, never less.
ROUNDING = 2.0**-22
"""Relative error of a float32 product and sum, with a margin."""
SUM_ROUNDING = 2.0**-23
"""Relative error of each of the float32 sums of scaled outer products, with a margin."""
DOUBLE_ROUNDING = 2.0**-50
"""Relative error of a product and sum in double precision, with a margin."""
FLOAT32_TERMS = 1 << 10
"""Gram sums with more terms are formed in double precision: their float32 bound would exceed 2^-12 of the square."""
# The choice depends on shapes alone. If it depended on one example's numbers, the others could be rounded otherwise.
SMALLEST = 2.0**-126
"""The smallest normal float32 number: the most that underflow can take from a square or product."""


def outer_squares(a: Tensor, g: Tensor, *, bias: bool = False) -> Tensor:
    """Return |g_j a_j^T|^2 = |a_j|^2 |g_j|^2 of every example, plus |g_j|^2 for a bias, in double precision.

    A factor longer than `LARGEST` counts as non-finite: next to a small one the product would look harmless, although
    float32 loses digits of what is summed.
    """
    inputs, outputs = square_norms(a), square_norms(g)
    products = (inputs + 1.0 if bias else inputs) * outputs
    return torch.where(torch.maximum(inputs, outputs) <= LARGEST**2, products, torch.inf)


def gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether P^2 (K + O) products cost less than writing and reading K O numbers per example."""
    return positions == 1 or 2 * positions * (inputs + outputs) < inputs * outputs


def gram_rounding(sizes: Tensor, terms: int) -> Tensor:
    """Return how far a Gram sum may lie below |G|^2 when its terms cancel: u (P + K + O) (sum_p |a_p| |g_p|)^2.

    Inner products of K and O numbers in float32 are off by K 2^-24 and O 2^-24 of |a_p| |a_q| and |g_p| |g_q|, in any
    order, their product by 2^-24 more; it is summed in double precision. u is 2^-22, which also leaves room for lengths
    that are themselves too short. It is added to the squared norm, so an example whose positions cancel is clipped a
    little more, never less.
    """
    return ROUNDING * terms * sizes.sum(1).square_()


class AffineNorms:
    """Records of one affine layer for one chunk: a (B, P, K) inputs, g (B, P, O) output gradients.

    `a` may be a transposed view; the weight's gradient is laid out (O, K).
    """

    def __init__(self, a: Tensor, g: Tensor, *, bias: bool) -> None:
        self.a, self.g = a, g
        self.rows: Tensor | None = None
        self.bias_rows = g.sum(1) if bias and g.shape[1] > 1 else (g[:, 0] if bias else None)

    def join_views(self, views: int) -> "AffineNorms":
        """Return the record with consecutive rows as one example: positions of one view after those of another."""
        a, g = (rows.reshape(-1, views * rows.shape[1], rows.shape[2]) for rows in (self.a, self.g))
        return AffineNorms(a, g, bias=self.bias_rows is not None)

    def norms(self) -> dict[str, Tensor]:
        """Return |G|^2 of every example, and |bias gradient|^2."""
        cheap = gram_is_cheaper(self.a.shape[1], self.a.shape[2], self.g.shape[2])
        weight = self.gram_norms() if cheap else self.row_norms()
        return (
            {"weight": weight} if self.bias_rows is None else {"weight": weight, "bias": square_norms(self.bias_rows)}
        )

    def gram_norms(self) -> Tensor:
        """Return |G|^2 from the two Gram matrices."""
        if self.a.shape[1] == 1:
            return outer_squares(self.a, self.g)
        inner = torch.bmm(self.a, self.a.transpose(1, 2)) * torch.bmm(self.g, self.g.transpose(1, 2))
        a, g = torch.linalg.vector_norm(self.a, dim=2), torch.linalg.vector_norm(self.g, dim=2)
        terms = self.a.shape[1] + self.a.shape[2] + self.g.shape[2]
        # Underflow may take up to SMALLEST from every product; its bound is added.
        lost: Tensor = a.sum(1).square() * (SMALLEST * self.g.shape[2])
        lost += g.sum(1).square() * (SMALLEST * self.a.shape[2])
        return inner.sum((1, 2), dtype=torch.float64).clamp_min(0) + gram_rounding(a * g, terms) + lost

    def blank(self, broken: Tensor) -> None:
        """Zero these examples' records: a factor of zero does not turn NaN into zero."""
        away = broken[:, None, None]
        self.a, self.g = self.a.masked_fill(away, 0.0), self.g.masked_fill(away, 0.0)
        self.rows = None if self.rows is None else self.rows.masked_fill(away, 0.0)
        self.bias_rows = None if self.bias_rows is None else self.bias_rows.masked_fill(away[:, 0], 0.0)

    def row_norms(self) -> Tensor:
        """Return |G|^2 from instantiated gradients, which are kept for the sum."""
        self.rows = torch.bmm(self.g.transpose(1, 2), self.a)
        return square_norms(self.rows)

    def weight_sum(self, factors: Tensor) -> Tensor:
        """Return sum_j s_j G_j, (O, K)."""
        if self.rows is not None:
            return (factors @ self.rows.flatten(1)).view(self.rows.shape[1:])
        scaled = (self.g * factors[:, None, None]).flatten(0, 1)
        return scaled.t() @ self.a.flatten(0, 1)

    def bias_sum(self, factors: Tensor) -> Tensor | None:
        """Return sum_j s_j (bias gradient)_j."""
        return None if self.bias_rows is None else factors @ self.bias_rows


class RowNorms:
    """Record of one layer with instantiated gradients: rows (B, weights) in the weight's own order."""

    def __init__(self, rows: Tensor, bias_rows: Tensor | None) -> None:
        self.rows, self.bias_rows = rows, bias_rows

    def join_views(self, views: int) -> "RowNorms":
        """Return the record with consecutive rows summed as one example."""
        bias = None if self.bias_rows is None else self.bias_rows.view(-1, views, self.bias_rows.shape[1]).sum(1)
        return RowNorms(self.rows.view(-1, views, self.rows.shape[1]).sum(1), bias)

    def norms(self) -> dict[str, Tensor]:
        """Return |G|^2 of every example, and |bias gradient|^2."""
        weight = square_norms(self.rows)
        return (
            {"weight": weight} if self.bias_rows is None else {"weight": weight, "bias": square_norms(self.bias_rows)}
        )

    def blank(self, broken: Tensor) -> None:
        """Zero these examples' rows."""
        self.rows = self.rows.masked_fill(broken[:, None], 0.0)
        self.bias_rows = None if self.bias_rows is None else self.bias_rows.masked_fill(broken[:, None], 0.0)

    def weight_sum(self, factors: Tensor) -> Tensor:
        """Return sum_j s_j G_j, (weights,)."""
        return factors @ self.rows

    def bias_sum(self, factors: Tensor) -> Tensor | None:
        """Return sum_j s_j (bias gradient)_j."""
        return None if self.bias_rows is None else factors @ self.bias_rows


def unfold_patches(x: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Return im2col in channels_last: x (B, C, H, W) -> (B, P, kh * kw * C), one row per output pixel.

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
    """Return im2col for few channels: x (B, C, H, W) -> (C * kh * kw, B, P), one row per weight in its own order.

    Guarantees: a row is copied in runs as long as the output is wide, which is fast where a pixel holds one or three
    numbers. Strides that divide the kernel are split into phases first, so their runs are contiguous too.
    """
    rows, columns = output_size(x, size, stride, padding)
    if any(padding):
        x = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    phases = stride if stride_divides(stride, size) else (1, 1)
    image = split_phases(x, phases)
    channels, _, _, batch, height, width = image.shape
    step, line = (stride[0] // phases[0], stride[1] // phases[1]), batch * height * width
    view = image.as_strided(
        (channels, size[0] // phases[0], phases[0], size[1] // phases[1], phases[1], batch, rows, columns),
        (image.stride(0), width, phases[1] * line, 1, line, height * width, step[0] * width, step[1]),
    )
    return view.reshape(channels * size[0] * size[1], batch, rows * columns)


def stride_divides(stride: tuple[int, int], size: tuple[int, int]) -> bool:
    """Return whether the stride divides the kernel on both axes."""
    return size[0] % stride[0] == 0 and size[1] % stride[1] == 0


def fold_patches(
    rows: Tensor, shape: tuple[int, ...], size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Return the transpose of `unfold_patches` for a stride that divides the kernel: rows -> (B, C, H, W).

    Every weight's rows, (B * P, kh * kw * C), are added at the pixels they were copied from, one phase at a time.
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
    """Return height and width of a convolution's output."""
    height, width = ((x.shape[axis + 2] + 2 * padding[axis] - size[axis]) // stride[axis] + 1 for axis in range(2))
    return height, width


def split_phases(x: Tensor, phases: tuple[int, int]) -> Tensor:
    """Return (B, C, H, W) as contiguous (C, sh, sw, B, H / sh, W / sw): every sh-th line and sw-th column together."""
    down, right = -x.shape[2] % phases[0], -x.shape[3] % phases[1]
    if down or right:
        x = torch.nn.functional.pad(x, (0, right, 0, down))
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // phases[0], phases[0], width // phases[1], phases[1])
    return split.permute(1, 3, 5, 0, 2, 4).contiguous()


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """G_j = sum_p g_p a_p^T, laid out (O, K); a is (B, P, K) and g is (B, P, O)."""

    a: Tensor
    g: Tensor

    def flipped(self) -> "OuterProducts":
        """Return the record of the transposed tensor."""
        return OuterProducts(self.g, self.a)


@dataclass(frozen=True, eq=False)
class TableRows:
    """G_j has g_p (B, P, D) added at row token_p (B, P)."""

    tokens: Tensor
    g: Tensor


Record = OuterProducts | TableRows | Tensor


def join_views(record: Record, views: int) -> Record:
    """Return the record with consecutive rows as views of one example, whose gradient is their mean."""
    if views == 1:
        return record
    if isinstance(record, OuterProducts):
        return OuterProducts(join_positions(record.a, views), join_positions(record.g, views) / views)
    if isinstance(record, TableRows):
        return TableRows(
            record.tokens.reshape(-1, views * record.tokens.shape[1]), join_positions(record.g, views) / views
        )
    return record.view(-1, views, *record.shape[1:]).mean(1)


def join_positions(values: Tensor, views: int) -> Tensor:
    """Return (B * views, P, K) as (B, views * P, K)."""
    return values.reshape(-1, views * values.shape[1], values.shape[2])


def instantiate_rows(record: Record, shape: Sequence[int]) -> Tensor:
    """Return the gradients themselves, (B, *shape)."""
    if isinstance(record, OuterProducts):
        return torch.bmm(record.g.transpose(1, 2), record.a).view(-1, *shape)
    if isinstance(record, TableRows):
        batch, width = len(record.g), record.g.shape[2]
        indices = record.tokens + torch.arange(batch, device=record.g.device)[:, None] * shape[0]
        rows = record.g.new_zeros(batch * shape[0], width)
        return rows.index_add_(0, indices.flatten(), record.g.flatten(0, 1)).view(batch, *shape)
    return record.reshape(-1, *shape)


SMALL_MATRIX = 1 << 13
"""Gradients of matrices up to this size are always instantiated: they stay in the cache."""


def gram_pays(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether Gram matrices are cheaper than instantiated gradients (measured on transformers)."""
    size = inputs * outputs
    return positions == 1 or (size > SMALL_MATRIX and positions * (inputs + outputs) < size)


class TensorGradients(ABC):
    """Gradients of one tensor for every example of a chunk."""

    @abstractmethod
    def square_norms(self) -> Tensor:
        """Return an upper bound of |G_j|^2, (B,)."""

    @abstractmethod
    def blank(self, broken: Tensor) -> None:
        """Zero these examples' gradients: a factor of zero does not turn NaN into zero."""

    @abstractmethod
    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """Add sum_j s_j G_j to `total`, which has the tensor's shape."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Numbers per example held here, beside its records."""


class InstantiatedGradients(TensorGradients):
    """Gradients written out in full."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.float().reshape(len(rows), -1)

    @override
    def square_norms(self) -> Tensor:
        return square_norms(self.rows)

    @override
    def blank(self, broken: Tensor) -> None:
        self.rows = self.rows.masked_fill(broken[:, None], 0.0)

    @override
    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        total += (factors @ self.rows).view(total.shape)

    @property
    @override
    def numbers(self) -> int:
        return self.rows[:1].numel()


class OuterGradients(TensorGradients):
    """Sums of outer products, with norms from Gram matrices."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g

    def square_norms(self) -> Tensor:
        """Return sum_{p,q} (a_p . a_q) (g_p . g_q), and at least what float32 may have lost of it."""
        inputs, outputs = self.a.shape[2], self.g.shape[2]
        if self.a.shape[1] == 1:
            return outer_squares(self.a, self.g)
        terms = self.a.shape[1] + inputs + outputs
        if terms > FLOAT32_TERMS:
            return self.double_squares(terms)
        products, others = (torch.bmm(factor, factor.transpose(1, 2)) for factor in (self.a, self.g))
        # Lengths are read off the diagonals. What a square may have lost to underflow is added, so that a factor that
        # underflows next to a large one leaves no gradient unclipped.
        a = (products.diagonal(dim1=1, dim2=2) + SMALLEST * inputs).sqrt()
        g = (others.diagonal(dim1=1, dim2=2) + SMALLEST * outputs).sqrt()
        inner = products.mul_(others).sum((1, 2), dtype=torch.float64).clamp_min(0)
        lost = SMALLEST * (outputs * a.sum(1).square() + inputs * g.sum(1).square())
        return inner + gram_rounding(a * g, terms) + lost

    def double_squares(self, terms: int) -> Tensor:
        """Return the squared norms from Gram matrices in double precision.

        Guarantees: no less than the square of the float32 sum that `add_clipped` adds before it is scaled, and no less
        than `gram_rounding`. So positions that cancel are clipped as much as with float32 Gram matrices.
        """
        products, others = (torch.bmm(factor, factor.transpose(1, 2)) for factor in (self.a.double(), self.g.double()))
        a, g = products.diagonal(dim1=1, dim2=2).sqrt(), others.diagonal(dim1=1, dim2=2).sqrt()
        sizes = a * g
        floor = gram_rounding(sizes, terms)
        whole = sizes.sum(1)
        inner = products.mul_(others).sum((1, 2)).clamp_min(0) + DOUBLE_ROUNDING * terms * whole.square()
        # The norm is exact here, but the gradient's own sum over the positions is still rounded to float32.
        squares = (inner.sqrt() + SUM_ROUNDING * (self.a.shape[1] + 2) * whole).square()
        longest = torch.maximum(a, g).amax(1)
        return torch.where(longest <= LARGEST, torch.maximum(squares, floor), torch.inf)

    @override
    def blank(self, broken: Tensor) -> None:
        self.a, self.g = (factor.masked_fill(broken[:, None, None], 0.0) for factor in (self.a, self.g))

    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """Add one matrix product, with the narrower factor scaled."""
        a, g, scale = self.a, self.g, factors[:, None, None]
        a, g = (a * scale, g) if a.shape[2] < g.shape[2] else (a, g * scale)
        # Positions come first in memory: sum in that order, without a copy.
        if a.stride(0) < a.stride(1):
            a, g = a.transpose(0, 1), g.transpose(0, 1)
        total += (g.flatten(0, 1).t() @ a.flatten(0, 1)).view(total.shape)

    @property
    @override
    def numbers(self) -> int:
        return 2 * self.a.shape[1] ** 2


class TableGradients(TensorGradients):
    """Rows of a table with those of equal tokens summed, so that their squares may be added."""

    def __init__(self, tokens: Tensor, g: Tensor) -> None:
        batch, positions = tokens.shape
        # Equal tokens share a row of the gradient. Their rows are summed first, since |a + b|^2 is not |a|^2 + |b|^2.
        ordered, order = tokens.sort(1)
        steps = torch.zeros_like(ordered)
        steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        indices = torch.empty_like(ordered).scatter_(1, order, steps.cumsum(1))
        self.tokens = torch.zeros_like(tokens).scatter_(1, indices, tokens)
        flat = (indices + torch.arange(batch, device=g.device)[:, None] * positions).flatten()
        rows = g.new_zeros(batch * positions, g.shape[2]).index_add_(0, flat, g.flatten(0, 1))
        self.rows = rows.view(batch, positions, -1)

    def square_norms(self) -> Tensor:
        """Return the squared norm of the rows, one row per distinct token of an example."""
        return square_norms(self.rows)

    @override
    def blank(self, broken: Tensor) -> None:
        self.rows = self.rows.masked_fill(broken[:, None, None], 0.0)

    @override
    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        total.index_add_(0, self.tokens.flatten(), (self.rows * factors[:, None, None]).flatten(0, 1))

    @property
    @override
    def numbers(self) -> int:
        return self.rows[:1].numel()


class TiedGradients(TensorGradients):
    """A table that is also an output matrix: G = L + E, |G|^2 = |L|^2 + |E|^2 + 2 <L, E>."""

    def __init__(self, output: OuterGradients, table: TableGradients) -> None:
        self.output, self.table = output, table

    def square_norms(self) -> Tensor:
        """Return the squared norm with a bound on the rounding of all three terms, which may cancel."""
        a, g, rows = self.output.a, self.output.g, self.table.rows
        chosen = torch.gather(g, 2, self.table.tokens[:, None, :].expand(-1, g.shape[1], -1))
        cross = 2 * (chosen * torch.bmm(a, rows.transpose(1, 2))).sum((1, 2), dtype=torch.float64)
        lengths = [torch.linalg.vector_norm(factor, dim=2) for factor in (a, g, rows)]
        sizes = torch.cat([lengths[0] * lengths[1], lengths[2]], 1)
        terms = sizes.shape[1] + a.shape[2] + g.shape[2]
        total = self.output.square_norms() + self.table.square_norms() + cross
        return total.clamp_min(0) + gram_rounding(sizes, terms)

    @override
    def blank(self, broken: Tensor) -> None:
        self.output.blank(broken)
        self.table.blank(broken)

    @override
    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        self.output.add_clipped(factors, total)
        self.table.add_clipped(factors, total)

    @property
    @override
    def numbers(self) -> int:
        return self.output.numbers + self.table.numbers


def join_records(records: Sequence[Record], shape: Sequence[int]) -> TensorGradients:
    """Combine all uses of one tensor in the cheapest form."""
    outer = [record for record in records if isinstance(record, OuterProducts)]
    table = [record for record in records if isinstance(record, TableRows)]
    if len(outer) + len(table) == len(records):
        if not outer:
            return table_of(table)
        a, g = join_all([record.a.float() for record in outer]), join_all([record.g.float() for record in outer])
        if gram_pays(a.shape[1], a.shape[2], g.shape[2]):
            output = OuterGradients(a, g)
            return TiedGradients(output, table_of(table)) if table else output
    # Uses are summed before the norm is taken: the clip must bound the whole gradient of the tensor, not each use.
    rows = instantiate_rows(records[0], shape).float()
    for record in records[1:]:
        rows = rows + instantiate_rows(record, shape).float()
    return InstantiatedGradients(rows)


def table_of(records: Sequence[TableRows]) -> TableGradients:
    """Combine all rows of a table."""
    return TableGradients(
        join_all([record.tokens for record in records]), join_all([record.g.float() for record in records])
    )


def join_all(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along positions."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)
