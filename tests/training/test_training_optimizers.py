"""Local optimisers equal torch's step by step, alone, stacked and on noised gradients; schedules equal torch's too."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from sightline.data import Kind, Shard
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import Adam, LocalTerms, LocalWork, RateSchedule, dp_sgd, train_local
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.local_work import Descent

RNG = np.random.default_rng
ADAMW = Adam((0.8, 0.95), 1e-6, decoupled=True)

CASES = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.03)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.03)),
    "adam": ({"adam": Adam()}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.03)),
    "adamw": (
        {"adam": ADAMW},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.03),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stacked", [False, True])
def test_every_step_is_torchs(name, stacked):
    settings, make = CASES[name]
    shape = (3, 40) if stacked else (40,)
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator)
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    clients = [0, 1, 2] if stacked else 0
    descent = Descent.begin(LocalWork(0.1, weight_decay=0.03, **settings), LocalTerms(), ours, clients)
    optimizer = make([theirs])
    for _ in range(7):
        gradient = torch.randn(shape, generator=generator) * 10 ** torch.randn(1, generator=generator)
        theirs.grad = gradient.clone()
        optimizer.step()
        descent.step(ours, gradient.clone())
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_clients_that_fall_off_a_stack_leave_the_others_as_they_were():
    """A stack whose last client has fewer examples equals every client by itself, whatever the optimiser keeps."""
    model = build_model("mlp", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={"hidden": [5]})
    rng = RNG(0)
    shards = [Shard(rng.standard_normal((n, 4), dtype=np.float32), rng.integers(3, size=n)) for n in (12, 11, 3)]
    start = model.init(rng)
    for adam in (Adam(), ADAMW):
        work = LocalWork(0.05, batch_size=4, epochs=2, weight_decay=0.1, adam=adam)
        together = ends_of(train_local(model, start, shards, work, rngs=[RNG(i) for i in range(3)]), 3)
        for client, shard in enumerate(shards):
            alone = ends_of(train_local(model, start, [shard], work, rngs=[RNG(client)]), 1)
            torch.testing.assert_close(together[client], alone[0], rtol=1e-5, atol=1e-6)
        assert not torch.allclose(together[0], start, atol=1e-2)


def ends_of(blocks, count):
    found = {int(client): row for index, rows in blocks for client, row in zip(index, rows, strict=True)}
    return [found[client] for client in range(count)]


@pytest.mark.parametrize("adam", [Adam(), ADAMW])
def test_what_a_mask_holds_does_not_move(adam):
    """Neither moments nor decoupled decay may move a parameter that a subject does not train."""
    start, mask = torch.randn(20), (torch.arange(20) % 2).float()
    weights = start.clone()
    work = LocalWork(0.1, weight_decay=0.5, adam=adam)
    descent = Descent.begin(work, LocalTerms(mask=mask), weights, 0)
    for _ in range(3):
        descent.step(weights, torch.randn(20))
    assert torch.equal(weights[mask == 0], start[mask == 0])
    assert bool((weights[mask == 1] != start[mask == 1]).all())


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"adam": Adam()}, {"adam": ADAMW}])
def test_private_steps_feed_the_optimizer_noised_gradients(settings):
    """DP-SGD ends in torch's optimiser on (clipped sum + noise) / divisor: post-processing, fresh in every call."""
    from sightline.training import clipped_gradient_sum
    from sightline.training.dp_sgd_settings import gaussian_steps

    model = build_model("linear", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={})
    rng = RNG(0)
    shard = Shard(rng.standard_normal((9, 4), dtype=np.float32), rng.integers(3, size=9))
    start, steps = model.init(rng), 4
    how = DPSGDSettings(0.5, [0.7], [1.0], [steps], [9.0], [RNG(1)], [RNG(2)])
    work = LocalWork(0.1, weight_decay=0.01, **settings)
    (found,) = ends_of(dp_sgd(model, start, [shard], work, how), 1)
    theirs = torch.nn.Parameter(start.clone())
    adam = settings.get("adam")
    if adam is None:
        optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    else:
        kind = torch.optim.AdamW if adam.decoupled else torch.optim.Adam
        optimizer = kind([theirs], lr=0.1, betas=adam.betas, eps=adam.eps, weight_decay=0.01)
    noises = gaussian_steps(model.parameters, rng=RNG(2))
    for _ in range(steps):
        total = clipped_gradient_sum(model, theirs.detach(), shard.x, shard.y, clip_norm=0.5)
        theirs.grad = (total + 0.7 * next(noises)) / 9.0
        optimizer.step()
    torch.testing.assert_close(found, theirs.detach(), rtol=1e-4, atol=1e-5)


def torch_rates(make, rounds):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    schedule, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RateSchedule("constant", 8), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (RateSchedule("cosine", 8), lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8)),
        (RateSchedule("linear", 8), lambda o: lr_scheduler.LinearLR(o, 1.0, 1e-30, total_iters=8)),
        (RateSchedule("step", 8, decay_every=3, decay=0.5), lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5)),
        (RateSchedule("constant", 8, warmup=4), lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, total_iters=3)),
    ],
)
def test_schedules_are_torchs(ours, theirs):
    found = [ours.rate_at(time, 0.3) for time in range(1, 9)]
    assert found == pytest.approx(torch_rates(theirs, 8), rel=1e-6, abs=1e-9)
    assert min(found) > 0


def test_settings_that_contradict_each_other_are_one_line():
    with pytest.raises(InvalidInput, match="cannot be combined with Adam"):
        LocalWork(0.1, momentum=0.9, adam=Adam())
    with pytest.raises(InvalidInput, match="cannot be combined with Adam"):
        LocalWork(0.1, compiled=True, adam=Adam())
    for bad in ({"betas": (1.0, 0.9)}, {"eps": 0.0}):
        with pytest.raises(InvalidInput):
            Adam(**bad)
