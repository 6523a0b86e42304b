"""The law of one Gaussian release, Poisson-sampled or not, put on a lattice from closed forms."""

import math

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from sightline.accounting.law import Array, Law

NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
BATCH = 8192
NARROW = 0.3
"""Cells narrower than this (in standard deviations) are integrated by quadrature: closed forms would cancel."""


def gaussian_law(noise_multiplier: float, step: float, tail: float, *, rate: float = 1.0) -> Law:
    r"""L = 1 - g + g X with X = exp(s N - s^2/2), s = 1 / noise_multiplier, split mean-preservingly on a lattice.

    Guarantees: dominates the exact law in convex order; at most about `tail` of P-mass at infinity and of Q-mass at
    zero.
    """
    s = 1.0 / noise_multiplier
    reach = float(-ndtri(tail))
    reach_above = float(-ndtri(min(tail / rate, 0.1)))
    lowest = math.exp(-s * reach - s * s / 2)
    if rate < 1 and rate * lowest < 256 * step * (1 - rate):
        lowest = 0.0
    log_top = s * reach_above + s * s / 2
    start = math.log1p(rate * (lowest - 1)) if rate < 1 else -s * reach - s * s / 2
    cells = max(1, math.ceil((log_sampled(log_top, rate) - start) / step))
    edges = log_edges(lowest, rate, step, cells) if rate < 1 else np.asarray(start + step * np.arange(cells + 1))
    return from_edges(edges, s, rate, Law(start, step, np.zeros(cells + 1)))


def log_sampled(log_ratio: float, rate: float) -> float:
    """log(1 - g + g e^x), also for large x."""
    if log_ratio > 30:
        return log_ratio + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-log_ratio))
    return math.log1p(rate * math.expm1(log_ratio))


def log_edges(lowest: float, rate: float, step: float, cells: int) -> Array:
    """log x at the cell ends: 1 - g + g x_j = (1 - g + g x_0) e^(j step), solved without cancellation."""
    steps = step * np.arange(cells + 1)
    odds = (1 - rate) / rate
    with np.errstate(divide="ignore", over="ignore"):
        if lowest == 0.0:
            near = np.log(odds) + np.log(np.expm1(np.minimum(steps, 600.0)))
        elif lowest > 0.5:
            near = math.log(lowest) + np.log1p((1 + odds / lowest) * np.expm1(np.minimum(steps, 600.0)))
        else:
            near = np.log(lowest * np.exp(np.minimum(steps, 600.0)) + odds * np.expm1(np.minimum(steps, 600.0)))
    return np.asarray(np.where(steps < 600.0, near, np.log(odds + lowest) + steps))


def from_edges(log_x: Array, s: float, rate: float, frame: Law) -> Law:
    """Split the mass of each cell of the lognormal between its two ends, and both tails as the law's ends ask."""
    u = log_x / s + s / 2
    lower, upper = cell_splits(u, s)
    mass = frame.mass.copy()
    mass[:-1] += lower
    mass[1:] += upper
    below, above = ndtr(u[0]), ndtr(-u[-1])
    at_lowest = float(below_share(u[0], s))
    mass[0] += at_lowest
    mass[-1] += above
    excess = call_above(float(u[-1]), s)
    return Law(frame.start, frame.step, mass, max(float(below) - at_lowest, 0.0), rate * excess)


def below_share(u: float, s: float) -> float:
    """E[X; X < x0] / x0: the part of the low tail that is kept at x0; the rest sits at zero."""
    if math.isinf(u):
        return 0.0
    return math.exp(float(log_normal_cdf(u - s)) - (s * u - s * s / 2))


def call_above(u: float, s: float) -> float:
    """E[(X - x)_+] at x = exp(s u - s^2/2): the P-mass that the top point cannot carry."""
    scale = math.exp(-((u - s) ** 2) / 2) / 2
    value = scale * float(erfcx((u - s) / math.sqrt(2)) - erfcx(u / math.sqrt(2)))
    return max(value, 0.0) * (1 + 1e-9)


def log_normal_cdf(u: float) -> float:
    """log Phi(u), exact far in the tail."""
    return float(log_ndtr(u))


def cell_splits(u: Array, s: float) -> tuple[Array, Array]:
    """Q-mass of each cell [u_j, u_j+1] sent to its lower and to its upper end."""
    left, right = u[:-1], u[1:]
    wide = ~(right - left <= NARROW)
    lower, upper = np.empty(len(left)), np.empty(len(left))
    lower[~wide], upper[~wide] = by_quadrature(left[~wide], right[~wide], s)
    lower[wide], upper[wide] = by_closed_form(left[wide], right[wide], s)
    return lower, upper


def by_quadrature(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Gauss-Legendre over narrow cells, some thousand at a time: every term is positive, nothing cancels."""
    lower, upper = np.empty(len(left)), np.empty(len(left))
    for begin in range(0, len(left), BATCH):
        part = slice(begin, begin + BATCH)
        lower[part], upper[part] = integrate_cells(left[part], right[part], s)
    return lower, upper


def integrate_cells(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Mass sent to the lower and the upper end of each cell."""
    half = (right - left) / 2
    inside = left[:, None] + half[:, None] * (1 + NODES)
    density = np.exp(-inside * inside / 2) * WEIGHTS * (half / math.sqrt(2 * math.pi))[:, None]
    climb = np.expm1(s * (inside - left[:, None])) / np.expm1(2 * s * half)[:, None]
    upper = (density * climb).sum(axis=1)
    return density.sum(axis=1) - upper, upper


def by_closed_form(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Differences of the normal distribution function over wide cells; the lowest may reach down to X = 0."""
    q, p = normal_between(left, right), normal_between(left - s, right - s)
    with np.errstate(over="ignore"):
        low = np.where(np.isinf(left), 0.0, np.exp(s * left - s * s / 2))
        high = np.exp(s * right - s * s / 2)
    with np.errstate(invalid="ignore"):
        upper = np.where(np.isinf(high), 0.0, (p - low * q) / (high - low))
    upper = np.clip(upper, 0.0, q)
    return q - upper, upper


def normal_between(left: Array, right: Array) -> Array:
    """Phi(right) - Phi(left), from the tail that keeps the digits."""
    flip = left > 0
    return np.asarray(np.where(flip, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left)))
