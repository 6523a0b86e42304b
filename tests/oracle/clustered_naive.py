"""Clustered training written the slow way: numpy, one example at a time, softmax regression only.

It shares with the engine the random streams, the data and the mixture of the first round, and must end at the same
models with everybody in the same clusters.
"""

import math

import numpy as np

from sightline.algorithms.clustered.mixture import fit_mixture, spanning_points, switch_round
from sightline.randomness import Purpose, Streams
from sightline.training.dp_sgd_settings import gaussian_steps
from tests.oracle.fedavg_naive import softmax_gradient


class Naive:
    """The clients, their private steps and their choices."""

    def __init__(self, federation, *, seed, clip_norm, noise, learning_rate, batch_size, sharpness):
        self.federation, self.streams = federation, Streams.from_seed(seed)
        self.clip_norm, self.noise, self.learning_rate = clip_norm, noise, learning_rate
        self.batch_size, self.sharpness = batch_size, sharpness

    def data(self, client):
        shard = self.federation.clients[client].train
        return shard.x.reshape(len(shard), -1).astype(float), shard.y

    def rng(self, purpose, time, **more):
        return self.streams.rng(purpose, round=time, **more)

    def dp_sgd(self, client, time, start, *, use, whole=False, pull=lambda w: 0.0):
        """One epoch of private steps; each example's gradient is clipped by itself, `pull` added after the noise."""
        (x, y), w = self.data(client), start.copy()
        coins = self.rng(Purpose.BATCHES, time, participant=client, use=use)
        noises = gaussian_steps(len(w), rng=self.rng(Purpose.NOISE, time, participant=client, use=use))
        batch = len(y) if whole else min(self.batch_size, len(y))
        for _ in range(math.ceil(len(y) / batch)):
            drawn = range(len(y)) if whole else np.flatnonzero(coins.random(len(y)) < batch / len(y))
            total = np.zeros_like(w)
            for j in drawn:
                gradient = softmax_gradient(w, x[j : j + 1], y[j : j + 1], self.federation.classes)
                total += gradient * min(1.0, self.clip_norm / np.linalg.norm(gradient))
            total += self.noise * self.clip_norm * next(noises).numpy().astype(float)
            w = w - self.learning_rate * (total / batch + pull(w))
        return w

    def choice(self, client, time, models):
        x, y = self.data(client)
        scores = []
        for w in models:
            weight, bias = (
                w[: -self.federation.classes].reshape(self.federation.classes, -1),
                w[-self.federation.classes :],
            )
            right = sum(int(np.argmax(weight @ row + bias) == label) for row, label in zip(x, y, strict=True))
            scores.append(self.sharpness * right)
        noise = self.rng(Purpose.SELECTION, time, participant=client, use=0).gumbel(size=len(models))
        return int(np.argmax(np.array(scores) + noise))

    def draw(self, time, chances):
        coins = self.rng(Purpose.ASSIGNMENT, time, use=0).random(len(chances))
        return [
            int(np.searchsorted(np.cumsum(row), coin, side="right")) for row, coin in zip(chances, coins, strict=True)
        ]

    def mean(self, clients, models):
        sizes = [len(self.data(n)[1]) for n in clients]
        return sum(size * models[n] for n, size in zip(clients, sizes, strict=True)) / sum(sizes)

    def train(self, time, assignment, models, *, first_use):
        """Everybody from the model of its cluster; means over members; an empty cluster keeps its model."""
        after, use = list(models), first_use
        for m in range(len(models)):
            members = [n for n, cluster in enumerate(assignment) if cluster == m]
            if members:
                after[m] = self.mean(members, {n: self.dp_sgd(n, time, models[m], use=use) for n in members})
                use += 1
        return after


def rdpcfl(naive, start, *, rounds, count, choices):
    """(the clusters' models, who was where in every round)."""
    clients = range(len(naive.federation.clients))
    firsts = {n: naive.dp_sgd(n, 1, start, use=0, whole=True) for n in clients}
    seed = int(naive.rng(Purpose.ASSIGNMENT, 1, use=0).integers(2**31))
    updates = np.stack([(firsts[n] - start).astype(np.float32) for n in clients])
    mixture = fit_mixture(spanning_points(updates)(count), count, seed=seed)
    assignment = mixture.assigned.tolist()
    models = [naive.mean([n for n in clients if assignment[n] == m], firsts) for m in range(count)]
    last_drawn = max(1, min(switch_round(mixture, rounds), rounds - choices))
    path = [assignment]
    for time in range(2, rounds + 1):
        choosing = last_drawn < time <= last_drawn + choices
        if time <= last_drawn:
            assignment = naive.draw(time, mixture.posteriors)
        elif choosing:
            assignment = [naive.choice(n, time, models) for n in clients]
        models = naive.train(time, assignment, models, first_use=int(choosing))
        path.append(assignment)
    return models, path


def ifca(naive, start, *, rounds, count, choices):
    """(the clusters' models, who was where in every round)."""
    clients = range(len(naive.federation.clients))
    models, path = [start] * count, []
    for time in range(1, rounds + 1):
        choosing = 1 < time <= 1 + choices
        if time == 1:
            assignment = naive.draw(1, np.full((len(clients), count), 1 / count))
        elif choosing:
            assignment = [naive.choice(n, time, models) for n in clients]
        models = naive.train(time, assignment, models, first_use=int(choosing))
        path.append(assignment)
    return models, path
