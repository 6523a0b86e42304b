"""Models by name: sizes of the papers, flat vectors, one-line errors."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from sightline.data import Kind
from sightline.errors import InvalidInput, Refused
from sightline.models import MODELS, bind_parameters, build_model, mixing_layer, refuse_mixing_layers

IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)


def image_model(name, shape=IMAGE, **settings):
    return build_model(name, input_shape=shape, classes=10, kind=Kind.IMAGE, settings=settings)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", IMAGE, 7850),
        ("mlp", IMAGE, 784 * 64 + 64 + 650),
        ("cnn", IMAGE, 28_938),  # R-DPCFL, Table 2
        ("cnn_mcmahan", IMAGE, 1_663_370),  # McMahan et al. 2017
        ("cnn_small", IMAGE, 26_010),
        ("cnn_3x3", COLOUR, 1_626_442),
        ("resnet", COLOUR, 78_042),
        ("resnet18", COLOUR, 11_181_642),  # R-DPCFL, Table 3
        ("wide_resnet_40_4", COLOUR, 8_949_210),
    ],
)
def test_sizes_of_the_papers(name, shape, parameters):
    assert image_model(name, shape).parameters == parameters


def test_resnet101_has_33_blocks():
    model = image_model("resnet101", COLOUR)
    blocks = {slot.name.split(".")[1] for slot in model.layout if slot.name.startswith("blocks.")}
    assert len(blocks) == 33
    assert model.parameters == 42_520_650


def small(name):
    if name in ("bilstm", "lstm"):
        return build_model(
            name, input_shape=(6,), classes=3, kind=Kind.TEXT, vocabulary=9, settings={"embedding": 4, "hidden": 3}
        )
    return build_model(name, input_shape=(1, 16, 16), classes=3, kind=Kind.IMAGE, settings={})


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet101", "resnet18", "wide_resnet_40_4"}))
def test_every_model_is_one_flat_vector(name):
    model = small(name)
    vector = model.init(np.random.default_rng(3))
    assert vector.dtype == torch.float32
    assert vector.shape == (model.parameters,)
    assert torch.equal(vector, model.init(np.random.default_rng(3)))
    assert not torch.equal(vector, model.init(np.random.default_rng(4)))
    tensors = model.split(vector)
    assert all(t.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr() for t in tensors.values())
    assert torch.equal(model.join(tensors), vector)
    stacked = model.split(torch.stack([vector, vector]))
    assert all(stacked[word].shape == (2, *t.shape) for word, t in tensors.items())
    assert mixing_layer(model.module()) is None
    assert not list(model.module().buffers())


def test_init_leaves_the_global_generator_alone():
    model = small("mlp")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.init(np.random.default_rng(0))
    model.module()
    small("cnn")
    assert torch.equal(torch.rand(3), expected)


def test_a_bound_module_shares_the_vector():
    model = small("linear")
    weights, gradient = model.init(np.random.default_rng(0)), torch.zeros(model.parameters)
    module = model.module()
    bind_parameters(module, model.layout, weights, gradient)
    x = torch.randn(2, 1, 16, 16)
    module(x).sum().backward()
    assert float(gradient.abs().sum()) > 0
    weights.zero_()
    assert not module(x).detach().any()


def test_a_block_of_zeros_adds_nothing():
    model = image_model("resnet", (1, 8, 8), channels=[8], depth=2)
    vector = model.init(np.random.default_rng(0))
    tensors = {word: t.clone() for word, t in model.split(vector).items()}
    for word in tensors:
        if word.startswith("blocks.1."):
            tensors[word].zero_()
    module = model.module()
    bind_parameters(module, model.layout, model.join(tensors))
    x = torch.randn(2, 1, 8, 8)
    before = module.blocks[0](module.stem(x))
    torch.testing.assert_close(module.blocks[1](before), before)


def line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_unknown_names_get_a_hint():
    with pytest.raises(InvalidInput) as error:
        image_model("cnnn")
    assert 'did you mean "cnn"' in line(error)
    with pytest.raises(InvalidInput) as error:
        image_model("mlp", hiden=[3])
    assert 'did you mean "hidden"' in line(error)
    with pytest.raises(InvalidInput) as error:
        image_model("linear", hidden=[3])
    assert "no such setting" in line(error)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mlp", {"hidden": 3}), ("mlp", {"hidden": [0]}), ("mlp", {"activation": "swish"}), ("resnet", {"depth": 0}),
     ("resnet", {"channels": []}), ("resnet18", {"stem": 5}), ("mlp", {"classes": 4})],
)  # fmt: skip
def test_bad_settings_are_one_line(name, settings):
    with pytest.raises(InvalidInput) as error:
        image_model(name, **settings)
    assert line(error).startswith("model.")


def test_models_say_what_data_they_take():
    with pytest.raises(InvalidInput, match="takes images"):
        build_model("cnn", input_shape=(20,), classes=2, kind=Kind.VECTOR, settings={})
    with pytest.raises(InvalidInput, match="bilstm"):
        build_model("mlp", input_shape=(20,), classes=2, kind=Kind.TEXT, vocabulary=5, settings={})
    with pytest.raises(InvalidInput, match="token sequences"):
        image_model("bilstm")
    with pytest.raises(InvalidInput, match="too small"):
        image_model("cnn", (1, 2, 2))


class Own(nn.Module):
    def __init__(self, input_shape, classes, width=3):
        super().__init__()
        self.first, self.scale = nn.Linear(input_shape[0], width), nn.Parameter(torch.ones(width))
        self.last = nn.Linear(width, classes)

    def forward(self, x):
        return self.last(self.scale * torch.tanh(self.first(x)))


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_models")
    module.Own = Own
    module.seven = lambda **_: 7
    module.number = 7
    module.wrong_shape = lambda input_shape, classes: nn.Linear(input_shape[0], classes + 1)
    module.breaks = lambda **_: 1 / 0
    module.empty = lambda **_: nn.Flatten()
    module.double = lambda input_shape, classes: nn.Linear(input_shape[0], classes).double()
    module.lazy = lambda classes: nn.LazyLinear(classes)
    module.normed = lambda input_shape, classes: nn.Sequential(
        nn.BatchNorm1d(input_shape[0]), nn.Linear(input_shape[0], classes)
    )
    monkeypatch.setitem(sys.modules, "own_models", module)


def own(attribute, **settings):
    return build_model(f"own_models:{attribute}", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings=settings)


@pytest.mark.usefixtures("own_module")
def test_own_factory():
    assert own("Own", width=5).parameters == 4 * 5 + 5 + 5 + 5 * 3 + 3


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("attribute", "words"),
    [("Owm", 'did you mean "Own"'), ("seven", "returned a int"), ("number", "not callable"), ("wrong_shape", "(batch, 3)"),
     ("breaks", "ZeroDivisionError"), ("empty", "no parameters"), ("double", "float64"),
     ("lazy", "has no shape yet")],
)  # fmt: skip
def test_own_factory_errors(attribute, words):
    with pytest.raises(InvalidInput) as error:
        own(attribute)
    assert words in line(error)


@pytest.mark.usefixtures("own_module")
def test_own_factory_with_an_unknown_setting():
    with pytest.raises(InvalidInput) as error:
        own("Own", widht=5)
    assert 'did you mean "width"' in line(error)


def test_own_module_that_cannot_be_imported():
    with pytest.raises(InvalidInput) as error:
        build_model("no_such_package.models:f", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={})
    assert "cannot be imported" in line(error)


@pytest.mark.usefixtures("own_module")
def test_batch_norm_is_refused_with_a_way_out():
    module = own("normed").module()
    with pytest.raises(Refused) as error:
        refuse_mixing_layers(module)
    assert "GroupNorm" in line(error)
    refuse_mixing_layers(nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4)))
    with pytest.raises(Refused):
        refuse_mixing_layers(nn.InstanceNorm1d(4, track_running_stats=True))


def test_vectors_of_the_wrong_length_are_named():
    model = small("linear")
    with pytest.raises(InvalidInput, match="parameters"):
        model.split(torch.zeros(3))
    tensors = model.split(model.init(np.random.default_rng(0)))
    with pytest.raises(InvalidInput):
        model.join({"other": torch.zeros(1)})
    with pytest.raises(InvalidInput):
        model.join(tensors | {"output.bias": torch.zeros(4)})
