"""Bounds by the claimed curve: never beyond the truth more often than they say, near it, and broken noise is refuted."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import optimize, stats

from sightline import accounting
from sightline.accounting.calibration import TradeOff, claimed_curve
from sightline.apps.audit import audit
from sightline.apps.audit.canary_setup import AttackedPair
from sightline.apps.audit.many_canaries import ScoredCanaries, against_curve, against_rates
from sightline.apps.audit.trade_off import (
    ClaimedFamily,
    guesses_refute,
    least_factor,
    rates_refute,
    summed_curve,
    summed_deltas,
    summed_epsilon,
)
from sightline.apps.cli.main import run_arguments, sightline
from sightline.config import parse, to_toml
from sightline.events import Gaussian, Poisson, Repeat
from tests.audit.breaking import everybody_is_sampled, halved
from tests.laws.combinations import Combination, plain

DELTA = 1e-5
ALARMS = (1e-5, 1e-3, 0.05, 0.3, 0.7, 0.99)


@pytest.mark.parametrize("strength", [0.3, 1.0, 1.7, 4.0])
def test_the_curve_of_a_gaussian_is_the_exact_one(strength):
    curve = claimed_curve({Gaussian(2 / strength): 4})
    for alarms in ALARMS:
        exact = stats.norm.cdf(stats.norm.ppf(alarms) + strength)
        assert exact <= curve.most_hits(alarms) <= exact + 3e-4
        assert curve.least_alarms(exact) <= alarms * (1 + 1e-9)


def test_no_test_of_sampled_rounds_is_above_their_curve():
    """The likelihood ratio is the best test there is; 10^6 draws of it stay below the curve, and near it."""
    rate, noise, rounds, draws = 0.3, 0.9, 4, 10**6
    curve, rng = claimed_curve({Poisson(rate, Gaussian(noise)): rounds}), np.random.default_rng(0)
    inside = sampled_losses(rng, np.ones(draws, dtype=bool), rate, noise, rounds)
    outside = sampled_losses(rng, np.zeros(draws, dtype=bool), rate, noise, rounds)
    for alarms in (1e-3, 0.05, 0.3):
        hits = float((inside >= np.quantile(outside, 1 - alarms)).mean())
        assert hits == pytest.approx(curve.most_hits(alarms), abs=5 * math.sqrt(hits * 2 / (draws * alarms)) + 1e-3)


def sampled_losses(rng, inside, rate, noise, rounds):
    """The log-likelihood ratio of canaries, of whom some are in, by rounds that sample them."""
    drawn = (rng.random((len(inside), rounds)) < rate) & inside[:, None]
    seen = drawn + noise * rng.standard_normal((len(inside), rounds))
    return np.log1p(rate * np.expm1((seen - 0.5) / noise**2)).sum(axis=1)


def most_likely(curve, canaries, guesses, right):
    """Return how likely `right` correct guesses can be: a linear program over all distributions of the count."""
    counts = np.arange(guesses + 1)
    rows, limits = [], []
    for i in range(1, guesses + 1):
        good = np.where(counts >= i, counts, 0) / canaries
        bad = np.where(counts >= i - 1, guesses - counts, 0) / canaries
        for offset, slope in zip(curve.offset, curve.slope, strict=True):
            rows.append(good - slope * bad)
            limits.append(offset)
    every = np.ones((1, guesses + 1))
    found = optimize.linprog(-(counts >= right).astype(float), rows, limits, every, [1.0])
    return -found.fun


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "epsilon", "delta"),
    [(12, 12, 10, 1.0, 0.0), (12, 6, 6, 1.0, 0.01), (30, 8, 7, 0.5, 0.02), (10, 10, 10, 0.0, 0.05)],
)
def test_guesses_refute_where_the_linear_program_says_so(canaries, guesses, right, epsilon, delta):
    curve = TradeOff.from_deltas(np.array([0.0, epsilon]), np.array([math.expm1(epsilon) * 0.4 + delta, delta]))
    most = most_likely(curve, canaries, guesses, right)
    assert 0 < most < 1
    assert not guesses_refute(curve, canaries, guesses, right, error=most * (1 - 1e-6))
    assert guesses_refute(curve, canaries, guesses, right, error=most * (1 + 1e-6))


def test_canaries_that_share_everything_are_not_taken_for_more():
    """With probability delta all is told: (0, delta)-private, and all canaries are guessed or none better than by luck."""
    delta, canaries = 0.04, 10
    curve = TradeOff.from_deltas(np.zeros(1), np.array([delta]))
    truth = delta + (1 - delta) * 2.0**-canaries
    assert not guesses_refute(curve, canaries, canaries, canaries, error=truth * (1 - 1e-9))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_never_refuted_where_it_should_not_be(epsilon):
    curve, honest = TradeOff.from_deltas(np.array([epsilon]), np.zeros(1)), 1 / (1 + math.exp(-epsilon))
    for right in range(30, 51):
        assert not guesses_refute(curve, 50, 50, right, error=stats.binom.sf(right - 1, 50, honest) * 0.999)


STEPS = {Repeat(3, Poisson(0.3, Gaussian(0.8))): 2}


@pytest.mark.parametrize("events", [{Gaussian(0.8): 2}, {Poisson(0.2, Gaussian(1.0)): 5}])
def test_single_steps_are_their_composition(events):
    epsilons = np.array([0.0, 0.5, 2.0, 4.0])
    exact = np.array([accounting.delta(events, float(epsilon)) for epsilon in epsilons])
    assert np.all(summed_deltas(events, epsilons) >= exact * (1 - 1e-3))
    assert summed_deltas(events, epsilons) == pytest.approx(exact, abs=4e-3)
    lower, upper = accounting.interval(events, DELTA)
    assert upper - 0.03 <= summed_epsilon(events, DELTA) <= upper
    assert lower <= upper


def test_the_sum_of_steps_tells_less_and_as_much_as_draws_say():
    epsilons, draws, rng = np.array([0.0, 0.5, 1.0, 2.0]), 10**6, np.random.default_rng(1)
    deltas, std = summed_deltas(STEPS, epsilons), 0.8 * math.sqrt(3)
    chance = stats.binom.pmf(np.arange(4), 3, 0.3)

    def loss(seen):
        return np.log(sum(p * np.exp((seen * b - b * b / 2) / std**2) for b, p in enumerate(chance))).sum(axis=1)

    noise = std * rng.standard_normal((draws, 2))
    ahead, back = loss(rng.binomial(3, 0.3, (draws, 2)) + noise), -loss(noise)
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        seen = [np.maximum(0, -np.expm1(epsilon - np.maximum(one, epsilon))) for one in (ahead, back)]
        assert delta == pytest.approx(max(one.mean() for one in seen), abs=5e-3)
        assert delta < accounting.delta(STEPS, float(epsilon)) + 1e-9
    assert summed_epsilon(STEPS, DELTA) < 0.97 * accounting.epsilon(STEPS, DELTA)


def gaussian_scores(rng, inside, noise):
    return inside / noise + rng.standard_normal(len(inside))


def summed_scores(rng, inside, noise):
    hits = rng.binomial(3, 0.3, (len(inside), 2)) * inside[:, None]
    return (hits + noise * math.sqrt(3) * rng.standard_normal((len(inside), 2))).sum(axis=1)


EXACT = {
    "gaussian": ({Gaussian(0.6): 1}, lambda rng, inside: gaussian_scores(rng, inside, 0.6)),
    "sampled": ({Poisson(0.5, Gaussian(1.0)): 6}, lambda rng, inside: sampled_losses(rng, inside, 0.5, 1.0, 6)),
    "summed": (STEPS, lambda rng, inside: summed_scores(rng, inside, 0.8)),
}


def found_by(family, draw, seed, *, canaries, confidence=0.95, upper=0.0):
    """Both findings on canaries of a mechanism that is known exactly; the threshold is learnt on others."""
    rng = np.random.default_rng(seed)
    inside = rng.random(2 * canaries) < 0.5
    score = draw(rng, inside)
    first = slice(0, canaries)
    threshold = (score[first][inside[first]].mean() + score[first][~inside[first]].mean()) / 2
    scored = ScoredCanaries(score[canaries:], inside[canaries:], threshold, "exact", 1)
    sight = AttackedPair(0, "public", upper, DELTA)
    return [against(sight, family, scored, confidence=confidence) for against in (against_curve, against_rates)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_the_bound_exceeds_the_truth_as_seldom_as_it_says(kind):
    """100 audits at 80%: more than 33 misses have odds below 1e-3. The truth is what the mechanism really has."""
    events, draw = EXACT[kind]
    family, misses = ClaimedFamily(events), np.zeros(2)
    truth = family.epsilon(1.0, DELTA)
    for seed in range(100):
        found = found_by(family, draw, seed, canaries=400, confidence=0.8)
        misses += [one.lower > truth or one.refuted for one in found]
    assert np.all(misses <= 33), misses


@pytest.mark.parametrize("kind", EXACT)
def test_what_is_found_is_below_the_truth_and_near_it(kind):
    events, draw = EXACT[kind]
    family = ClaimedFamily(events)
    truth = family.epsilon(1.0, DELTA)
    curve, rates = found_by(family, draw, 5, canaries=4000, confidence=1 - 1e-4)
    assert 0.12 * truth < curve.lower < truth
    assert 0.4 * truth < rates.lower < truth
    assert not curve.refuted
    assert not rates.refuted


def test_half_the_noise_is_refuted_by_both():
    family = ClaimedFamily({Gaussian(1.2): 1})
    for one in found_by(family, EXACT["gaussian"][1], 5, canaries=4000):
        assert one.refuted
        assert one.lower > accounting.epsilon({Gaussian(1.2): 1}, DELTA)


def test_the_least_factor_is_where_refuting_begins():
    family = ClaimedFamily({Gaussian(1.0): 1})
    for strength in (0.2, 1.0, 2.5):
        hits = float(stats.norm.cdf(strength / 2))
        found = least_factor(family, lambda curve, hits=hits: rates_refute(curve, hits=hits, alarms=1 - hits))
        assert found == pytest.approx(1 / strength, rel=4e-3)
        assert found >= 1 / strength
    assert least_factor(family, lambda curve: False) == math.inf
    assert summed_curve(STEPS).most_hits(0.1) < claimed_curve(STEPS).most_hits(0.1)


LOUD = {"privacy": {"noise_multiplier": 0.9}}
QUIET = {"privacy": {"noise_multiplier": 1.8}}


def audited(changes=None, trials=20, canaries=300, runs=4, rounds=2, confidence=1 - 1e-4, observer=None, **words):
    file = plain(Combination(**words))
    for section, keys in (changes or {}).items():
        file[section] = file[section] | keys
    found = audit(
        parse(file), trials=trials, canaries=canaries, runs=runs, rounds=rounds, delta=DELTA, confidence=confidence,
        seed=1, observer=observer,
    )  # fmt: skip
    return found, {finding.method: finding for finding in found.findings}


CENTRAL = {"full": {}, "sampled": {"clients": "poisson"}}


@pytest.mark.slow
@pytest.mark.parametrize("words", CENTRAL.values(), ids=CENTRAL)
def test_half_of_a_central_claim_is_found(words):
    found, by = audited(changes=LOUD, confidence=0.95, canaries=500, **words)
    assert not found.broken
    assert by["scores"].lower == found.lower >= 0.5 * found.upper
    assert by["curve"].lower >= 0.15 * found.upper


def test_half_the_noise_of_the_engine_is_refuted(monkeypatch):
    halved(monkeypatch)
    found, by = audited(changes=QUIET, confidence=0.95, canaries=600)
    assert found.broken
    assert by["curve"].refuted
    assert by["scores"].lower > by["scores"].upper


@pytest.mark.slow
def test_a_sampler_that_takes_everybody_is_refuted(monkeypatch):
    everybody_is_sampled(monkeypatch)
    rarely = {"sampling": {"clients": {"scheme": "poisson", "rate": 0.2}}}
    found, by = audited(changes=LOUD | rarely, clients="poisson", confidence=0.95)
    assert found.broken
    assert by["scores"].refuted


MANY = {"data": {"clients": 2}, "local": {"steps": 4}}
SAMPLE = {"unit": "sample", "where": "client", "samples": "poisson", "changes": MANY}


@pytest.mark.slow
def test_examples_are_measured_by_the_sum_of_their_steps(monkeypatch):
    found, by = audited(**SAMPLE, runs=60, canaries=1000)
    assert not found.broken
    assert 0 < found.lower < found.upper
    halved(monkeypatch)
    found, by = audited(**SAMPLE, runs=60, canaries=1000, confidence=0.95)
    assert by["scores"].details["noise_below"] < 1


BLURRED = {
    "balanced": {"clients": "balanced"},
    "split": {"split": "yes"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl", "clients": "poisson"},
    "means of sampled steps": {"unit": "sample", "where": "client", "samples": "poisson", "observer": "public"},
}


@pytest.mark.parametrize("words", BLURRED.values(), ids=BLURRED)
def test_where_the_curve_is_not_that_of_what_is_read_the_older_bounds_stand(words):
    _, by = audited(canaries=20, **words)
    assert set(by) == {"repeated", "canaries"}


def test_the_command_says_one_number_at_the_files_own_delta(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(parse(plain(Combination()))))
    asked = ["audit", str(file), "--set", "privacy.delta=0.01", "--trials", "20", "--canaries", "100", "--runs", "2"]
    done = CliRunner().invoke(sightline, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["delta"], told["file_delta"], told["runs"]) == (0.01, 0.01, 2)
    assert [one["method"] for one in told["findings"]] == ["repeated", "canaries", "curve", "scores"]
    assert told["epsilon_lower"] == max(one["epsilon_lower"] for one in told["findings"] if one["delta"] == 0.01)
    said = CliRunner().invoke(sightline, asked).stdout
    assert "at delta 0.0003" in said
    assert "by independent scores against the claimed curve" in said
    assert run_arguments([*asked[:-1], "-1"]) == 2
