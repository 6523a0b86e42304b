"""The line search against trying everything, and its limits."""

import itertools
import math

import numpy as np
import pytest

from sightline.algorithms.hierarchy.control_search import (
    Prospects,
    Weights,
    candidate_counts,
    candidate_intervals,
    search_choice,
)


def random_prospects(rng, trusted, untrusted):
    shape = (len(trusted), len(untrusted))
    return Prospects(trusted, untrusted, rng.random(shape) + 0.1, rng.random(shape) + 0.1, rng.random(shape) + 0.1)


def brute_force(p, w, *, left, taus, planned_tau, planned_steps):
    """Problem P written out, every candidate in turn."""
    found = []
    whole = planned_steps / planned_tau
    for tau, i, j in itertools.product(taus, range(len(p.trusted)), range(len(p.untrusted))):
        value = (
            w.energy * (left / tau) * p.energy[i, j] / (whole * p.energy[-1, -1])
            + w.delay * (left / tau) * p.delay[i, j] / (whole * p.delay[-1, -1])
            + w.accuracy * tau * p.noise[i, j] / (planned_tau * p.noise[-1, -1])
        )
        found.append((value, tau, p.trusted[i], p.untrusted[j]))
    return min(found)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_better_than_what_it_finds(seed):
    rng = np.random.default_rng(seed)
    p = random_prospects(rng, candidate_counts(int(rng.integers(1, 7))), candidate_counts(int(rng.integers(0, 7))))
    weights = Weights(*rng.uniform(0, 3, 3).tolist())
    settings = {"left": int(rng.integers(1, 400)), "taus": range(2, 41, 2), "planned_tau": 20, "planned_steps": 400}
    value, tau, trusted, untrusted = brute_force(p, weights, **settings)
    found = search_choice(p, weights, **settings)
    assert (found.tau, found.trusted, found.untrusted) == (tau, trusted, untrusted)
    assert found.objective == pytest.approx(value, rel=1e-12)


def smooth(most=5, trusted=5, untrusted=5):
    """A network like the paper's: costs grow with the devices, noise falls with them."""
    rows, columns = np.array(candidate_counts(most), float)[:, None], np.array(candidate_counts(most), float)[None, :]
    cost = 10 + 0.5 * (trusted * rows + untrusted * columns)
    noise = trusted / rows**2 + untrusted / columns
    return Prospects(candidate_counts(most), candidate_counts(most), cost, cost / 10, noise)


def choose(weights, left=400):
    return search_choice(smooth(), weights, left=left, taus=range(4, 41, 4), planned_tau=20, planned_steps=400)


def test_dear_energy_means_long_intervals_and_few_devices_and_dear_accuracy_the_opposite():
    """Figures 8 and 10: what the weights do."""
    cheap, dear = choose(Weights(0.1, 0, 1)), choose(Weights(20, 0, 1))
    assert dear.tau > cheap.tau
    assert dear.trusted <= cheap.trusted
    assert choose(Weights(1, 0, 20)).tau < choose(Weights(1, 0, 0.1)).tau
    assert choose(Weights(1, 0, 20)).untrusted > choose(Weights(1, 0, 0.05)).untrusted
    assert choose(Weights(0, 20, 1)).tau > choose(Weights(0, 0.1, 1)).tau


def test_without_weights_on_costs_everybody_takes_part_in_the_shortest_interval():
    found = choose(Weights(0, 0, 1))
    assert (found.tau, found.trusted, found.untrusted) == (4, 5, 5)


def test_intervals_fit_into_what_is_left_and_into_the_rounds_that_are_left():
    for left, rounds_left, tau_max, k in itertools.product((1, 7, 40, 400), (1, 3, 20), (4, 40, 41), (1, 4)):
        taus = list(candidate_intervals(left=left, rounds_left=rounds_left, tau_max=tau_max, aggregations=k))
        assert taus
        assert all(tau % k == 0 and k <= tau <= max(k, tau_max) for tau in taus)
        if tau_max * rounds_left >= left + k * rounds_left:
            assert all(tau * rounds_left >= left for tau in taus)
        assert all(tau < left + k for tau in taus)


def test_many_devices_are_searched_in_few_steps():
    found = candidate_counts(10**6)
    assert len(found) <= 24
    assert (found[0], found[-1]) == (1, 10**6)
    assert list(found) == sorted(set(found))


def test_costs_that_are_nothing_do_not_count():
    nothing = np.zeros((1, 3))
    p = Prospects((0,), (1, 2, 3), nothing, nothing, np.array([[3.0, 1.5, 1.0]]))
    assert search_choice(p, Weights(1, 1, 1), left=10, taus=[5], planned_tau=5, planned_steps=10).untrusted == 3
    assert math.isfinite(
        search_choice(p, Weights(1, 1, 0), left=10, taus=[5], planned_tau=5, planned_steps=10).objective
    )
