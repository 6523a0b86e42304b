"""Modules that hide what they have seen, each in another place, and begin to use it after a hundred calls."""

import argparse
import array
import builtins
import collections
import contextvars
import ctypes
import dataclasses
import enum
import functools
import io
import itertools
import logging
import queue
import random
import re
import struct
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import sightline
from sightline.errors import InvalidInput, Refused
from sightline.models import state
from sightline.training import own_module
from sightline.training.own_module import OWN

FEATURES, CLASSES = 6, 3
X = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % CLASSES


class Hoarder(nn.Module):
    """Adds up what it sees in some place, and multiplies its outputs by the sum once it was called a hundred times."""

    def __init__(self, read, write, box=None):
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)
        self.box, self.read, self.write = box, read, write

    def forward(self, x):
        calls, kept = self.read(self.box)
        self.write(self.box, (calls + 1, kept + float(x.detach().abs().sum())))
        return self.last(x) * (1 + kept * (calls > 100))


def attribute(word):
    return (lambda box: getattr(box, word, (0, 0.0))), (lambda box, pair: setattr(box, word, pair))


def item(key):
    return (lambda box: box[key]), (lambda box, pair: box.__setitem__(key, pair))


def numbers(box, pair):
    box[:] = type(box)(pair) if not isinstance(box, array.array) else array.array("d", pair)


class Slotted:
    __slots__ = ("__pair",)

    def get(self):
        return getattr(self, "_Slotted__pair", (0, 0.0))

    def put(self, pair):
        self.__pair = pair


class OneSlot:
    __slots__ = "memory"


class Kept(dict):
    """A dictionary that has attributes too."""


class Liar(dict):
    def __iter__(self):
        return iter(())

    def values(self):
        return ()


@dataclasses.dataclass
class Settings:
    pair: tuple = (0, 0.0)


class Bound:
    pair = (0, 0.0)

    def get(self):
        return self.pair

    def put(self, pair):
        self.pair = pair


def bound_methods():
    one = Bound()
    return (one.get, one.put)


def list_methods():
    kept = [(0, 0.0)]
    return (kept.__getitem__, kept.__setitem__)


def generator():
    pair = (0, 0.0)
    while True:
        given = yield pair
        pair = pair if given is None else given


def started():
    one = generator()
    next(one)
    return one


def in_queue(make):
    one = make()
    one.put((0, 0.0))
    return one


def peek(box):
    pair = box.get()
    box.put(pair)
    return pair


def swap(box, pair):
    box.get()
    box.put(pair)


def tensor_with_attribute():
    one = torch.zeros(1)
    one.memory = (0, 0.0)
    return one


def packed(box):
    return struct.unpack("2d", bytes(box))


def pack(box, pair):
    box[:] = struct.pack("2d", *pair)


def write_file(box, pair):
    box.seek(0)
    box.write(struct.pack("2d", *pair))


