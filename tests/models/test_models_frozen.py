"""Frozen tensors and buffers stay where they are: not in the vector, the clip, the noise or the traffic, but in the file."""

import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sightline
from sightline.config import parse
from sightline.data import Kind
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import clipped_gradient_sum


class Adapted(nn.Module):
    """A frozen body, a table that is a buffer, a counted buffer, and a head that is trained; two layers are tied."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.body = nn.Linear(input_shape[0], 7).requires_grad_(False)
        self.register_buffer("table", torch.rand(7))
        self.register_buffer("version", torch.tensor(3))
        self.register_buffer("scratch", torch.ones(7), persistent=False)
        self.inner, self.same = nn.Linear(7, 7), nn.Linear(7, 7)
        self.same.weight = self.inner.weight
        self.head = nn.Linear(7, classes)

    def forward(self, x):
        h = self.scratch * torch.tanh(self.body(x)) + self.table
        return self.head(torch.tanh(self.same(torch.tanh(self.inner(h)))))


@pytest.fixture(autouse=True)
def own_models(monkeypatch):
    module = types.ModuleType("frozen_models")
    module.Adapted = Adapted
    module.chain = chain
    module.all_frozen = lambda input_shape, classes: nn.Linear(input_shape[0], classes).requires_grad_(False)
    module.restless = restless
    monkeypatch.setitem(sys.modules, "frozen_models", module)
    return module


def chain(input_shape, classes):
    layers = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], 4), nn.ReLU(), nn.Linear(4, classes))
    layers[1].requires_grad_(False)
    return layers


def restless(input_shape, classes):
    layers = nn.Sequential(nn.Linear(input_shape[0], classes))
    layers.register_buffer("now", torch.from_numpy(np.random.default_rng().random(3)))
    return layers


def own(name):
    return build_model(f"frozen_models:{name}", input_shape=(5,), classes=3, kind=Kind.VECTOR, settings={})


TRAINED = 7 * 7 + 7 + 7 + 7 * 3 + 3


def test_the_vector_holds_what_is_trained():
    model = own("Adapted")
    assert model.parameters == TRAINED == len(model.init(np.random.default_rng(0)))
    assert {slot.name for slot in model.layout} == {
        "inner.weight",
        "inner.bias",
        "same.bias",
        "head.weight",
        "head.bias",
    }
    assert set(model.constants) == {"body.weight", "body.bias", "table", "version", "scratch"}
    assert own("chain").parameters == 4 * 3 + 3


def test_frozen_weights_take_no_part_in_the_clip():
    """The norm is that of the trained tensors' gradient alone, in a module of one's own and in a chain."""
    x = np.random.default_rng(0).standard_normal((1, 5)).astype(np.float32)
    for model in (own("Adapted"), own("chain")):
        vector = model.init(np.random.default_rng(1))
        module = model.module()
        for slot in model.layout:
            module.get_parameter(slot.name).data.copy_(vector[slot.start : slot.stop].view(slot.shape))
        loss = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.zeros(1, dtype=torch.long))
        parts = torch.autograd.grad(loss, [module.get_parameter(slot.name) for slot in model.layout])
        gradient = torch.cat([part.reshape(-1) for part in parts])
        short = 0.5 * float(gradient.norm())
        got = clipped_gradient_sum(model, vector, x, np.zeros(1, np.int64), clip_norm=short)
        torch.testing.assert_close(got, gradient * 0.5, rtol=1e-4, atol=1e-6)


def experiment(name, **more):
    words = {
        "name": "frozen", "rounds": 2, "data": {"source": "synthetic", "clients": 4, "features": 5, "classes": 3,
        "partition": "natural"}, "model": {"name": f"frozen_models:{name}", **more},
        "local": {"steps": 2, "batch_size": 8}, "sampling": {"clients": {"scheme": "full"}},
    }  # fmt: skip
    return parse(words)


@pytest.mark.parametrize(("name", "unit"), [("Adapted", "client"), ("chain", "sample"), ("Adapted", "sample")])
def test_a_run_sends_noises_and_saves_the_right_tensors(name, unit, tmp_path):
    words = experiment(name).model_dump(exclude_none=True)
    privacy = {"unit": unit, "noise_multiplier": 1.0, "delta": 1e-3}
    run = sightline.run(parse(words | {"privacy": privacy}), out=tmp_path / "run", progress=False)
    model = own(name)
    assert run.summary["uplink_floats"] == 2 * 4 * model.parameters
    saved, module = load_file(tmp_path / "run" / "model.safetensors"), model.module()
    fresh = {word: tensor.clone() for word, tensor in module.state_dict().items()}
    module.load_state_dict(saved)  # strict: nothing is missing, nothing is there that does not belong
    for word, tensor in module.state_dict().items():
        assert torch.equal(tensor, fresh[word]) == (word in model.constants), word
        assert tensor.dtype == saved[word].dtype == fresh[word].dtype


def test_the_saved_model_predicts_what_the_run_measured(tmp_path):
    from sightline import engine

    run = sightline.run(experiment("Adapted"), out=tmp_path / "run", progress=False)
    module = own("Adapted").module()
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    test = engine.build_experiment(experiment("Adapted")).federation.test
    right = module.eval()(torch.from_numpy(test.x)).argmax(1) == torch.from_numpy(test.y)
    assert float(right.double().mean()) == pytest.approx(run.test_accuracy)


def test_frozen_tensors_come_from_the_file_that_training_starts_from(tmp_path):
    from sightline import engine

    tensors = own("Adapted").named_tensors(torch.zeros(TRAINED))
    tensors["body.weight"] = torch.full((7, 5), 2.0)
    save_file({word: tensor.clone() for word, tensor in tensors.items()}, tmp_path / "start.safetensors")
    setting = engine.build_experiment(experiment("Adapted", init=str(tmp_path / "start.safetensors")))
    assert torch.equal(setting.model.module().body.weight, torch.full((7, 5), 2.0))
    assert not setting.start.any()
    del tensors["table"]
    save_file({word: tensor.clone() for word, tensor in tensors.items()}, tmp_path / "less.safetensors")
    setting = engine.build_experiment(experiment("Adapted", init=str(tmp_path / "less.safetensors")))
    assert torch.equal(setting.model.module().table, own("Adapted").constants["table"])
    for word, tensor in {"body.weight": torch.zeros(2), "nobody.weight": torch.zeros(2)}.items():
        save_file({w: t.clone() for w, t in (tensors | {word: tensor}).items()}, tmp_path / "wrong.safetensors")
        with pytest.raises(InvalidInput):
            engine.build_experiment(experiment("Adapted", init=str(tmp_path / "wrong.safetensors")))


@pytest.mark.parametrize(
    ("name", "words"),
    [("all_frozen", "all parameters are frozen"), ("restless", "creates a different 'now' on every call")],
)
def test_what_cannot_be_trained_or_kept_is_one_line(name, words):
    with pytest.raises(InvalidInput) as error:
        own(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
