"""Per-example gradients of one tensor from all its uses in a graph: their norms and their clipped sum.

A use of a tensor leaves one of three records for a chunk of B examples:

    OuterProducts   G_j = sum_p g_p a_p^T           matrices: linear maps, convolutions of patches, gates
    TableRows       G_j has row g_p at token_p      tables that are looked up
    a plain tensor  G_j itself, (B, *shape)         everything small: biases, norms, bare parameters

A tensor that is used several times has the sum of its records as its gradient, so they are joined *before* the norm is
taken: positions one after the other, rows added, and for a table that is the output matrix too (tied weights) with the
inner product of both, 2 sum_{u,s} g_s[token_u] (e_u . a_s). Norms are upper bounds whatever float32 loses: Gram sums
carry `gram_rounding`, instantiated rows are the very rows that are added up.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.training.clipping import square_norms
from sightline.training.fast.per_example_norms import SMALLEST, gram_rounding, outer_squares


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """G_j = sum_p g_p a_p^T, laid out (O, K); a is (B, P, K) and g is (B, P, O)."""

    a: Tensor
    g: Tensor

    def flipped(self) -> "OuterProducts":
        """The same for the transposed tensor."""
        return OuterProducts(self.g, self.a)


@dataclass(frozen=True, eq=False)
class TableRows:
    """G_j has g_p (B, P, D) added at row token_p (B, P)."""

    tokens: Tensor
    g: Tensor


Record = OuterProducts | TableRows | Tensor


def join_views(record: Record, views: int) -> Record:
    """Consecutive rows as views of one example, whose gradient is their mean."""
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
    """(B * views, P, K) -> (B, views * P, K)."""
    return values.reshape(-1, views * values.shape[1], values.shape[2])


def instantiate_rows(record: Record, shape: Sequence[int]) -> Tensor:
    """The gradients themselves, (B, *shape)."""
    if isinstance(record, OuterProducts):
        return torch.bmm(record.g.transpose(1, 2), record.a).view(-1, *shape)
    if isinstance(record, TableRows):
        batch, width = len(record.g), record.g.shape[2]
        places = record.tokens + torch.arange(batch, device=record.g.device)[:, None] * shape[0]
        rows = record.g.new_zeros(batch * shape[0], width)
        return rows.index_add_(0, places.flatten(), record.g.flatten(0, 1)).view(batch, *shape)
    return record.reshape(-1, *shape)


SMALL_MATRIX = 1 << 13
"""Gradients of matrices of so many numbers are instantiated always: they stay in the cache."""


def gram_pays(positions: int, inputs: int, outputs: int) -> bool:
    """Whether norms from Gram matrices are cheaper than instantiated gradients (measured on transformers)."""
    size = inputs * outputs
    return positions == 1 or (size > SMALL_MATRIX and positions * (inputs + outputs) < size)


class TensorGradients(ABC):
    """The gradients of one tensor for every example of a chunk."""

    @abstractmethod
    def square_norms(self) -> Tensor:
        """An upper bound of |G_j|^2, (B,)."""

    @abstractmethod
    def blank(self, broken: Tensor) -> None:
        """Forget what these examples have: a factor of zero does not make a NaN zero."""

    @abstractmethod
    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """Add sum_j s_j G_j to `total`, which has the tensor's shape."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many numbers an example takes here beside its records."""


