"""Parts are disjoint, together they are the model, and each is a network of its own that equals the rest switched off."""

from itertools import chain

import numpy as np
import pytest
import torch
from split_masked import gradient
from training_oracle import dump, load

from sightline.data import Kind
from sightline.errors import InvalidInput, Refused
from sightline.models import Partitions, build_model, probe_inputs, split_model, unsplit_mask
from sightline.models.flat import flatten_module
from sightline.models.submodel import deal_positions

from .conftest import split

CASES = {
    "mlp": ("mlp", {"parts": 3}),
    "mlp, last unsplit": ("mlp", {"parts": 2, "unsplit": ["last"]}),
    "mlp, first and last unsplit": ("mlp", {"parts": 5, "unsplit": ["first", "last"]}),
    "mlp, mixture": ("mlp", {"parts": 3, "partitions": 3}),
    "resnet": ("resnet", {"parts": 3}),
    "resnet, first and last unsplit": ("resnet", {"parts": 2, "unsplit": ["first", "last"]}),
    "resnet, named": ("resnet", {"parts": 2, "unsplit": ["blocks.1", "blocks.2"], "partitions": 2}),
}


@pytest.fixture(params=CASES)
def splitting(request):
    name, settings = CASES[request.param]
    return split_model(request.getfixturevalue(name), split(**settings), rng=np.random.default_rng(0))


def test_parts_are_disjoint_and_together_the_model(splitting):
    unsplit = unsplit_mask(splitting.whole, splitting.unsplit)
    for way in splitting.ways:
        count = torch.zeros(splitting.whole.parameters)
        for sub in way:
            assert len(set(sub.positions.tolist())) == sub.model.parameters == len(sub.positions)
            count[sub.positions] += 1
        assert (count[~unsplit] == 1).all()
        assert (count[unsplit] >= 1).all()
    assert 0 < splitting.share < 1


def test_a_part_is_the_whole_with_the_others_switched_off(splitting):
    model = splitting.whole
    weights = model.init(np.random.default_rng(1))
    x, y = probe_inputs(model, 2), torch.tensor([0, 2])
    for sub in splitting.submodels:
        module = load(sub.model.module(), weights[sub.positions])
        for one_x, one_y in zip(x, y, strict=True):
            module.zero_grad()
            torch.nn.functional.cross_entropy(module(one_x[None]), one_y[None]).backward()
            own = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
            expected = gradient(model, weights, sub.positions, one_x, one_y)
            torch.testing.assert_close(own, expected[sub.positions], rtol=1e-4, atol=1e-6)
            outside = torch.ones(model.parameters, dtype=torch.bool)
            outside[sub.positions] = False
            assert (expected[outside] == 0).all()


def test_unsplit_is_what_every_part_can_move(splitting):
    """Every tensor outside `unsplit` has a gradient in one part only: seen on the network, not on the layout."""
    model = splitting.whole
    weights = model.init(np.random.default_rng(2))
    x, y = probe_inputs(model, 4), torch.arange(4) % 3
    unsplit = unsplit_mask(model, splitting.unsplit)
    for way in splitting.ways:
        moved = torch.zeros(model.parameters)
        for sub in way:
            some = sum(gradient(model, weights, sub.positions, *pair).abs() for pair in zip(x, y, strict=True))
            moved += (some > 0).float()
        assert (moved[~unsplit] <= 1).all()


def test_one_part_is_the_model(mlp):
    splitting = split_model(mlp, split(parts=1), rng=np.random.default_rng(0))
    assert splitting.unsplit == frozenset()
    assert splitting.submodels[0].model is mlp
    assert splitting.share == 1


def test_mixtures_cut_differently_and_reproducibly(resnet):
    one, other = (split_model(resnet, split(parts=2, partitions=4), rng=np.random.default_rng(5)) for _ in range(2))
    cuts = [tuple(tuple(sub.positions.tolist()) for sub in way) for way in one.ways]
    assert len(set(cuts)) > 1
    assert cuts == [tuple(tuple(sub.positions.tolist()) for sub in way) for way in other.ways]


def test_parts_are_drawn_uniformly_and_independently(mlp):
    """Chi-squared over 6 cells with 60,000 draws: above 45 with probability 1.5e-8."""
    splitting = split_model(mlp, split(parts=3, partitions=2), rng=np.random.default_rng(0))
    drawn = splitting.draw(60_000, rng=np.random.default_rng(1))
    counts = np.bincount(drawn, minlength=6)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 45
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.025


