"""Softmax regression on examples of norm <= 1, solved by a general-purpose optimiser: the slow twin of our solver."""

import numpy as np
from scipy.optimize import minimize

HALF = np.sqrt(0.5)


def augmented(x):
    """(x, 1 / sqrt 2) with x scaled to norm <= 1 / sqrt 2."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.concatenate([x * np.minimum(1, HALF / norms), np.full((len(x), 1), HALF)], axis=1)


def loss_gradient(v, x, y, weights, classes):
    """Gradient of sum_j weights_j CE_j, one example at a time."""
    total = np.zeros((classes, x.shape[1]))
    for row, label, weight in zip(x, y, weights, strict=True):
        scores = v.reshape(classes, -1) @ row
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[label] -= 1
        total += weight * np.outer(p, row)
    return total.ravel()


def loss(v, x, y, weights, classes):
    scores = x @ v.reshape(classes, -1).T
    top = scores.max(axis=1)
    norm = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return float(weights @ (norm - scores[np.arange(len(y)), y]))


def minimiser(x, y, weights, classes, *, mu, anchor, linear=0.0):
    """argmin sum_j weights_j CE_j + mu / 2 |v - anchor|^2 + <linear, v>."""

    def value(v):
        return loss(v, x, y, weights, classes) + mu / 2 * np.sum((v - anchor) ** 2) + np.sum(linear * v)

    def gradient(v):
        return loss_gradient(v, x, y, weights, classes) + mu * (v - anchor) + linear

    return minimize(value, anchor, jac=gradient, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}).x


def hessian(v, x, y, weights, classes, *, mu):
    """By central differences of the gradient."""
    rows = []
    for k in range(len(v)):
        step = np.zeros_like(v)
        step[k] = 1e-5
        rows.append(
            (loss_gradient(v + step, x, y, weights, classes) - loss_gradient(v - step, x, y, weights, classes)) / 2e-5
        )
    return np.array(rows) + mu * np.eye(len(v))