class InstantiatedGradients(TensorGradients):
    """The gradients themselves."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.float().reshape(len(rows), -1)

    def square_norms(self) -> Tensor:
        """From the very rows that are added up."""
        return square_norms(self.rows)

    def blank(self, broken: Tensor) -> None:
        """Forget their rows."""
        self.rows = self.rows.masked_fill(broken[:, None], 0.0)

    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """s @ rows."""
        total += (factors @ self.rows).view(total.shape)

    @property
    def numbers(self) -> int:
        """One gradient."""
        return self.rows[:1].numel()


class OuterGradients(TensorGradients):
    """Sums of outer products, whose norms come from Gram matrices."""

    def __init__(self, a: Tensor, g: Tensor) -> None:
        self.a, self.g = a, g

    def square_norms(self) -> Tensor:
        """sum_{p,q} (a_p . a_q) (g_p . g_q), and what float32 may have lost of it.

        Lengths are read off the diagonals; what a square may have lost below the smallest float32 is added, so that a
        factor that underflows beside a large one leaves no gradient unclipped.
        """
        inputs, outputs = self.a.shape[2], self.g.shape[2]
        if self.a.shape[1] == 1:
            return outer_squares(self.a, self.g)
        products, others = (torch.bmm(one, one.transpose(1, 2)) for one in (self.a, self.g))
        a = (products.diagonal(dim1=1, dim2=2) + SMALLEST * inputs).sqrt()
        g = (others.diagonal(dim1=1, dim2=2) + SMALLEST * outputs).sqrt()
        inner = products.mul_(others).sum((1, 2), dtype=torch.float64).clamp_min(0)
        lost = SMALLEST * (outputs * a.sum(1).square() + inputs * g.sum(1).square())
        return inner + gram_rounding(a * g, self.a.shape[1] + inputs + outputs) + lost

    def blank(self, broken: Tensor) -> None:
        """Forget both factors."""
        self.a, self.g = (one.masked_fill(broken[:, None, None], 0.0) for one in (self.a, self.g))

    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """One matrix product with the narrower factor scaled."""
        a, g, scale = self.a, self.g, factors[:, None, None]
        a, g = (a * scale, g) if a.shape[2] < g.shape[2] else (a, g * scale)
        if a.stride(0) < a.stride(1):  # positions first in memory: add up in that order, without a copy
            a, g = a.transpose(0, 1), g.transpose(0, 1)
        total += (g.flatten(0, 1).t() @ a.flatten(0, 1)).view(total.shape)

    @property
    def numbers(self) -> int:
        """Two Gram matrices."""
        return 2 * self.a.shape[1] ** 2


class TableGradients(TensorGradients):
    """Rows of a table, those of the same token added up, so that their squares may be added too."""

    def __init__(self, tokens: Tensor, g: Tensor) -> None:
        batch, positions = tokens.shape
        ordered, order = tokens.sort(1)
        steps = torch.zeros_like(ordered)
        steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        places = torch.empty_like(ordered).scatter_(1, order, steps.cumsum(1))
        self.tokens = torch.zeros_like(tokens).scatter_(1, places, tokens)
        flat = (places + torch.arange(batch, device=g.device)[:, None] * positions).flatten()
        rows = g.new_zeros(batch * positions, g.shape[2]).index_add_(0, flat, g.flatten(0, 1))
        self.rows = rows.view(batch, positions, -1)

    def square_norms(self) -> Tensor:
        """The squares of the rows, one row for each token of an example."""
        return square_norms(self.rows)

    def blank(self, broken: Tensor) -> None:
        """Forget their rows."""
        self.rows = self.rows.masked_fill(broken[:, None, None], 0.0)

    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """Scatter the scaled rows to their tokens."""
        total.index_add_(0, self.tokens.flatten(), (self.rows * factors[:, None, None]).flatten(0, 1))

    @property
    def numbers(self) -> int:
        """Its rows."""
        return self.rows[:1].numel()


class TiedGradients(TensorGradients):
    """A table that is an output matrix as well: G = L + E, |G|^2 = |L|^2 + |E|^2 + 2 <L, E>."""

    def __init__(self, output: OuterGradients, table: TableGradients) -> None:
        self.output, self.table = output, table

    def square_norms(self) -> Tensor:
        """With the rounding of all three terms, which may cancel."""
        a, g, rows = self.output.a, self.output.g, self.table.rows
        chosen = torch.gather(g, 2, self.table.tokens[:, None, :].expand(-1, g.shape[1], -1))
        cross = 2 * (chosen * torch.bmm(a, rows.transpose(1, 2))).sum((1, 2), dtype=torch.float64)
        lengths = [torch.linalg.vector_norm(one, dim=2) for one in (a, g, rows)]
        sizes = torch.cat([lengths[0] * lengths[1], lengths[2]], 1)
        terms = sizes.shape[1] + a.shape[2] + g.shape[2]
        total = self.output.square_norms() + self.table.square_norms() + cross
        return total.clamp_min(0) + gram_rounding(sizes, terms)

    def blank(self, broken: Tensor) -> None:
        """Both parts."""
        self.output.blank(broken)
        self.table.blank(broken)

    def add_clipped(self, factors: Tensor, total: Tensor) -> None:
        """Both parts."""
        self.output.add_clipped(factors, total)
        self.table.add_clipped(factors, total)

    @property
    def numbers(self) -> int:
        """Both parts."""
        return self.output.numbers + self.table.numbers


def join_records(records: Sequence[Record], shape: Sequence[int]) -> TensorGradients:
    """All uses of one tensor together, in the form that is cheapest."""
    outer = [record for record in records if isinstance(record, OuterProducts)]
    table = [record for record in records if isinstance(record, TableRows)]
    if len(outer) + len(table) == len(records):
        if not outer:
            return table_of(table)
        a, g = join_all([one.a.float() for one in outer]), join_all([one.g.float() for one in outer])
        if gram_pays(a.shape[1], a.shape[2], g.shape[2]):
            output = OuterGradients(a, g)
            return TiedGradients(output, table_of(table)) if table else output
    rows = instantiate_rows(records[0], shape).float()
    for record in records[1:]:
        rows = rows + instantiate_rows(record, shape).float()
    return InstantiatedGradients(rows)


def table_of(records: Sequence[TableRows]) -> TableGradients:
    """All rows of a table together."""
    return TableGradients(join_all([one.tokens for one in records]), join_all([one.g.float() for one in records]))


def join_all(parts: Sequence[Tensor]) -> Tensor:
    """Positions one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)
