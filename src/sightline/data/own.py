"""The user's own data: examples passed by a program, or a function that yields one client after the other."""

import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import FACTORY, Data
from sightline.data.federation import Client, Federation, Kind, Shard
from sightline.data.partition import draw_subsample, split_examples
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
from sightline.data.targets import check_targets, next_tokens
from sightline.errors import SightlineError, invalid
from sightline.randomness import Purpose, Streams

PYTHON = "python"
"""The `data.source` of examples that no file can restore."""
SPLITS = {"train", "test"}


@dataclass(frozen=True, eq=False)
class GivenClient:
    """One client's examples as arrays, not checked yet."""

    train: Pair
    test: Pair | None = None
    """None if the client brings no test set, which differs from an empty one."""
    cluster: int | None = None


@dataclass(frozen=True, eq=False)
class GivenData:
    """The examples of every client, and a common test set if given."""

    clients: tuple[GivenClient, ...]
    test: Pair | None = None
    """The common test set."""
    classes: int | None = None
    """Number of classes that the schema of the data declares."""

    def __len__(self) -> int:
        return len(self.clients)

    def deal(self, settings: Data, streams: Streams, task: str = "classification") -> Federation:
        """Return the federation of these clients, with the targets that `task` predicts.

        Guarantees: those of `load_federation`. If there is no test example at all, each client keeps `test_fraction` of
        its own; otherwise no examples are split. The arrays are copies: later changes of the caller's arrays have no
        effect.
        """
        # If anyone brings a test set, no client's training examples are split: test sets of two kinds would not be
        # comparable.
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
    """Return one client with copied shards; if `streams` is given, split its test shard from its examples."""
    test = given.test or (np.empty(0), np.empty(0))
    client = checked_client(f"client {number}", (*given.train, *test), settings, task)
    if streams is None:
        return Client(own_copy(client.train), own_copy(client.test), given.cluster)
    rng = streams.rng(Purpose.SPLIT, participant=number)
    kept, tested = split_examples(np.arange(len(client.train)), test_fraction=settings.test_fraction, rng=rng)
    return Client(client.train.take(kept), client.train.take(tested), given.cluster)


def own_copy(shard: Shard) -> Shard:
    """Return the shard with copied arrays."""
    return Shard(shard.x.copy(), shard.y.copy())


def read_given(data: Any, test: Any, options: Mapping[str, Any]) -> GivenData:
    """Return the clients of data passed by a program; `options` are those of the experiment's `[data]`.

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
    """Return training and test examples, separated if they come as one object."""
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
    """Yield each client with the test examples under its name."""
    for key in tests:
        if key not in clients:
            invalid("test", key, "no client is named so", "name test sets like the clients")
        if clients[key].test is not None:
            invalid("test", key, "the client brings test examples of its own", "keep one of the two")
    for key, client in clients.items():
        test = read_examples(f"test of {key}", tests[key], tables) if key in tests else client.test
        yield replace(client, test=test)


def clients_of(who: str, given: Any, tables: TableReader) -> dict[Any, Any] | None:
    """Return the clients by name or number, each still as given; None for examples without owners."""
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
    """Return whether it is (x, y), an array and a row of labels, and not two clients."""
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
    """Return one client's training examples and, if it brings some, its test examples."""
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
    """Return (x, y) from a pair, a table, a file or a torch Dataset; raise for anything else."""
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
    """Return all examples of a map-style torch Dataset that yields (input, label)."""
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


KINDS = {("f", 2): Kind.VECTOR, ("f", 3): Kind.SEQUENCE, ("f", 4): Kind.IMAGE, ("i", 2): Kind.TEXT}
"""Kind of an input array, by the kind of its numbers and its number of axes."""


def load_own(settings: Data, *, streams: Streams, task: str = "classification") -> Federation:
    """Call `package.module:function` with clients, rng and the options, and check every shard it yields.

    Guarantees: `data.clients` clients, each with a training example; finite inputs of one shape; targets as the task
    needs, labels being whole numbers from 0 to data.classes - 1. Raises with one line for every mistake.
    """
    if settings.partition != "natural":
        law = "your own function deals the examples itself"
        invalid("data.partition", settings.partition, law, 'use partition = "natural"')
    function = import_function(settings.source)
    given = _collect_clients(function, settings, streams.rng(Purpose.SYNTHETIC))
    clients = tuple(checked_client(f"client {number}", client, settings, task) for number, client in enumerate(given))
    return federation_of_own(clients, settings, streams)


