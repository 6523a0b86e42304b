"""The user's own function: the example of docs/data.md runs, and every mistake is one line."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.config import Data
from sightline.data import Client, Federation, Kind, Shard, load_federation
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.randomness import Streams

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose modules are forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def own(source: str, **given: Any) -> Federation:
    given = {"partition": "natural", "clients": 2, "classes": 2} | given
    return load_federation(Data(source=source, **given), streams=Streams.from_seed(0))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_guide_runs(here: Path) -> None:
    path = list(sys.path)
    python = blocks("python")
    (here / "sensors.py").write_text(python[0])
    settings = Data(**tomllib.loads(blocks("toml")[2])["data"])
    first, second = (load_federation(settings, streams=Streams.from_seed(0)) for _ in range(2))
    assert first.kind is Kind.VECTOR
    assert first.input_shape == (3,)
    assert first.sizes.tolist() == [60] * 12
    assert len(first.test) == 12 * 20
    assert first.test.x.dtype == np.float32
    np.testing.assert_array_equal(first.test.x, second.test.x)
    assert sys.path == path
    exec(python[1], {})


def test_the_guides_model_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "nets.py").write_text(blocks("python")[2])
    monkeypatch.syspath_prepend(here)
    settings = tomllib.loads(blocks("toml")[3])["model"]
    model = build_model(settings.pop("name"), input_shape=(3,), classes=2, kind=Kind.VECTOR, settings=settings)
    assert model.parameters == 3 * 8 + 8 + 8 * 2 + 2
    assert set(model.constants) == {"body.weight", "body.bias"}


@pytest.fixture
def module(here: Path) -> Path:
    """`mine.py`, whose functions make every kind of client."""
    (here / "mine.py").write_text(
        """
import numpy as np
from sightline.data import Client, Shard

x, y = np.ones((6, 3)), np.array([0, 1, 0, 1, 0, 1])

def two(clients, rng): return [(x, y, x[:2], y[:2]) for _ in range(clients)]
def as_clients(clients, rng):
    return [Client(Shard(x, y), Shard(x[:1], y[:1]), cluster=n) for n in range(clients)]
def images(clients, rng): return [(np.ones((4, 1, 5, 5)), y[:4], [], []), (np.ones((4, 1, 5, 5)), y[:4], np.ones((1, 1, 5, 5)), [1])]
def tokens(clients, rng, vocabulary=9): return [(np.full((6, 4), 8), y, np.zeros((1, 4), int), [1])] * clients
def lists(clients, rng): return [([[1.0, 2.0]], [1], [[1.0, 2.0]], [0])] * clients

def few(clients, rng): return two(clients - 1, rng)
def forever(clients, rng):
    while True:
        yield x, y, x, y
