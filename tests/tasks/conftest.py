import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

DATA = {"source": "synthetic", "partition": "natural", "clients": 4, "features": 6, "classes": 3, "iid": True,
        "size_min": 12, "size_mean": 2.0, "size_sigma": 0.5}  # fmt: skip
MODELS = {
    "classification": {"name": "linear"},
    "binary": {"name": "linear", "task": "binary"},
    "multilabel": {"name": "linear", "task": "multilabel"},
    "regression": {"name": "linear", "task": "regression"},
    "language": {"name": "lstm", "task": "language", "embedding": 4, "hidden": 4},
    "own": {"name": "linear", "loss": "own_losses:focal"},
}
PRIVACY = {
    "none": {"unit": "none"},
    "client": {"unit": "client", "noise_multiplier": 0.7},
    "sample": {"unit": "sample", "noise_multiplier": 0.9},
}


def experiment(task, unit="none", **changes):
    """A small experiment of a task, as tables; `local={...}` and the like are laid over its own."""
    plain = {
        "name": task,
        "rounds": 2,
        "data": DATA | ({"classes": 2} if task == "binary" else {}),
        "model": dict(MODELS[task]),
        "local": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "privacy": dict(PRIVACY[unit]),
    }
    for name, value in changes.items():
        plain[name] = plain.get(name, {}) | value if isinstance(value, dict) else value
    return plain


@pytest.fixture
def run(tmp_path):
    import sightline

    def made(plain, **more):
        place = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return sightline.run(plain, out=place, progress=False, **more)

    return made
