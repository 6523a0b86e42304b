"""Examples that a program hands over: every form gives the same federation, and every mistake is one line."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from sightline.config import Data
from sightline.data import Client, Federation, Kind, Shard, deal_given, load_federation, read_given, settle_data
from sightline.errors import InvalidInput
from sightline.randomness import Streams

RNG = np.random.default_rng(3)
SIZES = (9, 5, 12)
CLIENTS = [(RNG.normal(size=(n, 2)), RNG.integers(0, 3, size=n)) for n in SIZES]
TEST = RNG.normal(size=(7, 2)), RNG.integers(0, 3, size=7)


class Table:
    """What a data frame and a Hugging Face data set have in common, for where neither is installed."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


class Items(Dataset):
    """A map-style data set that computes its items."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return torch.tensor(self.x[place]), int(self.y[place])


def write_csv(path: Path, x: Any, y: Any, columns: tuple[str, ...] = ("a", "b", "label")) -> Path:
    values = {"a": x[:, 0], "b": x[:, 1], "label": y}
    rows = [",".join(repr(float(values[name][place])) for name in columns) for place in range(len(y))]
    path.write_text(",".join(columns) + "\n" + "\n".join(rows) + "\n")
    return path


def deal(data: Any, test: Any = None, *, seed: int = 0, **settings: Any) -> Federation:
    given = read_given(data, test, settings.get("options", {}))
    said = Data(**({"classes": 3} | settings))
    settled = said.model_copy(update=settle_data(said, given, "classification"))
    return deal_given(given, settled, Streams.from_seed(seed))


def same(first: Federation, second: Federation) -> None:
    shards = [[one for c in f.clients for one in (c.train, c.test)] + [f.test] for f in (first, second)]
    for one, other in zip(*shards, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)


def whole_table() -> Table:
    x, y = (np.concatenate([client[part] for client in CLIENTS]) for part in (0, 1))
    owner = np.repeat(["c-0", "c-1", "c-2"], SIZES)
    order = np.random.default_rng(0).permutation(len(y))
    order = order[np.argsort(np.where(owner[order] == "c-1", 0, 1), kind="stable")]  # clients in any order
    keep = np.concatenate([np.sort(order[owner[order] == who]) for who in ("c-1", "c-0", "c-2")])  # rows in theirs
    return Table(a=x[keep, 0], b=x[keep, 1], client=owner[keep], label=y[keep].astype(float))


FORMS = {
    "pairs": lambda folder: CLIENTS,
    "lists": lambda folder: [(x.tolist(), y.tolist()) for x, y in CLIENTS],
    "tuple": lambda folder: tuple(CLIENTS),
    "tensors": lambda folder: [(torch.tensor(x, requires_grad=True), torch.tensor(y)) for x, y in CLIENTS],
    "names": lambda folder: {f"hospital {n}": pair for n, pair in enumerate(CLIENTS)},
    "train of a client": lambda folder: [{"train": pair} for pair in CLIENTS],
    "train": lambda folder: {"train": CLIENTS},
    "TensorDataset": lambda folder: [TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in CLIENTS],
    "Dataset": lambda folder: [Items(x, y) for x, y in CLIENTS],
    "Subset": lambda folder: [Subset(Items(x, y), range(len(y))) for x, y in CLIENTS],
    "tables": lambda folder: [Table(label=y, first=x[:, 0], second=x[:, 1]) for x, y in CLIENTS],
    "client column": lambda folder: whole_table(),
    "folder": lambda folder: [write_csv(folder / f"{n}.csv", *pair) for n, pair in enumerate(CLIENTS)] and folder,
    "files": lambda folder: [str(write_csv(folder / f"{n}.csv", *pair)) for n, pair in enumerate(CLIENTS)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_federation(form: str, tmp_path: Path) -> None:
    federation = deal(FORMS[form](tmp_path))
    assert federation.kind is Kind.VECTOR
    assert federation.source == "python"
    assert [len(c.train) + len(c.test) for c in federation.clients] == list(SIZES)
    assert [len(c.test) for c in federation.clients] == [2, 1, 2]  # a fifth, rounded
    same(federation, deal(CLIENTS))


def test_a_client_keeps_its_own_test_examples_and_the_split_follows_the_seed() -> None:
    federation = deal(CLIENTS)
    for (x, y), client in zip(CLIENTS, federation.clients, strict=True):
        rows = {(*row, label) for row, label in zip(x.astype(np.float32).tolist(), y.tolist(), strict=True)}
        dealt = [(*r, k) for s in (client.train, client.test) for r, k in zip(s.x.tolist(), s.y.tolist(), strict=True)]
        assert len(dealt) == len(rows)
        assert set(dealt) == rows
    assert federation.digest() == deal(CLIENTS).digest() != deal(CLIENTS, seed=1).digest()


TESTS = {
    "test=": lambda: deal(CLIENTS, TEST),
    "key": lambda: deal({"train": CLIENTS, "test": TEST}),
    "table": lambda: deal({"train": whole_table(), "test": Table(a=TEST[0][:, 0], b=TEST[0][:, 1], label=TEST[1])}),
    "Dataset": lambda: deal(CLIENTS, Items(*TEST)),
}


@pytest.mark.parametrize("form", TESTS)
def test_a_common_test_set_leaves_the_clients_whole(form: str) -> None:
    federation = TESTS[form]()
    assert federation.sizes.tolist() == list(SIZES)
    assert all(len(client.test) == 0 for client in federation.clients)
    np.testing.assert_array_equal(federation.test.x, TEST[0].astype(np.float32))
    np.testing.assert_array_equal(federation.test.y, TEST[1])


def folder_of_two(folder: Path) -> Path:
    for word in ("train", "test"):
        (folder / word).mkdir()
        for number, (x, y) in enumerate(CLIENTS):
            write_csv(folder / word / f"{number}.csv", *((x[2:], y[2:]) if word == "train" else (x[:2], y[:2])))
    return folder


OWN_TESTS = {
    "four": lambda folder: deal([(x[2:], y[2:], x[:2], y[:2]) for x, y in CLIENTS]),
    "keys": lambda folder: deal([{"train": (x[2:], y[2:]), "test": (x[:2], y[:2])} for x, y in CLIENTS]),
    "Client": lambda folder: deal([Client(Shard(x[2:], y[2:]), Shard(x[:2], y[:2])) for x, y in CLIENTS]),
    "beside": lambda folder: deal([(x[2:], y[2:]) for x, y in CLIENTS], [(x[:2], y[:2]) for x, y in CLIENTS]),
    "names": lambda folder: deal(
        {"train": {n: (x[2:], y[2:]) for n, (x, y) in enumerate(CLIENTS)},
         "test": {n: Items(x[:2], y[:2]) for n, (x, y) in enumerate(CLIENTS)}}
    ),
    "folders": lambda folder: deal(folder_of_two(folder)),
}  # fmt: skip


@pytest.mark.parametrize("form", OWN_TESTS)
def test_clients_bring_their_own_tests(form: str, tmp_path: Path) -> None:
    federation = OWN_TESTS[form](tmp_path)
    assert federation.sizes.tolist() == [n - 2 for n in SIZES]
    for (x, y), client in zip(CLIENTS, federation.clients, strict=True):
        np.testing.assert_array_equal(client.train.x, x[2:].astype(np.float32))
        np.testing.assert_array_equal(client.test.y, y[:2])
    assert len(federation.test) == 2 * len(CLIENTS)


def test_a_client_may_have_no_test_examples() -> None:
    federation = deal({"a": CLIENTS[0], "b": CLIENTS[1]}, {"b": TEST})
    assert [len(client.test) for client in federation.clients] == [0, 7]


def test_columns_are_found_by_name_whatever_their_order(tmp_path: Path) -> None:
    orders = (("a", "b", "label"), ("b", "label", "a"), ("label", "b", "a"))
    for number, (pair, columns) in enumerate(zip(CLIENTS, orders, strict=True)):
        write_csv(tmp_path / f"{number}.csv", *pair, columns=columns)
    same(deal(tmp_path), deal(CLIENTS))


def test_named_columns_are_used_and_others_left_out() -> None:
    tables = [
        Table(junk=y, t=x[:, 1], s=x[:, 0], target=y, site=np.full(len(y), n)) for n, (x, y) in enumerate(CLIENTS)
    ]
    options = {"label": "target", "inputs": ["s", "t"]}
    same(deal(tables, options=options), deal(CLIENTS))
    joined = Table(**{name: np.concatenate([t[name] for t in tables]) for name in tables[0].column_names})
    same(deal(joined, options=options | {"client": "site"}), deal(CLIENTS))


def test_one_file_with_a_client_column(tmp_path: Path) -> None:
    lines = [f"{n},{float(a)!r},{float(b)!r},{k}" for n, (x, y) in enumerate(CLIENTS) for (a, b), k in zip(x, y)]  # noqa: B905
    (tmp_path / "all.csv").write_text("client,a,b,label\n" + "\n".join(lines))
    test = write_csv(tmp_path / "test.csv", *TEST)
    same(deal(tmp_path / "all.csv"), deal(CLIENTS))
    same(deal(str(tmp_path / "all.csv"), str(test)), deal(CLIENTS, TEST))


def test_a_client_keeps_its_cluster() -> None:
    clients = [Client(Shard(x, y), Shard(x, y), cluster=n % 2) for n, (x, y) in enumerate(CLIENTS)]
    assert [client.cluster for client in deal(clients).clients] == [0, 1, 0]


def test_row_numbers_of_a_data_frame_are_no_inputs(tmp_path: Path) -> None:
    for number, (x, y) in enumerate(CLIENTS):
        rows = [f"{place},{float(a)!r},{float(b)!r},{label}" for place, ((a, b), label) in enumerate(zip(x, y))]  # noqa: B905
        (tmp_path / f"{number}.csv").write_text(",a,b,label\n" + "\n".join(rows))
    same(deal(tmp_path), deal(CLIENTS))


def test_whole_numbers_are_features_in_columns_and_tokens_with_a_vocabulary() -> None:
    table = Table(a=[1, 2, 3], b=[4, 5, 6], label=[0, 1, 2])
    assert deal([table], [table]).kind is Kind.VECTOR
    options = {"vocabulary": 9}
    assert deal([table], [table], options=options).kind is Kind.TEXT
    tokens = Table(input_ids=[[1, 2], [3, 4], [8, 0]], label=[0, 1, 2])
    found = deal([tokens], [tokens], options=options)
    assert (found.kind, found.vocabulary, found.input_shape) == (Kind.TEXT, 9, (2,))


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 1), (5, 6, 3), (3, 5, 6)])
def test_pictures_of_bytes_are_scaled(shape: tuple[int, ...]) -> None:
    pictures = RNG.integers(0, 256, size=(4, *shape), dtype=np.uint8)
    forms = [Table(image=list(pictures), label=[0, 1, 2, 0]), [(one, 0) for one in pictures]]
    items = type("Pictures", (), {"__len__": lambda s: 4, "__getitem__": lambda s, place: forms[1][place]})()
    for form in (forms[0], items):
        found = deal([form], [form]).test.x
        channels = 1 if len(shape) == 2 else min(shape)
        assert found.shape == (4, channels, 5, 6)
        assert found.dtype == np.float32
        first = pictures[:, None] if len(shape) == 2 else pictures if shape[0] == 3 else np.moveaxis(pictures, -1, 1)
        np.testing.assert_allclose(found, first / 255, rtol=1e-6)


def test_what_was_handed_over_can_change_afterwards() -> None:
    x, y = np.ones((6, 2), dtype=np.float32), np.array([0, 1, 2, 0, 1, 2])
    federation = deal([(x, y)], (x, y))
    before = federation.digest()
    x[:], y[:] = 5, 0
    assert federation.digest() == before
    assert federation.test.x.max() == 1


def test_fewer_examples_as_of_any_own_data() -> None:
    federation = deal(CLIENTS, TEST, train_samples=10, test_samples=3)
    assert federation.sizes.sum() == 10
    assert len(federation.test) == 3
    assert "10 of 26 examples" in federation.notes[0]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        yield 1, 1


class Failing(Items):
    def __getitem__(self, place: int) -> Any:
        raise KeyError("gone")


BAD = {
    "nothing": ([], {}, "it does not name clients"),
    "one array": (np.ones((3, 2)), {}, "data is a ndarray, not (x, y)"),
    "one data set": (Items(*TEST), {}, "the client of each example is unknown"),
    "one pair": (TEST, {}, 'data.partition = "dirichlet"'),
    "a table without clients": (Table(a=[1], label=[0]), {}, 'a table with a column "client"'),
    "three parts": ([(1, 2, 3)], {}, "client 0 has 3 parts"),
    "a number": ([4], {}, "client 0 is a int"),
    "an array for a client": ([np.ones((3, 2))], {}, "client 0 is a ndarray"),
    "no length": ([Endless()], {}, "client 0 is a Endless"),
    "failing items": ([Failing(*TEST)], {}, "KeyError: 'gone'"),
    "ragged": ([([[1, 2], [3]], [0, 1])], {}, "client 0"),
    "not finite": ([(np.full((2, 2), np.nan), [0, 1])], {}, "NaN"),
    "labels too large": ([(np.ones((2, 2)), [0, 3])], {}, "data.classes=3"),
    "words for labels": ([(np.ones((2, 2)), ["a", "b"])], {}, "classes = ["),
    "no examples": ([(np.ones((0, 2)), np.zeros(0, int))], {}, "no training example"),
    "other shapes": ([(np.ones((2, 2)), [0, 1]), (np.ones((2, 3)), [0, 1])], {}, "all inputs must have one shape"),
    "other split": ({"train": CLIENTS, "validation": CLIENTS}, {}, "validation"),
    "strange client": ([{"x": 1, "y": 2}], {}, 'keys are "train" and "test"'),
    "two labels": ([Table(label=[0], y=[0], a=[1.0])], {}, "2 of its columns could be the label"),
    "no label": ([Table(a=[1.0])], {}, "none of its columns"),
    "no input": ([Table(label=[0])], {}, "no column is left"),
    "unknown label": ([Table(a=[1.0], label=[0])], {"label": "lable"}, "did you mean"),
    "unknown input": ([Table(a=[1.0], label=[0])], {"inputs": ["z"]}, "no such column"),
    "other columns": ([Table(a=[1.0], label=[0]), Table(b=[1.0], label=[0])], {}, "not all clients have this column"),
    "words": ([Table(a=["x"], label=[0])], {}, "a: client 0: this column holds text or gaps, not numbers (row 0: 'x')"),
    "many clients a row": (Table(a=[1.0], label=[0], client=[[1, 2]]), {}, "several clients"),
    "a row of no client": (
        Table(a=[1.0, 2.0], label=[0, 1], client=[1.0, np.nan]),
        {},
        "fill every row with values of one type",
    ),
    "clients of two kinds": (Table(a=[1.0, 2.0], label=[0, 1], client=np.array(["a", 1], object)), {}, "fill every"),
    "unknown option": (CLIENTS, {"drift": 1}, "not an option of data="),
    "option of another type": (CLIENTS, {"label": 3}, "must be the name of a column"),
    "no folder": ("nowhere", {}, "no such file or folder"),
    "no file": (["nowhere.csv"], {}, "no such file or folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line(case: str) -> None:
    data, options, words = BAD[case]
    with pytest.raises(InvalidInput) as error:
        deal(data, options=options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "test", "words"),
    [
        (CLIENTS, [TEST], "there are 3 clients"),
        ({"a": TEST}, {"b": TEST}, "no client has this name"),
        ({"train": CLIENTS, "test": TEST}, TEST, "given twice"),
        ([(*TEST, *TEST)], [TEST], "already has test examples"),
        (CLIENTS, (np.ones((0, 2)), np.zeros(0, int)), "it has no examples"),
        (CLIENTS, (np.ones((2, 5)), [0, 1]), "the test set has inputs float32 (5,)"),
    ],
)
def test_mistakes_with_tests_are_one_line(data: Any, test: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as error:
        deal(data, test)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "no rows below a header"),
        ("a.csv", "a,label\n", "no rows below a header"),
        ("a.csv", "a,label\n1,red\n", 'labels are text ("red")'),
        ("a.csv", "a,b,label\n1,red,0\n", "b: a.csv: this column holds text"),
        ("a.csv", "a,b,label\n1,,0\n", "row 0: ''"),
        ("a.csv", "a,b,label\n1,nan,0\n", "NaN or infinity in row 0"),
        ("a.csv", "a,label\n1,2,3\n", "3 cells a row for 2 columns"),
        ("a.csv", "a,label\n1,red,3\n", "line 2 has 3 cells, the header 2"),
        ("a.csv", "a,a,label\n1,2,0\n", "name each column once"),
        ("a.txt", "a,label\n1,0\n", "has no .csv"),
    ],
)
def test_mistakes_in_files_are_one_line(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput) as error:
        deal(tmp_path)
    assert words in str(error.value)


def test_two_files_of_one_client(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", *CLIENTS[0])
    (tmp_path / "a.parquet").write_text("")
    with pytest.raises(InvalidInput, match="two files have the same client"):
        deal(tmp_path)


def test_parquet_without_a_reader_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_text("PAR1")
    for name in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match="pip install pyarrow, or use CSV"):
        deal(tmp_path)


def test_a_file_cannot_name_them() -> None:
    with pytest.raises(InvalidInput, match=r"data.source=python: .* pass them again: sightline.run"):
        load_federation(Data(source="python", partition="natural"), streams=Streams.from_seed(0))


def columns() -> dict[str, Any]:
    table = whole_table()
    return {name: table[name] for name in table.column_names}


def test_a_pandas_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    same(deal(pandas.DataFrame(columns())), deal(CLIENTS))
    two = [pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}) for x, y in CLIENTS[:2]]
    same(deal(two), deal(CLIENTS[:2]))
    same(deal(CLIENTS, (pandas.DataFrame(TEST[0]), pandas.Series(TEST[1]))), deal(CLIENTS, TEST))


def test_arrow_tables_and_parquet_files(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    same(deal(pyarrow.table(columns())), deal(CLIENTS))
    for number, (x, y) in enumerate(CLIENTS):
        names = {"a": x[:, 0], "b": x[:, 1], "label": y, "__index_level_0__": np.arange(len(y))}
        parquet.write_table(pyarrow.table(names), tmp_path / f"{number}.parquet")
    same(deal(tmp_path), deal(CLIENTS))
    (tmp_path / "0.parquet").write_text("broken")
    with pytest.raises(InvalidInput, match="is not a Parquet file"):
        deal(tmp_path)


def test_a_hugging_face_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict(columns())
    same(deal(whole), deal(CLIENTS))
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(num_classes=3), who=datasets.Value("string")
    )
    pictures = RNG.integers(0, 256, size=(6, 5, 4), dtype=np.uint8)
    rows = {"image": list(pictures), "label": [0, 1, 2] * 2, "who": ["b", "a"] * 3}
    held = datasets.Dataset.from_dict(rows, features=features)
    options = {"client": "who", "inputs": "image", "label": "label"}
    both = datasets.DatasetDict(train=held, test=held.remove_columns("who"))
    assert read_given(both["train"], None, options).class_names == ("0", "1", "2")
    federation = deal(both, options=options)
    np.testing.assert_allclose(federation.clients[0].train.x[:, 0], pictures[1::2] / 255, rtol=1e-6)
    assert federation.test.x.shape == (6, 1, 5, 4)


def declare(table, names):
    """Let a table declare its classes, as a Hugging Face data set does."""
    table.features = {"label": type("ClassLabel", (), {"names": names})}
    return table


def test_clients_that_declare_the_same_classes_need_no_setting():
    columns = {"a": np.arange(4.0), "label": np.array([0, 1, 0, 1])}
    same = [declare(Table(**columns), ["no", "yes"]) for _ in range(3)]
    assert read_given(same, None, {}).class_names == ("no", "yes")
    assert read_given([*same, Table(**columns)], None, {}).class_names is None
    with pytest.raises(InvalidInput, match="declare different classes"):
        read_given([*same, declare(Table(**columns), ["yes", "no"])], None, {})
