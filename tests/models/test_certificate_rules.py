"""Every rule of the certificate against torch itself: what it says of a value is true of the value."""

import logging
import operator
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.models.certificate import BatchAxis
from sightline.models.certificate.rules import FILLING, FREE_ONLY, RULES, Rule
from sightline.models.certificate.walk import CHECKS, UNWRITTEN
from tests.models.certificate_cases import MixingBackward
from tests.models.certificate_fuzz import KINDS, SKIPPED, Drawer, Ref, Unfit, aten, false_tag, overload, random_program

FUZZED = sorted(name for name in RULES if name not in SKIPPED | {"_native_batch_norm_legit.no_stats"})
TRIES = 40
QUICK = "add.Tensor view.default matmul.default sum.dim_IntList index.Tensor repeat.default".split()


@pytest.fixture(autouse=True)
def quiet():
    """torch tells of every call that does not fit."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def test_every_name_is_an_operation_that_changes_nothing():
    for name in set(RULES) | FREE_ONLY | FILLING | UNWRITTEN | CHECKS:
        schema = overload(name)._schema
        assert not schema.is_mutable, name
        rule = RULES.get(name)
        arguments = {one.name for one in schema.arguments}
        assert rule is None or not rule.rows or rule.rows & arguments, name
        assert rule is None or not rule.sizes or rule.sizes & arguments, name


def accepted_and_true(name: str, tries: int, wanted: int, kinds: tuple[str, ...] = KINDS) -> int:
    """How many calls of an operation, drawn at random, got a tag, which was true every time."""
    accepted = 0
    for seed in range(tries):
        drawer = random_program(seed, 1, [name])
        if name in drawer.program.accepted:
            accepted += 1
            assert (wrong := false_tag(drawer.program, kinds)) is None, wrong
        if accepted >= wanted:
            break
    return accepted


@pytest.mark.parametrize("name", QUICK)
def test_a_rule_says_what_is_true(name):
    assert accepted_and_true(name, TRIES, 2, ("other", "nan")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUZZED if name not in QUICK and not name.startswith("arange")])
def test_every_other_rule_says_what_is_true(name):
    assert accepted_and_true(name, 4 * TRIES, 2) > 0, "no call was accepted: the rule is not tested"


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_compositions_keep_their_word(seed):
    assert (wrong := false_tag(random_program(seed, 6, FUZZED).program)) is None, wrong


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), length=st.integers(4, 14))
def test_longer_compositions_keep_their_word(seed, length):
    assert (wrong := false_tag(random_program(seed, length, FUZZED).program)) is None, wrong


def stay(call):
    """A rule that says of every operation that the batch stays where it is."""
    return call.axis_of(call["self"])


WRONG = {
    "roll.default": [[1], [0]],
    "flip.default": [[0]],
    "cumsum.default": [0],
    "softmax.int": [0],
    "sort.default": [0],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_seen(monkeypatch, name):
    monkeypatch.setitem(RULES, name, Rule(stay, frozenset({"self"})))
    drawer = Drawer(1)
    drawer.program.add(overload(name), Ref(0), *WRONG[name])
    if name == "sort.default":
        drawer.program.add(operator.getitem, Ref(len(drawer.program.nodes) - 1), 0)
    assert "other rows change" in false_tag(drawer.program)


def test_a_wrong_backward_is_seen(monkeypatch):
    """An operation whose forward keeps rows apart, and whose gradient does not."""
    monkeypatch.setitem(RULES, "clone.default", Rule(stay, frozenset({"self"})))
    drawer = Drawer(1)
    drawer.program.add(aten.clone.default, Ref(0))
    assert false_tag(drawer.program) is None
    drawer.program.calls[-1] = (MixingBackward.apply, (Ref(0),), {})
    assert "gradients change" in false_tag(drawer.program)


def test_a_value_that_depends_on_the_size_of_the_batch_is_seen(monkeypatch):
    monkeypatch.setitem(RULES, "mul.Scalar", Rule(stay, frozenset({"self"}), frozenset({"other"})))
    drawer = Drawer(1)
    assert drawer.program.add(aten.mul.Scalar, Ref(0), drawer.size) is not None
    assert "number of rows" in false_tag(drawer.program)


@pytest.mark.parametrize("flag", ["scale_grad_by_freq", "sparse"])
def test_flags_of_the_backward_pass_are_refused_also_on_fixed_places(flag):
    drawer = Drawer(0)
    table = drawer.fixed(3, 2)
    for places in (Ref(2), Ref(6)):
        assert drawer.program.add(aten.embedding.default, table, places) is not None
        arguments = (-1, flag == "scale_grad_by_freq", flag == "sparse")
        assert drawer.program.add(aten.embedding.default, table, places, *arguments) is None


def test_a_batch_of_positions_only_indexes_the_batch():
    drawer = Drawer(3)
    positions = drawer.program.add(aten.arange.default, drawer.size)
    assert drawer.program.add(aten.neg.default, positions) is None
    assert drawer.program.add(aten.index.Tensor, drawer.fixed(9, 2), [positions]) is None
    assert drawer.program.add(aten.index.Tensor, Ref(0), [drawer.program.add(aten.zeros_like.default, Ref(6))]) is None
    picked = drawer.program.add(aten.index.Tensor, Ref(0), [positions])
    assert drawer.program.tags[drawer.program.nodes[picked]] == BatchAxis(0)


@pytest.mark.parametrize("name", WRONG)
def test_nothing_works_over_the_batch(name):
    drawer = Drawer(1)
    assert drawer.program.add(overload(name), Ref(0), *WRONG[name]) is None
    along = {"roll.default": [[1], [-1]], "flip.default": [[1]]}.get(name, [-1])
    assert drawer.program.add(overload(name), Ref(0), *along) is not None


def test_examples_do_not_meet():
    """Calls whose results have the right shape, so that only the rule stands against them."""
    drawer = Drawer(1)
    program = drawer.program
    flat = program.add(aten.view.default, Ref(0), [drawer.size, -1])
    places = program.add(aten.zeros_like.default, flat, dtype=torch.int64)
    turned, above = program.add(aten.t.default, flat), program.add(aten.unsqueeze.default, flat, 0)
    assert program.add(aten.gather.default, flat, 1, places) is not None
    assert program.add(aten.gather.default, flat, 0, places) is None
    assert program.add(aten.scatter_add.default, flat, -2, places, flat) is None
    assert program.add(aten.scaled_dot_product_attention.default, above, above, above) is None
    assert program.add(aten.matmul.default, flat, turned) is None
    assert program.add(aten.einsum.default, "bd,bd->d", [flat, flat]) is None
    assert program.add(aten.tril.default, flat) is None


def test_views_that_cut_across_examples_have_no_tag():
    drawer = Drawer(0)
    program = drawer.program
    wide = program.add(aten.zeros.default, [6, drawer.size, 4])
    doubled = program.add(operator.mul, drawer.size, 2)
    kept = program.add(aten.view.default, wide, [3, doubled, 4])
    assert program.tags[program.nodes[kept]] == BatchAxis(1, 2, 1)
    assert program.add(aten.view.default, wide, [4, drawer.size, 6]) is None
    assert program.add(aten.view.default, wide, [drawer.size, 24]) is None
    assert program.add(aten.view.default, wide, [12, drawer.size, 2]) is None


def test_the_batch_size_stands_in_shapes_only():
    drawer = Drawer(0)
    assert drawer.program.add(aten.full.default, [drawer.size, 2], 0.5) is not None
    for target, arguments in (
        (aten.full.default, ([drawer.size, 2], drawer.size)),
        (aten.mul.Scalar, (Ref(0), drawer.size)),
        (aten.randint.default, (drawer.size, [3])),
        (aten.randperm.default, (drawer.size,)),
    ):
        assert drawer.program.add(target, *arguments) is None


def test_a_call_that_fixes_the_batch_size_ends_a_program():
    drawer = Drawer(0)
    with pytest.raises(Unfit, match="fixed"):
        drawer.program.add(aten.add.Tensor, Ref(0), Ref(9))
