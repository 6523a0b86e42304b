"""Private step / the fastest plain step, both in bf16, 28,938-parameter CNN."""

from typing import Any

from benchmarks.against_plain import compared
from benchmarks.plain import cnn


def run() -> dict[str, Any]:
    """Goal: as in float32."""
    return compared("cnn", cnn, {32: 1.25, 256: 1.15}, precision="bf16")
