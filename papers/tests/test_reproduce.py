"""`make reproduce`: fresh results, nothing done twice, one failure keeps nobody else from running."""

import json
import sys
from pathlib import Path

import pytest

from papers.commands import units
from papers.jobs import in_order, read, run_jobs
from papers.reproduce import begin, called, forget, move, run_all, system_of, words_of
from papers.times import Time, keep, measured, told

GOOD, BAD = "sightline run papers/groups/figure2.toml", "sightline run papers/groups/nowhere.toml"


@pytest.mark.slow
def test_a_failure_is_named_and_the_rest_is_run_and_remembered(tmp_path: Path, capfd):
    done, failed = run_all([BAD, GOOD], tmp_path, called)
    assert failed == [BAD]
    assert set(done) == {GOOD}
    assert (tmp_path / "files" / "groups" / "figure2" / "report.html").is_file()
    assert done[GOOD].wall > 0
    assert done[GOOD].processor > 0
    again, _ = run_all([GOOD], tmp_path, called)
    assert again[GOOD] == measured(tmp_path / "done.json")[GOOD]
    assert "done before" in capfd.readouterr().out


def test_time_of_an_attempt_that_was_broken_off_is_counted(tmp_path: Path):
    def broken(words: list[str]) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([GOOD], tmp_path, broken)
    before = measured(tmp_path / "attempts.json")[GOOD]
    assert measured(tmp_path / "done.json") == {}
    done, _ = run_all([GOOD], tmp_path, lambda words: True)
    assert done[GOOD].wall >= before.wall


def test_results_go_to_the_scratch_folder(tmp_path: Path):
    assert words_of("python -m papers.upcycled table1", tmp_path)[1:] == [
        "-m", "papers.upcycled", "table1", "--results", str(tmp_path / "upcycled"),
    ]  # fmt: skip
    words = words_of(GOOD, tmp_path)
    assert words[0] == sys.executable
    assert "--resume" not in words
    (tmp_path / "files" / "groups" / "figure2").mkdir(parents=True)
    assert "--resume" in words_of(GOOD, tmp_path)


def test_results_are_put_in_place_without_the_rehearsed_page(tmp_path: Path):
    scratch, place = tmp_path / "scratch", tmp_path / "place"
    (scratch / "hierarchy" / "page").mkdir(parents=True)
    (scratch / "hierarchy" / "results.jsonl").write_text("{}\n")
    (scratch / "hierarchy" / "page" / "hierarchy.md").write_text("#\n")
    move("hierarchy", scratch, place)
    assert [str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()] == ["hierarchy/results.jsonl"]


def test_what_is_in_place_is_forgotten_and_what_failed_is_not(tmp_path: Path):
    other = "python -m papers.upcycled table1"
    spent = Time(1.0, 2.0, 2, 1.0)
    for name in ("done.json", "attempts.json"):
        keep({GOOD: spent, other: spent}, tmp_path / name)
    (tmp_path / "files" / "groups").mkdir(parents=True)
    forget([GOOD], tmp_path)
    assert set(measured(tmp_path / "done.json")) == {other}
    assert not (tmp_path / "files" / "groups").exists()
    forget([other], tmp_path)
    assert not tmp_path.exists()


def test_a_new_reproduction_leaves_earlier_sums_behind(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("papers.reproduce.HERE", tmp_path)
    (tmp_path / "clustered" / "sums").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    begin(tmp_path / "scratch")
    assert (tmp_path / "clustered" / "sums").exists()
    begin(tmp_path / "elsewhere")
    assert not (tmp_path / "clustered" / "sums").exists()


def test_a_command_of_several_parts_is_timed_part_by_part():
    assert units("python -m papers.upcycled table1 letters") == [
        "python -m papers.upcycled table1",
        "python -m papers.upcycled letters",
    ]
    assert units("python -m papers.groups.figure4") == ["python -m papers.groups.figure4"]
    assert system_of("python -m papers.partitioning.figures.draw 3") == "partitioning"
    assert [told(0.2), told(2.34), told(12.4)] == ["12 s", "2.3 min", "12 min"]


class Number(int):
    """A job."""

    @property
    def key(self) -> str:
        return str(int(self))


def squared(job: Number) -> dict[str, object]:
    return {"key": job.key, "square": job * job}


def test_a_line_that_was_cut_off_is_run_again_and_harms_no_other(tmp_path: Path):
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(squared(Number(1))) + '\n{"key": "2", "squ')
    run_jobs([Number(3), Number(2), Number(1)], results, work=squared, workers=1, title="squares")
    rows = read(results)
    assert sorted(row["key"] for row in rows) == ["1", "2", "3"]
    parts = {"all": lambda: [Number(2), Number(3)]}
    assert [row["square"] for row in in_order(rows, parts)] == [4, 9]
