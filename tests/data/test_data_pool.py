"""One data set of any kind, dealt by any partition as a built-in source is; image folders; names of classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

import sightline
from sightline.config import Data, parse
from sightline.data import Federation, Kind, deal_given, load_federation, read_given, settle_data
from sightline.errors import InvalidInput
from sightline.randomness import Streams
from tests.commands import command
from tests.data.test_data_in_memory import Items, Table, same
from tests.loops import for_every

Image = pytest.importorskip("PIL.Image")
SEED = 7
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 6},
    "dirichlet": {"clients": 6, "concentration": 0.3},
    "label_shards": {"clients": 10, "labels_per_client": 3},
    "rotation": {"clients": 5, "clusters": [2, 3]},
    "label_shift": {"clients": 5, "clusters": [2, 3], "reuse": True},
}


def deal(data: Any, test: Any = None, **settings: Any) -> Federation:
    given = read_given(data, test, settings.get("options", {}))
    said = Data(**settings)
    settled = said.model_copy(update=settle_data(said, given, "classification"))
    return deal_given(given, settled, Streams.from_seed(SEED))


def digits() -> tuple[Any, Any]:
    """The built-in digits in their own order, as scikit-learn gives them."""
    from sklearn.datasets import load_digits

    held = load_digits()
    return (held.images[:, None] / 16).astype(np.float32), held.target


class Records(Dataset):
    """A data set of dictionaries."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"image": self.x[place], "label": int(self.y[place])}


def collate(items: list[Any]) -> tuple[Any, Any]:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


X, Y = digits()
FORMS = {
    "arrays": lambda: (X, Y),
    "tensors": lambda: [torch.tensor(X), torch.tensor(Y)],
    "labels in a list": lambda: (X, Y.tolist()),
    "train": lambda: {"train": (X, Y)},
    "TensorDataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "Dataset": lambda: Items(X, Y),
    "Dataset of dictionaries": lambda: Records(X, Y),
    "Subset": lambda: Subset(Items(X, Y), range(len(Y))),
    "DataLoader": lambda: DataLoader(Items(X, Y), batch_size=32, shuffle=True),
    "DataLoader that collates": lambda: DataLoader(Items(X, Y), batch_size=32, collate_fn=collate),
    "table": lambda: Table(image=list(X), label=Y),
    "names of classes": lambda: (X, np.array([f"digit {y}" for y in Y])),
}


@for_every(PARTITIONS)
def test_every_form_is_dealt_as_the_built_in_source(partition: str) -> None:
    settings = PARTITIONS[partition] | {"partition": partition}
    built_in = load_federation(Data(source="digits", **settings), streams=Streams.from_seed(SEED))
    for form, make in FORMS.items():
        names = [f"digit {n}" for n in range(10)] if form == "names of classes" else 10
        dealt = deal(make(), classes=names, **settings)
        same(dealt, built_in)
        assert (dealt.kind, dealt.input_shape) == (Kind.IMAGE, (1, 8, 8)), form
        assert [c.cluster for c in dealt.clients] == [c.cluster for c in built_in.clients]


def test_bytes_are_scaled_as_late_as_built_in_images() -> None:
    raw = np.random.default_rng(0).integers(0, 256, size=(40, 6, 6, 3), dtype=np.uint8)
    y = np.arange(40) % 4
    settings: dict[str, Any] = {"classes": 4, "clients": 4, "partition": "rotation", "clusters": [2, 2]}
    first = np.moveaxis(raw, -1, 1)
    same(
        deal((raw, y), (raw, y), **settings),
        deal((first / np.float32(255), y), (first / np.float32(255), y), **settings),
    )


def test_a_given_test_set_is_the_only_one() -> None:
    dealt = deal((X[:600], Y[:600], X[600:700], Y[600:700]), classes=10, clients=4, partition="dirichlet")
    assert dealt.sizes.sum() == 600
    np.testing.assert_array_equal(dealt.test.x, X[600:700])
    assert all(len(client.test) == 0 for client in dealt.clients)


def test_users_become_clients() -> None:
    users = np.repeat(np.arange(9), np.arange(4, 13))
    x = np.arange(len(users), dtype=float)[:, None] @ np.ones((1, 2))
    table = Table(a=x[:, 0], b=x[:, 1], client=users, label=users % 2)
    largest = deal(table, classes=2, clients=3, partition="by_user")
    assert [len(c.train) + len(c.test) for c in largest.clients] == [12, 11, 10]
    grouped = deal(table, classes=2, clients=3, partition="by_user", options={"users": "grouped"})
    held = [set(users[np.concatenate([c.train.x, c.test.x])[:, 0].astype(int)]) for c in grouped.clients]
    assert sorted(user for one in held for user in one) == list(range(9))


