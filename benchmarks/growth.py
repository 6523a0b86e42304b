"""How the time of a round grows with clients, samples and parameters: a table and docs/images/growth.png."""

from typing import Any

import numpy as np
import torch

from benchmarks.measure import ROOT, interleaved, medians
from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, train_local

CLIENTS = (1, 3, 10, 30, 100, 300, 1000)
SAMPLES = (10, 30, 100, 300, 1000)
HIDDEN = (4, 16, 64, 256, 1024)


def round_of(clients: int, samples: int, hidden: int) -> Any:
    """A call that trains every client for one epoch with batches of 10."""
    rng = np.random.default_rng(0)
    shards = [
        Shard(rng.standard_normal((samples, 64)).astype(np.float32), rng.integers(0, 10, samples))
        for _ in range(clients)
    ]
    model = build_model("mlp", input_shape=(64,), classes=10, kind=Kind.VECTOR, settings={"hidden": [hidden]})
    start = model.init(rng)
    work = LocalWork(learning_rate=0.05, batch_size=10, epochs=1)

    def call() -> None:
        for _ in train_local(model, start, shards, work, rngs=[np.random.default_rng(n) for n in range(clients)]):
            pass

    return call, model.parameters


def run() -> dict[str, Any]:
    """Each axis alone, the other two at 30 clients, 100 samples, 64 hidden units."""
    torch.set_num_threads(1)
    axes: dict[str, list[tuple[int, float]]] = {"clients": [], "samples": [], "parameters": []}
    for axis, values in (("clients", CLIENTS), ("samples", SAMPLES), ("parameters", HIDDEN)):
        calls, xs = {}, {}
        for value in values:
            shape = {"clients": 30, "samples": 100, "hidden": 64} | {"hidden" if axis == "parameters" else axis: value}
            calls[str(value)], parameters = round_of(**shape)
            xs[str(value)] = parameters if axis == "parameters" else value
        found = medians(interleaved(calls, repeat=5, warm=1))
        axes[axis] = [(xs[name], seconds) for name, seconds in found.items()]
    draw(axes)
    return {"name": "growth", "ok": True, "seconds": {k: [(x, round(s, 5)) for x, s in v] for k, v in axes.items()}}


def draw(axes: dict[str, list[tuple[int, float]]]) -> None:
    """Three log-log panels with a line of slope one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    for panel, (axis, points) in zip(panels, axes.items(), strict=True):
        x, y = zip(*points, strict=True)
        panel.loglog(x, [1000 * s for s in y], "o-", color="#1f6fb4", label="measured")
        panel.loglog(x, [1000 * y[-1] * value / x[-1] for value in x], ":", color="#888888", label="proportional")
        panel.set_xlabel(axis)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("milliseconds a round")
    panels[0].legend(frameon=False)
    figure.suptitle(
        "One epoch of local training, MLP 64-h-10, batches of 10; others at 30 clients, 100 samples, h = 64"
    )
    figure.savefig(ROOT / "docs" / "images" / "growth.png", dpi=110)
