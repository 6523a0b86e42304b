"""pfl / ours: one round of central-DP FedAvg; each in its best mode on two cores, in the same precision."""

from typing import Any

from benchmarks.job import our_round
from benchmarks.measure import Peer, check_precision, interleaved, line, medians

MODES = {"1 thread": ("1", "1"), "2 threads": ("2", "1"), "2 processes": ("1", "2")}


def compared(size: str, goal: float, *, repeat: int, precision: str = "float32") -> dict[str, Any]:
    """pfl with one thread, two threads and two processes; ours in one process and in two; the best of each counts.

    In bf16 pfl may also stay in float32, where that is faster.
    """
    check_precision(precision)
    words: dict[str, tuple[str, ...]] = {"": ()} if precision == "float32" else {"": (), " bf16": ("bf16",)}
    peers = {
        f"pfl, {mode}{word}": Peer("pfl", "pfl_round.py", size, *arguments, *more)
        for mode, arguments in MODES.items()
        for word, more in words.items()
    }
    how: dict[str, Any] = {} if precision == "float32" else {"precision": precision}
    with our_round(size, workers=1, **how) as one, our_round(size, workers=2, **how) as two:
        work: dict[str, Any] = {name: peer.seconds for name, peer in peers.items()}
        found = medians(interleaved(work | {"ours, 1 process": one, "ours, 2 processes": two}, repeat=repeat, warm=2))
    for peer in peers.values():
        peer.close()
    theirs = min(seconds for name, seconds in found.items() if name.startswith("pfl"))
    ours = min(seconds for name, seconds in found.items() if name.startswith("ours"))
    told = {name: round(seconds, 3) for name, seconds in found.items()}
    name = f"round_pfl_{size}" if precision == "float32" else f"round_pfl_{size}_{precision}"
    return line(name, theirs / ours, goal, at_least=True, seconds=told, paths=one.paths.describe(), precision=precision)
