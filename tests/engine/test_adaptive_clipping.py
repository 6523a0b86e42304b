"""Adaptive clipping (Andrew et al. 2021): the joint release, its accounting, the rule of the clip norm, and resumption."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import sightline
from sightline import accounting, algorithms, engine, testing
from sightline.config import AdaptiveClipping
from sightline.engine import loop
from sightline.errors import InvalidInput, Refused
from sightline.events import Adjacency, Gaussian, Poisson, Product, Unit
from sightline.laws.known_clients import KnownClients
from sightline.mechanisms import AdaptiveMean, Cohort, Public, ReleaseContext, Updates
from sightline.mechanisms.adaptive_clipping import CountingSum, joint_event, split_noise
from sightline.mechanisms.clip_and_noise import FloatSum, GridSum
from sightline.mechanisms.samplers import Full
from sightline.randomness import EVERYONE, Streams
from sightline.topology import Star
from sightline.training.call import CallId
from tests.engine.leftovers import Crash, crash_in, left_behind

ADAPTIVE = {"privacy.adaptive_clipping": {"quantile": 0.5, "learning_rate": 0.5}}


ROTATED = {"source": "digits", "clients": 6, "partition": "rotation", "clusters": [3, 3], "train_samples": 300}


def released(mechanism, rows, *, numbers=None, adjacency=Adjacency.ADD_REMOVE, seed=0):
    """The mean and the numbers of one release of known updates."""
    members = tuple(range(len(rows)))
    start = Public(torch.zeros(len(rows[0])))
    updates = Updates(Cohort(members), dict.fromkeys(members, start), KnownClients(dict(enumerate(rows))), CallId(1, 0))
    context = ReleaseContext(
        1, Unit.CLIENT, adjacency, Star(len(rows), True).top, Full(len(rows)), 0,
        lambda who: Streams.from_seed(seed).rng("noise", round=1, participant=who), numbers=numbers or {},
    )  # fmt: skip
    outcome = mechanism.mean(updates, context)
    return outcome.values[EVERYONE].double(), dict(outcome.numbers), outcome.rejected


def mechanism_of(z, *, clip_norm=1.0, new_sum=FloatSum, **rule):
    made = AdaptiveMean(clip_norm, 1.0, new_sum, rule=AdaptiveClipping(**rule))
    return made.with_noise({0: z})


@pytest.mark.parametrize(("z", "count_noise"), [(1.0, None), (0.3, 0.31), (4.0, 50.0)])
def test_sum_and_count_are_one_gaussian_of_the_calibrated_noise(z, count_noise):
    z_sum, z_count = split_noise(z, count_noise)
    assert 0 <= (z_sum**-2 + z_count**-2) ** -0.5 / z - 1 < 1e-10
    # the paper's formula, with its sigma_b: noise on a sum of indicators centred at 1/2
    sigma_b = z_count / 2
    assert z_sum == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5, rel=1e-10)


def hockey_stick(rate, shifts, epsilon, *, reverse):
    """sup_S P(S) - e^epsilon Q(S) of (1 - q) N(0, I) + q N(shifts, I) and N(0, I), by quadrature over the plane."""
    axes = [np.linspace(-9, 9 + shift, 1801) for shift in shifts]
    x, y = np.meshgrid(*axes, indexing="ij")
    without = np.exp(-(x**2 + y**2) / 2) / (2 * math.pi)
    ratio = 1 - rate + rate * np.exp(shifts[0] * x + shifts[1] * y - (shifts[0] ** 2 + shifts[1] ** 2) / 2)
    gap = 1 - math.exp(epsilon) * ratio if reverse else ratio - math.exp(epsilon)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    return float((without * np.maximum(gap, 0)).sum() * cell)


@pytest.mark.parametrize(("z", "count_noise"), [(1.0, None), (0.7, 0.9)])
def test_the_epsilon_of_a_hidden_cohort_is_that_of_the_plane(z, count_noise):
    """Sum and count share one draw: quadrature of the joint law, not of two draws."""
    event, delta = Poisson(0.3, joint_event(z, count_noise)), 1e-3
    epsilon = accounting.epsilon({event: 1}, delta)
    shifts = [1 / noise for noise in split_noise(z, count_noise)]
    found = max(hockey_stick(0.3, shifts, epsilon, reverse=reverse) for reverse in (False, True))
    assert found <= delta * (1 + 1e-4)
    assert found == pytest.approx(delta, rel=1e-2)
    assert accounting.epsilon({Poisson(0.3, Gaussian(z)): 1}, delta) == pytest.approx(epsilon, rel=1e-6)
    # two draws would be another mechanism; the test can tell
    apart = {Poisson(0.3, Gaussian(noise)): 1 for noise in split_noise(z, count_noise)}
    assert abs(accounting.epsilon(apart, delta) - epsilon) > (1e-3 if count_noise is None else 1e-2)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("new_sum", [FloatSum, GridSum])
def test_no_client_moves_the_joint_vector_further_than_one_over_z(adjacency, new_sum):
    """In units of the noise: two worlds with the same noise, the subject zeroed out, broken or replaced."""
    rng, z, n = np.random.default_rng(3), 0.9, 5
    rows = [torch.from_numpy(rng.standard_normal(40) * length).float() for length in (0.01, 5.0, 0.05, 3.0, 0.1)]
    mechanism = mechanism_of(z, new_sum=new_sum, count_noise_multiplier=1.5)
    z_sum, z_count = split_noise(z, 1.5)
    twice = 2.0 if adjacency is Adjacency.REPLACE else 1.0
    here, numbers, _ = released(mechanism, rows, adjacency=adjacency)
    longest = 0.0
    for subject in range(n):
        far = -1e4 * rows[subject] if float(rows[subject].norm()) < 1 else -1e-3 * rows[subject]
        replaced = [far, -rows[subject]] if adjacency is Adjacency.REPLACE else []
        for other in [torch.full_like(rows[subject], torch.nan), *replaced]:
            world = [other if place == subject else row for place, row in enumerate(rows)]
            there, others, _ = released(mechanism, world, adjacency=adjacency)
            in_sum = float((here - there).norm()) * n / (z_sum * twice * 1.0)
            in_count = (numbers["inside_clip_norm"] - others["inside_clip_norm"]) * n / (z_count * twice * 0.5)
            moved = math.hypot(in_sum, in_count)
            longest = max(longest, moved)
            assert moved <= 1 / z * (1 + 1e-5)
    if adjacency is Adjacency.ADD_REMOVE:
        assert longest == pytest.approx(1 / z, rel=1e-4)  # a clipped client that is zeroed out uses all of it


def test_a_broken_update_is_neither_inside_nor_outside():
    rows = [torch.tensor([0.1, 0.0]), torch.tensor([9.0, 0.0]), torch.tensor([math.nan, 0.0])]
    total = CountingSum(FloatSum(2))
    assert [total.add(row, clip_norm=1.0) for row in rows] == [False, False, True]
    assert total.count == 0
    _, numbers, rejected = released(mechanism_of(1e-6), rows)
    assert (numbers["inside_clip_norm"], rejected) == (0.5, 1)


def test_the_clip_norm_finds_the_quantile_as_a_plain_loop_does():
    """C <- C exp(-eta (b - gamma)) on known norms, from far below and far above, next to no noise."""
    norms = np.random.default_rng(1).lognormal(0.0, 1.0, 41)
    rows = [torch.tensor([norm, 0.0, 0.0]).float() for norm in norms]
    for first, gamma in ((1e-3, 0.5), (1e3, 0.8)):
        mechanism = mechanism_of(1e-7, clip_norm=first, quantile=gamma, learning_rate=0.4)
        plain, numbers = first, {}
        for _ in range(120):
            mean, numbers, _ = released(mechanism, rows, numbers={k: float(np.float32(v)) for k, v in numbers.items()})
            share = np.mean(norms <= plain)
            assert numbers["clip_norm"] == pytest.approx(plain, rel=1e-4)
            assert numbers["inside_clip_norm"] == pytest.approx(share, abs=1e-6)
            assert float(mean[0]) == pytest.approx(np.minimum(norms, plain).mean(), rel=1e-4)
            plain *= math.exp(-0.4 * (share - gamma))
        assert np.mean(norms <= plain) == pytest.approx(gamma, abs=0.05)


def test_the_noise_of_the_count_has_the_claimed_scale():
    mechanism, rows = mechanism_of(1.2), [torch.tensor([0.1])] * 4
    shares = [released(mechanism, rows, seed=seed)[1]["inside_clip_norm"] for seed in range(2000)]
    expected = split_noise(1.2, None)[1] * 0.5 / 4
    assert np.mean(shares) == pytest.approx(1.0, abs=5 * expected / math.sqrt(2000))
    assert np.std(shares) == pytest.approx(expected, rel=5 * math.sqrt(0.5 / 2000))


def test_a_run_costs_what_it_costs_with_a_fixed_clip_norm(tiny, tmp_path):
    plain = sightline.run(tiny(rounds=5), out=tmp_path / "plain")
    run = sightline.run(tiny(rounds=5, **ADAPTIVE), out=tmp_path / "run", verify=6)
    assert run.epsilon == pytest.approx(plain.epsilon, rel=1e-9)
    published = [release for release in run.ledger if "public" in release.audience]
    assert {release.event for release in published} == {Poisson(0.6, joint_event(0.8, None))}
    assert isinstance(published[0].event.event, Product)
    assert testing.confirm_ledger(run.ledger, {"server"}, 0.01, draws=20_000) < run.epsilon
    # every release names the one whose count decided on its clip norm
    assert all(before.id in after.inputs for before, after in pairwise(published))
    rows = run.history
    norms = [row["clip_norm"] for row in rows]
    assert norms[0] == 0.5
    for now, row in zip(norms[1:], rows, strict=False):
        step = math.exp(-0.5 * (row["inside_clip_norm"] - 0.5))
        assert now == pytest.approx(row["clip_norm"] * step, rel=1e-5)
    assert len(set(norms)) == 5
    pages = [(one.directory / "report.html").read_text() for one in (plain, run)]
    assert ['id="chart-clip-norm"' in page for page in pages] == [False, True]


@pytest.mark.parametrize("changes", [{}, {"privacy.arithmetic": "integer"}, {"algorithm.upcycle": 0.3}], ids=str)
@pytest.mark.parametrize(
    ("place", "before"), [("save_checkpoint", True), ("save_checkpoint", False), ("append", False)]
)
def test_a_crash_changes_no_clip_norm(tiny, tmp_path, monkeypatch, changes, place, before):
    experiment = tiny(**ADAPTIVE, **changes)
    with monkeypatch.context() as patch:
        crash_in(patch, loop.Ledger if place == "append" else loop, place, 3, before=before)
        with pytest.raises(Crash):
            sightline.run(experiment, out=tmp_path / "broken")
    sightline.run(experiment, out=tmp_path / "whole")
    sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")


def test_calibrated_noise_meets_epsilon_with_the_count_in_it(tiny):
    for count_noise in (None, 2.5):
        rule = {"quantile": 0.5} | ({} if count_noise is None else {"count_noise_multiplier": count_noise})
        changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 4.0, "privacy.adaptive_clipping": rule}
        built = engine.calibrate_noise(engine.build_experiment(tiny(**changes)))
        planned = engine.plan_releases(built)
        (event,) = {release.event for release in planned if "public" in release.audience}
        z_sum, z_count = (part.noise_multiplier for part in event.event.events)
        assert count_noise in (None, z_count)
        joint = Poisson(0.6, Gaussian((z_sum**-2 + z_count**-2) ** -0.5))
        assert 3.99 < accounting.epsilon({joint: 4}, 1e-5) <= 4.0


REFUSED = [
    ({"privacy.adaptive_clipping": {"count_noise_multiplier": 0.7}}, "the count needs more noise"),
    ({"privacy.where": "client"}, "learns who was clipped"),
    ({"privacy.unit": "sample", "privacy.where": "client"}, "counts clipped clients"),
    ({"privacy.unit": "none", "privacy.noise_multiplier": None}, "clips nothing"),
    ({"sampling.clients": {"scheme": "turns", "groups": 2}, "privacy.noise": "correlated"}, "a constant clip norm"),
    ({"algorithm.split": {"parts": 2}, "model": {"name": "mlp", "hidden": [8, 8]}}, "one clip norm for each part"),
    ({"topology.kind": "tree", "topology.subnets": 2, "topology.trusted": 1.0}, "privacy.where=edge"),
    ({"privacy.adaptive_clipping": {"quantile": 1.0}}, "quantile"),
    ({"privacy.adaptive_clipping": {"speed": 1.0}}, "speed"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_has_no_bound_is_refused_before_a_run_exists(tiny, tmp_path, changes, reason):
    with pytest.raises((InvalidInput, Refused), match=reason) as error:
        sightline.run(tiny(**{**ADAPTIVE, **changes}), out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_real_nodes_are_refused(tiny):
    built = engine.build_experiment(tiny(**ADAPTIVE))
    with pytest.raises(Refused, match="norm that their owners approved"):
        engine.plan_releases(built, real_nodes=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": {"kind": "groups", "structure": "ring", "groups": 2, "period": 2}, "algorithm.name": "dp_ogl"},
        {"topology": {"kind": "clusters", "count": 2}, "algorithm.name": "oracle_clusters", "data": ROTATED},
        {"sampling.clients": {"scheme": "balanced", "uses": 2}},
        {"sampling.clients": {"scheme": "fixed", "rate": 0.5}, "privacy.adjacency": "replace"},
        {"algorithm.name": "scaffold"},
        {"algorithm.name": "fedadam", "algorithm.average": 0.5},
    ],
    ids=str,
)
def test_it_goes_with_topologies_samplers_and_algorithms(tiny, tmp_path, changes):
    """Each at the epsilon of a fixed clip norm."""
    changes = {"local.epochs": None, "local.steps": 2, **changes}
    plain = sightline.run(tiny(**changes), out=tmp_path / "plain")
    run = sightline.run(tiny(**changes, **ADAPTIVE), out=tmp_path / "run")
    assert run.epsilon == pytest.approx(plain.epsilon, rel=1e-9)
    assert run.history[-1]["clip_norm"] != 0.5


def test_a_clip_norm_names_the_releases_that_it_comes_from(tiny):
    """Also where the models do not: an algorithm that trains from the same start in every round."""

    def forgetful(state, r, settings):
        r.release_mean(r.train(r.sample(), state["model"]))
        return state

    inputs = []
    for more in ({}, ADAPTIVE):
        built = engine.build_experiment(tiny(**more)).with_noise({0: 1.0})
        base = replace(algorithms.REGISTRY["fedavg"], round=forgetful)
        ledger = engine.plan_releases(replace(built, algorithm=algorithms.wrap_released(base)))
        inputs.append([release.inputs for release in ledger if "public" in release.audience])
    assert inputs == [[(), (), (), ()], [(), (1,), (3,), (5,)]]


def test_every_channel_follows_its_own_updates(tiny):
    """The numbers of one group move no other group's clip norm."""
    here = mechanism_of(1.0)
    low, high = ({"clip_norm": 2.0, "inside_clip_norm": b} for b in (0.0, 1.0))
    context = ReleaseContext(
        1, Unit.CLIENT, Adjacency.ADD_REMOVE, Star(2, True).top, Full(2), 0, lambda who: np.random.default_rng(0)
    )
    assert here.clip_norm_at(context) == 1.0
    found = [here.clip_norm_at(replace(context, numbers=numbers)) for numbers in (low, high)]
    assert found == [pytest.approx(2 * math.exp(0.1)), pytest.approx(2 * math.exp(-0.1))]
