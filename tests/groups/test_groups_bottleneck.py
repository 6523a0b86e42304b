"""The bottleneck bound against exact divergences of tiny systems."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import norm

from sightline import engine
from sightline.accounting import Accountant, epsilon
from sightline.accounting.accountant import Bridged, bridged_epsilon, bridged_moments
from sightline.accounting.moments import ORDERS
from sightline.algorithms import dp_ogl
from sightline.engine import MODEL, plan_releases
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian, Poisson
from sightline.ledger import GroupPlan, Rhythm, Threat, planned_pairs
from sightline.ledger.group_pairs import Costing, epsilon_matrix
from sightline.ledger.group_privacy import Bottleneck, tighten_matrix
from sightline.mechanisms import StateRule
from sightline.runtimes import Simulator
from sightline.topology import STRUCTURES, Era, Memberships, constant_memberships
from tests.engine.test_resume import Crash
from tests.oracle.groups_gaussian import exact_divergence, largest_shift

SIGMA = 3.0
RDP = Costing(1e-5, Accountant.RDP)


def divergence(ingredients, order):
    """D_a of a cut's ingredients, everybody taking part."""
    direct, bridged = ingredients
    total = sum(times / event.noise_multiplier**2 for event, times in direct)
    total += sum(times * (one.own + 2 * one.bridges) ** 2 / one.noise_multiplier**2 for one, times in bridged)
    return order * total / 2


def bounds_of(groups, workers, period, epochs, rate=1.0):
    event = Gaussian(SIGMA) if rate == 1 else Poisson(rate, Gaussian(SIGMA))
    return Bottleneck(
        planned_pairs(GroupPlan(constant_memberships(workers, groups), period, epochs, (event,) * len(groups)))
    )


@st.composite
def systems(draw):
    count, workers = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    groups = draw(
        st.lists(st.sets(st.integers(0, workers - 1), min_size=1), min_size=count, max_size=count)
    )  # fmt: skip
    gain = draw(st.lists(st.floats(-1.5, 1.5), min_size=workers, max_size=workers))
    push = draw(st.lists(st.floats(-1, 1), min_size=workers, max_size=workers))
    return tuple(tuple(sorted(group)) for group in groups), gain, push


@given(systems(), st.integers(1, 4), st.integers(2, 9), st.data())
@settings(max_examples=200)
def test_no_cut_is_below_the_exact_divergence_of_linear_systems(system, period, epochs, data):
    groups, gain, push = system
    workers = len(gain)
    subject, observer = data.draw(st.permutations(range(workers)))[:2]
    seen = [m for m, group in enumerate(groups) if observer in group]
    gain[subject], push[subject] = 0.0, 1.0  # its update is the constant c = 1
    if not seen:
        return
    while largest_shift(groups, period, epochs, gain, push, SIGMA, subject=subject) > 2.0:
        gain = [0.8 * one for one in gain]  # nobody's update may move by more than 2 c: clipping would have acted
    exact, _ = exact_divergence(groups, period, epochs, gain, push, SIGMA, subject=subject, seen=seen, order=2.0)
    bounds = bounds_of(groups, workers, period, epochs)
    of = bounds.pairs.class_of
    pair = int(of[subject]), int(of[observer])
    cuts = bounds.candidate_cuts(*pair)
    for cut in [*cuts, bounds.improve_cut(*pair, cuts[0])]:
        assert exact <= divergence(bounds.cut_ingredients(of[subject], of[observer], cut), 2.0) * (1 + 1e-9) + 1e-12


def test_a_set_with_holes_would_be_wrong():
    groups = ((0, 1),)
    exact, views = exact_divergence(groups, 1, 9, [0.0, 0.0], [1.0, 0.0], SIGMA, subject=0, seen=[0], order=2.0)
    (with_it, factor), (without, _) = views
    last = (with_it - without)[-1] ** 2 / (factor[-1] @ factor[-1])
    assert last == pytest.approx(exact)  # the last model alone tells as much as all eight releases
    assert exact == pytest.approx(8 * 2.0 / (2 * SIGMA**2))
    assert exact > 1 * 2.0 / (2 * SIGMA**2)  # what charging only the last epoch would claim


