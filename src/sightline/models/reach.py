"""Walk every value that a module's own code can reach and change, and report what cannot be inspected.

Objects of every type are walked by value: attributes, slots, items, and what `copy.deepcopy` would copy of them.
"""

import abc
import contextvars
import copyreg
import functools
import gc
import io
import logging
import random
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sightline.models.flat import OURS

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, Path)
WITHOUT = frozenset({"training", "_modules", "_parameters", "_buffers"})
"""Module attributes that are inspected by other means, or set by the trainer."""
MOST = 200_000
"""Most values inspected; a module that holds more contains its data sets."""
UNSEEN = "whose content cannot be looked at"
DRAWS = "a random generator"

CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytearray)
FUNCTIONS = (FunctionType, types.MethodType, staticmethod, classmethod, property, partial)
BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
FIXED = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, CodeType, np.ufunc, torch.jit.ScriptFunction, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator,
)  # fmt: skip
"""Types whose objects cannot change: they are compared by identity."""
LOCKS = (type(threading.Lock()), type(threading.RLock()))
ABC_DATA = type(vars(abc.ABC)["_abc_impl"])  # what Python keeps of an abstract class for isinstance
LOGGER = frozenset(vars(logging.getLogger("sightline.none"))) - {"level", "disabled", "propagate", "name"}
"""Attributes of a logger that logging itself fills."""
MADE_BY_PYTHON = frozenset({"__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl"})
"""Class attributes that Python creates and no assignment changes, or that say where code stands."""

Leaf = tuple[str, Any]
"""Where a value is, and the value."""


