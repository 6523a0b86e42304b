"""`sightline serve` as a person starts it: an address with a token, one line about mistakes, a quiet end."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sightline.apps.cli.main import run_arguments
from tests.interrupts import heeds_interrupts
from tests.report.report_runs import quickstart


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_prints_its_address_answers_there_and_stops_quietly(tmp_path: Path, ending: signal.Signals) -> None:
    quickstart(tmp_path / "runs" / "quick", rounds=1)
    words = [sys.executable, "-m", "sightline", "serve", "--port", "0", "--json"]
    busy = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=heeds_interrupts,
    )
    try:
        told = json.loads(busy.stdout.readline())  # type: ignore[union-attr]
        assert told["host"] == "127.0.0.1"
        address, _, token = told["url"].partition("?token=")
        request = urllib.request.Request(f"{address}api/runs", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            assert [row["run"] for row in json.load(answer)["runs"]] == ["quick"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=600)
    finally:
        busy.send_signal(ending)
        out, err = busy.communicate(timeout=600)
    assert busy.returncode == 0
    assert out == ""
    assert err.strip() == ""


@pytest.mark.parametrize("words", [["--runs", "nowhere"], ["--host", "256.1.1.1"], ["--port", "99999"]])
def test_mistakes_are_one_line_and_exit_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_arguments(["serve", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
