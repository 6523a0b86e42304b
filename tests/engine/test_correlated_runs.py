"""Correlated noise in whole runs: what is published has the noise of C^-1 z, is charged once, and survives a crash."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import sightline
from sightline import accounting, engine
from sightline.accounting import charge_stream, compute_errors, compute_sensitivity, make_strategy, redo_multiplier
from sightline.accounting.strategies import make_buffers
from sightline.engine import loop
from sightline.engine.execution import LiveExecution
from sightline.engine.round import TrainingRound
from sightline.errors import InvalidInput, Refused
from sightline.events import Clear, Gaussian, Poisson
from sightline.ledger import Ledger
from sightline.mechanisms import Cohort, NoiseStreams, Public
from sightline.mechanisms.contract import NoiseRow
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.runtimes.site.planned_calls import record_calls
from tests.engine.conftest import TINY, changed
from tests.engine.leftovers import Crash, crash_in, left_behind

TURNS = {"sampling.clients": {"scheme": "turns", "groups": 3}}
STREAM = TURNS | {"privacy.noise": "correlated", "rounds": 7}
DRAWN = STREAM | {"sampling.clients": {"scheme": "turns", "groups": 3, "rate": 0.5}}
TREE = {"topology": {"kind": "tree", "subnets": 2, "trusted": 1.0}}
GROUPS = {
    "topology": {"kind": "groups", "structure": "ring", "groups": 2, "period": 2},
    "algorithm": {"name": "dp_ogl"},
    "rounds": 6,
}


def dense(strategy):
    """C, entry by entry."""
    c = list(strategy.coefficients) + [0.0] * strategy.steps
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(strategy.steps)] for i in range(strategy.steps)])


class Known:
    """Clients whose updates are known: client n sends a multiple of one coordinate, or nothing."""

    nodes = None

    def __init__(self, dimension, sizes, *, silent=False):
        self.dimension, self.sizes, self.silent = dimension, sizes, silent
        self.asked = []

    def run(self, call):
        cohort = call.cohort
        self.asked.append((call.at.round, tuple(cohort)))
        if cohort:
            moved = torch.zeros(len(cohort), self.dimension)
            if not self.silent:
                moved[range(len(cohort)), list(cohort)] = 0.1
            yield cohort, call.starts + moved

    def close(self):
        """Nothing to let go."""


def at_work(experiment, rounds, *, dimension=40, seed=5, silent=True):
    """The engine's own rounds on known clients: (setting, ledger, (round, channel) -> value, the streams)."""
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    setting = replace(setting, start=torch.zeros(dimension))
    secret, ledger, values = Streams.from_seed(seed), Ledger(), {}
    worker = Known(dimension, setting.federation.sizes.tolist(), silent=silent)

    class Noted(LiveExecution):
        def compute_values(self, updates, context, compute):
            found = super().compute_values(updates, context, compute)
            values[context.time, context.channel.name] = found.values[EVERYONE].double() * context.sampler.expected
            return found

    execution = Noted(worker, secret)
    state = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
    for time in range(1, rounds + 1):
        r = TrainingRound(setting, ledger, execution, time)
        state = setting.algorithm.round(state, r, setting.settings)
    return setting, ledger, values, secret, worker


def fresh_rows(ledger, secret, channel, line, dimension):
    """Every z of a channel, drawn as the streams' rules say, from the numbers of its releases."""
    mine = [release for release in ledger if release.source == channel and "correlated" in release.what]
    return np.array(
        [
            secret.rng(Purpose.CORRELATED, round=r.time, participant=EVERYONE - line, use=r.id).standard_normal(
                dimension
            )
            for r in mine
        ]
    )


