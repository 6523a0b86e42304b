"""Exact Renyi divergence of what an observer sees in DP-OGL, when every update is an affine function of its start.

Models are scalars. Worker j's update from start s is gain[j] * s + push[j]; everybody takes part. Then all models are
jointly Gaussian with the same covariance with and without the subject, and D_a = a/2 d' Sigma^-1 d with d the
difference of means.
"""

import numpy as np


def joint_view(groups, period, epochs, gain, push, noise_std, *, present):
    """(mean, factor) of all models theta_m^t, t = 2..T: the models are mean + factor @ standard normals."""
    count, total = len(groups), len(groups) * (epochs - 1)
    mean, factor = np.zeros(count), np.zeros((count, total))
    means, factors = [], []
    for epoch in range(1, epochs):
        new_mean, new_factor = mean.copy(), factor.copy()
        for m, group in enumerate(groups):
            for worker in group:
                if worker not in present:
                    continue
                mine = [other for other in range(count) if worker in groups[other]]
                merging = (epoch - 1) % period == 0
                start = mean[mine].mean() if merging else mean[m]
                start_factor = factor[mine].mean(0) if merging else factor[m]
                new_mean[m] += (gain[worker] * start + push[worker]) / len(group)
                new_factor[m] += gain[worker] * start_factor / len(group)
            new_factor[m, (epoch - 1) * count + m] += noise_std / len(group)
        mean, factor = new_mean, new_factor
        means.append(mean.copy())
        factors.append(factor.copy())
    return np.array(means), np.array(factors)


def exact_divergence(groups, period, epochs, gain, push, noise_std, *, subject, seen, order):
    """D_a between the observer's views with and without the subject; its gain must be zero (its update is constant)."""
    workers = set(range(len(gain)))
    views = []
    for present in (workers, workers - {subject}):
        means, factors = joint_view(groups, period, epochs, gain, push, noise_std, present=present)
        views.append((means[:, seen].ravel(), factors[:, seen].reshape(-1, factors.shape[2])))
    (one, factor), (other, _) = views
    d = one - other
    covariance = factor @ factor.T
    return order / 2 * float(d @ np.linalg.solve(covariance, d)), views


def largest_shift(groups, period, epochs, gain, push, noise_std, *, subject):
    """The largest change of any other worker's mean update that the subject causes: half of it must fit into c."""
    workers = set(range(len(gain)))
    mean = [
        joint_view(groups, period, epochs, gain, push, noise_std, present=p)[0] for p in (workers, workers - {subject})
    ]
    change = np.vstack([np.zeros(len(groups)), mean[0] - mean[1]])
    return max(abs(g) for g in gain) * float(np.abs(change).max())
