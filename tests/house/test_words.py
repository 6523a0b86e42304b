"""The README and the docs are run, not only read."""

import re
from pathlib import Path

import pytest

from tests.commands import program, shell

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind, path=ROOT / "README.md"):
    return [body for found, body in BLOCK.findall(path.read_text()) if found == kind]


@pytest.fixture
def playground(tmp_path):
    """A folder that looks like a clone."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_every_shell_block_of_the_readme_runs(playground):
    for block in blocks("bash"):
        lines = [line for line in block.splitlines() if not line.startswith(("make ", "git ", "#"))]
        shell("\n".join(lines), playground)


def test_every_python_block_of_the_readme_runs(playground):
    for block in blocks("python"):
        program(block, playground)


def test_every_toml_block_of_the_readme_is_an_experiment():
    import tomllib

    from sightline.config import parse

    for block in blocks("toml"):
        parse(tomllib.loads(block))


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named <= targets


def test_every_link_of_the_docs_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} -> {link}"


def test_every_example_and_experiment_file_is_valid():
    from sightline.config import read

    for path in [*ROOT.glob("examples/*.toml"), *ROOT.glob("experiments/**/*.toml")]:
        read(path)
