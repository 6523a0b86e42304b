"""Run the examples in the docstrings."""

import doctest
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import sightline
from tests.loops import for_every

MODULES = [
    info.name for info in pkgutil.walk_packages(sightline.__path__, "sightline.") if not info.name.endswith("__main__")
]
FLOWER = find_spec("flwr") is not None  # make flower-test has it


@for_every([name for name in MODULES if FLOWER or not name.startswith("sightline.runtimes.flower.")])
def test_docstrings_tell_the_truth(name):
    module = import_module(name)
    if ">>>" in Path(module.__file__).read_text(encoding="utf-8"):
        assert doctest.testmod(module).failed == 0
