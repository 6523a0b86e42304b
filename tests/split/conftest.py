import sys
from pathlib import Path

import pytest

from sightline.config import Split, parse
from sightline.data.federation import Kind
from sightline.models import build

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))

MLP = {"name": "mlp", "input_shape": (6,), "classes": 3, "kind": Kind.VECTOR, "settings": {"hidden": [8, 5, 7]}}
RESNET = {
    "name": "resnet",
    "input_shape": (2, 6, 6),
    "classes": 3,
    "kind": Kind.IMAGE,
    "settings": {"channels": [4, 6], "depth": 4, "groups": 2},
}
TINY = {
    "name": "tiny",
    "rounds": 3,
    "data": {"source": "synthetic", "partition": "natural", "clients": 6, "features": 5, "classes": 3,
             "size_min": 10, "size_mean": 2.0, "size_sigma": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "split": {"parts": 2}},
    "local": {"epochs": 2, "batch_size": 4, "learning_rate": 0.2},
    "sampling": {"clients": {"scheme": "poisson", "rate": 0.6}},
    "privacy": {"unit": "client", "noise_multiplier": 0.8, "clip_norm": 0.5},
}  # fmt: skip


def changed(plain, changes):
    """A copy of a nested dictionary with dotted keys set; None removes one."""
    plain = {key: dict(value) if isinstance(value, dict) else value for key, value in plain.items()}
    for dotted, value in changes.items():
        *tables, key = dotted.split(".")
        table = plain
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return plain


@pytest.fixture
def tiny():
    """A small experiment on two parts, with dotted keys changed."""
    return lambda **changes: parse(changed(TINY, changes))


@pytest.fixture
def mlp():
    return build(**MLP)


@pytest.fixture
def resnet():
    return build(**RESNET)


def split(**settings):
    return Split.model_validate(settings)
