"""Links, tables and mean costs against the checked values, naive loops and all cohorts one by one."""

import itertools
import json
import math

import numpy as np
import pytest

from sightline.config import parse
from sightline.errors import InvalidInput
from sightline.events import Adjacency
from sightline.mechanisms.samplers import FixedCohorts, Full, PoissonCohorts
from sightline.randomness import Streams
from sightline.resources import (
    Cost,
    Overlap,
    Resources,
    Sending,
    Wireless,
    WirelessSettings,
    build_resources,
    combine_costs,
    expected_gathering,
    path_gain,
    shannon_rate,
)
from sightline.topology import Channel

PAPER = WirelessSettings(distance_metre=(100.0, 100.0), fading=False)


def wireless(settings=PAPER, clients=5, parameters=7840, seed=0):
    return Wireless(settings, clients, parameters, Streams.from_seed(seed))


def channel(*members, name="edge-0"):
    return Channel(name, members, frozenset())


def test_the_checked_values_of_the_paper():
    """systems.md section 4: M = 7840, Q = 32, 100 m, no fading."""
    gain = path_gain(np.array([100.0]), gain_db=-30.0, exponent=3.75)
    rate = shannon_rate(gain, power_dbm=24.0, bandwidth_hertz=1e6, noise_dbm_per_hertz=-173.0)
    assert rate[0] == pytest.approx(10.6e6, rel=5e-3)
    sending = wireless().typical
    assert sending.delay_seconds[0] == pytest.approx(23.6e-3, rel=2e-3)
    assert sending.energy_joule[0] == pytest.approx(5.9e-3, rel=6e-3)
    wired = wireless().wired("edge-0", round=1)
    assert wired.delay_seconds == pytest.approx(2.5e-3, rel=5e-3)
    assert wired.energy_joule == pytest.approx(15.8e-3, rel=3e-3)


def test_a_link_by_hand():
    """The same formula written out with plain arithmetic, one device at a time."""
    air = wireless(WirelessSettings(fading=True), clients=4)
    fade = Streams.from_seed(0).rng("resources", round=3, use=1).exponential(size=4)
    found = air.sending(round=3, use=1)
    for device in range(4):
        gain = 10 ** ((-30 - 37.5 * math.log10(air.distance_metre[device])) / 10) * fade[device]
        signal, noise = 10 ** (24 / 10) / 1000, 10 ** (-173 / 10) / 1000 * 1e6
        rate = 1e6 * math.log2(1 + signal * gain / noise)
        assert found.delay_seconds[device] == pytest.approx(32 * 7840 / rate, rel=1e-12)
        assert found.energy_joule[device] == pytest.approx(signal * 32 * 7840 / rate, rel=1e-12)


def test_distances_and_fading_come_from_the_seed_and_the_moment():
    air = wireless(WirelessSettings(), clients=1000)
    again = wireless(WirelessSettings(), clients=1000)
    other = wireless(WirelessSettings(), clients=1000, seed=1)
    assert np.array_equal(air.distance_metre, again.distance_metre)
    assert not np.array_equal(air.distance_metre, other.distance_metre)
    assert air.distance_metre.min() >= 10
    assert air.distance_metre.max() <= 100
    inside = np.mean(air.distance_metre < 50)  # evenly over the ring: (50^2 - 10^2) / (100^2 - 10^2) = .2424
    assert abs(inside - 0.2424) < 6 * math.sqrt(0.2424 * 0.7576 / 1000)
    first = air.sending(round=1, use=0).delay_seconds
    assert np.array_equal(first, again.sending(round=1, use=0).delay_seconds)
    for moment in ({"round": 2, "use": 0}, {"round": 1, "use": 1}):
        assert not np.array_equal(first, air.sending(**moment).delay_seconds)


def everyone(population, sampler):
    """(chance, cohort) of every possible cohort."""
    for size in range(population + 1):
        for cohort in itertools.combinations(range(population), size):
            if isinstance(sampler, FixedCohorts):
                yield (1 / math.comb(population, sampler.size) if size == sampler.size else 0.0), cohort
            else:
                q = sampler.expected / population
                yield q**size * (1 - q) ** (population - size), cohort


SAMPLERS = [
    Full(4),
    PoissonCohorts(4, 0.3),
    FixedCohorts(4, 2, Adjacency.REPLACE),
    FixedCohorts(4, 4, Adjacency.REPLACE),
]


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_the_mean_cost_is_the_mean_over_all_cohorts(sampler, overlap):
    delays, energies = np.array([3.0, 1.0, 2.0, 2.0]), np.array([0.3, 0.1, 0.2, 0.4])
    naive = Cost()
    for chance, cohort in everyone(4, sampler):
        cost = combine_costs([Cost(energies[i], delays[i]) for i in cohort], overlap)
        naive += cost.times(chance)
    found = expected_gathering([(Sending(energies, delays), sampler)], overlap)
    assert found.energy_joule == pytest.approx(naive.energy_joule, rel=1e-12)
    assert found.delay_seconds == pytest.approx(naive.delay_seconds, rel=1e-12)


