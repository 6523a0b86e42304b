"""What MKL's reproducible mode costs: local training, matrix products and convolutions with the mode on / off."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Answering, line, medians

TURNS, WARM = 15, 2


def run() -> dict[str, Any]:
    """Two processes that do the same work in turn, one in each mode; processor seconds of one thread."""
    processes = {mode: Answering([sys.executable, "-m", "benchmarks.mkl_mode", mode]) for mode in ("on", "off")}
    seconds: dict[str, dict[str, list[float]]] = {mode: {} for mode in processes}
    modes = {}
    try:
        for turn in range(WARM + TURNS):
            for mode, process in processes.items():
                answer = process.ask()
                modes[mode] = answer.pop("mkl_cbwr")
                for work, spent in answer.items() if turn >= WARM else ():
                    seconds[mode].setdefault(work, []).append(spent)
    finally:
        for process in processes.values():
            process.close()
    on, off = medians(seconds["on"]), medians(seconds["off"])
    ratios = {work: round(on[work] / off[work], 3) for work in on}
    return line("mkl_mode", ratios.pop("training"), 1.1, at_least=False, **ratios, mkl_cbwr=modes)


def answer_lines(mode: str) -> None:
    """Do the work once for every line on stdin."""
    import torch

    if mode == "off":
        torch.ones(9, 9) @ torch.ones(9, 9)  # before sightline: too late for the mode

    from sightline import mkl

    torch.set_num_threads(1)
    pieces = prepare_work()
    for _ in sys.stdin:
        answer: dict[str, Any] = {"mkl_cbwr": mkl.read_mode()}
        for name, work in pieces.items():
            begun = time.process_time()
            work()
            answer[name] = time.process_time() - begun
        print(json.dumps(answer), flush=True)


def prepare_work() -> dict[str, Callable[[], None]]:
    """A round of stacked clients, products of the sizes that training has, convolutions."""
    import numpy as np
    import torch

    from sightline.data import Kind, Shard
    from sightline.models import build_model
    from sightline.training import LocalWork, train_local

    rng, random = np.random.default_rng(0), torch.Generator().manual_seed(0)
    shards = [Shard(rng.standard_normal((80, 64)).astype(np.float32), rng.integers(0, 10, 80)) for _ in range(20)]
    model = build_model("mlp", input_shape=(64,), classes=10, kind=Kind.VECTOR, settings={"hidden": (64,)})
    start = 0.1 * torch.randn(model.parameters, generator=random)
    local = LocalWork(learning_rate=0.1, batch_size=32, epochs=5)
    sizes = [(32, 64, 10), (128, 784, 256), (512, 512, 512), (64, 1, 64)]
    pairs = [(torch.randn(m, k, generator=random), torch.randn(k, n, generator=random)) for m, k, n in sizes]
    images, kernels = torch.randn(32, 16, 14, 14, generator=random), torch.randn(32, 16, 5, 5, generator=random)

    def train_clients() -> None:
        for _ in train_local(model, start, shards, local, rngs=[np.random.default_rng(n) for n in range(len(shards))]):
            pass

    def multiply() -> None:
        for left, right in pairs:
            for _ in range(20):
                left @ right
                left.T @ (left @ right)

    def convolve() -> None:
        for _ in range(20):
            torch.conv2d(images, kernels)

    return {"training": train_clients, "products": multiply, "convolutions": convolve}


if __name__ == "__main__":
    answer_lines(sys.argv[1])
