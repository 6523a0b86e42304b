"""Examples that a Python program hands over: `sightline.run(experiment, data=...)`.

A client is a pair (x, y), a quadruple with its own test examples, {"train": ..., "test": ...}, a torch Dataset, a table
or a file; `data` is a list or a dictionary of clients, a table with a client column, or a folder with a file for each.
"""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config import Data
from sightline.data.federation import Client, Federation, Shard
from sightline.data.own import checked_client, checked_shard, federation_of_own, tell_error
from sightline.data.partition import split_examples
from sightline.data.tables import (
    FileTable,
    Pair,
    TableReader,
    list_files,
    scale_pictures,
    stack_rows,
    table_columns,
    to_array,
)
from sightline.errors import SightlineError, invalid
from sightline.randomness import Purpose, Streams

PYTHON = "python"
"""The name in `data.source` of examples that no file can give back."""
SPLITS = {"train", "test"}


@dataclass(frozen=True, eq=False)
class GivenClient:
    """One client's examples as arrays, not checked yet."""

    train: Pair
    test: Pair | None = None
    """None where it brings none: not an empty set."""
    cluster: int | None = None


@dataclass(frozen=True, eq=False)
class GivenData:
    """The examples of every client, and a common test set where one was given."""

    clients: tuple[GivenClient, ...]
    test: Pair | None = None
    """The common test set."""
    classes: int | None = None
    """How many classes the schema of the data declares."""

    def __len__(self) -> int:
        return len(self.clients)

    def deal(self, settings: Data, streams: Streams, task: str = "classification") -> Federation:
        """The federation of these clients, with the targets that `task` predicts.

        Guarantees: those of `load_federation`. Where nobody brings a test example, each client keeps `test_fraction` of
        its own; else nobody's examples are split. The arrays are the federation's own: changing what was handed over
        changes nothing.
        """
        split = self.test is None and all(client.test is None for client in self.clients)
        clients = tuple(
            _check_given(number, client, settings, streams if split else None, task)
            for number, client in enumerate(self.clients)
        )
        test = None if self.test is None else checked_shard("the test set", *self.test, settings, task)
        if test is not None and not len(test):
            invalid("test", "empty", "it holds no example", "leave it out to keep data.test_fraction of each client")
        return federation_of_own(clients, settings, streams, None if test is None else own_copy(test))


def _check_given(number: int, given: GivenClient, settings: Data, streams: Streams | None, task: str) -> Client:
    """One client's shards, in arrays of their own; with streams, its test shard is drawn from its examples."""
    test = given.test or (np.empty(0), np.empty(0))
    client = checked_client(f"client {number}", (*given.train, *test), settings, task)
    if streams is None:
        return Client(own_copy(client.train), own_copy(client.test), given.cluster)
    rng = streams.rng(Purpose.SPLIT, participant=number)
    kept, tested = split_examples(np.arange(len(client.train)), test_fraction=settings.test_fraction, rng=rng)
    return Client(client.train.take(kept), client.train.take(tested), given.cluster)


def own_copy(shard: Shard) -> Shard:
    """The shard in arrays of its own."""
    return Shard(shard.x.copy(), shard.y.copy())


def read_given(data: Any, test: Any, options: Mapping[str, Any]) -> GivenData:
    """The clients of whatever was handed over; `options` are those of the experiment's `[data]`.

    >>> x, y = np.ones((4, 2)), [0, 1, 0, 1]
    >>> len(read_given([(x, y), (x, y), (x, y)], None, {}))
    3
    """
    tables = TableReader(options)
    data, test = _part_tests(data, test)
    trained = clients_of("data", data, tables)
    if not trained:
        law = "it names no client" if trained is not None else "it does not say whose examples they are"
        way_out = f"give a list with one (x, y) per client, or a table with a column {tables.names.client!r}"
        invalid("data", type(data).__name__, law, way_out)
    clients = {key: read_client(f"client {number}", one, tables) for number, (key, one) in enumerate(trained.items())}
    classes = tables.label_count(data)
    if test is None:
        return GivenData(tuple(clients.values()), classes=classes)
    own = clients_of("test", test, tables)
    if own is None:
        return GivenData(tuple(clients.values()), read_examples("the test set", test, tables), classes)
    if isinstance(test, list | tuple) and len(own) != len(clients):
        invalid("test", len(own), f"there are {len(clients)} clients", "give one entry for each, or one test set")
    return GivenData(tuple(_with_tests(clients, own, tables)), classes=classes)


def _part_tests(data: Any, test: Any) -> tuple[Any, Any]:
    """Training examples and test examples, where they come as one."""
    if isinstance(data, str | Path) and all((Path(data) / word).is_dir() for word in SPLITS):
        data = {word: Path(data) / word for word in ("train", "test")}
    if not isinstance(data, Mapping) or "train" not in data:
        return data, test
    if not set(data) <= SPLITS:
        strange = sorted(str(word) for word in set(data) - SPLITS)[0]
        invalid("data", strange, 'beside "train" there is only "test"', "give these two, or one key per client")
    if "test" in data and test is not None:
        invalid("test", "given twice", 'data has a "test" of its own', "keep one of the two")
    return data["train"], data.get("test", test)


