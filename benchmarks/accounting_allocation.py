"""PLD_accounting 2.0 / ours: k-of-T accounting at T = 1000, k = 50, z = 1, and a smaller epsilon."""

import time
from typing import Any

from benchmarks.measure import Peer, line

STEPS, USES, NOISE, DELTA = 1000, 50, 1.0, 1e-5


def run() -> dict[str, Any]:
    """Once each: the peer takes about a minute, ours is not warmed up on this case."""
    from sightline.accounting import balanced

    peer = Peer("pld", "pld_allocation.py")
    theirs = peer.ask()
    peer.close()
    begun = time.perf_counter()
    epsilon = balanced(noise=NOISE, steps=STEPS, uses=USES).epsilon(delta=DELTA)
    seconds = time.perf_counter() - begun
    result = line("accounting_allocation", theirs["seconds"] / seconds, 20, at_least=True)
    result["ok"] = result["ok"] and epsilon < theirs["epsilon"]
    return result | {
        "epsilon": {"ours": round(epsilon, 4), "theirs": round(theirs["epsilon"], 4)},
        "seconds": {"ours": round(seconds, 3), "theirs": round(theirs["seconds"], 1)},
    }
