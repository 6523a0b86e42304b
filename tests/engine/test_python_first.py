"""`sightline.run` on objects of a program: the same results as by names, honest settings, and resumption of the same."""

import copy
import functools
import hashlib
import json
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from sightline.errors import InvalidInput, Refused
from sightline.models import code_digest
from tests.commands import command

RNG = np.random.default_rng(5)


def some(count: int) -> tuple[Any, Any]:
    y = RNG.integers(0, 3, size=count)
    return RNG.normal(size=(count, 4)) + 1.5 * y[:, None], y


CLIENTS = [some(24) for _ in range(4)]
TEST = some(30)
PRIVATE = {"unit": "sample", "epsilon": 6.0, "delta": 1e-3}
OPEN = {"unit": "none"}


class Net(nn.Module):
    """A user's module: not known to treat examples apart."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.last, self.slope = nn.Linear(4, width), nn.Linear(width, 3), 1.0

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.slope * self.first(x)))


def settings(**more: Any) -> dict[str, Any]:
    return {"name": "mine", "rounds": 3, "data": {"classes": 3}, "privacy": PRIVATE} | more


def seeded(make: Any = Net) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make()


def digests(run: sightline.Run) -> tuple[str, str]:
    rows = "\n".join(repr(row) for row in run.ledger)
    return hashlib.sha256((run.directory / "model.safetensors").read_bytes()).hexdigest(), rows


def go(folder: Path, **how: Any) -> sightline.Run:
    how = {"data": CLIENTS, "test": TEST, "model": Net} | how
    return sightline.run(how.pop("file", settings()), out=folder, progress=False, **how)


class Stop(Exception):
    """Stands for a power cut."""


class StopAfter:
    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, row: Any) -> None:
        if row["round"] == self.number:
            raise Stop


def break_off(folder: Path, **how: Any) -> Path:
    with pytest.raises(Stop):
        go(folder, callbacks=[StopAfter(1)], **how)
    return folder


MINE = """
import numpy as np
import torch
from torch import nn

def parts(clients, rng):
    held = np.load("held.npz")
    for n in range(clients):
        x, y = held[f"x{n}"], held[f"y{n}"]
        yield x[4:], y[4:], x[:4], y[:4]

