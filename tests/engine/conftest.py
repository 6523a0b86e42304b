import pytest

from sightline.config import parse

TINY = {
    "name": "tiny",
    "rounds": 4,
    "data": {"source": "synthetic", "partition": "natural", "clients": 6, "features": 5, "classes": 3,
             "size_min": 10, "size_mean": 2.0, "size_sigma": 0.5},
    "model": {"name": "linear"},
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
    """`tiny(**{"rounds": 2, "privacy.unit": "sample"})` is a small experiment with those keys changed."""
    return lambda **changes: parse(changed(TINY, changes))
