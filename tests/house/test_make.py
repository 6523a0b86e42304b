"""The make commands: an interpreter that is too old gives one line, a named one has its own environment; what
is installed is pinned by hash."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.loops import for_every

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path):
    """Copy the files that make reads to a path with a space."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", *(path.name for path in ROOT.glob("constraints*.txt"))):
        shutil.copy(ROOT / name, folder)
    return folder


def call_make(clone, *arguments, path=""):
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "MAKEFLAGS", "MAKELEVEL"}}
    environment["PATH"] = path + os.environ["PATH"]
    return subprocess.run(["make", *arguments], cwd=clone, env=environment, capture_output=True, text=True)


def write_interpreter(folder, name, version):
    """Write a program that only answers like a Python of that version."""
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


PINNED = (*sorted(path.name for path in ROOT.glob("constraints*.txt")), "docs/requirements.txt",
          "docs/site/requirements-notebooks.txt", "tests/fuzz/requirements.txt")  # fmt: skip
CUDA = ("nvidia-", "cuda-", "triton")
"""What torch's CUDA build asks for beyond the pinned packages, of versions that torch itself pins."""


def pinned_versions(*names):
    """Return package -> version and hashes, of files that hold only pinned packages, their hashes and comments."""
    found = {}
    for name in names:
        for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
            if not line.startswith("#"):
                match = re.fullmatch(r"([\w.-]+)==([\w.]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", line)
                assert match, f"{name}: {line[:80]}"
                found[canonicalize_name(match[1])] = match[2], match[3].split()
    return found


@for_every(PINNED)
def test_every_package_is_pinned_by_version_and_hash(name):
    """With versions only, an index could serve other files. No constraints file names a host or a path."""
    assert pinned_versions(name)


def test_make_installs_by_hash():
    """Except the peers of the benchmarks, and the wheel's own dependencies, which their test installs on purpose."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    assert "--require-hashes --no-deps" in re.search(r"^HASHED := (.*)$", text, re.MULTILINE)[1]
    for line in re.findall(r"pip install ([^&\n]*)", text):
        by_hash = "$(HASHED)" in line
        ours = "--no-deps --no-build-isolation -e ." in line
        assert by_hash or ours or "peer" in line or "$(WHEEL)" in line or line.strip().endswith('"torch==2.13.0"'), line
    for name in PINNED:
        assert name in text


def missing_of(requirements, versions):
    """Return the direct and indirect requirements that the versions do not meet."""
    open_, seen, missing = [(Requirement(one), "") for one in requirements], set(), []
    while open_:
        one, extra = open_.pop()
        name = canonicalize_name(one.name)
        if (one.marker and not one.marker.evaluate({"extra": extra})) or (name, str(one)) in seen:
            continue
        seen.add((name, str(one)))
        if name.startswith(CUDA):
            continue
        if name not in versions or not one.specifier.contains(versions[name][0]):
            missing.append(str(one))
            continue
        theirs = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
        open_ += [(needed, extra) for needed in theirs for extra in ("", *one.extras)]
    return missing


def test_the_pinned_packages_are_all_that_is_needed():
    """`--no-deps` installs what the files name and nothing else."""
    plain = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*plain["build-system"]["requires"], *plain["project"]["dependencies"]]
    versions = pinned_versions("constraints.txt", "constraints-torch.txt")
    assert missing_of([*needed, *plain["project"]["optional-dependencies"]["dev"]], versions) == []
    flower = pinned_versions("constraints-flower.txt")
    for one in map(Requirement, plain["project"]["optional-dependencies"]["flower"]):
        assert one.specifier.contains(flower[one.name][0])
