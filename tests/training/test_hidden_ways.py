"""Ways past the clip that a reviewer found: backward passes inside forward, modes, switches, and collate functions."""

import logging
import sys
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import sightline
from sightline.errors import SightlineError
from sightline.private_loop import clipped_gradient

X, Y = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def contribution(model, loss, x):
    return float(
        torch.cat([part.flatten() for part in clipped_gradient(model, loss, x, Y[: len(x)], 1.0).values()]).norm()
    )


class Saliency(nn.Module):
    """The input's gradient by a backward pass inside forward, as tutorials write adversarial training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        with torch.enable_grad():
            z = x.detach().clone().requires_grad_(True)
            self.layer(z).square().mean().backward()
        return self.layer(x + 0.1 * z.grad.sign())


def backward_inside(outputs, targets):
    loss = F.cross_entropy(outputs, targets)
    loss.backward(retain_graph=True)
    return loss


@pytest.mark.parametrize(
    ("model", "loss"),
    [(Saliency(), None), (Saliency(), nn.CrossEntropyLoss(label_smoothing=0.1)), (nn.Linear(8, 3), backward_inside)],
    ids=["forward", "forward, own loss", "loss"],
)
def test_a_backward_pass_of_its_own_does_not_pass_the_clip(model, loss):
    """One example added 980 C by a saliency gate and 801 C by a criterion: `.grad` was the vector of clipped sums."""
    try:
        assert contribution(model, loss, 1000 * X[:1]) <= 1.0
    except SightlineError as error:
        assert "backward pass" in str(error) or "cannot be" in str(error)


class Mode(nn.Module):
    """A layer whose mode is changed by an example stays in it for the next."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 3), nn.Dropout(0.0)

    def forward(self, x):
        scale = 1.0 if self.drop.training else 50.0
        if float(x.detach().max()) > 100:
            self.drop.eval()
        return scale * self.layer(x)


def test_a_mode_does_not_outlive_a_pass():
    """One example that put a layer into evaluation moved the sum by 3.84 C."""
    large, usual = X.clone(), X.clone()
    large[0] *= 1000
    try:
        sums = [clipped_gradient(Mode(), None, x, Y, 0.01) for x in (large, usual)]
    except SightlineError:
        return
    apart = torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in sums[0]]).norm()
    assert float(apart) <= 2 * 0.01


def turns_switch(x):
    float(x.detach().max())  # not a graph: the module itself runs
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)


def raises_level(x):
    LOG.setLevel(LOG.level + 1)


def takes_lock(x):
    """Hold the lock from an example with a large number until one without."""
    if float(x.detach().max()) > 1.5:
        LOCK.acquire(blocking=False)
    elif LOCK.locked():
        LOCK.release()


def moves_to_end(x):
    ORDER.move_to_end("a" if next(iter(ORDER)) == "a" else "b")


LOG, LOCK, ORDER = logging.getLogger("tests.hidden"), threading.Lock(), OrderedDict(a=1, b=2)


class Doing(nn.Module):
    def __init__(self, deed):
        super().__init__()
        self.layer, self.deed = nn.Linear(8, 3), deed

    def forward(self, x):
        self.deed(x)
        return self.layer(x)


@pytest.mark.parametrize("deed", [turns_switch, raises_level, takes_lock, moves_to_end], ids=lambda deed: deed.__name__)
def test_switches_locks_and_orders_are_memory(deed):
    """Each carried one example into the next: 11 C in the same step."""
    limit = sys.getrecursionlimit()
    try:
        with pytest.raises(SightlineError, match=r"changes|may change|another gradient"):
            clipped_gradient(Doing(deed), None, X, Y, 1.0)
    finally:
        sys.setrecursionlimit(limit)
        LOG.setLevel(0)
        if LOCK.locked():
            LOCK.release()


def test_a_collate_function_that_remembers_is_refused():
    """A running mean in a collate function moved the sum by 20.8 C for one replaced example."""
    mean = torch.zeros(8)

    def centre(examples):
        x, y = torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])
        mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return x - mean, y

    model = nn.Linear(8, 3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=12, collate_fn=centre)
    _, _, batches = sightline.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0, delta=1e-3, clip_norm=1.0
    )
    with pytest.raises(SightlineError, match="one example would reach the next"):
        next(iter(batches))


def test_a_collate_function_may_draw_at_random():
    import random

    def mirror(examples):
        x, y = torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])
        return (x.flip(1) if random.random() < 0.5 else x), y

    model = nn.Linear(8, 3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=12, collate_fn=mirror)
    _, _, batches = sightline.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0, delta=1e-3, clip_norm=1.0
    )
    assert len(next(iter(batches))[0]) == 12
