"""What an interval costs and how noisy it is, for every choice of participation that control may make."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sightline.algorithms.contract import Round
from sightline.algorithms.control_search import Floats, Prospects, candidate_counts


def participation_rates(r: Round, trusted: int, untrusted: int) -> dict[str, float]:
    """Participation by channel: so many devices of every subnet in the mean, nowhere more often than planned."""
    wanted = {True: trusted, False: untrusted}
    asked = {}
    for channel in (*r.channels, *r.gathers):
        subnets = sum(set(edge.members) <= set(channel.members) for edge in r.channels)
        asked[channel.name] = min(r.most_often(channel), subnets * wanted[channel.trusted] / len(channel.members))
    return asked


def price_interval(r: Round, aggregations: int) -> Prospects:
    """Energy and delay of an interval: every local aggregation gathers once, and the edges send up once."""

    def cost(trusted: int, untrusted: int) -> tuple[float, float]:
        gathering, lifting = r.price_rates(participation_rates(r, trusted, untrusted))
        whole = gathering.times(aggregations) + lifting
        return whole.energy_joule, whole.delay_seconds

    mine, others = candidate_counts(most_devices(r, trusted=True)), candidate_counts(most_devices(r, trusted=False))
    table = cost_table(mine, others, cost)
    return Prospects(mine, others, table[..., 0], table[..., 1], np.zeros((len(mine), len(others))))


def with_noise(costs: Prospects, r: Round) -> Prospects:
    """The same with term (b) of Theorem 4.3: sum_c share_c^2 z_c^2 / s_c^2 where the edge is trusted, else / s_c."""
    shares = dict(zip((c.name for c in r.channels), r.channel_shares(r.channels), strict=True))

    def noise(trusted: int, untrusted: int) -> tuple[float]:
        asked = participation_rates(r, trusted, untrusted)
        return (
            math.fsum(
                (shares[c.name] * r.noise_multiplier(c)) ** 2
                / (asked[c.name] * len(c.members)) ** (2 if c.trusted else 1)
                for c in r.channels
            ),
        )

    return replace(costs, noise=cost_table(costs.trusted, costs.untrusted, noise)[..., 0])


def most_devices(r: Round, *, trusted: bool) -> int:
    """The largest number of devices that any of these subnets may ask; zero where there are none."""
    found = [r.most_often(c) * len(c.members) for c in r.channels if c.trusted is trusted]
    return max(1, math.floor(max(found) + 1e-9)) if found else 0


def cost_table(
    rows: tuple[int, ...], columns: tuple[int, ...], value: Callable[[int, int], tuple[float, ...]]
) -> Floats:
    return np.array([[value(row, column) for column in columns] for row in rows])
