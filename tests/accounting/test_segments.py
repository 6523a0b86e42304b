"""Segments of hidden steps: golden values, and oracles that know nothing of the laws: enumerated adversarial chains."""

import math
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from sightline import accounting
from sightline.accounting import Accountant
from sightline.accounting.dominating_pairs import TwoSided
from sightline.accounting.mixtures import Pair, convex_mixture, mixture_law
from sightline.errors import InvalidInput, Refused
from sightline.events import ConvexSegment, Gaussian, Poisson, ReplacedSegment, Segment

ROWS = tomllib.loads((Path(__file__).parents[1] / "golden" / "segments.toml").read_text())["row"]
ROUNDED = 6e-5
FEW, MANY = range(25), range(1000)
"""Random cases by their seed: at every run, and with the slow tests."""
seeds = pytest.mark.parametrize("seeds", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)])  # fmt: skip


def scheme_of(row):
    return getattr(accounting, row["scheme"])(**row["arguments"])


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_golden_rows_hold(row):
    epsilon = scheme_of(row).epsilon(delta=1e-5)
    assert row["epsilon"] - (ROUNDED if round(row["epsilon"], 3) != row["epsilon"] else 6e-4) <= epsilon
    assert epsilon <= row["epsilon"] + 1e-3


@pytest.mark.parametrize("row", [row for row in ROWS if "before" in row], ids=lambda row: row["name"])
def test_what_it_was_before(row):
    given = row["arguments"]
    whole = 1 - (1 - given["rate"]) ** given["steps"]
    before = accounting.poisson(noise=1.0, rate=whole, steps=given["segments"]).epsilon(delta=1e-5)
    assert before == pytest.approx(row["before"], abs=1e-3)


@pytest.mark.parametrize("row", [row for row in ROWS if "others" in row], ids=lambda row: row["name"])
def test_the_other_law_of_a_replaced_segment(row):
    """The smaller of two valid bounds is taken, and which it is depends on the number of segments."""
    ((event, times),) = scheme_of(row).events
    laws = sorted(
        accounting.pld.pld_epsilon({one: times}, 1e-5)
        for one in (
            event,
            TwoSided(**{name: getattr(event, name) for name in ("steps", "rate", "first_step", "event")}),
        )
    )
    assert laws[0] == pytest.approx(row["epsilon"], abs=1e-3)
    assert laws[1] == pytest.approx(row["others"]["other_law"], abs=1e-3)


def test_convex_segments_under_replace_one():
    """No command asks for it; the law of the two mixtures is checked against the note's 5.9786."""
    held = convex_mixture(ConvexSegment(10, 0.1, Gaussian(2.0)), 1e-16)
    pair = Pair(held, held.mirrored)
    law = mixture_law(pair, 1e-3, 1e-16)
    found = np.maximum(np.exp(law.loss) - math.exp(5.9786 + 5e-4), 0) @ law.mass + law.infinite
    assert found < 1e-5 < np.maximum(np.exp(law.loss) - math.exp(5.9786 - 5e-4), 0) @ law.mass + law.infinite


def exact_delta(p, q, epsilon):
    """E_Q(L - e^eps)_+ of two mixtures of unit Gaussians on a line, by a fine sum; each is (weights, places)."""
    low = min(p[1].min(), q[1].min()) - 12
    high = max(p[1].max(), q[1].max()) + 12
    y = np.linspace(low, high, 8001)
    density = [
        np.exp(-((y[:, None] - places) ** 2) / 2) @ weights / math.sqrt(2 * math.pi) for weights, places in (p, q)
    ]
    above = np.maximum(density[0] - math.exp(epsilon) * density[1], 0)
    return float(above.sum() * (y[1] - y[0]))


def both_ways(p, q, epsilon):
    return max(exact_delta(p, q, epsilon), exact_delta(q, p, epsilon))


def patterns_of(steps, rate):
    """Every way in which the steps can draw the subject, with its probability."""
    ways = np.array(list(product((0, 1), repeat=steps)))
    return ways, np.prod(np.where(ways == 1, rate, 1 - rate), axis=1)


def onto_ball(value, radius):
    length = np.linalg.norm(value)
    return value if length <= radius else value * (radius / length)


