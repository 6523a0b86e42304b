"""A run keeps the paths that it began with, whatever is measured later, and says which they are."""

import json

import numpy as np
import pytest

import sightline
from sightline import api
from sightline.config import parse
from sightline.engine import checkpoint as recorded_paths
from sightline.engine.checkpoint import list_changes
from sightline.errors import InvalidInput
from sightline.runtimes import simulator
from sightline.runtimes.remote import client_executor
from sightline.training.local_work import BY_RULE, Paths
from sightline.training.measure_paths import local_work
from tests.engine.leftovers import Crash


def images(*, clients, rng):
    for _ in range(clients):
        x = rng.standard_normal((6, 1, 8, 8)).astype(np.float32)
        y = rng.integers(0, 3, 6)
        yield x[:5], y[:5], x[5:], y[5:]


def experiment(**local):
    return parse(
        {
            "rounds": 3,
            "data": {
                "source": "tests.engine.test_recorded_paths:images",
                "clients": 3,
                "partition": "natural",
                "classes": 3,
            },
            "model": {"name": "cnn"},
            "local": {"batch_size": 4} | local,
            "privacy": {"unit": "client", "noise_multiplier": 1.0, "allow_large_delta": True, "delta": 0.01},
        }
    )


@pytest.fixture
def used(monkeypatch):
    """The paths of every worker that was made."""
    found = []

    def noted(file, paths=BY_RULE):
        found.append(paths)
        return local_work(file, paths)

    monkeypatch.setattr(simulator, "local_work", noted)
    return found


def measure(monkeypatch, paths):
    """Let measuring find this."""
    monkeypatch.setattr(api, "paths_by_measuring", lambda setting: paths)


def stopped_run(folder, after=1):
    def crash(row):
        if row["round"] == after:
            raise Crash

    with pytest.raises(Crash):
        sightline.run(experiment(), out=folder, on_round=crash)


def model_of(run):
    return (run.directory / "model.safetensors").read_bytes()


def test_a_run_goes_on_by_its_own_paths_whatever_is_measured_later(tmp_path, monkeypatch, used):
    measure(monkeypatch, Paths(plain="loop"))
    whole = sightline.run(experiment(), out=tmp_path / "whole")
    stopped_run(tmp_path / "run")
    monkeypatch.setattr(api, "paths_by_measuring", lambda setting: pytest.fail("it measured"))
    resumed = sightline.run(experiment(), out=tmp_path / "run", resume=True)
    assert set(used) == {Paths(plain="loop")}
    assert model_of(resumed) == model_of(whole)
    assert resumed.summary["paths"] == {"plain": "loop", "record": "unfold", "noise": "torch"}


def test_twin_worlds_take_the_paths_of_their_run(tmp_path, monkeypatch, used):
    measure(monkeypatch, Paths(plain="loop"))
    sightline.run(experiment(), out=tmp_path / "run", verify=1)
    assert len(used) >= 2
    assert set(used) == {Paths(plain="loop")}


def test_what_was_taken_is_shown(tmp_path, monkeypatch):
    measure(monkeypatch, Paths(plain="loop"))
    run = sightline.run(experiment(), out=tmp_path / "run")
    assert run.summary["workers"] == 1
    assert "plain loop, record unfold, noise torch" in (run.directory / "report.html").read_text()
    assert json.dumps(run.summary)


def test_a_path_that_is_gone_is_refused_and_left_only_by_consent(tmp_path, monkeypatch, used):
    measure(monkeypatch, Paths(plain="loop"))
    stopped_run(tmp_path / "run")
    monkeypatch.setattr(recorded_paths, "missing_paths", lambda model, work, paths: {"plain": paths.plain})
    with pytest.raises(
        InvalidInput, match=r"does not have its training paths: plain = loop; .*--accept-changes"
    ) as told:
        sightline.run(experiment(), out=tmp_path / "run", resume=True)
    assert "\n" not in str(told.value)
    used.clear()
    done = sightline.run(experiment(), out=tmp_path / "run", resume=True, accept_changes=True)
    assert set(used) == {BY_RULE}
    assert done.summary["paths"]["plain"] == "stack"
    assert any("path plain loop -> stack" in note for note in done.summary["notes"])


def test_a_change_of_path_is_named_and_older_runs_had_the_rules():
    rule, loop = {}, {"paths": {"plain": "loop", "record": "unfold", "noise": "torch"}}
    assert list_changes(loop, rule) == ["path plain loop -> stack"]
    assert list_changes(rule, rule) == list_changes(loop, loop) == []
    one, two = ({"paths": {"plain": "compiled"}, "compiled": digest} for digest in ("a", "b"))
    assert list_changes(one, two) == ["compiled code"]
    assert list_changes(one, rule) == ["path plain compiled -> stack"]


def test_the_off_switch_reaches_the_run(tmp_path, monkeypatch, used):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SIGHTLINE_PATHS")
    sightline.run(experiment(paths="rule"), out=tmp_path / "run")
    assert used == [BY_RULE]
    assert not (tmp_path / "sightline").exists()


def test_simulated_nodes_take_the_paths_of_the_run_or_refuse(monkeypatch, used):
    text = sightline.config.to_toml(experiment())
    client_executor.load_client_side(text, None, None, json.dumps({"plain": "loop"}))
    assert used == [Paths(plain="loop")]
    client_executor.load_client_side(text, None, None)
    assert used[1:] == [BY_RULE]
    monkeypatch.setattr(client_executor, "missing_paths", lambda model, work, paths: {"plain": "loop"})
    with pytest.raises(InvalidInput, match="this machine cannot"):
        client_executor.load_client_side(text, None, None, json.dumps({"plain": "loop", "noise": "torch"}))
