"""Coalitions whose members may be in the release themselves, against the exact attack that they can make."""

from math import comb

import numpy as np
import pytest
from scipy.stats import norm

from sightline.events import Adjacency, Gaussian, Unit, WithoutReplacement
from sightline.ledger import Ledger, Release
from sightline.mechanisms.samplers import FixedCohorts

DELTA = 1e-5


def ledger_of(clients, size, noise):
    """One noisy sum over a hidden cohort of a fixed size, seen by everybody."""
    names = frozenset(f"client-{n}" for n in range(clients))
    event = FixedCohorts(clients, size, Adjacency.REPLACE).hidden_event(Gaussian(noise))
    row = Release(1, "server", names, Unit.CLIENT, Adjacency.REPLACE, event, names | {"public"})
    return Ledger([row], participants={"elsewhere"})


def delta_of_the_attack(clients, size, noise, coalition, epsilon):
    """The others send zero, client 0 plus or minus half the sensitivity; the coalition counts how many of it went in.

    Given k of the coalition in the cohort, client 0 is in it with chance (size - k) / (clients - coalition).
    """
    y = np.linspace(-14 * noise - 1, 14 * noise + 1, 40001)
    total = 0.0
    for k in range(min(size, coalition) + 1):
        left = clients - coalition
        if not 0 <= size - k <= left:
            continue
        chance, rate = comb(coalition, k) * comb(left, size - k) / comb(clients, size), (size - k) / left
        out = (1 - rate) * norm.pdf(y, 0, noise)
        one, other = (out + rate * norm.pdf(y, half, noise) for half in (0.5, -0.5))
        total += chance * np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0), y)
    return total


@pytest.mark.parametrize(("clients", "size", "noise"), [(20, 2, 1.0), (10, 5, 2.0), (10, 2, 0.6), (4, 2, 1.0)])
def test_a_coalition_of_clients_knows_who_of_it_was_drawn(clients, size, noise):
    ledger = ledger_of(clients, size, noise)
    for coalition in range(1, clients):
        observers = frozenset(f"client-{n}" for n in range(1, coalition + 1))
        claimed = ledger.epsilon("client-0", observers, DELTA)
        assert delta_of_the_attack(clients, size, noise, coalition, claimed) <= DELTA


def test_the_attack_beats_what_holds_against_one_client():
    """The claim against single clients is too small for nearly all of them together: the test above can fail."""
    claimed = ledger_of(20, 2, 1.0).epsilon("client-0", "client-1", DELTA)
    assert delta_of_the_attack(20, 2, 1.0, 18, claimed) > 4 * DELTA


def test_fewer_are_left_to_hide_among():
    ledger = ledger_of(20, 2, 1.0)
    against = [ledger.composition("client-0", {f"client-{n}" for n in range(1, k + 1)}) for k in (2, 16, 18)]
    assert against[0] == {WithoutReplacement(2, 17, Gaussian(1.0)): 1}
    assert against[1] == {WithoutReplacement(2, 3, Gaussian(1.0)): 1}
    assert against[2] == {Gaussian(1.0): 1}
    assert ledger.composition("client-0", {"public", "elsewhere"}) == {WithoutReplacement(2, 19, Gaussian(1.0)): 1}