class Chain:
    """m steps in a ball in one or two dimensions; the others' gradients and the subject's are arbitrary maps."""

    def __init__(self, rng, dimension):
        self.rng, self.dimension = rng, dimension
        self.steps, self.rate = int(rng.integers(1, 6)), float(rng.choice([0.05, 0.2, 0.5, 0.9]))
        self.ball, self.eta = 1.0, 0.3
        self.first = float(rng.choice([0.05, 0.3, 1.0])) * 2  # d1, clipped examples over the fixed divisor
        self.slope = rng.normal(size=(dimension, dimension)) * rng.choice([0.0, 3.0, 50.0])
        self.push = rng.normal(size=dimension) * rng.choice([0.1, 1.0, 5.0])
        self.turn = rng.choice([-1.0, 1.0])

    def others(self, w, touched):
        """Adversarial: once the path is not the one without the subject, they may turn round."""
        pushed = self.push * (-self.turn if touched else 1.0)
        return self.slope @ w + pushed

    def end(self, draws, sign):
        w, touched = np.zeros(self.dimension), False
        own = -sign * np.sign(self.turn) * self.push
        for drawn in draws:
            step = self.others(w, touched)
            if drawn and sign:
                step, touched = step + onto_ball(own * 1e3, self.first), True
            w = w - self.eta * onto_ball(step, self.ball)
        return w

    @property
    def sensitivity(self):
        return 2 * self.eta * self.steps * self.ball


def segment_event(chain, noise, kind=Segment):
    return kind(chain.steps, chain.rate, chain.first / (2 * chain.ball), Gaussian(noise))


def on_line(ends, origin, other):
    """The ends along the line between two points, in the plane's worst direction for these two."""
    direction = other - origin
    length = np.linalg.norm(direction)
    return (ends - origin) @ (direction / length) if length else np.zeros(len(ends))


@seeds
def test_no_chain_of_clipped_steps_costs_more_than_a_segment(seeds):
    """Enumeration over all draws; a projection onto a line is a function of the release, so it costs no more."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        chain, noise = Chain(rng, int(rng.integers(1, 3))), float(rng.choice([0.3, 0.6, 1.0, 2.0]))
        ways, chances = patterns_of(chain.steps, chain.rate)
        ends = np.array([chain.end(draws, 1) for draws in ways])
        without = chain.end(np.zeros(chain.steps), 0)
        std = noise * chain.sensitivity
        places = on_line(ends, without, ends[-1]) / std
        epsilon = float(rng.uniform(0, 3))
        truth = both_ways((chances, places), (np.ones(1), np.zeros(1)), epsilon)
        assert truth <= accounting.delta({segment_event(chain, noise): 1}, epsilon) * (1 + 1e-6) + 1e-12, seed


@seeds
def test_no_chain_costs_more_than_a_replaced_segment(seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        chain, noise = Chain(rng, int(rng.integers(1, 3))), float(rng.choice([0.3, 0.6, 1.0, 2.0]))
        ways, chances = patterns_of(chain.steps, chain.rate)
        one, other = (np.array([chain.end(draws, sign) for draws in ways]) for sign in (1, -1))
        std = noise * chain.sensitivity
        places = [on_line(ends, other[-1], one[-1]) / std for ends in (one, other)]
        epsilon = float(rng.uniform(0, 3))
        truth = both_ways((chances, places[0]), (chances, places[1]), epsilon)
        event = segment_event(chain, noise, ReplacedSegment)
        assert truth <= accounting.delta({event: 1}, epsilon) * (1 + 1e-6) + 1e-12, seed


def softmax_step(w, x, y, drawn, eta, divisor):
    """w - eta / b times the sum of the drawn examples' gradients."""
    scores = x[drawn] @ w.T
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = scores / scores.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), y[drawn]] -= 1
    return w - eta / divisor * (p.T @ x[drawn])


