"""Every task: losses against torch, clipped sums against one example at a time, metrics against scikit-learn."""

import math

import numpy as np
import own_losses
import pytest
import torch
from sklearn import metrics as sk
from torch import nn
from torch.nn import functional

from sightline.data import Client, Federation, Kind, Shard
from sightline.errors import InvalidInput, Refused
from sightline.models import Task, build_model, build_task, count_outputs, own_loss, probe_targets
from sightline.models.task import CLASSIFICATION, apply_apart
from sightline.training import (
    LocalTerms,
    LocalWork,
    clipped_gradient_sum,
    clipping_note,
    dp_sgd,
    evaluate_many,
    evaluate_model,
    train_local,
)
from sightline.training.dispatch import dense_layers, stacking_for, worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings, ViewKind, Views
from sightline.training.fast.autograd_worker import AutogradWorker
from sightline.training.fast.chains import ChainWorker
from sightline.training.fast.stacked import PlainRun, PrivateRun
from sightline.training.gradients import GradientWorker, one_by_one
from sightline.training.local_training import train_in_turn, train_privately_in_turn

RNG = np.random.default_rng
TOKENS, WORDS, LABELS = 5, 7, 4

TASKS = {
    "binary": Task("binary"),
    "multilabel": Task("multilabel", (LABELS,), False),
    "regression": Task("regression", (), False),
    "regression2": Task("regression", (2,), False),
    "language": Task("language", (TOKENS,)),
}
OUTPUTS = {"binary": 1, "multilabel": LABELS, "regression": 1, "regression2": 2, "language": WORDS}
NETWORKS = {
    "linear": ((6,), Kind.VECTOR, {}),
    "mlp": ((6,), Kind.VECTOR, {"hidden": [5]}),
    "cnn": ((1, 8, 8), Kind.IMAGE, {}),
    "resnet": ((1, 8, 8), Kind.IMAGE, {"channels": [4, 8], "groups": 2}),
    "lstm": ((4, 3), Kind.SEQUENCE, {"hidden": 5}),
}


def model_of(task, network):
    kind = (TOKENS,), Kind.TEXT, {"embedding": 4, "hidden": 3}
    shape, kind, settings = kind if task == "language" else NETWORKS[network]
    facts = {"input_shape": shape, "classes": OUTPUTS[task], "kind": kind, "vocabulary": WORDS}
    return build_model(network, **facts, settings=settings, task=TASKS[task])


def shard_of(model, task, n, seed=0):
    rng = RNG(seed)
    if model.kind is Kind.TEXT:
        x = rng.integers(WORDS, size=(n, *model.input_shape))
    else:
        x = rng.standard_normal((n, *model.input_shape), dtype=np.float32)
    return Shard(x, targets_of(task, n, rng))


def targets_of(task, n, rng):
    if task == "binary":
        return rng.integers(2, size=n)
    if task == "multilabel":
        return (rng.random((n, LABELS)) < 0.4).astype(np.float32)
    if task == "language":
        y = rng.integers(WORDS, size=(n, TOKENS))
        y[rng.random((n, TOKENS)) < 0.3] = -100
        y[0] = -100  # an example of which no position counts
        return y
    return (3 * rng.standard_normal((n, 2) if task == "regression2" else n)).astype(np.float32)


def naive_loss(task, output, y):
    """The loss of one example, by torch's own words for it."""
    if task == "binary":
        return functional.binary_cross_entropy(torch.sigmoid(output.reshape(())), y.float())
    if task == "multilabel":
        return functional.binary_cross_entropy(torch.sigmoid(output), y)
    if task == "language":
        counted = [functional.cross_entropy(row, token) for row, token in zip(output, y, strict=True) if token >= 0]
        return torch.stack(counted).mean() if counted else 0.0 * output.sum()
    return functional.mse_loss(output.reshape(y.shape), y)


PAIRS = [(task, network) for task in TASKS for network in (["lstm"] if task == "language" else NETWORKS)]