STRATEGIES = {
    "bsr": make_strategy("bsr", steps=12, separation=4, uses=3),
    "few bands": make_strategy("bsr", steps=12, separation=4, uses=3, bands=2),
    "band": make_strategy("band", steps=12, separation=4, uses=3),
    "blt": make_buffers((0.25, 0.25), (0.95, 0.6), steps=12),
    "all bands": make_strategy("bsr", steps=12, separation=4, uses=3, bands=12),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("dimension", [3, 40_000])
def test_rows_of_noise_are_those_of_the_dense_inverse(name, dimension):
    """n = C^-1 z to 1e-12, over chunks of coordinates too; asked again, a row is the same."""
    strategy, secret = STRATEGIES[name], Streams.from_seed(3)
    streams, rows = NoiseStreams(secret), []
    for step in range(strategy.steps):
        row = NoiseRow("server, noise stream 1", "server, noise stream 1", step, step + 1, 2 * step + 1)
        rows.append(streams.draw_noise(row, strategy, dimension, ()).copy())
        np.testing.assert_array_equal(streams.draw_noise(row, strategy, dimension, ()), rows[-1])
    fresh = np.array(
        [
            secret.rng(Purpose.CORRELATED, round=t + 1, participant=EVERYONE, use=2 * t + 1).standard_normal(dimension)
            for t in range(strategy.steps)
        ]
    )
    np.testing.assert_allclose(np.array(rows), np.linalg.solve(dense(strategy), fresh), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "changes", [STREAM, STREAM | TREE, STREAM | GROUPS, DRAWN], ids=["star", "tree", "groups", "drawn"]
)
def test_a_run_publishes_the_sums_with_the_noise_of_the_dense_inverse(tiny, changes):
    """Clients that send nothing: what every channel publishes is sigma S C^-1 z, and no two channels share a row."""
    rounds, dimension = changes["rounds"], 40
    setting, ledger, values, secret, _ = at_work(tiny(**changes), rounds, dimension=dimension)
    channels = sorted({name for _, name in values})
    assert len(channels) == (1 if "topology" not in changes else 2)
    seen = []
    for name in channels:
        channel = next(c for c in (*setting.topology.channels, *setting.topology.gathering_channels) if c.name == name)
        fresh = fresh_rows(ledger, secret, name, setting.channel_number(channel), dimension)
        strategy = setting.mechanism.stream.strategy
        published = np.array([values[time, name].numpy() for time in range(1, rounds + 1)])
        np.testing.assert_allclose(
            published / (0.8 * 0.5), np.linalg.solve(dense(strategy), fresh), rtol=2e-6, atol=1e-6
        )
        seen += list(fresh)
    assert len({row.tobytes() for row in seen}) == len(channels) * rounds


def test_the_noise_of_many_runs_has_the_covariance_of_the_strategy(tiny):
    setting, _, values, _, _ = at_work(tiny(**STREAM), 7, dimension=20_000)
    rows = np.array([values[time, "server"].numpy() for time in range(1, 8)]) / (0.8 * 0.5)
    inverse = np.linalg.inv(dense(setting.mechanism.stream.strategy))
    assert np.abs(np.cov(rows) - inverse @ inverse.T).max() < 6 * 2 / math.sqrt(rows.shape[1])
    assert np.abs(np.cov(rows) - np.eye(7)).max() > 0.2  # it is not the covariance of independent noise


def brute_force(strategy, apart):
    """Return the longest sum of columns that are `apart` apart."""
    matrix, longest = dense(strategy), 0.0
    for chosen in range(1, 1 << strategy.steps):
        columns = [j for j in range(strategy.steps) if chosen >> j & 1]
        if all(later - earlier >= apart for earlier, later in pairwise(columns)):
            longest = max(longest, float(np.linalg.norm(matrix[:, columns].sum(1))))
    return longest


def test_a_stream_is_one_event_and_charged_with_its_first_round(tiny, tmp_path):
    run = sightline.run(tiny(**STREAM), out=tmp_path / "run")
    whole = run.ledger.composition("client-0", "public")
    (event,), (times,) = zip(*whole.items(), strict=True)
    assert times == 1
    strategy = make_strategy("bsr", steps=7, separation=3, uses=3)
    assert event.noise_multiplier == pytest.approx(0.8 / brute_force(strategy, 3), rel=1e-12)
    assert event.noise_multiplier <= 0.8 / brute_force(strategy, 3)
    for client in range(6):
        assert run.ledger.composition(f"client-{client}", "public") == {event: 1}
        assert run.ledger.composition(f"client-{client}", f"client-{(client + 1) % 6}") == {event: 1}
    said = accounting.gaussian(noise=event.noise_multiplier, steps=1).epsilon(delta=1e-5)
    assert [row["epsilon"]["public"] for row in run.rounds] == [said] * 7
    assert sum(run.ledger.composition("client-1", "server")[Clear()] for _ in "1") in (2, 3)  # its turns


def test_every_observer_has_an_epsilon_of_its_own(tiny, tmp_path):
    """Two edges, each with a stream: an edge is trusted with its own devices, and learns of the others by the cloud."""
    run = sightline.run(tiny(**STREAM, **TREE), out=tmp_path / "run")
    event = charge_stream(make_strategy("bsr", steps=7, separation=3, uses=3), noise=0.8, separation=3, uses=3)
    for observer in ("cloud", "public", "client-0"):
        (found,) = run.ledger.composition("client-5", observer)
        assert found.noise_multiplier == pytest.approx(event.noise_multiplier, rel=1e-12)
    names = {release.joint for release in run.ledger if release.joint}
    assert names == {"edge-0, noise stream 1", "edge-1, noise stream 1"}
    groups = sightline.run(tiny(**STREAM | GROUPS), out=tmp_path / "groups")
    counts = {n: sum(groups.ledger.composition(f"client-{n}", "client-0").values()) for n in range(1, 6)}
    assert set(counts.values()) == {1, 2}  # who bridges two groups is in two streams


def test_turns_without_correlated_noise_are_charged_by_turns(tiny, tmp_path):
    run = sightline.run(tiny(**TURNS, rounds=7), out=tmp_path / "run")
    setting = engine.build_experiment(tiny(**TURNS, rounds=7))
    sampler = setting.sampler_of(setting.topology.top)
    for client in range(6):
        turns = sum(client in sampler.active_places(time) for time in range(1, 8))
        assert turns in (2, 3)
        assert run.ledger.composition(f"client-{client}", "public") == {Gaussian(0.8): turns}
        assert run.ledger.composition(f"client-{client}", "server")[Clear()] == turns
    drawn = {"sampling.clients": {"scheme": "turns", "groups": 3, "rate": 0.5}}
    hidden = sightline.run(tiny(**drawn, rounds=6), out=tmp_path / "hidden")
    assert hidden.ledger.composition("client-0", "public") == {Poisson(0.5, Gaussian(0.8)): 2}


def test_hidden_draws_in_turns_are_charged_turn_by_turn(tiny, tmp_path):
    run = sightline.run(tiny(**DRAWN | {"rounds": 6}), out=tmp_path / "run")
    width = math.sqrt(1 + 0.5**2 + 0.375**2)
    for client in range(6):
        ((event, times),) = run.ledger.composition(f"client-{client}", "public").items()
        assert (event.rate, times) == (0.5, 2)
        assert event.event.noise_multiplier == pytest.approx(0.8 / width, rel=1e-12)


def test_replacing_a_client_doubles_the_noise_and_not_the_charge(tiny):
    setting, _, values, _, _ = at_work(tiny(**STREAM, **{"privacy.adjacency": "replace"}), 7, dimension=5000)
    rows = np.array([values[time, "server"].numpy() for time in range(1, 8)])
    white = dense(setting.mechanism.stream.strategy) @ rows
    assert white.std() == pytest.approx(2 * 0.5 * 0.8, rel=0.03)


@pytest.mark.parametrize("changes", [STREAM, DRAWN, STREAM | GROUPS], ids=["star", "drawn", "groups"])
def test_calibration_meets_its_target(tiny, changes):
    target = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0}
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**changes | target)))
    ledger = engine.plan_releases(setting)
    lines = [line for some in setting.topology.lines.values() for line in some]
    assert ledger.worst_of(lines, 1e-5) == pytest.approx(3.0, rel=1e-4)
    assert ledger.worst_of(lines, 1e-5) <= 3.0


