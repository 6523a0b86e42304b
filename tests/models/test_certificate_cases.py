"""The certificate's verdict on many modules, what it says, and that its graph is the module."""

import copy
import logging
import re
import warnings
from functools import cache

import pytest
import torch
from torch import nn

from sightline.data import Kind
from sightline.models import build_model
from sightline.models.certificate import BatchAxis, Certificate, Objection, certificate_of, certify, certify_module
from tests.models.certificate_cases import CASES, Net, rows_of
from tests.models.certificate_table import PAGE, table_lines

FAST = ("mlp", "centred", "frequency", "unwritten")
CERTIFIED = [name for name, case in CASES.items() if case.objects is None]
MIXING = nn.Sequential(nn.Linear(8, 3), nn.Softmax(0))


@cache
def certified(name: str) -> tuple[nn.Module, Certificate | Objection]:
    """A module and what the certificate says of it, found once."""
    module = CASES[name].build()
    return module, certify_module(module, rows_of(CASES[name].kind))


def verdict(name: str) -> str | None:
    found = certified(name)[1]
    return None if isinstance(found, Certificate) else found.operation


@pytest.mark.parametrize("name", FAST)
def test_the_verdict_is_right(name):
    assert verdict(name) == CASES[name].objects


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_every_other_verdict_is_right(name):
    assert verdict(name) == CASES[name].objects


def test_there_are_enough_modules_of_each_kind():
    assert len(CERTIFIED) >= 40
    assert len(CASES) - len(CERTIFIED) >= 70


def test_the_table_is_the_one_that_is_tested():
    lines = PAGE.read_text().splitlines()
    begin = lines.index(table_lines()[0])
    assert lines[begin : begin + len(table_lines())] == table_lines(), "python -m tests.models.certificate_table"


def other_rows_stay(certificate: Certificate, module: nn.Module, kind: str, training: bool) -> None:
    """Perturb one example: other rows of the result, and other rows' gradients of every weight, keep their bits."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = [one for one in module.parameters() if one.requires_grad]
    first = rows_of(kind)
    found = []
    for x in (first, torch.cat([first[:2], rows_of(kind, seed=1)[2:]])):
        torch.manual_seed(0)
        output = (certificate if training else certificate.evaluation).run(tensors, x)
        rows = [torch.autograd.grad(one.square().sum(), wanted, retain_graph=True, allow_unused=True) for one in output]
        found.append((output.detach(), rows))
    (before, old), (after, new) = found
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2], after[2])
    for row in (0, 1):
        for one, two in zip(old[row], new[row], strict=True):
            assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize("name", ["mlp"])
def test_one_example_does_not_reach_the_others(name):
    module, certificate = certified(name)
    for training in (True, False):
        other_rows_stay(certificate, module, CASES[name].kind, training)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CERTIFIED if name not in ("mlp", "positions")])
def test_one_example_does_not_reach_the_others_in_any_certified_module(name):
    module, certificate = certified(name)
    for training in (True, False):
        other_rows_stay(certificate, module, CASES[name].kind, training)


def test_a_certificate_names_parameters_and_says_where_the_batch_is():
    module = Net(lambda s, x: s.out(s.one(x.transpose(0, 1)).mean(0)), one=nn.Linear(8, 5), out=nn.Linear(5, 3))
    found = certify_module(module, rows_of("sequence"))
    assert set(found.parameters.values()) == {"one.weight", "one.bias", "out.weight", "out.bias"}
    tags = {str(node.target): tag for node, tag in found.axes.items()}
    assert tags["aten.transpose.int"] == BatchAxis(1)
    assert tags["aten.mean.dim"] == BatchAxis(0)


@pytest.mark.slow
def test_tied_weights_have_one_name():
    module = CASES["tied"].build()
    module.again = module.emb
    found = certify_module(module, rows_of("tokens"))
    assert set(found.parameters.values()) == {"emb.weight"}


def test_training_draws_dropout_and_evaluation_does_not():
    (module, found), x = certified("mlp"), rows_of("vector")
    tensors = dict(module.named_parameters())
    drawn = []
    for seed in (0, 1):
        for training in (True, False):
            torch.manual_seed(seed)
            drawn.append((found if training else found.evaluation).run(tensors, x))
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    torch.testing.assert_close(drawn[1], module.eval()(x))


def test_an_objection_has_the_users_line_and_a_way_out():
    found = certified("centred")[1]
    assert found.operation == "mean.dim"
    assert re.fullmatch(r"certificate_cases\.py:\d+: return self\.written\(self, x\)", found.source)
    assert "\n" not in str(found)
    assert found.way_out


def test_a_layer_of_torch_is_named():
    assert certify_module(MIXING, rows_of("vector")).source == "layer 1 (Softmax)"


def test_nothing_is_certified_for_another_torch(monkeypatch):
    monkeypatch.setattr(certify, "VERSIONS", ("2.4",))
    assert certify_module(nn.Linear(8, 3), rows_of("vector")).operation == "torch"


class Unwilling(nn.Linear):
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise RuntimeError("no")


@pytest.mark.parametrize("module", [Unwilling(8, 3), nn.Linear(7, 3), nn.Module(), nn.Flatten(0)])
def test_whatever_the_module_does_is_an_objection(module):
    assert isinstance(certify_module(module, rows_of("vector")), Objection)


def test_the_world_is_left_as_it_was(capfd):
    module = CASES["data-branch"].build().eval()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    disabled, fast_path = logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        assert isinstance(certify_module(module, rows_of("vector")), Objection)
        assert not torch.is_grad_enabled()
    assert not caught
    assert capfd.readouterr() == ("", "")
    assert torch.equal(state, torch.get_rng_state())
    assert not module.training
    assert all(torch.equal(one, module.state_dict()[name]) for name, one in before.items())
    assert (disabled, fast_path) == (logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled())


def test_a_model_is_certified_once():
    model = build_model("linear", input_shape=(8,), classes=3, kind=Kind.VECTOR, settings={})
    found = certificate_of(model)
    assert isinstance(found, Certificate)
    assert certificate_of(model) is found
    assert set(found.parameters.values()) == {slot.name for slot in model.layout}