def federation_of_own(
    clients: tuple[Client, ...], settings: Data, streams: Streams, test: Shard | None = None
) -> Federation:
    """Return the federation of checked clients: inputs of one kind, the requested sizes, and a test set.

    The common test set is `test` if given, else the union of the clients' test shards.
    """
    kind = _same_kind(settings, clients, test)
    clients, notes = _keep_fewer(clients, settings, streams)
    union = _union_of_tests(clients, settings) if test is None else test
    common = _fewer_tests(union, settings, streams)
    vocabulary = _check_vocabulary(settings, clients, union) if kind is Kind.TEXT else 0
    return Federation(settings.source, clients, common, settings.classes, kind, vocabulary, notes)


def import_function(source: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` names; the working folder is searched too."""
    if not FACTORY.fullmatch(source):
        invalid("data.source", source, "your own function is named package.module:function", 'e.g. "mydata:clients"')
    module_name, name = source.split(":")
    try:
        with _working_folder():
            function = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        law = f"cannot import {module_name} ({tell_error(error)})"
        invalid("data.source", source, law, "run from the folder that holds it, or install it")
    if not callable(function):
        invalid("data.source", source, f"{module_name} has no function {name}", "check the spelling")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    # Appended, not prepended: a file in the working folder must not shadow an installed package.
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _collect_clients(function: Callable[..., Any], settings: Data, rng: np.random.Generator) -> list[Any]:
    try:
        with _working_folder():
            yielded = function(clients=settings.clients, rng=rng, **settings.options)
            # One more than asked for shows a surplus; a generator that never ends is not exhausted.
            given = list(itertools.islice(iter(yielded), settings.clients + 1))
    except SightlineError:
        raise
    except Exception as error:
        law = f"the function failed ({tell_error(error)})"
        invalid("data.source", settings.source, law, "it is called as function(clients=..., rng=..., **data.options)")
    if len(given) != settings.clients:
        law = f"the function yields {'more' if len(given) > settings.clients else len(given)} clients"
        invalid("data.clients", settings.clients, law, "let both agree")
    return given


def tell_error(error: Exception) -> str:
    """Return type and first words of an error in the user's code, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def checked_client(who: str, given: Any, settings: Data, task: str = "classification") -> Client:
    """Return a client made by the user, with arrays checked; raise with one line for every mistake."""
    if isinstance(given, Client):
        arrays: tuple[Any, ...] = (given.train.x, given.train.y, given.test.x, given.test.y)
    elif isinstance(given, tuple | list) and len(given) == 4:
        arrays = tuple(given)
    else:
        law = f"{who} is {type(given).__name__}, not (train_x, train_y, test_x, test_y) or a Client"
        invalid("data.source", settings.source, law)
    train = checked_shard(f"{who}, train", arrays[0], arrays[1], settings, task)
    if not len(train):
        invalid("data.source", settings.source, f"{who} has no training example")
    empty = (arrays[3] is None or np.size(arrays[3]) == 0) and np.size(arrays[2]) == 0
    test = train.take(slice(0, 0)) if empty else checked_shard(f"{who}, test", arrays[2], arrays[3], settings, task)
    return Client(train, test, given.cluster if isinstance(given, Client) else None)


def checked_shard(who: str, x: Any, y: Any, settings: Data, task: str = "classification") -> Shard:
    """Return the examples of one owner, inputs and targets checked; raise with one line for every mistake."""
    try:
        inputs = np.asarray(x)
        if y is None and task == "language" and inputs.ndim == 2 and inputs.shape[1] > 1:
            inputs, y = next_tokens(inputs)
        given = np.asarray(y)
    except Exception as error:
        invalid("data.source", settings.source, f"{who}: not arrays ({tell_error(error)})")
    if given.ndim and (inputs.ndim < 1 or len(inputs) != len(given)):
        invalid("data.source", settings.source, f"{who}: {inputs.shape} inputs for {len(given)} labels")
    targets = check_targets(who, given, inputs, settings, task)
    return Shard(_read_inputs(who, inputs, settings), targets)


def _read_inputs(who: str, x: NDArray[Any], settings: Data) -> NDArray[np.float32] | NDArray[np.int64]:
    kind = KINDS.get((x.dtype.kind.replace("u", "i"), x.ndim))
    if kind is None:
        law = f"{who}: inputs are {x.dtype} {x.shape}"
        floats = "(n, features), (n, steps, features) or (n, channels, height, width)"
        way_out = f"give float {floats}, or whole-number (n, tokens)"
        invalid("data.source", settings.source, law, way_out)
    if kind is Kind.TEXT:
        return x.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        inputs = x.astype(np.float32, copy=False)
    # Clipping would silently count an example with NaN as zero; without clipping it would spoil the model.
    if not np.isfinite(inputs).all():
        invalid("data.source", settings.source, f"{who}: inputs hold NaN or infinity", "clean them first")
    return inputs


def _same_kind(settings: Data, clients: tuple[Client, ...], test: Shard | None = None) -> Kind:
    first, targets = clients[0].train.x, clients[0].train.y
    owned = [(f"client {number}", one) for number, client in enumerate(clients) for one in (client.train, client.test)]
    for who, shard in owned if test is None else [*owned, ("the test set", test)]:
        if shard.x.shape[1:] != first.shape[1:] or shard.x.dtype != first.dtype:
            law = f"{who} has inputs {_describe_array(shard.x)}, client 0 {_describe_array(first)}"
            invalid("data.source", settings.source, law, "all inputs have one shape and type")
        if shard.y.shape[1:] != targets.shape[1:] or shard.y.dtype != targets.dtype:
            law = f"{who} has targets {_describe_array(shard.y)}, client 0 {_describe_array(targets)}"
            invalid("data.source", settings.source, law, "all targets have one shape and type")
    return KINDS[first.dtype.kind, first.ndim]


def _describe_array(x: NDArray[Any]) -> str:
    return f"{x.dtype} {x.shape[1:]}"


def _keep_fewer(
    clients: tuple[Client, ...], settings: Data, streams: Streams
) -> tuple[tuple[Client, ...], tuple[str, ...]]:
    total = sum(len(client.train) for client in clients)
    keep = settings.train_samples
    if keep is None or keep == total:
        return clients, ()
    if not len(clients) <= keep <= total:
        law = f"{len(clients)} clients have {total} training examples and keep one each"
        invalid("data.train_samples", keep, law)
    owner = np.repeat(np.arange(len(clients)), [len(client.train) for client in clients])
    kept = draw_subsample(total, keep=keep, rng=streams.rng(Purpose.SUBSAMPLE), owner=owner)
    starts = np.searchsorted(owner, np.arange(len(clients)))
    fewer = tuple(
        Client(client.train.take(kept[owner[kept] == number] - starts[number]), client.test, client.cluster)
        for number, client in enumerate(clients)
    )
    return fewer, (f"data.train_samples: {keep:,} of {total:,} examples, chosen at random",)


def _union_of_tests(clients: tuple[Client, ...], settings: Data) -> Shard:
    tests = [client.test for client in clients]
    union = Shard(np.concatenate([test.x for test in tests]), np.concatenate([test.y for test in tests]))
    if not len(union):
        invalid("data.source", settings.source, "no client has a test example", "give at least one client some")
    return union


def _fewer_tests(union: Shard, settings: Data, streams: Streams) -> Shard:
    keep = len(union) if settings.test_samples is None else settings.test_samples
    if keep > len(union):
        invalid("data.test_samples", keep, f"the clients have {len(union):,} test examples")
    return union.take(draw_subsample(len(union), keep=keep, rng=streams.rng(Purpose.SUBSAMPLE, round=1)))


def _check_vocabulary(settings: Data, clients: tuple[Client, ...], tests: Shard) -> int:
    # A vocabulary read off private texts would be a release, so the user must state it.
    vocabulary = settings.options.get("vocabulary")
    if not isinstance(vocabulary, int) or vocabulary < 2:
        law = "inputs are tokens, and their number must not be learned from private data"
        invalid("data.options.vocabulary", vocabulary, law, "give it, e.g. options = {vocabulary = 5000}")
    owned = [(f"client {number}", one) for number, client in enumerate(clients) for one in (client.train, client.test)]
    for who, shard in [*owned, ("the test set", tests)]:
        if shard.x.size and (shard.x.min() < 0 or shard.x.max() >= vocabulary):
            invalid("data.options.vocabulary", vocabulary, f"{who} has tokens outside 0 .. vocabulary - 1")
    return vocabulary
