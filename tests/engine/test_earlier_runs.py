"""A run that starts from the model of another states what both cost together, and can count both in its budget."""

import math
import shutil
import sqlite3
from collections import Counter
from itertools import product

import pytest

import sightline
from sightline import accounting
from sightline.accounting import Accountant
from sightline.apps.cli.run import summary_lines
from sightline.engine import RunRecord
from sightline.engine.earlier_runs import EarlierRun, EarlierRuns
from sightline.errors import InvalidInput, SightlineError
from sightline.events import Adjacency, Gaussian, Poisson, Unit
from sightline.ledger import Ledger, LedgerDamaged, Release, parties
from sightline.topology import Line

DELTA = 1e-3


def file(init=None, **privacy):
    settings = {"unit": "client", "noise_multiplier": 4.0, "delta": DELTA, "clip_norm": 0.5} | privacy
    return {
        "name": "tiny",
        "rounds": 2,
        "data": {"source": "synthetic", "partition": "natural", "clients": 6, "features": 5, "classes": 3,
                 "size_min": 8, "size_mean": 2.0, "size_sigma": 0.3},
        "model": {"name": "linear"} | ({} if init is None else {"init": str(init)}),
        "local": {"steps": 1, "batch_size": 4, "learning_rate": 0.1},
        "privacy": {name: value for name, value in settings.items() if value is not None},
    }  # fmt: skip