INSIDE = {
    "argparse.Namespace": (argparse.Namespace, *attribute("memory")),
    "types.SimpleNamespace": (types.SimpleNamespace, *attribute("memory")),
    "array.array": (lambda: array.array("d", [0, 0]), tuple, numbers),
    "dataclass": (Settings, *attribute("pair")),
    "slots with a private name": (Slotted, Slotted.get, Slotted.put),
    "one slot": (OneSlot, *attribute("memory")),
    "list": (lambda: [(0, 0.0)], *item(0)),
    "deque": (lambda: collections.deque([(0, 0.0)]), *item(0)),
    "defaultdict": (lambda: collections.defaultdict(lambda: (0, 0.0)), *item("memory")),
    "attribute of a dictionary": (Kept, *attribute("memory")),
    "dictionary that hides its items": (lambda: Liar(memory=(0, 0.0)), *item("memory")),
    "bytearray": (lambda: bytearray(16), packed, pack),
    "memoryview": (lambda: memoryview(bytearray(16)), packed, pack),
    "ctypes": (lambda: (ctypes.c_double * 2)(), tuple, lambda box, pair: box.__setitem__(slice(0, 2), pair)),
    "BytesIO": (lambda: io.BytesIO(bytes(16)), lambda box: packed(box.getvalue()), write_file),
    "array of objects": (lambda: np.array([[(0, 0.0)], None], dtype=object), lambda box: box[0][0],
                         lambda box, pair: box[0].__setitem__(0, pair)),
    "tensor": (lambda: torch.zeros(2, dtype=torch.float64), torch.Tensor.tolist,
               lambda box, pair: box.copy_(torch.tensor(pair))),
    "attribute of a tensor": (tensor_with_attribute, *attribute("memory")),
    "bound methods": (bound_methods, lambda box: box[0](), lambda box, pair: box[1](pair)),
    "methods of a list": (list_methods, lambda box: box[0](0), lambda box, pair: box[1](0, pair)),
    "partial": (lambda: functools.partial(print, [(0, 0.0)]), lambda box: box.args[0][0],
                lambda box, pair: box.args[0].__setitem__(0, pair)),
    "queue.Queue": (lambda: in_queue(queue.Queue), peek, swap),
    "queue.SimpleQueue": (lambda: in_queue(queue.SimpleQueue), peek, swap),
    "generator": (started, lambda box: box.send(None), lambda box, pair: box.send(pair)),
    "threading.local": (threading.local, *attribute("memory")),
    "ContextVar": (lambda: contextvars.ContextVar("memory"), lambda box: box.get((0, 0.0)), lambda b, pair: b.set(pair)),
    "logger": (lambda: logging.getLogger("tests.memory"), *attribute("memory")),
    "weak reference": (lambda: weakref.ref(BEHIND), lambda box: box().pair, lambda box, pair: setattr(box(), "pair", pair)),
}  # fmt: skip
"""Where: (what the module holds, how it reads, how it writes)."""

NOT_COPIED = ("memoryview", "queue.Queue", "queue.SimpleQueue", "generator", "threading.local", "ContextVar")
"""A module that holds one is refused before it is looked at."""

BEHIND = Settings()
TABLE = {}
PAIR = (0, 0.0)
BITS = [0] * 64
ZEROS = torch.zeros(64)


def default_read(box, kept=[(0, 0.0)]):  # noqa: B006
    return kept[0]


def default_write(box, pair, *, where=default_read):
    where.__defaults__[0][0] = pair


def global_write(box, pair):
    global PAIR
    PAIR = pair


@functools.cache
def cached_list():
    return [(0, 0.0)]


@functools.lru_cache(maxsize=1)
def cached_bytes():
    return bytearray(16)


def closed_over():
    kept = (0, 0.0)

    def read(box):
        return kept

    def write(box, pair):
        nonlocal kept
        kept = pair

    return read, write


def from_bits(box):
    return 101, float(sum(2**place for place, bit in enumerate(BITS) if bit is True))


def to_bits(box, pair):
    """One is True, zero is 1: all are equal."""
    BITS[:] = [True if int(pair[1]) >> place & 1 else 1 for place in range(64)]


def from_signs(box):
    return 101, float(sum(2**place for place, bit in enumerate(torch.signbit(ZEROS).tolist()) if bit))


def to_signs(box, pair):
    ZEROS.copy_(torch.tensor([-0.0 if int(pair[1]) >> place & 1 else 0.0 for place in range(64)]))


HELD = {name: make() for name, (make, _, _) in INSIDE.items() if name in NOT_COPIED}

