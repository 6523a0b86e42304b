"""What the trainer promises beyond equality with the naive loop."""

import sys
import types

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from test_training_equals_oracle import CASES, gather, model_of, shard_of
from torch import nn

from sightline.data import Kind, Shard
from sightline.errors import InvalidInput, Refused
from sightline.models import build_model
from sightline.training import (
    LocalTerms,
    LocalWork,
    clipped_gradient_sum,
    dp_sgd,
    evaluate_many,
    evaluate_model,
    local_training,
    train_local,
)
from sightline.training.clipping import clipped_rows, row_norms
from sightline.training.dp_sgd_settings import SMALLEST_CLIP_NORM, DPSGDSettings, draw_gaussian, gaussian_steps

RNG = np.random.default_rng


def run(model, starts, shards, work, **options):
    blocks = train_local(model, starts, shards, work, rngs=[RNG(i) for i in range(len(shards))], **options)
    return gather(blocks, len(shards), model.parameters)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_client_does_not_depend_on_the_others_in_a_single_bit(case, batch):
    model, rng = model_of(case), RNG(0)
    shards = [shard_of(model, n, rng) for n in (5, 1, 12, 7, 3, 6, 8)]
    start = model.init(rng)
    work = LocalWork(0.1, 0.5, batch_size=batch, epochs=2)
    together = run(model, start, shards, work)
    for i, shard in enumerate(shards):
        alone = gather(train_local(model, start, [shard], work, rngs=[RNG(i)]), 1, model.parameters)[0]
        assert torch.equal(alone, together[i])


@pytest.mark.parametrize("case", CASES)
def test_a_private_client_does_not_depend_on_the_others_in_a_single_bit(case):
    model, rng = model_of(case), RNG(0)
    shards = [shard_of(model, n, rng) for n in (5, 1, 12, 7, 3, 6, 8)]
    rates = [0.5, 1.0, 0.9, 0.1, 0.5, 0.5, 0.2]
    steps = [3, 1, 4, 2, 3, 3, 2]
    together = private(model, shards, sample_rates=rates, steps=steps)
    for i, shard in enumerate(shards):
        own = {
            "sample_rates": rates[i : i + 1],
            "steps": steps[i : i + 1],
            "sampling_rngs": [RNG(i)],
            "noise_rngs": [RNG(50 + i)],
        }
        assert torch.equal(private(model, [shard], **own)[0], together[i])


@pytest.mark.parametrize("case", ["linear", "cnn"])
def test_blocks_do_not_change_results(case, monkeypatch):
    model, rng = model_of(case), RNG(0)
    shards, start = [shard_of(model, n, rng) for n in (5, 1, 12, 7, 3)], model.init(rng)
    work = LocalWork(0.1, batch_size=4, epochs=1)
    whole = run(model, start, shards, work)
    monkeypatch.setattr(local_training, "BLOCK_BYTES", 4 * model.parameters * 2)
    torch.testing.assert_close(run(model, start, shards, work), whole, rtol=0, atol=1e-6)


def test_steps_epochs_and_stragglers():
    model, rng = model_of("linear"), RNG(0)
    shard, start = shard_of(model, 10, rng), model.init(rng)
    by_steps = run(model, start, [shard], LocalWork(0.1, batch_size=4, steps=6))
    by_epochs = run(model, start, [shard], LocalWork(0.1, batch_size=4, epochs=2))
    assert torch.equal(by_steps, by_epochs)
    uneven = run(model, start, [shard] * 3, LocalWork(0.1, batch_size=4, epochs=5), epochs_of=[0, 2, 5])
    assert torch.equal(uneven[0], start)
    work = LocalWork(0.1, batch_size=4, epochs=2)
    alone = gather(train_local(model, start, [shard], work, rngs=[RNG(1)]), 1, model.parameters)
    torch.testing.assert_close(uneven[1], alone[0])
    assert not torch.equal(uneven[1], uneven[2])


def test_a_mask_holds_parameters_at_their_start():
    for case in ("linear", "mlp", "cnn"):
        model, rng = model_of(case), RNG(0)
        start, mask = model.init(rng), torch.from_numpy(rng.integers(2, size=model.parameters)).float()
        work = LocalWork(0.1, 0.9, 4, 2, None, 0.1)
        ends = run(model, start, [shard_of(model, 9, rng)] * 2, work, terms=LocalTerms(mask=mask))
        assert torch.equal(ends[:, mask == 0], start[mask == 0].expand(2, -1))
        assert not torch.equal(ends[:, mask == 1], start[mask == 1].expand(2, -1))


