"""The curves of the partitioning paper's figures: its baseline, its bound, and ours."""

import math

import numpy as np

from papers import published
from sightline import accounting
from sightline.accounting.moments import ORDERS
from sightline.accounting.renyi import forward_moments
from sightline.events import Allocation, Gaussian


def split_epsilons(noises, parts, rate, steps, delta):
    """Epsilon over noise: (no amplification, the paper's bound, ours)."""
    baseline = [published.classic_epsilon(published.poisson_moments(z, rate, steps), delta) for z in noises]
    paper = [published.classic_epsilon(published.split_moments(z, parts, rate, steps), delta) for z in noises]
    ours = [accounting.split(noise=z, parts=parts, rate=rate, steps=steps).epsilon(delta=delta) for z in noises]
    return baseline, paper, ours


def split_noises(step_counts, parts, rate, epsilon, delta):
    """Noise over iterations at a fixed budget: (no amplification, the paper's bound, ours)."""
    budget = {"epsilon": epsilon, "delta": delta}
    baseline, paper, ours = [], [], []
    for steps in step_counts:
        baseline.append(
            published.calibrate_published(lambda z, t=steps: published.poisson_moments(z, rate, t), **budget)
        )
        paper.append(
            published.calibrate_published(lambda z, t=steps: published.split_moments(z, parts, rate, t), **budget)
        )
        scheme = accounting.split(noise=1.0, parts=parts, rate=rate, steps=steps)
        ours.append(scheme.calibrated(**budget).noise_multiplier)
    return baseline, paper, ours


def divergences(steps, uses, noise, orders):
    """Renyi divergence over the order: (Poisson, the paper's bound (3), ours: the lesser of blocks and (3))."""
    scale = ORDERS[orders] - 1
    poisson = published.poisson_moments(noise, uses / steps, steps)[orders] / scale
    paper = published.balanced_moments(noise, steps, uses)[orders] / scale
    ours = forward_moments(Allocation(steps, uses, Gaussian(noise)))[orders] / scale
    return poisson, paper, ours


def balanced_epsilons(noises, steps, uses, delta):
    """Epsilon over noise: (Poisson by moments, the paper's bound (3), Poisson by law, balanced by law: ours)."""
    rate = uses / steps
    poisson = [published.classic_epsilon(published.poisson_moments(z, rate, steps), delta) for z in noises]
    paper = [published.classic_epsilon(published.balanced_moments(z, steps, uses), delta) for z in noises]
    law = [accounting.poisson(noise=z, rate=rate, steps=steps).epsilon(delta=delta) for z in noises]
    ours = [accounting.balanced(noise=z, steps=steps, uses=uses).epsilon(delta=delta) for z in noises]
    return poisson, paper, law, ours


def deltas_over_steps(step_counts, rate, noise, epsilon):
    """delta over T: paper's Poisson and balanced by moments, composed epochs of ten, and the two laws."""

    def classic(moments):
        exponent = moments[2:] - (ORDERS[2:] - 1) * epsilon
        return math.exp(min(0.0, float(np.min(exponent))))

    curves = {
        name: [] for name in ("Poisson, moments", "balanced (3)", "balanced (3), epochs of 10", "Poisson, law", "ours")
    }
    for steps in step_counts:
        uses = round(rate * steps)
        curves["Poisson, moments"].append(classic(published.poisson_moments(noise, rate, steps)))
        curves["balanced (3)"].append(classic(published.balanced_moments(noise, steps, uses)))
        epochs = published.balanced_moments(noise, 10, round(10 * rate), steps // 10)
        curves["balanced (3), epochs of 10"].append(classic(epochs))
        law = accounting.poisson(noise=noise, rate=rate, steps=steps)
        curves["Poisson, law"].append(law.delta(epsilon=epsilon))
        ours = accounting.balanced(noise=noise, steps=steps, uses=uses)
        curves["ours"].append(ours.delta(epsilon=epsilon))
    return curves
