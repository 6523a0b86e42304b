"""Hostile files: whatever stands in an experiment, a membership, a tree, a table or a checkpoint, it is one line."""

import contextlib
import csv
import io
import json
import os
import pickle
import random
import sys
from collections import Counter

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.apps.cli import main
from sightline.config import parse, read
from sightline.engine import checkpoint, new_directory
from sightline.errors import InvalidInput
from sightline.ledger import read_export
from sightline.resources import read_table
from sightline.topology import read_memberships
from sightline.topology.tree import read_tree
from tests.hostile.full import FULL
from tests.hostile.mutate import corpus, every_value, mutations
from tests.hostile.outcome import building, outcome, reading
from tests.report.report_runs import quickstart

HUGE = 10**400
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.just(HUGE), st.floats(), st.text(max_size=6),
    st.sampled_from(["client-0", "edge-0", "../x", "=cmd()"]),
)  # fmt: skip
keys = st.sampled_from(
    ["workers", "groups", "schedule", "rates", "noise_factors", "clip_factors", "from", "servers", "name", "trusted",
     "devices", "node", "energy_joule", "delay_seconds", "round", "releases", "delta"]
)  # fmt: skip
hostile = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=12,
)
memberships = st.fixed_dictionaries({"workers": leaves, "groups": st.lists(st.lists(leaves, max_size=4), max_size=4)})
trees = st.fixed_dictionaries({"servers": st.lists(st.dictionaries(keys, hostile, max_size=4), max_size=3)})
rows = st.lists(
    st.dictionaries(st.sampled_from(["node", "energy_joule", "delay_seconds", "round"]), leaves, max_size=4), max_size=4
)


def one_line_or_fine(call, *given, **named):
    """Whether the call was fine; a mistake must be one line."""
    try:
        call(*given, **named)
    except InvalidInput as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return False
    return True


def test_mutated_experiments_are_experiments_or_one_line(tmp_path):
    found = Counter(outcome(tmp_path / "x.toml", text) for text in mutations(corpus(), 400, seed=7))
    assert set(found) == {"experiment", "one line"}, found


def test_mutated_experiments_can_be_planned_or_are_refused_in_one_line(tmp_path):
    found = Counter()
    for text in mutations(corpus(), 250, seed=11):
        _, experiment = reading(tmp_path / "x.toml", text)
        if experiment is not None:
            found[building(experiment)] += 1
    assert set(found) == {"planned", "refused"}, found


@pytest.mark.slow
def test_every_setting_with_every_strange_value(tmp_path):
    """A few files that give all settings that have a word of their own, one value changed at a time."""
    bad = []
    for text in every_value(FULL):
        what, experiment = reading(tmp_path / "x.toml", text)
        made = "" if experiment is None else building(experiment)
        if "crash" in what + made or made == "slow":
            bad.append((what, made, text))
    assert not bad, bad[0]


def test_the_files_with_every_setting_are_planned(tmp_path):
    for text in FULL:
        what, experiment = reading(tmp_path / "x.toml", text)
        assert (what, building(experiment)) == ("experiment", "planned")


@pytest.mark.parametrize(
    "words",
    [
        "topology.structure=[]",
        "topology.structure={a=1}",
        "model.activation=[]",
        "model.hidden=[9223372036854775807]",
        "model.hidden=[2000000000, 2000000000]",
        "resources.delays=[]",
        "data.classes=9" + "9" * 400,
        "data.features=1000000000",
        "data.size_min=1000000000",
    ],
)
def test_values_that_once_broke_the_building(words, tmp_path):
    name = words.partition(".")[0]
    text = FULL[2] if name == "topology" else FULL[0]
    (tmp_path / "x.toml").write_text(text)
    try:
        experiment = read(tmp_path / "x.toml", [words])
    except InvalidInput as error:
        assert "\n" not in str(error)
        return
    assert building(experiment) == "refused"


