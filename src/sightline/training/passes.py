"""Row counts of private passes: what an example adds has the same bits whoever else is in the batch, and wherever.

Kernels for products choose the order of their sums by the shapes that they are given. A product of 10 rows may be added
up in another order than one of 9, and where large terms cancel the last bit of a sum is the whole result: one example
more moved what the others add by 9 C (`Linear(784, 10)`, from 9 to 10 rows). So a batch is cut into passes of row
counts of which it was tried, on this machine and for this model, that every row has the same bits in all of them and at
every place. The last pass is filled up with zeros, whose clip factor is zero.

The trial gives a pass equal examples and compares their squared norms, tensor by tensor, bit for bit. The squares are
summed in double precision: where any input or output gradient of a layer differs in its last bit they differ too. A sum
of random numbers in another order differs in its last bit about every second time, and a pass has many sums. That the
order depends on shapes, and not on the numbers, is assumed. A pass of one row has one place: it needs no trial.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

FIRST, LEAST = 32, 4
"""The row count that others are compared with, and the smallest that is tried, where there is memory for them."""
MOST = 256
"""The largest pass: a longer float32 sum over its rows would be rounded more."""
SIZES = tuple(quarters << power for power in range(8) for quarters in (4, 5, 6, 7) if quarters << power <= MOST)
"""The row counts that are tried: at most a fifth of a pass are zeros."""

Trial = Callable[[int], Tensor]
"""Number of equal examples -> (numbers, examples): what must have the same bits in every column."""


class Passes:
    """How batches are cut into passes of at most `most` examples.

    Guarantees: an example's numbers have the same bits in all passes that are ever given out, as far as `trial` can
    tell; where it finds no such row count, every example has a pass of its own.
    """

    def __init__(self, trial: Trial, most: int) -> None:
        self.trial = trial
        self.sizes = tuple(size for size in SIZES if size <= most) or (max(1, most),)
        self.one: dict[int, Tensor | None] = {}
        """By number of threads: the numbers of one example in passes of the first size that has places alike."""
        self.known: dict[tuple[int, int], bool] = {}
        """By number of threads and size: whether an example has these numbers at every place."""

    def split(self, examples: int) -> Iterator[tuple[slice, int]]:
        """(examples, size of their pass), one after the other; a pass may be larger than its examples are many."""
        start = 0
        while start < examples:
            size = self.fit_size(examples - start)
            stop = min(examples, start + size)
            yield slice(start, stop), size
            start = stop

    def fit_size(self, wanted: int) -> int:
        """The smallest size that has room for so many examples, or the largest that there is."""
        for size in (*(size for size in self.sizes if size >= wanted), *reversed(self.sizes)):
            if self.is_alike(size):
                return size
        return 1

    def is_alike(self, size: int) -> bool:
        """Whether every place of passes of this size has the bits that an example has in all other passes."""
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
    """Passes of one size, whose places were tried elsewhere."""

    def __init__(self, size: int) -> None:
        self.sizes = (size,)

    def is_alike(self, size: int) -> bool:
        """Whether it is that size."""
        return size in self.sizes


def fill_up(rows: Tensor, size: int, *, channels_last: bool = False) -> Tensor:
    """The rows and zeros after them, always in memory of their own and in one order: kernels are chosen by that too."""
    if channels_last:
        _, channels, height, width = rows.shape
        whole = rows.new_zeros(size, height, width, channels).permute(0, 3, 1, 2)
    else:
        whole = rows.new_zeros(size, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole
