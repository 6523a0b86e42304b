"""What lies in a run directory: whose it is, what vouches for it, and what happens when it is damaged or changed."""

import fcntl
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import sightline
from sightline import engine
from sightline.apps.cli import main
from sightline.apps.serve.run_folder import RunFolder
from sightline.config import to_toml
from sightline.engine import RunRecord, checkpoint, loop, run_directory
from sightline.engine.record import DATABASE
from sightline.errors import InvalidInput
from sightline.ledger import EntryKind, Ledger, LedgerDamaged
from sightline.randomness import write_secret
from sightline.runtimes.flower.export import export_app
from tests.engine.leftovers import Crash, crash_in, left_behind

OS = {"privacy.noise_source": "os"}


@pytest.fixture
def broken(tiny, tmp_path, monkeypatch):
    """A run of four rounds that was cut off in its third, after that round's releases were recorded."""

    def make(**changes):
        with monkeypatch.context() as patch:
            crash_in(patch, loop, "save_checkpoint", 3, before=True)
            with pytest.raises(Crash):
                sightline.run(tiny(**changes), out=tmp_path / "broken")
        return tmp_path / "broken"

    return make


def entries(path):
    with closing(RunRecord.open_to_read(path)) as record:
        return list(record.journal.entries())


def change_database(path, *statements):
    with closing(sqlite3.connect(path / DATABASE)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


# Damage


@pytest.mark.parametrize("place", [0, 40, 400, -1], ids=["length", "header", "a word", "a number"])
def test_a_flipped_bit_goes_back_to_the_checkpoint_before_and_to_the_same_bits(broken, tiny, tmp_path, capsys, place):
    run = broken()
    flip(run / checkpoint.CHECKPOINT, place)
    sightline.run(tiny(), out=run, resume=True)
    assert "going on from the one before, after round 1" in capsys.readouterr().err
    sightline.run(tiny(), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")
    resumed = [entry.body["wrong"] for entry in entries(run) if entry.kind == EntryKind.RESUME]
    assert len(resumed) == 1
    assert checkpoint.CHECKPOINT in resumed[0]


def test_without_a_whole_checkpoint_it_is_refused_and_without_any_all_is_done_again(broken, tiny, tmp_path):
    run = broken()
    for name in (checkpoint.CHECKPOINT, checkpoint.EARLIER):
        flip(run / name, -1)
    before = (run / DATABASE).read_bytes()
    with pytest.raises(checkpoint.CheckpointDamaged, match="every earlier one is damaged"):
        sightline.run(tiny(), out=run, resume=True)
    assert (run / DATABASE).read_bytes() == before
    for name in (checkpoint.CHECKPOINT, checkpoint.EARLIER):
        (run / name).unlink()
    sightline.run(tiny(), out=run, resume=True)
    sightline.run(tiny(), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")


HARM = {
    "a fact": "UPDATE fact SET value = '1e-9' WHERE name = 'delta'",
    "a fact more": "INSERT INTO fact VALUES ('trusted', '[]') ON CONFLICT (name) DO UPDATE SET value = '[]'",
    "a fact less": "DELETE FROM fact WHERE name = 'trusted'",
    "a round": "UPDATE round SET body = replace(body, 'test_accuracy\": 0', 'test_accuracy\": 1') WHERE round = 2",
    "a round less": "DELETE FROM round WHERE round = 2",
    "a round more": "INSERT INTO round SELECT 9, body FROM round WHERE round = 1",
    "an entry": "UPDATE journal SET body = replace(body, 'torch', 'touch') WHERE kind = 'start'",
    "an entry less": "DELETE FROM journal WHERE number = 4",
    "the last release": "DELETE FROM release WHERE id = (SELECT max(id) FROM release)",
}


@pytest.mark.parametrize("harm", HARM)
def test_an_edited_record_is_neither_shown_nor_gone_on_with(broken, tiny, harm, capsys):
    run = broken()
    change_database(run, HARM[harm])
    if harm == "the last release":  # the broken round is not in the journal yet; the rounds before it are
        change_database(run, HARM[harm], HARM[harm])
    with pytest.raises(LedgerDamaged):
        sightline.run(tiny(), out=run, resume=True)
    assert main.run_arguments(["report", str(run)]) == 2
    assert main.run_arguments(["compare", str(run)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 2
    assert str(run) in said[0] or "entry=" in said[0]


# What the run is made of

MODEL = """
import {name}_layers

def model(input_shape, classes):
    return {name}_layers.Net(input_shape[0], classes)
"""
LAYERS = """
from torch import nn

from {name}_scale import scale

class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.output = nn.Linear(features, classes)

    def forward(self, x):
        return scale(self.output(x))
"""
SCALE = """
def scale(x):
    return x * {factor}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a model of the user's own, in three files, and return its settings; what is imported is what was written."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_{tmp_path.name}"

    def write(factor):
        for part, text in (("", MODEL), ("_layers", LAYERS), ("_scale", SCALE)):
            sys.modules.pop(name + part, None)
            (tmp_path / f"{name}{part}.py").write_text(text.format(name=name, factor=factor))
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        return {"model": {"name": f"{name}:model"}}

    return write


def test_another_model_body_is_refused_and_can_be_accepted(own, broken, tiny, tmp_path, capsys):
    run = broken(**own(1.0))
    changes = own(2.0)
    with pytest.raises(InvalidInput, match=r"changed .*code of own_\w+_scale; .*--accept-changes") as told:
        sightline.run(tiny(**changes), out=run, resume=True)
    assert "\n" not in str(told.value)
    done = sightline.run(tiny(**changes), out=run, resume=True, accept_changes=True)
    assert "made again with other noise, both count" in capsys.readouterr().err
    assert [release.time for release in done.ledger] == [1, 1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert any("_scale" in note for note in done.summary["notes"])
    resumed = [entry.body for entry in entries(run) if entry.kind == EntryKind.RESUME]
    assert [(one["round"], one["since"], len(one["accepted"])) for one in resumed] == [(2, 6, 1)]


@pytest.mark.slow
def test_the_same_model_read_again_is_no_change(own, broken, tiny, tmp_path):
    run = broken(**own(1.0))
    changes = own(1.0)
    sightline.run(tiny(**changes), out=run, resume=True)
    sightline.run(tiny(**changes), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")


@pytest.mark.parametrize("package", ["python", "torch", "numpy", "sightline"])
def test_another_package_is_one_line_with_a_way_out(broken, tiny, monkeypatch, package, capsys):
    run = broken()
    now = checkpoint.package_versions()
    monkeypatch.setattr(checkpoint, "package_versions", lambda: now | {package: "99.1"})
    assert main.run_arguments(["run", "--resume", str(run)]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert f"{package} {now[package]} -> 99.1" in said
    assert said.endswith("--accept-changes")
    assert main.run_arguments(["run", "--resume", str(run), "--accept-changes", "--json"]) == 0
    accepted = [entry.body["accepted"] for entry in entries(run) if entry.kind == EntryKind.RESUME]
    assert accepted == [[f"{package} {now[package]} -> 99.1"]]


def noises(monkeypatch):
    """Every stream that noise is drawn from, as it is made: (round, key)."""
    found = []
    real = sightline.randomness.Streams.rng

    def rng(self, purpose, *, round=0, participant=-1, use=0):
        if purpose is sightline.randomness.Purpose.NOISE:
            found.append((round, self.key(purpose, round=round, participant=participant, use=use)))
        return real(self, purpose, round=round, participant=participant, use=use)

    monkeypatch.setattr(sightline.randomness.Streams, "rng", rng)
    return found


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_other_code_never_draws_the_noise_of_an_interrupted_round_again(tiny, tmp_path, monkeypatch, unit):
    changes = {"privacy.unit": unit, "sampling.clients": {"scheme": "full"}} if unit == "sample" else {}
    drawn, run = noises(monkeypatch), tmp_path / "run"
    with monkeypatch.context() as patch:
        crash_in(patch, loop, "save_checkpoint", 3, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(**changes), out=run)
    first = {key for number, key in drawn if number == 3}
    assert first
    now = checkpoint.package_versions()
    monkeypatch.setattr(checkpoint, "package_versions", lambda: now | {"torch": "99.1"})
    drawn.clear()
    with monkeypatch.context() as patch:  # and cut off again in the same place
        crash_in(patch, loop, "save_checkpoint", 1, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(**changes), out=run, resume=True, accept_changes=True)
    second = {key for number, key in drawn if number == 3}
    assert second.isdisjoint(first)
    releases = len(sightline.api.Run(run).ledger)
    drawn.clear()
    done = sightline.run(tiny(**changes), out=run, resume=True)
    assert {key for number, key in drawn if number == 3} == second, "the same code goes on with the same noise"
    assert len([release for release in done.ledger if release.time < 4]) == releases


def test_a_schedule_has_every_round_once_so_other_code_does_not_go_on_in_its_middle(broken, tiny, monkeypatch):
    changes = {"sampling.clients": {"scheme": "balanced", "uses": 2}}
    run = broken(**changes)
    now = checkpoint.package_versions()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "package_versions", lambda: now | {"torch": "99.1"})
        with pytest.raises(InvalidInput, match="a schedule has it once"):
            sightline.run(tiny(**changes), out=run, resume=True, accept_changes=True)
    assert sightline.run(tiny(**changes), out=run, resume=True).summary["rounds_done"] == 4


def test_a_checkpoint_from_before_a_change_is_not_gone_on_from(broken, tiny, tmp_path, monkeypatch):
    run = broken()
    shutil.copy(run / checkpoint.EARLIER, tmp_path / "earlier")
    now = checkpoint.package_versions()
    monkeypatch.setattr(checkpoint, "package_versions", lambda: now | {"torch": "99.1"})
    with monkeypatch.context() as patch:
        crash_in(patch, loop, "save_checkpoint", 2, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(), out=run, resume=True, accept_changes=True)
    for name in (checkpoint.CHECKPOINT, checkpoint.EARLIER):
        shutil.copy(tmp_path / "earlier", run / name)
    with pytest.raises(checkpoint.CheckpointDamaged, match="but code changed after"):
        sightline.run(tiny(), out=run, resume=True)


@pytest.mark.parametrize("name", [run_directory.CONFIG, run_directory.DIGEST])
def test_settings_and_data_are_never_other_ones(broken, tiny, name):
    run = broken()
    content = (run / name).read_bytes()
    write_secret(run / name, content + b"\n")
    with pytest.raises(InvalidInput, match=f"{name} changed since"):
        sightline.run(tiny(), out=run, resume=True, accept_changes=True)


def test_the_journal_tells_nothing_of_the_data(tiny, tmp_path):
    for name in ("one", "two"):
        sightline.run(tiny(), out=tmp_path / name)
    assert entries(tmp_path / "one")[0].body["data"] != entries(tmp_path / "two")[0].body["data"]
    fingerprint = engine.build_experiment(tiny()).federation.digest()
    assert fingerprint.encode() not in (tmp_path / "one" / DATABASE).read_bytes()


# Directories from before there were journals


def age(run):
    """Make a run directory what an earlier version left: no journal, one checkpoint, files open to others."""
    change_database(run, "DROP TABLE journal")
    (run / checkpoint.EARLIER).unlink()
    (run / run_directory.DIGEST).write_bytes((run / run_directory.DIGEST).read_bytes().split()[0])
    for name in (DATABASE, run_directory.CONFIG, run_directory.LOCK):
        (run / name).chmod(0o644)


@pytest.mark.parametrize("changes", [{}, OS], ids=["seed", "os"])
def test_a_directory_without_hashes_goes_on_and_has_them_from_then_on(broken, tiny, tmp_path, capsys, changes):
    run = broken(**changes)
    age(run)
    sightline.run(tiny(**changes), out=run, resume=True)
    assert "stored no hashes" in capsys.readouterr().err
    if not changes:
        sightline.run(tiny(), out=tmp_path / "whole")
        assert left_behind(run) == left_behind(tmp_path / "whole")
    assert [entry.kind for entry in entries(run)][:4] == ["adopt", "facts", "resume", "checkpoint"]
    assert main.run_arguments(["report", str(run)]) == 0
    change_database(run, "UPDATE round SET body = '{}' WHERE round = 1")
    with pytest.raises(LedgerDamaged, match="rounds up to 2"):
        sightline.run(tiny(**changes), out=run, resume=True)


def test_an_old_directory_can_be_looked_at_and_cut_off_again(broken, tiny, tmp_path, monkeypatch):
    run = broken()
    age(run)
    assert main.run_arguments(["report", str(run)]) == 0
    with monkeypatch.context() as patch:
        crash_in(patch, loop.RunRecord, "remember_metadata", 1, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(), out=run, resume=True)
    sightline.run(tiny(), out=run, resume=True)
    sightline.run(tiny(), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")


# Whose files they are


@pytest.mark.parametrize(
    ("mine", "lock"),
    [("# mine\n", False), ("# mine\n", True), ("", False)],
    ids=["their own", "with a lock beside it", "as a run would write it"],
)
def test_the_users_own_file_is_never_overwritten(tiny, tmp_path, capsys, mine, lock):
    text = to_toml(tiny(rounds=2)) + mine
    (tmp_path / "config.toml").write_text(text)
    if lock:
        (tmp_path / run_directory.LOCK).touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main.run_arguments(["run", str(tmp_path / "config.toml"), "--out", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "config.toml").read_text() == text


def test_a_database_of_somebody_elses_is_no_false_start(tiny, tmp_path):
    (tmp_path / run_directory.LOCK).touch()
    change_database(tmp_path, "CREATE TABLE mine (value)")
    with pytest.raises(InvalidInput, match="not empty"):
        sightline.run(tiny(), out=tmp_path)


def test_a_run_that_another_process_made_meanwhile_is_not_begun_anew(tiny, tmp_path):
    place = engine.new_directory(tiny(), tmp_path / "run")
    sightline.run(tiny(), out=place)
    before = left_behind(place)
    with pytest.raises(InvalidInput, match="not empty"):
        loop.run_loop(engine.build_experiment(tiny()), place, lambda *_: pytest.fail("it trained"), resume=False)
    assert left_behind(place) == before


def test_a_lock_that_was_removed_holds_nothing(tiny, tmp_path, monkeypatch):
    place, real = engine.new_directory(tiny(), tmp_path / "run"), fcntl.flock

    def late(handle, how):
        (place / run_directory.LOCK).unlink()
        (place / run_directory.LOCK).touch()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(run_directory.RunBusy), run_directory.lock_directory(place):
        pytest.fail("two processes could be in here")


def interrupt(tiny, out, patch):
    """Let Ctrl-C fall before the first release."""

    def pressed(self, releases):
        raise KeyboardInterrupt

    patch.setattr(Ledger, "append", pressed)
    with pytest.raises(KeyboardInterrupt):
        sightline.run(tiny(), out=out)


def test_an_interrupt_before_the_first_release_removes_what_the_run_made_and_no_more(tiny, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    interrupt(tiny, mine, monkeypatch)
    assert list(mine.iterdir()) == []
    interrupt(tiny, tmp_path / "deep" / "made", monkeypatch)
    assert list((tmp_path / "deep").iterdir()) == []


def test_what_others_put_there_meanwhile_stays(tiny, tmp_path, monkeypatch):
    def pressed(self, releases):
        (tmp_path / "run" / "notes.txt").write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "append", pressed)
    with pytest.raises(KeyboardInterrupt):
        sightline.run(tiny(), out=tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_ctrl_c_exits_130_and_says_how_to_go_on(tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(to_toml(tiny()))
    words = ["run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main.run_arguments(words) == 130
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1] == f"sightline: interrupted; continue with: sightline run --resume {tmp_path / 'run'}"
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main.run_arguments([*words[:-1], str(tmp_path / "none")]) == 130
    assert "the run directory was removed" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main.run_arguments(["run", "--resume", str(tmp_path / "run"), "--json"]) == 0


def test_a_run_is_for_its_owner_only(tiny, tmp_path):
    before, open_while_running = os.umask(0), []

    def look(row):
        open_while_running.extend(modes(tmp_path / "run").items())

    try:
        sightline.run(tiny(**OS), out=tmp_path / "run", on_round=look)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    shared = {"report.html", run_directory.MODEL}
    found = {*open_while_running, *modes(tmp_path / "run").items()}
    assert {name for name, mode in found if mode & 0o077} <= shared
    assert not [name for name, mode in found if mode & 0o022], "report.html was writable for everybody (umask 000)"
    assert {DATABASE, f"{DATABASE}-wal", run_directory.CONFIG, run_directory.LOCK} <= {name for name, _ in found}


def test_nobody_else_can_write_to_an_exported_app(tiny, tmp_path):
    """Under umask 000 the app that runs on every node was writable for everybody."""
    before = os.umask(0)
    try:
        export_app(tiny(), tmp_path / "app")
    finally:
        os.umask(before)
    made = [tmp_path / "app", *(tmp_path / "app").rglob("*")]
    assert len(made) == 8
    assert not [path.name for path in made if path.stat().st_mode & 0o022]


@pytest.mark.slow
def test_no_command_makes_what_everybody_can_write_to(tiny, tmp_path):
    """The umask of the process itself: also folders on the way, pictures and tables, in commands of their own."""
    (tmp_path / "tiny.toml").write_text(to_toml(tiny()))
    code = "import os; os.umask(0); from sightline.apps.cli.main import main; main()"
    for words in (
        ["run", "tiny.toml", "--out", "new/folder/run"],
        ["run", "tiny.toml"],
        ["flower", "export", "tiny.toml", "other/new/app"],
        ["flower", "shards", "tiny.toml", "other/sites", "--epsilon", "8"],
        ["site", "keygen", "other/key"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    made = [path for path in tmp_path.rglob("*") if path.name != "tiny.toml"]
    assert len(made) > 30
    assert not [str(path) for path in made if path.stat().st_mode & 0o002]


def test_the_shards_of_sites_are_for_their_owner_only(tiny, tmp_path):
    (tmp_path / "tiny.toml").write_text(to_toml(tiny()))
    before = os.umask(0)
    try:
        words = ["flower", "shards", str(tmp_path / "tiny.toml"), str(tmp_path / "sites"), "--epsilon", "8", "--json"]
        assert main.run_arguments(words) == 0
    finally:
        os.umask(before)
    made = [tmp_path / "sites", *(tmp_path / "sites").rglob("*")]
    assert len(made) == 3 + 6 * 3  # the folder, the test set, the register; a folder and two files for each site
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600, 0o700}


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


# The end


@pytest.mark.parametrize("generator", [None, "philox"])
def test_a_run_whose_noise_came_from_another_generator_does_not_go_on(broken, tiny, monkeypatch, generator):
    """The round that is done again would show a second noise on the same value for the price of one."""
    with monkeypatch.context() as patch:
        if generator is None:  # as versions wrote it that knew Philox only
            whole = RunRecord.remember_metadata
            patch.setattr(
                RunRecord, "remember_metadata",
                lambda self, facts: whole(self, {name: facts[name] for name in facts if name != "noise_generator"}),
            )  # fmt: skip
        else:
            patch.setattr(run_directory, "CIPHER", generator)
        run = broken(**OS)
    before = (run / DATABASE).read_bytes()
    with pytest.raises(InvalidInput, match=r"another version.s generator, not from aes-256-ctr; finish it") as error:
        sightline.run(tiny(**OS), out=run, resume=True)
    assert "\n" not in str(error.value)
    assert (run / DATABASE).read_bytes() == before


def test_a_resumed_run_draws_the_same_numbers_from_the_same_cipher(broken, tiny, tmp_path):
    run = broken(**OS)
    secret = (run / run_directory.SECRET).read_bytes()
    sightline.run(tiny(**OS), out=run, resume=True)
    with closing(RunRecord.open_to_read(run)) as record:
        assert record.facts["noise_generator"] == "aes-256-ctr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sightline.randomness.secrets.token_bytes", lambda size: secret)
        sightline.run(tiny(**OS), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")


def test_the_noise_root_is_gone_when_the_run_has_ended(tiny, tmp_path, monkeypatch):
    sightline.run(tiny(**OS), out=tmp_path / "finished")
    limit = {"privacy.stop_at_epsilon": 1e-3}
    sightline.run(tiny(**OS, **limit), out=tmp_path / "stopped")
    for name in ("finished", "stopped"):
        assert not list((tmp_path / name).glob("noise-root*"))
    crash_in(monkeypatch, loop, "remove_secret", 1, before=True)
    with pytest.raises(Crash):
        sightline.run(tiny(**OS), out=tmp_path / "late")
    assert (tmp_path / "late" / run_directory.SECRET).exists()
    monkeypatch.undo()
    before = left_behind(tmp_path / "late")
    sightline.run(tiny(**OS), out=tmp_path / "late", resume=True)
    assert not (tmp_path / "late" / run_directory.SECRET).exists()
    assert left_behind(tmp_path / "late") == before


def test_a_run_that_has_ended_is_not_continued(tiny, tmp_path, capsys):
    sightline.run(tiny(**OS), out=tmp_path / "run")
    before = left_behind(tmp_path / "run"), len(entries(tmp_path / "run"))
    for _ in range(2):
        assert main.run_arguments(["run", "--resume", str(tmp_path / "run")]) == 0
        assert "has ended and is left unchanged" in capsys.readouterr().err
    assert (left_behind(tmp_path / "run"), len(entries(tmp_path / "run"))) == before
    assert main.run_arguments(["run", "--resume", str(tmp_path / "run"), "--set", "rounds=9"]) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "has ended and cannot be continued" in said


@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_the_model_of_a_run_that_has_ended_is_made_again_from_its_checkpoint(tiny, tmp_path, harm):
    run = tmp_path / "run"
    sightline.run(tiny(**OS), out=run)
    before = left_behind(run)
    (run / run_directory.MODEL).unlink() if harm == "gone" else flip(run / run_directory.MODEL, -1)
    sightline.run(tiny(**OS), out=run, resume=True)
    assert left_behind(run) == before
    flip(run / run_directory.MODEL, -1)
    flip(run / checkpoint.CHECKPOINT, -1)
    with pytest.raises(checkpoint.CheckpointDamaged):
        sightline.run(tiny(**OS), out=run, resume=True)


# One line


def test_a_directory_is_all_that_resume_needs(broken, tiny, tmp_path, capsys):
    run = broken(**{"rounds": 5})
    assert main.run_arguments(["run", "--resume", str(run), "--set", "rounds=6"]) == 2
    assert "settings other than" in capsys.readouterr().err
    assert main.run_arguments(["run", "--resume", str(run), "--out", str(tmp_path / "else")]) == 2
    assert main.run_arguments(["run", str(run)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main.run_arguments(["run", "--resume", str(run), "--set", "rounds=5", "--json"]) == 0
    sightline.run(tiny(rounds=5), out=tmp_path / "whole")
    assert left_behind(run) == left_behind(tmp_path / "whole")


def spoil(run, how):
    path = run / {"lock": run_directory.LOCK, "log": DATABASE}.get(how.split()[0], run_directory.CONFIG)
    if how == "lock is a folder":
        path.unlink()
        path.mkdir()
    elif how == "settings are gone":
        path.unlink()
    elif how == "settings are a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"settings are bytes": b"\xff\xfe\x00", "settings are prose": b"once upon a time"}[how])


@pytest.mark.parametrize(
    "how",
    ["lock is a folder", "settings are gone", "settings are a folder", "settings are bytes", "settings are prose"],
)
def test_a_spoilt_directory_is_one_line(broken, tiny, tmp_path, capsys, how):
    run = broken()
    spoil(run, how)
    (tmp_path / "tiny.toml").write_text(to_toml(tiny()))
    capsys.readouterr()
    for words in (["--resume", str(run)], [str(tmp_path / "tiny.toml"), "--out", str(run), "--resume"]):
        assert main.run_arguments(["run", *words]) == 2
        said = capsys.readouterr()
        assert len(said.err.strip().splitlines()) == 1, said.err
        assert said.out == ""
    for words in (["report", str(run)], ["compare", str(run), "--json"]):
        assert main.run_arguments(words) == 0


def as_stranger(work):
    """Do something in a process of another user; returns what it wrote to stderr, and its exit code."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.dup2(send, 2)
            sys.stderr = os.fdopen(2, "w")
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(send)
    with os.fdopen(receive) as file:
        said = file.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def elsewhere():
    """A folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_the_closed_folder_of_somebody_else_hides_no_other_run(broken, elsewhere):
    shutil.move(broken(), elsewhere / "closed")
    (elsewhere / "closed").chmod(0o000)
    elsewhere.chmod(0o755)
    said, code = as_stranger(lambda: len(list(RunFolder(elsewhere).ids())))
    (elsewhere / "closed").chmod(0o700)
    assert (said, code) == ("", 0)


@pytest.mark.parametrize("mode", [0o000, 0o755], ids=["closed", "open to look at"])
@pytest.mark.parametrize("words", [["run", "--resume"], ["report"], ["compare"]], ids=lambda words: words[0])
def test_the_run_of_somebody_else_is_one_line(broken, elsewhere, words, mode):
    run = shutil.move(broken(), elsewhere / "run")
    for path in [] if mode == 0 else run.iterdir():
        path.chmod(0o000)
    run.chmod(mode)
    said, code = as_stranger(lambda: main.run_arguments([*words, str(run)]))
    run.chmod(0o700)
    assert (code, len(said.strip().splitlines())) == (2, 1), said
    assert str(run) in said
    assert re.search("Permission denied|not readable|unable to open", said), said
