"""`sightline report`: the page's path, one JSON object, or one line about what is wrong."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_runs import quickstart, without_privacy

from sightline.apps.cli.main import run_arguments, sightline
from sightline.apps.cli.report import report_command as command
from sightline.apps.report import RunView
from sightline.ledger import read_export


def test_it_rebuilds_the_page_and_prints_its_path(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=3)
    result = CliRunner().invoke(command, [str(directory)])
    assert result.exit_code == 0
    assert result.stdout.strip() == str(directory / "report.html")
    assert "</html>" in (directory / "report.html").read_text()


def test_json_equals_the_records(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=3)
    result = CliRunner().invoke(command, [str(directory), "--json"])
    told = json.loads(result.stdout)
    run = RunView.read(directory)
    assert told["run_dir"] == str(directory)
    assert told["report"] == str(directory / "report.html")
    assert told["rounds_done"] == 3
    assert told["epsilon"] == run.epsilon
    assert told["observers"] == run.spent
    assert told["releases"] == 6
    assert told["test_accuracy"] == run.rounds[-1]["test_accuracy"]
    assert told["ledger_head"] == run.head


def test_no_guarantee_is_null_and_not_zero(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(without_privacy(tmp_path / "run")), "--json"])
    assert json.loads(result.stdout)["epsilon"] is None


def test_the_exported_ledger_accounts_to_the_same(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=3)
    file = tmp_path / "ledger.json"
    result = CliRunner().invoke(command, [str(directory), "--ledger", str(file), "--json"])
    assert json.loads(result.stdout)["ledger"] == str(file)
    again = read_export(file)
    assert len(again) == 6
    assert again.worst_epsilon("public", 1e-3) == RunView.read(directory).epsilon
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("words", [["missing"], ["run", "--ledger", "nowhere/ledger.json"]])
def test_mistakes_are_one_line_and_exit_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    quickstart(tmp_path / "run", rounds=1)
    monkeypatch.chdir(tmp_path)
    assert run_arguments(["report", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert "Traceback" not in said.err


def test_the_officers_record_can_be_verified_by_its_own_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = quickstart(tmp_path / "a run", rounds=3)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, [str(directory), "--officer", "--json"])
    record = json.loads(result.stdout)["officer"]
    page = (directory / "officer.html").read_text()
    assert record["page"] == str(directory / "officer.html")
    assert record["ledger"] == {"releases": 6, "digest": RunView.read(directory).head}
    assert record["ledger"]["digest"] in page
    assert [(row["observer"], row["trusted"]) for row in record["lines_of_sight"]] == [
        ("other clients", False), ("public", False), ("server", True),
    ]  # fmt: skip
    assert record["lines_of_sight"][2]["epsilon"] is None
    assert record["trusted"][0]["receives"] == [
        "from clients in rounds 1–3: clipped updates, computed from the data of client-0..23"
    ]
    assert "must add the noise that this page states" in record["trusted"][0]["duties"]
    assert "noise follows from the seed" in record["warnings"][0]
    stated = [row["epsilon"] for row in record["lines_of_sight"] if not row["trusted"]]
    for words, epsilon in zip(record["verify"], (None, None, *stated), strict=True):
        name, *arguments = shlex.split(words)[1:]
        done = CliRunner().invoke(sightline, [name, *arguments, *(["--json"] if name == "account" else [])])
        assert done.exit_code == 0, done.output
        if epsilon is not None:
            assert json.loads(done.stdout)["epsilon"] <= epsilon * (1 + 1e-9)


def test_an_officers_record_without_a_guarantee_promises_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(without_privacy(tmp_path / "run")), "--officer", "--json"])
    record = json.loads(result.stdout)["officer"]
    assert record["promise"][0] == "There is no privacy guarantee."
    assert all(row["epsilon"] is None for row in record["lines_of_sight"])
    assert not any("account" in words for words in record["verify"])