def test_a_budget_stops_between_streams(tiny, tmp_path):
    restart = {"privacy.correlated": {"restart": 3}}
    event = charge_stream(make_strategy("bsr", steps=3, separation=3, uses=1), noise=0.8, separation=3, uses=1)
    limit = accounting.gaussian(noise=event.noise_multiplier, steps=2).epsilon(delta=1e-5) * 1.001
    run = sightline.run(tiny(**STREAM, **restart, **{"privacy.stop_at_epsilon": limit}), out=tmp_path / "run")
    assert run.summary["rounds_done"] == 6
    ((found, times),) = run.ledger.composition("client-3", "public").items()
    assert (found.noise_multiplier, times) == (pytest.approx(event.noise_multiplier, rel=1e-12), 2)
    whole = sightline.run(tiny(**STREAM, **restart), out=tmp_path / "whole")
    assert sum(whole.ledger.composition("client-3", "public").values()) == 3


def test_streams_share_no_noise(tiny):
    """After a restart the same places of streams have other noise, and nothing of the old stream is left."""
    restart = {"privacy.correlated": {"restart": 3}}
    _, ledger, values, secret, _ = at_work(tiny(**STREAM | {"rounds": 6}, **restart), 6, dimension=500)
    rows = np.array([values[time, "server"].numpy() for time in range(1, 7)])
    together = np.corrcoef(rows)
    assert np.abs(together[:3, 3:]).max() < 6 / math.sqrt(500)
    assert np.abs(together[:3, :3] - np.eye(3)).max() > 0.1
    fresh = fresh_rows(ledger, secret, "server", 0, 500)
    matrix = dense(make_strategy("bsr", steps=3, separation=3, uses=1))
    for first in (0, 3):
        expected = np.linalg.solve(matrix, fresh[first : first + 3]) * 0.4
        np.testing.assert_allclose(rows[first : first + 3], expected, rtol=2e-6, atol=1e-6)


