"""clipped_gradient against the naive loop: any module, any loss, one example never reaching another."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import sightline
from sightline.errors import InvalidInput, Refused
from sightline.training.fast.chains import ChainWorker
from sightline.training.own_module import OWN, LossWorker

COUNT = 6


def naive(model, loss, x, y, clip_norm):
    """The definition: every example alone, its gradient scaled onto the ball, added up."""
    model = copy.deepcopy(model).train()
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    total = {name: torch.zeros_like(one, dtype=torch.float64) for name, one in trained.items()}
    for one in range(len(y)):
        found = torch.autograd.grad(loss(model(x[one : one + 1]), y[one : one + 1]), trained.values())
        norm = float(torch.cat([part.flatten() for part in found]).double().norm())
        for name, part in zip(trained, found, strict=True):
            total[name] += part.double() * min(1.0, clip_norm / max(norm, 1e-30))
    return total


class Odd(nn.Module):
    """A user's module, with a bare parameter, a buffer, a setting and a frozen layer."""

    def __init__(self, outputs=3):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("shift", torch.linspace(0, 1, 5))
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.head = nn.Linear(5, outputs)
        self.temperature = 1.0

    def forward(self, x):
        return self.head(torch.tanh(self.frozen(x * self.scale + self.shift))) / self.temperature


class Centred(nn.Module):
    """Every example minus the mean of its batch: alone it sees zeros."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x - x.mean(0, keepdim=True))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.words(x)
        return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """The head is the table of words."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x).mean(1))


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def centred_loss(outputs, targets):
    """A loss that mixes the examples of its batch."""
    return functional.mse_loss(outputs - outputs.mean(0), targets - targets.mean(0)) + outputs.pow(2).mean()


def flat_squared(outputs, targets):
    return (outputs.squeeze(1) - targets).pow(2).sum()


SEEDED = {"generator": torch.Generator().manual_seed(0)}
VECTORS, IMAGES = torch.randn(COUNT, 5, **SEEDED), torch.randn(COUNT, 1, 6, 6, **SEEDED)
TOKENS, LABELS, NUMBERS = torch.randint(11, (COUNT, 4), **SEEDED), torch.arange(COUNT) % 3, torch.randn(COUNT, **SEEDED)
CASES = {
    "chain": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), None, VECTORS, LABELS),
    "chain, label smoothing": (
        lambda: nn.Sequential(nn.Linear(5, 3)), nn.CrossEntropyLoss(label_smoothing=0.1), VECTORS, LABELS,
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(32, 3)),
        nn.CrossEntropyLoss(), IMAGES, LABELS,
    ),
    "own": (Odd, functional.cross_entropy, VECTORS, LABELS),
    "attention": (Attention, nn.CrossEntropyLoss(), TOKENS, LABELS),
    "attention, own loss": (Attention, lambda o, t: functional.cross_entropy(o, t) + o.abs().mean(), TOKENS, LABELS),
    "tied weights": (Tied, None, TOKENS, LABELS),
    "regression": (lambda: nn.Sequential(nn.Linear(5, 1)), flat_squared, VECTORS, NUMBERS),
    "regression of an own one": (lambda: Odd(1), nn.HuberLoss(), VECTORS, NUMBERS[:, None]),
    "several labels": (lambda: nn.Sequential(nn.Linear(5, 3)), nn.BCEWithLogitsLoss(), VECTORS, (VECTORS[:, :3] > 0).float()),
    "recurrent": (LastState, flat_squared, torch.randn(COUNT, 4, 2, **SEEDED), NUMBERS),
    "mixing module": (Centred, None, VECTORS, LABELS),
    "mixing loss": (lambda: nn.Sequential(nn.Linear(5, 3)), centred_loss, VECTORS, VECTORS[:, :3].clone()),
}  # fmt: skip


