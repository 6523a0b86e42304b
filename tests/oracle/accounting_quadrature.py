"""Slow readable twins of the accountant: quadrature over the Gaussians themselves, no lattice, no transform."""

import math
from functools import lru_cache

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm


@lru_cache
def legendre(nodes):
    """Quadrature points on [-1, 1] and their weights."""
    return np.polynomial.legendre.leggauss(nodes)


def ratios(strength, nodes=1600):
    """Values of X = exp(s N - s^2/2) at quadrature points, and their weights."""
    points, weights = legendre(nodes)
    return np.exp(strength * 10 * points - strength**2 / 2), weights * 10 * norm.pdf(10 * points)


def call(strength, strike):
    """E[(X - K)_+], also for strikes below zero."""
    strike = np.asarray(strike, dtype=float)
    safe = np.maximum(strike, 1e-300)
    d = -np.log(safe) / strength + strength / 2
    value = norm.cdf(d) - safe * norm.cdf(d - strength)
    return np.where(strike <= 0, 1 - strike, value)


def mean_call(parts, strength, strike):
    """E[(mean of d copies of X - K)_+] by nested quadrature: the last copy in closed form."""
    x, w = ratios(strength)
    if parts == 1:
        return float(call(strength, strike))
    if parts == 2:
        return float(np.dot(w, call(strength, 2 * strike - x)) / 2)
    inner = call(strength, 3 * strike - x[:, None] - x[None, :])
    return float(w @ inner @ w / 3)


def split_delta(parts, noise, rate, epsilon):
    """Both directions of delta for one Poisson-sampled split release; d = 1, 2, 3."""
    s = 1 / noise
    forward_strike = (math.exp(epsilon) - 1 + rate) / rate
    backward_strike = (math.exp(-epsilon) - 1 + rate) / rate
    forward = rate * mean_call(parts, s, forward_strike)
    put = mean_call(parts, s, backward_strike) - 1 + backward_strike if backward_strike > 0 else 0.0
    return forward, rate * math.exp(epsilon) * put


def log_moment(parts, strength, order):
    """log E[(mean of d copies of X)^order] for any real order, d = 1, 2, 3."""
    x, w = ratios(strength, 160)
    if parts == 1:
        return math.log(np.dot(w, x**order))
    if parts == 2:
        return math.log(w @ ((x[:, None] + x[None, :]) / 2) ** order @ w)
    total = sum(wi * (w @ ((xi + x[:, None] + x[None, :]) / 3) ** order @ w) for xi, wi in zip(x, w, strict=True))
    return math.log(total)


def log_inverse_mean(parts, strength):
    """log E[1 / mean of d copies of X], for any d: 1/S is the integral of e^(-tS) over t, and copies multiply."""
    points, weights = np.polynomial.hermite_e.hermegauss(150)
    x = np.exp(strength * points - strength**2 / 2)

    def integrand(log_t):
        return math.exp(log_t) * float(np.dot(weights / math.sqrt(2 * math.pi), np.exp(-math.exp(log_t) * x))) ** parts

    return math.log(parts * quad(integrand, -40, 12, limit=500, epsabs=1e-13)[0])
