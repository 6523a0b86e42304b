"""What a module of the user's own remembers between two passes, and the refusal of modules that do.

A buffer that forward changes, `self.memory = x`, a list of the class or of the file: each carries one client's data
into another's update and one example into later steps, where no clip bounds it. The state of a module is walked and
compared with what it was; a probe sees memories that lie where the walk does not reach.
"""

import hashlib
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.errors import invalid, refuse
from sightline.models.flat import CPU, FlatModel, flatten_module, probe_inputs
from sightline.models.mixing import OURS, mixing_layer
from sightline.models.task import probe_targets

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, Path)
WITHOUT = frozenset({"training", "_modules", "_parameters", "_buffers"})
"""Of a module's own attributes: what is looked at by other means, or set by whoever trains it."""
MOST = 200_000
"""How many values are looked at; a module that holds more has its data sets in itself."""

Leaf = tuple[str, Any]
"""Where a value stands, and the value."""


class ModuleState:
    """The state of a module as it was when this was made: buffers, frozen tensors, attributes, globals of its code.

    So of a loss of the user's own that is trained with it.

    Guarantees: `changed` names a value that differs from what it was, wherever it hangs in attributes, containers,
    closures, classes and global names of the module's own code. It does not look into installed packages.
    """

    def __init__(self, module: nn.Module, trained: Iterable[str], loss: Any = None) -> None:
        self.module, self.trained, self.loss = module, frozenset(trained), loss
        self.before = [(place, _copy_value(value)) for place, value in self._state_leaves()]

    def find_change(self) -> str | None:
        """The first place whose value is not what it was, in words, or None."""
        for before, now in zip_longest(self.before, self._state_leaves()):
            if before is None or now is None or before[0] != now[0] or not _is_same(before[1], now[1]):
                return str((now or before)[0])
        return None

    def _state_leaves(self) -> Iterator[Leaf]:
        own = {id(parameter) for name, parameter in self.module.named_parameters() if name in self.trained}
        walk = _Walk(own)
        for name, layer in self.module.named_modules():
            yield from walk.of_layer(name, layer)
        if self.loss is not None:
            yield from walk.of_value("the loss", self.loss)