KINDS = {
    "star": STREAM,
    "buffers": STREAM | {"privacy.correlated": {"strategy": "blt"}},
    "drawn": DRAWN,
    "tree": STREAM | TREE,
    "groups": STREAM | GROUPS,
    "momentum": STREAM | {"algorithm.name": "fedavgm"},
    "restarted, upcycled": STREAM | {"privacy.correlated": {"restart": 4}, "algorithm.upcycle": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_changes_nothing(tiny, tmp_path, monkeypatch, kind):
    """The buffers of noise are drawn again from the ledger: bit by bit the run that nothing happened to."""
    experiment = tiny(**KINDS[kind])
    whole = sightline.run(experiment, out=tmp_path / "whole")
    for place, (module, name, call, before) in enumerate(
        [(loop, "save_checkpoint", 5, True), (loop.Ledger, "append", 5, False), (loop, "save_checkpoint", 2, False)]
    ):
        with monkeypatch.context() as patch:
            crash_in(patch, module, name, call, before=before)
            with pytest.raises(Crash):
                sightline.run(experiment, out=tmp_path / str(place))
        sightline.run(experiment, out=tmp_path / str(place), resume=True)
        assert left_behind(tmp_path / str(place)) == left_behind(whole.directory)


def test_what_was_drawn_is_on_no_disk(tiny, tmp_path, monkeypatch):
    """Neither z nor n of any round, in single or double precision, is in a file of the run."""
    rows, real = [], NoiseStreams.draw_noise

    def watched(self, *a):
        rows.append(real(self, *a).copy())
        return rows[-1]

    monkeypatch.setattr(NoiseStreams, "draw_noise", watched)
    with monkeypatch.context() as patch:
        crash_in(patch, loop, "save_checkpoint", 5, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(**STREAM), out=tmp_path / "run")
    held = b"".join(path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file())
    assert len(held) > 10_000
    assert len(rows) == 5
    for row in rows:
        for scaled in (row, row * 0.4):
            for number in scaled[:8]:
                assert np.float64(number).tobytes() not in held
            assert scaled.astype(np.float32)[:4].tobytes() not in held


def test_a_round_that_was_seen_and_is_made_again_has_other_noise_and_costs_more(tiny):
    """Gaussian(sigma / r) more; the noise goes on from what was made last, and nothing of the first try is in it."""
    setting = replace(
        engine.build_experiment(tiny(**STREAM)).with_noise(dict.fromkeys(range(6), 0.8)), start=torch.zeros(30)
    )
    secret, ledger, made = Streams.from_seed(1), Ledger(), []
    execution = LiveExecution(Known(30, [10] * 6, silent=True), secret)
    state = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
    for time, repeated in [(1, False), (2, False), (2, True), (3, False), (4, False), (4, True), (4, True), (5, False)]:
        r = TrainingRound(setting, ledger, execution, time, repeated=repeated)
        updates = r.train(r.sample(), state["model"])
        made.append((time, (r.release_mean(updates).value * 2).double().numpy(), ledger[len(ledger) - 1].id))
    strategy = make_strategy("bsr", steps=7, separation=3, uses=3)
    sigma = 0.8 / redo_multiplier(strategy, separation=3, uses=3)
    found = ledger.composition("client-0", "public")
    assert sum(found.values()) == 4
    assert max(found, key=lambda event: event.noise_multiplier).noise_multiplier == pytest.approx(sigma, rel=1e-12)
    assert sorted(found.values()) == [1, 3]
    last = {time: (value, id) for time, value, id in made}
    fresh = np.array(
        [
            secret.rng(Purpose.CORRELATED, round=t, participant=EVERYONE, use=last[t][1]).standard_normal(30)
            for t in range(1, 6)
        ]
    )
    expected = np.linalg.solve(dense(strategy)[:5, :5], fresh) * 0.8 * 0.5
    np.testing.assert_allclose(np.array([last[t][0] for t in range(1, 6)]), expected, rtol=2e-6, atol=1e-6)
    first, second = (value for time, value, _ in made if time == 2)
    assert np.abs(first - second).min() > 0


def test_a_round_made_again_with_hidden_draws_is_charged_to_all_members(tiny):
    setting = replace(
        engine.build_experiment(tiny(**DRAWN)).with_noise(dict.fromkeys(range(6), 0.8)), start=torch.zeros(30)
    )
    ledger = Ledger()
    execution = LiveExecution(Known(30, [10] * 6, silent=True), Streams.from_seed(1))
    for time, repeated in [(1, False), (2, False), (2, True), (3, False)]:
        r = TrainingRound(setting, ledger, execution, time, repeated=repeated)
        r.release_mean(r.train(r.sample(), Public(setting.start)))
    for client in range(6):
        found = ledger.composition(f"client-{client}", "public")
        assert sum(times for event, times in found.items() if isinstance(event, Gaussian)) == 1
        assert sum(times for event, times in found.items() if isinstance(event, Poisson)) in (1, 2)


def test_nobody_is_asked_out_of_turn(tiny, tmp_path):
    """Who answers does not matter; who was asked does: a cohort with one client too many is refused, and not charged."""
    setting = replace(engine.build_experiment(tiny(**STREAM)), start=torch.zeros(30))
    sampler = setting.sampler_of(setting.topology.top)
    worker = Known(30, [10] * 6)
    for cohort in (tuple(range(6)), (*sampler.active_places(1), sampler.active_places(2)[0])):
        ledger = Ledger()
        r = TrainingRound(setting, ledger, LiveExecution(worker, Streams.from_seed(1)), 1)
        updates = r.train(Cohort(tuple(sorted(cohort))), Public(setting.start))
        with pytest.raises(Refused, match="not its turn"):
            r.release_mean(updates)
        assert not len(ledger)
        assert not worker.asked
    *_, worker = at_work(tiny(**STREAM), 7)
    rounds = {n: [time for time, cohort in worker.asked if n in cohort] for n in range(6)}
    assert all(later - earlier >= 3 for some in rounds.values() for earlier, later in pairwise(some))
    assert all(2 <= len(some) <= 3 for some in rounds.values())


def test_a_real_site_is_planned_to_be_asked_in_its_turns_only(tiny):
    """A site answers what was planned and nothing else: it keeps the distance by itself."""
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**STREAM)), real_nodes=True)
    sampler = setting.sampler_of(setting.topology.top)
    for client in range(6):
        turns = [time for time in range(1, 8) if client in sampler.active_places(time)]
        assert [call.round for call in record_calls(setting, client)] == turns


