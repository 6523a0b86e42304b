"""Detect and refuse modules that keep state between passes.

A buffer that forward changes, `self.memory = x`, a list of the class or of the file: each carries one client's data
into another's update, and one example into later steps, where no clip bounds it. The state of a module is walked and
compared with what it was. A probe catches state where the walk does not reach.
"""

import copy
import hashlib
import marshal
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from itertools import chain, zip_longest
from types import CodeType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sightline.errors import invalid, refuse
from sightline.models.flat import CPU, FlatModel, flatten_module, mixing_layer, probe_inputs
from sightline.models.reach import DRAWS, PLAIN, UNSEEN, Itself, Leaf, Walk
from sightline.models.task import probe_targets


# A module that remembers is refused, not repaired: state that a client keeps would have to be accounted for, and state
# that is dropped would not be the model that its author wrote.
class ModuleState:
    """Snapshot of a module's state: buffers, frozen tensors, attributes, globals of its code, and of a user's own loss.

    Guarantees: `find_change` names a value that differs from the snapshot, wherever it is reachable through attributes,
    containers, objects of any type, closures, classes and global names of the module's own code. An object that cannot
    be inspected counts as changed. The code of installed packages is not inspected.
    """

    def __init__(self, module: nn.Module, trained: Iterable[str], loss: Any = None) -> None:
        self.module, self.trained, self.loss = module, frozenset(trained), loss
        self.before = [(path, _copy_value(value)) for path, value in self._state_leaves(module)]

    def find_change(self, module: nn.Module | None = None, *, draws: bool = True) -> str | None:
        """Return the first place whose value changed, in words, or None; also for a copy of the module.

        Without `draws` a random generator may have moved on.
        """
        # zip_longest: a value that appeared or disappeared is a change too.
        for before, now in zip_longest(self.before, self._state_leaves(module or self.module)):
            if before is None or now is None or before[0] != now[0]:
                return str((now or before)[0])
            if not _is_same(before[1], now[1]) and (draws or DRAWS not in now[0]):
                return str(now[0])
        return None

    def _state_leaves(self, module: nn.Module) -> Iterator[Leaf]:
        walk = Walk(parameter for name, parameter in module.named_parameters() if name in self.trained)
        yield from walk.of_layer("", module)
        if self.loss is not None:
            yield from walk.of_value("the loss", self.loss)


def read_state(name: str, function: Any) -> ModuleState | None:
    """Return the state of a function of the user's own; None where it is too large to compare or cannot be read."""
    holder = nn.Module()
    holder.__dict__[name] = function
    state = ModuleState(holder, ())
    unseen = any(UNSEEN in path for path, _ in state.before)
    return None if unseen or len(state.before) > MOST_COMPARED else state


MOST_COMPARED = 2000
"""How many values of a function are compared after every call."""