@pytest.mark.parametrize(("task", "network"), PAIRS)
def test_clipped_sums_are_those_of_one_example_at_a_time(task, network):
    model = model_of(task, network)
    shard, vector = shard_of(model, task, 9), model.init(RNG(3))
    module = bound(model, vector)
    rows = []
    for x, y in zip(torch.from_numpy(shard.x), torch.from_numpy(shard.y), strict=True):
        module.zero_grad()
        naive_loss(task, module(x[None])[0], y).backward()
        grads = [module.get_parameter(slot.name).grad for slot in model.layout]
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    rows = torch.stack(rows)
    clip_norm = float(rows.norm(dim=1).median())
    expected = sum(row * min(1.0, clip_norm / max(float(row.norm()), 1e-12)) for row in rows)
    found = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=clip_norm)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * clip_norm)
    assert type(worker_for(model)) is (ChainWorker if network in ("linear", "mlp", "cnn") else AutogradWorker)
    work = LocalWork(0.1, epochs=1)
    ((_, ends),) = train_local(model, vector, [shard], work, rngs=[RNG(0)])
    torch.testing.assert_close(ends[0], vector - 0.1 * rows.mean(0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_losses_are_torchs_and_one_per_example(task):
    outputs = torch.randn(6, TOKENS, WORDS) if task == "language" else torch.randn(6, OUTPUTS[task])
    y = torch.from_numpy(targets_of(task, 6, RNG(1)))
    expected = torch.stack([naive_loss(task, *pair) for pair in zip(outputs, y, strict=True)])
    torch.testing.assert_close(TASKS[task].losses(outputs, y), expected)
    torch.testing.assert_close(TASKS[task].losses(outputs, y, "mean"), expected.mean())
    gradient = TASKS[task].output_gradient(outputs, y)
    moved = outputs.clone()
    moved[2] += 1e3  # another example's output changes nobody's gradient
    changed = TASKS[task].output_gradient(moved, y)
    assert torch.equal(gradient[[0, 1, 3, 4, 5]], changed[[0, 1, 3, 4, 5]])


def test_classification_keeps_its_bits():
    outputs, y = torch.randn(33, 7), torch.randint(7, (33,))
    for reduction in ("none", "mean", "sum"):
        assert torch.equal(
            CLASSIFICATION.losses(outputs, y, reduction), functional.cross_entropy(outputs, y, reduction=reduction)
        )
    leaf = outputs.clone().requires_grad_()
    (slow,) = torch.autograd.grad(functional.cross_entropy(leaf, y, reduction="sum"), leaf)
    torch.testing.assert_close(CLASSIFICATION.output_gradient(outputs, y), slow, rtol=1e-5, atol=1e-7)


def test_other_losses_never_take_a_path_of_cross_entropy():
    """The convolutional stack and compiled code have the gradient of cross entropy written into them."""
    from sightline.training.compiled.kernels import check_kernel

    for task in ("binary", "multilabel", "regression"):
        assert stacking_for(model_of(task, "cnn")) is None
        with pytest.raises(InvalidInput, match="compiled code computes only the gradient of cross entropy"):
            check_kernel(model_of(task, "linear"))
    assert dense_layers(own_model("huber")) is None


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression", "regression2"])
@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_stacks_are_every_client_by_itself(task, network):
    """Plain and private steps of clients of uneven sizes side by side, against the worker that trains one."""
    model = model_of(task, network)
    assert dense_layers(model) is not None
    shards = [shard_of(model, task, n, seed=n) for n in (9, 1, 6, 14)]
    start, worker = model.init(RNG(5)), worker_for(model)
    work = LocalWork(0.1, batch_size=4, epochs=2, momentum=0.5)
    found = rows_of(train_local(model, start, shards, work, rngs=[RNG(i) for i in range(4)]))
    run = PlainRun(model, start, shards, work, LocalTerms(), [RNG(i) for i in range(4)], [6, 2, 4, 8])
    alone = rows_of(train_in_turn(run, range(4)))
    for client in range(4):
        torch.testing.assert_close(found[client], alone[client], rtol=1e-4, atol=1e-5)
    how = [DPSGDSettings(0.3, [0.2] * 4, [0.6] * 4, [3] * 4, [4.0] * 4, rngs(1), rngs(2)) for _ in range(2)]
    private = PrivateRun(model, start, shards, work, LocalTerms(), how[1])
    stacked = rows_of(dp_sgd(model, start, shards, work, how[0]))
    looped = rows_of(train_privately_in_turn(private, range(4)))
    for client in range(4):
        torch.testing.assert_close(stacked[client], looped[client], rtol=1e-4, atol=1e-5)
    vectors = torch.stack([found[client] for client in range(4)])
    for one, vector, shard in zip(evaluate_many(model, vectors, shards), vectors, shards, strict=True):
        expected = evaluate_model(model, vector, shard)
        assert one.loss == pytest.approx(expected.loss, rel=1e-5)
        assert list(one.sums) == pytest.approx(list(expected.sums), rel=1e-4)
    assert worker is worker_for(model)


def rngs(seed):
    return [RNG([seed, client]) for client in range(4)]


def rows_of(blocks):
    return {int(client): row for index, rows in blocks for client, row in zip(index, rows, strict=True)}


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_views_of_an_example_share_its_target(task):
    model = model_of(task, "cnn")
    shard, vector, views = shard_of(model, task, 5), model.init(RNG(3)), Views(3, ViewKind.SHIFT)
    found = clipped_gradient_sum(model, vector, shard.x, shard.y, clip_norm=0.5, views=(views, RNG(9)))
    seen = views.of(shard.x, rng=RNG(9))
    rows = one_by_one(
        bound(model, vector), model, vector, torch.from_numpy(seen), torch.from_numpy(shard.y).repeat_interleave(3, 0)
    )
    rows = rows.view(5, 3, -1).mean(1)
    expected = sum(row * min(1.0, 0.5 / float(row.norm())) for row in rows)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def bound(model, vector):
    module = model.module().eval()
    for slot in model.layout:
        module.get_parameter(slot.name).data.copy_(vector[slot.start : slot.stop].view(slot.shape))
    return module


def evaluated(task, n=40):
    model = model_of(task, "lstm" if task == "language" else "mlp")
    shard, vector = shard_of(model, task, n), 3 * model.init(RNG(3))
    found = evaluate_model(model, vector, shard, batch=7)
    outputs = worker_for(model).logits(torch.from_numpy(shard.x)).numpy()
    return model.task.rate_sums(found.sums, found.examples), outputs, shard.y, found


def test_metrics_of_binary_tasks():
    found, outputs, y, whole = evaluated("binary")
    said = outputs[:, 0] > 0
    assert found == pytest.approx({"accuracy": sk.accuracy_score(y, said), "f1": sk.f1_score(y, said)})
    assert whole.accuracy == found["accuracy"]


def test_metrics_of_label_sets():
    found, outputs, y, whole = evaluated("multilabel")
    said = outputs > 0
    expected = {"macro_f1": sk.f1_score(y, said, average="macro"), "exact_match": sk.accuracy_score(y, said)}
    assert found == pytest.approx(expected | {"label_accuracy": float((said == y).mean())})
    assert round(whole.sums[0]) == int((said == y).all(1).sum())
    empty = TASKS["multilabel"].rate_sums([2.0, 2.0, *[0.0] * (3 * LABELS)], 2)
    assert empty["macro_f1"] == 1.0


@pytest.mark.parametrize("task", ["regression", "regression2"])
def test_metrics_of_regressions(task):
    found, outputs, y, whole = evaluated(task)
    outputs = outputs.reshape(y.shape)
    expected = {"rmse": math.sqrt(sk.mean_squared_error(y, outputs)), "mae": sk.mean_absolute_error(y, outputs)}
    assert found == pytest.approx(expected | {"r2": sk.r2_score(y, outputs)}, rel=1e-5)
    assert math.isnan(whole.accuracy)
    assert whole.loss == pytest.approx(expected["rmse"] ** 2, rel=1e-5)
    same = TASKS["regression"].rate_sums([0.5, 0.5, 2.0, 2.0], 2)  # both targets are 1
    assert math.isnan(same["r2"])


def test_metrics_of_language_models():
    found, outputs, y, whole = evaluated("language")
    there = y != -100
    chances = torch.log_softmax(torch.from_numpy(outputs), 2).numpy()
    picked = np.take_along_axis(chances, np.where(there, y, 0)[..., None], 2)[..., 0][there]
    assert found["perplexity"] == pytest.approx(math.exp(-picked.mean()), rel=1e-5)
    assert found["token_accuracy"] == pytest.approx((outputs.argmax(2) == y)[there].mean())
    assert math.isnan(whole.accuracy)


@pytest.mark.parametrize("task", TASKS)
def test_sums_of_shards_add_up(task):
    model = model_of(task, "lstm" if task == "language" else "linear")
    whole, vector = shard_of(model, task, 20), model.init(RNG(1))
    parts = [whole.take(slice(0, 7)), whole.take(slice(7, 7)), whole.take(slice(7, 20))]
    found = evaluate_many(model, vector, parts)
    together = evaluate_model(model, vector, whole)
    sums = np.sum([one.sums for one in found if one.examples], axis=0)
    assert sums.tolist() == pytest.approx(list(together.sums), rel=1e-5)
    assert found[1].examples == 0
    assert all(math.isnan(value) for value in model.task.rate_sums(found[1].sums, 0).values())
    each = evaluate_many(model, vector.expand(3, -1).clone(), parts)
    assert [one.loss for one in each if one.examples] == pytest.approx(
        [one.loss for one in found if one.examples], rel=1e-5
    )


def test_a_language_model_sees_only_what_came_before():
    model = model_of("language", "lstm")
    module, x = model.module().eval(), torch.randint(WORDS, (3, TOKENS))
    other = x.clone()
    other[:, 3:] = (other[:, 3:] + 1) % WORDS
    with torch.no_grad():
        before, after = module(x), module(other)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def own_model(loss, *, network="mlp", classes=1, task="own", whole=False, shape=()):
    given = Task(task, shape, whole, f"own_losses:{loss}", getattr(own_losses, loss))
    facts = {"input_shape": (6,), "classes": classes, "kind": Kind.VECTOR}
    return build_model(network, **facts, settings={}, task=given)


@pytest.mark.parametrize("loss", ["huber", "pinball", "centred", "focal"])
def test_a_loss_of_the_users_own_is_given_one_example(loss):
    """Also one that would mix a batch: example j's gradient is that of j's loss alone, and one moves a sum by C."""
    whole = loss == "focal"
    model = own_model(loss, classes=3 if whole else 1, whole=whole, task="classification" if whole else "own")
    rng = RNG(2)
    x = rng.standard_normal((8, 6)).astype(np.float32)
    y = rng.integers(3, size=8) if whole else rng.standard_normal(8).astype(np.float32)
    vector, function = model.init(RNG(0)), getattr(own_losses, loss)
    worker = worker_for(model)
    assert type(worker) is GradientWorker
    assert "own_losses" in str(worker.strange)
    worker.weights.copy_(vector)
    rows = []
    for one, target in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        found = torch.autograd.grad(
            function(worker.module(one[None])[0], target), [worker.module.get_parameter(s.name) for s in model.layout]
        )
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    expected = sum(row * min(1.0, 0.5 / float(row.norm())) for row in rows)
    total = clipped_gradient_sum(model, vector, x, y, clip_norm=0.5)
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-4)
    less = clipped_gradient_sum(model, vector, x[:-1], y[:-1], clip_norm=0.5)
    assert float((total - less).norm()) <= 0.5 * (1 + 1e-5)
    ((_, ends),) = train_local(model, vector, [Shard(x, y)], LocalWork(0.1, epochs=1), rngs=[RNG(0)])
    torch.testing.assert_close(ends[0], vector - 0.1 * torch.stack(rows).mean(0), rtol=1e-3, atol=1e-5)
    assert "one" in (clipping_note(model) or "")


def test_a_loss_has_a_name():
    with pytest.raises(InvalidInput, match="must have a name"):
        Task("own", own_loss=own_losses.huber)


def test_losses_apart_are_the_loop():
    outputs, y = torch.randn(5, 1), torch.randn(5)
    for loss in (own_losses.huber, own_losses.pinball, own_losses.centred):
        loop = torch.stack([loss(o, t).reshape(()) for o, t in zip(outputs, y, strict=True)])
        torch.testing.assert_close(apply_apart(loss, outputs, y), loop)
    assert apply_apart(own_losses.huber, outputs[:0], y[:0]).shape == (0,)


@pytest.mark.parametrize("loss", ["remembers", "drifts"])
def test_a_loss_that_remembers_is_refused(loss):
    own_losses.SEEN.clear()
    with pytest.raises(Refused, match=rf"model.loss=own_losses:{loss}.*forward changes"):
        own_model(loss)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("two_numbers", r"returns \(2,\) for one example; return one number"),
        ("fails", r"fails on an output of shape \(1,\).*RuntimeError: no such thing"),
        ("constant", "does not depend on the output"),
    ],
)
def test_what_is_no_loss_is_one_line(loss, words):
    with pytest.raises(InvalidInput, match=words):
        own_model(loss)


