"""Clipping over the certified graph equals the module differentiated example by example, and bounds what is hostile."""

from functools import cache
from importlib.util import find_spec

import graph_modules
import numpy as np
import pytest
import torch
from graph_modules import MORE, QUICK
from torch.nn import functional

from sightline import clipped_gradient
from sightline.data import Kind, Shard
from sightline.models import bind_parameters, build_model, probe_inputs, read_given_model
from sightline.models.certificate import certificate_of
from sightline.models.flat import flatten_module
from sightline.training import LocalWork, clipped_gradient_sum, clipping_note, train_local
from sightline.training.clipping import Balls, clip_factors
from sightline.training.dispatch import worker_for
from sightline.training.fast import graph_rules, graph_worker
from sightline.training.fast import per_example_norms as graph_records
from sightline.training.fast.autograd_worker import NoClippingRule
from sightline.training.fast.graph_worker import GraphWorker, agrees_with_examples
from sightline.training.fast.per_example_norms import join_records
from sightline.training.gradients import own_dropout

HUGGING_FACE = ["bert", "gpt2", "gpt2 tied", "peft lora"]
HAS_HUGGING_FACE = all(find_spec(name) is not None for name in ("transformers", "peft"))
NEEDS_HUGGING_FACE = pytest.mark.skipif(not HAS_HUGGING_FACE, reason="needs pip install sightline[hf]")
ALL = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in MORE),
    *(pytest.param(n, marks=[pytest.mark.slow, NEEDS_HUGGING_FACE], id=f"hugging_face-{n}") for n in HUGGING_FACE),
]
EXAMPLES = 7


@cache
def worker_of(name):
    """The worker of a case at weights beside its start, and its certified model."""
    cases = {**QUICK, **MORE}
    case = cases[name] if name in cases else graph_modules.cases_of_hugging_face()[name]
    model = graph_modules.model_of(case)
    worker = GraphWorker(model, certificate_of(model))
    generator = torch.Generator().manual_seed(3)
    start = flatten_module(model.module())
    worker.start = start + 0.1 * torch.randn(start.shape, generator=generator)
    return worker


@pytest.fixture
def worker(request):
    found = worker_of(request.param)
    found.weights.copy_(found.start)
    return found


def batch_of(worker, count=EXAMPLES):
    x = probe_inputs(worker.model, count, seed=5)
    return x, torch.arange(count) % worker.model.classes


