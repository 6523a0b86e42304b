import json

import pytest

from sightline.config import parse
from tests.engine.conftest import TINY, changed

TREE = {"kind": "tree", "subnets": [3, 1, 2], "trusted": ["edge-0", "edge-1"]}


@pytest.fixture
def treed():
    """`treed(**{"topology.subnets": 2})` is a small experiment on a tree with those keys changed."""
    start = changed(
        TINY,
        {
            "rounds": 3,
            "topology": TREE,
            "algorithm": {"name": "h2fdp", "local_aggregation": 2},
            "local": {"steps": 6, "batch_size": 4, "learning_rate": 0.3},
            "sampling": {"clients": {"scheme": "full"}},
            "privacy": {"unit": "client", "where": "edge", "noise_multiplier": 0.8, "clip_norm": 0.5},
        },
    )
    return lambda **changes: parse(changed(start, changes))


@pytest.fixture
def tree_file(tmp_path):
    """Writes a tree file and returns its path as text."""

    def write(*servers):
        path = tmp_path / "tree.json"
        path.write_text(json.dumps({"servers": list(servers)}))
        return str(path)

    return write