def test_starts_are_not_changed():
    for case in ("linear", "cnn"):
        model, rng = model_of(case), RNG(0)
        start = model.init(rng)
        before = start.clone()
        run(model, start, [shard_of(model, 4, rng)] * 3, LocalWork(0.1, batch_size=2, epochs=1))
        assert torch.equal(start, before)


def broken(model, rng, n=6):
    shard = shard_of(model, n, rng)
    x = shard.x.copy()
    x[1], x[4] = np.nan, np.inf
    return shard, Shard(x, shard.y)


@pytest.mark.parametrize("case", ["linear", "mlp", "cnn", "resnet"])
def test_a_broken_example_contributes_zero(case):
    model, rng = model_of(case), RNG(0)
    shard, bad = broken(model, rng)
    vector, keep = model.init(rng), np.array([0, 2, 3, 5])
    got = clipped_gradient_sum(model, vector, bad.x, bad.y, clip_norm=0.3)
    torch.testing.assert_close(got, clipped_gradient_sum(model, vector, shard.x[keep], shard.y[keep], clip_norm=0.3))
    nothing = clipped_gradient_sum(model, vector * float("nan"), shard.x, shard.y, clip_norm=0.3)
    assert torch.equal(nothing, torch.zeros_like(vector))


def test_a_ball_below_the_norms_of_float32_is_refused():
    """A gradient of 1e-23 has norm zero, and came through 200 times as long as a ball of 1e-25."""
    model, rng = model_of("linear"), RNG(0)
    shard = shard_of(model, 1, rng)
    with pytest.raises(InvalidInput, match="clip_norm=1e-25"):
        clipped_gradient_sum(model, model.init(rng), shard.x, shard.y, clip_norm=1e-25)
    with pytest.raises(InvalidInput, match="clip_norm=1e-25"):
        private(model, [shard], clip_norm=1e-25)
    tiny = torch.tensor([[1e-11, 1e-17, 1e-23]])
    assert float(clipped_rows(tiny, SMALLEST_CLIP_NORM).double().norm()) <= SMALLEST_CLIP_NORM


def test_norms_of_long_rows_are_not_rounded_down():
    rows = 0.05 * torch.randn(1, 12_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(rows.double().norm())
    assert float(row_norms(rows)) == pytest.approx(exact, rel=1e-6)
    assert float(clipped_rows(rows, 1.0).double().norm()) <= 1.0
    assert float(row_norms(rows[:, :60_000])) == pytest.approx(float(rows[:, :60_000].double().norm()), rel=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(case):
    model, rng = model_of(case), RNG(0)
    shard, vector = shard_of(model, 8, rng), 3 * model.init(rng)
    for clip_norm in (0.01, 0.5):
        whole = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=clip_norm)
        for j in range(8):
            rest = np.delete(np.arange(8), j)
            without = clipped_gradient_sum(model, vector, shard.x[rest], shard.y[rest], clip_norm=clip_norm)
            assert float((whole - without).norm()) <= clip_norm * (1 + 1e-5)
        one = clipped_gradient_sum(model, vector, shard.x[:1], shard.y[:1], clip_norm=1e-4)
        assert float(one.double().norm()) <= 1e-4


def private(model, shards, seed=0, **changes):
    n = len(shards)
    how = {
        "clip_norm": 0.5, "noise_std": [0.5] * n, "sample_rates": [0.5] * n, "steps": [2] * n, "divisors": [2.0] * n,
        "sampling_rngs": [RNG(i) for i in range(n)], "noise_rngs": [RNG(seed + 50 + i) for i in range(n)],
    }  # fmt: skip
    blocks = dp_sgd(model, model.init(RNG(9)), shards, LocalWork(0.1), DPSGDSettings(**how | changes))
    return gather(blocks, n, model.parameters)


@pytest.mark.parametrize("case", ["linear", "mlp", "cnn"])
def test_every_client_has_its_own_noise_of_the_right_size(case):
    model, rng = model_of(case), RNG(0)
    empty = [Shard(shard_of(model, 1, rng).x[:0], np.empty(0, np.int64))] * 3
    stds = [0.0, 1.0, 4.0]
    moved = private(model, empty, noise_std=stds, steps=[1] * 3, sample_rates=[1.0] * 3) - model.init(RNG(9))
    expected = [next(gaussian_steps(model.parameters, rng=RNG(50 + i))) * -0.1 * stds[i] / 2 for i in range(3)]
    torch.testing.assert_close(moved, torch.stack(expected), rtol=1e-4, atol=1e-6)


def test_noise_is_standard_normal_and_reaches_far():
    z = draw_gaussian(2_000_001, rng=RNG(0)).double().numpy()
    assert z.shape == (2_000_001,)
    assert kstest(z, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:1_000_000], z[1_000_001:])[0, 1]) < 5e-3
    assert np.mean(z**4) == pytest.approx(3, abs=0.03)
    tail = np.mean(np.abs(z) > 4)
    assert tail == pytest.approx(6.334e-5, rel=0.3)
    assert torch.equal(draw_gaussian(7, rng=RNG(1)), draw_gaussian(7, rng=RNG(1)))
    assert draw_gaussian(0, rng=RNG(1)).shape == (0,)


