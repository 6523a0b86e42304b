"""No draw is used twice, the claimed rate is the largest, and what was drawn is seen by nobody but through releases."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from sightline import algorithms, engine, topology
from sightline.apps.audit.canaries import CanaryInclusion, canary_examples
from sightline.config import parse
from sightline.engine import plan_releases
from sightline.engine.execution import AbsentClients, LiveExecution
from sightline.engine.round import TrainingRound
from sightline.events import Adjacency, Allocation, Clear, Gaussian, Poisson, Repeat, Segment
from sightline.ledger import Ledger, export_ledger
from sightline.mechanisms import SAMPLERS, LocalSchedule, Public, ReleaseValues, trim_sources
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import client_name
from sightline.training.dp_sgd_settings import AHEAD, gaussian_steps
from sightline.training.local_work import poisson_batches
from tests.laws.combinations import Combination, plain, planned, refusal
from tests.laws.noise import noted_run

SIGMAS = 6.0
NEVER = 1e-7


def as_drawn(setting, rounds):
    """Cohorts of a setting, by what a round draws: (channel, call) -> (rounds, members) of zeros and ones."""
    drawn, ledger, secret = {}, Ledger(), Streams.from_seed(3)
    execution = LiveExecution(AbsentClients(setting.federation.sizes.tolist()), secret)
    for time in range(1, rounds + 1):
        r = TrainingRound(setting, ledger, execution, time)
        for call in range(1 if setting.experiment.sampling.clients.scheduled else 2):
            for channel in r.channels:
                members = r.sample(channel).members
                row = [int(n in members) for n in channel.members]
                drawn.setdefault((channel.name, call), []).append(row)
    return {key: np.array(rows) for key, rows in drawn.items()}


ROUNDS, EPOCH = 400, 4
PLACES = {
    "star": {},
    "tree": {"topology": "tree", "where": "edge"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl"},
    "clusters": {"topology": "clusters", "algorithm": "oracle_clusters"},
}
SCHEMES = {
    "poisson": {"rate": 0.5},
    "fixed": {"rate": 0.5},
    "balanced": {"uses": 2, "epochs": ROUNDS // EPOCH},
    "check_ins": {"rate": 0.5, "epochs": ROUNDS // EPOCH},
}
USES = {"balanced": {2}, "check_ins": {0, 1}}
"""Scheme -> how often a client may be used in an epoch of four rounds."""
WAYS = [(place, scheme) for place in PLACES for scheme in SCHEMES if place != "clusters" or scheme not in USES]
"""Where members come and go, schedules are refused."""


def drawing(place, scheme):
    """The setting of a way of drawing in a topology."""
    file = plain(Combination(**PLACES[place], clients=scheme)) | {"rounds": ROUNDS}
    file["sampling"]["clients"] = {"scheme": scheme} | SCHEMES[scheme]
    if place == "groups":
        file["topology"]["groups"] = 3
    if place == "tree":
        file["topology"]["trusted"] = 1.0
    return engine.build_experiment(parse(file))


def test_every_sampler_and_topology_is_drawn_from_here():
    assert set(SCHEMES) | {"full", "turns"} == set(SAMPLERS)  # whose turn it is is no draw
    # A node of a graph decides by itself: no party draws it, and nothing is claimed to be hidden.
    assert set(PLACES) | {"graph"} == set(topology.REGISTRY)


@pytest.mark.parametrize(("place", "scheme"), WAYS)
def test_every_channel_call_and_round_has_a_draw_of_its_own(place, scheme):
    found = as_drawn(drawing(place, scheme), ROUNDS)
    for one, other in combinations(found, 2):
        for member in range(min(found[one].shape[1], found[other].shape[1])):
            pair = found[one][:, member], found[other][:, member]
            assert abs(np.corrcoef(*pair)[0, 1]) < SIGMAS / math.sqrt(ROUNDS), (one, other, member)
    for key, rows in found.items():
        for lag in (EPOCH, 2 * EPOCH, ROUNDS // 2) if scheme in USES else (1, 2, 3, ROUNDS // 2):
            both = np.corrcoef(rows[:-lag].T, rows[lag:].T)[: rows.shape[1], rows.shape[1] :]
            assert np.abs(both).max() < SIGMAS / math.sqrt(ROUNDS - lag), (key, lag)


@pytest.mark.parametrize(("place", "scheme"), [way for way in WAYS if way[1] in USES])
def test_a_schedule_uses_nobody_more_often_than_it_claims(place, scheme):
    for rows in as_drawn(drawing(place, scheme), ROUNDS).values():
        uses = rows.reshape(ROUNDS // EPOCH, EPOCH, -1).sum(1)
        assert set(uses.ravel().tolist()) == USES[scheme]


@pytest.mark.parametrize("rate", [0.3, 0.5])
@pytest.mark.parametrize("examples", [50, 1000, 20_000])
def test_examples_are_drawn_afresh_at_every_step(examples, rate):
    """Over more steps than are drawn at once: a batch that comes back would be a draw that was used twice."""
    steps = 2 * max(1, (1 << 14) // examples) + 3
    rng = Streams.from_seed(0).rng(Purpose.BATCHES)
    rows = np.zeros((steps, examples), dtype=bool)
    for step, batch in enumerate(poisson_batches(examples, rate, steps, rng)):
        rows[step, batch] = True
    assert len({row.tobytes() for row in rows}) == steps
    assert stats.binomtest(int(rows.sum()), rows.size, rate).pvalue > NEVER
    counts = rows.sum(0)  # twice the same draws would double their variance
    assert counts.var() == pytest.approx(steps * rate * (1 - rate), rel=SIGMAS * math.sqrt(2 / examples))


@pytest.mark.parametrize("size", [7, 1000, AHEAD + 1])
def test_noise_is_drawn_afresh_at_every_step(size):
    steps = 2 * max(1, AHEAD // size) + 3
    noise = gaussian_steps(size, rng=Streams.from_seed(0).rng(Purpose.NOISE))
    rows = np.array([next(noise).numpy() for _ in range(steps)])
    assert len({row.tobytes() for row in rows}) == steps
    sums = rows.sum(0, dtype=np.float64)  # of the same noise twice it would be sqrt 2 too large
    assert math.sqrt((sums**2).mean() / steps) == pytest.approx(1, rel=SIGMAS / math.sqrt(2 * size))


SIZES = (8, 50, 16, 120, 12, 16)
BATCH = 4


@cache
def telling(**words):
    """A run whose clients' every example moves a coordinate of its own, next to no noise, and how to read it."""
    file = plain(Combination(unit="sample", samples="poisson", **words))
    file["rounds"], file["local"]["learning_rate"] = 40, 1e-4
    file["local"] |= {"steps": 1} if words["where"] == "server" else {}
    setting = engine.build_experiment(parse(file))
    first = np.cumsum((0, *SIZES)).tolist()
    sizes = dict(enumerate(SIZES))
    holders = {n: range(first[n], first[n + 1]) for n in sizes}
    like = replace(
        setting.federation,
        clients=tuple(
            replace(client, train=type(client.train)(np.zeros((size, 1), np.float32), np.zeros(size, np.int64)))
            for client, size in zip(setting.federation.clients, SIZES, strict=True)
        ),
    )
    coins = CanaryInclusion(dict.fromkeys(range(first[-1]), True), Adjacency.ADD_REMOVE)
    loud = canary_examples(like, first[-1], holders, coins)
    setting = engine.build_experiment(setting.experiment, federation=loud)
    setting = replace(setting, start=torch.zeros(setting.model.parameters)).with_noise(dict.fromkeys(sizes, 1e-5))
    return noted_run(setting, 40), holders


