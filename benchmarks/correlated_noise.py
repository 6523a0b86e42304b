"""The noise of a round that is correlated with that of others / independent noise: 1.6 million numbers."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch

from benchmarks.measure import interleaved, line, medians
from sightline.accounting.strategies import Strategy, make_buffers, make_strategy
from sightline.mechanisms import NoiseStreams
from sightline.mechanisms.contract import NoiseRow
from sightline.randomness import Purpose, Streams

SIZE, STEPS, BANDS = 1_600_000, 100, 10
STREAMS = Streams.from_seed(0)


def independent(rounds: "count[int]") -> None:
    """One round of independent noise, scaled."""
    noise = STREAMS.rng(Purpose.NOISE, round=next(rounds)).standard_normal(SIZE)
    noise *= 0.5


def next_row(streams: NoiseStreams, strategy: Strategy, steps: "count[int]") -> None:
    """The next row of a stream, scaled."""
    step = next(steps)
    row = NoiseRow("server, noise stream 1", "server, noise stream 1", step, step + 1, step)
    streams.draw_noise(row, strategy, SIZE, ()) * 0.5


def run() -> dict[str, Any]:
    """Ten bands, and two buffers, in the middle of a stream; memory is nine rows, and two."""
    torch.set_num_threads(1)
    work: dict[str, Callable[[], None]] = {"independent": partial(independent, count())}
    strategies = {
        "bands": make_strategy("bsr", steps=STEPS, separation=BANDS, uses=STEPS // BANDS),
        "buffers": make_buffers((0.25, 0.25), (0.95, 0.6), steps=STEPS),
    }
    for name, strategy in strategies.items():
        work[name] = partial(next_row, NoiseStreams(STREAMS), strategy, count())
        for _ in range(BANDS):
            work[name]()
    seconds = medians(interleaved(work, repeat=9))
    found = {f"{name}_ms": round(1000 * seconds[name], 1) for name in work}
    ratio = max(seconds[name] for name in strategies) / seconds["independent"]
    return line("correlated_noise", ratio, 3, at_least=False, **found)
