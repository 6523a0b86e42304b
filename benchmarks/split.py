"""What a part costs: processor time and memory of a private step by parts, over that of the whole model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, interleaved, line, medians

MODEL = {"channels": [32], "depth": 12, "groups": 8}
PARTS = (1, 2, 4)
SHAPE = (3, 16, 16)
BATCH = 64


def step(parts: int) -> Any:
    """One private gradient sum over a batch of images, each sent to one of `parts` parts of a 12-block network."""
    import numpy as np
    import torch

    from sightline.config import Split
    from sightline.data import Kind
    from sightline.mechanisms import Splitter
    from sightline.models import build_model, split_model
    from sightline.training.submodels import parted_gradient_sum

    torch.set_num_threads(1)
    model = build_model("resnet", input_shape=SHAPE, classes=10, kind=Kind.IMAGE, settings=MODEL)
    rng = np.random.default_rng(0)
    splitter = Splitter(split_model(model, Split(parts=parts), rng=rng))
    weights, apart = model.init(rng), splitter.clip_radii(1.0)
    x, y = rng.normal(size=(BATCH, *SHAPE)).astype(np.float32), np.arange(BATCH) % 10

    def work() -> None:
        parted_gradient_sum(splitter.splitting, weights, x, y, apart, rng=np.random.default_rng(1))

    return work


def client(parts: int) -> None:
    """What one client needs for one plain step on its part, in a separate process: bytes above the bare process."""
    import numpy as np
    import torch

    from sightline.config import Split
    from sightline.data import Kind, Shard
    from sightline.models import build_model, split_model
    from sightline.training import LocalWork, train_local

    torch.set_num_threads(1)
    model = build_model("resnet", input_shape=SHAPE, classes=10, kind=Kind.IMAGE, settings=MODEL)
    rng = np.random.default_rng(0)
    sub = split_model(model, Split(parts=parts), rng=rng).part_of_one(0, np.empty(0))[0]
    shard = Shard(rng.normal(size=(256, *SHAPE)).astype(np.float32), np.arange(256) % 10)
    start = sub.model.init(rng)
    before = resident()
    list(train_local(sub.model, start, [shard], LocalWork(learning_rate=0.1, steps=2), rngs=[rng]))
    print(json.dumps({"bytes": peak() - before, "parameters": sub.model.parameters}))


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    return _status("VmHWM")


def resident() -> int:
    """Return the current memory of this process in bytes."""
    return _status("VmRSS")


def _status(word: str) -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(row.split()[1] for row in rows if row.startswith(word)))


def memory(parts: int) -> dict[str, int]:
    """Return the memory of a client's step on one of `parts` submodels."""
    script = f"from benchmarks.split import client; client({parts})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    """Goal: with four parts at most half the time of the whole; memory and parameters beside it."""
    seconds = medians(interleaved({str(parts): step(parts) for parts in PARTS}, repeat=5, warm=1))
    held = {parts: memory(parts) for parts in PARTS}
    time = {parts: round(seconds[str(parts)] / seconds["1"], 3) for parts in PARTS}
    bytes_ = {parts: round(held[parts]["bytes"] / held[1]["bytes"], 3) for parts in PARTS}
    share = {parts: round(held[parts]["parameters"] / held[1]["parameters"], 3) for parts in PARTS}
    return line("split", time[4], 0.5, at_least=False, time=time, memory=bytes_, parameters=share)
