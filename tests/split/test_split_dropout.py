"""Dropout one half as two parts: which parameters are split follows from the layers, and the gradients agree."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from sightline import accounting
from sightline.data import Kind, Shard
from sightline.errors import InvalidInput, Refused
from sightline.mechanisms import Splitter
from sightline.models import build_model, split_model, unsplit_mask
from sightline.training import LocalTerms, LocalWork
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.submodels import dp_sgd_parts, parted_gradient_sum, train_parts

from .conftest import split


def dense(input_shape, classes):
    """Two dropout layers around one weight, an input layer and an output layer that touch one each."""
    return nn.Sequential(OrderedDict(
        flat=nn.Flatten(), a=nn.Linear(5, 6), r=nn.ReLU(), d1=nn.Dropout(0.5), b=nn.Linear(6, 4), t=nn.Tanh(),
        d2=nn.Dropout(0.5), c=nn.Linear(4, classes),
    ))  # fmt: skip


def late(input_shape, classes):
    """The first two layers lie before any dropped node."""
    return nn.Sequential(OrderedDict(
        a=nn.Linear(5, 6), r=nn.ReLU(), b=nn.Linear(6, 4), d=nn.Dropout(0.5), c=nn.Linear(4, classes)
    ))  # fmt: skip


def normed(input_shape, classes):
    """A norm between weights and mask mixes nodes: its scale is split, the weights before it are not."""
    return nn.Sequential(OrderedDict(
        a=nn.Linear(5, 6), n=nn.LayerNorm(6), r=nn.ReLU(), d=nn.Dropout(0.5), c=nn.Linear(6, classes)
    ))  # fmt: skip


def normed_after(input_shape, classes):
    """A norm behind the mask gives dropped nodes a value: what follows is unsplit."""
    return nn.Sequential(OrderedDict(
        a=nn.Linear(5, 6), d=nn.Dropout(0.5), n=nn.LayerNorm(6), c=nn.Linear(6, classes)
    ))  # fmt: skip


def saturating(input_shape, classes):
    """A sigmoid makes one half of a dropped node: what follows is unsplit."""
    return nn.Sequential(OrderedDict(
        a=nn.Linear(5, 6), d=nn.Dropout(0.5), s=nn.Sigmoid(), c=nn.Linear(6, classes)
    ))  # fmt: skip


def images(input_shape, classes):
    """Whole channels, pooled and flattened; nested chains."""
    body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.5), nn.MaxPool2d(2))
    return nn.Sequential(OrderedDict(body=body, flat=nn.Flatten(), c=nn.Linear(4 * 9, classes)))


class Twice(nn.Sequential):
    """A chain of its own type is not a plain Sequential."""


def shared(input_shape, classes):
    """One layer in two places, once beside a dropped node and once far from any."""
    same = nn.Linear(5, 5)
    return nn.Sequential(OrderedDict(a=same, r=nn.ReLU(), b=nn.Linear(5, 5), q=nn.ReLU(), again=same,
                                     d=nn.Dropout(0.5), c=nn.Linear(5, classes)))  # fmt: skip


UNSPLIT = {
    "dense": {"c.bias"},
    "late": {"a.weight", "a.bias", "c.bias"},
    "normed": {"a.weight", "a.bias", "c.bias"},
    "normed_after": {"n.weight", "n.bias", "c.weight", "c.bias"},
    "saturating": {"c.weight", "c.bias"},
    "images": {"c.bias"},
    "shared": {"a.weight", "a.bias", "b.weight", "b.bias", "c.bias"},
}


def made(name):
    shape, kind = ((2, 6, 6), Kind.IMAGE) if name == "images" else ((5,), Kind.VECTOR)
    return build_model(f"{__name__}:{name}", input_shape=shape, classes=3, kind=kind, settings={})


@pytest.fixture(params=UNSPLIT)
def splitting(request):
    found = split_model(made(request.param), split(by="dropout"), rng=np.random.default_rng(0))
    assert found.unsplit == UNSPLIT[request.param]
    return found


def naive_gradient(model, weights, mask, x, y):
    """Autograd on the user's own module, whose dropout layers are told what to drop."""
    module = model.module()
    torch.nn.utils.vector_to_parameters(weights.clone(), module.parameters())
    place = 0
    for _, layer in list(module.named_modules()):
        if isinstance(layer, nn.Dropout | nn.Dropout2d):
            nodes = {"value": None}

            def drop(_, given, output, nodes=nodes):
                return given[0] * nodes["value"].view(1, -1, *([1] * (given[0].dim() - 2)))

            layer.register_forward_hook(drop)
            layer.p, size = 0.0, {"d1": 6, "d2": 4}.get(_)
            size = size or len(mask)
            nodes["value"] = 2.0 * torch.from_numpy(mask[place : place + size]).float()
            place += size
    loss = nn.functional.cross_entropy(module(x[None]), y[None])
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    flat = [
        torch.zeros(p.numel()) if g is None else g.reshape(-1) for g, p in zip(found, module.parameters(), strict=True)
    ]
    return torch.cat(flat)


def test_a_mask_and_its_complement_share_only_unsplit_parameters(splitting):
    """The law of the proof, on the user's own module: for many masks and inputs."""
    model, unsplit = splitting.whole, unsplit_mask(splitting.whole, splitting.unsplit)
    generator = np.random.default_rng(3)
    weights = torch.randn(model.parameters, generator=torch.manual_seed(0))
    for _ in range(25):
        mask = splitting.draw(1, rng=generator)[0]
        x = torch.from_numpy(generator.normal(size=model.input_shape).astype(np.float32))
        one, other = (naive_gradient(model, weights, m, x, torch.tensor(1)) for m in (mask, ~mask))
        both = (one != 0) & (other != 0)
        assert not (both & ~unsplit).any()
        assert (one[splitting.kept(mask) == 0] == 0).all()


