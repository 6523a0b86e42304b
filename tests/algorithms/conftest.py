import pytest

from sightline.config import parse
from tests.engine.conftest import TINY, changed


@pytest.fixture
def tiny():
    """`tiny(**{"rounds": 2, "algorithm.name": "scaffold"})` is a small experiment with those keys changed."""
    return lambda **changes: parse(changed(TINY, changes))
