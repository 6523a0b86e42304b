"""Several views of one example count as one: equal to the naive loop, and no more sensitive than one view."""

import numpy as np
import pytest
import torch
import training_oracle as oracle
from test_training_equals_oracle import CASES, close, gather, model_of, shard_of

from sightline.config import parse
from sightline.data import Kind, Shard
from sightline.errors import InvalidInput, Refused
from sightline.training import LocalWork, clipped_gradient_sum, dp_sgd
from sightline.training.dp_sgd_settings import DPSGDSettings, ViewKind, Views, gaussian_steps

RNG = np.random.default_rng
IMAGES = [case for case, (_, kind, _) in CASES.items() if kind is Kind.IMAGE]
KINDS = [Views(3, ViewKind.SHIFT), Views(2, ViewKind.FLIP), Views(4, ViewKind.SHIFT_FLIP, pixels=1)]


def naive_sum(model, vector, x, y, clip_norm, views, rng):
    """Example by example: the gradient of each view alone, their mean, clipped."""
    module = oracle.load(model.module(), vector)
    seen, total = views.of(x, rng=rng), torch.zeros_like(vector)
    for j in range(len(y)):
        own = range(j * views.count, (j + 1) * views.count)
        labels = np.repeat(y, views.count)
        mean = torch.stack([oracle.example_gradient(module, seen, labels, view) for view in own]).mean(0)
        if torch.isfinite(mean).all():
            total += mean * min(1.0, clip_norm / max(float(mean.norm()), 1e-30))
    return total


@pytest.mark.parametrize("views", KINDS, ids=lambda views: views.kind)
@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.parametrize("clip_norm", [0.05, 1e4])
def test_the_clipped_sum_equals_the_naive_loop(case, views, clip_norm):
    model, rng = model_of(case), RNG(0)
    shard, vector = shard_of(model, 7, rng), 2 * model.init(rng)
    got = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=clip_norm, views=(views, RNG(5)))
    close(got, naive_sum(model, vector, shard.x, shard.y, clip_norm, views, RNG(5)))


@pytest.mark.parametrize("case", IMAGES)
def test_dp_sgd_with_views_equals_the_naive_loop(case):
    model, views = model_of(case), KINDS[0]
    shard, start = shard_of(model, 9, RNG(0)), model.init(RNG(1))
    blocks = dp_sgd(
        model,
        start,
        [shard],
        LocalWork(0.1, momentum=0.5),
        DPSGDSettings(
            clip_norm=0.3,
            noise_std=[0.2],
            sample_rates=[0.6],
            steps=[4],
            divisors=[5.0],
            sampling_rngs=[RNG(2)],
            noise_rngs=[RNG(3)],
            views=views,
            view_rngs=[RNG(4)],
        ),
    )
    coins, noises, seen = RNG(2), gaussian_steps(model.parameters, rng=RNG(3)), RNG(4)
    weights, velocity = start.clone(), torch.zeros_like(start)
    for _ in range(4):
        batch = np.flatnonzero(coins.random(9) < 0.6)
        total = naive_sum(model, weights, shard.x[batch], shard.y[batch], 0.3, views, seen) + 0.2 * next(noises)
        velocity = 0.5 * velocity + total / 5.0
        weights = weights - 0.1 * velocity
    close(gather(blocks, 1, model.parameters)[0], weights, start)


@pytest.mark.parametrize("case", IMAGES)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(case):
    model, rng, views = model_of(case), RNG(0), Views(4, ViewKind.SHIFT)
    shard, vector = shard_of(model, 6, rng), 3 * model.init(rng)
    for clip_norm in (0.01, 0.5):
        whole, less = (
            clipped_gradient_sum(model, vector, shard.x[:n], shard.y[:n], clip_norm=clip_norm, views=(views, RNG(1)))
            for n in (6, 5)
        )
        # the draws of the first five are the same, with and without the sixth: what differs is the sixth alone
        assert float((whole - less).norm()) <= clip_norm * (1 + 1e-5)
        one = clipped_gradient_sum(model, vector, shard.x[:1], shard.y[:1], clip_norm=clip_norm, views=(views, RNG(1)))
        assert float(one.double().norm()) <= clip_norm


def test_copies_in_the_data_set_move_the_sum_by_as_many_clip_norms():
    """Appendix H: what is refused would be wrong by the number of copies."""
    model = model_of("cnn")
    shard, vector = shard_of(model, 1, RNG(0)), 3 * model.init(RNG(0))
    four = Shard(np.repeat(shard.x, 4, axis=0), np.repeat(shard.y, 4))
    moved = clipped_gradient_sum(model, vector, four.x, four.y, clip_norm=0.01)
    assert float(moved.norm()) == pytest.approx(4 * 0.01, rel=1e-3)


