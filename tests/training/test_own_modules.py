"""Modules of the user's own: whatever they do with a batch, one example moves a clipped sum by C, or they are refused."""

from functools import cache

import numpy as np
import pytest
import strange_modules as strange
import torch
import training_oracle as oracle
from torch import nn

from sightline.data import Kind, Shard
from sightline.errors import InvalidInput, Refused
from sightline.models import build_model, unknown_part
from sightline.training import LocalWork, clipped_gradient_sum, clipping_note, dp_sgd, evaluate_model, train_local
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings, Views
from sightline.training.fast.graph_worker import GraphWorker
from sightline.training.gradients import GradientWorker, choose_rows, one_by_one, vectorised_gradients

CLIP = 0.7
RNG = np.random.default_rng


@cache
def model_of(name, shape=(strange.FEATURES,), kind=Kind.VECTOR):
    """One model for all tests: each is exported once."""
    return build_model(f"strange_modules:{name}", input_shape=shape, classes=strange.CLASSES, kind=kind, settings={})


def examples(n, outlier=False, seed=0):
    """n ordinary examples, and one that is not."""
    rng = RNG(seed)
    x = rng.standard_normal((n + 1, strange.FEATURES)).astype(np.float32)
    y = rng.integers(strange.CLASSES, size=n + 1)
    x[-1] *= 100
    return (x, y) if outlier else (x[:n], y[:n])


def moved(model, n, *, vector=None, seed=0):
    """How far the outlier moves the clipped sum, in clip norms."""
    vector = 3 * model.init(RNG(1)) if vector is None else vector
    sums = [
        clipped_gradient_sum(model, vector, *examples(n, outlier, seed), clip_norm=CLIP, rng=RNG(0))
        for outlier in (False, True)
    ]
    return float((sums[1] - sums[0]).norm()) / CLIP


@pytest.mark.parametrize("name", [*strange.MIXING, *strange.REMEMBERING])
def test_one_example_moves_the_clipped_sum_by_the_clip_norm_or_the_module_is_refused(name):
    try:
        model = model_of(name)
        found = [moved(model, n, seed=seed) for n, seed in ((1, 0), (3, 1), (9, 2), (40, 3))]
    except Refused as refused:
        assert "\n" not in str(refused)
        assert name in strange.REMEMBERING
    else:
        assert max(found) <= 1 + 1e-5
        assert name in strange.MIXING


def test_the_probe_of_the_test_sees_mixing():
    """The same measure on a batch as a whole, which no path may do, is far above one."""
    module = oracle.load(strange.CentredInTraining(), 3 * model_of("CentredInTraining").init(RNG(1)))
    model = model_of("CentredInTraining")
    totals = []
    for outlier in (False, True):
        x, y = (torch.from_numpy(one) for one in examples(9, outlier))
        losses = torch.nn.functional.cross_entropy(module.train()(x), y, reduction="none")
        rows = [torch.autograd.grad(one, list(module.parameters()), retain_graph=True) for one in losses]
        flat = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
        totals.append((flat * (CLIP / flat.norm(dim=1)).clamp(max=1)[:, None]).sum(0))
    assert model.parameters == len(totals[0])
    assert float((totals[1] - totals[0]).norm()) / CLIP > 2


@pytest.mark.parametrize("name", strange.HARMLESS)
def test_harmless_modules_are_clipped_by_the_definition(name):
    model = model_of(name)
    note = clipping_note(model)
    assert note is None if name in CERTIFIED else "every example is differentiated alone" in note
    vector, (x, y) = model.init(RNG(1)), examples(7)
    before = x.copy()
    got = clipped_gradient_sum(model, vector, x, y, clip_norm=CLIP, rng=RNG(0))
    assert np.array_equal(x, before)
    if name != "Dropped":  # other masks, another sum
        assert moved(model, 9) <= 1 + 1e-5
        module = oracle.load(model.module().train(), vector)
        rows = one_by_one(module, model, vector, torch.from_numpy(x), torch.from_numpy(y))
        expected = (rows * (CLIP / rows.norm(dim=1)).clamp(max=1.0)[:, None]).sum(0)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)


