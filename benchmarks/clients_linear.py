"""A loop over modules / compiled clients (and stacked ones): 30 clients, logistic regression, 10 local epochs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import interleaved, line, medians
from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, train_local

CLIENTS, FEATURES, CLASSES, EPOCHS, BATCH = 30, 60, 10, 10, 10


def shards() -> list[Shard]:
    """Clients of uneven size, as the synthetic data sets have them."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(4.0, 1.0, CLIENTS).astype(int), 30, 400)
    return [Shard(rng.standard_normal((n, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, n)) for n in sizes]


def loader(x: Tensor, y: Tensor) -> Iterable[Any]:
    """Batches as most repositories make them."""
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


class Indexed:
    """Batches by indexing tensors: what a careful user writes."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.randperm(len(self.y)).split(BATCH):
            yield self.x[index], self.y[index]


def module_loop(data: list[Shard], batches: Callable[[Tensor, Tensor], Iterable[Any]]) -> None:
    """A module and an optimiser per client."""
    for shard in data:
        module = nn.Linear(FEATURES, CLASSES)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        source = batches(torch.from_numpy(shard.x), torch.from_numpy(shard.y))
        for _ in range(EPOCHS):
            for x, y in source:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()


def run() -> dict[str, Any]:
    """One round of local training of all clients."""
    torch.set_num_threads(1)
    data = shards()
    model = build_model("linear", input_shape=(FEATURES,), classes=CLASSES, kind=Kind.VECTOR, settings={})
    start = torch.zeros(model.parameters)
    plain = LocalWork(learning_rate=0.05, batch_size=BATCH, epochs=EPOCHS)

    def trained(work: LocalWork) -> None:
        rngs = [np.random.default_rng(n) for n in range(CLIENTS)]
        for _ in train_local(model, start, data, work, rngs=rngs):
            pass

    ways: dict[str, Any] = {
        "data loaders": lambda: module_loop(data, loader),
        "indexing": lambda: module_loop(data, Indexed),
        "stacked": lambda: trained(plain),
        "compiled": lambda: trained(replace(plain, compiled=True)),
    }
    found = medians(interleaved(ways, repeat=7, warm=1))
    return line(
        "clients_linear", found["data loaders"] / found["compiled"], 60, at_least=True,
        over_indexing=round(found["indexing"] / found["compiled"], 1),
        stacked=round(found["data loaders"] / found["stacked"], 1),
        milliseconds={name: round(1000 * seconds, 1) for name, seconds in found.items()},
    )  # fmt: skip
