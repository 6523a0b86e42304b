"""Private step / the fastest plain step, MLP 784-196-10."""

from typing import Any

from benchmarks.against_plain import compared
from benchmarks.plain import mlp


def run() -> dict[str, Any]:
    """Goal: at most 2."""
    return compared("mlp", mlp, 2.0, hidden=[196])
