"""Numbers of a stream from the operating system (AES-256-CTR) / of one from a seed (Philox): a million of each kind."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import interleaved, line, medians
from sightline.mechanisms.integer_noise import rounded_gaussian
from sightline.randomness import OS_ROOT, Purpose, Streams
from sightline.training.dp_sgd_settings import draw_gaussian

SIZE = 1_000_000
SOURCES = {"os": Streams(OS_ROOT + bytes(32)), "seed": Streams.from_seed(0)}
WORK: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal": lambda rng: rng.standard_normal(SIZE),
    "dpsgd": lambda rng: draw_gaussian(SIZE, rng=rng),
    "integer": lambda rng: rounded_gaussian(2.0**24, SIZE, rng),
    "cohort": lambda rng: np.flatnonzero(rng.random(SIZE) < 0.01),
    "schedule": lambda rng: rng.integers(10, size=SIZE),
    "permutation": lambda rng: rng.permutation(SIZE),
}
STREAMS = 1_000


def draw(work: Callable[[np.random.Generator], Any], streams: Streams) -> None:
    """One kind of number, from a fresh stream."""
    work(streams.rng(Purpose.NOISE))


def make_streams(streams: Streams) -> None:
    """Many streams with one number each."""
    for number in range(STREAMS):
        streams.rng(Purpose.NOISE, participant=number).random()


def run() -> dict[str, Any]:
    """What `noise_source = "os"` costs where nothing but drawing is done; the goal is for vectors of noise."""
    torch.set_num_threads(1)
    work = {(kind, name): partial(draw, WORK[kind], streams) for kind in WORK for name, streams in SOURCES.items()}
    work |= {("streams", name): partial(make_streams, streams) for name, streams in SOURCES.items()}
    named = {f"{kind} {name}": call for (kind, name), call in work.items()}
    seconds = medians(interleaved(named, repeat=7))
    kinds = [*WORK, "streams"]
    milliseconds = {
        f"{kind}_ms": [round(1000 * seconds[f"{kind} {name}"], 1) for name in SOURCES] for kind in kinds
    }  # os, seed
    ratio = max(seconds[f"{kind} os"] / seconds[f"{kind} seed"] for kind in ("normal", "dpsgd", "integer"))
    return line("crypto_noise", ratio, 3, at_least=False, **milliseconds)
