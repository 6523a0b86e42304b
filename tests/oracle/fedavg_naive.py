"""FedAvg with central privacy, written the slow way: numpy loops, one example at a time, softmax regression only.

It shares nothing with the engine but the random streams and the data, and must end at the same model.
"""

import numpy as np

from sightline.randomness import Purpose, Streams


def softmax_gradient(w, x, y, classes):
    """Mean gradient of the cross entropy of a linear model, example by example."""
    features = x.shape[1]
    weight = w[: classes * features].reshape(classes, features)
    bias = w[classes * features :]
    g_weight, g_bias = np.zeros_like(weight), np.zeros_like(bias)
    for row, label in zip(x, y, strict=True):
        scores = weight @ row + bias
        scores = np.exp(scores - scores.max())
        error = scores / scores.sum()
        error[label] -= 1
        g_weight += np.outer(error, row)
        g_bias += error
    return np.concatenate([g_weight.ravel(), g_bias]) / len(y)


def local_sgd(w, x, y, classes, *, epochs, batch_size, learning_rate, rng):
    """Plain SGD over shuffled epochs."""
    w = w.copy()
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for first in range(0, len(y), batch_size):
            batch = order[first : first + batch_size]
            w -= learning_rate * softmax_gradient(w, x[batch], y[batch], classes)
    return w


def central_fedavg(federation, start, *, rounds, rate, clip_norm, noise_multiplier, seed, **local):
    """Every round: coins, local training, clip, sum, noise once, divide by the expected cohort."""
    streams = Streams.from_seed(seed)
    model = start.astype(np.float64)
    clients = len(federation.clients)
    for time in range(1, rounds + 1):
        coins = streams.rng(Purpose.COHORT, round=time).random(clients) < rate
        total = np.zeros_like(model)
        for number in np.flatnonzero(coins):
            shard = federation.clients[number].train
            x = shard.x.reshape(len(shard), -1).astype(np.float64)
            rng = streams.rng(Purpose.BATCHES, round=time, participant=int(number))
            update = local_sgd(model, x, shard.y, federation.classes, rng=rng, **local) - model
            total += update * min(1.0, clip_norm / np.linalg.norm(update))
        noise = streams.rng(Purpose.NOISE, round=time).standard_normal(len(model))
        model = model + (total + noise_multiplier * clip_norm * noise) / (rate * clients)
    return model
