"""The blocks of the README run, links lead somewhere, and code and docs use the words of the field."""

import re
from pathlib import Path

import pytest

from tests.commands import program, shell
from tests.house.size import find_riddles

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind, path=ROOT / "README.md"):
    return [body for found, body in BLOCK.findall(path.read_text()) if found == kind]


@pytest.fixture
def playground(tmp_path):
    """Return a folder that looks like a clone."""
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

    for path in [*ROOT.glob("examples/*.toml"), *ROOT.glob("papers/**/*.toml")]:
        read(path)


RETIRED = re.compile(
    r"\b(coins?|scribes?|exhibits?|galler(y|ies)|desks?|shel(f|ves)|doors?|crews?|rooms|book-?keeping|in or out|"
    r"nine in ten|in the clear|data walks?)\b",
    re.IGNORECASE,
)
"""Private words: the field says sampling, clipping rule, figure or table, package, ghost clipping, add/remove, 10th
percentile, without noise. Names in files of runs, such as `coins_known_to`, stay."""
STORED = ("mean of updates, in the clear", "own update, in the clear", "shelf.secret")
"""What ledgers say and a file of a site is called: hashed or on people's disks."""
SPEAKING = (".c", ".css", ".html", ".ipynb", ".js", ".md", ".py", ".toml")
SPOKEN = [path for part in ("src", "docs", "examples", "papers") for path in sorted((ROOT / part).rglob("*"))]
PAGES = [ROOT / "README.md", *(p for p in SPOKEN if p.suffix in SPEAKING)]


def retired_words(text):
    """Return (line, word) of every retired word."""
    for stored in STORED:
        text = text.replace(stored, "")
    return [(number, found[0]) for number, line in enumerate(text.splitlines(), 1) for found in RETIRED.finditer(line)]


def test_private_words_have_given_way_to_those_of_the_field():
    spoken = {path.relative_to(ROOT): retired_words(path.read_text(encoding="utf-8")) for path in PAGES}
    assert {str(path): words for path, words in spoken.items() if words} == {}


def test_no_riddle_word_is_left():
    assert find_riddles() == []


@pytest.mark.parametrize("sentence", ["Hidden coins.", "An exhibit", "nine in ten clients", "handed over in the clear"])
def test_a_retired_word_is_found(sentence):
    fine = "`coins_known_to` is fine, and so is room for one.\n"
    assert [number for number, _ in retired_words(fine + sentence)] == [2]
