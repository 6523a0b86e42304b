"""The real files, against the counts that their authors published."""

import numpy as np
import pytest
from data_files import REAL, needs

from sightline.config import Data
from sightline.data import Kind, load_federation
from sightline.data.federation import Request, Table
from sightline.data.sources import find_source
from sightline.randomness import Streams

STREAMS = Streams.from_seed(0)


def read(name: str, **options: int | str) -> Table:
    source = find_source(name)
    checked = source.checked_options(options)
    return source.read(Request(Data(source=name), STREAMS, REAL / name, checked))


def counts(table: Table) -> list[int]:
    return np.bincount(table.y, minlength=table.classes).tolist()


@needs("mnist")
def test_mnist() -> None:
    table = read("mnist")
    assert counts(table) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert table.test is not None
    assert len(table.test) == 10_000
    assert table.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@needs("fashion_mnist")
def test_fashion_mnist() -> None:
    table = read("fashion_mnist")
    assert counts(table) == [6000] * 10
    assert table.test is not None
    assert counts(table.test) == [1000] * 10


@pytest.mark.slow
@needs("cifar10")
def test_cifar10() -> None:
    table = read("cifar10")
    assert counts(table) == [5000] * 10
    assert table.test is not None
    assert counts(table.test) == [1000] * 10
    shard = table.shard(np.arange(0, 50_000, 5))
    np.testing.assert_allclose(shard.x.mean(axis=(0, 2, 3)), 0, atol=0.02)
    np.testing.assert_allclose(shard.x.std(axis=(0, 2, 3)), 1, atol=0.02)
    sums, squares = np.zeros(3), np.zeros(3)
    for batch in np.split(table.x, 50):
        pixels = batch.astype(np.float32)
        sums += pixels.sum(axis=(0, 2, 3), dtype=np.float64)
        squares += np.square(pixels).sum(axis=(0, 2, 3), dtype=np.float64)
    mean = sums / (50_000 * 1024 * 255)
    std = np.sqrt(squares / (50_000 * 1024 * 255**2) - mean**2)
    np.testing.assert_allclose(mean, [0.49140, 0.48216, 0.44653], atol=6e-6)
    np.testing.assert_allclose(std, [0.24703, 0.24349, 0.26159], atol=6e-6)


@needs("emnist_letters")
def test_emnist_letters() -> None:
    table = read("emnist_letters")
    if table.test is None:
        assert counts(table) == [800] * 12 + [400] + [0] * 13
        assert counts(read("emnist_letters", letters=10)) == [800] * 10
    else:
        assert counts(table) == [4800] * 26
    ink = table.x[table.y == ord("i") - ord("a")].mean(axis=0)[0]
    assert spread(ink.sum(axis=1)) > 1.5 * spread(ink.sum(axis=0))  # an upright i is taller than wide


def spread(ink: np.ndarray) -> float:
    place = np.arange(len(ink))
    mean = np.average(place, weights=ink)
    return float(np.sqrt(np.average((place - mean) ** 2, weights=ink)))


@needs("ocr_letters")
def test_ocr_letters() -> None:
    table = read("ocr_letters")
    assert table.test is not None
    assert len(table) + len(table.test) == 52_152
    few = read("ocr_letters", letters=10, test_fold=9)
    assert few.test is not None
    together = np.add(counts(few), counts(few.test))
    assert together.tolist() == [4034, 1284, 2114, 1442, 4955, 921, 2472, 861, 4913, 189]


@needs("sentiment140_users")
def test_sentiment140_users() -> None:
    table = read("sentiment140_users")
    assert counts(table) == [26_784, 24_870]
    _, tweets = np.unique(table.owner, return_counts=True)
    assert [int((tweets >= least).sum()) for least in (1, 2, 3, 5)] == [45_779, 4_247, 976, 141]
    assert table.x.shape == (51_654, 25)
    assert table.x.max() < table.vocabulary == 5000


@needs("airline_tweets")
def test_airline_tweets() -> None:
    table = read("airline_tweets")
    assert counts(table) == [9_159, 3_091, 2_354]
    _, tweets = np.unique(table.owner, return_counts=True)
    assert [int((tweets >= least).sum()) for least in (1, 2, 5, 10)] == [7_701, 2_988, 471, 76]
    assert counts(read("airline_tweets", classes=2)) == [9_159, 2_354]


@needs("mnist")
@pytest.mark.parametrize("partition", ["rotation", "label_shift"])
def test_the_papers_clustered_mnist(partition: str) -> None:
    """R-DPCFL, appendix C.2: 8,000 training examples for each of 21 clients."""
    settings = Data(source="mnist", clients=21, partition=partition, clusters=(3, 6, 6, 6), reuse=True)
    federation = load_federation(settings, streams=STREAMS, root=REAL)
    assert federation.sizes.tolist() == [8000] * 21
    assert {len(client.test) for client in federation.clients} == {2000}
    assert len(federation.test) == 10_000


@needs("mnist")
def test_mnist_for_a_hundred_clients() -> None:
    settings = Data(source="mnist", clients=100, partition="dirichlet", concentration=0.1)
    federation = load_federation(settings, streams=STREAMS, root=REAL)
    assert federation.kind is Kind.IMAGE
    assert sum(len(client.train) + len(client.test) for client in federation.clients) == 60_000


@needs("sentiment140_users")
def test_a_user_is_one_client() -> None:
    settings = Data(source="sentiment140_users", clients=141, partition="by_user")
    federation = load_federation(settings, streams=STREAMS, root=REAL)
    assert min(len(client.train) + len(client.test) for client in federation.clients) >= 5
    assert all(len(client.test) for client in federation.clients)