@seeds
def test_no_chain_of_softmax_steps_costs_more_than_a_convex_segment(seeds):
    """All draws of one example enumerated, those of the others fixed; features of norm one, no clipping."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        examples, classes, steps = int(rng.integers(2, 6)), int(rng.integers(2, 4)), int(rng.integers(1, 6))
        x = rng.normal(size=(examples, 3)) * rng.choice([0.1, 3.0], size=(examples, 1))
        x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        y, rate, divisor = rng.integers(classes, size=examples), float(rng.choice([0.1, 0.4, 0.8])), 2.0
        eta = float(rng.uniform(0.2, 1.0)) * 2 * divisor / (0.5 * (examples - 1))  # up to eta beta |B| / b = 2
        others = rng.random((steps, examples - 1)) < 0.7
        sensitivity, start = math.sqrt(2) * eta / divisor, rng.normal(size=(classes, 3)) * 3

        def end(draws, x=x, y=y, others=others, start=start, eta=eta, divisor=divisor):
            w = start
            for mine, batch in zip(draws, others, strict=True):
                w = softmax_step(w, x, y, np.append(bool(mine), batch), eta, divisor)
            return w.ravel()

        ways, chances = patterns_of(steps, rate)
        ends, without = np.array([end(draws) for draws in ways]), end(np.zeros(steps))
        assert (np.linalg.norm(ends - without, axis=1) <= sensitivity * ways.sum(axis=1) * (1 + 1e-9)).all(), seed
        noise, epsilon = float(rng.choice([0.5, 1.0, 2.0])), float(rng.uniform(0, 3))
        places = on_line(ends, without, ends[-1]) / (noise * sensitivity)
        truth = both_ways((chances, places), (np.ones(1), np.zeros(1)), epsilon)
        event = ConvexSegment(steps, rate, Gaussian(noise))
        assert truth <= accounting.delta({event: 1}, epsilon) * (1 + 1e-6) + 1e-12, seed


def shifts_by_counting(event):
    """(chances, shifts) of the worst case, from every pattern of draws."""
    ways, chances = patterns_of(event.steps, event.rate)
    noise = event.event.noise_multiplier
    if isinstance(event, ConvexSegment):
        return chances, ways.sum(axis=1) / noise
    first = np.where(ways.any(axis=1), ways.argmax(axis=1), event.steps)
    far = event.first_step + event.steps - 1 - first
    return chances, np.where(ways.any(axis=1), far, 0.0) / (event.steps * noise)


@seeds
def test_one_segment_costs_its_worst_case_and_hardly_more(seeds):
    """The same law by enumeration and closed forms: L increases along the line, so both sides end at one point."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        steps, rate, noise = int(rng.integers(2, 9)), 10 ** rng.uniform(-2.5, -0.1), 10 ** rng.uniform(-0.4, 0.8)
        event = [Segment(steps, rate, float(rng.uniform(0.01, 1)), Gaussian(noise)), ConvexSegment(steps, rate, Gaussian(noise))][
            seed % 2
        ]  # fmt: skip
        chances, shifts = shifts_by_counting(event)
        delta = 10 ** rng.uniform(-8, -2)
        epsilon = accounting.epsilon({event: 1}, delta)
        if epsilon == 0:
            continue

        def truth(epsilon, chances=chances, shifts=shifts):
            low, high = -60.0, 60.0 + shifts.max() * 2
            for _ in range(200):
                y = (low + high) / 2
                ratio = np.dot(chances, np.exp(np.minimum(shifts * y - shifts**2 / 2, 700)))
                low, high = (y, high) if ratio < math.exp(epsilon) else (low, y)
            forward = np.dot(chances, ndtr(shifts - y)) - math.exp(epsilon) * ndtr(-y)
            for_less, low, high = math.exp(-epsilon), -60.0, 60.0
            if for_less <= chances[shifts == 0].sum():
                return forward
            for _ in range(200):
                y = (low + high) / 2
                ratio = np.dot(chances, np.exp(np.minimum(shifts * y - shifts**2 / 2, 700)))
                low, high = (y, high) if ratio < for_less else (low, y)
            return max(forward, ndtr(y) - math.exp(epsilon) * np.dot(chances, ndtr(y - shifts)))

        assert truth(epsilon) <= delta * (1 + 1e-9), seed
        assert epsilon < 0.02 or truth(epsilon * (1 - 2e-3) - 1e-3) > delta, seed


