"""Logarithms of integer moments E[L^a], a = 0..MOST_ORDER, under sampling, splitting and schedules.

Everything is a sum of positive terms, so working in logarithms loses no digits.
"""

import math

import numpy as np
from scipy.special import gammaln

from sightline.accounting.likelihood_ratio import Array

MOST_ORDER = 256
ORDERS = np.arange(MOST_ORDER + 1, dtype=np.float64)
LOG_FACTORIAL = gammaln(ORDERS + 1)


def sampled_moments(inner: Array, rate: float) -> Array:
    """Return moments under Poisson sampling: log E[(1 - g + g L)^a] = log sum_j C(a, j) (1 - g)^(a - j) g^j E[L^j]."""
    if rate == 1:
        return inner
    a, j = ORDERS[:, None], ORDERS[None, :]
    terms = log_choose() + (a - j) * math.log1p(-rate) + j * math.log(rate) + inner[None, :]
    return pin_moments(log_sum(np.where(j <= a, terms, -np.inf)))


def mean_moments(inner: Array, copies: int) -> Array:
    """Return moments under splitting, log E[((L_1 + ... + L_d) / d)^a].

    Equals log(a! [x^a] (sum_j x^j / j! E[L^j])^d / d^a).
    """
    series = inner - LOG_FACTORIAL
    power = np.where(ORDERS == 0, 0.0, -np.inf)
    rest = copies
    while rest:
        if rest & 1:
            power = log_convolve(power, series)
        rest >>= 1
        if rest:
            series = log_convolve(series, series)
    return pin_moments(power + LOG_FACTORIAL - ORDERS * math.log(copies))


def overlap_moments(steps: int, uses: int, noise_multiplier: float) -> Array:
    """Return eq. (3) of the partitioning paper for k of T steps: two random schedules overlap in l steps.

    (a - 1) log sum_l C(k, l) C(T - k, k - l) / C(T, k) e^(a l / (2 z^2)): Corollary 3.14, forward direction only.
    """
    overlap = np.arange(max(0, 2 * uses - steps), uses + 1, dtype=np.float64)
    log_chance = log_binomial(uses, overlap) + log_binomial(steps - uses, uses - overlap)
    log_chance = log_chance - log_binomial(steps, np.array(float(uses)))
    terms = log_chance[None, :] + ORDERS[:, None] * overlap[None, :] / (2 * noise_multiplier**2)
    return pin_moments((ORDERS - 1) * log_sum(terms))


def cohort_moments(inner: Array, rate: float, centred: Array | None = None) -> Array:
    """Return moments of cohorts without replacement, replace-one (Wang, Balle and Kasiviswanathan 2019, Theorem 9).

    log(1 + g^2 C(a, 2) min(4 (e^D2 - 1), 2 e^D2) + sum_{j >= 3} g^j C(a, j) B_j), with B_j the lesser of 2 e^((j - 1)
    D_j) and, where the centred moments E|L - 1|^j are known (the theorem's tight form), of 4 sqrt(E|L - 1|^(2
    floor(j/2)) E|L - 1|^(2 ceil(j/2))).
    """
    second = float(inner[2])
    small = math.log(4 * math.expm1(second)) if 0 < second < 1 else math.inf
    factor = np.where(ORDERS == 2, min(small, math.log(2) + second), math.log(2) + inner)
    if centred is not None:
        even = 2 * (np.arange(len(ORDERS)) // 2), 2 * ((np.arange(len(ORDERS)) + 1) // 2)
        sharp = math.log(4) + (centred[even[0]] + centred[even[1]]) / 2
        factor = np.where(ORDERS >= 3, np.minimum(factor, sharp), factor)
    a, j = ORDERS[:, None], ORDERS[None, :]
    terms = np.where((j <= a) & (j >= 2), log_choose() + j * math.log(rate) + factor[None, :], -np.inf)
    return pin_moments(np.logaddexp(0.0, log_sum(terms)))


def centred_moments(noise_multiplier: float) -> Array:
    """Return log E|X - 1|^j for X = exp(s N - s^2/2), j = 0..MOST_ORDER, by quadrature; every term is positive."""
    s = 1 / noise_multiplier
    u, log_weight = quadrature_panels(MOST_ORDER * s + 14.0)
    exponent = s * u - s * s / 2
    with np.errstate(divide="ignore"):
        # Above 30, |e^x - 1| equals e^x in doubles, and e^x itself may overflow.
        near = np.log(np.abs(np.expm1(np.minimum(exponent, 30.0))))
    distance = np.where(exponent < 30, near, exponent)
    moments = [log_sum((log_weight + j * distance)[None, :])[0] if j else 0.0 for j in ORDERS]
    return np.asarray(moments) + 1e-9


def sampled_gaussian_moments(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Return log E[(1 - g + g X)^a] for X = exp(s N - s^2/2) at real orders a by quadrature; every term is positive."""
    s = 1 / noise_multiplier
    u, log_weight = quadrature_panels(float(orders.max()) * s + 14.0)
    ratio = np.log1p(-rate) if rate < 1 else -np.inf
    log_ratio = np.logaddexp(ratio, math.log(rate) + s * u - s * s / 2)
    return np.asarray(np.maximum(log_sum(log_weight[None, :] + orders[:, None] * log_ratio[None, :]), 0.0) + 1e-9)


def quadrature_panels(upper: float) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes over [-14, upper] and log of their weights under the standard normal density."""
    edges = np.arange(-14.0, upper, 0.25)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    u = (edges[:, None] + 0.125 * (1 + nodes)[None, :]).ravel()
    return u, np.log(np.tile(0.125 * weights, len(edges))) - u * u / 2 - math.log(2 * math.pi) / 2


def log_choose() -> Array:
    """Return log C(a, j) for all pairs of orders (meaningful where j <= a)."""
    a, j = ORDERS[:, None], ORDERS[None, :]
    return np.asarray(LOG_FACTORIAL[:, None] - LOG_FACTORIAL[None, :] - gammaln(np.maximum(a - j, 0) + 1))


def log_binomial(total: float, chosen: Array) -> Array:
    """Return log C(n, k)."""
    return np.asarray(gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1))


def log_sum(terms: Array) -> Array:
    """Return log of the sum of exponentials along rows; a row of minus infinities stays minus infinity."""
    top = terms.max(axis=1)
    finite = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        summed = np.log(np.exp(terms - finite[:, None]).sum(axis=1)) + finite
    return np.asarray(np.where(top == np.inf, np.inf, summed))


def log_convolve(one: Array, other: Array) -> Array:
    """Return the coefficients of the product of two power series, all in logarithms."""
    columns = np.arange(len(ORDERS))
    index = columns[:, None] - columns[None, :]
    terms = np.where(index >= 0, one[None, :] + other[np.maximum(index, 0)], -np.inf)
    return log_sum(terms)


def pin_moments(moments: Array) -> Array:
    """Return the moments with orders 0 and 1 set to one (log 0), the others at least one and rounded up."""
    # E_Q[L] = 1 exactly, so rounding must not touch orders 0 and 1; higher orders are raised by more than the sums can
    # lose.
    return np.asarray(np.where(ORDERS < 2, 0.0, np.maximum(moments, 0.0) * (1 + 1e-12) + 1e-13))
