"""The make commands: an interpreter that is too old is told in one line, one that is named has its own environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path):
    """The files that make looks at, in a path with a space."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "constraints.txt", "constraints-flower.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def call_make(clone, *arguments, path=""):
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "MAKEFLAGS", "MAKELEVEL"}}
    environment["PATH"] = path + os.environ["PATH"]
    return subprocess.run(["make", *arguments], cwd=clone, env=environment, capture_output=True, text=True)


def write_interpreter(folder, name, version):
    """A program that answers like a Python of that version and can do nothing else."""
    program = folder / name
    program.write_text(f"#!/bin/sh\ncase $1 in -c) echo {version} ;; *) exit 1 ;; esac\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("goal", ["demo", "test", "flower-test"])
def test_a_python_that_is_too_old_is_told_in_one_line_before_anything_is_made(clone, goal):
    before = sorted(clone.iterdir())
    old = write_interpreter(clone.parent, "python3", "3.10")
    for done in (call_make(clone, goal, f"PYTHON={old}"), call_make(clone, goal, path=f"{clone.parent}{os.pathsep}")):
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert "is Python 3.10 and Sightline needs 3.11 or newer" in line
        assert f"make {goal} PYTHON=" in line
    assert sorted(clone.iterdir()) == before


def test_an_environment_of_an_old_python_is_named(clone):
    (clone / ".venv" / "bin").mkdir(parents=True)
    write_interpreter(clone / ".venv" / "bin", "python", "3.9")
    (line,) = call_make(clone, "demo").stderr.splitlines()
    assert ".venv/bin/python is Python 3.9" in line
    assert "remove .venv" in line


def test_a_program_that_is_no_python_is_told_in_one_line(clone):
    (line,) = call_make(clone, "test", "PYTHON=no-such-python").stderr.splitlines()
    assert "no-such-python is not a Python that runs" in line


def test_an_interpreter_that_is_named_has_environments_of_its_own(clone):
    named = write_interpreter(clone.parent, "python3.13", "3.13")
    for goal, folder in (("test", ".venv-3.13/"), ("demo", ".venv-3.13/"), ("flower-test", ".venv-flower-3.13/")):
        done = call_make(clone, "-n", goal, f"PYTHON={named}")
        assert done.returncode == 0, done.stderr
        assert folder in done.stdout
        assert ".venv/" not in done.stdout
    assert ".venv/bin/python -m pytest" in call_make(clone, "-n", "test", path=f"{Path(sys.executable).parent}:").stdout