def test_more_steps_a_higher_rate_and_a_larger_first_step_cost_no_less():
    """What a round may ask at most is what is claimed."""
    base = {"noise": 1.0, "steps": 4, "rate": 0.1, "segments": 20, "first_step": 0.2}
    for kind in ("add_remove", "replace"):
        at = accounting.segment(**base, adjacency=kind).epsilon(delta=1e-5)
        for more in ({"steps": 5}, {"steps": 40}, {"rate": 0.12}, {"first_step": 0.3}, {"segments": 21}):
            assert accounting.segment(**base | more, adjacency=kind).epsilon(delta=1e-5) > at
    at = accounting.convex(noise=2.0, steps=4, rate=0.1, segments=20).epsilon(delta=1e-5)
    assert accounting.convex(noise=2.0, steps=5, rate=0.1, segments=20).epsilon(delta=1e-5) > at
    assert accounting.convex(noise=2.0, steps=4, rate=0.12, segments=20).epsilon(delta=1e-5) > at


def test_one_step_and_full_batches_are_what_they_were():
    one = accounting.segment(noise=1.5, steps=1, rate=0.1, segments=9).epsilon(delta=1e-5)
    assert one == pytest.approx(accounting.poisson(noise=1.5, rate=0.1, steps=9).epsilon(delta=1e-5), rel=1e-9)
    full = accounting.segment(noise=1.5, steps=7, rate=1.0, segments=9).epsilon(delta=1e-5)
    assert full == pytest.approx(accounting.gaussian(noise=1.5, steps=9).epsilon(delta=1e-5), rel=1e-9)
    assert accounting.convex(noise=7.0, steps=7, rate=1.0, segments=2).epsilon(delta=1e-5) == pytest.approx(
        accounting.gaussian(noise=1.0, steps=2).epsilon(delta=1e-5), rel=1e-9
    )


@pytest.mark.parametrize(
    "words",
    [
        {"noise": 0.02, "steps": 5, "rate": 0.05, "segments": 3},
        {"noise": 1e9, "steps": 5, "rate": 0.05, "segments": 3},
        {"noise": 3.0, "steps": 10**6, "rate": 1e-6, "segments": 10},
        {"noise": 3.0, "steps": 5, "rate": 1e-12, "segments": 10**6},
        {"noise": 3.0, "steps": 5, "rate": 0.999999, "segments": 1000, "first_step": 1e-9},
    ],
)
@pytest.mark.parametrize("accountant", list(Accountant))
def test_extremes_have_bounds(words, accountant):
    for kind in ("add_remove", "replace"):
        scheme = accounting.segment(**words, adjacency=kind)
        known = accounting.epsilon({event.known: times for event, times in scheme.events}, 1e-6)
        assert scheme.epsilon(delta=1e-6, accountant=accountant) >= 0
        if accountant is Accountant.PLD:
            assert scheme.epsilon(delta=1e-6) <= known * (1 + 1e-4)


def test_moments_are_above_the_law():
    for event in (Segment(4, 0.1, 0.2, Gaussian(1.0)), ConvexSegment(4, 0.1, Gaussian(2.0))):
        law, moments = (accounting.epsilon({event: 9}, 1e-6, accountant=kind) for kind in Accountant)
        assert law <= moments <= 1.4 * law


def test_what_is_no_segment_is_refused():
    for wrong in ({"steps": 0}, {"rate": 0.0}, {"rate": 1.1}, {"first_step": 0.0}, {"first_step": 1.01}):
        with pytest.raises(InvalidInput):
            Segment(**{"steps": 3, "rate": 0.1, "first_step": 0.5, "event": Gaussian(1.0)} | wrong)
    with pytest.raises(InvalidInput, match="Gaussian noise"):
        ConvexSegment(3, 0.1, Poisson(0.1, Gaussian(1.0)))
    with pytest.raises(Refused, match="replace-one"):
        accounting.epsilon({ReplacedSegment(3, 0.1, 0.5, Gaussian(1.0)): 1, Poisson(0.1, Gaussian(1.0)): 1}, 1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        ConvexSegment,
        lambda m, q, noise: Segment(m, q, 1.0, noise),
        lambda m, q, noise: ReplacedSegment(m, q, 1.0, noise),
    ],
)
def test_a_segment_is_free_only_where_all_its_draws_are_within_delta(kind):
    """With next to no noise delta is the chance to be drawn at all, in any of the steps."""
    event = kind(100, 1e-6, Gaussian(0.02))
    assert accounting.epsilon({event: 1}, 1.01e-4) == 0.0
    assert accounting.epsilon({event: 1}, 2e-6) > 10
    assert accounting.epsilon({event: 3}, 1.5e-4) > 10
