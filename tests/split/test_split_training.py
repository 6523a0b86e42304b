"""Gradients outside a part are exactly zero, clip norms hold per part, and the fast sums equal the naive loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from split_masked import clipped, gradient_in
from training_oracle import load

from sightline.data import Kind, Shard
from sightline.events import Adjacency, Gaussian, Product, Split
from sightline.mechanisms import Splitter
from sightline.mechanisms.clip_and_noise import FloatSum, sum_and_noise
from sightline.models import build_model, probe_inputs, split_model
from sightline.training import LocalTerms, LocalWork, dp_sgd, train_local
from sightline.training.clipping import Balls, clipped_rows_apart
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings, gaussian_steps
from sightline.training.gradients import GradientWorker, one_by_one
from sightline.training.submodels import dp_sgd_parts, parted_gradient_sum, train_parts

from .conftest import split

CASES = [
    ("mlp", {"parts": 3}),
    ("mlp", {"parts": 2, "unsplit": ["last"], "partitions": 2}),
    ("resnet", {"parts": 2, "unsplit": ["first", "last"]}),
    ("mlp", {"parts": [["hidden0", "output.weight"], ["hidden1.weight"], ["hidden2"]], "part_weights": [0.5, 0.3, 0.2]}),
    ("cnn", {
        "parts": [[["conv1"], ["conv2", "output"]], [["conv1.weight", "output.weight"], ["conv2.weight"], ["conv2.bias"]]],
        "partition_weights": [2, 1],
    }),
]  # fmt: skip


def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture(params=range(len(CASES)))
def splitter(request):
    name, settings = CASES[request.param]
    model = request.getfixturevalue(name)
    return Splitter(split_model(model, split(**settings), rng=rng(0)), unsplit_clip=0.5, unsplit_noise=2.0)


def examples(model, count, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, *model.input_shape)).astype(np.float32)
    return x, np.arange(count) % model.classes


def test_the_sum_is_the_naive_loop(splitter):
    splitting, model = splitter.splitting, splitter.splitting.whole
    weights = model.init(rng(1))
    x, y = examples(model, 9)
    apart = splitter.clip_radii(0.3)
    total = parted_gradient_sum(splitting, weights, x, y, apart, rng=rng(2))
    assigned = splitting.draw(9, rng=rng(2))
    expected = torch.zeros(model.parameters)
    for number, one_x, one_y in zip(assigned, torch.from_numpy(x), torch.from_numpy(y), strict=True):
        own = gradient_in(splitting.submodels[number], model, weights, one_x, one_y)
        expected += clipped(own, splitter.unsplit, 0.3, 0.15)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


def test_one_example_stays_in_its_part_and_in_both_balls(splitter):
    splitting, model = splitter.splitting, splitter.splitting.whole
    weights = 3 * model.init(rng(1))
    x, y = examples(model, 12)
    lengths = []
    for place in range(12):
        one = parted_gradient_sum(
            splitting,
            weights,
            50 * x[place : place + 1],
            y[place : place + 1],
            splitter.clip_radii(0.2),
            rng=rng(place),
        )
        part = splitting.submodels[int(splitting.draw(1, rng=rng(place))[0])]
        outside = torch.ones(model.parameters, dtype=torch.bool)
        outside[part.trained] = False
        assert (one[outside] == 0).all()
        lengths.append([float(one[piece].double().norm()) for piece in (~splitter.unsplit, splitter.unsplit)])
    longest = np.max(lengths, axis=0)
    assert (longest <= [0.2, 0.1]).all()
    assert (longest > [0.199, 0.099]).all(), "nothing was clipped: the test says nothing"


def test_broken_examples_contribute_nothing(splitter):
    splitting, model = splitter.splitting, splitter.splitting.whole
    weights, (x, y) = model.init(rng(1)), examples(model, 4)
    x[0] = np.inf
    alone = parted_gradient_sum(splitting, weights, x[:1], y[:1], splitter.clip_radii(0.2), rng=rng(0))
    assert (alone == 0).all()
    together = parted_gradient_sum(splitting, weights, x, y, splitter.clip_radii(0.2), rng=rng(0))
    assert torch.isfinite(together).all()
    assert (together != 0).any()


def test_private_steps_are_the_naive_loop(splitter):
    splitting, model = splitter.splitting, splitter.splitting.whole
    start, (x, y) = model.init(rng(1)), examples(model, 10)
    work = LocalWork(learning_rate=0.3, momentum=0.5, weight_decay=0.1)
    apart, z = splitter.clip_radii(0.3), 1.5
    ((_, ends),) = dp_sgd_parts(
        splitting,
        start,
        [Shard(x, y)],
        work,
        DPSGDSettings(
            clip_norm=apart.clip_norm,
            noise_std=[z],
            sample_rates=[0.5],
            steps=[3],
            divisors=[5.0],
            sampling_rngs=[rng(4)],
            noise_rngs=[rng(5)],
        ),
        apart=apart,
        assign_rngs=[rng(3)],
    )
    weights, velocity = start.clone(), torch.zeros_like(start)
    coins, parts, noises = rng(4), rng(3), gaussian_steps(model.parameters, rng=rng(5))
    batches = coins.random((3, 10)) < 0.5
    std = torch.where(splitter.unsplit, torch.tensor(0.3 * 0.5 * 2.0 * z), torch.tensor(0.3 * z))
    for batch in batches:
        places = np.flatnonzero(batch)
        assigned = splitting.draw(len(places), rng=parts)
        total = torch.zeros(model.parameters)
        for number, place in zip(assigned, places, strict=True):
            sub = splitting.submodels[number]
            own = gradient_in(sub, model, weights, torch.from_numpy(x)[place], torch.from_numpy(y)[place])
            total += clipped(own, splitter.unsplit, 0.3, 0.15)
        step = (total + std * next(noises)) / 5.0 + 0.1 * weights
        velocity = 0.5 * velocity + step
        weights = weights - 0.3 * velocity
    torch.testing.assert_close(ends[0], weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_one_part_is_plain_dp_sgd(request, name):
    model = request.getfixturevalue(name)
    splitter = Splitter(split_model(model, split(parts=1), rng=rng(0)))
    start, (x, y) = model.init(rng(1)), examples(model, 12)
    work = LocalWork(learning_rate=0.3)
    shared = {"sample_rates": [0.5], "steps": [4], "divisors": [6.0]}

    def streams():
        return {"sampling_rngs": [rng(4)], "noise_rngs": [rng(5)]}

    ((_, ours),) = dp_sgd_parts(
        splitter.splitting,
        start,
        [Shard(x, y)],
        work,
        DPSGDSettings(clip_norm=splitter.clip_radii(0.7).clip_norm, noise_std=[1.5], **shared, **streams()),
        apart=splitter.clip_radii(0.7),
        assign_rngs=[rng(3)],
    )
    ((_, plain),) = dp_sgd(
        model, start, [Shard(x, y)], work, DPSGDSettings(clip_norm=0.7, noise_std=[1.5 * 0.7], **shared, **streams())
    )
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_parts_of_an_lstm_can_be_named():
    """An LSTM has no part that is a smaller network; its tensors outside the drawn part do not move."""
    model = build_model("lstm", input_shape=(6,), classes=3, kind=Kind.TEXT, settings={}, vocabulary=20)
    splitting = split_model(model, split(parts=[["lstm"], ["inputs", "output.weight"]]), rng=rng(0))
    splitter = Splitter(splitting, unsplit_clip=0.5)
    assert splitting.unsplit == {"output.bias"}
    weights, x, y = model.init(rng(1)), rng(0).integers(0, 20, (6, 6)), np.arange(6) % 3
    for number in range(2):
        total = parted_gradient_sum(splitting, weights, x, y, splitter.clip_radii(0.1), rng=Only(number))
        sub, expected = splitting.submodels[number], torch.zeros(model.parameters)
        for one_x, one_y in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
            expected += clipped(gradient_in(sub, model, weights, one_x, one_y), splitter.unsplit, 0.1, 0.05)
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
        held = total[sub.moves == 0]
        assert len(held)
        assert (held == 0).all()


class Only:
    """Draws one number."""

    def __init__(self, number):
        self.number = number

    def integers(self, high, size):
        return np.full(size, self.number)


TERMS = [{}, {"proximal": 0.7}, {"linear": True}]


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_clients_move_only_their_part(splitter, terms):
    splitting, model = splitter.splitting, splitter.splitting.whole
    starts = torch.stack([model.init(rng(seed)) for seed in range(5)])
    shards = [Shard(*examples(model, 6 + client, client)) for client in range(5)]
    work = LocalWork(learning_rate=0.2, momentum=0.5, weight_decay=0.1, batch_size=3, epochs=2)
    given = LocalTerms(**({"linear": torch.ones(model.parameters)} if "linear" in terms else terms))
    assigned = list(splitting.draw(5, rng=rng(7)))
    found = {}
    for clients, ends in train_parts(
        splitting, starts, shards, work, assigned=assigned, rngs=[rng(c) for c in range(5)], terms=given
    ):
        found |= dict(zip(clients.tolist(), ends, strict=True))
    assert sorted(found) == list(range(5))
    for client, end in found.items():
        sub = splitting.submodels[assigned[client]]
        outside = torch.ones(model.parameters, dtype=torch.bool)
        outside[sub.trained] = False
        assert (end[outside] == starts[client][outside]).all()
        inside = LocalTerms(linear=torch.ones(sub.model.parameters)) if "linear" in terms else given
        inside = replace(inside, mask=sub.moves)
        ((_, alone),) = train_local(
            sub.model, starts[client][sub.positions], [shards[client]], work, rngs=[rng(client)], terms=inside
        )
        torch.testing.assert_close(end[sub.positions], alone[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "settings", "kind"), [
    ("mlp", {"hidden": [7, 5]}, Kind.VECTOR),
    ("mlp", {"hidden": [7, 5], "dropout": 0.5}, Kind.VECTOR),
    ("cnn", {}, Kind.IMAGE),
    ("resnet", {"channels": [4], "depth": 2, "groups": 2}, Kind.IMAGE),
])  # fmt: skip
def test_every_worker_clips_in_balls_as_the_definition_does(name, settings, kind):
    shape = (6,) if kind is Kind.VECTOR else (2, 12, 12)
    model = build_model(name, input_shape=shape, classes=3, kind=kind, settings=settings)
    balls = Balls((0.4, 0.1), {slot.name: place % 2 for place, slot in enumerate(model.layout)})
    weights = model.init(rng(0))
    x, y = probe_inputs(model, 5), torch.arange(5) % 3
    rows = one_by_one(load(model.module(), weights).eval(), model, weights, x, y)
    expected = clipped_rows_apart(rows, balls, model.layout)
    for columns, radius in zip(balls.columns(model.layout), balls.clip_norms, strict=True):
        by_hand = sum(row[columns] * min(1.0, radius / float(row[columns].norm())) for row in rows)
        torch.testing.assert_close(expected[columns], by_hand, rtol=1e-4, atol=1e-6)
    for worker in (worker_for(model), GradientWorker(model)):
        worker.weights.copy_(weights)
        worker.probing = True
        worker.clipped_sum(worker.inputs(x.numpy()), y, balls)
        torch.testing.assert_close(worker.gradient, expected, rtol=1e-3, atol=1e-5)
        worker.probing = False


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_unsplit_tensors_are_claimed_and_noised_by_their_own_ratio(mlp, ratio):
    """`unsplit_noise` claimed as max(1, r) survived: with r < 1 the noise is smaller than that claim."""
    splitting = split_model(mlp, split(parts=2, unsplit=["last"]), rng=rng(0))
    splitter = Splitter(splitting, unsplit_clip=0.5, unsplit_noise=ratio)
    assert splitter.event(2.0) == Product((Gaussian(2.0 * ratio), Split(2, Gaussian(2.0))))
    noisy, _ = sum_and_noise(
        [],
        splitter.new_sum(FloatSum)(mlp.parameters),
        clip_norm=0.3,
        noise_multiplier=2.0,
        adjacency=Adjacency.ADD_REMOVE,
        rng=rng(1),
    )
    for inside, std in ((splitter.unsplit, 2.0 * ratio * 0.15), (~splitter.unsplit, 0.6)):
        held = noisy[inside] / std
        assert abs(held.square().mean().item() - 1) < 6 / np.sqrt(held.numel())