@pytest.mark.parametrize("clip_norm", [0.05, 1e3])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_definition(name, clip_norm):
    make, loss, x, y = CASES[name]
    model = make()
    expected = naive(model, loss or functional.cross_entropy, x, y, clip_norm)
    found = sightline.clipped_gradient(model, loss, x, y, clip_norm)
    assert list(found) == list(expected)
    for word, part in found.items():
        torch.testing.assert_close(part.double(), expected[word], rtol=1e-4, atol=2e-6 * clip_norm + 1e-7, msg=word)


@pytest.mark.parametrize("name", CASES)
def test_one_example_moves_it_by_at_most_the_clip_norm(name):
    """All together against all but one, over all parameters; the others' share does not depend on it."""
    make, loss, x, y = CASES[name]
    model, clip_norm = make(), 0.01
    whole, fewer = (
        torch.cat([part.flatten() for part in sightline.clipped_gradient(model, loss, a, b, clip_norm).values()])
        for a, b in ((x, y), (x[1:], y[1:]))
    )
    assert float((whole - fewer).double().norm()) <= clip_norm * (1 + 1e-6)


def test_plain_cross_entropy_on_known_layers_takes_the_fast_path():
    model, other = nn.Sequential(nn.Linear(5, 3)), nn.Sequential(nn.Linear(5, 3))
    sightline.clipped_gradient(model, nn.CrossEntropyLoss(), VECTORS, LABELS, 1.0)
    sightline.clipped_gradient(other, nn.MSELoss(), VECTORS, VECTORS[:, :3].clone(), 1.0)
    assert type(OWN[model].worker) is ChainWorker
    assert type(OWN[other].worker) is LossWorker
    assert OWN[other].worker.rows == OWN[other].worker.side_by_side


def test_targets_of_one_dimension_less_are_not_spread_over_the_batch():
    """(n, 1) against (n,) is (n, n) for torch: every example with everybody's target."""
    model = nn.Sequential(nn.Linear(5, 1))
    with pytest.warns(UserWarning, match="target size"):
        found = sightline.clipped_gradient(model, nn.MSELoss(), VECTORS, NUMBERS, 0.1)
    expected = naive(model, flat_squared, VECTORS, NUMBERS, 0.1)
    torch.testing.assert_close(found["0.weight"].double(), expected["0.weight"], rtol=1e-4, atol=1e-6)


def test_weights_of_classes_stay_weights():
    """torch's weighted mean over a batch of one forgets the weight."""
    model, weight = nn.Sequential(nn.Linear(5, 3)), torch.tensor([1.0, 10.0, 0.0])

    def weighted(outputs, targets):
        return (functional.cross_entropy(outputs, targets, reduction="none") * weight[targets]).sum()

    found = sightline.clipped_gradient(model, nn.CrossEntropyLoss(weight=weight), VECTORS, LABELS, 1e3)
    torch.testing.assert_close(found["0.bias"].double(), naive(model, weighted, VECTORS, LABELS, 1e3)["0.bias"])


