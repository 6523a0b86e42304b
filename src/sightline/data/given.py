"""Data that a program passes or a path names: one entry per client, or one pool that a partition deals to clients."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config import Data, Experiment, parse
from sightline.data.federation import Client, Federation, Scale, Shard, Table
from sightline.data.formats import list_pictures, read_picture
from sightline.data.own import (
    HIGHEST,
    check_alike,
    checked_client,
    checked_pair,
    checked_shard,
    class_notes,
    federation_of_own,
    tell_error,
)
from sightline.data.partition import split_examples
from sightline.data.tables import (
    FileTable,
    Pair,
    TableReader,
    channels_first,
    explain_lengths,
    list_files,
    stack_rows,
    table_columns,
    to_array,
)
from sightline.data.targets import is_numeral
from sightline.errors import SightlineError, invalid
from sightline.randomness import Purpose, Streams

PYTHON = "python"
"""The `data.source` of examples that no file can restore."""
SPLITS = {"train", "test"}
OTHER_SPLITS = {"train", "test", "val", "valid", "validation"}


@dataclass(frozen=True, eq=False)
class GivenClient:
    """One client's examples as arrays, not checked yet."""

    train: Pair
    test: Pair | None = None
    """None if the client brings no test set, which differs from an empty one."""
    cluster: int | None = None


@dataclass(frozen=True, eq=False)
class GivenData:
    """The examples of every client, or one pool of nobody's; and a common test set if given."""

    clients: tuple[GivenClient, ...]
    test: Pair | None = None
    """The common test set."""
    class_names: tuple[str, ...] | None = None
    """Names of classes that the schema of the data declares."""
    pool: Pair | None = None
    """Examples that no client is named for; `clients` is then empty."""

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
        _refuse_empty_test(test)
        return federation_of_own(clients, settings, streams, None if test is None else own_copy(test))

    def as_table(self, settings: Data, task: str) -> Table:
        """Return all examples as one table for a partition; the owners are the clients, if there are any."""
        if any(client.test is not None for client in self.clients):
            reason = "clients with their own test examples cannot be partitioned"
            invalid("data.partition", settings.partition, reason, 'use "natural", or give one test set for all')
        named = [(f"client {number}", client.train) for number, client in enumerate(self.clients)]
        if self.pool is not None:
            named = [("data", self.pool)]
        parts = [(origin, *checked_pair(origin, *pair, settings, task)) for origin, pair in named]
        tests = [] if self.test is None else [("test", *checked_pair("the test set", *self.test, settings, task))]
        kind, vocabulary = check_alike(settings, parts + tests)
        _refuse_empty_test(tests[0][2] if tests else None)
        scale = Scale(HIGHEST) if parts[0][1].dtype == np.uint8 else None
        test = [Table(x, y, settings.classes, kind, scale, vocabulary=vocabulary) for _, x, y in tests]
        owner = None if self.pool is not None else np.repeat(np.arange(len(parts)), [len(y) for _, _, y in parts])
        x: Any = np.concatenate([part for _, part, _ in parts]) if len(parts) > 1 else parts[0][1]
        y: Any = np.concatenate([part for _, _, part in parts]) if len(parts) > 1 else parts[0][2]
        notes = class_notes(settings)
        return Table(x, y, settings.classes, kind, scale, owner, test[0] if test else None, vocabulary, notes)


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


def _refuse_empty_test(test: Sized | None) -> None:
    if test is not None and not len(test):
        invalid("test", "empty", "it has no examples", "remove it to keep data.test_fraction of each client")


