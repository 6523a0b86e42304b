"""Every tutorial runs as it stands: its shell lines one after the other, its Python as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import program, shell

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def code(page: Path, kind: str) -> str:
    return "\n".join(body for found, body in BLOCK.findall(page.read_text()) if found == kind)


LONG = ("plan-a-budget", "less-noise-in-turns")


def mark_long(page: Path) -> pytest.MarkDecorator | tuple[()]:
    return pytest.mark.slow if page.stem in LONG else ()


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem, marks=mark_long(page)) for page in TUTORIALS])
def test_it_runs(page: Path, tmp_path: Path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell(code(page, "bash"), tmp_path)
    program(code(page, "python"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_it_runs_in_a_shell(page: Path, tmp_path: Path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (["bash", "-ec", code(page, "bash")], [sys.executable, "-c", code(page, "python")]):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]


def test_there_is_one_for_every_first_question():
    named = re.findall(r"\(tutorials/([\w-]+)\.md\)", (ROOT / "docs" / "index.md").read_text())
    assert sorted(named) == sorted(page.stem for page in TUTORIALS)
