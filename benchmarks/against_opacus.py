"""Opacus' best mode / ours: one private step, batch 32 and 256."""

from typing import Any

import torch

from benchmarks.measure import Peer, interleaved, line, medians
from benchmarks.private import batch, private_steps

MODES = ("hooks", "functorch", "ew", "ghost")
SIZES = (32, 256)


def compared(model: str, goal: float, **settings: object) -> dict[str, Any]:
    """The smaller of the two batch sizes' ratios counts."""
    torch.set_num_threads(1)
    peers = {(mode, size): Peer("pfl", "opacus_step.py", model, mode, str(size)) for mode in MODES for size in SIZES}
    work: dict[str, Any] = {f"{mode} {size}": peer.seconds for (mode, size), peer in peers.items()}
    for size in SIZES:
        work[f"ours {size}"] = private_steps(model, *batch(size), **settings)
    found = medians(interleaved(work, repeat=11, warm=2))
    for peer in peers.values():
        peer.close()
    best = {size: min((found[f"{mode} {size}"], mode) for mode in MODES) for size in SIZES}
    ratios = {f"batch_{size}": round(best[size][0] / found[f"ours {size}"], 3) for size in SIZES}
    modes = [mode for _, mode in best.values()]
    return line(f"opacus_{model}", min(ratios.values()), goal, at_least=True, **ratios, best_modes=modes)