@pytest.mark.parametrize(("model", "settings", "message"), [
    ("mlp", {"parts": 6, "unsplit": ["first"]}, "split.parts=6: there are only 5 hidden units"),
    ("mlp", {"unsplit": ["first", "hidden1", "hidden2"]}, "there are only 0 hidden units"),
    ("mlp", {"unsplit": ["hidden9"]}, "unsplit=hidden9: unknown layer"),
    ("resnet", {"parts": 8}, "there are only 7 blocks that keep their shape"),
    ("resnet", {"unsplit": ["blocks.99"]}, "unsplit=blocks.99: unknown block"),
])  # fmt: skip
def test_what_cannot_be_split_says_why(request, model, settings, message):
    with pytest.raises(InvalidInput, match=message):
        split_model(request.getfixturevalue(model), split(**settings), rng=np.random.default_rng(0))


def test_other_models_are_not_split(cnn):
    with pytest.raises(InvalidInput, match="parts are derived only for fully connected chains"):
        split_model(cnn, split(parts=2), rng=np.random.default_rng(0))


WAYS = [[["conv1"], ["conv2"], ["output.weight"]], [["conv1.weight", "output.weight"], ["conv1.bias", "conv2.weight"]]]


def test_named_parts_are_disjoint_and_the_rest_is_unsplit(cnn):
    splitting = split_model(cnn, split(parts=WAYS), rng=np.random.default_rng(0))
    # What a partition leaves out is unsplit in all: it is clipped in the ball that every part moves.
    assert splitting.unsplit == {"conv2.bias", "output.bias"}
    assert splitting.parts == 2
    unsplit = unsplit_mask(cnn, splitting.unsplit)
    sizes = {slot.name: slot.size for slot in cnn.layout}
    for way, names in zip(splitting.ways, WAYS, strict=True):
        count = torch.zeros(cnn.parameters)
        for sub in way:
            count[sub.trained] += 1
        assert (count[~unsplit] == 1).all()
        left_out = [name for name in sizes if not any(name == n or name.startswith(f"{n}.") for n in chain(*names))]
        assert all((some == len(way)).all() for name, some in cnn.split(count).items() if name in left_out)
    assert splitting.sent == 1, "a named part needs the whole network"
    assert splitting.share < 1


class EveryNumber:
    """Draws each of 0 .. high - 1 equally often."""

    def integers(self, high, size):
        assert size % high == 0
        return np.arange(size) % high


@pytest.mark.parametrize(("weights", "ratios", "parts"), [
    ((0.5, 0.3, 0.2), (5, 3, 2), 2),
    ((1, 1, 1), (1, 1, 1), 3),
    ((0.1, 0.1, 0.1), (1, 1, 1), 3),
    ((0.334, 0.333, 0.333), (334, 333, 333), 2),
    ((0.2, 0.7, 0.1), (2, 7, 1), 1),
    ((1e-3, 2.5e-3, 1.5e-3), (2, 5, 3), 2),
])  # fmt: skip
def test_weights_are_drawn_exactly_and_bound_the_largest_part(mlp, weights, ratios, parts):
    """0.1 + 0.1 + 0.1 > 0.3 and 3 x 0.1 / 0.1 > 3 in floats: the draw and the count use whole numbers."""
    splitting = split_model(mlp, split(parts=3, part_weights=weights), rng=np.random.default_rng(0))
    drawn = splitting.draw(7 * sum(ratios), rng=EveryNumber())
    assert np.bincount(drawn).tolist() == [7 * ratio for ratio in ratios]
    assert splitting.parts == parts
    assert max(ratios) * parts <= sum(ratios) < max(ratios) * (parts + 1)


def test_a_partition_is_drawn_by_its_weight_and_then_a_part_of_it(cnn):
    """Chi-squared over 5 cells with 60,000 draws: above 45 with probability 4e-9."""
    splitting = split_model(cnn, split(parts=WAYS, partition_weights=[0.25, 0.75]), rng=np.random.default_rng(0))
    counts = np.bincount(splitting.draw(60_000, rng=np.random.default_rng(1)), minlength=5)
    expected = np.array([5_000] * 3 + [22_500] * 2)
    assert ((counts - expected) ** 2 / expected).sum() < 45


