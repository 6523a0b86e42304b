"""Cohorts of a fixed size by counting: every subset, every client's own update, quadrature over the noise."""

import math
from itertools import combinations

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import norm


def cohort_sums(updates, size):
    """The sum of every cohort of that size: one row each, all equally likely."""
    return np.array([updates[list(cohort)].sum(axis=0) for cohort in combinations(range(len(updates)), size)])


def line_delta(first, second, noise, epsilon):
    """E[(p - e^eps q)_+] for mixtures of normals around (weight, place): exact between the roots of p - e^eps q."""

    def bell(u):
        return np.exp(-u * u / 2)

    def excess(x, of=bell):
        p, q = (sum(weight * of((x - place) / noise) for weight, place in some) for some in (first, second))
        return p - math.exp(epsilon) * q

    places = [place for _, place in [*first, *second]]
    x = np.linspace(min(places) - 12.1 * noise, max(places) + 12.3 * noise, 1503)  # no root is likely on it
    sign = np.sign(excess(x))
    turns = np.flatnonzero(sign[1:] * sign[:-1] < 0)
    roots = [brentq(excess, x[i], x[i + 1], xtol=1e-14) for i in turns]
    ends = np.array([x[0], *roots, x[-1]])
    return float(np.maximum(np.diff(excess(ends, ndtr)), 0.0).sum())


def plane_delta(first, second, noise, epsilon, points=300):
    """The same around equally likely points of the plane, by midpoints: accurate to some 1e-7."""
    both = np.concatenate([first, second])
    axes = [np.linspace(both[:, i].min() - 7 * noise, both[:, i].max() + 7 * noise, points) for i in (0, 1)]
    cell = math.prod(axis[1] - axis[0] for axis in axes)

    def density(some):
        across, along = (norm.pdf(axis[:, None], some[None, :, i], noise) for i, axis in enumerate(axes))
        return across @ along.T / len(some)

    return float(np.maximum(density(first) - math.exp(epsilon) * density(second), 0.0).sum() * cell)


def cohort_delta(updates, neighbour, size, noise, epsilon):
    """The larger delta of both directions when client 0 has another update."""
    changed = np.array(updates, dtype=float)
    changed[0] = neighbour
    first, second = cohort_sums(np.array(updates, dtype=float), size), cohort_sums(changed, size)
    delta = plane_delta
    if first.shape[1] == 1:
        first, second = ([(1 / len(sums), place) for place in sums[:, 0]] for sums in (first, second))
        delta = line_delta
    return max(delta(first, second, noise, epsilon), delta(second, first, noise, epsilon))


def worst_delta(share, noise, epsilon, *, zero_out):
    """Both directions of the pairs that the statement names (in units of the clip norm)."""
    above, below = [(1 - share, -1.0), (share, 1.0)], [(1 - share, 1.0), (share, 0.0 if zero_out else -1.0)]
    neighbour = [(1 - share, -1.0), (share, 0.0)] if zero_out else [(1.0, -1.0)]
    return max(line_delta(above, neighbour, noise, epsilon), line_delta(below, [(1.0, 1.0)], noise, epsilon))
