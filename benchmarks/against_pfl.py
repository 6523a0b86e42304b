"""pfl / ours: one round of central-DP FedAvg; each in its best mode on two cores."""

from typing import Any

from benchmarks.job import our_round
from benchmarks.measure import Peer, interleaved, line, medians

MODES = {"1 thread": ("1", "1"), "2 threads": ("2", "1"), "2 processes": ("1", "2")}


def compared(size: str, goal: float, *, repeat: int) -> dict[str, Any]:
    """pfl with one thread, two threads and two processes; ours in one process and in two; the best of each counts."""
    peers = {mode: Peer("pfl", "pfl_round.py", size, *arguments) for mode, arguments in MODES.items()}
    with our_round(size, workers=1) as one, our_round(size, workers=2) as two:
        work: dict[str, Any] = {f"pfl, {mode}": peer.seconds for mode, peer in peers.items()}
        found = medians(interleaved(work | {"ours, 1 process": one, "ours, 2 processes": two}, repeat=repeat, warm=2))
    for peer in peers.values():
        peer.close()
    theirs = min(seconds for name, seconds in found.items() if name.startswith("pfl"))
    ours = min(seconds for name, seconds in found.items() if name.startswith("ours"))
    told = {name: round(seconds, 3) for name, seconds in found.items()}
    return line(f"round_pfl_{size}", theirs / ours, goal, at_least=True, seconds=told)