def run(directory, *words, **more):
    return sightline.run(file(*words, **more), out=directory, progress=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of two rounds, noise multiplier 4."""
    return run(tmp_path_factory.mktemp("earlier") / "first")


@pytest.fixture
def second(first, tmp_path):
    """The same again, from the model of the first."""
    return run(tmp_path / "second", first.directory / "model.safetensors")


def gaussians(times):
    return accounting.epsilon({Gaussian(4.0): times}, DELTA)


def test_the_sum_of_both_runs_is_named_everywhere(first, second, capsys):
    """Fine-tuning on the same clients printed the second run's epsilon alone."""
    assert first.epsilon == second.epsilon == gaussians(2)
    told = second.summary["together"]
    assert told["epsilon"] == pytest.approx(gaussians(4))
    assert set(told["observers"]) == set(second.summary["observers"])
    assert told["same_data"]
    assert [one["run_dir"] for one in told["runs"]] == [str(first.directory)]
    words = dict(summary_lines(second.summary))["together with the run this model started from"]
    assert words.startswith("epsilon 1.3")
    assert "Together with" in second.report.read_text()
    assert any("continue_ledger" in line for line in second.metadata["caveats"])
    assert "together" not in first.summary


def test_a_chain_counts_all_of_its_runs_also_when_the_first_are_gone(first, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(first.directory, moved)
    second = run(tmp_path / "second", moved / "model.safetensors")
    shutil.rmtree(moved)
    third = run(tmp_path / "third", second.directory / "model.safetensors")
    assert third.summary["together"]["epsilon"] == pytest.approx(gaussians(6))
    assert len(third.summary["together"]["runs"]) == 2
    assert any(name == "together with the 2 runs this model started from" for name, _ in summary_lines(third.summary))


def test_links_lead_to_the_ledger_and_copies_say_that_it_is_missing(first, tmp_path):
    (tmp_path / "link.safetensors").symlink_to(first.directory / "model.safetensors")
    linked = run(tmp_path / "linked", tmp_path / "link.safetensors")
    assert linked.summary["together"]["epsilon"] == pytest.approx(gaussians(4))
    shutil.copy(first.directory / "model.safetensors", tmp_path / "copy.safetensors")
    copied = run(tmp_path / "copied", tmp_path / "copy.safetensors").summary
    assert copied["together"]["epsilon"] is None
    assert "does not lie beside it" in copied["together"]["unknown"]
    assert any("epsilon unknown" in words for _, words in summary_lines(copied))


def test_a_ledger_that_cannot_be_read_is_refused_before_a_run_exists(first, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(first.directory, damaged)
    with sqlite3.connect(damaged / "run.sqlite") as connection:
        connection.execute("DELETE FROM release WHERE id = 1")
    connection.close()
    with pytest.raises(InvalidInput, match=r"model\.init=.*cannot be read"):
        run(tmp_path / "next", damaged / "model.safetensors")
    assert not (tmp_path / "next").exists()


def test_other_data_are_assumed_to_be_of_the_same_clients(first, tmp_path):
    changed = file(first.directory / "model.safetensors") | {"seed": 9}
    other = sightline.run(changed, out=tmp_path / "other", progress=False).summary
    assert not other["together"]["same_data"]
    assert other["together"]["epsilon"] == pytest.approx(gaussians(4))
    assert any("assumed to be the same" in words for _, words in summary_lines(other))


def test_who_was_trusted_before_has_seen_what_it_was_trusted_with(first, tmp_path):
    """The server saw updates in clear in the first run; noise at the clients of the second does not undo that."""
    later = run(tmp_path / "later", first.directory / "model.safetensors", where="client").summary
    assert math.isfinite(later["observers"]["server"])
    assert later["together"]["observers"]["server"] is None
    assert later["together"]["epsilon"] is None
    assert later["together"]["observers"]["public"] is not None


def test_runs_of_other_units_do_not_add_up(first, tmp_path):
    later = run(tmp_path / "later", first.directory / "model.safetensors", unit="sample", delta=1e-3).summary
    assert later["together"]["epsilon"] is None
    assert "do not add up" in later["together"]["unknown"]


def test_a_budget_for_all_runs_calibrates_and_stops_by_the_sum(first, tmp_path):
    init = first.directory / "model.safetensors"
    target = {"noise_multiplier": None, "epsilon": 2.0, "continue_ledger": True}
    done = run(tmp_path / "calibrated", init, **target)
    assert 1.99 < done.summary["together"]["epsilon"] <= 2.0
    assert done.epsilon < 2.0
    limit = (gaussians(3) + gaussians(4)) / 2
    stopped = run(tmp_path / "stopped", init, stop_at_epsilon=limit, continue_ledger=True)
    assert stopped.summary["status"] == "stopped"
    assert stopped.summary["together"]["epsilon"] == pytest.approx(gaussians(3))
    with pytest.raises(InvalidInput, match=r"spent 0\.8941"):
        run(tmp_path / "spent", init, **(target | {"epsilon": 0.5}))
    with pytest.raises(InvalidInput, match="there is no ledger beside"):
        run(tmp_path / "nothing", **target)
    assert not (tmp_path / "spent").exists()


def test_an_interrupted_run_names_the_sum_too_and_goes_on_with_what_it_wrote_down(first, tmp_path, monkeypatch):
    moved, place = tmp_path / "moved", tmp_path / "second"
    shutil.copytree(first.directory, moved)
    plan = file(moved / "model.safetensors", stop_at_epsilon=9.0, continue_ledger=True)

    class Stop:
        def on_round(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sightline.run(plan, out=place, progress=False, callbacks=[Stop()])
    halfway = sightline.Run(place).summary
    assert halfway["together"]["epsilon"] == pytest.approx(gaussians(3))
    with sqlite3.connect(moved / "run.sqlite") as connection:
        connection.execute("DELETE FROM release")
        connection.execute("DELETE FROM journal")
        connection.execute("DELETE FROM fact WHERE name = 'started_from'")
    connection.close()
    with pytest.raises(SightlineError, match=r"changed since the run began|cannot be read|made under another ledger"):
        sightline.run(place, resume=True, progress=False)
    shutil.rmtree(moved)
    shutil.copytree(first.directory, moved)
    done = sightline.run(place, resume=True, progress=False)
    assert done.summary["together"]["epsilon"] == pytest.approx(gaussians(4))


def test_copied_ledgers_that_were_edited_are_noticed(second):
    with sqlite3.connect(second.directory / "run.sqlite") as connection:
        connection.execute("DELETE FROM earlier WHERE id = 3")
    connection.close()
    with (
        RunRecord.open_to_read(second.directory) as record,
        pytest.raises(LedgerDamaged, match=r"its copy of the ledger of .* changed"),
    ):
        list(record.earlier_runs())


def ledger_of(rows):
    """A ledger of (subjects, event, audience) rows."""
    releases = [
        Release(time, "server", parties(about), Unit.CLIENT, Adjacency.ADD_REMOVE, event, parties(audience))
        for time, (about, event, audience) in enumerate(rows, 1)
    ]
    return Ledger(releases, participants=["client-0", "client-1", "client-2", "server", "public"])


ALL = ["client-0", "client-1", "client-2", "public"]
BEFORE = [
    (["client-0"], Gaussian(2.0), ALL),
    (["client-1", "client-2"], Poisson(0.3, Gaussian(1.0)), ALL),
    (["client-1"], Gaussian(3.0), ["client-2"]),
    (["client-0"], Gaussian(5.0), ["server"]),
]
NOW = [(["client-0", "client-2"], Gaussian(1.5), ALL), (["client-1"], Gaussian(2.5), ["client-2", "public"])]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("observer", ["public", "client-2", "server"])
def test_the_sum_is_the_largest_over_subjects_or_over_any_two_of_them(same, observer):
    """Against a plain sum of compositions by name, and by every pair of subjects where names mean nothing."""
    facts = {"same_data": same, "observers": {"public": "public", "clients": "client-2"}, "lines": None}
    earlier = EarlierRuns((EarlierRun(facts, ledger_of(BEFORE)),))
    now, clients = ledger_of(NOW), ("client-0", "client-1", "client-2")
    seen = [{observer, "public"}] if same else [{observer, "public"}, {"client-2", "public"}]
    expected = 0.0
    for who, one, two in product(seen, clients, clients):
        if not same or one == two:
            total = Counter(ledger_of(BEFORE).composition(one, who if len(who) > 1 else "public"))
            total += now.composition(two, observer)
            expected = max(expected, accounting.epsilon(total, DELTA))
    assert earlier.worst(now, [Line(observer)], DELTA, Accountant.PLD) == pytest.approx(expected)


def test_too_many_different_sums_are_added_up_and_never_below_the_largest():
    many = [([f"client-{n}"], Gaussian(1.0 + n / 10), ALL) for n in range(12)]
    facts = {"same_data": False, "observers": {"public": "public"}, "lines": None}
    earlier = EarlierRuns((EarlierRun(facts, ledger_of(many)),))
    found = earlier.worst(ledger_of(many), [Line("public")], DELTA, Accountant.PLD)
    assert found >= accounting.epsilon({Gaussian(1.0): 2}, DELTA)
    assert found == pytest.approx(2 * accounting.epsilon({Gaussian(1.0): 1}, DELTA / 2))
    assert earlier.sums("client-0", "public") is not None


@pytest.mark.parametrize("link", [False, True], ids=["copied", "linked"])
def test_a_model_in_the_folder_of_another_run_does_not_borrow_its_ledger(first, tmp_path, link):
    """A model of epsilon 13.08 in the folder of a run of epsilon 0 was told as 0, together."""
    other = run(tmp_path / "other", noise_multiplier=100.0)
    place = other.directory / "start.safetensors"
    if link:
        place.symlink_to(first.directory / "model.safetensors")
    else:
        shutil.copy(first.directory / "model.safetensors", place)
    told = run(tmp_path / "later", place).summary["together"]
    if link:
        assert [one["run_dir"] for one in told["runs"]] == [str(first.directory)]
    else:
        assert told["epsilon"] is None
        assert "made under another ledger" in told["unknown"]


def test_a_model_in_a_folder_of_its_run_has_that_ledger(first, tmp_path):
    shutil.copytree(first.directory, tmp_path / "copy")
    (tmp_path / "copy" / "models").mkdir()
    shutil.copy(first.directory / "model.safetensors", tmp_path / "copy" / "models" / "kept.safetensors")
    told = run(tmp_path / "later", tmp_path / "copy" / "models" / "kept.safetensors").summary["together"]
    assert told["epsilon"] == pytest.approx(gaussians(4))
