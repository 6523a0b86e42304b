import pytest

from sightline.config import parse
from tests.engine.conftest import changed

SMALL = {
    "name": "clustered",
    "rounds": 8,
    "data": {"source": "digits", "clients": 7, "partition": "label_shift", "clusters": [2, 2, 3], "reuse": True,
             "train_samples": 180},
    "model": {"name": "linear"},
    "topology": {"kind": "clusters", "count": 3},
    "algorithm": {"name": "rdpcfl", "selection_rounds": 2, "selection_epsilon": 1.5},
    "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.5},
    "privacy": {"unit": "sample", "noise_multiplier": 0.8, "delta": 1e-4},
}  # fmt: skip


@pytest.fixture
def clustered():
    """`clustered(**{"topology.count": "auto"})` is a small experiment on clusters with those keys changed."""
    return lambda **changes: parse(changed(SMALL, changes))