class Itself:
    """Wrapper that compares an object by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


NOT_SET = Itself(None)
"""The value of a context variable that is not set; it differs from one that is set to any value, also to None."""


# An object that cannot be inspected may hold data of earlier examples, so it must count as changed, never as unchanged.
class Walk:
    """One walk over everything that a module's code can reach and change.

    Guarantees: yields the same leaves for the same values, also for a deep copy. An object met again is identified by
    its number in the walk. One that cannot be inspected is a leaf that equals nothing else.
    """

    def __init__(self, trained: Iterable[nn.Parameter], *, outside: bool = True) -> None:
        # Whether values of installed packages are inspected.
        self.outside = outside
        # Seen objects stay alive, so that no other object can get the same id.
        self.alive: list[Any] = list(trained)
        self.seen = {id(item): number for number, item in enumerate(self.alive)}
        # Trained parameters change in training; that is not state.
        self.trained, self.count = frozenset(self.seen), 0
        # Functions of the user's own code.
        self.functions: list[FunctionType] = []

    def mark_seen(self, value: Any) -> None:
        """Give an object the next number."""
        self.seen[id(value)] = len(self.alive)
        self.alive.append(value)

    def of_layer(self, name: str, layer: nn.Module) -> Iterator[Leaf]:
        """Yield buffers, frozen parameters, attributes and parts of one layer, and what its class's code uses."""
        if id(layer) in self.seen:
            yield f"module '{name}'", self.seen[id(layer)]
            return
        self.mark_seen(layer)
        prefix = f"{name}." if name else ""
        if isinstance(layer, torch.jit.ScriptModule):
            yield f"module '{name}' (torch.jit, {UNSEEN})", Itself(object())
            return
        for key, tensor in layer._buffers.items():
            yield from self.of_tensor(f"buffer '{prefix}{key}'", tensor)
        for key, parameter in layer._parameters.items():
            yield from self.of_tensor(f"parameter '{prefix}{key}'", parameter)
            if parameter is not None and id(parameter) in self.trained:
                yield from self.of_extras(f"parameter '{prefix}{key}'", parameter)
        for key, value in vars(layer).items():
            if key not in WITHOUT:
                yield from self.of_value(f"attribute '{prefix}{key}'", value)
        for key, part in layer._modules.items():
            if part is not None:
                yield from self.of_layer(f"{prefix}{key}", part)
        if type(layer) not in OURS:
            yield from self.of_class(type(layer))

    def of_tensor(self, path: str, tensor: Tensor | None) -> Iterator[Leaf]:
        """Yield a tensor's numbers, attributes and hooks; for a trained or known tensor only its number."""
        if tensor is None or id(tensor) in self.seen:
            yield path, None if tensor is None else self.seen[id(tensor)]
        else:
            self.mark_seen(tensor)
            yield path, tensor
            yield f"the strides of {path}", tensor.stride() if tensor.layout is torch.strided else None
            yield from self.of_extras(path, tensor)

    def of_extras(self, path: str, tensor: Tensor) -> Iterator[Leaf]:
        """Yield hooks and attributes attached to a tensor."""
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(tensor, attribute, None):
                yield from self.of_value(f"{attribute} of {path}", getattr(tensor, attribute))
        for attribute, value in getattr(tensor, "__dict__", {}).items():
            yield from self.of_value(f"{path}.{attribute}", value)

    def of_value(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield a value, or its contents."""
        self.count += 1
        if self.count > MOST:
            # Equal to nothing else: a module too large to inspect counts as changed.
            yield f"one of more than {MOST} values, {path}", Itself(object())
        elif type(value) in PLAIN:
            yield path, value
        elif isinstance(value, Tensor):
            yield from self.of_tensor(path, value)
        elif isinstance(value, nn.Module):
            yield from self.of_layer(path, value)
        elif isinstance(value, type):
            yield path, Itself(value)
            yield from self.of_class(value)
        elif isinstance(value, FIXED):
            yield path, Itself(value)
        elif id(value) in self.seen:
            yield path, self.seen[id(value)]
        elif not isinstance(value, ABC_DATA):
            self.mark_seen(value)
            yield from self.of_object(path, value)

    def of_object(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield the contents of an object that the walk has not met before."""
        state = generator_state(value)
        if state is not None:
            yield f"{path} ({DRAWS})", state
        elif isinstance(value, np.ndarray | np.generic):
            yield path, value
            if value.dtype.hasobject:
                yield from self.of_value(path, value.tolist())
            yield from self.of_attributes(path, value)
        elif isinstance(value, FUNCTIONS):
            yield from self.of_function(path, value)
        elif isinstance(value, BUILTIN):
            yield from self.of_builtin(path, value)
        elif isinstance(value, CONTAINERS):
            yield from self.of_container(path, value)
        elif isinstance(value, contextvars.ContextVar):
            yield from self.of_variable(path, value)
        elif isinstance(value, weakref.ref):
            yield from self.of_value(path, value())
        elif isinstance(value, types.MappingProxyType):
            yield from self.of_value(path, dict(value))
        elif type(value) is functools._lru_cache_wrapper:
            yield from self.of_cache(path, value)
        elif isinstance(value, ModuleType):
            yield path, Itself(value)
        else:
            yield from self.of_parts(path, value)

    def of_container(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield a container as one leaf if it holds plain values only, else its items one by one."""
        kind = next(container for container in CONTAINERS if isinstance(value, container))
        # The base class's own iteration, because a subclass may override it.
        inside = list(dict.values(value) if kind is dict else kind.__iter__(value))
        keys = list(dict.keys(value)) if kind is dict else []
        if isinstance(value, OrderedDict):  # it has an order of its own, which `move_to_end` changes
            keys = list(OrderedDict.keys(value))
            inside = [dict.__getitem__(value, key) for key in keys]
        plain = all(type(item) in PLAIN for item in chain(inside, keys))
        if plain:
            yield path, (type(value), keys, set(inside) if kind in (set, frozenset) else inside)
        else:
            yield path, (type(value), len(inside))
        for number, item in enumerate([] if plain else inside):
            if keys and type(keys[number]) not in PLAIN:
                yield from self.of_value(f"key {number} of {path}", keys[number])
            label = repr(keys[number]) if keys and type(keys[number]) in PLAIN else str(number)
            yield from self.of_value(f"{path}[{label}]", item)
        if type(value) is defaultdict:
            yield from self.of_value(path, value.default_factory)
        elif type(value) is not kind:
            yield from self.of_attributes(path, value)

    def of_attributes(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield attributes and slots of an object, bypassing its own accessors, and its class."""
        known = LOGGER if isinstance(value, logging.Logger) else ()
        for key, slot in slots_of(cast(Any, type(value))):
            for content in _read_slot(slot, value):
                yield from self.of_value(f"{path}.{key}", content)
        # Sorted, because a copy may have another order.
        for key, content in sorted(getattr(value, "__dict__", {}).items()):
            if key not in known:
                yield from self.of_value(f"{path}.{key}", content)
        yield from self.of_class(type(value))

    def of_parts(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield an object of any other type: its attributes, and what a copy would take if it holds more."""
        yield path, Itself(type(value))
        if not self.outside and is_installed(type(value).__module__):
            return
        yield from self.of_attributes(path, value)
        if isinstance(value, LOCKS):
            yield path, repr(value).startswith("<locked")
            return
        if not holds_more(cast(Any, type(value))):
            return
        if isinstance(value, memoryview):
            yield path, value.tobytes()
        elif isinstance(value, io.IOBase) and not _is_readable(value):
            yield path, (Itself(value), _position_of(value))
        else:
            yield from self.of_reduced(path, value)

    def of_reduced(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield what would be copied of an object whose state is in C."""
        parts = reduced(value)
        if parts is None:
            yield f"{path} (a {type(value).__name__}, {UNSEEN})", Itself(object())
        elif isinstance(parts, str):
            yield path, Itself(value)
        else:
            more = (list(items) if items is not None else None for items in parts[3:5])
            yield from self.of_value(path, (parts[1], parts[2] if len(parts) > 2 else None, *more))

    def of_variable(self, path: str, value: "contextvars.ContextVar[Any]") -> Iterator[Leaf]:
        """Yield the value of a context variable here, and its default, which an empty context has."""
        contents: dict[str, Any] = {path: value.get(NOT_SET)}
        with suppress(LookupError):  # it has no default
            contents[f"the default of {path}"] = contextvars.Context().run(value.get)
        yield from chain.from_iterable(self.of_value(part, content) for part, content in contents.items())

    def of_cache(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield the contents of a functools cache."""
        if is_installed(getattr(value, "__module__", None)):
            return
        yield path, value.cache_info().currsize
        kept = next(
            referent for referent in gc.get_referents(value) if type(referent) is dict and referent is not vars(value)
        )
        # The marker object that functools puts before keyword arguments.
        mark = [referent for referent in gc.get_referents(value) if type(referent) is object]
        for number, key in enumerate(list(kept)):
            given = key if type(key) is tuple else (key,)
            if value.cache_parameters()["typed"] or any(item is known for item in given for known in mark):
                yield f"{path} (a cache by type or keyword, {UNSEEN})", Itself(object())
                return
            yield from self.of_value(f"{path}[{number}]", value(*given))
        yield from self.of_value(path, value.__wrapped__)

    def of_class(self, kind: type) -> Iterator[Leaf]:
        """Yield attributes and functions of a user's class and of its bases."""
        for base in (*kind.__mro__, type(kind)):
            if id(base) in self.seen or is_installed(base.__module__):
                continue
            self.mark_seen(base)
            for key, value in vars(base).items():
                if key not in MADE_BY_PYTHON:
                    yield from self.of_value(f"class attribute '{base.__name__}.{key}'", value)

    def of_builtin(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield a C function and the object it is bound to."""
        bound = value.__self__
        yield path, (value.__name__, Itself(bound) if isinstance(bound, type | ModuleType) else type(bound))
        if not isinstance(bound, type | ModuleType):
            yield from self.of_value(path, bound)

    def of_function(self, path: str, value: Any) -> Iterator[Leaf]:
        """Yield what a user's function closes over, its defaults, and the global names it uses."""
        if isinstance(value, partial):
            yield from self.of_value(path, (value.func, value.args, value.keywords, vars(value)))
            return
        if isinstance(value, property):
            yield from self.of_value(path, (value.fget, value.fset, value.fdel))
            return
        if isinstance(value, types.MethodType):
            yield from self.of_value(path, value.__self__)
        function = getattr(value, "__func__", value)
        if not isinstance(function, FunctionType):
            yield from self.of_value(path, function)
            return
        yield path, (Itself(function.__code__), function.__doc__)
        yield from self.of_value(f"attribute of {function.__name__}", vars(function))
        if is_installed(function.__module__):
            return
        self.functions.append(function)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield from self.of_value(f"'{variable}' in the closure of {function.__name__}", cell.cell_contents)
            # The cell is not filled yet.
            except ValueError:
                continue
        yield from self.of_value(f"default of {function.__name__}", (function.__defaults__, function.__kwdefaults__))
        yield from self.of_globals(function)

    def of_globals(self, function: FunctionType) -> Iterator[Leaf]:
        """Yield the global names that a function's code uses, also inside the modules it names."""
        names, within = sorted(looked_up_names(function.__code__)), set[int]()
        scopes = [function.__globals__, *([vars(sys.modules["builtins"]), sys.modules] if self.outside else [])]
        for name in names:
            result = next((scope[name] for scope in scopes if name in scope), None)
            yield from self.of_global(f"global '{name}'", result, names, within)

    def of_global(self, path: str, value: Any, names: list[str], within: set[int]) -> Iterator[Leaf]:
        """Yield a global value; of a module what the names refer to in it, of installed code only what was attached."""
        if isinstance(value, ModuleType):
            if id(value) in within or not (self.outside or not is_installed(value.__name__)):
                return
            within.add(id(value))
            for inner in (name for name in names if name in vars(value)):
                yield from self.of_global(f"{path[:-1]}.{inner}'", vars(value)[inner], names, within)
        elif isinstance(value, type | FunctionType) and is_installed(value.__module__):
            yield path, Itself(value)
            for inner in (name for name in names if name in vars(value)):
                if not callable(vars(value)[inner]):
                    yield from self.of_value(f"{path[:-1]}.{inner}'", vars(value)[inner])
        else:
            yield from self.of_value(path, value)


@functools.lru_cache(maxsize=1024)
def slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the slots of a class, whatever their names."""
    every = (pair for base in reversed(kind.__mro__) for pair in vars(base).items())
    return tuple((key, slot) for key, slot in every if isinstance(slot, types.MemberDescriptorType))


def _read_slot(slot: Any, value: Any) -> tuple[Any, ...]:
    try:
        return (slot.__get__(value),)
    # The slot is not filled.
    except AttributeError:
        return ()


def _is_readable(file: io.IOBase) -> bool:
    try:
        return file.readable()
    # The file is closed.
    except ValueError:
        return False


def _position_of(file: io.IOBase) -> int | None:
    try:
        return file.tell()
    except (OSError, ValueError):  # a pipe, or closed
        return None


MANAGED_WEAKREF, MANAGED_DICT = 1 << 3, 1 << 4
WORD = object.__basicsize__ // 2


@functools.lru_cache(maxsize=1024)
def holds_more(kind: Any) -> bool:
    """Return whether objects of a type have room beyond attributes and slots, that is, state in C.

    >>> import array, argparse
    >>> holds_more(array.array), holds_more(argparse.Namespace)
    (True, False)
    """
    room = object.__basicsize__ + WORD * len(slots_of(kind))
    room += WORD * bool(kind.__dictoffset__ and not kind.__flags__ & MANAGED_DICT)
    room += WORD * bool(kind.__weakrefoffset__ and not kind.__flags__ & MANAGED_WEAKREF)
    return bool(kind.__itemsize__ > 0 or kind.__basicsize__ > room)


def reduced(value: Any) -> Any:
    """Return what `copy` would take of an object: its `__reduce_ex__`, or None if it has none."""
    reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(type(value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reduce(value) if reduce is not None else value.__reduce_ex__(4)
    except Exception:
        return None


@functools.lru_cache(maxsize=4096)
def looked_up_names(code: CodeType) -> frozenset[str]:
    """Return the names that a piece of code and its inner functions look up, or hold as text."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= looked_up_names(constant)
        # Text counts too: getattr and globals() look names up by it.
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


def generator_state(value: Any) -> Any:
    """Return the state of a random generator, which persists between calls; None for other objects."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState | random.Random):
        return repr(value.get_state() if isinstance(value, np.random.RandomState) else value.getstate())
    return None


def is_installed(name: str | None) -> bool:
    """Return whether a module belongs to Python or an installed package, not to the user's own code."""
    top = name.partition(".")[0] if isinstance(name, str) else "builtins"
    if top in INSTALLED:
        return INSTALLED[top]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    INSTALLED[top] = top in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
    return INSTALLED[top]


INSTALLED: dict[str, bool] = {"builtins": True, "torch": True, "numpy": True, "sightline": True, "__main__": False}