def test_columns_of_tokens_are_found_beside_masks_and_texts() -> None:
    rows = {"text": ["a", "b"] * 6, "input_ids": [[1, 2, 0], [3, 4, 5]] * 6, "attention_mask": [[1, 1, 0], [1] * 3] * 6}
    dealt = deal(Table(**rows, label=[0, 1] * 6), classes=2, clients=2, partition="iid", options={"vocabulary": 9})
    assert (dealt.kind, dealt.input_shape) == (Kind.TEXT, (3,))


def write_pictures(root: Path, layout: str, *, size: int = 8) -> None:
    """Write 48 images of digits, three clients or none, as class folders named by words."""
    for place in range(48):
        kind = ("even", "odd")[Y[place] % 2]
        folder = {"clients": root / f"clinic {place % 3}" / kind, "pool": root / kind}[layout]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(X[place, 0] * 16, np.ones((size // 8, size // 8))) * 15
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{place:03}.png")


NAMES = ["even", "odd"]


def test_image_folders_of_both_layouts(tmp_path: Path) -> None:
    write_pictures(tmp_path / "clients", "clients")
    write_pictures(tmp_path / "pool", "pool")
    (tmp_path / "clients" / ".hidden").mkdir()
    (tmp_path / "clients" / "clinic 0" / "even" / "notes.txt").write_text("no image")
    natural = deal(str(tmp_path / "clients"), classes=NAMES)
    assert [len(c.train) + len(c.test) for c in natural.clients] == [16, 16, 16]
    pooled = deal(tmp_path / "pool", classes=NAMES, clients=4, partition="dirichlet")
    assert (pooled.kind, pooled.input_shape, len(pooled.clients)) == (Kind.IMAGE, (1, 8, 8), 4)
    # Every picture once, with the label of its folder.
    expected = sorted((X[n, 0] * 240).astype(np.uint8).tobytes() + bytes([Y[n] % 2]) for n in range(48))
    for dealt in (natural, pooled):
        shards = [shard for client in dealt.clients for shard in (client.train, client.test)]
        pixels = [
            (np.round(x * 255).astype(np.uint8), y) for shard in shards for x, y in zip(shard.x, shard.y, strict=True)
        ]
        assert sorted(x.tobytes() + bytes([y]) for x, y in pixels) == expected
        assert "classes, declared as public: 0 = even, 1 = odd" in dealt.notes


def test_image_folders_with_their_own_tests_and_sizes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", "pool", size=16)
    write_pictures(tmp_path / "test", "pool", size=8)
    with pytest.raises(InvalidInput, match=r"8 x 8 pixels in grey, others are 16 x 16 .* options = \{size = 32\}"):
        deal(tmp_path, classes=NAMES, clients=3, partition="iid")
    dealt = deal(tmp_path, classes=NAMES, clients=3, partition="iid", options={"size": 12})
    assert (dealt.input_shape, len(dealt.test), dealt.sizes.sum()) == ((1, 12, 12), 48, 48)


def colour(path: Path, mode: str) -> None:
    Image.new(mode, (8, 8)).save(path)


BAD_FOLDERS = {
    "two depths": (lambda root: colour(root / "top.png", "L"), "put every image at the same depth"),
    "colours": (
        lambda root: colour(root / "even" / "z.png", "RGB"),
        "pixels in colour, others are 8 x 8 pixels in grey",
    ),
    "16 bits": (lambda root: colour(root / "even" / "z.png", "I;16"), "convert it to 8 bits"),
    "damaged": (lambda root: (root / "even" / "z.png").write_bytes(b"PNG"), "is not a readable image"),
    "another class": (lambda root: (root / "even").rename(root / "strange"), "label 'strange' is not one of them"),
}


@for_every(BAD_FOLDERS)
def test_mistakes_in_image_folders_are_one_line(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("pictures")
    write_pictures(root, "pool")
    spoil, words = BAD_FOLDERS[case]
    spoil(root)
    with pytest.raises(InvalidInput) as error:
        deal(root, classes=NAMES, clients=2, partition="iid")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_splits_are_not_clients(tmp_path: Path) -> None:
    for word in ("train", "val"):
        write_pictures(tmp_path / word, "pool")
    with pytest.raises(InvalidInput, match='train, val are parts of one data set, not clients; name them "train"'):
        deal(tmp_path, classes=NAMES)


LABELS: dict[str, tuple[Any, Any, list[int]]] = {
    "words": (np.array(["b", "a", "c"], object), ["c", "a", "b"], [2, 1, 0]),
    "from one": ([1, 3, 2], [1, 2, 3], [0, 2, 1]),
    "from one, as text": (np.array([1.0, 3.0, 2.0]), ["1", "2", "3"], [0, 2, 1]),
    "positions of words": ([0, 2, 1], ["a", "b", "c"], [0, 2, 1]),
    "numbers as text": (np.array(["0", "2", "1"]), 3, [0, 2, 1]),
    "numbers and a word": ([1, 1, 2], ["1", "2", "unknown"], [0, 0, 1]),
    "truth": (np.array([True, False, True]), ["no", "yes"], [1, 0, 1]),
}


@for_every(LABELS)
def test_labels_become_numbers(case: str) -> None:
    y, classes, expected = LABELS[case]
    x = np.arange(6.0).reshape(3, 2)
    dealt = deal([(x, y)], (x, y), classes=classes)
    assert dealt.test.y.tolist() == expected
    assert dealt.test.y.dtype == np.int64


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "neither": ((X, Y), {"classes": 10}, 'the client of each example is unknown; partition it, e.g. data.partition = "dirichlet"'),
    "both": ([(X, Y)], {"classes": 10, "partition": "dirichlet"}, "the data names 1 clients"),
    "both, a table": (Table(a=[1.0], client=["a"], label=[0]), {"classes": 2, "partition": "iid"}, "a partition would mix them"),
    "by_user of nobody": ((X, Y), {"classes": 10, "partition": "by_user"}, "does not name the user"),
    "no classes": ((X, Y), {"partition": "iid"}, "must be public, so it is not read off private data"),
    "no names": (
        (X, np.where(Y % 2, "odd", "even")), {"partition": "iid"}, 'if these names are public, write classes = ["even", "odd"]'
    ),
    "a number for names": ((X, np.where(Y % 2, "odd", "even")), {"partition": "iid", "classes": 2}, "list their names"),
    "labels from 1": ((X, Y + 1), {"partition": "iid", "classes": 10}, "classes = [1, 2, 3]"),
    "a strange label": ((X, Y), {"partition": "iid", "classes": [1, 2]}, "label '0' is not one of them"),
    "too many clients": ((X[:5], Y[:5]), {"partition": "iid", "classes": 10}, "more clients than the 5 examples"),
    "own sampler": (
        DataLoader(Items(X, Y), sampler=SubsetRandomSampler([1, 2])), {"partition": "iid", "classes": 10}, "selects examples by itself"
    ),
    "turned vectors": (
        (X[:, 0, 0], Y), {"partition": "rotation", "clusters": [10, 10], "classes": 10}, "only square images can be rotated"
    ),
    "no clusters": ((X, Y), {"partition": "iid", "reuse": True, "classes": 10}, "only clusters can each get the whole data set"),
    "clients' own tests": (
        [(X[:9], Y[:9], X[:9], Y[:9])], {"partition": "by_user", "classes": 10}, "clients with their own test examples"
    ),
    "not padded": (
        Table(input_ids=[[1, 2], [3]], label=[0, 1]), {"partition": "iid", "classes": 2}, 'padding="max_length"'
    ),
    "twice": ((X, Y), {"classes": ["a", "a"]}, "data.classes=a: two classes have this name"),
    "a strange name": ((X, Y), {"classes": ["a", 1.5]}, "class names must be text or whole numbers"),
    "other numbers": ((X, Y), {"classes": 3, "class_names": ["a", "b"]}, "data.class_names has 2 names"),
}  # fmt: skip


@for_every(REFUSED)
def test_what_is_not_said_is_refused_in_one_line(case: str) -> None:
    data, settings, words = REFUSED[case]
    with pytest.raises(InvalidInput) as error:
        deal(data, **settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def write_patients(path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows = [
        (f"ward {n % 3}", "ill" if ill else "healthy", *(rng.normal(2 * ill, 1, size=2).round(4)))
        for n, ill in enumerate(rng.integers(0, 2, size=120))
    ]
    path.write_text("client,label,age,dose\n" + "\n".join(",".join(map(str, row)) for row in rows))
    return path


FILE = {
    "name": "patients", "rounds": 2, "model": {"name": "linear"},
    "privacy": {"unit": "sample", "epsilon": 8.0, "delta": 1e-3},
}  # fmt: skip


def test_a_file_names_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_patients(tmp_path / "patients.csv")
    data = {"source": "patients.csv", "classes": ["healthy", "ill"]}
    run = sightline.run(FILE | {"data": data}, out="one")
    again = sightline.run(FILE | {"data": {"classes": ["healthy", "ill"]}}, data=path, out="two")
    assert (run.directory / "model.safetensors").read_bytes() == (again.directory / "model.safetensors").read_bytes()
    kept = run.experiment.data
    assert (kept.source, kept.clients, kept.partition) == ("patients.csv", 3, "natural")
    assert (kept.classes, kept.class_names) == (2, ("healthy", "ill"))
    assert set(run.predict([[0.0, 0.0], [3.0, 3.0]])) <= {"healthy", "ill"}
    assert "healthy" in run.report.read_text()
    told = json.loads(command("report", "one", "--json").stdout)
    assert told["class_names"] == ["healthy", "ill"]
    # The resolved file runs and resumes by itself.
    assert load_federation(kept, streams=Streams.from_seed(0)).sizes.sum() == 96
    assert len(load_federation(Data(**data), streams=Streams.from_seed(0)).clients) == 3
    with pytest.raises(InvalidInput, match=r"data.clients=4: the data has 3 clients; write 3, or leave it out"):
        load_federation(Data(**data, clients=4), streams=Streams.from_seed(0))
    sightline.run("one", resume=True)


def test_every_command_takes_the_clients_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path / "patients.csv")
    private = {"unit": "client", "noise_multiplier": 1.0, "clip_norm": 1.0, "delta": 0.01}
    file = FILE | {"data": {"source": "patients.csv", "classes": ["healthy", "ill"]}, "privacy": private}
    Path("text.toml").write_text(tomli_w.dumps(file), encoding="utf-8")
    assert json.loads(command("run", "text.toml", "--plan", "--json").stdout)["clients"] == 3
    given = command("run", "text.toml", "--plan", "--set", "data.clients=4")
    assert given.returncode == 2
    assert "data.clients=4: the data has 3 clients" in given.stderr
    found = command("audit", "text.toml", "--trials", "20", "--canaries", "10", "--runs", "0", "--rounds", "1")
    assert found.returncode == 0, found.stderr
    # A second call finds the runs of the first: the settings of its jobs are those that the runs stored.
    for before in (0, 2):
        swept = command("sweep", "text.toml", "--seeds", "2", "--workers", "1", "--out", "swept", "--json")
        assert swept.returncode == 0, swept.stderr
        assert [json.loads(swept.stdout)[name] for name in ("done", "done_before")] == [2, before]
    (group,) = json.loads(command("compare", "swept/seed=0", "swept/seed=1", "--json").stdout)["groups"]
    assert group["seeds"] == [0, 1]


def test_a_folder_of_classes_alone_is_told_how_clients_are_named(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / name / "one.png")
    with pytest.raises(InvalidInput, match=r"or make folders client/class$"):
        load_federation(Data(source=f"{tmp_path}", classes=["cat", "dog"]), streams=Streams.from_seed(0))


def test_a_path_is_dealt_by_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path / "patients.csv")
    words = (tmp_path / "patients.csv").read_text().replace("client,", "ward,")
    (tmp_path / "patients.csv").write_text(words)
    settings = {"source": "./patients.csv", "classes": ["healthy", "ill"], "options": {"inputs": ["age", "dose"]}}
    with pytest.raises(InvalidInput, match="the client of each example is unknown"):
        load_federation(Data(**settings), streams=Streams.from_seed(0))
    dealt = Data(**settings, partition="label_shards", labels_per_client=1, clients=4)
    federation = load_federation(dealt, streams=Streams.from_seed(0))
    assert [len(np.unique(client.train.y)) for client in federation.clients] == [1] * 4
    settings["options"] = {}
    with pytest.raises(InvalidInput, match=r'inputs=ward: .*text .*\["age", "dose"\]'):
        load_federation(Data(**settings, partition="iid"), streams=Streams.from_seed(0))


def test_names_of_classes_survive_the_file() -> None:
    experiment = parse({"rounds": 1, "data": {"source": "./x", "classes": ["a", 2]}})
    assert (experiment.data.classes, experiment.data.class_names, experiment.data.partition) == (2, ("a", 2), "natural")
    assert parse(experiment.model_dump(mode="json", exclude_none=True)) == experiment
