"""Which worker is chosen, and that odd modules never reach a fast path that would clip them wrongly."""

import sys
import types

import numpy as np
import pytest
import torch
import training_oracle as oracle
from torch import nn
from torch.nn import functional

from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, clipped_gradient_sum, clipping_note, train_local
from sightline.training.dispatch import dense_layers, stacking_for, worker_for
from sightline.training.fast.autograd_worker import AutogradWorker
from sightline.training.fast.chains import ChainWorker
from sightline.training.fast.graph_worker import GraphWorker
from sightline.training.fast.per_example_norms import fold_patches, patches_by_pixel, unfold_patches
from sightline.training.gradients import GradientWorker, one_by_one, vectorised_gradients

SHAPE = (2, 6, 6)


class Net(nn.Module):
    """Base of small networks that do one odd thing each."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def head(self, y):
        return self.out(functional.relu(y).mean((2, 3)))

    def forward(self, x):
        return self.head(self.norm(self.conv(x)))


class InPlace(Net):
    def forward(self, x):
        return self.head(self.norm(functional.relu_(self.conv(x))))


class Twice(Net):
    def __init__(self):
        super().__init__()
        self.square = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.head(self.square(functional.relu(self.square(self.conv(x)))))


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.more = nn.Conv2d(2, 4, 3, padding=1)
        self.more.weight = self.conv.weight

    def forward(self, x):
        return self.head(self.conv(x) + self.more(2 * x))


class Outside(Net):
    def forward(self, x):
        return self.head(self.norm(self.conv(x))) + self.out.weight.sum(1)


class Unused(Net):
    def forward(self, x):
        return self.head(self.conv(x))


class Doubled(nn.Linear):
    """A subclass that does something else."""

    def forward(self, x):
        return super().forward(2 * x)


class Mean(Net):
    def forward(self, x):
        return self.head(self.norm(self.conv(x - x.mean(0))))


class Grouped(Net):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2)


class Dilated(Net):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=2, dilation=2)


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(6, 5), nn.LayerNorm([6, 5]), nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.norm(self.first(x[:, 0]))).mean(1))


def chains():
    conv, pool = nn.Conv2d(2, 8, 3, stride=2, padding=1, bias=False), nn.MaxPool2d(2, 1, padding=1)
    inner = nn.Sequential(nn.Conv2d(8, 3, (3, 2), stride=(1, 2)), nn.Tanh(), nn.MaxPool2d((1, 2)))
    return {
        "strided": nn.Sequential(conv, nn.ReLU(), pool, inner, nn.Flatten(), nn.Linear(6, 3, bias=False)),
        "kinks": nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(72, 5), nn.Tanh(), nn.ReLU(), nn.Linear(5, 3)),
        "phases": nn.Sequential(nn.Conv2d(2, 4, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        "odd_stride": nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        "normed": nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        "wide": nn.Sequential(nn.Conv2d(2, 40, 6), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)),
        "gram": nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 300, 4), nn.Flatten(), nn.Linear(300, 3)),
    }


EXPECTED = {
    "strided": ChainWorker, "kinks": ChainWorker, "phases": ChainWorker, "odd_stride": ChainWorker, "wide": ChainWorker,
    "gram": ChainWorker, "normed": AutogradWorker, "Net": GraphWorker, "Layered": GraphWorker, "Unused": GraphWorker, "InPlace": GraphWorker,
    "Twice": GraphWorker, "Tied": GraphWorker, "Outside": GraphWorker, "Mean": GradientWorker, "Grouped": GraphWorker,
    "Dilated": GraphWorker, "doubled": GraphWorker, "frozen": GraphWorker,
}  # fmt: skip


def factory(name):
    def make(**_):
        if name == "doubled":
            return nn.Sequential(nn.Flatten(), Doubled(72, 3))
        if name == "frozen":
            module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 3))
            module[1].weight.requires_grad_(False)
            return module
        return chains()[name] if name in chains() else globals()[name]()

    return make


@pytest.fixture(params=EXPECTED, scope="module")
def odd(request):
    """A name and its model, whose worker is chosen once for all tests of it."""
    module = types.ModuleType("odd_layers")
    module.make = factory(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "odd_layers", module)
        model = build_model("odd_layers:make", input_shape=SHAPE, classes=3, kind=Kind.IMAGE, settings={})
        yield request.param, model


def examples(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, *SHAPE), dtype=np.float32), rng.integers(3, size=n)


def truth(model, vector, x, y, clip_norm):
    """Clipped sum by the definition, with zero for parameters that get no gradient."""
    module = oracle.load(model.module(), vector)
    rows = one_by_one(module, model, vector, torch.from_numpy(x), torch.from_numpy(y))
    return (rows * (clip_norm / rows.norm(dim=1)).clamp(max=1.0)[:, None]).sum(0)


def test_odd_modules_are_clipped_by_the_definition(odd):
    name, model = odd
    assert type(worker_for(model)) is EXPECTED[name]
    assert (clipping_note(model) is None) == (EXPECTED[name] is not GradientWorker)
    x, y = examples(7)
    vector = model.init(np.random.default_rng(1))
    for clip_norm in (0.1, 3.0):
        got = clipped_gradient_sum(model, vector, x, y, clip_norm=clip_norm)
        torch.testing.assert_close(got, truth(model, vector, x, y, clip_norm), rtol=1e-3, atol=1e-5)
    assert np.array_equal(x, examples(7)[0])


def test_odd_modules_train_as_the_naive_loop(odd):
    name, model = odd
    if name == "Tied":
        assert model.parameters == sum(p.numel() for p in model.module().parameters())
    if name in ("frozen", "Unused"):
        return  # torch.optim skips parameters without gradient; covered by the clipped sum
    x, y = examples(9)
    start = model.init(np.random.default_rng(1))
    rngs = [np.random.default_rng(i) for i in range(2)]
    ends = dict(
        pair
        for index, block in train_local(
            model, start, [Shard(x, y)] * 2, LocalWork(0.1, batch_size=4, epochs=2), rngs=rngs
        )
        for pair in zip(index.tolist(), block, strict=True)
    )
    for i in range(2):
        expected = oracle.local_sgd(
            model.module, start, x, y, learning_rate=0.1, batch_size=4, epochs=2, rng=np.random.default_rng(i)
        )
        torch.testing.assert_close(ends[i], expected, rtol=1e-3, atol=1e-4)


def test_the_bundled_models_reach_their_fast_paths():
    def chosen(name, shape, kind=Kind.IMAGE, **settings):
        model = build_model(name, input_shape=shape, classes=3, kind=kind, vocabulary=7, settings=settings)
        return type(worker_for(model)), dense_layers(model) is not None

    assert chosen("linear", (5,), Kind.VECTOR) == (ChainWorker, True)
    assert chosen("mlp", (5,), Kind.VECTOR, hidden=[4, 3]) == (ChainWorker, True)
    for name in ("cnn", "cnn_small", "cnn_3x3", "cnn_mcmahan"):
        assert chosen(name, (1, 16, 16)) == (ChainWorker, False)
    assert chosen("resnet", (1, 8, 8), channels=[4]) == (AutogradWorker, False)
    assert chosen("bilstm", (4,), Kind.TEXT, embedding=3, hidden=2) == (AutogradWorker, False)


def test_small_convolutional_clients_are_stacked_and_large_ones_are_not():
    def stacked(name, shape, width):
        model = build_model(name, input_shape=shape, classes=3, kind=Kind.IMAGE, settings={})
        stacking = stacking_for(model)
        return stacking is not None and stacking.takes(width)

    assert stacked("cnn_small", (1, 28, 28), 10)
    assert not stacked("cnn_small", (1, 28, 28), 64)
    assert not stacked("cnn", (1, 28, 28), 10)
    assert not stacked("resnet", (1, 8, 8), 2)
    assert stacked("mlp", (1, 28, 28), 1000)


@pytest.mark.parametrize(
    "case",
    [((1, 8, 8), (4, 4), (2, 2), (1, 1)), ((3, 7, 9), (2, 4), (1, 2), (0, 1)), ((2, 6, 6), (3, 3), (1, 1), (2, 0))],
)
def test_unpatch_is_the_transpose_of_patches(case):
    image, size, stride, padding = case
    x = torch.randn(2, *image, dtype=torch.float64)
    rows = unfold_patches(x, size, stride, padding)
    other = torch.randn_like(rows)
    back = fold_patches(other.flatten(0, 1), tuple(x.shape), size, stride, padding)
    assert float((rows * other).sum()) == pytest.approx(float((x * back).sum()))
    weights = torch.randn(5, image[0], *size, dtype=torch.float64)
    expected = functional.conv2d(x, weights, stride=stride, padding=padding).flatten(2)
    by_row = rows @ weights.permute(0, 2, 3, 1).reshape(5, -1).t()
    torch.testing.assert_close(by_row.transpose(1, 2), expected)
    by_pixel = patches_by_pixel(x, size, stride, padding)
    torch.testing.assert_close(torch.einsum("ok,kbp->bop", weights.flatten(1), by_pixel), expected)


def test_rows_by_torch_func_and_one_by_one_agree():
    model = build_model("cnn", input_shape=(1, 8, 8), classes=3, kind=Kind.IMAGE, settings={})
    module, vector = model.module(), model.init(np.random.default_rng(0))
    oracle.load(module, vector)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        vectorised_gradients(module, model, vector, x, y), one_by_one(module, model, vector, x, y)
    )
