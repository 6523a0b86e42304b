"""Round one of R-DPCFL at full size: the clipped sums once, then noise for every epsilon (figures 10 and 13)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.clustered.noise import EPSILONS, noise_of
from sightline.algorithms.clustered.mixture import (
    KINDS,
    Mixture,
    PointsOf,
    cluster_purity,
    confidence_by_count,
    fit_mixture,
    surest_mixture,
)
from sightline.randomness import Purpose, Streams

CLUSTERS = (3, 6, 6, 6)
CLIP_NORMS = {"mnist": 1.0, "fashion_mnist": 3.0, "cifar10": 5.0}
SUMS = Path(__file__).parent / "sums"
"""Where clipped sums are cached, so that only the fits are repeated; not under version control."""
POINTS = ("principal", "spanning")
SEEDS = range(10)
LOUDER = (3, 10, 20, 30, 50, 70, 100, 200, 400)
"""Multiples of the noise of epsilon = 3, up to where the clusters disappear (figure 13)."""


def same_clusters(assigned: Sequence[int], truth: Sequence[int]) -> bool:
    """Return whether both put the same clients together, under any names of the clusters."""
    return cluster_purity(assigned, truth) == cluster_purity(truth, assigned) == 1.0


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
    """Order the jobs by seed, so that an interrupted part is balanced."""
    for seed in SEEDS:
        yield from (FirstRound(source, "rotation", seed) for source in ("mnist", "fashion_mnist"))


def cifar() -> Iterator[FirstRound]:
    yield FirstRound("cifar10", "rotation", 0)
    yield FirstRound("cifar10", "label_shift", 0)


def kept_sums(job: FirstRound) -> tuple[NDArray[np.float32], list[int], int, float]:
    """`clipped_sums`, from the file that an earlier run left, and the processor seconds that they took."""
    path = SUMS / f"{job.key.replace('/', '-')}.npz"
    if not path.exists():
        begun = time.process_time()
        sums, truth, samples = clipped_sums(job)
        SUMS.mkdir(exist_ok=True)
        np.savez(path, sums=sums, truth=truth, samples=samples, seconds=time.process_time() - begun)
    with np.load(path) as file:
        return file["sums"], file["truth"].tolist(), int(file["samples"]), float(file["seconds"])


def clipped_sums(job: FirstRound) -> tuple[NDArray[np.float32], list[int], int]:
    """(one clipped gradient sum per client, true clusters, examples a client) at a fresh model."""
    import torch

    from sightline import models
    from sightline.config import Data
    from sightline.data import load_federation
    from sightline.training import clipped_gradient_sum

    torch.set_num_threads(1)
    streams = Streams.from_seed(job.seed)
    data = Data(source=job.source, clients=21, partition=job.partition, clusters=CLUSTERS, reuse=True)  # type: ignore[arg-type]
    federation = load_federation(data, streams=streams)
    model = models.build_model("cnn", input_shape=federation.input_shape, classes=10, kind=federation.kind, settings={})
    start = model.init(streams.rng(Purpose.INIT))
    sums = [
        clipped_gradient_sum(model, start, c.train.x, c.train.y, clip_norm=job.clip_norm) for c in federation.clients
    ]
    truth = [int(client.cluster or 0) for client in federation.clients]
    return np.stack([total.numpy() for total in sums]), truth, int(federation.sizes[0])


def noised(sums: NDArray[np.float32], std: float, *, seed: int, use: int) -> NDArray[np.float32]:
    """What the clients send, up to the step size and the public N that all have in common."""
    from sightline.training.dp_sgd_settings import draw_gaussian

    streams = Streams.from_seed(seed)
    noise = [
        draw_gaussian(sums.shape[1], rng=streams.rng(Purpose.NOISE, participant=n, use=use)).numpy()
        for n in range(len(sums))
    ]
    noisy: NDArray[np.float32] = sums + np.float32(std) * np.stack(noise)
    return noisy


def run_first(job: FirstRound) -> dict[str, Any]:
    """The fits of all epsilons, and of louder noises with the number of clusters known."""
    sums, truth, samples, seconds = kept_sums(job)
    begun = time.process_time()
    quiet = [(epsilon, noise_of(epsilon, samples)) for epsilon in EPSILONS]
    loudest = quiet[0][1]
    cells, louder = [], []
    for use, (epsilon, z) in enumerate(quiet):
        updates = noised(sums, z * job.clip_norm, seed=job.seed, use=use)
        for points in POINTS:
            facts = {"epsilon": epsilon, "noise_multiplier": z, "points": points}
            cells.append(facts | fitted(KINDS[points](updates), truth, job.seed))
    for use, factor in enumerate(LOUDER, start=len(EPSILONS)):
        updates = noised(sums, factor * loudest * job.clip_norm, seed=job.seed, use=use)
        for points in POINTS:
            known = fit_mixture(KINDS[points](updates)(4), 4, seed=job.seed)
            louder.append({"factor": factor, "points": points} | judged(known, truth))
    plane = fit_mixture(
        KINDS["principal"](noised(sums, loudest * job.clip_norm, seed=job.seed, use=0))(4), 4, seed=job.seed
    )
    facts = {"key": job.key, "part": job.part, "source": job.source, "partition": job.partition, "seed": job.seed}
    size = {"samples": samples, "parameters": sums.shape[1], "cpu_seconds": seconds + time.process_time() - begun}
    return facts | size | {"cells": cells, "louder": louder, "points": picture(plane)}


def fitted(points_of: PointsOf, truth: list[int], seed: int) -> dict[str, Any]:
    """With the number of clusters unknown, and known."""
    auto = surest_mixture(points_of, clients=len(truth), seed=seed)
    curve = confidence_by_count(points_of, clients=len(truth), seed=seed)
    found = {"curve": curve, "count": auto.count, "right": same_clusters(auto.assigned.tolist(), truth)}
    return found | judged(fit_mixture(points_of(4), 4, seed=seed), truth)


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
