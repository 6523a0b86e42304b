"""`stop_at_epsilon` stops where accounting for every round would, for every kind of run, and never later."""

import json
import subprocess
import sys
from functools import lru_cache

import pytest

import sightline
from sightline import accounting
from sightline.config import to_toml
from sightline.engine import loop
from sightline.events import from_json
from sightline.ledger import export_ledger
from sightline.testing.reaccount import count_charges, find_reached, read_names
from tests.engine import many_kinds
from tests.engine.leftovers import left_behind
from tests.engine.many_kinds import KINDS
from tests.interrupts import stopped_after

ROUNDS = 8
LONG = {"rounds": ROUNDS, "privacy.noise_multiplier": 3.0}
IFCA = {"algorithm": {"name": "ifca", "selection_rounds": 2, "selection_epsilon": 1.5}}


def experiment(kind, **changes):
    """An experiment of that kind; of the clustered ones one that a budget may stop (rdpcfl is refused)."""
    return many_kinds.experiment(kind, **(IFCA if kind == "clusters" else {}), **changes)


def lines_of(run):
    """Every line of sight of a run: who looks, and whose privacy does not count against them."""
    facts = run.metadata
    lines = facts["lines"] or {kind: [[name, ""]] for kind, name in facts["observers"].items()}
    return [(observer, read_names(exempt)) for some in lines.values() for observer, exempt in some]


def worst(releases, lines, delta):
    """The worst epsilon over all lines of sight and subjects, by a plain search through all releases."""
    found = 0.0
    for observer, exempt in lines:
        seen = find_reached(releases, observer)
        for subject in set().union(*(read_names(release["subjects"]) for release in releases)) - exempt:
            counts = tuple(sorted(count_charges(releases, subject, seen, observer).items()))
            found = max(found, cost(counts, delta))
    return found


@lru_cache(maxsize=4096)
def cost(counts, delta):
    """Epsilon of a composition of events in their written form."""
    return accounting.epsilon({from_json(json.loads(text)): times for text, times in counts}, delta)


@pytest.fixture(scope="module", params=KINDS)
def unlimited(request, tmp_path_factory):
    """(kind, a run without a limit, what it had spent after every round)."""
    run = sightline.run(experiment(request.param, **LONG), out=tmp_path_factory.mktemp("budgets") / "run")
    delta, releases = run.metadata["delta"], export_ledger(run.ledger)["releases"]
    done = [[release for release in releases if release["time"] <= number] for number in range(1, ROUNDS + 1)]
    return request.param, run, [worst(some, lines_of(run), delta) for some in done]


def rounds_within(spent, limit):
    """How many rounds may be made."""
    return next((number for number, epsilon in enumerate(spent) if epsilon > limit), ROUNDS)


@pytest.mark.parametrize("share", [0.02, 0.4, 0.7, 0.95])
@pytest.mark.slow
def test_it_stops_where_a_plain_search_would(unlimited, tmp_path, share):
    kind, whole, spent = unlimited
    limit = share * spent[-1]
    asked = experiment(kind, **LONG, **{"privacy.stop_at_epsilon": limit})
    run = sightline.run(asked, out=tmp_path / "run")
    assert run.summary["status"] == "stopped"
    assert run.summary["rounds_done"] == rounds_within(spent, limit)
    assert run.epsilon <= limit
    if len(run.ledger):
        assert worst(export_ledger(run.ledger)["releases"], lines_of(run), whole.metadata["delta"]) <= limit
    before = len(run.ledger)
    again = sightline.run(asked, out=tmp_path / "run", resume=True)
    assert (len(again.ledger), again.epsilon) == (before, run.epsilon)


def test_a_limit_that_is_not_reached_changes_nothing(unlimited, tmp_path):
    kind, whole, spent = unlimited
    run = sightline.run(experiment(kind, **LONG, **{"privacy.stop_at_epsilon": spent[-1] * 1.01}), out=tmp_path / "run")
    assert run.summary["status"] == "finished"
    assert left_behind(run.directory) == left_behind(whole.directory)


def test_it_stops_at_the_same_round_when_it_was_interrupted(tmp_path, monkeypatch):
    long = {"rounds": 60, "privacy.noise_multiplier": 6.0}
    spent = [row["epsilon"]["public"] for row in sightline.run(experiment("star", **long), out=tmp_path / "all").rounds]
    asked = experiment("star", **long, **{"privacy.stop_at_epsilon": spent[49] * 1.0001})
    whole = sightline.run(asked, out=tmp_path / "whole")
    assert whole.summary["rounds_done"] == 50
    real = loop.save_checkpoint
    for stop in (7, 31, 48):

        def stopping(directory, checkpoint, vouch, stop=stop):
            if checkpoint.round == stop:
                raise KeyboardInterrupt
            real(directory, checkpoint, vouch)

        monkeypatch.setattr(loop, "save_checkpoint", stopping)
        with pytest.raises(KeyboardInterrupt):
            sightline.run(asked, out=tmp_path / "broken", resume=stop > 7)
    monkeypatch.undo()
    sightline.run(asked, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")


def started(arguments):
    """A process of the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "sightline", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_of_two_processes_that_resume_a_run_one_is_refused_and_nothing_is_counted_twice(tmp_path):
    asked = experiment("star", rounds=100, **{"privacy.stop_at_epsilon": 4.0, "privacy.noise_multiplier": 5.0})
    (tmp_path / "star.toml").write_text(to_toml(asked))
    words = ["run", str(tmp_path / "star.toml"), "--out", str(tmp_path / "run")]
    first = stopped_after(2, words)  # it holds the run for as long as the second tries
    second = started([*words, "--resume"])
    told = second.communicate()[1]
    assert (second.returncode, "another process" in told) == (1, True), told
    first.kill()
    first.communicate()
    rivals = [started([*words, "--resume"]) for _ in range(2)]
    for rival in rivals:
        told = rival.communicate()[1]
        assert rival.returncode == 3 or (rival.returncode == 1 and "another process" in told), told
    assert 3 in [rival.returncode for rival in rivals]
    whole = sightline.run(asked, out=tmp_path / "whole")
    assert whole.summary["status"] == "stopped"
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")