def raises(clients, rng): raise ValueError("no\\nfile")
def nothing(clients, rng): return None
def three(clients, rng): return [(x, y, x)] * clients
def nan(clients, rng): return [(x * np.nan, y, x, y)] * clients
def huge(clients, rng): return [(x * 1e300, y, x, y)] * clients
def negative(clients, rng): return [(x, y, x, y - 1)] * clients
def large(clients, rng): return [(x, y + 1, x, y)] * clients
def fractions(clients, rng): return [(x, y * 0.5, x, y)] * clients
def short(clients, rng): return [(x, y[:5], x, y)] * clients
def empty(clients, rng): return [(x[:0], y[:0], x, y)] * clients
def untested(clients, rng): return [(x, y, [], [])] * clients
def ragged(clients, rng): return [([[1.0], [1.0, 2.0]], [0, 1], x, y)] * clients
def uneven(clients, rng): return [(x, y, x, y), (x[:, :2], y, x[:, :2], y)]
def mixed(clients, rng): return [(x, y, x, y), (np.ones((6, 3), int), y, np.ones((6, 3), int), y)]
def cubes(clients, rng): return [(np.ones((6, 2, 2, 2, 2)), y, x, y)] * clients
def words(clients, rng): return [(np.array([["a"]] * 6), y, x, y)] * clients
def option(clients, rng, size): return two(clients, rng)
constant = 3
"""
    )
    (here / "broken_module.py").write_text("import nowhere_to_be_found\n")
    return here


def test_what_is_accepted(module: Path) -> None:
    assert own("mine:two").sizes.tolist() == [6, 6]
    assert [client.cluster for client in own("mine:as_clients").clients] == [0, 1]
    images = own("mine:images")
    assert images.kind is Kind.IMAGE
    assert images.clients[0].test.x.shape == (0, 1, 5, 5)
    text = own("mine:tokens", options={"vocabulary": 9})
    assert text.kind is Kind.TEXT
    assert text.vocabulary == 9
    assert text.test.x.dtype == np.int64
    assert own("mine:lists").input_shape == (2,)
    fewer = own("mine:two", train_samples=5, test_samples=3)
    assert fewer.sizes.sum() == 5
    assert fewer.sizes.min() >= 1
    assert len(fewer.test) == 3


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mine:two", {"partition": "iid"}, 'data.partition=iid: your own .* use partition = "natural"'),
        ("not-a-module:f", {}, "must be given as package.module:function"),
        ("mine:two:three", {}, "must be given as package.module:function"),
        ("no_such_module_here:f", {}, "cannot import no_such_module_here"),
        ("broken_module:f", {}, "cannot import broken_module .*nowhere_to_be_found"),
        ("mine:absent", {}, "mine has no function absent"),
        ("mine:constant", {}, "mine has no function constant"),
        ("mine:few", {}, "data.clients=2: the function returned 1 clients"),
        ("mine:forever", {}, "data.clients=2: the function returned more clients"),
        ("mine:raises", {}, r"the function failed \(ValueError: no file\)"),
        ("mine:nothing", {}, "the function failed .*not iterable"),
        ("mine:option", {}, "the function failed .*size"),
        ("mine:two", {"options": {"speed": 1}}, "the function failed .*speed"),
        ("mine:three", {}, "client 0 is tuple, not"),
        ("mine:nan", {}, "client 0, train: inputs contain NaN or infinity"),
        ("mine:huge", {}, "client 0, train: inputs contain NaN or infinity"),
        ("mine:negative", {}, "client 0, test: label -1, labels count from 0"),
        ("mine:large", {}, "client 0, train: label 2 with data.classes=2, labels count from 0; set data.classes"),
        ("mine:fractions", {}, "labels are float64"),
        ("mine:short", {}, r"client 0, train: \(6, 3\) inputs for 5 labels"),
        ("mine:empty", {}, "client 0 has no training example"),
        ("mine:untested", {}, "no client has a test example"),
        ("mine:ragged", {}, "client 0, train: not arrays"),
        ("mine:uneven", {}, r"client 1 has inputs .*\(2,\), client 0 .*\(3,\)"),
        ("mine:mixed", {}, "client 1 has inputs int64"),
        ("mine:cubes", {}, r"inputs are float64 \(6, 2, 2, 2, 2\); give float"),
        ("mine:words", {}, "inputs are <U1"),
        ("mine:tokens", {}, "data.options.vocabulary=None: inputs are tokens"),
        ("mine:tokens", {"options": {"vocabulary": 8}}, "data.options.vocabulary=8: client 0 has tokens outside"),
        ("mine:two", {"train_samples": 1}, "data.train_samples=1: 2 clients have 12"),
        ("mine:two", {"test_samples": 5}, "data.test_samples=5: the clients have 4"),
    ],
)
def test_mistakes_are_one_line(module: Path, name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        own(name, **given)
    assert "\n" not in str(caught.value)


def test_a_client_is_a_client() -> None:
    """The names of the guide are the names of the room."""
    shard = Shard(np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.int64))
    assert Client(shard, shard).cluster is None
