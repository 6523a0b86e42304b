"""Correlated noise by whole matrices: C, its inverse, every participation one after another, and noise row by row."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dense_matrix(column: Sequence[float], steps: int) -> Array:
    """The lower-triangular Toeplitz matrix of a first column; what it does not say is zero."""
    matrix = np.zeros((steps, steps))
    for row in range(steps):
        for at in range(row + 1):
            matrix[row, at] = column[row - at] if row - at < len(column) else 0.0
    return matrix


def allowed_participations(steps: int, separation: int, uses: int) -> Iterator[tuple[int, ...]]:
    """Every set of at most `uses` rounds of which no two are nearer than `separation`."""
    for count in range(1, uses + 1):
        for rounds in combinations(range(steps), count):
            if all(later - earlier >= separation for earlier, later in pairwise(rounds)):
                yield rounds


def largest_move(matrix: Array, separation: int, uses: int) -> float:
    """The largest norm that the columns of an allowed participation add up to."""
    found = allowed_participations(len(matrix), separation, uses)
    return float(max(np.linalg.norm(matrix[:, list(rounds)].sum(1)) for rounds in found))


def largest_row(matrix: Array, separation: int, uses: int) -> float:
    """The largest entry of what the columns of an allowed participation add up to."""
    found = allowed_participations(len(matrix), separation, uses)
    return float(max(matrix[:, list(rounds)].sum(1).max() for rounds in found))


def exact_square(column: Sequence[float], steps: int, separation: int, uses: int) -> Fraction:
    """|sum_(j < uses) C[:, j b]|^2 of the numbers as they are, without any rounding."""
    moved = [Fraction(0)] * steps
    for start in range(0, min(steps, uses * separation), separation):
        for lag, value in enumerate(column[: steps - start]):
            moved[start + lag] += Fraction(value)
    return sum((one * one for one in moved), Fraction(0))


def stream_bands(column: Sequence[float], rows: Array) -> Array:
    """n_t = z_t - sum_(i >= 1) c_i n_(t - i): the noise of banded strategies, from the last few noises."""
    made: list[Array] = []
    for row in rows:
        made.append(row - sum(c * made[-lag] for lag, c in enumerate(column) if 1 <= lag <= len(made)))
    return np.array(made)


def stream_buffers(weights: Sequence[float], decays: Sequence[float], rows: Array) -> Array:
    """n_t = z_t - sum_j w_j s_j, s_j <- th_j s_j + n_t: the noise of buffered strategies, from as many buffers."""
    buffers, made = [np.zeros_like(rows[0]) for _ in weights], []
    for row in rows:
        noise = row - sum(weight * buffer for weight, buffer in zip(weights, buffers, strict=True))
        buffers = [decay * buffer + noise for decay, buffer in zip(decays, buffers, strict=True)]
        made.append(noise)
    return np.array(made)


def sampled_delta(first: Array, second: Array, *, noise: float, rate: float, epsilon: float) -> float:
    """The larger hockey-stick divergence, both ways, of two hidden draws that move C x by `first` and `second`.

    By quadrature in the plane of the two vectors, under the law without the subject.
    """
    basis, _ = np.linalg.qr(np.stack([first, second], axis=1))
    moves = [np.zeros(2), basis.T @ first, basis.T @ second, basis.T @ (first + second)]
    chances = [(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate * rate]
    line = np.linspace(-14.0, 14.0, 1401)
    plane = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1)
    law = np.exp(-(plane**2).sum(-1) / 2) / (2 * np.pi) * (line[1] - line[0]) ** 2
    shifts = [move / noise for move in moves]
    ratio = sum(
        chance * np.exp(plane @ shift - shift @ shift / 2) for chance, shift in zip(chances, shifts, strict=True)
    )
    forward = (law * np.maximum(ratio - np.exp(epsilon), 0)).sum()
    return float(max(forward, (law * np.maximum(1 - np.exp(epsilon) * ratio, 0)).sum()))
