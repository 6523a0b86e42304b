"""pfl / ours: a round of central-DP FedAvg, 26,010 parameters."""

from typing import Any

from benchmarks.against_pfl import compared


def run() -> dict[str, Any]:
    """Goal: at least 5."""
    return compared("small", 5.0, repeat=9)
