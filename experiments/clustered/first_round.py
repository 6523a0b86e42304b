"""Round one of R-DPCFL at full size: the clipped sums once, then noise for every epsilon (figures 10 and 13)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.clustered.noise import EPSILONS, noise_of
from sightline.algorithms.mixture import Mixture, fit
from sightline.algorithms.mixture_count import confidences, surest
from sightline.algorithms.mixture_points import prepared
from sightline.algorithms.mixture_truth import same_clusters
from sightline.randomness import Purpose, Streams

CLUSTERS = (3, 6, 6, 6)
CLIP_NORMS = {"mnist": 1.0, "fashion_mnist": 3.0, "cifar10": 5.0}
LOUDER = (3, 10, 20, 30, 50, 70, 100, 200, 400)
"""By how much the noise of epsilon = 3 is multiplied to see the clusters go under (figure 13)."""


@dataclass(frozen=True)
class FirstRound:
    """One data set, one kind of shift, one seed."""

    source: str
    partition: str
    seed: int
    part: str = "first"

    @property
    def key(self) -> str:
        return f"first/{self.source}/{self.partition}/{self.seed}"

    @property
    def clip_norm(self) -> float:
        return 3.0 if (self.source, self.partition) == ("cifar10", "label_shift") else CLIP_NORMS[self.source]


def jobs() -> Iterator[FirstRound]:
    for source in ("mnist", "fashion_mnist"):
        yield from (FirstRound(source, "rotation", seed) for seed in range(5))
        yield FirstRound(source, "label_shift", 0)


def cifar() -> Iterator[FirstRound]:
    yield from (FirstRound("cifar10", "rotation", seed) for seed in range(2))
    yield FirstRound("cifar10", "label_shift", 0)


def clipped_sums(job: FirstRound) -> tuple[NDArray[np.float32], list[int], int]:
    """(one clipped gradient sum per client, true clusters, examples a client) at a fresh model."""
    import torch

    from sightline import models
    from sightline.config import Data
    from sightline.data import load
    from sightline.training import clipped_gradient_sum

    torch.set_num_threads(1)
    streams = Streams.from_seed(job.seed)
    data = Data(source=job.source, clients=21, partition=job.partition, clusters=CLUSTERS, reuse=True)  # type: ignore[arg-type]
    federation = load(data, streams=streams)
    model = models.build("cnn", input_shape=federation.input_shape, classes=10, kind=federation.kind, settings={})
    start = model.init(streams.rng(Purpose.INIT))
    sums = [
        clipped_gradient_sum(model, start, c.train.x, c.train.y, clip_norm=job.clip_norm) for c in federation.clients
    ]
    truth = [int(client.cluster or 0) for client in federation.clients]
    return np.stack([total.numpy() for total in sums]), truth, int(federation.sizes[0])


def noised(sums: NDArray[np.float32], std: float, *, seed: int, use: int) -> NDArray[np.float32]:
    """What the clients send, up to the step size and the public N that all have in common."""
    from sightline.training.noise import gaussian

    streams = Streams.from_seed(seed)
    noise = [
        gaussian(sums.shape[1], rng=streams.rng(Purpose.NOISE, participant=n, use=use)).numpy()
        for n in range(len(sums))
    ]
    noisy: NDArray[np.float32] = sums + np.float32(std) * np.stack(noise)
    return noisy


def run_first(job: FirstRound) -> dict[str, Any]:
    """The fits of all epsilons, and of louder noises with the number of clusters known."""
    begun = time.process_time()
    sums, truth, samples = clipped_sums(job)
    cells, louder, points = [], [], None
    for use, epsilon in enumerate(EPSILONS):
        z = noise_of(epsilon, samples)
        updates = prepared(noised(sums, z * job.clip_norm, seed=job.seed, use=use))
        auto, known = surest(updates, seed=job.seed), fit(updates, 4, seed=job.seed)
        cells.append({"epsilon": epsilon, "noise_multiplier": z, "curve": confidences(updates, seed=job.seed)})
        cells[-1] |= {
            "count": auto.count,
            "right": same_clusters(auto.assigned.tolist(), truth),
            **judged(known, truth),
        }
        points = picture(known) if points is None else points
    z = noise_of(EPSILONS[0], samples)
    for use, factor in enumerate(LOUDER, start=len(EPSILONS)):
        updates = prepared(noised(sums, factor * z * job.clip_norm, seed=job.seed, use=use))
        louder.append({"factor": factor} | judged(fit(updates, 4, seed=job.seed), truth))
    facts = {"key": job.key, "part": job.part, "source": job.source, "partition": job.partition, "seed": job.seed}
    size = {"samples": samples, "parameters": sums.shape[1], "cpu_seconds": time.process_time() - begun}
    return facts | size | {"cells": cells, "louder": louder, "points": points}


def judged(known: Mixture, truth: list[int]) -> dict[str, Any]:
    """Confidence with the true number of clusters, and whether they are the true clusters."""
    return {"mss": known.mss, "known_right": same_clusters(known.assigned.tolist(), truth)}


def picture(known: Mixture) -> dict[str, Any]:
    """What a scatter plot needs."""
    return {
        "points": known.points.round(4).tolist(),
        "centres": known.centres.round(4).tolist(),
        "radii": known.radii.round(4).tolist(),
    }