def uses_of(value, slots, unit):
    """How often each of the examples was in a batch, read off a released update; `unit` is what one use moves."""
    uses = value[slots.start : slots.stop].double().numpy() / unit
    assert np.abs(uses - uses.round()).max() < 0.05
    return uses.round().astype(int)


def steps_and_rate(event):
    """(steps, rate) that an event claims."""
    times, inner = (event.times, event.event) if isinstance(event, Repeat) else (1, event)
    assert isinstance(inner, Poisson)
    assert isinstance(inner.event, Gaussian)
    return times, inner.rate


UNIT = 1e-4 * 0.5 / math.sqrt(2)
"""What an example of norm C moves its coordinate by, before it is divided by the batch."""


def test_no_example_is_drawn_more_often_than_the_server_claims():
    run, holders = telling(where="server")
    expected = BATCH * len(SIZES)
    rates = {steps_and_rate(release.event) for _, release in run.noisy()}
    assert rates == {(1, BATCH / min(SIZES))}
    used = {
        n: np.array([uses_of(call.value_of(release), slots, UNIT / expected) for call, release in run.noisy()])
        for n, slots in holders.items()
    }
    for n, rows in used.items():
        assert set(rows.ravel()) <= {0, 1}
        assert stats.binomtest(int(rows.sum()), rows.size, BATCH / SIZES[n]).pvalue > NEVER
        assert BATCH / SIZES[n] <= next(iter(rates))[1]
    apart(used, steps=1)


