"""Private step / the fastest plain step, both in bf16, MLP 784-196-10."""

from typing import Any

from benchmarks.against_plain import compared
from benchmarks.plain import mlp


def run() -> dict[str, Any]:
    """Goal: as in float32."""
    return compared("mlp", mlp, {32: 1.6, 256: 1.25}, precision="bf16", hidden=[196])
