"""What is in the package: the version once, every file that the code reads, and its types."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import sightline
from sightline.data.formats import read_webp_grid
from sightline.errors import InvalidInput
from sightline.events import Gaussian

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_the_same_everywhere():
    assert PROJECT["project"]["version"] == sightline.__version__
    assert sightline.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_every_file_beside_the_code_is_shipped():
    package = ROOT / "src" / "sightline"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["sightline"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    there = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert there <= shipped
    assert package / "py.typed" in shipped


def test_the_licence_that_the_metadata_names_is_shipped():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    for name in PROJECT["project"]["license-files"]:
        text = (ROOT / name).read_text()
        assert "Apache License\n                           Version 2.0" in text
        assert "END OF TERMS AND CONDITIONS" in text


def test_the_citation_names_this_version_and_licence():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {PROJECT['project']['version']}" in lines
    assert f"license: {PROJECT['project']['license']}" in lines


def test_the_workflow_runs_the_two_commands_on_every_python_and_system_that_the_package_names():
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    classifiers = PROJECT["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    named = [name.removeprefix(prefix[:-2]) for name in classifiers if name.startswith(prefix)]
    (pythons,) = re.findall(r"^\s*python: (\[.*\])$", workflow, re.MULTILINE)
    assert json.loads(pythons) == named
    assert f">={named[0]}" == PROJECT["project"]["requires-python"]
    (systems,) = re.findall(r"^\s*os: \[(.*)\]$", workflow, re.MULTILINE)
    runners = {"Operating System :: POSIX :: Linux": "ubuntu-latest", "Operating System :: MacOS": "macos-latest"}
    assert set(systems.split(", ")) == {runners[name] for name in classifiers if name.startswith("Operating System")}
    assert {"make demo", "make test", "make lint"} == set(re.findall(r"- run: (.*)$", workflow, re.MULTILINE))


def test_the_changelog_begins_with_this_version_and_its_date():
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(sightline.__version__)} \(\d{{4}}-\d{{2}}-\d{{2}}\)", first[1])


def test_the_nightly_and_release_workflows_run_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    nightly, release = ((ROOT / ".github" / "workflows" / f"{name}.yml").read_text() for name in ("nightly", "release"))
    (listed,) = re.findall(r"^\s*target: \[(.*)\]$", nightly, re.MULTILINE)
    assert set(listed.split(", ")) <= targets
    released = set(re.findall(r"- run: make (.*)$", release, re.MULTILINE))
    assert released
    assert released <= targets


def test_every_file_that_the_hooks_and_workflows_name_exists():
    named = {}
    for page in (ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")):
        text = page.read_text().replace("{project}/", "")
        for name in re.findall(r"(?<![\w./*-])(?:[\w.*-]+/)*[\w.*-]+\.(?:py|toml|txt|md|yml|json)\b", text):
            named.setdefault(name, page.name)
    assert {"tests/docs/test_package.py", "tests/docs/wheel.py", "constraints*.txt"} <= named.keys()
    assert {name: page for name, page in named.items() if not list(ROOT.glob(name))} == {}


def test_the_table_of_the_contributing_page_names_files_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## Where things go")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:/|\.py))`", section)
    assert len(named) > 10
    roots = (ROOT, ROOT / "src", ROOT / "src" / "sightline")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("dp_accounting", "interop", lambda: sightline.accounting.to_dp_event(Gaussian(1.0))),
        ("PIL", "images", lambda: read_webp_grid(Path("grid.webp"), side=32, per_row=2)),
    ],
)
def test_a_missing_extra_is_one_line_with_the_pip_command(module, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidInput, match=rf'pip install "sightline\[{extra}\]"'):
        use()


def test_every_pinned_extra_is_part_of_dev():
    extras = PROJECT["project"]["optional-dependencies"]
    assert {word for name in ("figures", "images", "interop", "serve") for word in extras[name]} <= set(extras["dev"])