def settle_data(settings: Data, given: GivenData, task: str, *, source: str = PYTHON) -> dict[str, Any]:
    """Return the `[data]` settings of the given examples.

    Raises if they and the experiment's own settings disagree, if it is not said whose examples they are, and if the
    classes are not declared: nothing about them is learned from the examples.
    """
    said = settings.model_fields_set
    partition = settings.partition if "partition" in said else None
    # A file that names another source can run on data that name their clients; its partition is of that source.
    foreign = "source" in said and settings.source not in (PYTHON, source)
    if given.pool is not None and partition in (None, "natural"):
        reason = "it is one data set, and the client of each example is unknown"
        way_out = 'partition it, e.g. data.partition = "dirichlet" and data.clients = 20; or '
        if source != PYTHON and Path(source).is_dir():
            way_out += "make folders client/class"
        else:
            way_out += 'give a list with one (x, y) each, or a table with a column "client"'
        invalid("data", source, reason, way_out)
    if given.pool is None and partition not in (None, "natural", "by_user") and not foreign:
        reason = f"the data names {len(given)} clients, and a partition would mix them"
        invalid("data.partition", partition, reason, "remove it, or give all examples as one (x, y) or table")
    dealt = given.pool is not None or (partition == "by_user" and not foreign)
    if not dealt and "clients" in said and not foreign and settings.clients != len(given):
        invalid(
            "data.clients",
            settings.clients,
            f"the data has {len(given)} clients",
            f"write {len(given)}, or leave it out",
        )
    result = {"source": source, "partition": partition if dealt else "natural"}
    return result | {"clients": settings.clients if dealt else len(given)} | _settle_classes(settings, given, task)


def settle_experiment(experiment: Experiment, given: GivenData, *, source: str = PYTHON) -> Experiment:
    """Return the experiment with the `[data]` settings of the given examples; all its keys count as set."""
    plain: dict[str, Any] = experiment.model_dump(mode="json", exclude_none=True)
    plain["data"] |= settle_data(experiment.data, given, experiment.model.target, source=source)
    if plain["data"]["partition"] == "natural":
        for key in ("clusters", "reuse"):
            plain["data"].pop(key, None)
    return parse(plain)


def _settle_classes(settings: Data, given: GivenData, task: str) -> dict[str, Any]:
    said, declared = settings.model_fields_set, given.class_names
    if "classes" in said:
        if declared is not None and settings.class_names not in (None, declared):
            reason = f"the data set declares {json.dumps(declared)}"
            invalid("data.classes", list(settings.class_names or ()), reason, "remove it, or keep its order")
        return {"classes": settings.classes} | ({"class_names": settings.class_names} if settings.class_names else {})
    if declared is not None:
        # Labels are positions in this list; names that are numbers would be read as the labels themselves.
        named = {} if any(map(is_numeral, declared)) else {"class_names": declared}
        return {"classes": len(declared)} | named
    # The number of classes has no meaning for the other tasks.
    if task not in ("classification", "own"):
        return {"classes": 2 if task == "binary" else settings.classes}
    # Classes counted from the examples would be a release without noise.
    reason = "the set of classes must be public, so it is not read off private data"
    names = _text_labels(given)
    way_out = f"if these names are public, write classes = {json.dumps(names, ensure_ascii=False)}"
    invalid("data.classes", "missing", reason, way_out if names else 'e.g. {"data": {"classes": 10}}')


def _text_labels(given: GivenData) -> list[str]:
    """Return the text labels to show in an error on this screen, at most 30."""
    pairs = [client.train for client in given.clients] if given.pool is None else [given.pool]
    result = {
        str(label) for _, y in pairs if np.asarray(y).dtype.kind in "UO" for label in np.unique(np.asarray(y, str))
    }
    return sorted(result)[:30]


def _common_classes(trained: Mapping[Any, Any] | None, tables: TableReader) -> tuple[str, ...] | None:
    """Return the names of classes that every client's data set declares, or None; raise if they differ."""
    declared = {tables.declared_classes(one) for one in (trained or {}).values()}
    if len(declared - {None}) > 1:
        shown = " and ".join(json.dumps(names) for names in sorted(declared - {None})[:2])  # type: ignore[type-var]
        invalid("data", "clients", f"their data sets declare different classes: {shown}", "give all the same classes")
    return declared.pop() if len(declared) == 1 else None


