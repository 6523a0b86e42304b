"""Opacus in its best mode / ours, MLP 784-196-10."""

from typing import Any

from benchmarks.against_opacus import compared


def run() -> dict[str, Any]:
    """Goal: at least 3."""
    return compared("mlp", 3.0, hidden=[196])