def two_groups_with_clipping(period, gain, centre, order):
    """Exact D_a of the first release that a bridging worker colours: hidden h, clipped update, by quadrature."""
    spread = SIGMA * math.sqrt(period)
    hidden = np.linspace(-9 * spread, period + 9 * spread, 4001)
    update = np.clip(gain * (hidden - centre), -1.0, 1.0)
    seen = np.linspace(-30, 30, 601)
    kernel = norm.pdf(seen[:, None], update[None, :], SIGMA)
    p, q = (integrate.simpson(kernel * norm.pdf(hidden, period * b, spread), x=hidden, axis=1) for b in (1, 0))
    ratio = np.exp(order * np.log(p) + (1 - order) * np.log(q))
    return float(np.log(integrate.simpson(ratio, x=seen)) / (order - 1))


@pytest.mark.parametrize(("period", "gain"), [(1, 5.0), (40, 50.0)])
def test_with_clipping_at_work_the_bound_still_holds(period, gain):
    exact = two_groups_with_clipping(period, gain, period / 2, 2.0)
    bridge = 2.0 * 2**2 / (2 * SIGMA**2)
    assert exact <= min(bridge, period * 2.0 / (2 * SIGMA**2)) * (1 + 1e-6)
    assert exact > 0


@given(st.integers(1, 4), st.integers(0, 1), st.floats(0.05, 1.0), st.floats(1.0, 5.0))
@settings(max_examples=60)
def test_coins_only_help_and_moments_are_exact(bridges, own, rate, noise):
    moments = bridged_moments(Bridged(noise, rate, bridges, own))
    assert (moments <= bridged_moments(Bridged(noise, 1.0, bridges, own)) * (1 + 1e-9) + 1e-12).all()
    order = 3
    expected = 0.0
    for b in range(own + 1):
        for j in range(bridges + 1):
            chance = math.comb(bridges, j) * rate**j * (1 - rate) ** (bridges - j)
            chance *= 1.0 if not own else (rate if b else 1 - rate)
            expected += chance * math.exp(order * (order - 1) * (b + 2 * j) ** 2 / (2 * noise**2))
    assert moments[order] == pytest.approx(math.log(expected), rel=1e-9)
    assert moments[0] == moments[1] == 0.0
    assert len(moments) == len(ORDERS)


def test_all_groups_seen_is_the_flow_count():
    bounds = bounds_of(STRUCTURES["ring"](20, 4), 20, 5, 41)
    everything = frozenset(range(4))
    for n in range(len(bounds.pairs)):
        for i in range(len(bounds.pairs)):
            direct, bridged = bounds.cut_ingredients(n, i, everything)
            assert not bridged
            assert sum(times for _, times in direct) == bounds.pairs.release_counts(slice(None))[0, n, i]


@pytest.mark.parametrize("accountant", list(Accountant))
@pytest.mark.parametrize("rate", [0.7, 1.0])
def test_it_never_loosens_and_wins_where_periods_are_long_and_overlaps_thin(accountant, rate):
    costing = Costing(1e-5, accountant)
    gains = []
    for period in (2, 10, 50):
        pairs = bounds_of(STRUCTURES["ring"](100, 4), 100, period, 201, rate).pairs
        flow, releases = epsilon_matrix(pairs, Threat.EVERYONE, costing)
        least = tighten_matrix(pairs, flow, releases, costing)
        defined = ~np.isnan(flow)
        assert (least[defined] <= flow[defined]).all()
        gains.append(flow[1, 5] / least[1, 5])
    assert gains[0] == 1.0
    assert gains == sorted(gains)
    assert gains[-1] > 2


def test_thick_overlaps_gain_nothing():
    groups = (tuple(range(8)), tuple(range(2, 10)))
    pairs = bounds_of(groups, 10, 10, 101).pairs
    flow, releases = epsilon_matrix(pairs, Threat.EVERYONE, RDP)
    np.testing.assert_array_equal(tighten_matrix(pairs, flow, releases, RDP), flow)


