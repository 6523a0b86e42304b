"""The one door: digits and tiny files in, federations out; every mistake is one line."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import idx_bytes, write_csv, write_gz, write_images, write_webp

from sightline.config import Data
from sightline.data import Federation, Kind, load_federation
from sightline.data.sources import SOURCES
from sightline.data.sources.images import read_cifar_binaries
from sightline.data.sources.tweets import encode_texts, hash_word, split_words
from sightline.errors import InvalidInput
from sightline.randomness import Purpose, Streams

STREAMS = Streams.from_seed(3)


def deal(root: Path | None = None, *, streams: Streams = STREAMS, **given: Any) -> Federation:
    return load_federation(Data(**given), streams=streams, root=root)


def arrays(federation: Federation) -> list[np.ndarray]:
    shards = [shard for client in federation.clients for shard in (client.train, client.test)]
    return [array for shard in (*shards, federation.test) for array in (shard.x, shard.y)]


def equal(first: Federation, second: Federation) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(arrays(first), arrays(second), strict=True))


CASES: list[dict[str, Any]] = [
    {"partition": "iid"},
    {"partition": "dirichlet", "concentration": 0.3},
    {"partition": "label_shards", "labels_per_client": 3},
    {"partition": "rotation", "clusters": (2, 3, 5)},
    {"partition": "label_shift", "clusters": (2, 3, 5), "reuse": True},
    {"source": "synthetic", "partition": "natural"},
    {"partition": "iid", "train_samples": 200, "test_samples": 20},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["partition"])
def test_every_federation_keeps_the_contract(case: dict[str, Any]) -> None:
    federation = deal(clients=10, **case)
    assert len(federation.clients) == 10
    shards = [shard for client in federation.clients for shard in (client.train, client.test)]
    for shard in (*shards, federation.test):
        assert shard.x.dtype == np.float32
        assert shard.y.dtype == np.int64
        assert shard.x.shape[1:] == federation.input_shape
        assert shard.x.flags.writeable  # torch shares the memory
        assert shard.y.min() >= 0
        assert shard.y.max() < federation.classes
        assert np.isfinite(shard.x).all()
    assert federation.sizes.min() >= 1
    assert federation.notes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["partition"])
def test_the_seed_decides_everything(case: dict[str, Any]) -> None:
    np.random.seed(1)  # noqa: NPY002 - global state must not matter
    first = deal(clients=10, **case)
    np.random.seed(2)  # noqa: NPY002
    STREAMS.rng(Purpose.PARTITION).random(1000)
    assert equal(first, deal(clients=10, **case))
    assert not equal_somewhere(first, deal(clients=10, streams=Streams.from_seed(4), **case))


def equal_somewhere(first: Federation, second: Federation) -> bool:
    return np.array_equal(first.clients[0].train.x, second.clients[0].train.x)


def test_digits_are_dealt_once_and_tested_on_the_union() -> None:
    federation = deal(clients=20, partition="dirichlet", concentration=0.3)
    assert federation.kind is Kind.IMAGE
    assert federation.input_shape == (1, 8, 8)
    from sklearn.datasets import load_digits

    real = sorted(map(bytes, (load_digits().data / 16).astype(np.float32)))
    dealt = [row.tobytes() for c in federation.clients for s in (c.train, c.test) for row in s.x]
    assert sorted(dealt) == real
    union = np.concatenate([client.test.x for client in federation.clients])
    np.testing.assert_array_equal(federation.test.x, union)
    assert np.shares_memory(federation.test.x, federation.clients[0].test.x)
    assert np.shares_memory(federation.clients[0].train.x.base, federation.clients[5].train.x.base)
    assert len(federation.test) == pytest.approx(1797 * 0.2, abs=10)


def test_synthetic_clients_do_not_depend_on_how_many_there_are() -> None:
    few, many = (deal(source="synthetic", partition="natural", clients=n) for n in (3, 8))
    for one, other in zip(few.clients, many.clients[:3], strict=True):
        np.testing.assert_array_equal(one.train.x, other.train.x)
        np.testing.assert_array_equal(one.test.y, other.test.y)


def test_idx_images_are_scaled_and_stay_with_their_labels(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", train=300, test=50)
    federation = deal(tmp_path, source="mnist", clients=7)
    assert federation.input_shape == (1, 28, 28)
    assert federation.test.x.max() == 1.0
    assert len(federation.test) == 50
    places = []
    for client in federation.clients:
        for shard in (client.train, client.test):
            pixels = np.rint(shard.x * 255).astype(int)
            np.testing.assert_array_equal(pixels[:, 0, 0, 0], shard.y)
            places += (pixels[:, 0, 0, 1] + 256 * pixels[:, 0, 0, 2]).tolist()
    assert sorted(places) == list(range(300))


def test_each_cluster_sees_turned_images(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", train=300, test=80)
    federation = deal(tmp_path, source="mnist", clients=8, partition="rotation", clusters=(1, 1, 2, 4))
    corner = {0: (0, 0), 1: (27, 0), 2: (27, 27), 3: (0, 27)}  # where the first pixel goes, counter-clockwise
    for client in federation.clients:
        assert client.cluster is not None
        row, column = corner[client.cluster]
        np.testing.assert_array_equal(np.rint(client.train.x[:, 0, row, column] * 255), client.train.y)
        np.testing.assert_array_equal(np.rint(client.test.x[:, 0, row, column] * 255), client.test.y)
    starts = (0, 10, 20, 40, 80)  # the common test set, in shares of 1 : 1 : 2 : 4
    for group, (start, stop) in enumerate(itertools.pairwise(starts)):
        row, column = corner[group]
        pixels = np.rint(federation.test.x[start:stop, 0, row, column] * 255)
        np.testing.assert_array_equal(pixels, federation.test.y[start:stop])
    assert [client.cluster for client in federation.clients] == [0, 1, 2, 2, 3, 3, 3, 3]


def test_each_cluster_sees_shifted_labels(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", train=300, test=80)
    federation = deal(
        tmp_path, source="mnist", clients=5, partition="label_shift", clusters=(1, 4), reuse=True, test_fraction=0.2
    )
    assert federation.sizes.tolist() == [60] * 5
    for client in federation.clients:
        truth = np.rint(client.train.x[:, 0, 0, 0] * 255).astype(int)
        np.testing.assert_array_equal(client.train.y, (truth + (client.cluster or 0)) % 10)
    truth = np.rint(federation.test.x[:, 0, 0, 0] * 255).astype(int)
    np.testing.assert_array_equal(federation.test.y, (truth + (np.arange(80) >= 16)) % 10)
    assert any("epsilon protects one copy" in note for note in federation.notes)


def test_subsamples_say_so(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", train=300, test=50)
    federation = deal(tmp_path, source="mnist", clients=4, train_samples=100, test_samples=10)
    assert sum(len(c.train) + len(c.test) for c in federation.clients) == 100
    assert len(federation.test) == 10
    assert any("100 of 300 examples" in note for note in federation.notes)
    natural = deal(source="synthetic", partition="natural", clients=9, train_samples=12)
    assert sum(len(c.train) + len(c.test) for c in natural.clients) == 12
    assert natural.sizes.min() >= 1


def test_emnist_is_turned_upright_and_counted_from_a(tmp_path: Path) -> None:
    images = np.zeros((26, 28, 28), dtype=np.uint8)
    images[:, 3, 5] = 255
    labels = np.arange(1, 27, dtype=np.uint8)
    stem = tmp_path / "emnist_letters" / "emnist-letters-test-first10000-"
    write_gz(Path(f"{stem}images-idx3-ubyte.gz"), idx_bytes(images))
    write_gz(Path(f"{stem}labels-idx1-ubyte.gz"), idx_bytes(labels))
    federation = deal(tmp_path, source="emnist_letters", clients=2, options={"letters": 10})
    assert federation.classes == 10
    assert sorted(np.concatenate([s.y for c in federation.clients for s in (c.train, c.test)])) == list(range(10))
    assert federation.test.x[0, 0, 5, 3] == 1
    whole = tmp_path / "emnist_letters"
    for split, count in (("train", 26), ("test", 26)):
        write_gz(whole / f"emnist-letters-{split}-images-idx3-ubyte.gz", idx_bytes(images[:count]))
        write_gz(whole / f"emnist-letters-{split}-labels-idx1-ubyte.gz", idx_bytes(labels[:count]))
    federation = deal(tmp_path, source="emnist_letters", clients=2)
    assert sorted(federation.test.y) == list(range(26))  # the published split is preferred, and has a test set


def test_ocr_fold_is_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "ocr_letters").mkdir()
    images = np.random.default_rng(0).integers(0, 2, (60, 16, 8), dtype=np.uint8)
    labels, fold = (np.arange(60) % 12).astype(np.uint8), (np.arange(60) // 6).astype(np.uint8)
    np.savez(tmp_path / "ocr_letters" / "ocr_letters.npz", images=images, labels=labels, fold=fold)
    federation = deal(tmp_path, source="ocr_letters", clients=3, options={"letters": 10, "test_fold": 2})
    assert federation.input_shape == (1, 16, 8)
    np.testing.assert_array_equal(federation.test.x[:, 0], images[12:18])
    with pytest.raises(InvalidInput, match="partition=rotation: does not fit the source ocr_letters"):
        deal(tmp_path, source="ocr_letters", clients=3, partition="rotation", clusters=(1, 2))


def test_cifar_is_read_from_its_published_binary_files(tmp_path: Path) -> None:
    """A record is a label, then the red, green and blue planes, each row by row."""
    folder, rng = tmp_path / "cifar10", np.random.default_rng(0)
    folder.mkdir()
    rows = rng.integers(0, 256, size=(6, 10_000, 3073), dtype=np.uint8)
    rows[:, :, 0] %= 10
    for number, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        (folder / name).write_bytes(rows[number].tobytes())
    images, labels = read_cifar_binaries(folder)
    assert labels[20_003] == rows[2, 3, 0]
    assert images[59_999, 2, 31, 30] == rows[5, 9_999, 1 + 2 * 1024 + 31 * 32 + 30]
    federation = deal(tmp_path, source="cifar10", clients=2, train_samples=100, test_samples=10)
    assert federation.clients[0].train.x.shape[1:] == (3, 32, 32)
    (folder / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(InvalidInput, match="has 5 bytes, expected 30,730,000"):
        deal(tmp_path, source="cifar10", clients=2)


def test_cifar_is_normalised(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        write_webp(folder / f"{name}.webp", np.full((3200, 3200, 3), 51 * number, dtype=np.uint8))
    np.savez(
        folder / "labels.npz", train=np.arange(50_000).astype(np.uint8) % 10, test=np.zeros(10_000, dtype=np.uint8)
    )
    federation = deal(tmp_path, source="cifar10", clients=2, train_samples=100, test_samples=10)
    assert federation.input_shape == (3, 32, 32)
    expected = (1 - np.array([0.49140, 0.48216, 0.44653])) / np.array([0.24703, 0.24349, 0.26159])
    np.testing.assert_allclose(federation.test.x[0, :, 0, 0], expected, rtol=1e-5)
    seen = np.unique(federation.clients[0].train.x[:, 0, 0, 0])
    np.testing.assert_allclose(seen, (np.arange(5) / 5 - 0.49140) / 0.24703, rtol=1e-4)


TWEETS = [(user, number % 2, f"tweet {number} of @user{user}") for user in range(6) for number in range(2 + user)]


def test_tweets_stay_with_their_users(tmp_path: Path) -> None:
    write_csv(tmp_path / "sentiment140_users" / "sentiment140_users.csv.gz", ("user", "label", "text"), TWEETS)
    given = {"source": "sentiment140_users", "partition": "by_user"}
    federation = deal(tmp_path, clients=3, options={"tokens": 4, "vocabulary": 50}, **given)
    assert federation.kind is Kind.TEXT
    assert federation.vocabulary == 50
    assert federation.test.x.dtype == np.int64
    assert [len(c.train) + len(c.test) for c in federation.clients] == [7, 6, 5]
    assert any("18 of 27" in note for note in federation.notes)
    grouped = deal(tmp_path, clients=3, options={"users": "grouped"}, **given)
    assert sum(len(c.train) + len(c.test) for c in grouped.clients) == 27
    with pytest.raises(InvalidInput, match=r"data\.clients=7: the data has 6 users"):
        deal(tmp_path, clients=7, **given)


def test_airline_tweets_with_two_classes(tmp_path: Path) -> None:
    rows = [(0, label, "word") for label in (0, 1, 2, 2, 0, 1)]
    write_csv(tmp_path / "airline_tweets" / "airline_tweets.csv.gz", ("user", "label", "text"), rows)
    federation = deal(tmp_path, source="airline_tweets", clients=1, options={"classes": 2})
    everything = np.concatenate([federation.clients[0].train.y, federation.clients[0].test.y])
    assert sorted(everything) == [0, 0, 1, 1]
    assert federation.classes == 2
    rows.append((0, 3, "word"))
    write_csv(tmp_path / "airline_tweets" / "airline_tweets.csv.gz", ("user", "label", "text"), rows)
    with pytest.raises(InvalidInput, match=r'column "label" holds 0 \.\. 3, expected 0 \.\. 2'):
        deal(tmp_path, source="airline_tweets", clients=1)


def test_tokens_are_a_function_of_each_text_alone() -> None:
    texts = ["Hello WORLD, it's me!", "", "@a http://x.y &amp; www.z"]
    together = encode_texts(texts, tokens=6, vocabulary=97)
    apart = np.concatenate([encode_texts([text], tokens=6, vocabulary=97) for text in reversed(texts)])[::-1]
    np.testing.assert_array_equal(together, apart)
    assert split_words(texts[0]) == ["hello", "world", "it's", "me", "!"]
    assert split_words(texts[2]) == ["<name>", "<link>", "<link>"]
    assert (together[:, 0] > 0).all()
    assert (together[1, 1:] == 0).all()
    assert hash_word("hello", 5000) == 1 + 0x3610A686 % 4999  # CRC-32 of "hello" is a known value
    numbers = {hash_word(f"word{n}", 100) for n in range(5000)}
    assert numbers == set(range(1, 100))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"source": "digist"}, r'data.source=digist: .*; did you mean "digits"\?'),
    ({"source": "imagenet"}, "known: digits, synthetic, mnist"),
    ({"clients": 1798}, "data.clients=1798: more clients than the 1,797 examples; use at most 1797"),
    ({"clients": 10**9}, "more clients than"),
    ({"clients": 50, "train_samples": 40}, "data.clients=50: more clients than the 40 examples; give more"),
    ({"train_samples": 1798}, "data.train_samples=1798: the source has 1,797 examples"),
    ({"test_samples": 1797}, "data.test_samples=1797: the clients keep"),
    ({"test_fraction": 0.0}, "data.test_fraction=0.0: this source has no test set"),
    ({"partition": "by_user"}, 'data.partition=by_user: does not fit the source digits; use "iid" or'),
    ({"partition": "natural"}, "data.partition=natural: does not fit"),
    ({"source": "synthetic"}, 'data.partition=iid: does not fit the source synthetic; use "natural"'),
    ({"reuse": True}, "data.reuse=true: only clusters"),
    ({"options": {"letters": 10}}, "data.options.letters=10: not an option of digits; digits has no options"),
    ({"source": "mnist", "options": {"x": 1}}, "data.options.x=1: not an option of mnist"),
    ({"source": "emnist_letters", "options": {"leters": 1}}, 'did you mean "letters"'),
    ({"source": "emnist_letters", "options": {"letters": 27}}, "letters=27: must be a whole number from 2 to 26"),
    ({"source": "emnist_letters", "options": {"letters": True}}, "letters=True: must be a whole number"),
    ({"source": "airline_tweets", "options": {"users": "many"}}, "users=many: must be one of one, grouped"),
    ({"partition": "rotation", "clients": 5, "clusters": (1,) * 5}, "only 4 quarter turns"),
    ({"partition": "label_shift", "clients": 11, "clusters": (1,) * 11}, "only 10 shifts"),
    ({"partition": "label_shards", "labels_per_client": 11}, "the data has 10 labels"),
    ({"source": "synthetic", "partition": "natural", "size_sigma": 500.0}, "data.size_sigma=500.0: a client would"),
    ({"source": "synthetic", "partition": "natural", "size_mean": 1e308}, "a client would have"),
    ({"source": "synthetic", "partition": "natural", "clients": 10**9}, "do not fit in memory"),
    ({"source": "synthetic", "partition": "natural", "beta": 1e300}, "data.beta=1e.300: the inputs overflow float32"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        deal(tmp_path, **given)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.files])
def test_missing_files_say_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    with pytest.raises(InvalidInput) as caught:
        deal(source=name)
    message = str(caught.value)
    assert message.startswith(f"data.source={name}: looked for {SOURCES[name].files[0][0]} in {tmp_path / name}")
    assert "SIGHTLINE_DATA names the folder" in message
    assert "`sightline datasets`" in message
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=f"no data folder {tmp_path}/nowhere"):
        deal(source=name)


def test_the_default_folder_is_data_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "data" / "mnist", train=30, test=5)
    monkeypatch.delenv("SIGHTLINE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert len(deal(source="mnist", clients=2).test) == 5


@pytest.mark.parametrize("fault", ["count", "label"])
def test_files_that_do_not_belong_together(tmp_path: Path, fault: str) -> None:
    write_images(tmp_path / "mnist", train=30, test=5)
    labels = np.full(29 if fault == "count" else 30, 10, dtype=np.uint8)
    write_gz(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", idx_bytes(labels))
    with pytest.raises(InvalidInput, match="29 labels for 30 images" if fault == "count" else "labels 10"):
        deal(tmp_path, source="mnist", clients=2)
