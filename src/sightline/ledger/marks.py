"""Sets of release numbers in one bit each, so that what an observer has seen of a long run fits in little memory."""

PAGE = 1024
"""So many numbers share one integer."""


class BitSet:
    """A set of numbers that only grows.

    >>> marks = BitSet()
    >>> marks.add(5000)
    >>> 5000 in marks, 4999 in marks
    (True, False)
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return bool(self._pages.get(number // PAGE, 0) >> number % PAGE & 1)

    def add(self, number: int) -> None:
        """Put a number in."""
        self._pages[number // PAGE] = self._pages.get(number // PAGE, 0) | 1 << number % PAGE
