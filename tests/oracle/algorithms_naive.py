"""The seven algorithms written the slow way: numpy, one client after the other, every vector sent that the papers send.

They share nothing with the engine but the random streams and the data. `objective(client, w)` returns the gradient of
the client's batch at w; a client's batches are what `batches(client, time)` lists.
"""

import numpy as np

from sightline.randomness import Purpose, Streams
from tests.oracle.fedavg_naive import softmax_gradient


class Softmax:
    """Cross entropy of a linear model on a federation's shards, in mini-batches as the streams shuffle them."""

    def __init__(self, federation, *, seed, steps, batch_size):
        self.federation, self.streams, self.steps, self.batch_size = (
            federation,
            Streams.from_seed(seed),
            steps,
            batch_size,
        )
        self.sizes = federation.sizes

    def batches(self, client, time):
        shard = self.federation.clients[client].train
        rng = self.streams.rng(Purpose.BATCHES, round=time, participant=client)
        order = np.empty(0, dtype=int)
        for _ in range(self.steps(len(shard))):
            if len(order) == 0:
                order = rng.permutation(len(shard))
            batch, order = order[: self.batch_size], order[self.batch_size :]
            yield lambda w, b=batch: softmax_gradient(
                w, shard.x[b].reshape(len(b), -1).astype(float), shard.y[b], self.federation.classes
            )

    def cohort(self, time, rate):
        coins = self.streams.rng(Purpose.COHORT, round=time).random(len(self.sizes)) < rate
        return [int(n) for n in np.flatnonzero(coins)]


def sgd(problem, client, time, start, *, lr, momentum, extra):
    """Local SGD; `extra(w)` is added to every gradient. Returns the end and the number of steps."""
    w, velocity, count = start.copy(), np.zeros_like(start), 0
    for gradient in problem.batches(client, time):
        velocity = momentum * velocity + gradient(w) + extra(w)
        w = w - lr * velocity
        count += 1
    return w, count


def weighted(problem, cohort, vectors):
    weights = np.array([problem.sizes[n] for n in cohort], dtype=float)
    return sum(weight * v for weight, v in zip(weights / weights.sum(), vectors, strict=True))


def fedavg(problem, start, cohorts, *, lr, momentum, proximal=0.0):
    x = start.copy()
    for time, cohort in enumerate(cohorts, 1):
        if cohort:
            ends = [
                sgd(problem, n, time, x, lr=lr, momentum=momentum, extra=lambda w, x=x: proximal * (w - x))[0]
                for n in cohort
            ]
            x = weighted(problem, cohort, ends)
    return x


def server_optimised(problem, start, cohorts, server, *, lr, momentum):
    """FedAvg whose server passes the mean update through `server(update) -> step`."""
    x = start.copy()
    for time, cohort in enumerate(cohorts, 1):
        update = np.zeros_like(x)
        if cohort:
            ends = [sgd(problem, n, time, x, lr=lr, momentum=momentum, extra=lambda w: 0.0)[0] for n in cohort]
            update = weighted(problem, cohort, ends) - x
        x = x + server(update)
    return x


def momentum_server(beta):
    velocity = 0.0

    def server(update):
        nonlocal velocity
        velocity = beta * velocity + update
        return velocity

    return server


def adaptive_server(kind, dimension, *, eta, beta1, tau, beta2=0.0):
    """Reddi et al. 2021, Algorithm 2: lines 12, 13 (adagrad), 14 (yogi) or 15 (adam), and 16."""
    m, v = np.zeros(dimension), np.full(dimension, tau**2)

    def server(update):
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * update
        if kind == "fedadagrad":
            v = v + update**2
        elif kind == "fedyogi":
            v = v - (1 - beta2) * update**2 * np.sign(v - update**2)
        else:
            v = beta2 * v + (1 - beta2) * update**2
        return eta * m / (np.sqrt(v) + tau)

    return server


def scaffold(problem, start, cohorts, *, lr):
    """Both vectors travel: every member sends its D y_i and its D c_i (option II); c is the mean of the c_i."""
    x, c = start.copy(), np.zeros_like(start)
    own = {}
    total = float(np.sum(problem.sizes))
    for time, cohort in enumerate(cohorts, 1):
        changes, ends = {}, []
        for n in cohort:
            mine = own.get(n, np.zeros_like(x))
            y, steps = sgd(problem, n, time, x, lr=lr, momentum=0.0, extra=lambda w, m=mine, c=c: c - m)
            changes[n] = (mine - c + (x - y) / (steps * lr)) - mine
            ends.append(y)
        if cohort:
            x = weighted(problem, cohort, ends)
        for n, change in changes.items():
            own[n] = own.get(n, np.zeros_like(x)) + change
        c = c + sum(problem.sizes[n] / total * change for n, change in changes.items())
    return x, c, own


def feddyn(problem, start, cohorts, *, lr, momentum, alpha):
    x, h = start.copy(), np.zeros_like(start)
    gradients = {}
    total = float(np.sum(problem.sizes))
    for time, cohort in enumerate(cohorts, 1):
        ends = []
        for n in cohort:
            mine = gradients.get(n, np.zeros_like(x))
            end, _ = sgd(
                problem, n, time, x, lr=lr, momentum=momentum, extra=lambda w, m=mine, x=x: -m + alpha * (w - x)
            )
            gradients[n] = mine - alpha * (end - x)
            ends.append(end)
        h = h - alpha * sum(problem.sizes[n] / total * (end - x) for n, end in zip(cohort, ends, strict=True))
        x = (weighted(problem, cohort, ends) if cohort else x) - h / alpha
    return x


def pfedme(problem, start, cohorts, *, lr, penalty, inner_steps, inner_lr):
    x, personal = start.copy(), {}
    for time, cohort in enumerate(cohorts, 1):
        copies = []
        for n in cohort:
            w, theta = x.copy(), x.copy()
            for gradient in problem.batches(n, time):
                for _ in range(inner_steps):
                    theta = theta - inner_lr * (gradient(theta) + penalty * (theta - w))
                w = w - lr * penalty * (w - theta)
            personal[n] = theta
            copies.append(w)
        if cohort:
            x = weighted(problem, cohort, copies)
    return x, personal