def read_given(data: Any, test: Any, options: Mapping[str, Any]) -> GivenData:
    """Return the clients, or the pool, of data passed by a program; `options` are those of the experiment's `[data]`.

    >>> x, y = np.ones((4, 2)), [0, 1, 0, 1]
    >>> len(read_given([(x, y), (x, y), (x, y)], None, {})), read_given((x, y), None, {}).pool is not None
    (3, True)
    """
    tables = TableReader(options)
    data, test = _part_tests(data, test)
    trained = clients_of("data", data, tables)
    if trained is not None and not trained:
        way_out = f"give a list with one (x, y) per client, or a table with a column {tables.names.client!r}"
        invalid("data", type(data).__name__, "it does not name clients", way_out)
    names = tables.declared_classes(data) or _common_classes(trained, tables)
    own = None if test is None else clients_of("test", test, tables)
    if trained is None:
        pool = read_examples("data", data, tables)
        if own is not None:
            invalid("test", type(test).__name__, "data= is one data set for all clients", "give one test set")
        common = None if test is None else read_examples("the test set", test, tables)
        return GivenData((), common, names, pool)
    clients = {key: read_client(f"client {number}", one, tables) for number, (key, one) in enumerate(trained.items())}
    if test is None:
        return GivenData(tuple(clients.values()), class_names=names)
    if own is None:
        return GivenData(tuple(clients.values()), read_examples("the test set", test, tables), names)
    if isinstance(test, list | tuple) and len(own) != len(clients):
        invalid("test", len(own), f"there are {len(clients)} clients", "give one entry for each, or one test set")
    return GivenData(tuple(_with_tests(clients, own, tables)), class_names=names)


def _part_tests(data: Any, test: Any) -> tuple[Any, Any]:
    """Return training and test examples, separated if they come as one object."""
    if isinstance(data, str | Path) and Path(data).is_dir():
        data = _splits_in(Path(data)) or data
    if isinstance(data, tuple | list) and len(data) == 4 and all(hasattr(part, "shape") for part in data):
        data = {"train": tuple(data[:2]), "test": tuple(data[2:])}
    if not isinstance(data, Mapping) or "train" not in data:
        return data, test
    if not set(data) <= SPLITS:
        strange = sorted(str(key) for key in set(data) - SPLITS)[0]
        invalid("data", strange, 'the only key beside "train" is "test"', "give these two, or one key per client")
    if "test" in data and test is not None:
        invalid("test", "given twice", 'data has its own "test"', "keep one of the two")
    return data["train"], data.get("test", test)


def _splits_in(folder: Path) -> dict[str, Path] | None:
    """Return the parts `train` and `test` of a folder, each a folder or a table; None if it has no such parts."""
    parts = {
        path.stem: path for path in sorted(folder.iterdir()) if path.is_dir() or path.suffix in (".csv", ".parquet")
    }
    parts = {name: path for name, path in parts.items() if not name.startswith(".")}
    if not parts or not set(parts) <= OTHER_SPLITS:
        return None
    if set(parts) != SPLITS:
        reason = f"{', '.join(parts)} are parts of one data set, not clients"
        invalid("data", folder, reason, 'name them "train" and "test"')
    return parts


def _with_tests(
    clients: Mapping[Any, GivenClient], tests: Mapping[Any, Any], tables: TableReader
) -> Iterator[GivenClient]:
    """Yield each client with the test examples under its name."""
    for key in tests:
        if key not in clients:
            invalid("test", key, "no client has this name", "name test sets like the clients")
        if clients[key].test is not None:
            invalid("test", key, "the client already has test examples", "keep one of the two")
    for key, client in clients.items():
        test = read_examples(f"test of {key}", tests[key], tables) if key in tests else client.test
        yield replace(client, test=test)


def clients_of(origin: str, given: Any, tables: TableReader) -> dict[Any, Any] | None:
    """Return each client's examples by name; None if they are examples of nobody in particular."""
    if isinstance(given, list | tuple):
        return None if _is_pair(given) else dict(enumerate(given))
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str | Path):
        path = _existing(given)
        if path.is_dir():
            by_client = _find_pictures(path)
            if by_client is None:
                return dict(list_files(path))
            return (
                None if None in by_client else {key: _read_pictures(files, tables) for key, files in by_client.items()}
            )
        given = _open_table(origin, path)
    columns = table_columns(given)
    return (
        None if columns is None or tables.names.client not in columns else dict(tables.split_by_client(origin, given))
    )