def test_the_sum_is_the_naive_loop(splitting):
    model = splitting.whole
    splitter = Splitter(splitting, unsplit_clip=0.5)
    weights = torch.randn(model.parameters, generator=torch.manual_seed(1))
    x = np.random.default_rng(0).normal(size=(8, *model.input_shape)).astype(np.float32)
    y = np.arange(8) % 3
    total = parted_gradient_sum(splitting, weights, x, y, splitter.clip_radii(0.3), rng=np.random.default_rng(2))
    masks = splitting.draw(8, rng=np.random.default_rng(2))
    expected = torch.zeros(model.parameters)
    for mask, one_x, one_y in zip(masks, torch.from_numpy(x), torch.from_numpy(y), strict=True):
        own = naive_gradient(model, weights, mask, one_x, one_y)
        for piece, radius in ((~splitter.unsplit, 0.3), (splitter.unsplit, 0.15)):
            norm = float(own[piece].norm())
            expected[piece] += own[piece] * (min(1.0, radius / norm) if norm else 1.0)
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-5)


def test_clients_hold_one_mask_through_all_steps(splitting):
    model = splitting.whole
    start = torch.randn(model.parameters, generator=torch.manual_seed(1))
    x = np.random.default_rng(0).normal(size=(8, *model.input_shape)).astype(np.float32)
    shards = [Shard(x, np.arange(8) % 3)] * 3
    work = LocalWork(learning_rate=0.1, momentum=0.5, weight_decay=0.1, batch_size=4, epochs=3)
    masks = list(splitting.draw(3, rng=np.random.default_rng(5)))
    rngs = [np.random.default_rng(c) for c in range(3)]
    terms = LocalTerms(proximal=0.3)
    for clients, ends in train_parts(splitting, start, shards, work, assigned=masks, rngs=rngs, terms=terms):
        for client, end in zip(clients.tolist(), ends, strict=True):
            still = splitting.kept(masks[client]) == 0
            assert (end[still] == start[still]).all()
            assert (end[~still] != start[~still]).any()


def test_masks_are_fair_and_independent():
    """24,000 fair coins per node: a mean off by .02 has probability below 1e-8 for all nodes together."""
    found = split_model(made("dense"), split(by="dropout"), rng=np.random.default_rng(0))
    masks = found.draw(24_000, rng=np.random.default_rng(1)).astype(float)
    assert np.abs(masks.mean(0) - 0.5).max() < 0.02
    assert np.abs(np.corrcoef(masks.T) - np.eye(found.nodes)).max() < 0.05


def test_private_steps_run(splitting):
    model = splitting.whole
    x = np.random.default_rng(0).normal(size=(8, *model.input_shape)).astype(np.float32)
    streams = [[np.random.default_rng(n)] for n in range(3)]
    ((_, ends),) = dp_sgd_parts(
        splitting,
        model.init(np.random.default_rng(0)),
        [Shard(x, np.arange(8) % 3)],
        LocalWork(learning_rate=0.1),
        DPSGDSettings(
            clip_norm=Splitter(splitting).clip_radii(0.3).clip_norm,
            noise_std=[1.0],
            sample_rates=[0.5],
            steps=[3],
            divisors=[4.0],
            sampling_rngs=streams[1],
            noise_rngs=streams[2],
        ),
        apart=Splitter(splitting).clip_radii(0.3),
        assign_rngs=streams[0],
    )
    assert torch.isfinite(ends).all()


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_run_costs_the_dropout_scheme(tiny, tmp_path, unit):
    changes = {"algorithm.split": "dropout", "model.dropout": 0.5}
    if unit == "sample":
        changes |= {"privacy.unit": "sample", "privacy.where": "server", "sampling.clients": {"scheme": "full"},
                    "local": {"steps": 1, "batch_size": 10_000, "learning_rate": 0.1}}  # fmt: skip
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    rate = 0.6 if unit == "client" else 1.0
    scheme = accounting.dropout(noise=0.8, rate=rate, steps=3, unsplit_noise=0.8)
    assert run.epsilon == pytest.approx(scheme.epsilon(delta=1e-5), rel=1e-9)


def own(layer):
    def factory(input_shape, classes):
        return nn.Sequential(nn.Conv2d(2, 4, 3), layer(), nn.Flatten(), nn.Linear(4 * 16, classes))

    return factory


pixels, rare, nothing = own(lambda: nn.Dropout(0.5)), own(lambda: nn.Dropout2d(0.25)), own(nn.ReLU)


class Wrapped(nn.Module):
    """A module whose graph is its forward's business."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.Dropout(0.5), nn.Linear(4, classes))

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(("name", "error", "message"), [
    ("pixels", Refused, "whole channels"),
    ("rare", Refused, r"model.dropout=0.25: amplification needs rate 0.5"),
    ("nothing", InvalidInput, "has no dropout layer"),
    ("Wrapped", Refused, r"derived only for a torch\.nn\.Sequential"),
])  # fmt: skip
def test_where_the_proof_does_not_reach(name, error, message):
    model = build_model(f"{__name__}:{name}", input_shape=(2, 6, 6), classes=3, kind=Kind.IMAGE, settings={})
    with pytest.raises(error, match=message):
        split_model(model, split(by="dropout"), rng=np.random.default_rng(0))