@pytest.mark.parametrize("case", IMAGES)
def test_an_example_with_a_broken_view_contributes_zero(case):
    model, rng, views = model_of(case), RNG(0), Views(2, ViewKind.FLIP)
    shard, vector = shard_of(model, 4, rng), model.init(rng)
    bad = shard.x.copy()
    bad[2, 0, 0, 0] = np.nan
    keep = [0, 1, 3]
    got = clipped_gradient_sum(model, vector, bad, shard.y, clip_norm=0.3, views=(views, RNG(1)))
    expected = clipped_gradient_sum(model, vector, shard.x[keep], shard.y[keep], clip_norm=0.3, views=(views, RNG(1)))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-6)


def test_chunks_change_nothing(monkeypatch):
    model, rng, views = model_of("cnn"), RNG(0), Views(3, ViewKind.SHIFT)
    shard, vector = shard_of(model, 9, rng), model.init(rng)
    whole = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.3, views=(views, RNG(1)))
    monkeypatch.setattr("sightline.training.dp_sgd_settings.VIEW_BYTES", 2 * 3 * shard.x[:1].nbytes)
    cut = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.3, views=(views, RNG(1)))
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pixels", [1, 3])
def test_shifts_are_the_image_moved_over_zeros(pixels):
    x = RNG(0).standard_normal((50, 2, 5, 4)).astype(np.float32)
    seen = Views(3, ViewKind.SHIFT, pixels).of(x, rng=RNG(1)).reshape(50, 3, 2, 5, 4)
    assert np.array_equal(seen[:, 0], x)
    wide = np.pad(x, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)))
    moves = [(a, b) for a in range(2 * pixels + 1) for b in range(2 * pixels + 1)]
    found = set()
    for n in range(50):
        for view in seen[n, 1:]:
            matches = [m for m in moves if np.array_equal(wide[n, :, m[0] : m[0] + 5, m[1] : m[1] + 4], view)]
            assert matches
            found.add(matches[0])
    assert len(found) > len(moves) / 2


def test_mirrors_are_mirrors():
    x = RNG(0).standard_normal((3, 1, 4, 5)).astype(np.float32)
    seen = Views(2, ViewKind.FLIP).of(x, rng=RNG(1)).reshape(3, 2, 1, 4, 5)
    assert np.array_equal(seen[:, 0], x)
    assert np.array_equal(seen[:, 1], x[..., ::-1])


def experiment(**augment):
    return parse(
        {
            "rounds": 2, "data": {"source": "digits", "clients": 4, "train_samples": 200}, "model": {"name": "cnn_small"},
            "local": {"steps": 2, "batch_size": 8, "augment": augment},
            "privacy": {"unit": "sample", "noise_multiplier": 1.0},
        }
    )  # fmt: skip


def test_the_data_set_is_not_augmented():
    with pytest.raises(
        Refused, match=r"local\.augment\.of=dataset: 4 copies of one example .* 4 times as much; use of"
    ):
        experiment(of="dataset")


@pytest.mark.parametrize(
    ("given", "words"), [({"kind": "flip"}, "views=4"), ({"views": 1}, "views"), ({"kind": "x"}, "kind")]
)
def test_bad_views_are_one_line(given, words):
    with pytest.raises(InvalidInput, match=words):
        experiment(**given)


def test_views_need_sample_level_noise():
    with pytest.raises(InvalidInput, match=r"local\.augment=shift: .*unit = \"sample\""):
        parse({"rounds": 1, "local": {"augment": {"views": 2}}})


def test_only_images_have_views():
    with pytest.raises(InvalidInput, match="this kind of view needs images"):
        Views(2, ViewKind.FLIP).of(np.zeros((3, 7), np.float32), rng=RNG(0))


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_run_with_views_costs_what_a_run_without_costs(where, tmp_path):
    from sightline.api import run

    found = {}
    for name, augment in (("plain", None), ("views", {"views": 3, "kind": "shift", "pixels": 1})):
        plain = {
            "name": name, "rounds": 2, "data": {"source": "digits", "clients": 3, "train_samples": 150},
            "model": {"name": "cnn"}, "local": {"steps": 1, "batch_size": 10},
            "privacy": {"unit": "sample", "noise_multiplier": 1.0, "where": where},
        }  # fmt: skip
        if augment:
            plain["local"]["augment"] = augment
        found[name] = run(parse(plain), out=tmp_path / name)
    one, other = (found[name].ledger for name in ("plain", "views"))
    assert [release.event for release in one] == [release.event for release in other]
    assert found["plain"].rounds[-1]["test_loss"] != found["views"].rounds[-1]["test_loss"]