def _is_pair(given: Any) -> bool:
    """Return whether it is (x, y), an array and a row of labels, and not two clients."""
    if len(given) != 2 or not hasattr(given[0], "shape"):
        return False
    labels = given[1]
    # A language model's targets are read off its tokens.
    return len(labels.shape) == 1 if hasattr(labels, "shape") else labels is None or isinstance(labels, list)


def _existing(given: str | Path) -> Path:
    path = Path(given)
    if not path.exists():
        reason = f"no such file or folder (looked for {path.absolute()})"
        invalid("data", path, reason, "give a .csv or .parquet file, or a folder of tables or images")
    return path


PictureFiles = list[tuple[str, Path]]
"""(name of the class, file) of each image."""


def _find_pictures(folder: Path) -> dict[str | None, PictureFiles] | None:
    """Return the images in client/class/, by client, or in class/, under None; None if there are no images."""
    files = list_pictures(folder)
    depth = len(files[0][0]) if files else 0
    for parts, path in files:
        if len(parts) not in (1, 2) or len(parts) != depth:
            reason = f"images must lie in client/class/ or in class/, and {path.relative_to(folder)} does not"
            invalid("data", folder, reason, "put every image at the same depth")
    result: dict[str | None, PictureFiles] = {}
    for parts, path in files:
        result.setdefault(parts[0] if depth == 2 else None, []).append((parts[-1], path))
    return result or None


def _read_pictures(files: PictureFiles, tables: TableReader) -> Pair:
    pictures = [read_picture(path, tables.names.size) for _, path in files]
    for (_, path), picture in zip(files, pictures, strict=True):
        tables.picture_shape = tables.picture_shape or picture.shape
        if picture.shape != tables.picture_shape:
            reason = f"{_describe_picture(picture.shape)}, others are {_describe_picture(tables.picture_shape)}"
            invalid(
                "data",
                path,
                reason,
                "scale all to one size, e.g. options = {size = 32}, and use the same number of channels",
            )
    return np.stack(pictures), np.array([label for label, _ in files])


def _describe_picture(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} x {shape[1]} pixels in {'colour' if shape[0] == 3 else 'grey'}"


def read_client(origin: str, given: Any, tables: TableReader) -> GivenClient:
    """Return one client's training examples and, if it brings some, its test examples."""
    if isinstance(given, Client):
        return GivenClient((given.train.x, given.train.y), (given.test.x, given.test.y), given.cluster)
    if isinstance(given, tuple | list) and len(given) == 4:
        x, y, test_x, test_y = (_array(origin, part) for part in given)
        return GivenClient((channels_first(x), y), (channels_first(test_x), test_y))
    if isinstance(given, Mapping):
        if set(given) - SPLITS or "train" not in given:
            invalid("data", sorted(map(str, given)), f'{origin}: a client\'s keys are "train" and "test"')
        test = None if given.get("test") is None else read_examples(f"{origin}, test", given["test"], tables)
        return GivenClient(read_examples(f"{origin}, train", given["train"], tables), test)
    return GivenClient(read_examples(origin, given, tables))


