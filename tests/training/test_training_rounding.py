"""What float32 rounds must not let one example move a clipped sum by more than C: norms, shapes of passes, draws."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, dp_sgd
from sightline.training.clipping import LONGEST, SIZES, Passes, clipped_rows, fill_up, row_norms, sum_by_sixteens
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast import autograd_worker, chains, graph_worker
from sightline.training.fast.chains import Dense
from sightline.training.gradients import GradientWorker
from sightline.training.own_module import LossWorker, clipped_gradient, own_module

RNG = np.random.default_rng
LENGTH, SHORT = 1 << 16, 1 << 12


class Graphed(nn.Module):
    """A linear model that only its graph shows to be one."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)) / inputs)

    def forward(self, x):
        return x @ self.weight.t()


def own_squares(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def dense(inputs, outputs):
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=False))
    module[1].weight.data = Graphed(inputs, outputs).weight.data.clone()
    return module


def normed(inputs, outputs):
    return nn.Sequential(dense(inputs, outputs), nn.LayerNorm(outputs))


WAYS = {
    "chain": (dense, None, chains.ChainWorker),
    "rules": (normed, None, autograd_worker.AutogradWorker),
    "graph": (Graphed, None, graph_worker.GraphWorker),
    "rows": (Graphed, own_squares, LossWorker),
}
"""How clipped sums are computed -> module, loss, worker."""


def flat(parts):
    return torch.cat([part.flatten() for part in parts.values()]).double()


def summing_by(way, inputs):
    """(x, y, C) -> the clipped sum by one way; the module's matrix is all that it trains, or its first parameter."""
    make, loss, kind = WAYS[way]
    module = make(inputs, 3)

    def clipped_sum(x, y, clip_norm):
        assert type(own_module(module, loss, x, y).worker) is kind
        return flat(clipped_gradient(module, loss, x, y, clip_norm))

    return module, clipped_sum


# ---- norms ----


def swallowing(ones, length=LENGTH):
    """A row whose first numbers are 1 and whose others have squares that each of as many float32 sums loses."""
    row = torch.full((1, length), (0.99 * 2.0**-24) ** 0.5)
    row[:, :ones] = 1.0
    return row


@pytest.mark.parametrize("ones", [1, 4, 8, 16, 32, 64, 128])
def test_no_row_swallows_its_small_numbers(ones):
    """torch's float32 norm is short by 1.2e-4 (2.4e-4 of its square) on such rows: contributions reached 1.000118 C."""
    row = swallowing(ones)
    exact = float(row.double().norm())
    assert float(row_norms(row)) == pytest.approx(exact, rel=1e-11)
    assert float(row_norms(row.repeat(3, 3))[1]) == pytest.approx(exact * 3**0.5, rel=1e-11)
    assert float(sum_by_sixteens(row * row).sqrt()) == pytest.approx(exact, rel=2.7e-6)
    assert float(clipped_rows(row, 1.0).double().norm()) <= 1.0


@pytest.mark.parametrize("way", WAYS)
def test_no_path_lets_more_than_the_clip_norm_through(way):
    """Ghost norms are products of such norms: 1.000118 C, and both factors of an outer product can be short."""
    _, clipped_sum = summing_by(way, SHORT)
    for ones in (8, 16, 32):
        total = clipped_sum(swallowing(ones, SHORT), torch.tensor([1]), 0.1)
        assert 0.1 * (1 - 1e-5) < float(total.norm()) <= 0.1


def stacked_sum(model, shard, clip_norm):
    """The clipped sum of a whole shard by the stack of small dense clients."""
    how = DPSGDSettings(clip_norm, [0.0], [1.0], [1], [1.0], [RNG(0)], [RNG(1)])
    start = model.init(RNG(2))
    ((_, ends),) = dp_sgd(model, start, [shard], LocalWork(1.0), how)
    return (start - ends[0]).double()


