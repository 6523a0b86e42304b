"""`sightline report`: the page's path, one JSON object, or one line about what is wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_runs import quickstart, without_privacy

from sightline.apps.cli.main import run_arguments
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
