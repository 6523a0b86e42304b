"""What batch sizes do: separation of the true clusters, distance of the centres, noise (figures 8 and 14)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.clustered.first_round import CLUSTERS, judged, noised
from papers.clustered.noise import noise_of
from sightline.algorithms.clustered.mixture import KINDS, Mixture, fit_mixture
from sightline.randomness import Purpose, Streams
from sightline.training.dp_sgd_settings import DPSGDSettings

LEARNING_RATE, CLIP_NORM, EPSILON = 0.005, 1.0, 3
SAMPLES = 1000
"""Examples a client."""
FIRST_BATCHES = (32, 128, 512, SAMPLES)
LATER_BATCHES = (8, 16, 32, 64, 128)
FEW, DRAWS = range(3), range(10)
"""Noise draws for a first round of many steps, which is trained again for each draw, and for one of a single step."""
RATIO_BATCHES = (16, 64, 256, 1024)
RATIO_SAMPLES = 50_000


@dataclass(frozen=True)
class Batches:
    """Round one of MNIST with rotation, with one draw of the noise; later batches of 32."""

    first: int
    draw: int
    part: str = "batches"

    @property
    def key(self) -> str:
        return f"batches/{self.first}/{self.draw}"


@dataclass(frozen=True)
class Later:
    """The same with a full first batch, for every later batch and draw: one sum of clipped gradients serves them."""

    part: str = "later"
    key: str = "later"


@dataclass(frozen=True)
class Ratio:
    """Noise with a full first batch over noise with equal batches, N = 50,000 (figure 14, right)."""

    epsilon: float
    part: str = "ratio"

    @property
    def key(self) -> str:
        return f"ratio/{self.epsilon}"


def jobs() -> Iterator[Batches | Later]:
    yield Later()
    yield from (Batches(first, draw) for draw in FEW for first in FIRST_BATCHES[:-1])


def ratios() -> Iterator[Ratio]:
    yield from (Ratio(epsilon) for epsilon in (3, 10))


def run_ratio(job: Ratio) -> dict[str, Any]:
    """z(full first batch) / z(first batch = later batch), DP-SGD alone."""
    begun, found = time.process_time(), {}
    for batch in RATIO_BATCHES:
        how = {"later_batch": batch, "selecting": False}
        full, equal = (noise_of(job.epsilon, RATIO_SAMPLES, first_batch=b, **how) for b in (RATIO_SAMPLES, batch))  # type: ignore[arg-type]
        found[batch] = full / equal
    seconds = time.process_time() - begun
    return {"key": job.key, "part": job.part, "epsilon": job.epsilon, "ratios": found, "cpu_seconds": seconds}


def true_separation(points: NDArray[np.float64], truth: Sequence[int]) -> float:
    """The least SS of any pair of true clusters: half the distance of the means over the larger radius.

    >>> true_separation(np.array([[0.0, -1], [0, 1], [8, -1], [8, 1]]), [0, 0, 1, 1])
    5.656854249492381
    """
    own = [points[np.array(truth) == cluster] for cluster in range(max(truth) + 1)]
    centres = np.stack([some.mean(0) for some in own])
    radii = np.array([np.sqrt(some.var(0).mean()) for some in own])
    return Mixture(points, centres, radii, np.eye(len(own))[list(truth)]).mss


def measure_updates(updates: NDArray[np.float32], truth: list[int], seed: int) -> dict[str, Any]:
    """How far the true clusters are apart in both kinds of points, and what a blind fit finds there."""
    found: dict[str, Any] = {}
    for kind in ("principal", "spanning"):
        points = KINDS[kind](updates)(len(CLUSTERS))
        fit = judged(fit_mixture(points, len(CLUSTERS), seed=seed), truth)
        found[kind] = {"true": true_separation(points, truth)} | fit
    return found


def run_later(job: Later) -> dict[str, Any]:
    """A full first batch: the clipped sums once, noise for every later batch and draw."""
    begun = time.process_time()
    clean, truth = trained(SAMPLES, 0.0, range(sum(CLUSTERS)), 0)
    cells = []
    for later in LATER_BATCHES:
        z = noise_of(EPSILON, SAMPLES, first_batch=SAMPLES, later_batch=later)
        std = LEARNING_RATE * z * CLIP_NORM / SAMPLES
        for draw in DRAWS:
            measured = measure_updates(noised(clean, std, seed=0, use=draw), truth, draw)
            cells.append({"later": later, "draw": draw, "noise_multiplier": z} | measured)
    centres = {truth[n]: clean[n] for n in range(len(truth))}
    facts = {"key": job.key, "part": job.part, "first": SAMPLES, "distances": distances(list(centres.values()))}
    return facts | {"cells": cells, "cpu_seconds": time.process_time() - begun}


def run_batches(job: Batches) -> dict[str, Any]:
    """Updates trained with this first batch and draw; with the first draw also the distance of noiseless centres."""
    begun = time.process_time()
    z = noise_of(EPSILON, SAMPLES, first_batch=job.first, later_batch=32)
    updates, truth = trained(job.first, z * CLIP_NORM, range(sum(CLUSTERS)), job.draw)
    one_each = [truth.index(cluster) for cluster in range(len(CLUSTERS))]
    clean = list(trained(job.first, 0.0, one_each, 0)[0]) if job.draw == 0 else []
    facts = {"key": job.key, "part": job.part, "first": job.first, "draw": job.draw, "noise_multiplier": z}
    measured = measure_updates(updates, truth, job.draw)
    return facts | measured | {"distances": distances(clean), "cpu_seconds": time.process_time() - begun}


def distances(centres: Sequence[NDArray[np.float32]]) -> list[float]:
    """Of all pairs."""
    return [float(np.linalg.norm(a - b)) for a, b in combinations(centres, 2)]


def trained(first: int, std: float, clients: Sequence[int], draw: int) -> tuple[NDArray[np.float32], list[int]]:
    """(updates of one epoch of DP-SGD with this batch, true clusters of all clients)."""
    import torch

    from sightline import models
    from sightline.config import Data
    from sightline.data import load_federation
    from sightline.training import LocalWork, dp_sgd

    torch.set_num_threads(1)
    streams = Streams.from_seed(0)
    data = Data(
        source="mnist", clients=21, partition="rotation", clusters=CLUSTERS, reuse=True, test_samples=100,
        train_samples=7500,
    )  # fmt: skip
    federation = load_federation(data, streams=streams)
    model = models.build_model("cnn", input_shape=federation.input_shape, classes=10, kind=federation.kind, settings={})
    start, shards = model.init(streams.rng(Purpose.INIT)), [federation.clients[n].train for n in clients]
    samples, many = len(shards[0]), len(shards)
    batch = min(first, samples)
    updates = np.empty((many, model.parameters), np.float32)
    for index, ends in dp_sgd(
        model,
        start,
        shards,
        LocalWork(LEARNING_RATE),
        DPSGDSettings(
            clip_norm=CLIP_NORM,
            noise_std=[std] * many,
            sample_rates=[batch / samples] * many,
            steps=[-(-samples // batch)] * many,
            divisors=[float(batch)] * many,
            sampling_rngs=[streams.rng(Purpose.BATCHES, participant=n) for n in clients],
            noise_rngs=[streams.rng(Purpose.NOISE, participant=n, use=draw) for n in clients],
        ),
    ):
        updates[index] = (ends - start).numpy()
    return updates, [int(client.cluster or 0) for client in federation.clients]
