import json

import pytest

from sightline.config import parse
from tests.engine.conftest import TINY, changed

GROUPS = {"kind": "groups", "structure": "ring", "groups": 3, "period": 2}


@pytest.fixture
def grouped():
    """`grouped(**{"topology.period": 3})` is a small experiment on overlapping groups with those keys changed."""
    start = changed(TINY, {"topology": GROUPS, "algorithm": {"name": "dp_ogl"}, "data.clients": 9})
    return lambda **changes: parse(changed(start, changes))


@pytest.fixture
def membership(tmp_path):
    """Writes a membership file and returns its path as text."""

    def write(name="groups.json", **plain):
        path = tmp_path / name
        path.write_text(json.dumps(plain))
        return str(path)

    return write