CERTIFIED = {"ReadsContext", "Plain", "Cached", "Attention", "Dropped", "weight_normed"}
"""Harmless modules with a certificate; the others pass example by example."""


def test_certified_modules_run_as_their_graph_and_the_others_example_by_example():
    workers = {name: worker_for(model_of(name)) for name in strange.HARMLESS}
    assert {name for name, worker in workers.items() if isinstance(worker, GraphWorker)} == CERTIFIED
    assert all(workers[name].own_rows() is one_by_one for name in set(strange.HARMLESS) - CERTIFIED)
    assert "one after the other" in clipping_note(model_of("Branching"))
    assert "its code branches on values of the data" in clipping_note(model_of("Branching"))


@pytest.mark.parametrize("name", strange.MIXING)
def test_no_module_that_mixes_runs_as_a_batch_of_its_own_code(name):
    """It has no certificate, or its graph does not do what its Python code does to gradients and is not taken."""
    assert type(worker_for(model_of(name))) is GradientWorker


def test_examples_pass_side_by_side_where_torch_can():
    chosen = {name: choose_rows(model_of(name).module(), model_of(name)) for name in strange.HARMLESS}
    assert {name for name, rows in chosen.items() if rows is one_by_one} == {
        "Branching",
        "WritesInputs",
        "SparseGradient",
    }
    assert chosen["Attention"] is vectorised_gradients


def test_dropout_of_an_own_module_comes_from_the_clients_generator():
    model, (x, y) = model_of("Dropped"), examples(5)
    vector = model.init(RNG(1))
    sums = [clipped_gradient_sum(model, vector, x, y, clip_norm=CLIP, rng=RNG(seed)) for seed in (0, 0, 1)]
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])


def test_views_of_an_own_module_count_as_one_example(monkeypatch):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            h = x.flatten(1)
            return self.last(h - h.mean(0) if self.training and len(h) > 1 else h)

    monkeypatch.setattr(strange, "Seen", Seen, raising=False)
    model = model_of("Seen", (1, 4, 4), Kind.IMAGE)
    x = RNG(0).standard_normal((8, 1, 4, 4)).astype(np.float32)
    x[-1] *= 100
    sums = [
        clipped_gradient_sum(
            model, model.init(RNG(1)), x[:n], np.arange(n) % 3, clip_norm=CLIP, views=(Views(2, "flip"), RNG(0))
        )
        for n in (7, 8)
    ]
    assert float((sums[1] - sums[0]).norm()) <= CLIP * (1 + 1e-5)


def private_end(model, shards, client, start=None):
    """Where one of several clients ends after private steps without noise on its whole shard."""
    many = len(shards)
    blocks = dp_sgd(
        model,
        model.init(RNG(1)) if start is None else start,
        shards,
        LocalWork(0.1),
        DPSGDSettings(
            clip_norm=CLIP,
            noise_std=[0.0] * many,
            sample_rates=[1.0] * many,
            steps=[2] * many,
            divisors=[5.0] * many,
            sampling_rngs=[RNG(i) for i in range(many)],
            noise_rngs=[RNG(i) for i in range(many)],
        ),
    )
    return next(end for index, ends in blocks for number, end in zip(index, ends, strict=True) if number == client)


def plain_end(model, shards, client):
    rngs = [RNG(i) for i in range(len(shards))]
    blocks = train_local(model, model.init(RNG(1)), shards, LocalWork(0.1, batch_size=4, epochs=2), rngs=rngs)
    return next(end for index, ends in blocks for number, end in zip(index, ends, strict=True) if number == client)


@pytest.mark.parametrize("trained", [plain_end, private_end])
@pytest.mark.parametrize("name", [*strange.REMEMBERING, "LateAttribute"])
def test_no_client_reaches_another_through_what_a_module_keeps(name, trained):
    """The second client's model does not depend on who trained before it, or the module is refused."""
    quiet, loud = Shard(*examples(6)), Shard(*examples(6, outlier=True, seed=4))
    other = Shard(*examples(6, seed=5))
    try:
        model = model_of(name)
        after = [trained(model, [first, other], 1) for first in (quiet, loud)]
    except Refused as refused:
        assert "\n" not in str(refused)
    else:
        assert torch.equal(*after)
        assert name not in strange.REMEMBERING


