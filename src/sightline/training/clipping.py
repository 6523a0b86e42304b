"""Clip factors, sums of clipped rows, and row counts of private passes.

A clipped row is at most C long, float32 rounding included. An example's contribution has the same bits in any batch and
at any position of it.

Kernels choose the order of a sum by the shapes they are given. A product of 10 rows may be summed in another order than
one of 9, and where large terms cancel, the last bit of a sum is the whole result: one more example moved what the
others contribute by 9 C (`Linear(784, 10)`, from 9 to 10 rows). So a batch is cut into passes with row counts that a
trial, on this machine and for this model, has shown to give every row the same bits at every position. The last pass is
filled up with zeros, whose clip factor is zero.

The trial gives a pass equal examples and compares their squared norms, tensor by tensor, bit for bit. Squares are
summed in double precision: if any input or output gradient of a layer differs in its last bit, they differ too. A sum
of random numbers in another order differs in its last bit about every second time, and a pass has many sums. It is
assumed that the order depends on shapes, not on the numbers. A pass of one row has one position and needs no trial.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.flat import CPU, Slot

SLACK = 1.0 - 2.0**-18
"""Rows are scaled onto SLACK * C. The float32 rounding of the clip factor, of its product with a row, and the error of
a norm are below 2^-18 together."""

PIECE = 1 << 17
"""Numbers squared in double precision at once, so that they stay in the cache."""

LARGEST = 2.0**63
"""Larger norms count as non-finite. Up to here, products of norms, factors and rows neither overflow nor underflow."""


@dataclass(frozen=True)
class Balls:
    """Groups of tensors that are clipped separately: every tensor belongs to one ball with its own radius."""

    clip_norms: tuple[float, ...]
    ball_of: Mapping[str, int]
    """Tensor name -> index of its ball."""

    def columns(self, slots: Sequence[Slot], device: torch.device = CPU) -> list[Tensor]:
        """Return the positions of each ball's tensors in the flat vector."""
        result: list[list[Tensor]] = [[] for _ in self.clip_norms]
        for slot in slots:
            result[self.ball_of[slot.name]].append(torch.arange(slot.start, slot.stop, device=device))
        return [
            torch.cat(indices) if indices else torch.empty(0, dtype=torch.long, device=device) for indices in result
        ]


Clip = float | Balls
"""One radius for the whole gradient, or balls."""


def factors_of(
    squares: Sequence[Mapping[str, Tensor]], clip: Clip, examples: int
) -> tuple[Tensor | None, Callable[[str], Tensor]]:
    """Return (mask of non-finite rows or None, tensor name -> clip factors) from squared norms by layer and tensor.

    Factors of non-finite rows, and of all rows from `examples` on, are zero. None means that all rows are finite.
    """
    radii = clip.clip_norms if isinstance(clip, Balls) else (clip,)
    ball_of: Callable[[str], int] = clip.ball_of.__getitem__ if isinstance(clip, Balls) else lambda name: 0
    norms: dict[int, Tensor] = {}
    for ball in range(len(radii)):
        own = [square for layer in squares for name, square in layer.items() if ball_of(name) == ball]
        if own:
            norms[ball] = (own[0] if len(own) == 1 else torch.stack(own).sum(0)).sqrt()
    # A row that is non-finite in one ball counts as zero in all of them. The comparison is written so that NaN fails
    # it.
    broken = torch.stack([~(norm <= LARGEST) for norm in norms.values()]).any(0)
    some_broken = bool(broken.any())
    factors = {ball: clip_factors(norm, radii[ball]) for ball, norm in norms.items()}
    for factor in factors.values():
        factor[examples:] = 0.0
        if some_broken:
            factor[broken] = 0.0
    return broken if some_broken else None, lambda name: factors[ball_of(name)]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """Return min(1, C / norm) as float32, and zero where the norm is not finite.

    >>> clip_factors(torch.tensor([0.5, float("nan")]), 1.0)
    tensor([1., 0.])
    """
    # 1e-30 avoids 0 / 0: a zero row gets the factor 1.
    factors = torch.clamp(SLACK * clip_norm / norms.clamp_min(1e-30), max=1.0)
    return torch.where(norms <= LARGEST, factors, torch.zeros_like(norms)).float()