def test_the_stack_lets_no_more_than_the_clip_norm_through():
    model = build_model("linear", input_shape=(LENGTH,), classes=3, kind=Kind.VECTOR, settings={})
    for ones in (8, 16, 32):
        shard = Shard(swallowing(ones).numpy(), np.array([1]))
        start = model.init(RNG(2))
        assert float(stacked_sum(model, shard, 0.1).norm()) <= 0.1 + 1e-6 * float(start.norm())


# ---- the number of rows ----


EXAMPLES, SEEDS = 10, range(6)


def cancelling(seed, inputs=784):
    """An input whose product with `cancelled` weights is a sum of huge terms that cancel: what is left is rounding."""
    half = torch.randn(1, inputs // 2, generator=torch.Generator().manual_seed(seed)) * 1e8
    return torch.cat([half, half.flip(1)], 1)


def cancelled(outputs, inputs=784):
    """Weights with which it cancels."""
    half = torch.randn(outputs, inputs // 2, generator=torch.Generator().manual_seed(100))
    return torch.cat([half, -half.flip(1)], 1)


def furthest_move(clipped_sum):
    """How far one more of equal examples moves a sum at the most, in clip norms of .5; and how long sums become."""
    moves, lengths = [], []
    for seed in SEEDS:
        x, y = cancelling(seed).repeat(EXAMPLES, 1), torch.ones(EXAMPLES, dtype=torch.int64)
        sums = [clipped_sum(x[:n], y[:n], 0.5) for n in range(1, EXAMPLES + 1)]
        moves += [float((more - less).norm()) / 0.5 for less, more in pairwise(sums)]
        lengths.append(float(sums[-1].norm()))
    return max(moves), max(lengths)


@pytest.mark.parametrize("way", WAYS)
def test_one_more_example_does_not_round_the_others_otherwise(way):
    """Linear(784, 10) from 9 to 10 rows moved by 9.05 C; by 2 C here, where kernels change from 1 to 2 and to 3 rows."""
    module, clipped_sum = summing_by(way, 784)
    next(module.parameters()).data = cancelled(3)
    moved, length = furthest_move(clipped_sum)
    assert moved <= 1 + 1e-5
    assert length > 0.5


def test_one_more_example_does_not_round_those_of_a_stack_otherwise():
    model = build_model("linear", input_shape=(784,), classes=3, kind=Kind.VECTOR, settings={})
    weight = next(slot for slot in model.layout if slot.size == 784 * 3)
    start = torch.zeros(model.parameters)
    start[weight.start : weight.stop] = cancelled(3).flatten()

    def clipped_sum(x, y, clip_norm):
        how = DPSGDSettings(clip_norm, [0.0], [1.0], [1], [1.0], [RNG(0)], [RNG(1)])
        work = LocalWork(2.0**12)  # so that the step is not lost beside the weights
        ((_, ends),) = dp_sgd(model, start, [Shard(x.numpy(), y.numpy())], work, how)
        return (ends[0] - start).double() / 2**12

    moved, length = furthest_move(clipped_sum)
    assert moved <= 1 + 1e-3
    assert length > 0.5


class MoodyDense(Dense):
    """A kernel that adds up every second row backwards."""

    def forward(self, x):
        whole = super().forward(x)
        whole[1::2] = torch.addmm(self.bias, x.flip(1), self.weight.flip(1).t())[1::2]
        return whole


def test_where_a_place_changes_bits_every_example_has_a_pass_of_its_own(monkeypatch):
    model = build_model("linear", input_shape=(30,), classes=3, kind=Kind.VECTOR, settings={})
    usual, worker = worker_for(model), chains.ChainWorker(model)
    worker.layers[-1].__class__ = MoodyDense
    seen, record = [], worker.record_pass
    monkeypatch.setattr(worker, "record_pass", lambda x, *some: (seen.append(len(x)), record(x, *some))[1])
    x, y = torch.randn(5, 30), torch.arange(5) % 3
    worker.clipped_sum(x, y, 1.0)
    assert seen[-5:] == [1] * 5
    usual.weights.copy_(worker.weights)
    usual.clipped_sum(x, y, 1.0)
    torch.testing.assert_close(worker.gradient, usual.gradient)


def trial_of(alike):
    """A trial in which passes of some sizes have one kind of bits, and in all others places differ."""
    return lambda size: torch.ones(2, size) if size in alike else torch.arange(size).float().expand(2, -1)


@pytest.mark.parametrize("alike", [(), (1,), (4,), (32,), (6, 32, 40), SIZES])
@pytest.mark.parametrize("most", [1, 3, 8, 40, 5000])
def test_passes_cover_a_batch_in_sizes_that_are_alike(alike, most):
    passes = Passes(trial_of(alike), most)
    for examples in (0, 1, 3, 5, 32, 33, 700):
        pieces = list(passes.split(examples))
        assert [n for some, _ in pieces for n in range(some.start, some.stop)] == list(range(examples))
        assert all(0 < some.stop - some.start <= size <= max(1, min(most, LONGEST)) for some, size in pieces)
        sizes = {size for _, size in pieces}
        assert sizes == {1} or sizes <= set(alike)
    if alike == SIZES and most == 5000:
        assert [size for _, size in passes.split(700)] == [256, 256, 192]


def test_sizes_with_other_bits_are_not_mixed():
    passes = Passes(lambda size: torch.full((1, size), float(size > 16)), 100)
    assert {size for n in range(1, 200) for _, size in passes.split(n)} == {20, 24, 28, 32, 40, 48, 56, 64, 80, 96}


def test_a_pass_has_memory_of_its_own_in_one_order():
    x = torch.arange(24.0).view(2, 3, 2, 2)
    for given in (x, x.contiguous(memory_format=torch.channels_last), x[:1]):
        for last in (False, True):
            filled = fill_up(given, 4, channels_last=last)
            assert torch.equal(filled[: len(given)], given)
            assert not filled[len(given) :].any()
            assert filled.stride() == ((12, 1, 6, 3) if last else (12, 4, 2, 1))
            assert filled.data_ptr() != given.data_ptr()


# ---- draws ----


class SharedDraw(nn.Module):
    """One random number for the whole batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x) * torch.rand(1)


class DroppedWeight(SharedDraw):
    """Dropout of a weight: one mask for the whole batch."""

    def forward(self, x):
        return functional.linear(x, functional.dropout(self.layer.weight, 0.5, self.training), self.layer.bias)


class Dropped(SharedDraw):
    """Dropout of the examples' own numbers."""

    def forward(self, x):
        return self.layer(functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize("kind", [SharedDraw, DroppedWeight])
def test_a_draw_that_examples_share_is_not_clipped_in_batches(kind):
    """It was drawn once for every chunk, and their number depends on the examples: claimed .592, about 9.4."""
    x, y = torch.randn(9, 5), torch.arange(9) % 3
    worker = own_module(kind(), None, x, y).worker
    assert type(worker) is GradientWorker
    worker.module.train()
    rows = worker.own_rows()(worker.module, worker.model, torch.ones(18), x[:1].repeat(40, 1), y[:1].repeat(40))
    assert len(rows.unique(dim=0)) > 5  # every example has a draw of its own


RULED = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 3))


@pytest.mark.parametrize("module", [Dropped(), RULED], ids=["graph", "rules"])
def test_an_example_that_is_not_finite_changes_nobodys_draws(module):
    """All others were computed again without it, with new draws: claimed .592, about 2.3."""
    x, y = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), torch.arange(4) % 3
    worker = own_module(module, None, x, y).worker
    assert type(worker) in (graph_worker.GraphWorker, autograd_worker.AutogradWorker)
    for value in (float("nan"), float("inf"), 1e30):
        broken = x.clone()
        broken[3] = value
        for last in (x[:3], broken):
            found = clipped_gradient(module, None, last, y[: len(last)], 0.1, rng=RNG(5))
            if len(last) == 3:
                without = flat(found)
        assert torch.equal(flat(found), without)
    assert not torch.equal(flat(clipped_gradient(module, None, x, y, 0.1, rng=RNG(5))), without)
