"""Generated clients of known heterogeneity: Syn(alpha, beta) and Syn(iid) of Li et al. 2020."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data.federation import Kind
from sightline.data.source import Partition, Request, Source, Table
from sightline.errors import invalid
from sightline.randomness import Purpose, Streams

MOST_VALUES = 2**29
"""Most input values that are generated (2 GiB of float32)."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What makes one client's examples: y = argmax(W x + b), x ~ N(center, Sigma)."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    center: NDArray[np.float64]


def read_synthetic(request: Request) -> Table:
    """All clients' examples; the owner of an example is its client."""
    settings, streams = request.settings, request.streams
    rngs = _client_rngs(settings, streams)
    sizes = [client_size(settings, rng) for rng in rngs]
    _check_total(settings, sum(sizes))
    shared = draw_shared_truth(settings, streams.rng(Purpose.SYNTHETIC)) if settings.iid else None
    x = np.empty((sum(sizes), settings.features), dtype=np.float32)
    y = np.empty(sum(sizes), dtype=np.int64)
    start = 0
    for size, rng in zip(sizes, rngs, strict=True):
        stop = start + size
        x[start:stop], y[start:stop] = draw_examples(shared or draw_truth(settings, rng), size, rng)
        start = stop
    if not np.isfinite(x).all():
        invalid("data.beta", settings.beta, "the inputs do not fit float32", "use a smaller beta, e.g. 1.0")
    owner = np.repeat(np.arange(settings.clients), sizes)
    name = "Syn(iid)" if settings.iid else f"Syn({settings.alpha:g}, {settings.beta:g})"
    note = f"synthetic: {name} after Li et al. 2020, {settings.features} features, alpha and beta are variances"
    return Table(x=x, y=y, classes=settings.classes, kind=Kind.VECTOR, owner=owner, notes=(note,))


def client_size(settings: Data, rng: np.random.Generator) -> int:
    """size_min + floor(LogNormal(size_mean, size_sigma))."""
    extra = rng.lognormal(settings.size_mean, settings.size_sigma)
    if not extra * settings.features < MOST_VALUES:
        law = f"a client would have {extra:.3g} examples"
        invalid("data.size_sigma", settings.size_sigma, law, "use the usual size_mean = 4, size_sigma = 2, or less")
    return settings.size_min + int(extra)


def draw_truth(settings: Data, rng: np.random.Generator) -> Truth:
    r"""One client's own truth.

    u ~ N(0, alpha); every entry of W and b ~ N(u, 1); B ~ N(0, beta); every entry of the centre ~ N(B, 1).
    The second argument of N is the variance. Reference: Li et al. 2020 (FedProx), section 5.1.
    """
    u = np.sqrt(settings.alpha) * rng.standard_normal()
    weight = u + rng.standard_normal((settings.classes, settings.features))
    bias = u + rng.standard_normal(settings.classes)
    center = np.sqrt(settings.beta) * rng.standard_normal() + rng.standard_normal(settings.features)
    return Truth(weight, bias, center)


def draw_shared_truth(settings: Data, rng: np.random.Generator) -> Truth:
    """The one truth of Syn(iid): W and b ~ N(0, 1), centre 0, the same for every client."""
    weight = rng.standard_normal((settings.classes, settings.features))
    return Truth(weight, rng.standard_normal(settings.classes), np.zeros(settings.features))


def draw_examples(
    truth: Truth, examples: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """x ~ N(centre, Sigma) with Sigma diagonal, Sigma_jj = j^-1.2; y = argmax(softmax(W x + b)) = argmax(W x + b)."""
    std = np.arange(1, len(truth.center) + 1) ** -0.6
    x = truth.center + std * rng.standard_normal((examples, len(std)))
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32), np.argmax(x @ truth.weight.T + truth.bias, axis=1)


def _client_rngs(settings: Data, streams: Streams) -> list[np.random.Generator]:
    _check_total(settings, settings.clients * settings.size_min)
    return [streams.rng(Purpose.SYNTHETIC, participant=client) for client in range(settings.clients)]


def _check_total(settings: Data, examples: int) -> None:
    if examples * settings.features > MOST_VALUES:
        law = f"{examples:,} examples of {settings.features} features are more than fit in memory here"
        invalid("data.clients", settings.clients, law, "use fewer clients, features, size_min or a smaller size_sigma")


SYNTHETIC = Source(
    name="synthetic",
    kind=Kind.VECTOR,
    examples="as many as asked for",
    read=read_synthetic,
    partitions=(Partition.NATURAL,),
    how_to_get="generated",
    licence="none needed",
)
