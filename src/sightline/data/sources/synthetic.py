"""Synthetic clients of known heterogeneity: Syn(alpha, beta) and Syn(iid) of Li et al. 2020, for every task.

Labels follow the paper. A regression predicts the first score W x + b with noise, a multi-label task which scores are
positive, and a language model the next state of a Markov chain with rows from W.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data.federation import Kind, Partition, Request, Source, Table, Targets
from sightline.data.targets import as_task
from sightline.errors import invalid
from sightline.randomness import Purpose, Streams

MOST_VALUES = 2**29
"""Most input values that are generated (2 GiB of float32)."""
SPREAD = 0.1
"""Standard deviation of the noise on regression targets."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Parameters of one client's examples: y = argmax(W x + b), x ~ N(center, Sigma)."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    center: NDArray[np.float64]


def read_synthetic(request: Request) -> Table:
    """Return all clients' examples; the owner of an example is its client."""
    settings, streams = request.settings, request.streams
    rngs = _client_rngs(settings, streams)
    # From each client's stream: first its size, then its parameters, then its examples. The order fixes the data of a
    # seed.
    sizes = [client_size(settings, rng) for rng in rngs]
    _check_total(settings, sum(sizes))
    shared = draw_shared_truth(settings, streams.rng(Purpose.SYNTHETIC)) if settings.iid else None
    if request.task == "language":
        return _read_chains(settings, rngs, sizes, shared)
    x = np.empty((sum(sizes), settings.length), dtype=np.float32)
    labels = (settings.classes,) if request.task == "multilabel" else ()
    whole = request.task not in ("multilabel", "regression")
    y = np.empty((sum(sizes), *labels), dtype=np.int64 if whole else np.float32)
    start = 0
    for size, rng in zip(sizes, rngs, strict=True):
        stop = start + size
        truth = shared or draw_truth(settings, rng)
        x[start:stop], y[start:stop] = draw_examples(truth, size, rng, request.task)
        start = stop
    if not np.isfinite(x).all():
        invalid("data.beta", settings.beta, "the inputs overflow float32", "use a smaller beta, e.g. 1.0")
    owner = np.repeat(np.arange(settings.clients), sizes)
    note = f"synthetic: {_name_of(settings)}, {settings.length} features, alpha and beta are variances"
    return Table(x=x, y=y, classes=settings.classes, kind=Kind.VECTOR, owner=owner, notes=(note,))


def client_size(settings: Data, rng: np.random.Generator) -> int:
    """Return size_min + floor(LogNormal(size_mean, size_sigma))."""
    extra = rng.lognormal(settings.size_mean, settings.size_sigma)
    # The log-normal has a heavy tail: one draw can ask for more memory than there is.
    if not extra * settings.length < MOST_VALUES:
        reason = f"a client would have {extra:.3g} examples"
        invalid("data.size_sigma", settings.size_sigma, reason, "use the usual size_mean = 4, size_sigma = 2, or less")
    return settings.size_min + int(extra)


def draw_truth(settings: Data, rng: np.random.Generator) -> Truth:
    r"""Draw one client's own parameters.

    u ~ N(0, alpha); every entry of W and b ~ N(u, 1); B ~ N(0, beta); every entry of the centre ~ N(B, 1). The second
    argument of N is the variance. Reference: Li et al. 2020 (FedProx), section 5.1.
    """
    # Alpha and beta are variances, as the paper's formula has them. Its published code passes them as standard
    # deviations: use alpha = beta = 0.25 for the Syn(0.5, 0.5) of that code.
    u = np.sqrt(settings.alpha) * rng.standard_normal()
    weight = u + rng.standard_normal((settings.classes, settings.length))
    bias = u + rng.standard_normal(settings.classes)
    center = np.sqrt(settings.beta) * rng.standard_normal() + rng.standard_normal(settings.length)
    return Truth(weight, bias, center)


