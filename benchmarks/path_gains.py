"""Compare the exact paths of convolutional clients: `python -m benchmarks.path_gains`, processor milliseconds."""

import time
from dataclasses import replace
from functools import partial

import torch

from benchmarks.measure import in_a_row, interleaved, medians
from sightline.data import Kind
from sightline.models import build_model
from sightline.training.local_work import BY_RULE, LocalWork
from sightline.training.measure_paths import MeasuredWork, available_paths

MODELS = {"cnn_small": (1, 28, 28), "cnn": (1, 28, 28), "cnn_mcmahan": (1, 28, 28), "cnn_3x3": (3, 32, 32)}
BATCHES = (8, 32, 128)


def compare_batch(name: str, batch: int, field: str) -> dict[str, float]:
    """Return the median milliseconds of two steps of every client, for each path that exists."""
    model = build_model(name, input_shape=MODELS[name], classes=10, kind=Kind.IMAGE, settings={})
    private, work = field == "record", LocalWork(0.1, batch_size=batch)
    measured = MeasuredWork(model, work, batch, private, clients=4)
    paths = available_paths(model, work, private=private, width=batch)[field]
    ways = {
        path: in_a_row(partial(measured.run, replace(BY_RULE, **{field: path})), clock=time.process_time)
        for path in paths
    }
    found = medians(interleaved(ways, repeat=9, warm=1))
    return {path: round(1000 * seconds, 1) for path, seconds in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for field in ("plain", "record"):
        for name in MODELS:
            for batch in BATCHES:
                print(field, name, batch, compare_batch(name, batch, field), flush=True)
