"""Every help has examples and every example parses; shells complete; no colours where none are wanted."""

import os
import shlex
import subprocess
import sys

import click
import pytest

from sightline.apps.cli.main import COMMANDS, run_arguments
from sightline.apps.cli.main import sightline as root
from tests.loops import for_every


def every(command: click.Command, path: tuple[str, ...] = ()):
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                yield from every(command.get_command(context, name), (*path, name))


ALL = dict(every(root))


def lines(command: click.Command) -> list[str]:
    text = (command.epilog or "").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith("sightline ")]


@for_every(ALL)
def test_its_examples_parse(path):
    shown = lines(ALL[path])
    assert any(line.split()[1 : len(path) + 1] == list(path) for line in shown), "no example of its own"
    for line in shown:
        words = shlex.split(line.split(" | ")[0].split(" > ")[0].split(" >> ")[0])[1:]
        named = max((known for known in ALL if tuple(words[: len(known)]) == known), key=len)
        ALL[named].make_context(" ".join(named), words[len(named) :])


def sightline(*words, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "sightline", *words]
    return subprocess.run(command, capture_output=True, text=True, env=clean | environment, check=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_about_us(shell, capsys):
    assert run_arguments(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_SIGHTLINE_COMPLETE" in script
    assert f"{shell}_complete" in script


def test_bash_completes_commands():
    asked = {"_SIGHTLINE_COMPLETE": "bash_complete", "COMP_WORDS": "sightline exp", "COMP_CWORD": "1"}
    assert sightline(**asked).stdout.split() == ["plain,experiments"]
    asked |= {"COMP_WORDS": "sightline account poisson --de", "COMP_CWORD": "3"}
    assert sightline(**asked).stdout.split() == ["plain,--delta"]
    assert "completion" in COMMANDS


@pytest.mark.parametrize("group", ["site", "server", "flower"])
def test_the_list_of_a_groups_commands_is_not_cut(group):
    told = sightline(group, "--help").stdout.partition("Commands:")[2]
    assert told.strip()
    assert "..." not in told


def test_colours_follow_no_color():
    red_to_white = [f"\x1b[3{digit}m" for digit in range(8)]
    wanted = sightline("datasets", FORCE_COLOR="1").stdout
    assert any(code in wanted for code in red_to_white)
    unwanted = sightline("datasets", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert not any(code in unwanted for code in red_to_white)
    assert "\x1b" not in sightline("datasets").stdout
