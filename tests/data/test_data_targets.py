"""Targets by task: what a user's own function may give, what generated data give, and what has no labels to deal by."""

import numpy as np
import pytest

from sightline.config import Data
from sightline.data import Kind, load_federation
from sightline.data.targets import next_tokens
from sightline.errors import InvalidInput
from sightline.randomness import Streams

STREAMS = Streams.from_seed(3)

MODULE = """
import numpy as np
def _x(n): return np.linspace(-1, 1, 3 * n).reshape(n, 3)
def _four(x, y): return (x, y, x[:2], None if y is None else y[:2])
def numbers(clients, rng): return [_four(_x(6), np.arange(6) / 2)] * clients
def columns(clients, rng): return [_four(_x(6), np.ones((6, 2)))] * clients
def sets(clients, rng): return [_four(_x(6), np.eye(6, 4, dtype=bool))] * clients
def steps(clients, rng): return [_four(rng.random((6, 5, 2)), np.arange(6) % 3)] * clients
def tokens(clients, rng, vocabulary=9): return [_four(np.arange(30).reshape(6, 5) % 9, None)] * clients
def padded(clients, rng, vocabulary=9):
    x = np.arange(30).reshape(6, 5) % 9
    y = x.copy(); y[:, -2:] = -100
    return [_four(x, y)] * clients
def wild(clients, rng, vocabulary=9):
    x = np.arange(30).reshape(6, 5) % 9
    return [_four(x, x + 5)] * clients
def infinite(clients, rng): return [_four(_x(6), np.array([1, 2, 3, 4, 5, np.inf]))] * clients
def halves(clients, rng): return [_four(_x(6), np.full((6, 4), 0.5))] * clients
def uneven(clients, rng): return [_four(_x(6), np.ones((6, 1 + n))) for n in range(clients)]
def cubes(clients, rng): return [_four(_x(6), np.ones((6, 2, 2)))] * clients
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mytargets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(name, task, **options):
        settings = Data(source=f"mytargets:{name}", partition="natural", clients=2, classes=3, options=options)
        return load_federation(settings, streams=STREAMS, task=task)

    return load


def test_targets_have_the_type_of_their_task(own):
    one = own("numbers", "regression")
    assert one.clients[0].train.y.dtype == np.float32
    assert one.target_shape == ()
    assert own("columns", "regression").target_shape == (2,)
    sets = own("sets", "multilabel").test
    assert sets.y.dtype == np.float32
    assert sets.y.shape == (4, 4)
    steps = own("steps", "classification")
    assert steps.kind is Kind.SEQUENCE
    assert steps.input_shape == (5, 2)
    assert own("columns", "own").target_shape == (2,)
    assert own("steps", "own").test.y.dtype == np.int64


def test_next_tokens_are_read_off_the_inputs_or_given(own):
    federation = own("tokens", "language", vocabulary=9)
    train = federation.clients[1].train
    assert federation.kind is Kind.TEXT
    assert train.x.shape == train.y.shape == (6, 4)
    assert np.array_equal(train.x[:, 1:], train.y[:, :-1])
    assert train.y[2].tolist() == [(11 + k) % 9 for k in range(4)]
    assert own("padded", "language", vocabulary=9).test.y[0].tolist() == [0, 1, 2, -100, -100]
    x, y = next_tokens(np.array([[3, 1, 0, 0]]), padding=0)
    assert (x.tolist(), y.tolist()) == ([[3, 1, 0]], [[1, -100, -100]])


@pytest.mark.parametrize(
    ("name", "task", "words"),
    [
        ("numbers", "classification", "labels are float64"),
        ("infinite", "regression", "targets contain NaN or infinity"),
        ("infinite", "own", "targets contain NaN or infinity"),
        ("cubes", "regression", r"expected numbers \(n,\) or \(n, targets\)"),
        ("halves", "multilabel", "may only contain 0 and 1"),
        ("numbers", "multilabel", r"expected zeros and ones \(n, labels\)"),
        ("uneven", "regression", r"client 1 has targets float32 \(2,\), client 0 float32 \(1,\)"),
        ("wild", "language", "next tokens outside 0 .. vocabulary - 1"),
        ("numbers", "language", "a language model reads whole-number"),
    ],
)
def test_mistakes_are_one_line(own, name, task, words):
    options = {"vocabulary": 9} if name == "wild" else {}
    with pytest.raises(InvalidInput, match=words) as caught:
        own(name, task, **options)
    assert "\n" not in str(caught.value)


def synthetic(task, **changes):
    facts = {"clients": 3, "features": 6, "classes": 4, "size_mean": 2.0, "size_sigma": 0.5, "size_min": 10}
    settings = Data(source="synthetic", partition="natural", **facts | changes)
    return load_federation(settings, streams=STREAMS, task=task)


def test_generated_data_for_every_task():
    labels = synthetic("classification")
    numbers = synthetic("regression", iid=True)
    assert numbers.test.y.dtype == np.float32
    x = np.concatenate([client.train.x for client in numbers.clients])
    y = np.concatenate([client.train.y for client in numbers.clients])
    fitted, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y)
    left = y - np.column_stack([x, np.ones(len(x))]) @ fitted
    assert np.std(left) == pytest.approx(0.1, rel=0.5)  # a linear truth, and noise of .1
    sets = synthetic("multilabel")
    assert sets.target_shape == (4,)
    for client, same in zip(sets.clients, labels.clients, strict=True):
        assert np.array_equal(client.train.x, same.train.x)
        likely = client.train.y[np.arange(len(same.train)), same.train.y]
        some = client.train.y.any(axis=1)
        assert likely[some].all()  # the largest score is positive wherever one is


def test_generated_sentences_follow_one_chain_a_client():
    federation = synthetic("language", features=40, size_min=200)
    assert (federation.kind, federation.vocabulary, federation.input_shape) == (Kind.TEXT, 4, (40,))
    counts = []
    for client in federation.clients:
        table = np.zeros((4, 4))
        np.add.at(table, (client.train.x.ravel(), client.train.y.ravel()), 1)
        counts.append(table / table.sum(axis=1, keepdims=True))
        halves = [np.zeros((4, 4)), np.zeros((4, 4))]
        for half, rows in enumerate((slice(0, None, 2), slice(1, None, 2))):
            np.add.at(halves[half], (client.train.x[rows].ravel(), client.train.y[rows].ravel()), 1)
        first, second = (half / half.sum(axis=1, keepdims=True) for half in halves)
        assert np.abs(first - second).max() < 0.15
    assert np.abs(counts[0] - counts[1]).max() > 0.2  # each client's own
    with pytest.raises(InvalidInput, match=r"data\.features=3"):
        synthetic("language", features=3)


@pytest.mark.parametrize("partition", ["dirichlet", "label_shards", "label_shift"])
def test_what_has_no_labels_is_not_dealt_by_them(partition):
    from dataclasses import replace

    from sightline.data.federation import Table
    from sightline.data.targets import as_task

    table = Table(np.zeros((5, 4), np.int64), np.zeros(5, np.int64), 2, Kind.TEXT, vocabulary=9)
    clusters = {"clusters": (2,)} if partition == "label_shift" else {}
    settings = Data(source="airline_tweets", partition=partition, clients=2, **clusters)
    assert as_task(table, settings, "classification") is table
    with pytest.raises(InvalidInput, match="needs labels"):
        as_task(table, settings, "language")
    with pytest.raises(InvalidInput, match="needs labels"):
        as_task(replace(table, y=np.zeros(5, np.float32)), settings, "regression")
    with pytest.raises(InvalidInput, match="these are not labels"):
        _ = replace(table, y=np.zeros((5, 2), np.float32)).labels