def draw_shared_truth(settings: Data, rng: np.random.Generator) -> Truth:
    """Draw the shared parameters of Syn(iid): W and b ~ N(0, 1), centre 0, the same for every client."""
    weight = rng.standard_normal((settings.classes, settings.length))
    return Truth(weight, rng.standard_normal(settings.classes), np.zeros(settings.length))


def draw_examples(
    truth: Truth, examples: int, rng: np.random.Generator, task: str = "classification"
) -> tuple[NDArray[np.float32], Targets]:
    """Draw x ~ N(centre, Sigma), Sigma_jj = j^-1.2 on the diagonal, and y = argmax(softmax(W x + b))."""
    std = np.arange(1, len(truth.center) + 1) ** -0.6
    x = truth.center + std * rng.standard_normal((examples, len(std)))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = x @ truth.weight.T + truth.bias
        if task == "multilabel":
            return x.astype(np.float32), (scores > 0).astype(np.float32)
        if task == "regression":
            noisy = scores[:, 0] / np.sqrt(len(std)) + SPREAD * rng.standard_normal(examples)
            return x.astype(np.float32), noisy.astype(np.float32)
        return x.astype(np.float32), np.argmax(scores, axis=1)


def _read_chains(settings: Data, rngs: list[np.random.Generator], sizes: list[int], shared: Truth | None) -> Table:
    """Return sequences of `features` + 1 tokens below `classes`, drawn from each client's own Markov chain."""
    if settings.length < settings.classes:
        reason = f"a chain of {settings.classes} tokens needs at least as many features"
        invalid("data.features", settings.length, reason, "use data.features >= data.classes")
    owner = np.repeat(np.arange(settings.clients), sizes)
    truths = [shared or draw_truth(settings, rng) for rng in rngs]
    parts = [draw_chains(truth, size, rng) for truth, size, rng in zip(truths, sizes, rngs, strict=True)]
    note = f"synthetic: {_name_of(settings)}, Markov chains of {settings.length} steps over {settings.classes} tokens"
    x, labels = np.concatenate(parts), np.zeros(sum(sizes), np.int64)
    table = Table(x, labels, settings.classes, Kind.TEXT, owner=owner, vocabulary=settings.classes, notes=(note,))
    return as_task(table, settings, "language", padding=None)


def draw_chains(truth: Truth, examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return (examples, features + 1) states of the chain P(j -> k) ~ exp(2 W_kj), from a uniform first state."""
    classes, steps = truth.weight.shape
    # Subtracting the row maximum avoids overflow of exp.
    odds = np.exp(2 * (truth.weight[:, :classes].T - truth.weight[:, :classes].T.max(axis=1, keepdims=True)))
    below = np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1)
    states = np.empty((examples, steps + 1), np.int64)
    states[:, 0] = rng.integers(classes, size=examples)
    for step in range(steps):
        drawn = rng.random((examples, 1)) < below[states[:, step]]
        states[:, step + 1] = np.where(drawn.any(axis=1), drawn.argmax(axis=1), classes - 1)
    return states


def _name_of(settings: Data) -> str:
    return f"Syn({'iid' if settings.iid else f'{settings.alpha:g}, {settings.beta:g}'}) after Li et al. 2020"


def _client_rngs(settings: Data, streams: Streams) -> list[np.random.Generator]:
    _check_total(settings, settings.clients * settings.size_min)
    # One stream per client: client 3 is the same in a federation of 10 and of 1,000.
    return [streams.rng(Purpose.SYNTHETIC, participant=client) for client in range(settings.clients)]


def _check_total(settings: Data, examples: int) -> None:
    if examples * settings.length > MOST_VALUES:
        reason = f"{examples:,} examples of {settings.length} features do not fit in memory"
        invalid(
            "data.clients", settings.clients, reason, "use fewer clients, features, size_min or a smaller size_sigma"
        )


SYNTHETIC = Source(
    name="synthetic",
    kind=Kind.VECTOR,
    examples="as many as asked for",
    read=read_synthetic,
    partitions=(Partition.NATURAL,),
    how_to_get="generated",
    licence="none needed",
)