def test_it_is_refused_where_it_is_not_proved():
    with pytest.raises(Refused, match="DP-OGL"):
        Bottleneck(
            planned_pairs(GroupPlan(constant_memberships(2, ((0, 1),)), 2, 5, (Gaussian(1.0),), Rhythm.INTERVAL))
        )
    changing = Memberships(2, (Era(1, ((0, 1),)), Era(2, ((0,),))))
    with pytest.raises(Refused, match="constant memberships only"):
        Bottleneck(planned_pairs(GroupPlan(changing, 2, 5, (Gaussian(1.0),))))
    for wrong in ((0.0, 1.0, 1, 0), (1.0, 0.0, 1, 0), (1.0, 1.0, -1, 0), (1.0, 1.0, 1, 2)):
        with pytest.raises(InvalidInput):
            Bridged(*wrong)


def test_direct_and_bridged_compose_into_one_epsilon():
    direct = {Poisson(0.5, Gaussian(2.0)): 10}
    alone = bridged_epsilon(direct, {}, 1e-5, accountant=Accountant.RDP)
    exact = epsilon(direct, 1e-5, accountant=Accountant.RDP)
    assert exact <= alone <= 1.001 * exact  # bridged moments are kept at integer orders
    more = bridged_epsilon(direct, {Bridged(2.0, 0.5, 1): 3}, 1e-5, accountant=Accountant.RDP)
    by_law = bridged_epsilon(direct, {Bridged(2.0, 0.5, 1): 3}, 1e-5, accountant=Accountant.PLD)
    assert alone < by_law <= more


PERIOD = 55


def remembered(epsilon, epochs):
    """Exact delta of an observer when a bridging worker pushes by the side of zero that its hidden model was on.

    The hidden group's model has 55 epochs of the subject in it, or none; the seen group sums the pushes of `epochs`.
    """
    noise = 2.0
    right = norm.cdf(math.sqrt(PERIOD) / (2 * noise))
    x, shift = np.linspace(-40, 40, 20001), math.sqrt(epochs) / noise
    up, down = norm.pdf(x, shift), norm.pdf(x, -shift)
    gain = right * up + (1 - right) * down - math.exp(epsilon) * ((1 - right) * up + right * down)
    return float(integrate.simpson(np.maximum(gain, 0), x=x))


def test_state_that_outlives_an_epoch_breaks_the_bound():
    """The attack: kept through an interval it claims .0015 where .316 is true, at epsilon 3."""
    plan = GroupPlan(constant_memberships(3, ((0, 1), (1, 2))), PERIOD, 2 * PERIOD + 1, (Gaussian(2.0),) * 2)
    bounds = Bottleneck(planned_pairs(plan))
    direct, bridged = bounds.cut_ingredients(0, 2, frozenset({1}))
    assert (dict(direct), dict(bridged)) == ({}, {Bridged(2.0, 1.0, 1): 1})
    claimed = norm.cdf(0.5 - 3) - math.exp(3) * norm.cdf(-0.5 - 3)  # one Gaussian of noise 2 / 2
    assert claimed == pytest.approx(0.0015, rel=0.05)
    assert remembered(3.0, epochs=1) <= claimed
    assert remembered(3.0, epochs=PERIOD) == pytest.approx(0.316, rel=0.1)


def planned(grouped, own=None, **changes):
    """(the plan of a run of groups, its bounds); `own` is a round in place of DP-OGL's."""
    setting = engine.build_experiment(grouped(**changes))
    if own is not None:
        setting = replace(setting, algorithm=replace(setting.algorithm, round=own))
    ledger = plan_releases(setting.with_noise(dict.fromkeys(setting.clients, 0.8)))
    schedule = setting.topology.schedule
    events = (Poisson(0.6, Gaussian(0.8)),) * schedule.count
    return ledger, Bottleneck(planned_pairs(GroupPlan(schedule, 2, 5, events)))


@pytest.mark.parametrize(
    "local", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"schedule": "cosine"}], ids=["sgd", "momentum", "adam", "cosine"]
)  # fmt: skip
def test_runs_of_dp_ogl_are_what_the_bound_is_for(grouped, local):
    ledger, bounds = planned(grouped, **{f"local.{name}": value for name, value in local.items()})
    bounds.check_run(ledger)


