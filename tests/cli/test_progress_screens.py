"""Progress where people really look: a terminal, a narrow or dumb one, a pipe, a script, a shell that completes."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

import sightline
from sightline.apps.cli.main import run_arguments

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.toml")
PLAIN = re.compile(r"round \d+/12  accuracy \d+\.\d%  epsilon \d+\.\d{3}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"TERM": "xterm-256color", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | changes


def terminal(columns):
    """Return both ends of a terminal of `columns` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    return ours, theirs


def everything(ours):
    """What is written to a terminal until nobody has it open any more."""
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            part = b""
        if not part:
            os.close(ours)
            return found.decode()
        found += part


def on_a_terminal(words, *, columns=100, keys="", **changes):
    """What a process writes to a terminal; keys are typed for it."""
    ours, theirs = terminal(columns)
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changes), start_new_session=True, cwd=ROOT
    )
    os.close(theirs)
    os.write(ours, keys.encode())
    text = everything(ours)
    child.wait()
    return text


@contextmanager
def standing_in(theirs):
    """A terminal in the place of the standard files: its width is asked of them."""
    kept = [os.dup(file) for file in range(3)]
    for file in range(3):
        os.dup2(theirs, file)
    try:
        with open(theirs, "w") as screen, redirect_stdout(screen), redirect_stderr(screen):
            yield
    finally:
        for file, before in enumerate(kept):
            os.dup2(before, file)
            os.close(before)


def shown(work, *, columns=100, **changes):
    """What some work in this process writes to a terminal."""
    ours, theirs = terminal(columns)
    with ThreadPoolExecutor(1) as reader, mock.patch.dict(os.environ, environment(**changes), clear=True):
        text = reader.submit(everything, ours)
        with standing_in(theirs):
            work()
        return text.result()


def run(out):
    return ["run", QUICKSTART, "--set", "rounds=12", "--out", str(out)]


def ran(out):
    assert run_arguments(run(out)) == 0


def screens(text):
    """Each state of the bar's line as words alone."""
    return [CONTROL.sub("", part).strip() for part in re.split(r"[\r\n]", text)]


@pytest.mark.slow
def test_a_terminal_gets_a_bar_with_colours(tmp_path):
    text = on_a_terminal([sys.executable, "-m", "sightline", *run(tmp_path / "run")])
    assert "━" in text
    assert COLOUR.search(text)
    assert any("12/12" in line and "epsilon 8.0" in line for line in screens(text))
    assert not PLAIN.search(text)


def test_no_color_leaves_the_bar_and_takes_the_colours(tmp_path):
    text = shown(lambda: ran(tmp_path / "run"), NO_COLOR="1")
    assert "12/12" in text
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[349][0-7](?:;[0-9;]*)?m", text)


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    text = shown(lambda: ran(tmp_path / "run"), TERM="dumb")
    assert len(PLAIN.findall(text)) == 12
    assert "\x1b" not in text


def test_a_narrow_terminal_gets_the_words_on_one_line(tmp_path):
    text = shown(lambda: ran(tmp_path / "run"), columns=44)
    bars = [line for line in screens(text) if "/12" in line]
    assert bars
    assert max(map(len, bars)) <= 44
    assert any("12/12 accuracy" in line and "epsilon 8.0" in line for line in bars)


@pytest.mark.slow
def test_a_pipe_gets_plain_lines_whatever_is_said_of_colours(tmp_path):
    forced = environment(FORCE_COLOR="1")
    words = [sys.executable, "-m", "sightline", *run(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, env=forced, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(PLAIN.findall(done.stderr)) == 12
    assert not CONTROL.search(done.stderr)
    assert "\r" not in done.stderr


def by_python(out, **more):
    sightline.run(QUICKSTART, overrides=["rounds=12"], out=out, **more)


@pytest.mark.parametrize(("more", "lines"), [({}, 0), ({"progress": True}, 12)])
def test_a_script_is_quiet_unless_it_asks(tmp_path, capfd, more, lines):
    by_python(tmp_path / "run", **more)
    said = capfd.readouterr()
    assert said.out == ""
    assert len(PLAIN.findall(said.err)) == lines
    assert bool(said.err) == bool(lines)


@pytest.mark.parametrize(("more", "there"), [({}, True), ({"progress": False}, False)])
def test_python_on_a_terminal_shows_a_bar_unless_told_not_to(tmp_path, more, there):
    text = shown(lambda: by_python(tmp_path / "run", **more))
    assert ("12/12" in text) is there, text


def test_bash_completes_what_is_typed():
    shell = ["bash", "--norc", "--noprofile", "-i"]
    typed = 'eval "$(sightline completion bash)"\nsightline acc\tpois\t--he\t\n'
    typed += "sightline run no.toml --set privacy.adj\trep\t--set privacy.unit=s\t\nexit\n"
    text = on_a_terminal(shell, keys=typed, PS1="> ")
    assert "sightline account poisson --help" in CONTROL.sub("", text)
    assert "sightline run no.toml --set privacy.adjacency=replace --set privacy.unit=sample" in CONTROL.sub("", text)
    assert "Each step uses each subject with a probability" in text