def exact_rows(worker, x, y):
    """Every example's gradient by the module itself in double precision."""
    module = worker.model.module().double().eval()
    module.train() if not worker.dropout else None
    weights = worker.weights.double().clone()
    bind_parameters(module, worker.model.layout, weights)
    parameters = [module.get_parameter(slot.name) for slot in worker.model.layout]
    rows = torch.zeros(len(y), worker.model.parameters, dtype=torch.float64)
    for index in range(len(y)):
        one = x[index : index + 1]
        loss = functional.cross_entropy(module(one.double() if one.is_floating_point() else one), y[index : index + 1])
        for slot, part in zip(
            worker.model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.flatten()
    return rows


def clipped(rows, clip_norm):
    return (rows * (clip_norm / rows.norm(dim=1).clamp_min(1e-300)).clamp(max=1.0)[:, None]).sum(0)


def total_of(worker, x, y, clip, **words):
    worker.clipped_sum(x, y, clip, **words)
    return worker.gradient.double().clone()


@pytest.fixture(params=["chosen", "gram", "instantiated"])
def norms_by(request, monkeypatch):
    """Norms from Gram matrices and from instantiated gradients, whatever would be cheaper."""
    if request.param != "chosen":
        for module in (graph_records, graph_rules):
            monkeypatch.setattr(module, "gram_pays", lambda *sizes: request.param == "gram")


@pytest.mark.usefixtures("norms_by")
@pytest.mark.parametrize("worker", ALL, indirect=True)
def test_norms_and_clipped_sums_are_those_of_the_examples_alone(worker):
    x, y = batch_of(worker)
    with worker.without_dropout():
        rows = exact_rows(worker, x, y)
        norms, clip_norm = rows.norm(dim=1), float(rows.norm(dim=1).median())
        gradients = worker.gradients_of(x, y, 1)
        found = torch.stack([one.square_norms() for one in gradients.values()]).sum(0).sqrt().double()
        assert (found >= norms * (1 - 3e-6)).all()  # less than SLACK leaves
        assert (found <= norms * (1 + 1e-3)).all()
        for name, one in gradients.items():
            slot = next(slot for slot in worker.model.layout if slot.name == name)
            exact = rows[:, slot.start : slot.stop].norm(dim=1)
            assert (one.square_norms().sqrt().double() >= exact * (1 - 3e-6) - 1e-7 * norms).all(), name
        expected = clipped(rows, clip_norm)
        assert (total_of(worker, x, y, clip_norm) - expected).norm() <= 5e-4 * expected.norm()
        worker.mean_gradient(x, y)
        assert (worker.gradient - rows.mean(0)).norm() <= 1e-5 * rows.mean(0).norm()
    module = worker.model.module().eval()
    bind_parameters(module, worker.model.layout, worker.weights)
    torch.testing.assert_close(worker.logits(x), module(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("norms_by")
@pytest.mark.parametrize("worker", ALL, indirect=True)
def test_one_example_moves_the_sum_by_the_clip_norm_at_the_most(worker):
    """An outlier by its inputs, or where those are tokens by weights that make all gradients long."""
    x, y = batch_of(worker)
    if x.is_floating_point():
        x[-1] *= 300
    for clip_norm in (1e-6, 0.3, 50.0):
        with worker.without_dropout():
            alone = total_of(worker, x[-1:], y[-1:], clip_norm)
            assert float(alone.norm()) <= clip_norm
            moved = total_of(worker, x, y, clip_norm) - total_of(worker, x[:-1], y[:-1], clip_norm)
            assert float(moved.norm()) <= clip_norm * (1 + 1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e-30])
@pytest.mark.parametrize("worker", ["bare", "convolutions", "encoder", "recurrent", "lora"], indirect=True)
def test_hostile_values_leave_the_others_alone(worker, value):
    x, y = batch_of(worker)
    x[2] = value
    clip_norm = 0.1
    got = total_of(worker, x, y, clip_norm)
    keep = torch.arange(len(y)) != 2
    others = total_of(worker, x[keep], y[keep], clip_norm)
    assert torch.isfinite(got).all()
    assert float((got - others).norm()) <= clip_norm * (1 + 1e-4)
    if value != value:
        torch.testing.assert_close(got, others, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("norms_by")
@pytest.mark.parametrize("worker", ["reused", "tied", "encoder"], indirect=True)
def test_weights_of_any_size_stay_inside_the_ball(worker):
    """Huge and tiny weights: squares overflow and underflow on the way to the norm."""
    x, y = batch_of(worker, 3)
    for size in (1e-20, 1e-10, 1e3, 1e8, 1e18):
        worker.weights.copy_(worker.start * size)
        for clip_norm in (1e-5, 1.0):
            for index in range(3):
                alone = total_of(worker, x[index : index + 1], y[index : index + 1], clip_norm)
                assert float(alone.norm()) <= clip_norm


@pytest.mark.parametrize("positions", [1, 4])
def test_a_factor_that_underflows_leaves_no_gradient_unclipped(positions):
    """Squares of inputs below the smallest float32 beside large gradients: products of them are not small."""
    torch.manual_seed(0)
    for size in (1e-18, 1e-20, 1e-22):
        a, g = size * torch.rand(5, positions, 30), 1e17 * torch.rand(5, positions, 40)
        norms = graph_records.OuterGradients(a, g).square_norms().sqrt().double()
        exact = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
        assert (norms >= exact * (1 - 3e-6)).all()


def long_sums(positions=25, inputs=300, outputs=1024, examples=4):
    """Factors whose Gram sums have more terms than float32 bounds well: those of the bidirectional LSTM."""
    draw = torch.Generator().manual_seed(4)
    return torch.randn(examples, positions, inputs, generator=draw), torch.randn(
        examples, positions, outputs, generator=draw
    )


def exact_norms(a, g):
    return torch.stack([(one.double().t() @ other.double()).norm() for one, other in zip(g, a, strict=True)])


def test_norms_of_long_gram_sums_are_those_of_the_definition():
    """In float32 their bound is 1 % of the square, so the probe refused the graph of the bidirectional LSTM."""
    a, g = long_sums()
    exact = exact_norms(a, g)
    norms = graph_records.OuterGradients(a, g).square_norms().sqrt()
    assert (norms >= exact).all()
    assert (norms <= exact * (1 + 1e-4)).all()


@pytest.mark.parametrize("size", [1e-30, 1e-19, 1.0, 1e8])
@pytest.mark.parametrize("rest", [1.0, 1e-3, 1e-6, 0.0])
def test_norms_of_long_gram_sums_are_never_too_short(rest, size):
    """Positions that cancel: the clipped sum itself, as float32 adds it up, is no longer than the clip norm."""
    a, g = long_sums(positions=2)
    a[:, 1], g[:, 1] = -a[:, 0] + rest * a[:, 1], g[:, 0]
    a *= size
    gradients = graph_records.OuterGradients(a, g)
    norms = gradients.square_norms().sqrt()
    assert (norms >= exact_norms(a, g)).all()
    for clip_norm in (1e-6, 1.0):
        factors = clip_factors(norms, clip_norm)
        for index in range(len(a)):
            total = torch.zeros(g.shape[2], a.shape[2])
            gradients.add_clipped(factors * (torch.arange(len(a)) == index), total)
            assert float(total.double().norm()) <= clip_norm


def test_a_factor_of_a_long_gram_sum_that_is_too_large_counts_as_non_finite():
    a, g = long_sums()
    a[1, 3], g[1, 3] = 1e20, 1e-20
    a[2, 0, 0] = float("nan")
    norms = graph_records.OuterGradients(a, g).square_norms()
    assert norms.isfinite().tolist() == [True, False, False, True]


@pytest.mark.slow
def test_the_bidirectional_lstm_runs_as_its_graph():
    model = build_model("bilstm", input_shape=(25,), classes=2, kind=Kind.TEXT, vocabulary=200, settings={})
    assert agrees_with_examples(GraphWorker(model, certificate_of(model)))


@pytest.mark.parametrize("worker", ["encoder", "tied", "recurrent"], indirect=True)
def test_balls_are_clipped_apart(worker):
    x, y = batch_of(worker)
    slots = worker.model.layout
    radii = (0.05, 0.01)
    balls = Balls(radii, {slot.name: number % 2 for number, slot in enumerate(slots)})
    rows, expected = exact_rows(worker, x, y), torch.zeros(worker.model.parameters, dtype=torch.float64)
    for columns, clip_norm in zip(balls.columns(slots), radii, strict=True):
        expected[columns] = clipped(rows[:, columns], clip_norm)
    got = total_of(worker, x, y, balls)
    assert (got - expected).norm() <= 5e-4 * expected.norm()


@pytest.mark.parametrize("worker", ["bare", "tied", "convolutions"], indirect=True)
def test_views_of_an_example_are_averaged_before_they_are_clipped(worker):
    x, _ = batch_of(worker, 6)
    y = torch.arange(3) % worker.model.classes
    rows = exact_rows(worker, x, y.repeat_interleave(2)).view(3, 2, -1).mean(1)
    clip_norm = float(rows.norm(dim=1).median())
    expected = clipped(rows, clip_norm)
    assert (total_of(worker, x, y, clip_norm, views=2) - expected).norm() <= 5e-4 * expected.norm()


@pytest.mark.parametrize("worker", ["convolutions"], indirect=True)
def test_chunks_change_nothing_but_rounding(worker, monkeypatch):
    x, y = batch_of(worker)
    whole = total_of(worker, x, y, 0.1)
    monkeypatch.setattr(graph_worker, "CHUNK_BYTES", 2 * worker.example_bytes)
    torch.testing.assert_close(total_of(worker, x, y, 0.1), whole, rtol=1e-4, atol=1e-7)
    assert not total_of(worker, x[:0], y[:0], 0.1).any()


def test_the_probe_sees_a_wrong_clipping(monkeypatch):
    worker = worker_of("reused")
    assert agrees_with_examples(worker)
    monkeypatch.setattr(graph_worker, "join_records", lambda some, shape: join_records(some[:1], shape))
    assert not agrees_with_examples(worker)


def test_dropout_draws_from_the_clients_generator():
    model = graph_modules.model_of(graph_modules.Case(graph_modules.Dropped, graph_modules.VECTOR))
    worker = worker_for(model)
    assert isinstance(worker, GraphWorker)
    assert worker.dropout
    assert clipping_note(model) is None
    worker.weights.copy_(flatten_module(model.module()))
    x, y = batch_of(worker)
    totals = []
    for seed in (0, 0, 1):
        with own_dropout(worker, np.random.default_rng(seed)):
            totals.append(total_of(worker, x, y, 0.1))
    assert torch.equal(totals[0], totals[1])
    assert not torch.equal(totals[0], totals[2])
    assert torch.equal(worker.logits(x), worker.logits(x))


def test_a_use_without_a_rule_is_told():
    class Strange(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.bilinear = torch.nn.Linear(8, 3), torch.nn.Bilinear(8, 8, 8)

        def forward(self, x):
            return self.last(self.bilinear(x, x))

    model = graph_modules.model_of(graph_modules.Case(Strange, graph_modules.VECTOR))
    with pytest.raises(NoClippingRule, match="no clipping rule for trained values in aten"):
        GraphWorker(model, certificate_of(model))
    assert "every example is differentiated alone" in clipping_note(model)
    assert "no clipping rule for trained values in aten" in clipping_note(model)


@pytest.mark.slow
@NEEDS_HUGGING_FACE
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_models_of_hugging_face_are_built_and_trained_as_any_other(name):
    case = graph_modules.cases_of_hugging_face()[name]
    model = build_model(
        "graph_modules:hugging_face", input_shape=case.shape, classes=case.classes, kind=case.kind,
        vocabulary=graph_modules.VOCABULARY, settings={"name": name},
    )  # fmt: skip
    assert isinstance(worker_for(model), GraphWorker)
    assert clipping_note(model) is None
    if name == "peft lora":
        assert all("lora" in slot.name or "classifier" in slot.name for slot in model.layout)
    x, y = probe_inputs(model, 5).numpy(), np.arange(5) % case.classes
    start = model.init(np.random.default_rng(0))
    total = clipped_gradient_sum(model, start, x, y, clip_norm=0.5, rng=np.random.default_rng(0))
    assert 0 < float(total.norm()) <= 5 * 0.5
    for _, ends in train_local(model, start, [Shard(x, y)], LocalWork(0.1, steps=2), rngs=[np.random.default_rng(1)]):
        assert not torch.equal(ends[0], start)


@pytest.mark.slow
@NEEDS_HUGGING_FACE
@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name != "gpt2 tied"])
def test_bare_models_of_hugging_face_give_their_logits_and_leave_padding_out(name):
    case = graph_modules.cases_of_hugging_face()[name]
    bare = case.make().model
    model = build_model(
        "python:bare", input_shape=case.shape, classes=case.classes, kind=case.kind,
        vocabulary=graph_modules.VOCABULARY, settings={}, factory=read_given_model(bare)[1],
    )  # fmt: skip
    assert isinstance(worker_for(model), GraphWorker)
    x = probe_inputs(model, 5).clamp_min(1)
    x[:, -2:] = bare.config.pad_token_id
    module = model.module().eval()
    with torch.no_grad():
        told = bare.eval()(input_ids=x, attention_mask=(x != bare.config.pad_token_id).long()).logits
        torch.testing.assert_close(module(x), told)
        if name != "gpt2":  # which looks back only
            assert not torch.allclose(module(x), bare(input_ids=x).logits, atol=1e-6)


@pytest.mark.slow
@NEEDS_HUGGING_FACE
@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name != "gpt2 tied"])
def test_dictionaries_of_hugging_face_are_clipped_by_definition(name):
    case = graph_modules.cases_of_hugging_face()[name]
    model = case.make().model
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    x = torch.randint(1, graph_modules.VOCABULARY, (6, *case.shape), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": x, "attention_mask": torch.ones_like(x)}
    batch["attention_mask"][::2, -2:] = 0
    y, clip = torch.arange(6) % case.classes, 0.5
    summed = clipped_gradient(model, None, batch, y, clip)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    expected = {name: torch.zeros_like(one) for name, one in trained.items()}
    for row in range(6):
        value = model(**{key: part[row : row + 1] for key, part in batch.items()}, labels=y[row : row + 1]).loss
        apart = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
        norm = float(torch.cat([part.flatten() for part in apart if part is not None]).norm())
        for one, part in zip(expected.values(), apart, strict=True):
            one += 0 if part is None else part * min(1.0, clip / norm)
    assert set(summed) == set(expected)
    for key, part in expected.items():
        torch.testing.assert_close(summed[key], part, rtol=1e-3, atol=1e-5)