def test_no_example_is_drawn_more_often_than_its_client_claims():
    run, holders = telling(where="client")
    used = {n: [] for n in holders}
    for call, release in run.noisy():
        n = int(release.source.removeprefix("client-"))
        assert steps_and_rate(release.event) == (2, BATCH / SIZES[n])
        used[n].append(uses_of(call.value_of(release), holders[n], UNIT / BATCH))
    rows = {n: np.array(some) for n, some in used.items()}
    for n, some in rows.items():
        assert set(some.ravel()) <= {0, 1, 2}
        assert stats.binomtest(int(some.sum()), 2 * some.size, BATCH / SIZES[n]).pvalue > NEVER
    apart(rows, steps=2)


def apart(used, steps):
    """Nobody's draws tell of another's, nor of its own in another round."""
    scaled = {}
    for n, rows in used.items():
        rate = BATCH / SIZES[n]
        scaled[n] = (rows - steps * rate) / math.sqrt(steps * rate * (1 - rate))
        again = (scaled[n].sum(0) ** 2).mean() / len(rows)  # one draw for all rounds would make it forty
        assert abs(again - 1) < SIGMAS * math.sqrt(2 / rows.shape[1])
    for one, other in combinations(scaled, 2):
        width = min(scaled[one].shape[1], scaled[other].shape[1])
        products = scaled[one][:, :width] * scaled[other][:, :width]
        assert abs(products.mean()) < SIGMAS / math.sqrt(products.size), (one, other)


BY_EXAMPLES = {
    "server": {"where": "server"},
    "client": {"where": "client"},
    "segments": {"where": "edge", "topology": "tree", "algorithm": "h2fdp"},
}


@pytest.mark.parametrize("words", BY_EXAMPLES.values(), ids=BY_EXAMPLES)
def test_the_claimed_rate_is_the_largest_of_those_it_is_claimed_for(words):
    """By hand: b / N of the smallest client, and how many steps are noised as one."""
    file = plain(Combination(unit="sample", samples="poisson", **words))
    file["data"] |= {"size_sigma": 1.2, "size_mean": 3.0}
    file["privacy"] |= {"delta": 1e-4}  # below one over the largest client
    setting = engine.calibrate_noise(engine.build_experiment(parse(file)))
    sizes = setting.federation.sizes.tolist()
    assert len(set(sizes)) > 3
    rate = {client_name(n): min(1.0, BATCH / size) for n, size in enumerate(sizes)}
    channels = {channel.name: channel for channel in (setting.topology.top, *setting.topology.channels)}
    told = 0
    for release in plan_releases(setting):
        if isinstance(release.event, Clear) or not release.subjects:
            continue
        told += 1
        about = channels[release.source].subjects if release.source in channels else {release.source}
        event = release.event.event if isinstance(release.event, Repeat) else release.event
        claimed = 1.0 if isinstance(event, Gaussian) else event.rate
        assert claimed == pytest.approx(max(rate[name] for name in about))
        assert not isinstance(event, Segment) or event.steps == 5
        assert release.subjects <= set(about)
    assert told