class _Walk:
    """One walk through everything that a module's code can reach and change."""

    def __init__(self, trained: set[int]) -> None:
        self.seen, self.count = trained, 0  # trained parameters change, and are no state
        self.alive: list[Any] = []  # whatever was seen stays, so that no other object gets its number
        self.functions: list[FunctionType] = []  # of the user's own

    def of_layer(self, name: str, layer: nn.Module) -> Iterator[Leaf]:
        """Buffers, frozen parameters and attributes of one layer, and what its class's code uses."""
        if id(layer) in self.seen or type(layer) in OURS:
            return
        self.seen.add(id(layer))
        prefix = f"{name}." if name else ""
        for word, tensor in layer._buffers.items():
            yield f"buffer '{prefix}{word}'", tensor
        for word, tensor in layer._parameters.items():
            if tensor is not None and id(tensor) not in self.seen:
                yield f"parameter '{prefix}{word}'", tensor
        for word, value in vars(layer).items():
            if word not in WITHOUT:
                yield from self.of_value(f"attribute '{prefix}{word}'", value)
        yield from self.of_class(type(layer))

    def of_value(self, place: str, value: Any) -> Iterator[Leaf]:
        """A value, or what is in it."""
        kind = type(value)
        self.count += 1
        if self.count > MOST:
            yield f"one of more than {MOST} values, {place}", _Itself(object())  # the same as nothing else
            return
        if kind in PLAIN:
            yield place, value
            return
        if id(value) in self.seen:
            return
        if isinstance(value, Tensor | np.ndarray | np.generic):
            yield place, value
            return
        if isinstance(value, nn.Module):
            for name, layer in value.named_modules(prefix=place):
                yield from self.of_layer(name, layer)
            return
        if isinstance(value, type):
            yield from self.of_class(value)
            return
        self.seen.add(id(value))
        self.alive.append(value)
        if isinstance(value, FunctionType | MethodType | staticmethod | classmethod | property | partial):
            yield from self.of_function(place, value)
        elif isinstance(value, Mapping | list | tuple | deque | Set | bytearray):
            yield from self.of_container(place, value)
        else:
            yield from self.of_object(place, value)

    def of_container(self, place: str, value: Any) -> Iterator[Leaf]:
        """All of a container at once when it holds plain values only, else one after the other."""
        inside = list(value.values()) if isinstance(value, Mapping) else list(value)
        keys = list(value) if isinstance(value, Mapping) else []
        if all(type(one) in PLAIN for one in chain(inside, keys)):
            yield place, (type(value), keys, inside if not isinstance(value, Set) else set(value))
            return
        yield place, (type(value), len(inside))
        for number, one in enumerate(inside):
            yield from self.of_value(f"{place}[{keys[number]!r}]" if keys else f"{place}[{number}]", one)

    def of_object(self, place: str, value: Any) -> Iterator[Leaf]:
        """The state of a generator, the attributes of an object of the user's own, or the object itself."""
        state = _generator_state(value)
        if state is not None:
            yield place, state
        elif hasattr(value, "cache_info"):  # functools.cache
            yield place, value.cache_info().currsize
        elif _is_installed(type(value).__module__):
            yield place, _Itself(value)
        else:
            slots = [word for kind in type(value).__mro__ for word in getattr(kind, "__slots__", ())]
            own = {word: getattr(value, word) for word in slots if hasattr(value, word)}
            for word, one in {**own, **getattr(value, "__dict__", {})}.items():
                yield from self.of_value(f"{place}.{word}", one)
            yield from self.of_class(type(value))

    def of_class(self, kind: type) -> Iterator[Leaf]:
        """Attributes and functions of a class of the user's own, and of those that it derives from."""
        for one in kind.__mro__:
            if id(one) in self.seen or _is_installed(one.__module__):
                continue
            self.seen.add(id(one))
            for word, value in vars(one).items():
                if not (word.startswith("__") and word.endswith("__") and not callable(value)):
                    yield from self.of_value(f"class attribute '{one.__name__}.{word}'", value)

    def of_function(self, place: str, value: Any) -> Iterator[Leaf]:
        """What a function of the user's own closes over, its defaults, and the global names that it uses."""
        if isinstance(value, partial):
            yield from self.of_value(place, value.func)
            yield from self.of_value(place, value.args)
            yield from self.of_value(place, value.keywords)
            return
        if isinstance(value, property):
            for one in (value.fget, value.fset):
                yield from self.of_value(place, one)
            return
        function = getattr(value, "__func__", value)
        if not isinstance(function, FunctionType) or _is_installed(function.__module__):
            return
        self.functions.append(function)
        for word, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield from self.of_value(f"'{word}' in the closure of {function.__name__}", cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        yield from self.of_value(f"default of {function.__name__}", (function.__defaults__, function.__kwdefaults__))
        yield from self.of_value(f"attribute of {function.__name__}", vars(function))
        yield from self.of_globals(function)

    def of_globals(self, function: FunctionType) -> Iterator[Leaf]:
        """The global names that a function's code uses, also inside modules of the user's own."""
        names = _looked_up_names(function.__code__)
        for word in sorted(names & set(function.__globals__)):
            value = function.__globals__[word]
            if not isinstance(value, ModuleType):
                yield from self.of_value(f"global '{word}'", value)
            elif not _is_installed(value.__name__):
                for inner in sorted(names & set(vars(value))):
                    yield from self.of_value(f"global '{word}.{inner}'", vars(value)[inner])


class _Itself:
    """An object that is compared by being the same one."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _looked_up_names(code: CodeType) -> set[str]:
    """The names that a piece of code and the functions in it look up."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_looked_up_names, inner)) if inner else set(code.co_names)


def _generator_state(value: Any) -> Any:
    """The state of a random generator, which is carried from call to call like any other; None for other objects."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState | random.Random):
        return repr(value.get_state() if isinstance(value, np.random.RandomState) else value.getstate())
    return None


def _is_installed(name: str | None) -> bool:
    """Whether a module comes with Python or from an installed package: not the user's own code."""
    top = (name or "builtins").partition(".")[0]
    if top in INSTALLED:
        return INSTALLED[top]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    INSTALLED[top] = top in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
    return INSTALLED[top]


INSTALLED: dict[str, bool] = {"builtins": True, "torch": True, "numpy": True, "sightline": True, "__main__": False}


def _copy_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _is_same(before: Any, now: Any) -> bool:
    """Whether a value is what it was; what cannot be compared is not."""
    if before is now and not isinstance(now, Tensor | np.ndarray):
        return True
    if type(before) is not type(now) and not isinstance(before, Tensor):
        return False
    try:
        if isinstance(before, Tensor):
            return isinstance(now, Tensor) and same_numbers(before, now.detach())
        if isinstance(before, np.ndarray):
            return before.dtype == now.dtype and bool(np.array_equal(before, now, equal_nan=before.dtype.kind in "fc"))
        return bool(before == now)
    except Exception:
        return False


def same_numbers(before: Tensor, now: Tensor) -> bool:
    """Whether two tensors hold the same numbers; not-a-number equals itself."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    return torch.equal(before, now) or bool(((before == now) | ((before != before) & (now != now))).all())


def code_digest(model: FlatModel) -> str:
    """The hash of what the code of a model is, wherever it was written: layers, settings and the functions they use.

    Guarantees: the same for the same program in another process, wherever in its file the code stands; another one when
    a layer, an attribute, a default, a constant, a global of a plain type or the code of a function is. Weights are not
    in it. It does not look into installed packages.
    """
    module, words = model.module(), hashlib.sha256()
    walk = _Walk({id(parameter) for parameter in module.parameters()})
    words.update(repr(module).encode())
    leaves = [leaf for name, layer in module.named_modules() for leaf in walk.of_layer(name, layer)]
    made_by = model.factory.func if isinstance(model.factory, partial) else model.factory
    leaves += walk.of_value("factory", made_by)
    for place, value in leaves:
        words.update(f"{place}={_value_words(value)}\n".encode())
    for function in walk.functions:
        words.update(f"{function.__qualname__}={_code_words(function.__code__)}\n".encode())
    return words.hexdigest()


def _value_words(value: Any) -> str:
    """A value in words that are the same in every process; of an object that is not plain, its type."""
    if isinstance(value, Tensor):
        return _value_words(value.detach().cpu().numpy()) if value.dtype != torch.bfloat16 else str(value.shape)
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, Set):
        return f"{{{sorted(map(_value_words, value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_words, value))}]"
    return repr(value) if isinstance(value, (*PLAIN, np.generic)) else _type_words(value)


def _type_words(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value.value) if isinstance(value, _Itself) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _code_words(code: CodeType) -> str:
    """What a piece of code does, without where it stands."""
    inside = [_code_words(one) if isinstance(one, CodeType) else _value_words(one) for one in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{code.co_freevars}{inside}"


REMEMBERS = "what it keeps of one example or client would reach the next, where no clip bounds it"
WAY_OUT = "let forward change nothing but its result (statistics: torch.nn.GroupNorm)"


def refuse_change(model: FlatModel, place: str) -> None:
    """Raise the one line for a module, or a loss, that changed something besides its result."""
    name, value = ("model.name", model.name) if model.task.own_loss is None else ("model.loss", model.task.loss_name)
    refuse(name, value, f"forward changes {place}: {REMEMBERS}", WAY_OUT)


def warm_up(module: nn.Module, model: FlatModel) -> bool:
    """Let a module fill what it fills once, on inputs that are nobody's; True when it draws at random."""
    count = 2 if mixing_layer(module) is not None else 1
    device = next((one.device for one in module.parameters()), CPU)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        for training in (False, True):
            outputs = module.train(training)(probe_inputs(model, count).to(device))
            if model.task.own_loss is not None:
                model.task.losses(outputs, probe_targets(model.task, model.classes, count).to(device))
        return not torch.equal(before, torch.get_rng_state())


def refuse_memory(model: FlatModel) -> None:
    """Raise `Refused` when a module remembers anything of an example that it has seen.

    A probe beside `ModuleState`: the gradient of an example is the same before and after others have passed, forward
    and backward, in training and in evaluation, alone and together, at other weights too.
    """
    module = model.module()
    count = 2 if mixing_layer(module) is not None else 1
    first, start = probe_inputs(model, count), flatten_module(module)
    _pass_outcome(module, model, first)
    warm_up(module, model)
    state = ModuleState(module, [slot.name for slot in model.layout], model.task.own_loss)
    before = _pass_outcome(module, model, first)
    for seed, many in enumerate((count, count + 2), start=1):
        for parameter in module.parameters():
            parameter.data.mul_(1.5 if parameter.requires_grad else 1.0)
        moved = flatten_module(module)
        other = probe_inputs(model, many, seed=seed)
        _pass_outcome(module, model, other)
        with torch.no_grad():
            module.eval()(other)
        place = state.find_change() or (None if same_numbers(moved, flatten_module(module)) else "its own weights")
        if place is not None:
            refuse_change(model, place)
    for slot in model.layout:
        module.get_parameter(slot.name).data.copy_(start[slot.start : slot.stop].view(slot.shape))
    if not torch.allclose(before, _pass_outcome(module, model, first), rtol=1e-4, atol=1e-6, equal_nan=True):
        law = "gives another gradient for the same example, weights and seed after other examples have passed"
        refuse("model.name", model.name, f"{law}: {REMEMBERS}", f"{WAY_OUT}; draw at random from torch only")


def _pass_outcome(module: nn.Module, model: FlatModel, x: Tensor) -> Tensor:
    """Logits and gradient of a batch in training, as one vector, drawn from the same seed every time."""
    y = probe_targets(model.task, model.classes, len(x))
    parameters = [module.get_parameter(slot.name) for slot in model.layout]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            logits = module.train()(x.clone())
            loss = model.task.losses(logits, y, "mean")
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        law = f"cannot be differentiated in training on {len(x)} examples ({cause})"
        invalid("model.name", model.name, law, "fix its forward")
    return torch.cat([logits.detach().flatten(), *(part.to_dense().flatten() for part in found if part is not None)])