def test_the_round_chooses_the_partition(cnn):
    splitting = split_model(cnn, split(parts=WAYS, cycle=True), rng=np.random.default_rng(0))
    for number in range(4):
        drawn = splitting.in_round(number).draw(200, rng=np.random.default_rng(number))
        assert set(drawn.tolist()) == ({0, 1, 2} if number % 2 == 0 else {3, 4})
    assert splitting.in_round(1).parts == splitting.parts == 2
    plain = split_model(cnn, split(parts=WAYS), rng=np.random.default_rng(0))
    assert plain.in_round(3) is plain


@pytest.mark.parametrize(("settings", "message"), [
    ({"parts": [["conv1"], ["conv1.bias", "conv2"]]}, "split.parts=conv1.bias: is in two parts of one partition"),
    ({"parts": [["conv1"], ["conv3"]]}, "split.parts=conv3: no trained parameter or layer"),
    ({"parts": [[["conv1"], ["conv2"]], [["output"], ["conv2"]]]}, "no parameter that every partition splits"),
    ({"parts": [["conv1"], []]}, "must be a whole number >= 1, a list of parts"),
    ({"parts": ["conv1", "conv2"]}, "must be a whole number >= 1, a list of parts"),
    ({"parts": [["conv1"], ["conv2"]], "unsplit": ["output"]}, "split.unsplit=.*parameters in no list are unsplit"),
    ({"parts": [["conv1"], ["conv2"]], "partitions": 2}, "split.partitions=2: does not apply to named parts"),
    ({"parts": [["conv1"], ["conv2"]], "part_weights": [1, 2, 3]}, "has 3 weights, and there are 2 parts"),
    ({"parts": WAYS, "part_weights": [1, 2]}, "has 2 weights, and there are 2 or 3 parts"),
    ({"parts": WAYS, "partition_weights": [1, 2, 3]}, "has 3 weights, and there are 2 partitions"),
    ({"parts": WAYS, "partition_weights": [1, 2], "cycle": True}, "cycle = true chooses the partition by the round, not at random"),
    ({"cycle": True}, "split.cycle=True: there is only one partition to cycle through"),
    ({"parts": [["conv1"], ["conv2"]], "part_weights": [1e-20, 1.0]}, "a sum below 2\\^52"),
    ({"by": "dropout", "part_weights": [1, 2]}, "it has two parts"),
])  # fmt: skip
def test_parts_and_weights_without_a_law_are_refused(cnn, settings, message):
    with pytest.raises(InvalidInput, match=message):
        split_model(cnn, split(**settings), rng=np.random.default_rng(0))


def test_overlapping_parts_are_refused(mlp):
    one = split_model(mlp, split(parts=2), rng=np.random.default_rng(0)).submodels[0]
    with pytest.raises(Refused, match="share a parameter"):
        Partitions(mlp, frozenset(), ((one, one),))


@pytest.mark.parametrize(
    ("name", "blocks", "kept"),
    [pytest.param("resnet101", 33, 29, marks=pytest.mark.slow), ("wide_resnet_40_4", 18, 15)],
)
def test_the_papers_networks_can_be_split(name, blocks, kept):
    model = build_model(name, input_shape=(3, 32, 32), classes=10, kind=Kind.IMAGE, settings={})
    splitting = split_model(model, split(parts=3), rng=np.random.default_rng(0))
    prefixes = {slot.name.split(".")[1] for slot in model.layout if slot.name.startswith("blocks.")}
    inside = {
        slot.name.split(".")[1]
        for slot in model.layout
        if slot.name.startswith("blocks.") and slot.name not in splitting.unsplit
    }
    assert (len(prefixes), len(inside)) == (blocks, kept)
    assert splitting.share < 0.65
    sub = splitting.submodels[0]
    module = load(sub.model.module(), flatten_module(model.module())[sub.positions])
    assert torch.equal(dump(module), flatten_module(model.module())[sub.positions])


def test_blocks_are_dealt_evenly():
    assert sorted(chain.from_iterable(deal_positions(7, 3, np.random.default_rng(0)))) == list(range(7))
    assert [len(some) for some in deal_positions(7, 3, None)] == [3, 2, 2]
