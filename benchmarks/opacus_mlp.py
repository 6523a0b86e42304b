"""Opacus' best mode / ours: one private step, batch 32 and 256."""

from typing import Any

import torch

from benchmarks.measure import Peer, interleaved, line, medians
from benchmarks.private import batch, private_steps


def run() -> dict[str, Any]:
    """The smaller of the two batch sizes' ratios counts."""
    torch.set_num_threads(1)
    modes = ("hooks", "functorch", "ew", "ghost")
    peers = {
        (mode, size): Peer("pfl", "opacus_step.py", "mlp", mode, str(size)) for mode in modes for size in (32, 256)
    }
    work: dict[str, Any] = {f"{mode} {size}": peer.seconds for (mode, size), peer in peers.items()}
    for size in (32, 256):
        work[f"ours {size}"] = private_steps("mlp", *batch(size), hidden=[196])
    found = medians(interleaved(work, repeat=11, warm=2))
    for peer in peers.values():
        peer.close()
    best = {size: min((found[f"{mode} {size}"], mode) for mode in modes) for size in (32, 256)}
    ratios = {f"batch_{size}": round(best[size][0] / found[f"ours {size}"], 3) for size in best}
    return line(
        "opacus_mlp", min(ratios.values()), 3, at_least=True, **ratios, best_modes=[mode for _, mode in best.values()]
    )