def test_noise_takes_every_bit_of_the_tail(monkeypatch):
    from sightline.training import dp_sgd_settings

    monkeypatch.setattr(dp_sgd_settings, "random_words", lambda count, rng: torch.zeros(count, dtype=torch.int64))
    assert float(draw_gaussian(2, rng=RNG(0))[0]) == pytest.approx(np.sqrt(2 * 64 * np.log(2)), rel=1e-5)


def test_noise_from_every_numpy_generator():
    for kind in (np.random.MT19937, np.random.Philox, np.random.PCG64, np.random.SFC64):
        z = draw_gaussian(100_000, rng=np.random.Generator(kind(1)))
        assert kstest(z.numpy(), "norm").pvalue > 1e-3
        pairs = torch.stack([z[:50_000], z[50_000:]])
        radius, angle = pairs.norm(dim=0), torch.atan2(pairs[1], pairs[0])
        assert abs(float(torch.corrcoef(torch.stack([radius, angle]))[0, 1])) < 0.02


@pytest.mark.parametrize("case", ["linear", "mlp", "cnn"])
def test_laid_down_batches_replace_the_coins(case):
    model, rng = model_of(case), RNG(0)
    shards = [shard_of(model, 6, rng) for _ in range(2)]
    coins = [RNG(i) for i in range(2)]
    laid = [[np.flatnonzero(c.random(6) < 0.5) for _ in range(2)] for c in coins]
    torch.testing.assert_close(private(model, shards, batches=laid), private(model, shards))


@pytest.mark.parametrize("case", ["linear", "mlp", "cnn", "bilstm"])
def test_chunks_do_not_change_the_clipped_sum(case, monkeypatch):
    from sightline.training import gradients

    model, rng = model_of(case), RNG(0)
    shard, vector = shard_of(model, 9, rng), model.init(rng)
    whole = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.3)
    monkeypatch.setattr(gradients, "ROW_BYTES", 1)
    torch.testing.assert_close(clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.3), whole)


class Mixing(nn.Module):
    """Mixes examples by hand: only a gradient of each example alone is bounded."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Shared(nn.Module):
    """Uses one layer twice and one weight outside its layer."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.square, self.layer = nn.Linear(input_shape[0], input_shape[0]), nn.Linear(input_shape[0], classes)
        self.scale = nn.Parameter(torch.full((input_shape[0],), 1.5))

    def forward(self, x):
        y = torch.relu(self.square(torch.relu(self.square(x))))
        return self.layer(y * self.scale + nn.functional.linear(x, self.square.weight))


@pytest.fixture
def odd_models(monkeypatch):
    module = types.ModuleType("odd_models")
    module.Mixing, module.Shared = Mixing, Shared
    module.normed = lambda input_shape, classes: nn.Sequential(
        nn.BatchNorm1d(input_shape[0]), nn.Linear(input_shape[0], classes)
    )
    module.dropped = lambda input_shape, classes: nn.Sequential(nn.Dropout(0.5), nn.Linear(input_shape[0], classes))
    monkeypatch.setitem(sys.modules, "odd_models", module)


def odd(name):
    return build_model(f"odd_models:{name}", input_shape=(5,), classes=3, kind=Kind.VECTOR, settings={})


@pytest.mark.usefixtures("odd_models")
@pytest.mark.parametrize("name", ["Mixing", "Shared"])
def test_odd_modules_are_clipped_by_the_definition(name):
    import training_oracle as oracle

    model, rng = odd(name), RNG(0)
    shard, vector = shard_of(model, 7, rng), model.init(rng)
    got = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.2)
    torch.testing.assert_close(
        got, oracle.clipped_sum(model.module, vector, shard.x, shard.y, 0.2), rtol=1e-4, atol=1e-6
    )


