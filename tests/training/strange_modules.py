"""Modules as a user might write them, each with something that carries one example, or one client, into another."""

import abc
import contextvars
import functools
from collections.abc import MutableMapping

import torch
from torch import nn
from torch.nn import functional

FEATURES, CLASSES = 6, 3
SEEN = []
TOTAL = {"sum": None}
SWITCH = contextvars.ContextVar("SWITCH", default=[])  # noqa: B039
LAST = contextvars.ContextVar("LAST")


class Base(nn.Module):
    """Two layers; subclasses do one thing to what lies between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def between(self, h):
        return h

    def forward(self, x):
        return self.last(torch.tanh(self.between(self.first(x))))


class Plain(Base):
    """Nothing at all."""


class CentredInTraining(Base):
    def between(self, h):
        return h - h.mean(0) if self.training else h


class DrownedInTraining(Base):
    """What the others are drowns what an example is itself."""

    def between(self, h):
        return 0.1 * h + 30 * h.mean(0) if self.training else h


class CentredAboveFour(Base):
    def between(self, h):
        return h - h.mean(0) if len(h) > 4 else h


class Cumulated(Base):
    def between(self, h):
        return h.cumsum(0)


class Rolled(Base):
    def between(self, h):
        return h + h.roll(1, 0)


class Sorted(Base):
    def between(self, h):
        return h.sort(0).values


class BatchAttention(Base):
    def between(self, h):
        return torch.softmax(h @ h.T, 1) @ h


class HandNormed(Base):
    """Batch normalisation without its layer, on the batch at hand."""

    def between(self, h):
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


class OnlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return g + 50 * g.sum(0)


class MixedBackward(Base):
    def between(self, h):
        return OnlyBackward.apply(h)


class HookedBackward(Base):
    """A hook that adds everybody's gradient to everybody's."""

    def between(self, h):
        if h.requires_grad:
            h.register_hook(lambda g: g + 50 * g.sum(0))
        return h


class SubclassedLayer(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        return h - h.mean(0) if self.training and len(h) > 1 else h


def mixing_layer_in_a_chain(**_):
    return nn.Sequential(SubclassedLayer(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def hook_in_a_chain(**_):
    chain = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    chain[0].register_forward_hook(lambda layer, x, h: h - h.mean(0) if layer.training else h)
    return chain


def replaced_forward_in_a_chain(**_):
    chain = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    plain = chain[0].forward
    chain[0].forward = lambda x: (lambda h: h - h.mean(0) if chain.training else h)(plain(x))
    return chain


class Transposed(nn.Module):
    """Softmax over the examples."""

    def __init__(self):
        super().__init__()
        self.chain = nn.Sequential(nn.Linear(FEATURES, 8), nn.Softmax(dim=0), nn.Linear(8, CLASSES))

    def forward(self, x):
        return self.chain(x)


def softmax_over_examples(**_):
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Softmax(dim=0), nn.Linear(8, CLASSES))


def transformer_without_batch_first(**_):
    return nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0), nn.Flatten(),
        nn.Linear(FEATURES, CLASSES),
    )  # fmt: skip


MIXING = {
    one.__name__: one
    for one in (
        CentredInTraining, DrownedInTraining, CentredAboveFour, Cumulated, Rolled, Sorted, BatchAttention, HandNormed, MixedBackward,
        HookedBackward, Transposed, mixing_layer_in_a_chain, hook_in_a_chain, replaced_forward_in_a_chain,
        softmax_over_examples, transformer_without_batch_first,
    )
}  # fmt: skip
"""They mix the examples of a batch, most of them only in training or only in a large one."""


class RunningBuffer(Base):
    """What a batch norm does: the next example is centred by those before it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(8))

    def between(self, h):
        if self.training:
            self.running.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.running


class ReplacedBuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(8), persistent=False)

    def between(self, h):
        out = h - self.running
        self.running = 0.9 * self.running + 0.1 * h.detach().mean(0)
        return out


class Attribute(Base):
    memory = None

    def between(self, h):
        before = 0.0 if self.memory is None else self.memory
        self.memory = h.detach().mean(0)
        return h + before


class NestedAttribute(Base):
    """The memory hangs in a dictionary of a layer that is torch's own."""

    def between(self, h):
        kept = self.first.__dict__.setdefault("kept", {})
        out = h + kept.get("h", 0.0)
        kept["h"] = h.detach().mean(0)
        return out


class Counter(Base):
    calls = 0

    def between(self, h):
        self.calls += 1
        return h / self.calls


class GlobalList(Base):
    def between(self, h):
        out = h + (SEEN[-1] if SEEN else 0.0)
        SEEN.append(h.detach().mean(0))
        return out


