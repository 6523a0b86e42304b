"""What batch sizes do: separation, distance of the centres, noise (figures 8 and 14)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.clustered.first_round import CLUSTERS, judged
from experiments.clustered.noise import noise_of
from sightline.algorithms.clustered.mixture import KINDS, fit_mixture
from sightline.randomness import Purpose, Streams
from sightline.training.dp_sgd_settings import DPSGDSettings

LEARNING_RATE, CLIP_NORM, EPSILON = 0.005, 1.0, 3
FIRST_BATCHES = (32, 128, 512, 2000)
LATER_BATCHES = (8, 16, 32, 64, 128)
RATIO_BATCHES = (16, 64, 256, 1024)
RATIO_SAMPLES = 50_000


@dataclass(frozen=True)
class Batches:
    """Round one of MNIST with rotation, 2,000 examples a client."""

    first: int
    later: int
    seed: int
    part: str = "batches"

    @property
    def key(self) -> str:
        return f"batches/{self.first}/{self.later}/{self.seed}"


@dataclass(frozen=True)
class Ratio:
    """Noise with a full first batch over noise with equal batches, N = 50,000 (figure 14, right)."""

    epsilon: float
    part: str = "ratio"

    @property
    def key(self) -> str:
        return f"ratio/{self.epsilon}"


def jobs() -> Iterator[Batches]:
    yield from (Batches(first, 32, 0) for first in FIRST_BATCHES)
    yield from (Batches(2000, later, 0) for later in LATER_BATCHES if later != 32)


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


def run_batches(job: Batches) -> dict[str, Any]:
    """The mixture over updates trained with this batch, and the distance of noiseless centres."""
    begun = time.process_time()
    z = noise_of(EPSILON, 2000, first_batch=job.first, later_batch=job.later)
    updates, truth = trained(job, z * CLIP_NORM, range(sum(CLUSTERS)))
    one_each = [truth.index(cluster) for cluster in range(len(CLUSTERS))]
    clean, _ = trained(job, 0.0, one_each)
    distances = [float(np.linalg.norm(clean[a] - clean[b])) for a, b in combinations(range(len(CLUSTERS)), 2)]
    plane, known = (fit_mixture(KINDS[k](updates)(4), 4, seed=job.seed) for k in ("principal", "spanning"))
    facts = {"key": job.key, "part": job.part, "first": job.first, "later": job.later, "seed": job.seed}
    measured = {"noise_multiplier": z, "distances": distances, "cpu_seconds": time.process_time() - begun}
    return facts | measured | judged(known, truth) | {"plane": judged(plane, truth)}


def trained(job: Batches, std: float, clients: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
    """(updates of one epoch of DP-SGD, true clusters of all clients)."""
    import torch

    from sightline import models
    from sightline.config import Data
    from sightline.data import load_federation
    from sightline.training import LocalWork, dp_sgd

    torch.set_num_threads(1)
    streams = Streams.from_seed(job.seed)
    data = Data(
        source="mnist", clients=21, partition="rotation", clusters=CLUSTERS, reuse=True, train_samples=15_000,
        test_samples=100,
    )  # fmt: skip
    federation = load_federation(data, streams=streams)
    model = models.build_model("cnn", input_shape=federation.input_shape, classes=10, kind=federation.kind, settings={})
    start, shards = model.init(streams.rng(Purpose.INIT)), [federation.clients[n].train for n in clients]
    samples, many = len(shards[0]), len(shards)
    batch = min(job.first, samples)
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
            noise_rngs=[streams.rng(Purpose.NOISE, participant=n) for n in clients],
        ),
    ):
        updates[index] = (ends - start).numpy()
    return updates, [int(client.cluster or 0) for client in federation.clients]