@pytest.mark.usefixtures("odd_models")
def test_batch_norm_is_refused_in_private_only():
    model, rng = odd("normed"), RNG(0)
    shard = shard_of(model, 7, rng)
    with pytest.raises(Refused, match="GroupNorm"):
        clipped_gradient_sum(model, model.init(rng), shard.x, shard.y, clip_norm=1.0)
    assert torch.isfinite(run(model, model.init(rng), [shard], LocalWork(0.1, epochs=2))).all()


@pytest.mark.usefixtures("odd_models")
def test_dropout_comes_from_the_clients_generator():
    model, rng = odd("dropped"), RNG(0)
    shards, start = [shard_of(model, 7, rng) for _ in range(2)], model.init(rng)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = run(model, start, shards, LocalWork(0.1, batch_size=3, epochs=2))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(first, run(model, start, shards, LocalWork(0.1, batch_size=3, epochs=2)))


@pytest.mark.parametrize("case", CASES)
def test_evaluation_is_the_mean_over_examples(case):
    model, rng = model_of(case), RNG(0)
    shards = [shard_of(model, n, rng) for n in (5, 0, 9)]
    vectors = torch.stack([model.init(rng) for _ in shards])
    module = model.module()
    for vector, shard, many, shared in zip(
        vectors, shards, evaluate_many(model, vectors, shards), evaluate_many(model, vectors[0], shards), strict=True
    ):
        single = evaluate_model(model, vector, shard, batch=4)
        assert many.examples == single.examples == len(shard)
        if not len(shard):
            assert np.isnan(many.loss)
            assert np.isnan(shared.accuracy)
            continue
        nn.utils.vector_to_parameters(vector, module.parameters())
        logits = module(torch.from_numpy(shard.x)).detach()
        y = torch.from_numpy(shard.y)
        for got in (single, many):
            assert got.loss == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
            assert got.accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()))
        assert shared.loss == pytest.approx(evaluate_model(model, vectors[0], shard).loss, rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LocalWork(0.0),
        lambda: LocalWork(float("nan")),
        lambda: LocalWork(0.1, momentum=1.0),
        lambda: LocalWork(0.1, batch_size=0),
        lambda: LocalWork(0.1, epochs=1, steps=2),
        lambda: LocalWork(0.1, epochs=-1),
        lambda: LocalWork(0.1, weight_decay=-1.0),
        lambda: LocalTerms(proximal=-1.0),
        lambda: LocalTerms(anchor=torch.zeros(2)),
    ],
)
def test_bad_work_is_one_line(make):
    with pytest.raises(InvalidInput) as error:
        make()
    assert "\n" not in str(error.value)


def test_what_is_given_per_client_is_given_for_all():
    model, rng = model_of("linear"), RNG(0)
    shards = [shard_of(model, 4, rng)] * 2
    with pytest.raises(InvalidInput, match="starts"):
        train_local(model, torch.zeros(3), shards, LocalWork(0.1), rngs=[rng, rng])
    with pytest.raises(InvalidInput, match="rngs"):
        train_local(model, model.init(rng), shards, LocalWork(0.1), rngs=[rng])
    for change in ({"clip_norm": 0.0}, {"noise_std": [1.0]}, {"noise_std": [1.0, -1.0]}, {"sample_rates": [0.0, 0.5]},
                   {"divisors": [0.0, 1.0]}, {"steps": [1]}):  # fmt: skip
        with pytest.raises(InvalidInput):
            private(model, shards, **change)
    with pytest.raises(InvalidInput):
        clipped_gradient_sum(model, model.init(rng), shards[0].x, shards[0].y, clip_norm=float("inf"))


@pytest.mark.parametrize("case", [case for case in CASES if "lstm" not in case])
@pytest.mark.parametrize("clip_norm", [1e-5, 1e-12])
def test_a_factor_that_underflows_does_not_hide_a_gradient(case, clip_norm):
    """|G|^2 = |a|^2 |g|^2: huge inputs of a layer beside output gradients whose squares float32 cannot hold."""
    model, rng = model_of(case), RNG(0)
    shard, start = shard_of(model, 1, rng), model.init(rng)
    if len(model.layout) < 4:
        pytest.skip("one layer: its inputs are the data")
    first, weight, bias = model.layout[0], model.layout[-2], model.layout[-1]
    for big in (1e8, 1e12, 1e15, 1e17, 1e18):
        for certain in (46.0, 50.0, 53.0, 55.0):
            vector = start.clone()
            vector[first.start : first.stop] *= big
            vector[weight.start : weight.stop] = 0
            vector[bias.start : bias.stop] = 0
            vector[bias.start + int(shard.y[0])] = certain
            found = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=clip_norm)
            assert float(found.double().norm()) <= clip_norm * (1 + 1e-4)
