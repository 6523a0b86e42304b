"""Opacus' best mode / ours: private steps, batch 32 and 256, as many consecutive calls on both sides."""

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.measure import Peer, graded, interleaved, medians
from benchmarks.private import PrivateSteps, batch

MODES = ("hooks", "functorch", "ew", "ghost")
SIZES = (32, 256)


def compared(model: str, goals: Mapping[int, float], **settings: object) -> dict[str, Any]:
    """Each batch size has its own goal."""
    torch.set_num_threads(1)
    peers = {(mode, size): Peer("pfl", "opacus_step.py", model, mode, str(size)) for mode in MODES for size in SIZES}
    work: dict[str, Any] = {f"{mode} {size}": peer.seconds for (mode, size), peer in peers.items()}
    ours = {size: PrivateSteps(model, *batch(size), **settings) for size in SIZES}
    work |= {f"ours {size}": steps for size, steps in ours.items()}
    found = medians(interleaved(work, repeat=11, warm=2))
    for peer in peers.values():
        peer.close()
    best = {size: min((found[f"{mode} {size}"], mode) for mode in MODES) for size in SIZES}
    ratios = {f"batch_{size}": best[size][0] / found[f"ours {size}"] for size in SIZES}
    wanted = {f"batch_{size}": goal for size, goal in goals.items()}
    paths = {f"batch_{size}": steps.paths.describe() for size, steps in ours.items()}
    modes = [mode for _, mode in best.values()]
    return graded(f"opacus_{model}", ratios, wanted, at_least=True, best_modes=modes, paths=paths)