def test_what_changed_is_named_with_a_way_out():
    for name, words in {
        "RunningBuffer": "buffer 'running'",
        "Attribute": "attribute 'memory'",
        "NestedAttribute": "attribute 'first.kept'['h']",
        "GlobalList": "global 'SEEN'",
        "GlobalByFunction": "global 'TOTAL'['sum']",
        "ContextVariable": "global 'LAST'",
        "ContextDefault": "global 'SWITCH'",
        "ClassAttribute": "class attribute 'ClassAttribute.past'",
        "closure": "'past' in the closure of between",
        "WritesWeights": "its own weights",
        "spectral": "0.parametrizations.weight.0._u",
        "HiddenInACache": "class attribute 'Hidden.tensor'[0]",
    }.items():
        with pytest.raises(Refused) as error:
            model_of(name)
        assert words in str(error.value), name
        assert "make forward change nothing except its result" in str(error.value)


def test_a_memory_that_begins_later_is_refused_when_it_begins():
    model = model_of("LateAttribute")
    with pytest.raises(Refused, match="attribute 'memory'"):
        plain_end(model, [Shard(*examples(6, outlier=True))], 0)


def test_evaluation_apart_counts_every_example_by_itself():
    """What a private choice rests on: an outlier changes the count of right answers by one at the most."""
    model = model_of("HandNormed")
    vector = 3 * model.init(RNG(1))
    x, y = examples(40, outlier=True)
    batch, apart = (
        [evaluate_model(model, vector, Shard(x[:n], y[:n]), apart=apart).accuracy * n for n in (40, 41)]
        for apart in (False, True)
    )
    assert abs(batch[1] - batch[0]) > 1 + 1e-6
    assert abs(apart[1] - apart[0]) <= 1 + 1e-6


def test_chains_of_torchs_own_layers_are_known_and_nothing_else_is():
    known = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.GELU(), nn.Dropout(0.1), nn.Sequential(nn.AdaptiveAvgPool2d(1)),
        nn.Flatten(), nn.Linear(2, 2), nn.Softmax(dim=-1),
    )  # fmt: skip
    assert unknown_part(known) is None
    for layer in (
        nn.BatchNorm1d(3), nn.Flatten(0), nn.Softmax(dim=0), nn.Softmax(dim=-2), nn.Softmax(), nn.LSTM(2, 2),
        nn.Embedding(3, 2, max_norm=1.0), nn.Embedding(3, 2, scale_grad_by_freq=True), nn.Unflatten(0, (1, 2)),
        nn.InstanceNorm1d(3, track_running_stats=True), nn.TransformerEncoderLayer(2, 1), strange.Plain(),
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), strange.SubclassedLayer(2, 2),
    ):  # fmt: skip
        assert unknown_part(nn.Sequential(layer)).startswith("0 ("), layer
    known[0].register_full_backward_hook(lambda *_: None)
    assert unknown_part(known) == "0 (Conv2d)"


def test_a_patched_layer_is_not_known(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x - x.mean(0))
    assert unknown_part(nn.Sequential(nn.Linear(2, 2))) == "0 (Linear)"


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: Squeezes(), "for 1 example"), (lambda: NoGradient(), "cannot be differentiated in training"),
     (lambda: FailsInTraining(), "cannot be differentiated in training")],
)  # fmt: skip
def test_modules_that_cannot_take_one_example_are_told_so(make, words, monkeypatch):
    monkeypatch.setattr(strange, "made", lambda **_: make(), raising=False)
    with pytest.raises(InvalidInput) as error:
        model_of("made")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


class Squeezes(strange.Base):
    def forward(self, x):
        return super().forward(x).squeeze()


class NoGradient(strange.Base):
    def forward(self, x):
        return super().forward(x).detach()


class FailsInTraining(strange.Base):
    def between(self, h):
        return h / 0 if not self.training else h.nonsense()
