"""Progress where people really look: a terminal, a narrow or dumb one, a pipe, a script, a shell that completes."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.toml")
PLAIN = re.compile(r"round \d+/12  accuracy \d+\.\d%  epsilon \d+\.\d{3}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"TERM": "xterm-256color", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | changes


def on_a_terminal(words, *, columns=100, keys="", **changes):
    """What a command writes to a terminal of so many columns; keys are typed once it has asked for them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changes), start_new_session=True, cwd=ROOT
    )
    os.close(theirs)
    if keys:
        os.write(ours, keys.encode())
    found, ends = b"", time.monotonic() + 300
    while time.monotonic() < ends:
        ready, _, _ = select.select([ours], [], [], 0.5)
        try:
            found += os.read(ours, 65536) if ready else b""
        except OSError:  # the other side is closed
            break
        if not ready and child.poll() is not None:
            break
    child.wait(timeout=60)
    os.close(ours)
    return found.decode()


def run(out):
    return [sys.executable, "-m", "sightline", "run", QUICKSTART, "--set", "rounds=12", "--out", str(out)]


def screens(text):
    """Each state of the bar's line as words alone."""
    return [CONTROL.sub("", part).strip() for part in re.split(r"[\r\n]", text)]


def test_a_terminal_gets_a_bar_with_colours(tmp_path):
    text = on_a_terminal(run(tmp_path / "run"))
    assert "━" in text
    assert COLOUR.search(text)
    assert any("12/12" in line and "epsilon 8.0" in line for line in screens(text))
    assert not PLAIN.search(text)


def test_no_color_leaves_the_bar_and_takes_the_colours(tmp_path):
    text = on_a_terminal(run(tmp_path / "run"), NO_COLOR="1")
    assert "12/12" in text
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[349][0-7](?:;[0-9;]*)?m", text)


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    text = on_a_terminal(run(tmp_path / "run"), TERM="dumb")
    assert len(PLAIN.findall(text)) == 12
    assert "\x1b" not in text


def test_a_narrow_terminal_gets_the_words_on_one_line(tmp_path):
    text = on_a_terminal(run(tmp_path / "run"), columns=44)
    bars = [line for line in screens(text) if "/12" in line]
    assert bars
    assert max(map(len, bars)) <= 44
    assert any("12/12 accuracy" in line and "epsilon 8.0" in line for line in bars)


def test_a_pipe_gets_plain_lines_whatever_is_said_of_colours(tmp_path):
    forced = environment(FORCE_COLOR="1")
    done = subprocess.run(run(tmp_path / "run"), capture_output=True, text=True, env=forced, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(PLAIN.findall(done.stderr)) == 12
    assert not CONTROL.search(done.stderr)
    assert "\r" not in done.stderr


PROGRAM = "import sightline; sightline.run({file!r}, overrides=['rounds=12'], out={out!r}{more})"


@pytest.mark.parametrize(("more", "lines"), [("", 0), (", progress=True", 12)])
def test_a_script_is_quiet_unless_it_asks(tmp_path, more, lines):
    program = PROGRAM.format(file=QUICKSTART, out=str(tmp_path / "run"), more=more)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len(PLAIN.findall(done.stderr)) == lines
    assert bool(done.stderr) == bool(lines)


def test_python_on_a_terminal_shows_a_bar_unless_told_not_to(tmp_path):
    for more, there in (("", True), (", progress=False", False)):
        program = PROGRAM.format(file=QUICKSTART, out=str(tmp_path / f"run{there}"), more=more)
        text = on_a_terminal([sys.executable, "-c", program])
        assert ("12/12" in text) is there, text


def test_bash_completes_what_is_typed():
    shell = ["bash", "--norc", "--noprofile", "-i"]
    typed = 'eval "$(sightline completion bash)"\nsightline acc\tpois\t--he\t\nexit\n'
    text = on_a_terminal(shell, keys=typed, PS1="> ")
    assert "sightline account poisson --help" in CONTROL.sub("", text)
    assert "Each step uses each subject with a probability" in text