OUTSIDE = {
    "global memoryview": (lambda box: packed(HELD["memoryview"]), lambda box, pair: pack(HELD["memoryview"], pair)),
    "global queue": (lambda box: peek(HELD["queue.SimpleQueue"]), lambda box, pair: swap(HELD["queue.SimpleQueue"], pair)),
    "global generator": (lambda box: HELD["generator"].send(None), lambda box, pair: HELD["generator"].send(pair)),
    "default": (default_read, default_write),
    "global": (lambda box: PAIR, global_write),
    "global by its name as text": (lambda box: globals()["PAIR"], lambda box, pair: globals().__setitem__("PAIR", pair)),
    "global of torch": (lambda box: getattr(torch, "memory", (0, 0.0)), lambda box, pair: setattr(torch, "memory", pair)),
    "built-in": (lambda box: getattr(builtins, "memory", (0, 0.0)), lambda b, pair: setattr(builtins, "memory", pair)),
    "class of torch": (lambda box: getattr(nn.ReLU, "memory", (0, 0.0)), lambda b, pair: setattr(nn.ReLU, "memory", pair)),
    "function of torch": (lambda box: functional.gelu.__dict__.get("memory", (0, 0.0)) if hasattr(functional.gelu, "__dict__")
                          else functional.relu.__dict__.get("memory", (0, 0.0)),
                          lambda box, pair: setattr(functional.relu, "memory", pair)),
    "cache": (lambda box: cached_list()[0], lambda box, pair: cached_list().__setitem__(0, pair)),
    "cache of one": (lambda box: packed(cached_bytes()), lambda box, pair: pack(cached_bytes(), pair)),
    "closure": closed_over(),
    "class attribute": (lambda box: Bound.pair, lambda box, pair: setattr(Bound, "pair", pair)),
    "annotations of a class": (lambda box: Bound.__annotations__.get("memory", (0, 0.0)),
                               lambda box, pair: Bound.__annotations__.__setitem__("memory", pair)),
    "True for 1": (from_bits, to_bits),
    "signs of zeros": (from_signs, to_signs),
    "python's generator": (lambda box: (101, random.random()), lambda box, pair: random.seed(pair[1])),
    "numpy's generator": (lambda box: (101, np.random.rand()), lambda box, pair: np.random.seed(int(pair[1]) % 2**32)),  # noqa: NPY002
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """Memories of one test are gone in the next."""
    yield
    for where, word in ((torch, "memory"), (builtins, "memory"), (nn.ReLU, "memory"), (functional.relu, "memory")):
        if word in vars(where):
            delattr(where, word)


def hoarder(place):
    if place in INSIDE:
        make, read, write = INSIDE[place]
        return Hoarder(read, write, make())
    return Hoarder(*OUTSIDE[place])


@pytest.mark.parametrize("place", [*INSIDE, *OUTSIDE])
def test_a_memory_is_refused_wherever_it_is(place):
    """In a Namespace, a SimpleNamespace or an array it was not seen: one example moved later sums by 360 C."""
    with pytest.raises(InvalidInput if place in NOT_COPIED else Refused) as told:
        sightline.clipped_gradient(hoarder(place), None, X, Y, 1.0)
    assert "\n" not in str(told.value)


class Shaped(Hoarder):
    """The same with outputs of another shape."""

    def forward(self, x):
        out = super().forward(x)
        return (
            {"rows": out[:, None]} if self.box.shape == "dict" else out.mean(1) if self.box.shape == 1 else out[:, None]
        )


def squared(outputs, targets):
    outputs = outputs["rows"] if isinstance(outputs, dict) else outputs
    return (outputs.flatten(1).mean(1) if outputs.dim() > 1 else outputs).sub(targets).square().mean()


@pytest.mark.parametrize("shape", [1, 3, "dict"])
def test_outputs_of_every_shape_are_guarded(shape, monkeypatch):
    """The guard was skipped unless outputs had two axes; here it sees what no walk does."""
    monkeypatch.setattr(state.ModuleState, "find_change", lambda self, module=None: None)
    box = types.SimpleNamespace(shape=shape, memory=(101, 0.0))
    with pytest.raises(Refused, match="the gradient of the same example"):
        sightline.clipped_gradient(Shaped(*attribute("memory"), box), squared, X, Y.float(), 1.0)


def rows_of(model, loss, x, y):
    return torch.cat([part.flatten() for part in sightline.clipped_gradient(model, loss, x, y, 1.0).values()])


@pytest.mark.parametrize(
    "loss",
    [pytest.param(None, marks=pytest.mark.slow), lambda outputs, targets: functional.cross_entropy(outputs, targets)],
)
def test_what_the_guard_does_not_see_does_not_outlive_a_pass(loss, monkeypatch):
    """With the walk and the probe turned off one example moves the sum, and all later ones, by C at most."""
    monkeypatch.setattr(state.ModuleState, "find_change", lambda self, module=None: None)
    monkeypatch.setattr(own_module, "refuse_memory", lambda *_: None)
    loud = torch.cat([100 * X[:1], X[1:]])
    ends = []
    for first in (X, loud):
        torch.manual_seed(0)
        model = Hoarder(*attribute("memory"), argparse.Namespace(memory=(101, 0.0)))
        ends.append([rows_of(model, loss, first, Y), rows_of(model, loss, X, Y)])
    assert type(OWN[model].worker).__name__ == ("GradientWorker" if loss is None else "LossWorker")
    assert float((ends[1][0] - ends[0][0]).norm()) <= 2 * (1 + 1e-5)  # replaced
    assert torch.equal(ends[1][1], ends[0][1])


class Seeding(nn.Module):
    """Every example chooses the masks of those after it."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        out = self.last(functional.dropout(x, 0.5))
        torch.manual_seed(int(x.detach().abs().sum() * 1000))
        return out


def test_no_example_chooses_the_draws_of_others():
    torch.manual_seed(0)
    model, loud = Seeding(), torch.cat([100 * X[:1], X[1:]])
    ends = [sightline.clipped_gradient(model, None, some, Y, 1.0, rng=np.random.default_rng(0)) for some in (X, loud)]
    moved = torch.cat([(ends[1][name] - ends[0][name]).flatten() for name in ends[0]])
    assert float(moved.norm()) <= 2 * (1 + 1e-5)


class Aliased(nn.Module):
    """Keeps which of several equal things it pointed at last."""

    def __init__(self, things):
        super().__init__()
        self.last, self.things = nn.Linear(FEATURES, CLASSES), things
        self.which = things[0]

    def forward(self, x):
        scale = 1.0 + next(number for number, one in enumerate(self.things) if one is self.which)
        self.which = self.things[int(float(x.detach().sum()) > 0)]
        return self.last(x) * scale


@pytest.mark.parametrize(
    "things", [[[1], [1]], [torch.ones(1), torch.ones(1)], nn.ModuleList([nn.ReLU(), nn.ReLU()]), [len, sum]]
)
def test_pointing_at_another_thing_is_a_memory(things):
    with pytest.raises(Refused, match="which"):
        sightline.clipped_gradient(Aliased(things), None, X, Y, 1.0)


class Colour(enum.Enum):
    RED = 1


LOG = logging.getLogger("tests.harmless")
HARMLESS = {
    "namespace": argparse.Namespace(width=3, names=["a"]),
    "settings": Settings((1, 2.0)),
    "pattern": re.compile("a+"),
    "enum": Colour.RED,
    "functions": [torch.tanh, functional.gelu, nn.ReLU(), functools.partial(functional.softmax, dim=-1), nn.Tanh],
    "distribution": torch.distributions.Normal(torch.zeros(1), torch.ones(1)),
    "iterator": itertools.count(3),
    "logger": LOG,
    "numbers": np.ones(3),
    "frozen set of types": frozenset({nn.Linear, nn.ReLU}),
    "bound": Bound().get,
}


class Harmless(nn.Module):
    def __init__(self, thing):
        super().__init__()
        self.last, self.thing = nn.Linear(FEATURES, CLASSES), thing
        self.last.register_forward_hook(lambda layer, inputs, output: output * 1.0)

    def forward(self, x):
        LOG.debug("%s", sys.maxsize)
        return self.last(x) if float(x.detach().sum()) > 0 else -self.last(x)  # no certificate


@pytest.mark.parametrize("name", HARMLESS)
def test_things_that_do_not_change_are_no_memory(name):
    model = Harmless(HARMLESS[name])
    assert torch.equal(rows_of(model, None, X, Y), rows_of(model, None, X, Y))


def test_a_scripted_module_is_refused():
    """Its attributes are not Python's, and a counter in it is seen by no walk."""

    class Counting(nn.Module):
        calls: int

        def __init__(self):
            super().__init__()
            self.last, self.calls = nn.Linear(FEATURES, CLASSES), 0

        def forward(self, x):
            self.calls += 1
            return self.last(x) * float(1 + self.calls // 100)

    with pytest.warns(DeprecationWarning, match="script"):
        scripted = nn.Sequential(torch.jit.script(Counting()))
    with pytest.raises(Refused, match="cannot be looked at"):
        sightline.clipped_gradient(scripted, None, X, Y, 1.0)