@pytest.mark.parametrize("overlap", list(Overlap))
def test_several_channels_are_gathered_side_by_side(overlap):
    sending = Sending(np.array([0.3, 0.1, 0.2, 0.4]), np.array([3.0, 1.0, 2.0, 5.0]))
    parts = [((0, 1, 3), PoissonCohorts(3, 0.4)), ((2, 3), FixedCohorts(2, 1, Adjacency.REPLACE))]
    naive = Cost()
    for chance, first in everyone(3, parts[0][1]):
        for other, second in everyone(2, parts[1][1]):
            drawn = [parts[0][0][i] for i in first] + [parts[1][0][i] for i in second]
            costs = [Cost(sending.energy_joule[i], sending.delay_seconds[i]) for i in drawn]
            naive += combine_costs(costs, overlap).times(chance * other)
    found = expected_gathering([(sending.of(members), sampler) for members, sampler in parts], overlap)
    assert found.energy_joule == pytest.approx(naive.energy_joule, rel=1e-12)
    assert found.delay_seconds == pytest.approx(naive.delay_seconds, rel=1e-12)


def test_nobody_costs_nothing():
    resources = Resources(wireless())
    assert resources.cost_of_gathering([], round=1, use=0) == Cost()
    assert (
        resources.cost_of_gathering([(channel(0, 1), PoissonCohorts(2, 1e-300))], round=1, use=0).delay_seconds < 1e-299
    )
    assert resources.cost_of_lifting([]) == Cost()


def test_edges_send_up_side_by_side_or_one_after_the_other():
    one = wireless().wired("edge-0", round=1)
    assert Resources(wireless(), Overlap.MAX).cost_of_lifting(["edge-0", "edge-1"]).delay_seconds == one.delay_seconds
    assert Resources(wireless(), Overlap.SUM).cost_of_lifting(["edge-0", "edge-1"]) == one.times(2)


CSV = """node,energy_joule,delay_seconds,round
client,0.5,2.0,
client-1,0.25,1.0,
client-1,9,9,2
edge,1,0.5,
edge-7,2,0.25,
"""


def experiment(**resources):
    return parse({"rounds": 3, "data": {"clients": 3}, "resources": resources})


def test_a_measured_table(tmp_path):
    (tmp_path / "costs.csv").write_text(CSV)
    rows = [dict(zip(CSV.splitlines()[0].split(","), line.split(","), strict=True)) for line in CSV.splitlines()[1:]]
    (tmp_path / "costs.json").write_text(json.dumps([{k: v for k, v in row.items() if v} for row in rows]))
    for name in ("costs.csv", "costs.json"):
        found = build_resources(experiment(model="table", file=str(tmp_path / name)), parameters=10)
        assert found.prices.sending(round=1, use=0).energy_joule.tolist() == [0.5, 0.25, 0.5]
        assert found.prices.sending(round=2, use=5).delay_seconds.tolist() == [2.0, 9.0, 2.0]
        assert found.prices.typical.delay_seconds.tolist() == [2.0, 1.0, 2.0]
        assert found.cost_of_lifting(["edge-7", "edge-8"]) == Cost(3.0, 0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node,energy_joule\nclient,1\n", "no column delay_seconds"),
        ("node,energy_joule,delay_seconds\nclient-0,1,1\n", "client-1: costs.csv has no row for this node"),
        ("node,energy_joule,delay_seconds\nclient,-1,1\n", "energy_joule in costs.csv must be a number >= 0"),
        ("node,energy_joule,delay_seconds\nclient,nan,1\n", "energy_joule in costs.csv must be a number >= 0"),
        ("node,energy_joule,delay_seconds\nclient,1\n", "delay_seconds in costs.csv must be a number >= 0"),
        ("node,energy_joule,delay_seconds,round\nclient,1,1,0.5\n", "a round in costs.csv must be a whole number >= 1"),
        ("", "has no rows"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, text, reason):
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(InvalidInput, match=reason) as found:
        build_resources(experiment(model="table", file=str(tmp_path / "costs.csv")), parameters=10)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "wirless"}, 'did you mean "wireless"'),
        ({"model": "wireless", "bandwith_hertz": 1e6}, 'did you mean "bandwidth_hertz"'),
        ({"model": "wireless", "bandwidth_hertz": 0.0}, "must be a positive number"),
        ({"model": "wireless", "power_dbm": "24"}, "must be a finite number"),
        ({"model": "wireless", "distance_metre": [100.0, 10.0]}, "nearest, farthest"),
        ({"model": "wireless", "distance_metre": -1.0}, "must be a positive number"),
        ({"model": "wireless", "fading": 1}, "must be true or false"),
        ({"model": "wireless", "delays": "mean"}, "max"),
        ({"model": "table"}, "a CSV or JSON file is needed"),
        ({"model": "table", "file": "nowhere.csv"}, "no such file"),
        ({"model": "table", "file": "x.csv", "fading": True}, 'unknown setting of model = "table"'),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, reason):
    with pytest.raises(InvalidInput, match=reason):
        build_resources(experiment(**settings), parameters=10)


def test_one_distance_for_all_is_a_number():
    found = build_resources(experiment(model="wireless", distance_metre=100, fading=False), parameters=7840)
    assert found.prices.typical.delay_seconds.tolist() == pytest.approx([23.6e-3] * 3, rel=2e-3)