def square_norms(rows: Tensor) -> Tensor:
    """Return |row|^2 of every row (B, ...), summed in double precision: the relative error is at most d 2^-53.

    On devices other than the CPU, some of which lack double precision, it sums by sixteens: the relative error is at
    most (1 + 15 k) 2^-24 with k nested sums, 5.5e-6 for up to 2^24 numbers. torch's own float32 norm adds squares one
    after the other: it is short by 2.4e-4 on rows of 65,536 numbers made for it, and by 3e-3 on 42 million random ones.
    """
    rows = rows.flatten(1)
    if rows.device.type != "cpu":
        return sum_by_sixteens(rows * rows)
    # A norm that is too short would let a row longer than C through, and epsilon would be too small.
    if rows.numel() <= PIECE:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return norms.square_()
    step = PIECE // rows.shape[1]
    if step:
        return torch.cat([square_norms(part) for part in torch.split(rows, step)])
    return torch.stack([square_norms(part) for part in torch.split(rows, max(1, PIECE // len(rows)), 1)]).sum(0)


def sum_by_sixteens(terms: Tensor) -> Tensor:
    """Return the sum of every row, sixteen numbers at a time."""
    while terms.shape[1] > 1:
        terms = torch.nn.functional.pad(terms, (0, -terms.shape[1] % 16)).view(len(terms), 16, -1).sum(1)
    return terms.sum(1)


def row_norms(rows: Tensor) -> Tensor:
    """Return |row| of every row; see `square_norms`."""
    return square_norms(rows).sqrt_()


def clipped_rows(gradients: Tensor, clip_norm: float) -> Tensor:
    """Return sum_j g_j min(1, C / |g_j|) over the rows; a non-finite row contributes zero.

    >>> clipped_rows(torch.tensor([[0.5, 0.0], [float("inf"), 1.0]]), 1.0)
    tensor([0.5000, 0.0000])
    """
    factors = clip_factors(row_norms(gradients), clip_norm)
    if gradients.device.type != "cpu":
        return scaled_sum(gradients, factors)
    # A factor of zero is not enough: 0 * inf is NaN, so non-finite rows are blanked before the product.
    if not bool((factors > 0).all()):
        gradients = torch.where(factors[:, None] > 0, gradients, torch.zeros_like(gradients))
    return factors @ gradients


def scaled_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """Return sum_j factor_j row_j; rows with factor zero contribute nothing, whatever they hold.

    Guarantees: no synchronisation with the device; no product below float32 precision, which matrix products on devices
    may have.
    """
    return torch.where(factors[:, None] > 0, rows, torch.zeros_like(rows)).mul_(factors[:, None]).sum(0)


def clipped_rows_apart(gradients: Tensor, clip: Balls, slots: Sequence[Slot]) -> Tensor:
    """Return the sum of rows with every ball clipped to its own radius; a row non-finite anywhere contributes zero."""
    finite = row_norms(gradients) <= LARGEST
    if gradients.device.type != "cpu" or not bool(finite.all()):
        gradients = torch.where(finite[:, None], gradients, torch.zeros_like(gradients))
    total = gradients.new_zeros(gradients.shape[1])
    for columns, clip_norm in zip(clip.columns(slots, gradients.device), clip.clip_norms, strict=True):
        total[columns] = clipped_rows(gradients[:, columns], clip_norm)
    return total


FIRST, LEAST = 32, 4
"""The row count that others are compared with, and the smallest that is tried, memory permitting."""
# A float32 sum of n clipped rows in passes of R is off by at most (R + n / R) 2^-24 n C: long passes and many passes
# both cost accuracy.
LONGEST = 256
"""The largest pass. A longer float32 sum over its rows would round more."""
SIZES = tuple(quarters << power for power in range(8) for quarters in (4, 5, 6, 7) if quarters << power <= LONGEST)
"""The row counts that are tried; at most a fifth of a pass is padding."""

Trial = Callable[[int], Tensor]
"""Number of equal examples -> (numbers, examples): values that must have the same bits in every column."""


class Passes:
    """A partition of batches into passes of at most `most` examples.

    Guarantees: an example's numbers have the same bits in all passes ever returned, as far as `trial` can tell. If no
    row count passes the trial, every example has a pass of its own.
    """

    def __init__(self, trial: Trial, most: int) -> None:
        self.trial = trial
        self.sizes = tuple(size for size in SIZES if size <= most) or (max(1, most),)
        self.expected: dict[int, Tensor | None] = {}
        """Number of threads -> the numbers of one example, from the first size whose positions agree."""
        self.known: dict[tuple[int, int], bool] = {}
        """(Number of threads, size) -> whether an example has these numbers at every position."""

    def split(self, examples: int) -> Iterator[tuple[slice, int]]:
        """Yield (examples, size of their pass) in order; a pass may be larger than its number of examples."""
        start = 0
        while start < examples:
            size = self.fit_size(examples - start)
            stop = min(examples, start + size)
            yield slice(start, stop), size
            start = stop

    def fit_size(self, wanted: int) -> int:
        """Return the smallest size that fits this many examples, or the largest there is."""
        for size in (*(size for size in self.sizes if size >= wanted), *reversed(self.sizes)):
            if self.is_alike(size):
                return size
        return 1

    def is_alike(self, size: int) -> bool:
        """Return whether every position in passes of this size gives an example the same bits as all other passes."""
        # Kernels split their work by the number of threads, so each number has its own trial.
        threads = torch.get_num_threads()
        if threads not in self.expected:
            self.expected[threads] = self._find_expected()
        expected = self.expected[threads]
        if expected is None:
            return size == 1
        if (threads, size) not in self.known:
            self.known[threads, size] = bool((self.trial(size) == expected).all())
        return self.known[threads, size]

    def _find_expected(self) -> Tensor | None:
        for size in reversed([size for size in self.sizes if 1 < size <= max(FIRST, LEAST)]):
            result = self.trial(size)
            if bool((result == result[:, :1]).all()):
                return result[:, :1]
        return None


def fill_up(rows: Tensor, size: int, *, channels_last: bool = False) -> Tensor:
    """Return the rows followed by zeros, always copied and in one memory order: kernels are chosen by that too."""
    if channels_last:
        _, channels, height, width = rows.shape
        whole = rows.new_zeros(size, height, width, channels).permute(0, 3, 1, 2)
    else:
        whole = rows.new_zeros(size, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole
