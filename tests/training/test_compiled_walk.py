"""Compiled steps of convolutional clients: those of torch.optim and autograd, a client's own bits, and the way back without them."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from sightline.data import Kind, Shard
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import Adam, LocalTerms, LocalWork, train_local
from sightline.training.compiled import compile_kernels, kernel_calls, library
from sightline.training.compiled import kernels as conv_walk
from sightline.training.compiled.kernels import WalkKernel, read_stages, walk_kernel_for
from sightline.training.fast.stacked import PlainRun
from sightline.training.local_work import Paths, shuffled_batches, steps_of
from tests.oracle import training_oracle

FOUND = library.find_library()
NONE = (
    isinstance(FOUND, library.Missing) and compile_kernels.find_compiler() is None
)  # with a compiler there must be code
pytestmark = pytest.mark.skipif(NONE, reason="there is no C compiler here, and no compiled code was shipped")
COMPILED = Paths(plain="compiled")
RNG = np.random.default_rng

WIDTHS = {"narrow": ("-O1", "-march=native", "-DSIGHTLINE_NARROW"), "portable": ("-O1",)}
"""Builds for vectors of 8 numbers (on a processor that has 16) and of 4: -O1 compiles quickly."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Width -> library; those that cannot be compiled here are left out."""
    found = {"found": FOUND}
    compiler = compile_kernels.find_compiler()
    for name, flags in WIDTHS.items() if compiler else ():
        path = tmp_path_factory.mktemp("kernels") / f"{name}.so"
        if not compile_kernels.compile_sources(compiler, path, flags):
            found[name] = kernel_calls.open_library(str(path))
    return found


CHAINS = {
    "small": lambda: nn.Sequential(
        nn.Conv2d(1, 5, 4, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(5, 20, 2), nn.Tanh(), nn.Flatten(),
        nn.Linear(20 * 9, 7), nn.ReLU(), nn.Linear(7, 3),
    ),
    "uneven": lambda: nn.Sequential(
        nn.Conv2d(2, 17, (3, 2), stride=(1, 3), padding=(2, 1), bias=False), nn.MaxPool2d((3, 2), (2, 1), (1, 1)), nn.Tanh(),
        nn.Conv2d(17, 33, 3, padding=1), nn.Flatten(), nn.ReLU(), nn.Linear(33 * 3 * 5, 4, bias=False),
    ),
    "tanh first": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 2 * 1, 2), nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3),
    ),
}  # fmt: skip
SHAPES = {"small": (1, 11, 11), "uneven": (2, 4, 10), "tanh first": (3, 11, 8)}
CLASSES = {"small": 3, "uneven": 4, "tanh first": 3}


@cache
def model_of(name):
    facts = {"input_shape": SHAPES[name], "classes": CLASSES[name], "kind": Kind.IMAGE, "settings": {}}
    torch.manual_seed(0)
    return build_model("given", factory=lambda: CHAINS[name](), **facts)


def shards_of(name, sizes, seed=3):
    rng = RNG(seed)
    return [
        Shard(rng.standard_normal((n, *SHAPES[name]), dtype=np.float32), rng.integers(CLASSES[name], size=n))
        for n in sizes
    ]


def naive_end(name, start, shard, work, terms, rng):
    """One client by autograd and the equations of `LocalWork` and `LocalTerms`, in double."""
    model, w = model_of(name), start.double()
    velocity, anchor = torch.zeros_like(w), w if terms.anchor is None else terms.anchor.double()
    for batch in shuffled_batches(len(shard), work, steps_of(len(shard), work), rng):
        rows = slice(None) if batch is None else batch
        module = training_oracle.load(model.module().double(), w)
        loss = nn.functional.cross_entropy(
            module(torch.from_numpy(shard.x[rows]).double()), torch.from_numpy(shard.y[rows])
        )
        g = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))])
        g = (
            g
            + work.weight_decay * w
            + terms.proximal * (w - anchor)
            + (0 if terms.linear is None else terms.linear.double())
        )
        g = g if terms.mask is None else g * terms.mask
        if work.step_norm is not None:
            g = g * min(1.0, work.step_norm / float(g.norm()))
        velocity = work.momentum * velocity + g
        w = w - work.learning_rate * velocity
    return w.float()


def walked_ends(name, shards, work, terms, loaded, start, first=0):
    model = model_of(name)
    kernel = WalkKernel(loaded, read_stages(model), conv_walk.chunk_of(read_stages(model)))
    steps = [steps_of(len(shard), work) for shard in shards]
    run = PlainRun(model, start, shards, work, terms, [RNG(first + i) for i in range(len(shards))], steps)
    return conv_walk.walk_clients(kernel, run, np.arange(len(shards)))


def all_terms(d):
    rng = RNG(11)
    linear, mask = 0.01 * rng.standard_normal(d), rng.random(d) < 0.7
    anchor = 0.1 * rng.standard_normal(d)
    return LocalTerms(0.3, *(torch.from_numpy(part).float() for part in (anchor, linear, mask.astype(float))))


WORKS = {
    "plain": {"batch_size": 4, "epochs": 2},
    "momentum and decay": {"batch_size": 5, "epochs": 2, "momentum": 0.6, "weight_decay": 0.05},
    "short steps": {"batch_size": 3, "steps": 4, "step_norm": 0.1},
    "whole shard": {"batch_size": None, "steps": 3},
}


@pytest.mark.parametrize("width", ["found", *WIDTHS])
@pytest.mark.parametrize("how", WORKS)
@pytest.mark.parametrize("name", CHAINS)
def test_steps_are_those_of_autograd(libraries, name, how, width):
    if width not in libraries:
        pytest.skip("there is no C compiler here")
    work = LocalWork(0.1, **WORKS[how])
    start = model_of(name).init(RNG(1))
    terms = all_terms(len(start)) if how != "plain" else LocalTerms()
    shards = shards_of(name, [7, 1, 0, 18])
    ends = walked_ends(name, shards, work, terms, libraries[width], start)
    for client, shard in enumerate(shards):
        expected = naive_end(name, start, shard, work, terms, RNG(client))
        moved = float((expected - start).norm())
        assert float((ends[client] - expected).norm()) <= 1e-5 * moved + 1e-7 * float(start.norm())
        assert moved > 1e-3 or len(shard) == 0


@pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 33, 70])
def test_batches_of_any_size(libraries, batch):
    start, (shard,) = model_of("small").init(RNG(2)), shards_of("small", [70])
    work = LocalWork(0.05, batch_size=batch, steps=2)
    (end,) = walked_ends("small", [shard], work, LocalTerms(), FOUND, start)
    expected = naive_end("small", start, shard, work, LocalTerms(), RNG(0))
    assert float((end - expected).norm()) <= 1e-5 * float((expected - start).norm())


@pytest.mark.parametrize("name", ["cnn", "cnn_small"])
def test_bundled_networks_take_it_and_no_path_changes_the_result(name):
    model = build_model(name, input_shape=(1, 28, 28), classes=10, kind=Kind.IMAGE, settings={})
    assert isinstance(walk_kernel_for(model), WalkKernel)
    rng, start = RNG(0), model.init(RNG(1))
    shards = [Shard(rng.standard_normal((n, 1, 28, 28), dtype=np.float32), rng.integers(10, size=n)) for n in (12, 5)]

    def ends(plain):
        work = LocalWork(0.1, batch_size=5, epochs=1, paths=Paths(plain=plain))
        found = torch.full((2, model.parameters), torch.nan)
        for index, block in train_local(model, start, shards, work, rngs=[RNG(5), RNG(6)]):
            found[torch.from_numpy(index)] = block
        return found - start

    stacked, looped, compiled = (ends(plain) for plain in ("stack", "loop", "compiled"))
    assert float((compiled - stacked).norm()) <= 1e-4 * float(stacked.norm())
    assert float((looped - stacked).norm()) <= 1e-4 * float(stacked.norm())
    assert not torch.equal(compiled, stacked)


def test_a_client_has_its_own_bits_whoever_else_is_trained():
    start, shards = model_of("uneven").init(RNG(1)), shards_of("uneven", [5, 40, 13])
    work = LocalWork(0.1, batch_size=6, epochs=2, momentum=0.5)
    together = walked_ends("uneven", shards, work, LocalTerms(), FOUND, start)
    alone = walked_ends("uneven", shards[2:], work, LocalTerms(), FOUND, start, first=2)
    assert torch.equal(together[2], alone[0])


def test_what_is_not_a_number_stays_so():
    start, shards = model_of("small").init(RNG(1)), shards_of("small", [4, 4])
    shards[0].x[2, 0, 4, 4] = np.nan
    ends = walked_ends("small", shards, LocalWork(0.1, batch_size=2, steps=2), LocalTerms(), FOUND, start)
    assert ends[0].isnan().any()
    assert ends[1].isfinite().all()


def test_the_mask_holds_and_nothing_else_does():
    start, shards = model_of("small").init(RNG(1)), shards_of("small", [6])
    mask = torch.zeros(len(start))
    mask[::2] = 1.0
    (end,) = walked_ends("small", shards, LocalWork(0.1, batch_size=2, epochs=1), LocalTerms(mask=mask), FOUND, start)
    assert torch.equal(end[1::2], start[1::2])
    assert (end != start)[::2].float().mean() > 0.9


@pytest.mark.parametrize("width", ["found", *WIDTHS])
def test_no_step_is_longer_than_asked(libraries, width):
    """What the claim of a segment rests on."""
    if width not in libraries:
        pytest.skip("there is no C compiler here")
    start, shards = torch.zeros(model_of("uneven").parameters), shards_of("uneven", [9, 3, 1])
    work = LocalWork(1.0, batch_size=None, steps=1, step_norm=0.25)
    for norm in (0.26, 300.0):  # of the gradient: all that moves these weights is the linear term
        terms = LocalTerms(linear=torch.full_like(start, norm / len(start) ** 0.5))
        for end in walked_ends("uneven", shards, work, terms, libraries[width], start):
            assert 0.2499 < float((end - start).double().norm()) <= 0.25 * (1 + 1e-5)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes_never_reach_the_kernel(label):
    model, (shard,) = model_of("small"), shards_of("small", [4])
    shard.y[2] = label
    work = LocalWork(0.1, batch_size=2, steps=1, paths=COMPILED)
    with pytest.raises(InvalidInput, match=rf"label={label}: labels are 0 to 2"):
        list(train_local(model, model.init(RNG(0)), [shard], work, rngs=[RNG(0)]))


def test_examples_of_another_size_never_reach_the_kernel():
    model, (shard,) = model_of("small"), shards_of("uneven", [4])
    work = LocalWork(0.1, batch_size=2, steps=1, paths=COMPILED)
    with pytest.raises(InvalidInput, match=r"takes examples of shape \(1, 11, 11\)"):
        list(train_local(model, model.init(RNG(0)), [shard], work, rngs=[RNG(0)]))


REFUSED = {
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)),
    "dilation": lambda: nn.Sequential(nn.Conv2d(2, 4, 2, dilation=2), nn.Flatten(), nn.Linear(16, 3)),
    "same padding": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten(), nn.Linear(64, 3)),
    "another pool": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)),
    "pools": lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)),
    "no dense layer": lambda: nn.Sequential(nn.Conv2d(2, 3, 4), nn.Flatten()),
    "last activation": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3), nn.Tanh()),
    "norm": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)),
    "large": lambda: nn.Sequential(nn.Conv2d(2, 9000, 1), nn.Flatten(), nn.Linear(144000, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_have_a_reason(name):
    model = build_model("given", factory=REFUSED[name], input_shape=(2, 4, 4), classes=3, kind=Kind.IMAGE, settings={})
    reason = walk_kernel_for(model)
    assert isinstance(reason, str)
    assert reason


def test_other_models_are_trained_as_before():
    facts = {"input_shape": (2, 4, 4), "classes": 3, "kind": Kind.IMAGE, "settings": {}}
    model = build_model("given", factory=REFUSED["pools"], **facts)
    rng, start = RNG(0), model.init(RNG(1))
    shard = Shard(rng.standard_normal((4, 2, 4, 4), dtype=np.float32), rng.integers(3, size=4))
    works = [LocalWork(0.1, batch_size=2, paths=paths) for paths in (Paths(), COMPILED)]
    ends = [next(train_local(model, start, [shard], work, rngs=[RNG(0)]))[1] for work in works]
    assert torch.equal(*ends)


def test_adam_and_bf16_are_not_walked(monkeypatch):
    from sightline.training import local_training

    model = model_of("small")
    assert local_training.takes_compiled_walk(model, LocalWork(0.1, paths=COMPILED))
    assert not local_training.takes_compiled_walk(model, LocalWork(0.1, paths=COMPILED, adam=Adam()))
    assert not local_training.takes_compiled_walk(model, LocalWork(0.1, paths=COMPILED, precision="bf16"))
    assert not local_training.takes_compiled_walk(model, LocalWork(0.1))
    monkeypatch.setattr(conv_walk, "KERNELS", {model: "there is none"})
    assert not local_training.takes_compiled_walk(model, LocalWork(0.1, paths=COMPILED))


def test_the_first_of_equals_wins():
    """Whole numbers in and out: windows are full of equals, over different patches."""
    rng, start = RNG(4), model_of("small").init(RNG(1))
    weight, bias = model_of("small").layout[:2]
    start[: weight.stop] = torch.from_numpy(rng.integers(-1, 2, weight.size)).float()
    start[bias.start : bias.stop] = 0.0
    shard = Shard(rng.integers(-1, 2, (6, *SHAPES["small"])).astype(np.float32), rng.integers(3, size=6))
    work = LocalWork(0.1, batch_size=None, steps=1)
    (end,) = walked_ends("small", [shard], work, LocalTerms(), FOUND, start)
    expected = naive_end("small", start, shard, work, LocalTerms(), RNG(0))
    assert float((end - expected).norm()) <= 1e-5 * float((expected - start).norm())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(value > most) | (value != value)", "(value < most)"),
        ("(cell == spread_cell(cy * wide + cx))", "(spread_cell(0) == spread_cell(cy * wide + cx))"),
    ],
)
def test_the_probe_refuses_a_kernel_whose_pool_is_wrong(old, new, tmp_path, monkeypatch):
    compiler = compile_kernels.find_compiler()
    if compiler is None:
        pytest.skip("there is no C compiler here")
    sources = [tmp_path / source.name for source in compile_kernels.SOURCES]
    for source, planted in zip(compile_kernels.SOURCES, sources, strict=True):
        text = source.read_text()
        assert text.count(old) == (source.name == "conv_walk.c")
        planted.write_text(text.replace(old, new))
    assert not compile_kernels.compile_sources(compiler, tmp_path / "kernels.so", ("-O0",), tuple(sources))
    monkeypatch.setattr(conv_walk, "find_library", lambda: kernel_calls.open_library(str(tmp_path / "kernels.so")))
    assert "are not those of autograd" in conv_walk._choose_kernel(model_of("small"))
