"""`sightline serve` as a person starts it: an address with a token, one line about mistakes, a quiet end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sightline.apps.cli.main import run_arguments
from tests.interrupts import heeds_interrupts
from tests.report.report_runs import quickstart


@pytest.mark.parametrize("order", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_answers_there_and_stops_quietly(tmp_path: Path, order: signal.Signals) -> None:
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
        busy.send_signal(order)
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


def test_a_page_under_way_does_not_delay_the_end(tmp_path: Path) -> None:
    """Ctrl-C while a page is computed: exit code 0 at once, and nothing on the terminal."""
    program = (
        "import sys, time; from sightline.apps.serve.pages import PageServer; from sightline.apps.cli.main import run_arguments\n"
        "PageServer.answer = lambda *request: print('asked', flush=True) or time.sleep(600)\n"
        "sys.exit(run_arguments(['serve', '--runs', '.', '--port', '0', '--json']))"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts
    ) as busy:
        told = json.loads(busy.stdout.readline())  # type: ignore[union-attr]
        token = told["url"].partition("?token=")[2]
        with socket.create_connection(("127.0.0.1", told["port"]), timeout=600) as line:
            line.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            assert busy.stdout.readline() == "asked\n"  # type: ignore[union-attr]
            busy.send_signal(signal.SIGINT)
            _, err = busy.communicate(timeout=60)
    assert (busy.returncode, err.strip()) == (0, "")


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_arguments(["serve", "--runs", str(tmp_path), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"127.0.0.1:{port}: cannot listen there" in said


def test_without_the_extra_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_arguments(["serve", "--runs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == 'sightline: sightline serve needs sightline[serve]: pip install "sightline[serve]"\n'
