import sys
from pathlib import Path

import pytest

from sightline.config import Split, parse
from sightline.data import Kind
from sightline.models import build_model
from tests.engine.conftest import TINY as SMALL
from tests.engine.conftest import changed

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))

MLP = {"name": "mlp", "input_shape": (6,), "classes": 3, "kind": Kind.VECTOR, "settings": {"hidden": [8, 5, 7]}}
RESNET = {
    "name": "resnet",
    "input_shape": (2, 6, 6),
    "classes": 3,
    "kind": Kind.IMAGE,
    "settings": {"channels": [4, 6], "depth": 4, "groups": 2},
}
TINY = changed(
    SMALL,
    {
        "rounds": 3,
        "model.name": "mlp",
        "model.hidden": [8],
        "algorithm.name": "fedavg",
        "algorithm.split": {"parts": 2},
    },
)


@pytest.fixture
def tiny():
    """A small experiment on two parts, with dotted keys changed."""
    return lambda **changes: parse(changed(TINY, changes))


@pytest.fixture
def mlp():
    return build_model(**MLP)


@pytest.fixture
def resnet():
    return build_model(**RESNET)


@pytest.fixture
def cnn():
    return build_model("cnn", input_shape=(1, 12, 12), classes=3, kind=Kind.IMAGE, settings={})


def split(**settings):
    return Split.model_validate(settings)