# A second defence behind `ModuleState`: even state that the comparison misses does not outlive a pass.
class SavedAttributes:
    """Snapshot of all attributes of a module and its parts, at any depth.

    Parameters, buffers and parts are kept by reference, not copied: `ModuleState` sees when one changes.

    Guarantees: after `restore` the module has its former attributes, each a copy that no pass has seen. Raises
    `Refused` for a module whose attributes cannot be copied.
    """

    def __init__(self, module: nn.Module) -> None:
        self.layers = list(module.modules())
        self.shared = {id(item): item for item in chain(self.layers, module.parameters(), module.buffers())}
        self.kept = self._copy([dict(vars(layer)) for layer in self.layers])
        self.modes: list[bool] = []
        self.keep_modes()

    def keep_modes(self) -> None:
        """Note which layers are in training now: a pass that changes a mode does not hand it to the next."""
        self.modes = [layer.training for layer in self.layers]

    def _copy(self, attributes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            return copy.deepcopy(attributes, dict(self.shared))
        except Exception as error:
            refuse_copy("model", type(self.layers[0]).__name__, error)

    def restore(self) -> None:
        """Put the attributes back, and each layer into the mode that was noted last."""
        for layer, attributes, training in zip(self.layers, self._copy(self.kept), self.modes, strict=True):
            own = vars(layer)
            own.clear()
            own.update(attributes, training=training)


def read_switches() -> tuple[Any, ...]:
    """Return the settings of torch and Python that hold for the whole process; a pass that turns one could remember."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.backends.mkldnn.enabled,
        torch.get_flush_denormal() if hasattr(torch, "get_flush_denormal") else None,
        sys.getrecursionlimit(),
    )


def refuse_copy(name: str, value: str, error: Exception) -> NoReturn:
    """Raise the message for what cannot be copied."""
    cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    needed = "Sightline restores the module's attributes before each pass, so it must be able to copy them"
    reason = f"cannot be copied ({cause}): {needed}"
    refuse(name, value, reason, "make its tensors parameters or buffers, and do not keep files or locks in it")


def _copy_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _is_same(before: Any, now: Any) -> bool:
    """Return whether a value is unchanged; values that cannot be compared count as changed."""
    if before is now and not isinstance(now, Tensor | np.ndarray):
        return True
    if type(before) is not type(now) and not isinstance(before, Tensor):
        return False
    try:
        if isinstance(before, Tensor):
            return isinstance(now, Tensor) and same_numbers(before, now.detach()) and _same_signs(before, now)
        if isinstance(before, np.ndarray):
            return bool(before.dtype == now.dtype and before.shape == now.shape and before.tobytes() == now.tobytes())
        return bool(before == now and _exact(before) == _exact(now))
    except Exception:
        return False


def _same_signs(before: Tensor, now: Tensor) -> bool:
    """Return whether zeros have the same signs."""
    return not before.is_floating_point() or torch.equal(torch.signbit(before), torch.signbit(now.detach()))


def _exact(value: Any) -> Any:
    """Return plain values with types and signs: 1, 1.0 and True compare equal but carry information."""
    try:
        return marshal.dumps(value[1:] if isinstance(value, tuple) else value, 2)
    # A set or a type.
    except ValueError:
        return None


def same_numbers(before: Tensor, now: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; NaN equals itself."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    return torch.equal(before, now) or bool(((before == now) | ((before != before) & (now != now))).all())


def code_digest(model: FlatModel) -> str:
    """Return a hash of a model's code: layers, settings and the functions they use.

    Guarantees: equal for the same program in another process, wherever the code is in its file. Different if a layer,
    an attribute, a default, a constant, a global of a plain type or the code of a function differs. Weights are not
    included. Installed packages are not inspected.
    """
    module, digest = model.module(), hashlib.sha256()
    walk = Walk(module.parameters(), outside=False)
    digest.update(repr(module).encode())
    leaves = list(walk.of_layer("", module))
    made_by = model.factory.func if isinstance(model.factory, partial) else model.factory
    leaves += walk.of_value("factory", made_by)
    for path, value in leaves:
        digest.update(f"{path}={_value_words(value)}\n".encode())
    for function in walk.functions:
        digest.update(f"{function.__qualname__}={_code_words(function.__code__)}\n".encode())
    return digest.hexdigest()


def _value_words(value: Any) -> str:
    """Return a value as text that is equal in every process; for objects that are not plain, their type."""
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
    value = value.value if isinstance(value, Itself) else value
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _code_words(code: CodeType) -> str:
    """Return what a piece of code does, without its location."""
    inside = [
        _code_words(constant) if isinstance(constant, CodeType) else _value_words(constant)
        for constant in code.co_consts
    ]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{code.co_freevars}{inside}"


REMEMBERS = "state kept from one example or client would reach the next, where no clip bounds it"
WAY_OUT = "make forward change nothing except its result (for statistics: torch.nn.GroupNorm)"


def refuse_change(model: FlatModel, changed: str, blame: tuple[str, str] | None = None) -> None:
    """Raise the message for a module, or a loss, that changed something besides its result."""
    name, value = ("model.name", model.name) if model.task.own_loss is None else ("model.loss", model.task.loss_name)
    name, value = blame or (name, str(value))
    does = "may change" if UNSEEN in changed else "changes"
    refuse(name, value, f"forward {does} {changed}: {REMEMBERS}", WAY_OUT)


def warm_up(module: nn.Module, model: FlatModel) -> bool:
    """Let a module fill its lazy state on made-up inputs; return whether it draws at random."""
    # Batch normalisation cannot run on one example in training mode.
    count = 2 if mixing_layer(module) is not None else 1
    device = next((parameter.device for parameter in module.parameters()), CPU)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        for training in (False, True):
            outputs = module.train(training)(probe_inputs(model, count).to(device))
            if model.task.own_loss is not None:
                model.task.losses(outputs, probe_targets(model.task, model.classes, count).to(device))
        return not torch.equal(before, torch.get_rng_state())


ProbeLoss = Callable[[Any, int], Tensor]
"""(outputs, examples) of a probe -> one number."""


def refuse_memory(model: FlatModel, loss: ProbeLoss | None = None, blame: tuple[str, str] | None = None) -> None:
    """Raise `Refused` if a module remembers anything of an example it has seen.

    `loss` is what is differentiated, by default the loss of the model's task; `blame` names what is refused. This probe
    complements `ModuleState`: the gradient of an example must be the same before and after others have passed, forward
    and backward, in training and evaluation, alone and together, at other weights too.
    """
    module = model.module()
    count = 2 if mixing_layer(module) is not None else 1
    first, start = probe_inputs(model, count), flatten_module(module)
    loss = loss or _task_loss(model)
    for unseen, _ in ModuleState(module, [slot.name for slot in model.layout], model.task.own_loss).before:
        if UNSEEN in unseen:
            refuse_change(model, unseen, blame)
    # First let the module fill what it fills once (lazy buffers, caches of constants); only later changes count.
    _pass_outcome(module, model, first, loss)
    warm_up(module, model)
    state = ModuleState(module, [slot.name for slot in model.layout], model.task.own_loss)
    before = _pass_outcome(module, model, first, loss)
    for seed, many in enumerate((count, count + 2), start=1):
        for parameter in module.parameters():
            parameter.data.mul_(1.5 if parameter.requires_grad else 1.0)
        moved = flatten_module(module)
        other = probe_inputs(model, many, seed=seed)
        _pass_outcome(module, model, other, loss)
        with torch.no_grad():
            module.eval()(other)
        changed = state.find_change() or (None if same_numbers(moved, flatten_module(module)) else "its own weights")
        if changed is not None:
            refuse_change(model, changed, blame)
    for slot in model.layout:
        module.get_parameter(slot.name).data.copy_(start[slot.start : slot.stop].view(slot.shape))
    if not torch.allclose(before, _pass_outcome(module, model, first, loss), rtol=1e-4, atol=1e-6, equal_nan=True):
        reason = "the gradient of the same example, weights and seed changes after other examples have passed"
        refuse(
            *(blame or ("model.name", model.name)),
            f"{reason}: {REMEMBERS}",
            f"{WAY_OUT}; draw at random from torch only",
        )


def _task_loss(model: FlatModel) -> ProbeLoss:
    return lambda outputs, many: model.task.losses(outputs, probe_targets(model.task, model.classes, many), "mean")


def _pass_outcome(module: nn.Module, model: FlatModel, x: Tensor, loss: ProbeLoss) -> Tensor:
    """Return outputs and gradient of a batch in training mode as one vector, from a fixed seed."""
    parameters = [module.get_parameter(slot.name) for slot in model.layout]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs = module.train()(x.clone())
            result = torch.autograd.grad(loss(outputs, len(x)), parameters, allow_unused=True)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        reason = f"cannot be differentiated in training on {len(x)} examples ({cause})"
        invalid("model.name", model.name, reason, "fix forward")
    parts = [leaf.detach() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    parts += [part.to_dense() for part in result if part is not None]
    return torch.cat([part.flatten().float() for part in parts])
