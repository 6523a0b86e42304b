"""pfl / ours, both in bf16 where it helps: a round of central-DP FedAvg, 1,626,442 parameters."""

from typing import Any

from benchmarks.against_pfl import compared


def run() -> dict[str, Any]:
    """Goal: at least 1.8."""
    return compared("cnn", 1.8, repeat=5, precision="bf16")
