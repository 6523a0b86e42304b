"""Row counts of private passes, such that an example's contribution has the same bits in any batch and position.

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

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

FIRST, LEAST = 32, 4
"""The row count that others are compared with, and the smallest that is tried, memory permitting."""
# A float32 sum of n clipped rows in passes of R is off by at most (R + n / R) 2^-24 n C: long passes and many passes
# both cost accuracy.
MOST = 256
"""The largest pass. A longer float32 sum over its rows would round more."""
SIZES = tuple(quarters << power for power in range(8) for quarters in (4, 5, 6, 7) if quarters << power <= MOST)
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
        self.one: dict[int, Tensor | None] = {}
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
        if threads not in self.one:
            self.one[threads] = self._find_one()
        one = self.one[threads]
        if one is None:
            return size == 1
        if (threads, size) not in self.known:
            self.known[threads, size] = bool((self.trial(size) == one).all())
        return self.known[threads, size]

    def _find_one(self) -> Tensor | None:
        for size in reversed([size for size in self.sizes if 1 < size <= max(FIRST, LEAST)]):
            found = self.trial(size)
            if bool((found == found[:, :1]).all()):
                return found[:, :1]
        return None


class OneSize(Passes):
    """Passes of one size, whose positions were tried elsewhere."""

    def __init__(self, size: int) -> None:
        self.sizes = (size,)

    def is_alike(self, size: int) -> bool:
        """Return whether it is that size."""
        return size in self.sizes


def fill_up(rows: Tensor, size: int, *, channels_last: bool = False) -> Tensor:
    """Return the rows followed by zeros, always copied and in one memory order: kernels are chosen by that too."""
    if channels_last:
        _, channels, height, width = rows.shape
        whole = rows.new_zeros(size, height, width, channels).permute(0, 3, 1, 2)
    else:
        whole = rows.new_zeros(size, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole
