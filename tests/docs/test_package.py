"""What is in the package: the version once, every file that the code reads, and its types."""

import tomllib
from pathlib import Path

import sightline

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