def network(*, input_shape, classes, width=5):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, classes))
"""


@pytest.mark.parametrize("privacy", [PRIVATE, {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-2}], ids=str)
def test_objects_and_names_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_named", raising=False)
    Path("mine_named.py").write_text(MINE)
    np.savez("held.npz", **{f"{k}{n}": v for n, (x, y) in enumerate(CLIENTS) for k, v in (("x", x), ("y", y))})
    named = settings(
        data={"source": "mine_named:parts", "partition": "natural", "clients": 4, "classes": 3},
        model={"name": "mine_named:network", "width": 7}, privacy=privacy,
    )  # fmt: skip
    by_name = sightline.run(named, out=tmp_path / "names", progress=False)
    import mine_named

    given = settings(model={"width": 7}, privacy=privacy)
    data = [(x[4:], y[4:], x[:4], y[:4]) for x, y in CLIENTS]
    by_object = go(tmp_path / "objects", file=given, data=data, test=None, model=mine_named.network)
    assert digests(by_name) == digests(by_object)
    assert by_name.test_accuracy == by_object.test_accuracy
    assert by_name.epsilon == by_object.epsilon
    x = TEST[0]
    np.testing.assert_array_equal(by_name.predict(x), by_object.predict(x))


def test_the_settings_say_what_was_handed_over(tmp_path: Path) -> None:
    run = go(tmp_path / "run", model=functools.partial(Net, width=3))
    resolved = tomllib.loads((run.directory / "config.toml").read_text())
    assert resolved["data"]["source"] == "python"
    assert resolved["data"]["partition"] == "natural"
    assert resolved["data"]["clients"] == 4
    assert resolved["model"] == {"name": "python:Net"}
    assert run.experiment.data.classes == 3
    assert any("(model=), with the weights that it held, is taken as public" in one for one in run.metadata["caveats"])
    done = command("run", str(run.directory / "config.toml"), "--out", str(tmp_path / "again"))
    assert done.returncode == 2
    assert "data.source=python" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "again").exists()


def test_a_named_model_on_given_data_and_a_given_model_on_named_data(tmp_path: Path) -> None:
    run = go(tmp_path / "one", model="linear")
    assert run.experiment.model.name == "linear"
    assert isinstance(sightline.Run(run.directory).model(), nn.Sequential)
    file = settings(data={"clients": 4, "train_samples": 80}, model={"name": "mlp", "hidden": [9]})
    other = go(tmp_path / "two", file=file, data=None, test=None, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert other.experiment.data.source == "digits"
    assert other.experiment.model.model_dump(exclude_none=True) == {"name": "python:Sequential"}


def test_a_modules_own_weights_are_the_start_and_it_stays_as_it_is(tmp_path: Path) -> None:
    net = seeded()
    net.first.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    run = go(
        tmp_path / "run", file=settings(rounds=1, local={"learning_rate": 1e-12, "steps": 1}, privacy=OPEN), model=net
    )
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
        torch.testing.assert_close(run.state_dict()[name], tensor, rtol=0, atol=1e-6)
    assert torch.equal(run.state_dict()["first.weight"], before["first.weight"])
    assert run.metadata["parameters"] == 6 * 3 + 3
    assert net.training


def test_a_trained_model_comes_back(tmp_path: Path) -> None:
    run = go(tmp_path / "run", file=settings(rounds=8, privacy=OPEN, local={"learning_rate": 0.3}))
    module = run.model()
    assert type(module) is Net
    assert not module.training
    with torch.no_grad():
        logits = module(torch.tensor(TEST[0], dtype=torch.float32))
    np.testing.assert_array_equal(run.predict(TEST[0]), logits.argmax(1).numpy())
    assert (run.predict(torch.tensor(TEST[0])) == TEST[1]).mean() == pytest.approx(run.test_accuracy)
    assert run.test_accuracy > 0.6
    probabilities = run.predict(TEST[0].tolist(), probabilities=True)
    np.testing.assert_allclose(probabilities, torch.softmax(logits, 1).numpy(), rtol=1e-5)
    assert run.predict(np.empty((0, 4))).shape == (0,)
    other = Net()
    other.load_state_dict(sightline.Run(str(run.directory)).state_dict())
    assert torch.equal(other(torch.ones(1, 4)), module(torch.ones(1, 4)))
    with pytest.raises(InvalidInput, match=r"load run.state_dict\(\) into it"):
        sightline.Run(run.directory).model()
    with pytest.raises(InvalidInput, match=r"x=\(4,\): python:Net takes examples of shape \(4,\)"):
        run.predict(np.ones(4))
    with pytest.raises(InvalidInput, match="one model for all"):
        run.model(client=0)


def test_the_model_of_a_run_from_a_file_comes_back(tmp_path: Path) -> None:
    plain = {"name": "few", "rounds": 2, "data": {"clients": 4, "train_samples": 120}, "model": {"hidden": [8]}}
    run = sightline.run(plain, out=tmp_path / "run", progress=False)
    found = sightline.Run(run.directory)
    assert [tuple(p.shape) for p in found.model().parameters()] == [(8, 64), (8,), (10, 8), (10,)]
    x = np.random.default_rng(0).random((5, 1, 8, 8))
    np.testing.assert_array_equal(found.predict(x), run.predict(x))
    (run.directory / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"model\.safetensors is missing"):
        found.model()


def test_predictions_scale_their_examples_where_training_did(tmp_path: Path) -> None:
    privacy = {"unit": "sample", "mechanism": "objective", "epsilon": 50.0, "delta": 1e-3}
    file = settings(privacy=privacy, local={"weight_decay": 0.1}, sampling={"samples": {"scheme": "full"}}, rounds=1)
    run = go(tmp_path / "run", file=file, model="linear")
    assert (run.predict(TEST[0]) == TEST[1]).mean() == pytest.approx(run.test_accuracy)
    assert np.linalg.norm(TEST[0], axis=1).max() > 1


def test_everybodys_own_model(tmp_path: Path) -> None:
    net = seeded()
    net.first.requires_grad_(False)
    run = go(tmp_path / "run", file=settings(algorithm={"name": "local"}, privacy=OPEN), test=None, model=net)
    first, second = run.state_dict(client=0), run.state_dict(client=1)
    assert set(first) == set(Net().state_dict())
    assert not torch.equal(first["last.bias"], second["last.bias"])
    assert torch.equal(run.model(client=1).last.bias, second["last.bias"])
    assert torch.equal(run.model(client=1).first.bias, net.first.bias)
    for how, words in (
        ({}, "each of the 4 clients has its own model"),
        ({"client": 9}, "no model was saved for this client"),
        ({"cluster": 0}, "this cluster has no clients"),
    ):
        with pytest.raises(InvalidInput, match=words):
            run.model(**how)


def test_the_model_of_a_cluster(tmp_path: Path) -> None:
    file = settings(algorithm={"name": "ifca"}, topology={"kind": "clusters", "count": 2}, privacy=OPEN)
    run = go(tmp_path / "run", file=file, test=None)
    where = [row["clusters"]["assignment"] for row in run.rounds][-1]
    for cluster in set(where):
        for client in (number for number, own in enumerate(where) if own == cluster):
            assert torch.equal(run.model(cluster=cluster).last.bias, run.state_dict(client=client)["last.bias"])


@pytest.mark.slow
def test_processes_train_it_to_the_same_bits(tmp_path: Path) -> None:
    one, two = (go(tmp_path / str(n), model=seeded(), workers=n) for n in (1, 2))
    assert digests(one) == digests(two)


@pytest.mark.parametrize("model", [Net, None], ids=["class", "module"])
def test_an_interrupted_run_goes_on_with_the_same_objects(tmp_path: Path, model: Any) -> None:
    whole = go(tmp_path / "whole", model=model or seeded())
    broken = break_off(tmp_path / "broken", model=model or seeded())
    held = [(x.copy(), y.copy()) for x, y in CLIENTS]
    resumed = go(broken, file=broken, resume=True, model=model or seeded(), data=held)
    assert digests(resumed) == digests(whole)


def test_it_goes_on_with_nothing_else(tmp_path: Path) -> None:
    broken = break_off(tmp_path / "broken", model=seeded())
    other = [(x + 1e-3 * (n == 2), y) for n, (x, y) in enumerate(CLIENTS)]

    def relaxed() -> nn.Module:
        net = seeded()
        net.slope = 0.5
        return net

    for how, words in (
        ({"data": None, "test": None}, r"data.source=python: .*sightline.run\(..., data=...\)"),
        ({"model": None}, r"model.name=python:Net: .*sightline.run\(..., model=...\)"),
        ({"data": other}, "the data are not those that the run began with"),
        ({"data": CLIENTS[:3]}, "data.clients=4: the data has 3 clients"),
        ({"model": Net}, "weights that training starts from"),
        ({"model": relaxed()}, "code of python:Net"),
        ({"model": seeded(functools.partial(Net, 5))}, "weights that training starts from"),
        ({"model": nn.Linear(4, 3)}, "was started with settings other than"),
    ):
        with pytest.raises(InvalidInput, match=words):
            go(broken, **({"file": broken, "model": seeded(), "resume": True} | how))
    done = command("run", "--resume", str(broken))
    assert done.returncode == 2
    assert "sightline.run(..., data=...)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert go(broken, file=broken, model=seeded(), resume=True).summary["status"] == "finished"


def test_other_frozen_tensors_are_seen(tmp_path: Path) -> None:
    def net(value: float) -> nn.Module:
        made = nn.Sequential(seeded(lambda: nn.Linear(4, 4)), seeded(lambda: nn.Linear(4, 3)))
        made[0].requires_grad_(False).bias.fill_(value)
        return made

    broken = break_off(tmp_path / "broken", model=net(0.0))
    with pytest.raises(InvalidInput, match=r"last worked: frozen tensors and buffers; restore it"):
        go(broken, file=broken, resume=True, model=net(1.0))
    note = go(broken, file=broken, resume=True, model=net(1.0), accept_changes=True).metadata["notes"][-1]
    assert "frozen tensors and buffers" in note


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    class Keys:
        def on_round(self, row: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r'continue with: sightline.run\(".*run", data=..., test=..., model=..., re'
    ):
        go(tmp_path / "run", callbacks=[Keys()])


CODE = """
import torch
from torch import nn