@pytest.mark.slow
@pytest.mark.parametrize("make", [Odd, lambda: nn.Sequential(nn.Linear(5, 3)), LastState])
def test_low_precision_and_no_grad_of_the_caller_do_not_reach_it(make):
    """Norms in bfloat16 would be off by a two hundredth, and let more than C through."""
    model = make()
    data = (None, VECTORS, LABELS) if make is not LastState else (flat_squared, torch.ones(COUNT, 4, 2), NUMBERS)
    expected = sightline.clipped_gradient(model, *data, 0.1)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = sightline.clipped_gradient(model, *data, 0.1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_class_that_is_ignored_is_ignored():
    model, loss = nn.Sequential(nn.Linear(5, 3)), nn.CrossEntropyLoss(ignore_index=0)
    counted = LABELS != 0
    found = sightline.clipped_gradient(model, loss, VECTORS, LABELS, 1.0)
    expected = sightline.clipped_gradient(model, None, VECTORS[counted], LABELS[counted], 1.0)
    torch.testing.assert_close(found, expected)


def test_the_model_is_left_as_it_is():
    model = Odd().eval()
    before = copy.deepcopy(model.state_dict())
    sightline.clipped_gradient(model, None, VECTORS, LABELS, 1.0)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.slow
def test_frozen_weights_buffers_and_settings_are_those_of_now():
    model = Odd()
    assert "frozen.weight" not in sightline.clipped_gradient(model, None, VECTORS, LABELS, 1.0)
    model.shift.add_(1.0)
    model.temperature = 0.5
    model.frozen.weight.data.mul_(-1)
    model.scale.requires_grad_(False)
    found = sightline.clipped_gradient(model, None, VECTORS, LABELS, 1.0)
    expected = naive(model, functional.cross_entropy, VECTORS, LABELS, 1.0)
    assert list(found) == ["head.weight", "head.bias"]
    torch.testing.assert_close(found["head.weight"].double(), expected["head.weight"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [None, flat_squared])
def test_nothing_and_what_is_not_finite_are_zero(loss):
    model = nn.Sequential(nn.Linear(5, 3 if loss is None else 1))
    y = LABELS if loss is None else NUMBERS
    assert not sightline.clipped_gradient(model, loss, VECTORS[:0], y[:0], 1.0)["0.weight"].any()
    broken = VECTORS.clone()
    broken[2] = torch.inf
    rest = [0, 1, 3, 4, 5]
    found = sightline.clipped_gradient(model, loss, broken, y, 1.0)
    expected = sightline.clipped_gradient(model, loss, broken[rest], y[rest], 1.0)
    torch.testing.assert_close(found, expected)


class Counting(Odd):
    def forward(self, x):
        self.temperature += 1
        return super().forward(x)


KEPT = []


def keeping(outputs, targets):
    KEPT.append(float(outputs.detach().sum()))
    return functional.cross_entropy(outputs, targets)


def remembering():
    """A loss that pulls towards the outputs of the examples before."""
    before = {"outputs": torch.zeros(3)}

    def loss(outputs, targets):
        value = functional.cross_entropy(outputs, targets) + (outputs - before["outputs"]).pow(2).mean()
        before["outputs"] = outputs.detach()[0]
        return value

    return loss


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), None, "mixes examples"),
        (Counting(), None, "forward changes"),
        (nn.Linear(5, 3), keeping, "computing it changes"),
        (nn.Linear(5, 3), remembering(), "loss=loss: the gradient of the same example"),
        (nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 3)), "the loss has trainable parameters"),
    ],
)
def test_what_no_clip_would_bound_is_refused(model, loss, message):
    with pytest.raises(Refused, match=message):
        sightline.clipped_gradient(model, loss, VECTORS, LABELS, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": nn.Linear(5, 3).double()}, "float32"),
        ({"model": nn.Linear(5, 3).requires_grad_(False)}, "has no trainable parameters"),
        ({"model": nn.Linear(4, 3)}, "fails on a batch of shape"),
        ({"model": lambda x: x}, "is not a torch.nn.Module"),
        ({"x": VECTORS.double()}, "inputs must be float32"),
        ({"x": VECTORS[:4]}, "one row per example"),
        ({"y": LABELS.numpy()}, "pair .* of tensors"),
        ({"y": LABELS + 1}, "from 0 to 2"),
        ({"y": NUMBERS}, "give the loss"),
        ({"loss": 3}, "function of"),
        ({"loss": lambda outputs, targets: outputs}, "one number"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: must be"),
    ],
)
def test_what_cannot_be_clipped_is_told_in_one_line(change, message):
    given = {"model": nn.Linear(5, 3), "loss": None, "x": VECTORS, "y": LABELS, "clip_norm": 1.0} | change
    with pytest.raises(InvalidInput, match=message) as told:
        sightline.clipped_gradient(**given)
    assert "\n" not in str(told.value)