def test_a_channel_claims_its_own_rate_and_no_smaller_one_that_was_chosen():
    file = plain(Combination(topology="groups", algorithm="dp_ogl", clients="poisson"))
    file["topology"]["rates"] = [0.7, 0.3]
    setting = engine.calibrate_noise(engine.build_experiment(parse(file)))
    claimed = {r.source: r.event.rate for r in plan_releases(setting) if not isinstance(r.event, Clear) and r.subjects}
    assert claimed == {"group-0": 0.7, "group-1": 0.3}
    setting = drawing("tree", "poisson")
    ledger, execution = Ledger(), Chosen(setting.federation.sizes.tolist(), 1)
    r = TrainingRound(setting, ledger, execution, 1)
    r.control.set_schedule(LocalSchedule(rates={channel.name: 0.1 for channel in r.channels}), most_steps=2)
    for channel in r.channels:
        r.release_mean(r.train(r.sample(channel), Public(torch.zeros(1))), channel)
    rates = {release.event.rate for release in ledger if isinstance(release.event, Poisson)}
    assert rates == {0.5}


class Chosen(LiveExecution):
    """An execution whose cohorts are given and whose released values do not depend on who is in them."""

    def __init__(self, sizes, dimension, some=None):
        super().__init__(AbsentClients(sizes, dimension=dimension), Streams.from_seed(0))
        self.some = some

    def draw_members(self, sampler, channel, time, rng, *, line):
        return channel.members if self.some is None else tuple(n for n in channel.members if self.some(n, time))

    def compute_values(self, updates, context, compute):
        rng = np.random.default_rng([context.time, context.use, updates.at.part])
        who = (EVERYONE, *updates.cohort.members)
        return ReleaseValues(dict.fromkeys(who, torch.from_numpy(rng.standard_normal(self.worker.dimension)).float()))

    def collect_choices(self, ballot, context):
        return {n: n % len(ballot.candidates) for n in ballot.choosers.members}


HIDES_NOTHING = {"dsgd", "local", "mrmtl", "ifca", "rdpcfl", "pedpfl", "hfl", "hfl_dp"}
"""Algorithms none of whose releases at the client unit claims that nobody knows who took part."""


def hiding(name):
    """The algorithm wherever its releases claim that nobody knows who took part."""
    for place in algorithms.REGISTRY[name].facts.topologies:
        for scheme in ("poisson", "balanced"):
            where = "edge" if place == "tree" else "server"
            c = Combination(topology=place, algorithm=name, clients=scheme, where=where)
            if not refusal(c) and any(isinstance(r.event, Poisson | Allocation) for r in planned(c)[0]):
                yield c


def public_of(setting, some):
    """Everything that others than the trusted may see of some rounds: state, ledger, and what is counted."""
    ledger, execution = Ledger(), Chosen(setting.federation.sizes.tolist(), setting.model.parameters, some)
    state = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
    memories, counts = {}, []
    for time in range(1, 4):
        setting = setting.as_found(state)
        r = TrainingRound(setting, ledger, execution, time, memories)
        after = setting.algorithm.round(state, r, setting.settings)
        state = trim_sources(after, ledger)
        memories = r.memories
        counts.append(dict(r.counts))
    values = {name: (value.value.tolist(), sorted(value.sources)) for name, value in state.items()}
    return values, export_ledger(ledger), counts


def test_who_draws_a_cohort_is_said_to_know_it():
    """A cohort is not hidden from the party that drew it, even if that party is trusted and may collude."""
    told = {}
    for name in algorithms.REGISTRY:
        for c in hiding(name):
            for release in planned(c)[0]:
                if isinstance(release.event, Poisson | Allocation):
                    told[c.topology, release.source] = release.source in release.coins_known_to
    assert {place for place, _ in told} == set(topology.REGISTRY) - {"graph"}
    assert all(told.values())


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_a_hidden_cohort_is_seen_by_nobody_but_through_what_is_released(name):
    """For every cohort: with the same released values, all else that is public is the same, to the last bit."""
    found = list(hiding(name))
    assert bool(found) == (name not in HIDES_NOTHING)
    for c in found:
        file = plain(c)
        if c.topology == "tree":
            file["topology"]["trusted"] = 1.0
        setting = engine.calibrate_noise(engine.build_experiment(parse(file)))
        everybody = public_of(setting, lambda n, time: True)
        assert public_of(setting, lambda n, time: (n + time) % 3 == 0) == everybody, c
        assert public_of(setting, lambda n, time: n == 1) == everybody, c
