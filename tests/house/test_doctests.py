"""The examples in the docstrings are run."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import sightline

MODULES = [
    info.name for info in pkgutil.walk_packages(sightline.__path__, "sightline.") if not info.name.endswith("__main__")
]
NEEDS_FLOWER = "sightline.runtimes.flower."


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_tell_the_truth(name):
    if name.startswith(NEEDS_FLOWER):
        pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
    assert doctest.testmod(import_module(name)).failed == 0
