"""Flower's simulation engine (Ray, two actors) / ours: one round of central-DP FedAvg."""

from typing import Any

from benchmarks.job import our_round
from benchmarks.measure import Peer, interleaved, line, medians


def run() -> dict[str, Any]:
    """Flower's first rounds start its actors and are thrown away."""
    peer = Peer("flwr", "flower_round.py", "small")
    with our_round("small", workers=1) as one, our_round("small", workers=2) as two:
        work: dict[str, Any] = {"flower": peer.seconds, "ours, 1 process": one, "ours, 2 processes": two}
        found = medians(interleaved(work, repeat=7, warm=3))
    peer.close()
    ours = min(found["ours, 1 process"], found["ours, 2 processes"])
    return line(
        "round_flower_small", found["flower"] / ours, 12, at_least=True, paths=one.paths.describe(),
        seconds={name: round(seconds, 3) for name, seconds in found.items()},
    )  # fmt: skip