@pytest.mark.parametrize(
    "text",
    [
        "rounds = 1\nx = " + "[" * 3000 + "]" * 3000,
        "rounds = 1\n[model]\nx = " + "[" * 100 + "]" * 100,
        "rounds = 0x" + "f" * 5000,
        "rounds = " + "9" * 5000,
        "rounds = 1\n[model]\nhidden = [nan]",
    ],
)
def test_nests_and_numbers_without_end(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    assert not one_line_or_fine(read, tmp_path / "x.toml")
    assert not one_line_or_fine(read, corpus_file(tmp_path), ["rounds=" + text.rpartition("= ")[2]])


def corpus_file(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text("rounds = 1")
    return path


@FUZZ
@given(st.one_of(hostile, memberships))
def test_memberships(tmp_path, plain):
    (tmp_path / "x.json").write_text(json.dumps(plain))
    one_line_or_fine(read_memberships, tmp_path / "x.json")


@FUZZ
@given(st.one_of(hostile, trees))
def test_trees(tmp_path, plain):
    (tmp_path / "x.json").write_text(json.dumps(plain))
    one_line_or_fine(read_tree, tmp_path / "x.json")


@pytest.mark.parametrize("depth", [10, 300, 480, 900, 100_000])
def test_a_tree_without_end(tmp_path, depth):
    text = '{"name":"a","servers":[' * depth + "]}" * depth
    (tmp_path / "x.json").write_text(f'{{"servers":[{text}]}}')
    one_line_or_fine(read_tree, tmp_path / "x.json")


@FUZZ
@given(st.one_of(hostile, rows))
def test_tables_in_json(tmp_path, plain):
    (tmp_path / "x.json").write_text(json.dumps(plain))
    one_line_or_fine(read_table, {"file": str(tmp_path / "x.json")}, clients=2)


@FUZZ
@given(st.lists(st.lists(st.text(max_size=8), max_size=5), max_size=5))
def test_tables_in_csv(tmp_path, cells):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["node", "energy_joule", "delay_seconds", "round"])
    with contextlib.suppress(csv.Error):
        writer.writerows(cells)
    (tmp_path / "x.csv").write_text(text.getvalue(), errors="replace")
    one_line_or_fine(read_table, {"file": str(tmp_path / "x.csv")}, clients=2)


@FUZZ
@given(st.one_of(hostile, st.fixed_dictionaries({"releases": st.lists(hostile, max_size=3)})))
def test_exported_ledgers(tmp_path, plain):
    (tmp_path / "x.json").write_text(json.dumps(plain))
    one_line_or_fine(read_export, tmp_path / "x.json")


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "..", ".", "", "-rf", "a\x00b", "x" * 81, "a\n", "~", "C:\\x"]
)
def test_no_name_leads_out_of_the_runs(name):
    with pytest.raises(InvalidInput):
        parse({"rounds": 1, "name": name})


def test_a_run_goes_where_its_name_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new_directory(parse({"rounds": 1, "name": "a.b-c_d"}), None).resolve().parent == tmp_path / "runs"


@pytest.fixture
def words():
    return {"round": 1, "releases": 0, "head": "0" * 64, "counts": {}, "sources": {"model": []}, "memories": {}}


def written(folder, words):
    tensors = {"model": np.zeros(3, np.float32)}
    safetensors.numpy.save_file(tensors, folder / checkpoint.CHECKPOINT, {"sightline": json.dumps(words)})


def loaded(folder):
    try:
        return checkpoint.load_checkpoint(folder)
    except checkpoint.CheckpointDamaged as error:
        assert "\n" not in str(error)
        return None


def test_checkpoints_with_flipped_bytes_are_whole_or_refused(tmp_path, words):
    """What is read is bit for bit what was written, or nothing is: also where the damage would be a checkpoint."""
    written(tmp_path, words)
    path, dice, unnoticed = tmp_path / checkpoint.CHECKPOINT, random.Random(0), 0
    good, known = path.read_bytes(), [checkpoint.file_digest(path)]
    assert checkpoint.load_checkpoint(tmp_path, known).round == 1
    for _ in range(400):
        bad = bytearray(good[: dice.randint(0, len(good))] if dice.random() < 0.3 else good)
        for _ in range(dice.randint(1, 8)):
            if bad:
                bad[dice.randrange(len(bad))] = dice.randrange(256)
        path.write_bytes(bytes(bad))
        if bad == good:
            assert checkpoint.load_checkpoint(tmp_path, known).round == 1
            continue
        with pytest.raises(checkpoint.CheckpointDamaged, match=r"^[^\n]*$"):
            checkpoint.load_checkpoint(tmp_path, known)
        unnoticed += loaded(tmp_path) is not None
    assert unnoticed, "without its hash some of the damage must look like a checkpoint, or nothing was shown"


@FUZZ
@given(st.data())
def test_checkpoints_with_foreign_words(tmp_path, data):
    words = {"round": 1, "releases": 0, "head": "0" * 64, "counts": {}, "sources": {"model": []}, "memories": {}}
    for key in data.draw(st.lists(st.sampled_from(sorted(words)), min_size=1, max_size=3)):
        words[key] = data.draw(hostile)
    written(tmp_path, words)
    found = loaded(tmp_path)
    if found is not None:
        assert isinstance(found.round, int)
        assert isinstance(found.releases, int)


def test_loading_runs_no_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code ran"),)

    (tmp_path / checkpoint.CHECKPOINT).write_bytes(pickle.dumps(Bomb()))
    assert loaded(tmp_path) is None
    assert not (tmp_path / "code ran").exists()
    assert "pickle" not in sys.modules["sightline.engine.checkpoint"].__dict__


def test_a_torn_database_is_one_line_at_the_command_line(tmp_path, capsys):
    whole = (quickstart(tmp_path / "run", rounds=30) / "run.sqlite").read_bytes()
    dice = random.Random(0)
    told = 0
    for _ in range(40):
        bad = bytearray(whole)
        place = dice.randrange(len(bad) - 600)
        bad[place : place + dice.randint(1, 600)] = dice.randbytes(dice.randint(1, 600))
        (tmp_path / "run" / "run.sqlite").write_bytes(bytes(bad))
        code = main.run_arguments(["report", str(tmp_path / "run")])
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == (code != 0), said
        told += code != 0
    assert told > 20