def read_examples(origin: str, given: Any, tables: TableReader) -> Pair:
    """Return (x, y) from a pair, a table, a file, a folder of images, a torch Dataset or a DataLoader."""
    if isinstance(given, str | Path):
        path = _existing(given)
        if not path.is_dir():
            return tables.read_pair(path.name, _open_table(origin, path))
        files = _find_pictures(path)
        if files is None or None not in files:
            invalid("data", path, f"{origin}: has no images in class/", "give a file, or a folder of images")
        return _read_pictures(files[None], tables)
    if isinstance(given, tuple | list):
        if len(given) != 2:
            reason = f"{origin} has {len(given)} parts, not (x, y)"
            invalid("data", type(given).__name__, reason, "give (x, y), or (x, y, test_x, test_y)")
        columns = table_columns(given[0])
        x = _array(origin, given[0]) if columns is None else tables.read_inputs(origin, given[0], columns)
        return channels_first(x), _array(origin, given[1])
    if table_columns(given) is not None:
        return tables.read_pair(origin, given)
    if all(hasattr(given, name) for name in ("dataset", "sampler", "collate_fn")):
        return _read_loader(origin, given, tables)
    if isinstance(given, Sized) and hasattr(given, "__getitem__") and not hasattr(given, "shape"):
        return read_dataset(origin, given, tables)
    reason = f"{origin} is a {type(given).__name__}, not (x, y), a Dataset with a length, a table or a file"
    invalid("data", type(given).__name__, reason, "give one of these for each client, or one for all with a partition")


def _open_table(origin: str, path: Path) -> FileTable:
    if path.suffix not in (".csv", ".parquet") or not path.is_file():
        invalid("data", path, f"{origin}: no such .csv or .parquet file")
    return FileTable(path)


def _array(origin: str, given: Any) -> Any:
    try:
        return None if given is None else to_array(given)
    except Exception as error:
        reason = explain_lengths(given) or f"not an array ({tell_error(error)}); give numbers of one shape"
        invalid("data", type(given).__name__, f"{origin}: {reason}")


def _read_loader(origin: str, loader: Any, tables: TableReader) -> Pair:
    """Return the examples behind a DataLoader in the order of its data set, each collated alone."""
    # Another sampler leaves examples out or repeats them, and a repeated example is protected once only.
    if type(loader.sampler).__name__ not in ("SequentialSampler", "RandomSampler") or not isinstance(
        loader.dataset, Sized
    ):
        reason = f"{origin}: its {type(loader.sampler).__name__} selects examples by itself"
        invalid("data", type(loader).__name__, reason, "give the data set itself, or a torch.utils.data.Subset of it")
    if getattr(loader.collate_fn, "__name__", "") == "default_collate":
        return read_dataset(origin, loader.dataset, tables)
    return _read_items(
        origin, loader.dataset, (loader.collate_fn([item]) for item in _items(loader.dataset)), tables, True
    )


def read_dataset(origin: str, given: Any, tables: TableReader) -> Pair:
    """Return all examples of a map-style torch Dataset that yields (input, label), or dictionaries with a label."""
    tensors = getattr(given, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return channels_first(_array(origin, tensors[0])), _array(origin, tensors[1])
    return _read_items(origin, given, _items(given), tables, False)


def _items(dataset: Any) -> Iterator[Any]:
    return (dataset[index] for index in range(len(dataset)))


def _read_items(origin: str, given: Any, items: Iterable[Any], tables: TableReader, batches: bool) -> Pair:
    """Return the items as one pair; with `batches` each item is a batch of one."""
    try:
        rows = list(items)
        if rows and all(isinstance(row, Mapping) for row in rows):
            columns = {key: _join([row[key] for row in rows], batches) for key in rows[0]}
            return tables.read_pair(origin, ItemTable(columns))
        pairs = [tuple(row) for row in rows]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("an item is not (input, label)")
        x, y = ([pair[part] for pair in pairs] for part in (0, 1))
        if (lengths := explain_lengths([row[0] for row in x] if batches else x)) is not None:
            raise ValueError(lengths)
        return channels_first(stack_rows(_join(x, batches))), stack_rows(_join(y, batches))
    except SightlineError:
        raise
    except Exception as error:
        reason = f"{origin}: its items cannot be read ({tell_error(error)})"
        invalid("data", type(given).__name__, reason, "items must be (input, label) pairs of equal shapes")


def _join(parts: list[Any], batches: bool) -> list[Any]:
    return [row for part in parts for row in part] if batches else parts


class ItemTable:
    """The items of a Dataset that yields dictionaries, as a table."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns, self.column_names = columns, [*columns]

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]
