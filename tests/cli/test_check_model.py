"""`sightline check-model`: verdict, line and way out, what private steps cost, exit codes."""

import json

import pytest
import torch

from sightline.apps.cli import check_model
from sightline.apps.cli.main import run_arguments

NETS = """
import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, input_shape, classes, width=4):
        super().__init__()
        self.one, self.out = nn.Linear(input_shape[0], width), nn.Linear(width, classes)

    def forward(self, x):
        return self.out(torch.relu(self.one(x)))


class Centred(Plain):
    def forward(self, x):
        hidden = self.one(x)
        hidden = hidden - hidden.mean(0)
        return self.out(hidden)


class Picture(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, classes)

    def forward(self, x):
        return self.out(self.conv(x).amax((2, 3)))


def normed(input_shape, classes):
    return nn.Sequential(nn.BatchNorm1d(input_shape[0]), nn.Linear(input_shape[0], classes))


class Remembers(Plain):
    def forward(self, x):
        self.last = x.detach()
        return super().forward(x)
"""


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    (tmp_path / "checked_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def check(*words):
    return run_arguments(["check-model", *words])


def test_a_certified_model(capsys):
    words = ("--input-shape", "20", "--set", "model.width=5", "--classes", "3", "--json")
    assert check("checked_nets:Plain", *words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "certified"
    assert answer["parameters"] == 20 * 5 + 5 + 5 * 3 + 3
    assert answer["operation"] is None
    assert answer["slowdown"] == pytest.approx(answer["private_ms"] / answer["plain_ms"], rel=0.05)


def test_a_model_that_runs_one_at_a_time_is_told_where_and_why(capsys):
    assert check("checked_nets:Centred", "--input-shape", "7") == 0
    out = capsys.readouterr().out
    assert "not certified: private steps give the module one example at a time" in out
    assert "mean.dim" in out
    assert "checked_nets.py:18: hidden = hidden - hidden.mean(0)" in out
    assert "way out" in out
    assert "times a plain step" in out


@pytest.mark.slow
def test_the_input_is_found_by_trying(capsys):
    assert check("checked_nets:Picture", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["input_shape"]) == ("image", [3, 32, 32])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("checked_nets:normed",), "mixes examples"),
        (("checked_nets:Remembers",), "forward changes"),
        (("checked_nets:Gone",), "has no 'Gone'"),
        (("checked_nets:Picture", "--kind", "features"), "fails on a batch"),
        (("checked_nets:Plain", "--input-shape", "3,x"), "--input-shape=3,x"),
        (("checked_nets:Plain", "--set", "model.depth=2"), "no such setting"),
        ((), "no model is named"),
        (("checked_nets:Plain", "--experiment", "gone.toml"), "gone.toml"),
    ],
)
def test_bad_input_and_refusals_are_one_line(capsys, words, says):
    assert check(*words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert says in found.err


@pytest.mark.slow
def test_data_and_model_come_from_an_experiment(capsys, tmp_path):
    (tmp_path / "one.toml").write_text(
        'name = "one"\nrounds = 1\n[data]\nsource = "synthetic"\npartition = "natural"\nclients = 2\n[model]\nname = "linear"\n'
    )
    assert check("--experiment", "one.toml", "--json") == 0
    own = json.loads(capsys.readouterr().out)
    assert check("checked_nets:Plain", "--experiment", "one.toml", "--set", "model.width=3", "--json") == 0
    given = json.loads(capsys.readouterr().out)
    assert (own["model"], given["model"]) == ("linear", "checked_nets:Plain")
    assert own["input_shape"] == given["input_shape"]
    assert own["classes"] == given["classes"]


def test_steps_are_timed_on_one_thread_as_runs_train(monkeypatch):
    threads = []
    model = check_model.model_of_factory(["model.name=linear"], "features", (6,), 3, 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(check_model, "least_seconds", lambda step: threads.append("timed") or 1.0)
    check_model.time_steps(model)
    assert threads == [1, "timed", "timed", 7]
