"""Small runs of many kinds: one by one what long runs, crashes and budgets must hold for."""

from sightline.config import parse
from tests.engine.conftest import TINY, changed

_TREE = {
    "topology": {"kind": "tree", "subnets": [3, 1, 2], "trusted": ["edge-0", "edge-1"]},
    "algorithm": {"name": "h2fdp", "local_aggregation": 2},
    "local": {"steps": 4, "batch_size": 4, "learning_rate": 0.3},
    "sampling": {"clients": {"scheme": "full"}},
    "privacy": {"unit": "client", "where": "edge", "noise_multiplier": 0.8, "clip_norm": 0.5},
}
_CLUSTERS = {
    "data": {"source": "digits", "clients": 7, "partition": "label_shift", "clusters": [2, 2, 3], "reuse": True,
             "train_samples": 180},
    "topology": {"kind": "clusters", "count": 3},
    "algorithm": {"name": "rdpcfl", "selection_rounds": 2, "selection_epsilon": 1.5},
    "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.5},
    "sampling": None,
    "privacy": {"unit": "sample", "noise_multiplier": 0.8, "delta": 1e-4},
}  # fmt: skip

KINDS = {
    "star": {},
    "fixed": {"sampling.clients": {"scheme": "fixed", "rate": 0.5}, "privacy.adjacency": "replace"},
    "balanced": {"sampling.clients": {"scheme": "check_ins", "rate": 0.8, "epochs": 2}},
    "clients": {"privacy.where": "client"},
    "groups": {
        "topology": {"kind": "groups", "structure": "ring", "groups": 3, "period": 2},
        "algorithm": {"name": "dp_ogl"},
        "data.clients": 9,
    },
    "tree": _TREE,
    "turns": {"sampling.clients": {"scheme": "turns", "groups": 3, "rate": 0.6}},
    "correlated": {"sampling.clients": {"scheme": "turns", "groups": 3}, "privacy.noise": "correlated"},
    "clusters": _CLUSTERS,
    "split": {"model": {"name": "mlp", "hidden": [6]}, "algorithm.split": {"parts": 2}},
}
"""What is changed in the tiny experiment."""


def experiment(kind, **changes):
    """A small experiment of that kind, with further keys changed."""
    return parse(changed(changed(TINY, KINDS[kind]), changes))