def test_a_loss_is_found_by_its_name():
    assert own_loss("own_losses:huber") is own_losses.huber
    for name, words in (
        ("nowhere:huber", "cannot be imported"),
        ("own_losses:hubert", 'did you mean "huber"'),
        ("own_losses:NUMBER", "is not callable"),
    ):
        with pytest.raises(InvalidInput, match=words):
            own_loss(name)


class Squeezed(nn.Module):
    """Gives (batch,) where (batch, 1) would do as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x).squeeze(-1)


def test_outputs_are_checked_by_task():
    facts = {"input_shape": (6,), "classes": 1, "kind": Kind.VECTOR, "settings": {}}
    model = build_model(f"{__name__}:Squeezed", **facts, task=TASKS["regression"])
    shard = shard_of(model, "regression", 6)
    assert evaluate_model(model, model.init(RNG(0)), shard).loss >= 0
    assert clipped_gradient_sum(model, model.init(RNG(0)), shard.x, shard.y, clip_norm=1.0).shape == (7,)
    with pytest.raises(InvalidInput, match=r"return logits of shape \(batch, 4\)"):
        build_model(f"{__name__}:Squeezed", **facts | {"classes": 4}, task=TASKS["multilabel"])
    with pytest.raises(InvalidInput, match=r"return logits of shape \(batch, 5, 7\)"):
        build_model(f"{__name__}:Squeezed", **facts | {"classes": 7}, task=TASKS["language"])


def federation_of(y, x=None, classes=3, kind=Kind.VECTOR, vocabulary=0):
    shard = Shard(np.zeros((len(y), 6), np.float32) if x is None else x, y)
    return Federation("mine", (Client(shard, shard),), shard, classes, kind, vocabulary)


def test_a_task_needs_targets_of_its_kind():
    labels, numbers = np.zeros(4, np.int64), np.zeros(4, np.float32)
    sets, tokens = np.zeros((4, 3), np.float32), np.zeros((4, 5), np.int64)
    text = {"x": tokens, "kind": Kind.TEXT, "vocabulary": 9}
    good = [("classification", labels, {}, 3), ("binary", labels, {"classes": 2}, 1), ("multilabel", sets, {}, 3),
            ("regression", numbers, {}, 1), ("regression", sets, {}, 3), ("language", tokens, text, 9)]  # fmt: skip
    for name, y, facts, outputs in good:
        federation = federation_of(y, **facts)
        task = build_task(name, federation)
        assert count_outputs(task, federation) == outputs
        assert probe_targets(task, outputs, 2).shape == (2, *task.target_shape)
    bad = [("classification", numbers, {}, "not labels"), ("binary", labels, {}, "3 classes"),
           ("multilabel", labels, {}, "not sets of labels"), ("regression", labels, {}, "predicts numbers"),
           ("language", labels, {}, "not token sequences"), ("classification", tokens, text, "not labels")]  # fmt: skip
    for name, y, facts, words in bad:
        with pytest.raises(InvalidInput, match=words):
            build_task(name, federation_of(y, **facts))
