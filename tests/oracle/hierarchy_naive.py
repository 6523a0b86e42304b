"""H2FDP written the slow way: numpy loops over intervals, segments, edges and devices; softmax regression only.

It shares nothing with the engine but the random streams, the data and the list of edges, and must end at the same model.
"""

import math

import numpy as np

from sightline.randomness import Purpose, Streams
from tests.oracle.fedavg_naive import softmax_gradient


def segment_of(w, shard, classes, *, steps, learning_rate, radius, batch_size, rng):
    """The sum of `steps` steps, each gradient scaled onto the ball of the radius."""
    moved, order = w.copy(), np.empty(0, int)
    x = shard.x.reshape(len(shard), -1).astype(np.float64)
    for _ in range(steps):
        if not order.size:
            order = rng.permutation(len(shard))
        batch, order = order[:batch_size], order[batch_size:]
        gradient = softmax_gradient(moved, x[batch], shard.y[batch], classes)
        moved -= learning_rate * gradient * min(1.0, radius / np.linalg.norm(gradient))
    return moved - w


def h2fdp(federation, start, edges, *, rounds, tau, every, gamma, radius, batch_size, noise, seed, rate=None):
    """`edges`: (members, trusted, z) in order. Every interval: local aggregations, then the cloud's mean by devices."""
    streams, model = Streams.from_seed(seed), start.astype(np.float64)
    devices = sum(len(members) for members, _ in edges)
    for k in range(rounds):
        eta, at_edge, draws = gamma / math.sqrt(k + 1), [model] * len(edges), 0
        for segment in range(tau // every):
            bound = eta * every * radius
            for number, (members, trusted) in enumerate(edges):
                coins = streams.rng(Purpose.COHORT, round=k + 1, use=draws)
                draws += 1
                cohort = (
                    members
                    if rate is None
                    else [m for m, c in zip(members, coins.random(len(members)), strict=False) if c < rate]
                )
                total = np.zeros_like(model)
                for device in cohort:
                    rng = streams.rng(Purpose.BATCHES, round=k + 1, participant=device, use=segment)
                    total += segment_of(
                        at_edge[number], federation.clients[device].train, federation.classes, steps=every,
                        learning_rate=eta, radius=radius, batch_size=batch_size, rng=rng,
                    )  # fmt: skip
                    if not trusted:
                        own = streams.rng(Purpose.NOISE, round=k + 1, participant=device, use=segment)
                        total += noise * bound * own.standard_normal(len(model))
                if trusted:
                    own = streams.rng(Purpose.NOISE, round=k + 1, participant=-2 - number, use=segment)
                    total += noise * bound * own.standard_normal(len(model))
                expected = (rate or 1.0) * len(members) if trusted else max(1, len(cohort))
                at_edge[number] = at_edge[number] + total / expected
        model = sum(len(members) / devices * w for (members, _), w in zip(edges, at_edge, strict=True))
    return model