def test_a_round_is_released_once(tiny):
    for changes, joint in ((STREAM, "noise stream 1"), (DRAWN, "turn 1")):
        setting = replace(engine.build_experiment(tiny(**changes)), start=torch.zeros(30))
        ledger = Ledger()
        r = TrainingRound(setting, ledger, LiveExecution(Known(30, [10] * 6), Streams.from_seed(1)), 1)
        r.release_mean(r.train(r.sample(), Public(setting.start)))
        updates = r.train(r.sample(), Public(setting.start))
        with pytest.raises(Refused, match=f"{joint}.*twice"):
            r.release_mean(updates)


def test_noise_does_not_go_on_where_the_ledger_has_gaps():
    strategy = STRATEGIES["bsr"]
    row = NoiseRow("server, noise stream 1", "server, noise stream 1", 3, 4, 7)
    with pytest.raises(Refused, match="continues 3 earlier rounds, but the ledger has 0"):
        NoiseStreams(Streams.from_seed(0)).draw_noise(row, strategy, 5, ())


def test_changed_packages_do_not_go_on_with_a_stream(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        crash_in(patch, loop, "save_checkpoint", 3, before=False)
        with pytest.raises(Crash):
            sightline.run(tiny(**STREAM), out=tmp_path / "run")
    monkeypatch.setattr("sightline.engine.checkpoint.package_versions", lambda: {"numpy": "0.1"})
    with pytest.raises(InvalidInput, match="cannot be repeated"):
        sightline.run(tiny(**STREAM), out=tmp_path / "run", resume=True, accept_changes=True)


REFUSED = [
    ({"sampling.clients": {"scheme": "full"}}, "takes part in every round gains nothing"),
    ({"sampling.clients": {"scheme": "poisson", "rate": 0.5}}, "Poisson draws give no minimum gap"),
    ({"sampling.clients": {"scheme": "balanced", "uses": 2}}, "a hidden schedule"),
    ({"sampling.clients": {"scheme": "check_ins", "rate": 0.5}}, "check-ins"),
    ({"sampling.clients": {"scheme": "fixed", "rate": 0.5}}, "fixed size"),
    ({"sampling.clients": {"scheme": "turns", "groups": 1}}, "one group takes part in every round"),
    ({"sampling.clients": {"scheme": "turns", "groups": 7}}, "there are only data.clients=6"),
    ({"sampling.clients": {"scheme": "turns"}}, "groups=missing"),
    ({"sampling.clients": {"scheme": "turn", "groups": 3}}, 'did you mean "turns"'),
    ({"sampling.clients": {"scheme": "package.module:OBJECT"}}, "needs a known minimum gap"),
    ({"sampling.clients": {"scheme": "turns", "groups": 3, "uses": 2}}, "does not apply to scheme"),
    ({"privacy.where": "client"}, "adds its own noise"),
    ({"privacy.unit": "sample", "privacy.where": "server", "local": {"steps": 1, "batch_size": 4}}, "add it to clipped steps"),
    ({"privacy.arithmetic": "integer"}, "not whole numbers"),
    ({"privacy": {"unit": "none", "noise": "correlated"}}, "adds no noise"),
    ({"privacy.mechanism": "output", "privacy.unit": "sample", "privacy.where": "client",
      "privacy.sensitivity": "clipped_model"}, "only available for Gaussian noise"),
    ({"model": {"name": "mlp", "hidden": [6]}, "algorithm.split": {"parts": 2}}, "with a split model"),
    ({"topology": {"kind": "tree", "subnets": 2, "trusted": 0.0}}, "edge-0 is not trusted"),
    ({"topology": {"kind": "clusters", "count": 2}, "algorithm.name": "oracle_clusters"}, "move between clusters"),
    ({"privacy.noise": "independent", "privacy.correlated": {"strategy": "bsr"}}, "only applies with privacy.noise"),
    ({"privacy.correlated": {"separation": 1}}, "separation=1"),
    ({"privacy.correlated": {"separation": 4}}, "separation=4"),
    ({"privacy.correlated": {"uses": 2}}, "every group takes 3 turns in 7 rounds"),
    ({"privacy.correlated": {"bands": 1}}, "one band is independent noise"),
    ({"privacy.correlated": {"bands": 8}}, "bands=8"),
    ({"privacy.correlated": {"strategy": "blt", "bands": 2}}, "does not apply to strategy"),
    ({"privacy.correlated": {"strategy": "square"}}, "strategy"),
    ({"privacy.correlated": {"restart": 1}}, "nothing to cancel"),
    ({"rounds": 1}, "nothing to cancel"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_would_not_hold_is_refused(tiny, changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        engine.build_experiment(tiny(**STREAM | changes))


HIDDEN = [
    ({"privacy.correlated": {"strategy": "blt"}}, "blt correlates all of them"),
    ({"privacy.correlated": {"bands": 4}}, "at most 3"),
    ({"privacy.correlated": {"uses": 3}}, "every turn is charged by itself"),
    ({"privacy.adjacency": "replace"}, "add/remove"),
]


@pytest.mark.parametrize(("changes", "reason"), HIDDEN)
def test_hidden_draws_are_for_bands_that_end_before_the_next_turn(tiny, changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        engine.build_experiment(tiny(**DRAWN | changes))


def test_hidden_draws_are_not_for_clients_that_remember(tiny):
    with pytest.raises(Refused, match="no bound is known for state with hidden draws"):
        engine.calibrate_noise(engine.build_experiment(tiny(**DRAWN, **{"algorithm.name": "scaffold"})))


def test_members_that_come_and_go_have_no_stream(tmp_path):
    (tmp_path / "groups.json").write_text(
        '{"workers": 6, "groups": [[0, 1, 2], [3, 4, 5]], "schedule": [{"from": 2, "groups": [[0, 1, 3], [2, 4, 5]]}]}'
    )
    topology = {"kind": "groups", "file": str(tmp_path / "groups.json")}
    plain = changed(TINY, STREAM | {"topology": topology, "algorithm": {"name": "dp_ogl"}})
    with pytest.raises(Refused, match="members join and leave"):
        engine.build_experiment(sightline.config.parse(plain))


def test_adaptive_control_is_refused(tiny):
    tree = TREE | {"algorithm": {"name": "h2fdp", "control": {"budget": 1.0}}, "local": {"steps": 5}}
    with pytest.raises(InvalidInput, match="adaptive control"):
        engine.build_experiment(tiny(**STREAM | tree))


def test_separation_and_uses_may_be_promised_more_cautiously(tiny):
    """A smaller distance than the turns keep, or more uses, is never cheaper."""
    fitting = engine.build_experiment(tiny(**STREAM)).mechanism.stream
    for careful in ({"uses": 9}, {"separation": 2, "bands": 3}):
        found = engine.build_experiment(tiny(**STREAM, **{"privacy.correlated": careful})).mechanism.stream
        assert found.unit <= fitting.unit * (1 + 1e-12)


def test_a_strategy_is_optimised_for_momentum_and_costs_what_it_costs(tiny):
    """FedAvgM's models are no plain sums: its own bands have less noise in them at equal epsilon."""
    momentum = {"algorithm": {"name": "fedavgm", "server_momentum": 0.9}, "privacy.correlated": {"strategy": "band"}}
    own = engine.build_experiment(tiny(**STREAM | {"rounds": 30}, **momentum)).mechanism.stream
    plain = make_strategy("band", steps=30, separation=3, uses=10)
    column = [(1 - 0.9 ** (i + 1)) / 0.1 for i in range(30)]
    errors = [
        math.sqrt(compute_errors(one, column)[0]) * compute_sensitivity(one, separation=3, uses=10)
        for one in (own.strategy, plain)
    ]
    assert errors[0] < 0.999 * errors[1]
    assert own.unit == pytest.approx(1 / compute_sensitivity(own.strategy, separation=3, uses=10), rel=1e-12)


def test_no_client_of_any_file_moves_a_stream_further_than_is_charged(tiny):
    """Files at random: every client's own turns, in every stream of the run, against C written out in full."""
    dice, strategies, tight = random.Random(7), ("bsr", "bsr", "bsr", "band"), 0
    for _ in range(40):
        groups, rounds = dice.randrange(2, 7), dice.randrange(2, 13)
        correlated = {"strategy": dice.choice(strategies)}
        if dice.random() < 0.5:
            correlated["restart"] = dice.randrange(2, rounds + 1)
        if dice.random() < 0.5:
            correlated["separation"] = dice.randrange(2, groups + 1)
        if dice.random() < 0.5:
            correlated["bands"] = dice.randrange(2, min(correlated.get("restart", rounds), rounds) + 1)
        changes = {
            "rounds": rounds,
            "sampling.clients": {"scheme": "turns", "groups": groups},
            "seed": dice.randrange(99),
        }
        setting = engine.build_experiment(tiny(**STREAM | changes, **{"privacy.correlated": correlated}))
        stream, sampler = setting.mechanism.stream, setting.sampler_of(setting.topology.top)
        matrix, furthest = dense(stream.strategy), 0.0
        for client in range(6):
            for first in range(1, rounds + 1, stream.length):
                times = range(first, min(first + stream.length, rounds + 1))
                turns = [time - first for time in times if client in sampler.active_places(time)]
                furthest = max(furthest, float(np.linalg.norm(matrix[:, turns].sum(1))))
        assert furthest * stream.unit <= 1
        tight += furthest * stream.unit > 1 - 1e-9
    assert tight > 10


def test_files_without_the_new_keys_are_written_as_before(tiny):
    text = sightline.config.to_toml(tiny())
    assert "noise =" not in text
    assert "correlated" not in text
    assert "groups" not in text
    again = sightline.config.to_toml(tiny(**STREAM, **{"privacy.correlated": {"restart": 3}}))
    assert 'noise = "correlated"' in again
    assert "groups = 3" in again


def test_the_largest_shift_is_reached_by_a_client_that_sends_the_same_in_all_its_turns(tiny):
    """Nothing is given away: with one direction in all its turns a client moves C x by just what is charged."""
    setting, _, values, _, _ = at_work(tiny(**STREAM), 7, silent=True)
    _, _, moved, _, _ = at_work(tiny(**STREAM), 7, silent=False)
    matrix, first = dense(setting.mechanism.stream.strategy), setting.sampler_of(setting.topology.top).active_places(1)
    shift = np.array([(moved[t, "server"] - values[t, "server"]).numpy()[first[0]] for t in range(1, 8)]) / 0.1
    found = float(np.linalg.norm(matrix @ shift))
    assert found == pytest.approx(1 / setting.mechanism.stream.unit, rel=1e-4)
