"""`python -m benchmarks.scoreboard.tune NAME`: learning rate and averaging of a linear row, on held-out examples.

A sixth of the *training* examples is held out; the published test set is not looked at. Settings are tried side by
side with the same batches and the same noise.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.scoreboard.rows import LINEAR, Row
from sightline.accounting import calibrate
from sightline.config import read
from sightline.console import CountBar
from sightline.data import Shard, load_federation
from sightline.events import Gaussian, Poisson
from sightline.randomness import Streams

HELD_OUT = 1 / 6
RATES = (0.5, 1.0, 2.0, 4.0)
"""Times the learning rate of the file."""
AVERAGES = (0.0, 0.95, 0.97, 0.98, 0.99)
CHUNK = 1024


class SideBySide:
    """Softmax regressions with different learning rates, trained by DP-SGD with momentum on one stream of noise."""

    def __init__(self, rates: Tensor, clip_norm: float, momentum: float, features: int, classes: int) -> None:
        self.rates, self.clip_norm, self.momentum = rates.view(-1, 1, 1), clip_norm, momentum
        self.weights = torch.zeros(len(rates), classes, features + 1)
        self.velocity = torch.zeros_like(self.weights)
        self.means = {average: torch.zeros_like(self.weights) for average in AVERAGES}
        self.steps = 0

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """(examples, settings, classes)."""
        settings, classes, _ = weights.shape
        return (x @ weights[:, :, :-1].reshape(settings * classes, -1).T).view(-1, settings, classes) + weights[
            :, :, -1
        ]

    def clipped_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of clipped per-example gradients of every setting."""
        errors = torch.softmax(self.logits(self.weights, x), 2)
        errors[torch.arange(len(y)), :, y] -= 1
        norms = (errors.square().sum(2) * (x.square().sum(1) + 1)[:, None]).sqrt()
        errors *= (self.clip_norm / norms).clamp(max=1)[:, :, None]
        weight = (errors.flatten(1).T @ x).view(*self.weights.shape[:2], -1)
        return torch.cat([weight, errors.sum(0)[:, :, None]], 2)

    def step(self, total: Tensor, expected_batch: float) -> None:
        """Momentum, and the running means of the weights."""
        self.steps += 1
        self.velocity = self.momentum * self.velocity + total / expected_batch
        self.weights = self.weights - self.rates * self.velocity
        for average, mean in self.means.items():
            mean += (1 - average) / (1 - average**self.steps) * (self.weights - mean)

    def accuracies(self, held: Shard) -> Iterator[tuple[float, list[float]]]:
        """(average, held-out accuracy of every learning rate in percent)."""
        x, y = torch.from_numpy(held.x).flatten(1), torch.from_numpy(held.y)
        for average, mean in self.means.items():
            right = (self.logits(mean, x).argmax(2) == y[:, None]).float().mean(0)
            yield average, (100 * right).tolist()


def tune_row(row: Row, overrides: Sequence[str] = (), multiples: tuple[float, ...] = RATES) -> list[str]:
    """A line of held-out accuracies for every average, after all steps of the row's file."""
    experiment = read(row.file, [f"data.test_fraction={HELD_OUT}", "data.test_samples=10", *overrides])
    client = load_federation(experiment.data, streams=Streams.from_seed(0)).clients[0]
    x, y = torch.from_numpy(client.train.x).flatten(1), torch.from_numpy(client.train.y)
    local, privacy = experiment.local, experiment.privacy
    rate = local.batch_size * (1 - HELD_OUT) / len(y)
    noise = calibrate(
        lambda z: {Poisson(rate, Gaussian(z)): experiment.rounds}, epsilon=privacy.epsilon, delta=privacy.delta
    )
    rates = torch.tensor([multiple * local.learning_rate for multiple in multiples])
    momentum = float(experiment.algorithm.server_momentum)
    models = SideBySide(rates, privacy.clip_norm, momentum, x.shape[1], int(y.max()) + 1)
    draws = torch.Generator().manual_seed(0)
    with CountBar(f"tuning {row.name}", "steps") as bar:
        for step in range(experiment.rounds):
            drawn = (torch.rand(len(y), generator=draws) < rate).nonzero()[:, 0]
            total = sum(models.clipped_sum(x[some], y[some]) for some in drawn.split(CHUNK))
            fresh = torch.randn(models.weights.shape[1:], generator=draws) * noise * privacy.clip_norm
            models.step(total + fresh, rate * len(y))
            bar.advance(step + 1, experiment.rounds)
    return write_lines(rates, dict(models.accuracies(client.test)))


def write_lines(rates: Tensor, found: dict[float, list[float]]) -> list[str]:
    """A table: learning rates in columns, averages in rows."""
    lines = ["average   " + " ".join(f"lr {rate:<6g}" for rate in rates.tolist())]
    return lines + [f"{average:<9g} " + " ".join(f"{one:<9.2f}" for one in row) for average, row in found.items()]


def main() -> int:
    """Tune the rows that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard.tune", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[row.name for row in LINEAR], metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for row in LINEAR:
        if row.name in given.names:
            print(row.name, *given.set, *tune_row(row, given.set), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