SCALE, WORDS = 2.0, {"a", "b", "c"}

def squash(x):
    return torch.tanh(x) if "b" in WORDS else x

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        return SCALE * squash(self.layer(x))
"""


def digest_of(code: str) -> str:
    from sightline.data import Kind
    from sightline.models import build_model, read_given_model

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "cell", "exec"), names)
    name, factory = read_given_model(names["Small"])
    facts: dict[str, Any] = {"input_shape": (4,), "classes": 3, "kind": Kind.VECTOR, "settings": {}}
    return code_digest(build_model(name, factory=factory, **facts))


class Maker:
    def __init__(self, width: int) -> None:
        self.width = width

    def make(self) -> nn.Module:
        return Net(self.width).requires_grad_(True)


def test_the_digest_of_code_sees_what_a_factory_holds() -> None:
    from sightline.data import Kind
    from sightline.models import build_model

    def digest(factory: Any) -> str:
        facts: dict[str, Any] = {"input_shape": (4,), "classes": 3, "kind": Kind.VECTOR, "settings": {}}
        return code_digest(build_model("python:any", factory=factory, **facts))

    def closed(width: int) -> Any:
        return lambda: Net(width)

    for kind in (lambda n: Maker(n).make, closed, lambda n: functools.partial(Net, width=n), lambda n: Maker(n).make):
        assert digest(kind(3)) == digest(kind(3)) != digest(kind(4))


def test_the_digest_of_code_knows_what_counts() -> None:
    first = digest_of(CODE)
    assert digest_of("\n\nimport math  # elsewhere in the file\n" + CODE + "\nOTHER = 4\n") == first
    for old, new in (
        ("SCALE, WORDS = 2.0", "SCALE, WORDS = 3.0"),
        ("torch.tanh(x)", "torch.relu(x)"),
        ('"c"}', '"d"}'),
        ("SCALE * squash", "SCALE + squash"),
        ("nn.Linear(4, 3)", "nn.Linear(4, 3, bias=False)"),
    ):
        assert digest_of(CODE.replace(old, new)) != first, new


@pytest.mark.slow
def test_the_digest_of_code_is_the_same_in_every_process() -> None:
    import os
    import subprocess

    program = textwrap.dedent("""
        import sys
        sys.path.insert(0, ".")
        from tests.engine.test_python_first import CODE, digest_of
        print(digest_of(CODE))
    """)
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            cwd=Path(__file__).parents[2], check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {digest_of(CODE)}


class Remembers(Net):
    def forward(self, x: Any) -> Any:
        self.seen = x.sum()
        return super().forward(x)


class Mixes(Net):
    def forward(self, x: Any) -> Any:
        return super().forward(x - x.mean(0))


def test_a_module_that_mixes_is_given_one_example_at_a_time(tmp_path: Path) -> None:
    run = go(tmp_path / "run", file=settings(rounds=1), model=Mixes())
    assert any("every example is differentiated alone" in note for note in run.metadata["notes"])


SHARED = Net()
BAD = {
    "it lists": ({"model": Remembers()}, Refused, "forward changes"),
    "batch norm": ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}, Refused, "mixes examples"),
    "same module every time": ({"model": lambda: SHARED}, InvalidInput, "return a new module from every call"),
    "no model": ({"model": 3}, InvalidInput, "model=int: is not a model"),
    "not a module": ({"model": lambda: 3}, InvalidInput, "model.name=python:_lambda_: the factory gave a int"),
    "other classes": ({"model": nn.Linear(4, 2)}, InvalidInput, "return logits of shape (batch, 3)"),
    "double": ({"model": nn.Linear(4, 3).double()}, InvalidInput, "use float32"),
    "no such name": ({"model": "mpl"}, InvalidInput, "did you mean"),
    "setting of a module": (
        {"file": settings(model={"width": 3}), "model": Net()}, InvalidInput, "model.width=3: python:Net has no such"
    ),
    "no classes": ({"file": {"rounds": 1}}, InvalidInput, "data.classes=missing"),
    "clients": ({"file": settings(data={"classes": 3, "clients": 9})}, InvalidInput, "the data has 4 clients"),
    "test alone": ({"data": None}, InvalidInput, "test examples need data="),
    "flower": ({"runtime": "flower"}, InvalidInput, "its nodes are separate processes"),
    "no callback": ({"callbacks": [print]}, InvalidInput, "subclass of sightline.Callback"),
    "a class": ({"callbacks": [StopAfter]}, InvalidInput, "pass an instance of a subclass"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    how, kind, words = BAD[case]
    with pytest.raises(kind) as error:
        go(tmp_path / "run", **how)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_module_that_cannot_be_copied_is_one_line(tmp_path: Path) -> None:
    net = Net()
    net.cache = net.first.weight * 2  # part of a graph
    with pytest.raises(InvalidInput, match="cannot be copied"):
        go(tmp_path / "run", model=net)
    Itself = type("Itself", (Net,), {"__deepcopy__": lambda self, memo: self})
    with pytest.raises(InvalidInput, match="its copy shares tensors"):
        go(tmp_path / "run", model=Itself())


class Notes(sightline.Callback):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_start(self, run: sightline.Run) -> None:
        self.told.append(("start", run.experiment.name))

    def on_round(self, row: Any) -> None:
        self.told.append(row)

    def on_end(self, run: sightline.Run) -> None:
        self.told.append(("end", run.metadata["status"], run.report.exists(), type(run.model())))


def test_callbacks_are_told_of_start_rounds_and_end(tmp_path: Path) -> None:
    notes, plain = Notes(), []
    run = go(tmp_path / "run", callbacks=[notes, sightline.Callback()], on_round=plain.append)
    assert notes.told[0] == ("start", "mine")
    assert notes.told[-1] == ("end", "finished", True, Net)
    rows = notes.told[1:-1]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[-1]["epsilon.server"] == plain[-1]["epsilon"]["server"]
    table = run.history
    found = table.to_dict("records") if hasattr(table, "to_dict") else table
    assert json.dumps(found) == json.dumps(rows)
    again = Notes()
    go(run.directory, file=run.directory, resume=True, callbacks=[again])
    assert again.told == []  # it had ended: nothing started


def test_a_callback_that_fails_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    class Fails:
        def on_start(self, run: Any) -> None:
            raise Stop

    with pytest.raises(Stop):
        go(tmp_path / "run", callbacks=[Fails()])
    assert not (tmp_path / "run").exists()


def test_a_callback_that_fails_in_a_round_leaves_a_run_to_resume(tmp_path: Path) -> None:
    broken = break_off(tmp_path / "run")
    notes = Notes()
    go(broken, file=broken, resume=True, callbacks=[notes])
    assert [row["round"] for row in notes.told[1:-1]] == [1, 2, 3][-len(notes.told[1:-1]) :]
    assert notes.told[-1][:2] == ("end", "finished")


def test_history_without_pandas_is_a_list_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tmp_path / "run", file=settings(rounds=1))
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["round"] for row in run.history] == [1]
    assert isinstance(run.history, list)


@pytest.mark.parametrize(
    ("task", "targets", "outputs", "shape", "kind"),
    [
        ("regression", lambda x: 2.0 * x[:, 0], 1, (3,), "f"),
        ("binary", lambda x: (x[:, 0] > 0).astype(int), 1, (3,), "i"),
        ("multilabel", lambda x: (x[:, :2] > 0).astype("float32"), 2, (3, 2), "i"),
    ],
)
def test_predictions_are_those_of_the_task(tmp_path: Path, task, targets, outputs, shape, kind) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(20, 4)).astype("float32") for _ in range(3)]
    file = {
        "rounds": 1,
        "model": {"task": task},
        "local": {"steps": 1},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-2},
    }
    data = [(x, targets(x)) for x in inputs]
    run = sightline.run(file, data=data, model=nn.Linear(4, outputs), out=tmp_path / "run", progress=False)
    found = run.predict(inputs[0][:3])
    assert (found.shape, found.dtype.kind) == (shape, kind)
    if task == "regression":
        with torch.no_grad():
            expected = run.model()(torch.from_numpy(inputs[0][:3])).reshape(3).numpy()
        assert np.array_equal(found, expected)
        with pytest.raises(InvalidInput, match="probabilities=True"):
            run.predict(inputs[0][:3], probabilities=True)
