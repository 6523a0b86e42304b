"""The README of a package names its files: each that it names is there, and each that is there is named."""

import re
from pathlib import Path

import pytest

import sightline

SOURCE = Path(sightline.__file__).parent
ROOT = SOURCE.parents[1]
READMES = sorted(SOURCE.rglob("README.md"))
FILE = re.compile(r"[\w/]+\.py\b")
UNNAMED = {"__init__.py", "__main__.py"}


def named_files(readme):
    return set(FILE.findall(readme.read_text()))


def files_of(package):
    """The files that the package's own README answers for: not those below another README."""
    below = [other.parent for other in READMES if package in other.parent.parents]
    paths = (path for path in package.rglob("*.py") if path.name not in UNNAMED)
    return [path for path in paths if not any(other in path.parents for other in below)]


def is_named(path, readme):
    names = {path.name, path.relative_to(readme.parent).as_posix()}
    return bool(names & named_files(readme))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.relative_to(SOURCE).as_posix())
def test_every_file_it_names_is_there(readme):
    package = readme.parent
    for name in named_files(readme):
        found = (ROOT / name).is_file() if name.startswith("tests/") else any(package.rglob(name))
        assert found, f"{readme.relative_to(ROOT)} names {name}"


OF_PACKAGES = [readme for readme in READMES if readme.parent != SOURCE]


@pytest.mark.parametrize("readme", OF_PACKAGES, ids=lambda path: path.parent.relative_to(SOURCE).as_posix())
def test_every_file_of_the_package_is_named(readme):
    left = [path for path in files_of(readme.parent) if not is_named(path, readme)]
    assert not left, f"{readme.relative_to(ROOT)} does not name {[path.name for path in left]}"


def test_every_package_with_files_is_described():
    described = {readme.parent for readme in OF_PACKAGES}
    packages = {path.parent for path in SOURCE.rglob("*.py") if path.name not in UNNAMED} - {SOURCE}
    assert not [package for package in packages if not described & {package, package.parent}]


def count_lines(paths):
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_the_map_says_how_long_the_core_is():
    """It said 7,000 lines where the files it lists had more than 8,000."""
    said, listed = (
        re.search(r"## The core in reading order\n+About (.*)", (SOURCE / "README.md").read_text(), re.S)[1],
        [],
    )
    for line in re.findall(r"^\d+\. .*", said, re.M):
        for name in re.findall(r"`([\w/]+\.py)`", line):
            listed.append(SOURCE / name if (SOURCE / name).is_file() else listed[-1].parent / name)
    core, whole = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", said)[:2])
    assert count_lines(listed) == pytest.approx(core, rel=0.1), f"the core has {count_lines(listed):,} lines"
    assert count_lines(SOURCE.rglob("*.py")) == pytest.approx(whole, rel=0.1)