class ContextVariable(Base):
    """Sets a variable that had no value."""

    def between(self, h):
        out = h + LAST.get(0.0)
        LAST.set(h.detach().mean(0))
        return out


class ContextDefault(Base):
    """Adds to the list that a variable has by default."""

    def between(self, h):
        out = h + (SWITCH.get()[-1] if SWITCH.get() else 0.0)
        SWITCH.get().append(h.detach().mean(0))
        return out


class GlobalByFunction(Base):
    def between(self, h):
        return add_to_total(h)


def add_to_total(h):
    out = h if TOTAL["sum"] is None else h + TOTAL["sum"]
    TOTAL["sum"] = h.detach().mean(0)
    return out


class ClassAttribute(Base):
    past = []  # noqa: RUF012

    def between(self, h):
        out = h + sum(self.past)
        self.past[:] = [float(h.detach().mean())]
        return out


def closure(**_):
    past = [0.0]

    class Closed(Base):
        def between(self, h):
            out = h + past[0]
            past[0] = float(h.detach().mean())
            return out

    return Closed()


class OwnGenerator(Base):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def between(self, h):
        return h * (torch.rand(h.shape[-1], generator=self.generator) < 0.5)


class WritesWeights(nn.Module):
    """An embedding with max_norm renormalises, in place, the rows that an example looks up."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 8, max_norm=0.1), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.table((x * 2).long().clamp(-4, 4) + 4).mean(1))


def spectral(**_):
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 8)), nn.Tanh(), nn.Linear(8, CLASSES)
    )


class Hidden:
    """A memory where no walk through Python objects finds it."""

    @staticmethod
    @functools.cache
    def tensor():
        return torch.zeros(8)


class HiddenInACache(Base):
    def between(self, h):
        kept = Hidden.tensor()
        out = h + kept
        kept.copy_(h.detach().mean(0))
        return out


REMEMBERING = {
    one.__name__: one
    for one in (
        RunningBuffer, ReplacedBuffer, Attribute, NestedAttribute, Counter, GlobalList, GlobalByFunction, ClassAttribute,
        ContextVariable, ContextDefault, closure, OwnGenerator, WritesWeights, spectral, HiddenInACache,
    )
}  # fmt: skip
"""They keep something of what they have seen."""


class LateAttribute(Base):
    """Begins to remember when it meets an unusual example: no probe with ordinary ones sees it."""

    memory = None

    def between(self, h):
        if self.memory is not None:
            return h + self.memory
        if not torch._C._functorch.is_functorch_wrapped_tensor(h) and float(h.detach().abs().max()) > 50:
            self.memory = h.detach().mean(0)
        return h


class Branching(Base):
    """A branch on the data: torch.func cannot follow it, so examples pass one after the other."""

    def between(self, h):
        return h if float(h.detach().sum()) > 0 else 2 * h


class Cached(Base):
    """A table that is made once and depends on no example."""

    table = None

    def between(self, h):
        if self.table is None:
            self.table = torch.linspace(0, 1, h.shape[-1])
        return h + self.table


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(FEATURES, 2, batch_first=True)
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        h = x.unsqueeze(1) * torch.linspace(0.5, 1, 3)[:, None]
        return self.last(self.attention(h, h, h, need_weights=False)[0].mean(1))


class Dropped(Base):
    def between(self, h):
        return functional.dropout(h, 0.5, self.training)


class WritesInputs(Base):
    def forward(self, x):
        return super().forward(x.clamp_(-1, 1))


SETTING = contextvars.ContextVar("SETTING", default=1.0)


class Headers(MutableMapping[str, float], metaclass=abc.ABCMeta):
    """Refers to an abstract class of Python by its bases, as installed packages do."""

    def __init__(self):
        self.held = {"scale": 1.0}

    def __getitem__(self, name):
        return self.held[name]

    def __setitem__(self, name, value):
        self.held[name] = value

    def __delitem__(self, name):
        del self.held[name]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


HEADERS = Headers()


class ReadsContext(Base):
    """Reads a context variable and an object of an abstract class, and changes neither."""

    def between(self, h):
        return h * SETTING.get() * HEADERS["scale"]


class SparseGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 8, sparse=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.table((x * 2).long().clamp(-4, 4) + 4).mean(1))


def weight_normed(**_):
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, 8)), nn.Tanh(), nn.Linear(8, CLASSES)
    )


HARMLESS = {
    one.__name__: one
    for one in (
        Plain, Branching, Cached, Attention, Dropped, WritesInputs, SparseGradient, weight_normed, ReadsContext,
    )
}  # fmt: skip


def shards(clients, rng):
    """Few examples for each client."""
    for _ in range(clients):
        x = rng.standard_normal((84, FEATURES))
        yield x[:80], rng.integers(CLASSES, size=80), x[80:], rng.integers(CLASSES, size=4)
