"""How a command ends when the system ends it, or takes no more of its output: one line, an exit code, no traceback."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.apps.cli import main
from sightline.console import RoundBar
from sightline.engine import RunRecord, loop
from sightline.results import Run

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.toml")
RUN = ["run", QUICKSTART, "--set", "rounds=3", "--set", "privacy.noise_multiplier=1.0", "--json"]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")

KILLED = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and the command rightly leaves it so
from sightline.apps.cli.main import main
from sightline.engine.record import RunRecord
kept, number = RunRecord.add_round, int(sys.argv.pop(1))
def add_round(*row):
    kept(*row)
    signal.raise_signal(number) if number > 0 else os.killpg(0, -number)
RunRecord.add_round = add_round
main()
"""
"""The command line, which gets a signal after a round; all processes of its group do where the number is negative."""


@pytest.fixture
def heeding(monkeypatch):
    """This process heeds the signals as the command does."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in main.END_SIGNALS}
    monkeypatch.setattr(main, "_received", [])
    main.heed_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def started(*words, cwd, **how):
    """A real process; its stdout is buffered, as in a shell."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= how.pop("env", {})
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.run([sys.executable, "-m", "sightline", *words], cwd=cwd, env=environment, check=False, **how)


@pytest.mark.parametrize("number", main.END_SIGNALS)
def test_a_signal_ends_a_run_as_ctrl_c_does(tmp_path, monkeypatch, capsys, heeding, number):
    """SIGTERM and SIGHUP ended a run without a word."""
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", lambda *_: signal.raise_signal(number))
        assert main.run_arguments([*RUN, "--out", str(tmp_path / "run")]) == 128 + number
    said = capsys.readouterr().err.strip().splitlines()[-1]
    name = signal.Signals(number).name
    assert said == f"sightline: ended by {name}; continue with: sightline run --resume {tmp_path / 'run'}"
    monkeypatch.setattr(main, "_received", [])
    assert main.run_arguments(["run", "--resume", str(tmp_path / "run"), "--json"]) == 0
    assert main.run_arguments([*RUN, "--out", str(tmp_path / "whole")]) == 0
    assert Run(tmp_path / "run").test_accuracy == Run(tmp_path / "whole").test_accuracy


def test_a_second_signal_does_not_disturb_the_end(heeding):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    assert main.end_words() == "ended by SIGTERM"


def test_what_is_ignored_stays_ignored(heeding):
    """As below nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    main.heed_signals()
    signal.raise_signal(signal.SIGHUP)
    assert main.end_words() == "interrupted"


def test_a_command_that_calls_an_interrupt_its_own_end_keeps_the_signals_code(monkeypatch, heeding):
    """`sweep` catches the interrupt and returns 130."""

    def swept(*words, **how):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return 130

    monkeypatch.setattr(main.sightline, "main", swept)
    assert main.run_arguments([]) == 128 + signal.SIGTERM


def test_a_terminal_that_is_gone_does_not_hide_the_signal(monkeypatch, heeding):
    """After a hangup, what is written to the terminal fails."""

    def hung_up(*words, **how):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(main.sightline, "main", hung_up)
    assert main.run_arguments([]) == 128 + signal.SIGHUP


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, -signal.SIGTERM])
def test_a_signal_ends_the_process_and_its_training_processes(tmp_path, number):
    words = ["run", QUICKSTART, "--set", "rounds=2", "--set", 'model={name="cnn"}', "--set", "data.clients=4"]
    words += ["--set", "privacy.noise_multiplier=1.0", "--set", "privacy.delta=1e-2", "--workers", "2", "--out", "here"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(int(number)), *words],
        cwd=tmp_path, capture_output=True, text=True, start_new_session=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + abs(number), done.stderr
    said = done.stderr.strip().splitlines()
    assert (
        said[-1]
        == f"sightline: ended by {signal.Signals(abs(number)).name}; continue with: sightline run --resume here"
    )
    assert "Traceback" not in done.stderr
    again = started("run", "--resume", "here", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@FULL
@pytest.mark.parametrize(
    "words", [["--help"], ["account", "gaussian", "--noise", "2", "--steps", "3", "--delta", "1e-5"]]
)
def test_output_on_a_full_device_is_one_line(tmp_path, words):
    with open("/dev/full", "w") as full:
        done = started(*words, cwd=tmp_path, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "sightline: the output or a file: reading or writing failed (No space left on device)\n"


@FULL
def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        assert started("account", "nonsense", cwd=tmp_path, stdout=full, stderr=full).returncode == 2


@FULL
def test_a_log_on_a_full_device_does_not_end_a_run(monkeypatch):
    """A run whose stderr was full ended after its first round."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with RoundBar("run", 1) as bar:
            bar.advance({"round": 1})
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_reader_that_went_away_is_not_told(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = started("--help", cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_path_is_printed_on_an_ascii_stream(tmp_path):
    (tmp_path / "ünï").mkdir()
    done = started("datasets", cwd=tmp_path / "ünï", env={"PYTHONIOENCODING": "ascii", "SIGHTLINE_DATA": "ünï"})
    assert done.returncode == 0, done.stderr
    assert r"\xfcn\xef" in done.stdout


def test_only_a_strict_stream_is_changed():
    """In a C locale Python writes the bytes of a path as they are."""
    for errors, then in (("strict", "backslashreplace"), ("surrogateescape", "surrogateescape")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
        main.escape_unprintable(stream)
        assert stream.errors == then
    main.escape_unprintable(None)


def test_a_run_is_resumed_after_its_summary_was_lost(tmp_path, monkeypatch):
    """Whatever writing fails, what the run recorded is whole."""
    monkeypatch.setattr(main.click, "echo", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert main.run_arguments([*RUN, "--out", str(tmp_path / "run")]) == 1
    with RunRecord.open_to_read(tmp_path / "run") as record:
        assert record.facts["status"] == "finished"
