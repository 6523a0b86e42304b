"""docs/tutorials/extend.md: its three files and patches, taken from the page, applied to a copy of the tree, run, counted."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from sightline import mechanisms, topology
from tests.laws import test_calibration, test_draws

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "extend.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = ("fedema", "median", "consortium")


@dataclass(frozen=True)
class Newcomer:
    """A section of the page: the new file and the patches to other files."""

    file: str
    code: str
    changes: dict[str, list[str]]

    @classmethod
    def read(cls, section: str) -> "Newcomer":
        found = BLOCK.findall(section)
        (diff,) = (body for kind, body in found if kind == "diff")
        parts = (part.partition("\n") for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:])
        changes = {name: re.split(r"^@@\n", body, flags=re.MULTILINE) for name, _, body in parts}
        return cls(re.search(r"`(\w+/\w+\.py)`", section)[1], next(b for k, b in found if k == "python"), changes)

    def apply(self, tree: Path) -> None:
        """Write the new file and apply the patches; each removed line must occur exactly once."""
        (tree / "src" / "sightline" / self.file).write_text(self.code)
        for name, hunks in self.changes.items():
            text = (tree / name).read_text()
            for hunk in hunks:
                old, new = ("\n".join(x[1:] for x in hunk.splitlines() if x[0] in kept) for kept in (" -", " +"))
                assert text.count(old) == 1, f"{name} has changed: adapt docs/tutorials/extend.md\n{old}"
                text = text.replace(old, new)
            (tree / name).write_text(text)

    @property
    def counted(self) -> list[str]:
        """Return the cells of its row: lines of the new file, then lines and files of source, tests and docs, then all."""
        lines, files = Counter(source=0), Counter(source=0)
        for name, hunks in self.changes.items():
            place = "docs" if name.endswith(".md") else "tests" if name.startswith("tests/") else "source"
            lines[place] += sum(line.startswith("+") for hunk in hunks for line in hunk.splitlines())
            files[place] += 1
        own = len(self.code.splitlines())
        cells = [
            f"{lines[place]} in {files[place]}" if lines[place] else "none" for place in ("source", "tests", "docs")
        ]
        return [str(own), *cells, f"{own + lines.total()} in {1 + files.total()}"]


NEWCOMERS = dict(zip(NAMES, map(Newcomer.read, re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:4]), strict=True))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the tree with all three extensions."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("src", "tests", "docs/reference", "examples"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for newcomer in NEWCOMERS.values():
        newcomer.apply(copy)
    return copy


def python(tree: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_table_counts_what_the_page_changes(name):
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert row.split(" | ") == NEWCOMERS[name].counted


RUNS = """
import json, sightline
words = {"fedema": ["algorithm.name=fedema"], "median": ["privacy.mechanism=median", "privacy.where=client"],
         "consortium": ["topology.kind=consortium"]}
few = ["rounds=2", "data.clients=20", "local.epochs=1"]
found = {}
for name, own in words.items():
    run = sightline.run("examples/quickstart.toml", overrides=[*few, *own], out=f"runs/{name}")
    found[name] = [sightline.__file__, run.epsilon, len(run.ledger), run.ledger[len(run.ledger) - 1].what,
                   "public" in run.ledger.participants]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_all_three_run_by_their_names_in_an_experiment_file(tree):
    found = json.loads(python(tree, "-c", RUNS).splitlines()[-1])
    for where, epsilon, releases, _, _ in found.values():
        assert Path(where).is_relative_to(tree)
        assert 7.9 < epsilon <= 8
        assert releases >= 2
    assert found["median"][3] == "median of noisy updates"
    assert [seen for *_, seen in found.values()] == [True, True, False]


@pytest.mark.slow
def test_the_laws_measure_them(tree):
    """The law tests cover the noise of the median, the draws of the consortium, and everything that is registered."""
    words = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "median or consortium or every or known_ones")
    laws = [f"tests/laws/test_{name}.py" for name in ("noise_law", "calibration", "draws")]
    told = python(tree, "-m", "pytest", *words, "-m", "not slow", *laws, "tests/engine/test_run.py")
    assert int(re.search(r"(\d+) passed", told)[1]) >= 15


@pytest.mark.parametrize(
    ("registry", "name", "law"),
    [
        (
            mechanisms.MECHANISMS,
            ("median", "client", "client"),
            test_calibration.test_every_mechanism_is_calibrated_here,
        ),
        (topology.REGISTRY, "consortium", test_draws.test_every_sampler_and_topology_is_drawn_from_here),
    ],
)
def test_the_laws_are_red_while_they_are_left_out(registry, name, law):
    law()
    with patch.dict(registry, {name: None}), pytest.raises(AssertionError):
        law()