def _with_tests(
    clients: Mapping[Any, GivenClient], tests: Mapping[Any, Any], tables: TableReader
) -> Iterator[GivenClient]:
    """Each client with the test examples that are named like it."""
    for key in tests:
        if key not in clients:
            invalid("test", key, "no client is named so", "name test sets like the clients")
        if clients[key].test is not None:
            invalid("test", key, "the client brings test examples of its own", "keep one of the two")
    for key, client in clients.items():
        test = read_examples(f"test of {key}", tests[key], tables) if key in tests else client.test
        yield replace(client, test=test)


def clients_of(who: str, given: Any, tables: TableReader) -> dict[Any, Any] | None:
    """The clients by name or number, each still as it was given; None for the examples of nobody in particular."""
    if isinstance(given, list | tuple):
        return None if _is_pair(given) else dict(enumerate(given))
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str | Path):
        if not Path(given).is_file():
            return dict(list_files(_folder(given)))
        given = _open_table(who, Path(given))
    columns = table_columns(given)
    return None if columns is None or tables.names.client not in columns else dict(tables.split_by_client(who, given))


def _is_pair(given: Any) -> bool:
    """Whether it is (x, y), an array and labels in a row, and not two clients."""
    if len(given) != 2 or not hasattr(given[0], "shape"):
        return False
    labels = given[1]
    return len(labels.shape) == 1 if hasattr(labels, "shape") else isinstance(labels, list)


def _folder(given: Any) -> Path:
    path = Path(given)
    if not path.is_dir():
        invalid("data", path, "no such folder", "give a folder that holds one CSV or Parquet file per client")
    return path


def read_client(who: str, given: Any, tables: TableReader) -> GivenClient:
    """One client's training examples and, where it brings some, its test examples."""
    if isinstance(given, Client):
        return GivenClient((given.train.x, given.train.y), (given.test.x, given.test.y), given.cluster)
    if isinstance(given, tuple | list) and len(given) == 4:
        x, y, test_x, test_y = (_array(who, part) for part in given)
        return GivenClient((x, y), (test_x, test_y))
    if isinstance(given, Mapping):
        if set(given) - SPLITS or "train" not in given:
            invalid("data", sorted(map(str, given)), f'{who}: a client\'s keys are "train" and "test"')
        test = None if given.get("test") is None else read_examples(f"{who}, test", given["test"], tables)
        return GivenClient(read_examples(f"{who}, train", given["train"], tables), test)
    return GivenClient(read_examples(who, given, tables))


def read_examples(who: str, given: Any, tables: TableReader) -> Pair:
    """(x, y) of a pair, a table, a file or a torch Dataset."""
    if isinstance(given, str | Path):
        return tables.read_pair(Path(given).name, _open_table(who, Path(given)))
    if isinstance(given, tuple | list):
        if len(given) != 2:
            law = f"{who} has {len(given)} parts, not (x, y)"
            invalid("data", type(given).__name__, law, "give inputs and labels, with test examples 4 arrays")
        return _array(who, given[0]), _array(who, given[1])
    if table_columns(given) is not None:
        return tables.read_pair(who, given)
    if isinstance(given, Sized) and hasattr(given, "__getitem__") and not hasattr(given, "shape"):
        return read_dataset(who, given)
    law = f"{who} is a {type(given).__name__}, not (x, y), a Dataset with a length, a table or a file"
    invalid("data", type(given).__name__, law, "give one of these for each client")


def _open_table(who: str, path: Path) -> FileTable:
    if path.suffix not in (".csv", ".parquet") or not path.is_file():
        invalid("data", path, f"{who}: no such .csv or .parquet file")
    return FileTable(path)


def _array(who: str, given: Any) -> Any:
    try:
        return to_array(given)
    except Exception as error:
        invalid("data", type(given).__name__, f"{who}: not an array ({tell_error(error)})", "give numbers of one shape")


def read_dataset(who: str, given: Any) -> Pair:
    """The examples of a map-style torch Dataset, all of them: it yields (input, label)."""
    tensors = getattr(given, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return _array(who, tensors[0]), _array(who, tensors[1])
    try:
        pairs = [tuple(given[place]) for place in range(len(given))]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("an item is not (input, label)")
        x, y = ([pair[part] for pair in pairs] for part in (0, 1))
        return scale_pictures(stack_rows(x)), stack_rows(y)
    except SightlineError:
        raise
    except Exception as error:
        law = f"{who}: its items cannot be read ({tell_error(error)})"
        invalid("data", type(given).__name__, law, "let them be (input, label) of one shape")