def keeps_state(state, r, settings):
    """DP-OGL whose workers keep momentum from epoch to epoch."""
    kept = StateRule("momentum", update=lambda moved: moved.end - moved.start, linear=lambda old: -old)
    merging, many = (r.time - 1) % r.control.period == 0, []
    for channel in r.channels:
        own = dp_ogl.model_of(state, channel.name)
        starts = dp_ogl.merge_models(state, r.channels, channel) if merging else own
        many.append((r.train(r.sample(channel), starts, memory=kept), channel))
    return dp_ogl.move_models(state, r.channels, r.release_means(many), settings)


def merges_always(state, r, settings):
    many = [
        (r.train(r.sample(c), dp_ogl.merge_models(state, r.channels, c)), c) for c in r.channels
    ]  # fmt: skip
    return dp_ogl.move_models(state, r.channels, r.release_means(many), settings)


def releases_twice(state, r, settings):
    return dp_ogl.run_round(dp_ogl.run_round(state, r, settings), r, settings)


@pytest.mark.parametrize(
    ("own", "changes", "law"),
    [
        (keeps_state, {}, "within an interval, which the bound allows at its start only"),
        (merges_always, {}, "within an interval, which the bound allows at its start only"),
        (releases_twice, {}, "one planned release of a group in this epoch"),
        (None, {"privacy.unit": "sample", "privacy.where": "client"}, "clipped updates of clients"),
        (None, {"privacy.where": "client"}, "one planned release of a group in this epoch"),
        (None, {"sampling.clients": {"scheme": "full"}}, "one planned release of a group in this epoch"),
        (
            None,
            {"sampling.clients": {"scheme": "turns", "groups": 2}, "privacy.noise": "correlated"},
            "planned release of a group",
        ),
    ],
)
def test_other_runs_are_refused(grouped, own, changes, law):
    ledger, bounds = planned(grouped, own, **changes)
    with pytest.raises(Refused, match=law):
        bounds.check_run(ledger)


class Remembering(Simulator):
    """Clients whose next update begins with the last one: state that nothing but this process holds."""

    kept: dict = {}  # noqa: RUF012

    def run(self, call):
        for members, ends in super().run(call):
            for row, n in enumerate(members):
                start = call.starts if call.starts.dim() == 1 else call.starts[list(call.cohort).index(n)]
                before = self.kept.get((id(self), n), torch.zeros_like(start))
                self.kept[id(self), n] = ends[row] - start
                ends[row] += 0.9 * before
            yield members, ends


@pytest.mark.parametrize("optimizer", [{"local.momentum": 0.9}, {"local.optimizer": "adam"}], ids=["momentum", "adam"])
@pytest.mark.parametrize("worker", [Simulator, Remembering])
def test_no_optimiser_outlives_an_epoch(grouped, tmp_path, optimizer, worker):
    """A run that goes on in the middle of an interval has its checkpoint only; with planted state it ends elsewhere."""
    setting = engine.calibrate_noise(engine.build_experiment(grouped(**optimizer)))
    ends = []
    for name in ("whole", "broken"):
        engine.new_directory(setting.experiment, tmp_path / name)
        if name == "broken":
            with suppress(Crash):
                engine.run_loop(setting, tmp_path / name, worker, resume=False, on_round=crash_after(3))
        engine.run_loop(setting, tmp_path / name, worker, resume=name == "broken")
        ends.append((tmp_path / name / MODEL).read_bytes())
    assert (ends[0] == ends[1]) == (worker is Simulator)


def crash_after(number):
    def watch(row):
        if row["round"] == number:
            raise Crash

    return watch


def test_a_bridge_is_felt_from_the_interval_after_the_subject_reached_it():
    """Worker 1 carries what worker 0 did in the first interval into the second group in the second one."""
    groups, gain, push = ((0, 1), (1, 2)), [0.0, 1.5, 0.0], [1.0, 0.0, 0.0]
    for epochs in (2, 3):
        exact, _ = exact_divergence(groups, 1, epochs, gain, push, SIGMA, subject=0, seen=[1], order=2.0)
        bounds = bounds_of(groups, 3, 1, epochs)
        of = [int(kind) for kind in bounds.pairs.class_of]
        claimed = divergence(bounds.cut_ingredients(of[0], of[2], frozenset({1})), 2.0)
        assert (exact > 0) == (epochs == 3)
        assert exact <= claimed
