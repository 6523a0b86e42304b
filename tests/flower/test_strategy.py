"""PrivateStrategy: the law of what a round releases, who counts in it, and its ledger; in memory, on Flower's own types."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from scipy import stats

from sightline.accounting import epsilon
from sightline.errors import InvalidInput, Refused
from sightline.events import Clear, Gaussian, Poisson
from sightline.ledger import read_ledger
from sightline.runtimes.flower.strategy import PrivateStrategy

pytestmark = pytest.mark.filterwarnings("ignore:seed=")  # simulations, all of them

NODES = list(range(100, 120))
MODEL = {
    "weight": np.arange(40, dtype=np.float32).reshape(8, 5) / 40,
    "bias": np.ones(5, np.float32),
    "seen": np.array(7),
}
DELTA = 1e-3


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Messages carry the run and node of the process that made them."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Nodes:
    """The part of a grid that strategies ask."""

    def get_node_ids(self):
        return NODES


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def reply_to(message, arrays, *, examples=1, loss=0.5):
    content = RecordDict({"arrays": record(arrays), "metrics": MetricRecord({"num-examples": examples, "loss": loss})})
    return Message(content, reply_to=message)


def update_of(node):
    """What a node changes: its own direction and length."""
    rng = np.random.default_rng(node)
    return {
        name: (rng.standard_normal(MODEL[name].shape) * (node - 99) / 30).astype(np.float32)
        for name in ("weight", "bias")
    }


def answer(message, **metrics):
    moved = {name: MODEL[name] + part for name, part in update_of(message.metadata.dst_node_id).items()}
    return reply_to(message, moved | {"seen": np.array(1000)}, **metrics)


def fedavg(**settings):
    return FedAvg(**{"fraction_evaluate": 0.0} | settings)


def private(strategy=None, **settings):
    settings = {"clip_norm": 0.5, "delta": DELTA, "seed": 0} | settings
    if "epsilon" not in settings:
        settings.setdefault("noise_multiplier", 1.0)
    return PrivateStrategy(strategy or fedavg(), **settings)


def play(
    strategy,
    number=1,
    replies=lambda messages: [answer(message, examples=message.metadata.dst_node_id) for message in messages],
):
    """One round: (the nodes that were asked, the arrays that came out, the metrics)."""
    messages = list(strategy.configure_train(number, record(MODEL), ConfigRecord(), Nodes()))
    arrays, metrics = strategy.aggregate_train(number, replies(messages))
    found = None if arrays is None else {name: array.numpy() for name, array in arrays.items()}
    return [message.metadata.dst_node_id for message in messages], found, metrics


def flat(arrays):
    return np.concatenate([np.asarray(arrays[name], np.float64).reshape(-1) for name in ("weight", "bias")])


def clipped(nodes, clip_norm):
    """The naive sum: every update scaled onto the ball."""
    total = np.zeros(45)
    for node in nodes:
        update = flat({name: (MODEL[name] + part) - MODEL[name] for name, part in update_of(node).items()})
        total += update * min(1.0, clip_norm / np.linalg.norm(update))
    return total


@pytest.mark.parametrize("rate", [None, 0.3])
def test_a_round_is_the_clipped_sum_and_noise_over_the_expected_cohort(rate):
    """Numbers of examples that clients report weigh nothing."""
    expected = 20 * (rate or 1.0)
    strategy, noise = private(rate=rate, noise_multiplier=0.8), []
    for number in range(1, 41):
        nodes, found, _ = play(strategy, number)
        noise.append((flat(found) - flat(MODEL)) * expected - clipped(nodes, 0.5))
    noise = np.array(noise) / (0.8 * 0.5)
    assert stats.kstest(noise.reshape(-1), "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(noise)[np.triu_indices(40, 1)]).max() < 0.8
    assert found["seen"] == 7  # no number of a client passes without noise


def test_cohorts_are_drawn_at_the_claimed_rate():
    strategy, times = private(rate=0.3), 150
    drawn = np.zeros((times, 20))
    for number in range(times):
        drawn[number, [NODES.index(node) for node in play(strategy, number, lambda messages: [])[0]]] = 1
    assert abs(drawn.mean() - 0.3) < 5 * np.sqrt(0.21 / drawn.size)
    assert abs(drawn.sum(1).var() / (20 * 0.21) - 1) < 5 * np.sqrt(2 / times)
    assert np.abs(np.corrcoef(drawn.T)[np.triu_indices(20, 1)]).max() < 6 / np.sqrt(times)
    assert {len(row) for row in (np.flatnonzero(row) for row in drawn)} != {6}


@pytest.mark.parametrize("rate", [None, 0.3])
def test_the_ledger_has_the_round_and_what_the_server_saw(tmp_path, rate):
    strategy = private(rate=rate, ledger=tmp_path / "rounds.sqlite")
    for number in range(1, 4):
        play(strategy, number)
    event = Gaussian(1.0) if rate is None else Poisson(0.3, Gaussian(1.0))
    assert strategy.epsilon() == epsilon({event: 3}, DELTA)
    strategy.close()
    rows = read_ledger(tmp_path / "rounds.sqlite")
    assert [row.event for row in rows] == [Clear(), event] * 3
    assert rows.epsilon("clients", "server", DELTA) == np.inf
    assert rows.epsilon("clients", "public", DELTA) == strategy.epsilon()
    again = private(rate=rate, ledger=tmp_path / "rounds.sqlite")
    play(again)
    assert again.epsilon() == epsilon({event: 4}, DELTA)
    again.close()


def test_a_round_is_on_disk_before_the_replies_are_read(tmp_path):
    strategy = private(ledger=tmp_path / "rounds.sqlite")
    seen = []

    def replies(messages):
        for message in messages:
            seen.append(len(read_ledger(tmp_path / "rounds.sqlite")))
            yield answer(message)

    play(strategy, 1, replies)
    strategy.close()
    assert seen == [2] * 20


def test_the_budget_lasts_for_the_rounds_and_the_model_stays_afterwards():
    strategy = private(epsilon=3.0, rounds=4, rate=0.3)
    assert all(play(strategy, number)[1] is not None for number in range(1, 5))
    assert 2.99 < strategy.epsilon() <= 3.0
    nodes, found, metrics = play(strategy, 5)
    assert (nodes, found, metrics) == ([], None, None)
    assert len(strategy.ledger) == 8


def hostile(messages):
    """Replies that must count as nothing, or once."""
    first, second, third, fourth, fifth, *others = messages
    stranger = Message(RecordDict(), 999, "train")
    huge = {"weight": MODEL["weight"], "bias": np.full(5, np.inf, np.float32)}
    return [
        answer(first), answer(first), answer(first),
        reply_to(second, {"weight": MODEL["weight"]}),
        reply_to(third, {"weight": MODEL["weight"].T, "bias": MODEL["bias"]}),
        reply_to(fourth, huge),
        Message(Error(0, "broken"), reply_to=fifth),
        answer(stranger),
        *map(answer, others),
    ]  # fmt: skip


def test_every_client_counts_once_and_broken_ones_not_at_all():
    strategy = private(noise_multiplier=1e-6)
    nodes, found, metrics = play(strategy, 1, hostile)
    np.testing.assert_allclose((flat(found) - flat(MODEL)) * 20, clipped([nodes[0], *nodes[5:]], 0.5), atol=1e-4)
    assert not metrics


def test_a_cohort_of_nobody_is_noise():
    _, found, _ = play(private(rate=1e-9), 1)
    assert np.isfinite(flat(found)).all()
    assert not np.allclose(flat(found), flat(MODEL))


def test_server_optimisers_go_on_from_the_noisy_mean():
    """FedAdam behind the wrapper ends where FedAdam ends that is given the same mean as a reply."""
    mine, theirs = (FedAdam(fraction_evaluate=0.0, eta=0.1) for _ in range(2))
    _, mean, _ = play(private(), 1)
    _, found, _ = play(private(mine), 1)
    (message, *_) = theirs.configure_train(1, record(MODEL), ConfigRecord(), Nodes())
    arrays, _ = theirs.aggregate_train(1, [reply_to(message, mean)])
    np.testing.assert_allclose(flat(found), flat({name: array.numpy() for name, array in arrays.items()}), rtol=1e-6)
    assert not np.allclose(flat(found), flat(mean))


class Twice(FedAvg):
    def configure_train(self, *words):
        return [*super().configure_train(*words)] * 2


def test_what_would_break_the_promise_is_refused():
    with pytest.raises(Refused, match="fraction_evaluate"):
        private(FedAvg())
    with pytest.raises(Refused, match="asks a client twice"):
        play(private(Twice(fraction_evaluate=0.0)))
    with pytest.raises(Refused, match="20 clients at random"):
        play(private(delta=0.1))
    with pytest.raises(InvalidInput, match="give rounds"):
        private(epsilon=1.0)
    with pytest.raises(InvalidInput, match="probability"):
        private(rate=0.0)


def test_a_round_is_aggregated_once():
    strategy = private()
    messages = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), Nodes()))
    replies = [answer(message) for message in messages]
    assert strategy.aggregate_train(1, replies)[0] is not None
    assert strategy.aggregate_train(1, replies) == (None, None)
    assert len(strategy.ledger) == 2


@pytest.mark.parametrize("other", [{"noise_multiplier": 4.0}, {"clip_norm": 1.0}])
def test_servers_with_one_seed_share_no_noise(other):
    """The same draws, scaled, gave the un-noised sum away to 2e-5."""
    added = []
    for settings in ({}, other):
        settings = {"noise_multiplier": 1.0, "clip_norm": 0.5} | settings
        strategy = private(**settings)
        _, found, _ = play(strategy, replies=lambda messages: [])
        scale = settings["noise_multiplier"] * settings["clip_norm"] / len(NODES)
        added.append(np.concatenate([(found[name] - MODEL[name]).ravel() for name in ("weight", "bias")]) / scale)
    assert not np.isclose(*added, rtol=1e-2).any()
    assert abs(np.corrcoef(*added)[0, 1]) < 0.8


def test_servers_with_one_seed_and_other_replies_share_no_noise():
    """Neighbouring clients: the difference of the two models would be the client itself."""
    ends = []
    for count in (20, 19):
        strategy = private(clip_norm=1e-9, noise_multiplier=1e9)
        _, found, _ = play(strategy, replies=lambda messages, count=count: [answer(one) for one in messages[:count]])
        ends.append(found["weight"] - MODEL["weight"])
    assert not np.isclose(*ends, rtol=1e-2).any()


def test_a_seed_is_warned_of():
    with pytest.warns(UserWarning, match="seed=7: noise from a seed is for simulations"):
        private(seed=7).close()
