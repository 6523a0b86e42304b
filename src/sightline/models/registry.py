"""Models by name, by "package.module:factory", or as modules passed by a Python program."""

import inspect
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sightline.data.federation import Kind
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.models.classifiers import (
    bilstm,
    cnn,
    cnn_3x3,
    cnn_mcmahan,
    cnn_small,
    linear,
    lstm,
    mlp,
    resnet,
    resnet18,
    resnet101,
    wide_resnet_40_4,
)
from sightline.models.flat import (
    FlatModel,
    constants_of,
    layout_of,
    make_module,
    mixing_layer,
    probe_inputs,
    trained_parameters,
    unknown_part,
)
from sightline.models.state import refuse_memory, same_numbers
from sightline.models.task import CLASSIFICATION, Task, probe_targets


class TokenLogits(nn.Module):
    """A Hugging Face transformers or peft model as a module from tokens (B, T) to logits.

    Such models take keyword arguments and return objects. This wrapper calls `model(input_ids=tokens, **settings)` and
    returns the object's `logits`; with `last` only those of the last token (a language model that predicts the next
    one), and with `padding` the attention leaves out that token. A model for images gets `pixel_values`. Build the
    model from its configuration inside your factory; nothing is downloaded. It trains what has `requires_grad`: peft's
    LoRA freezes the rest, which is then neither noised nor sent. A model that is given without this wrapper is wrapped
    by `wrap_transformer`.

        def factory(vocabulary, classes):
            config = BertConfig(vocab_size=vocabulary, num_labels=classes, hidden_size=128, num_hidden_layers=2)
            return TokenLogits(BertForSequenceClassification(config), padding=config.pad_token_id)
    """

    def __init__(self, model: nn.Module, *, last: bool = False, padding: int | None = None, **settings: Any) -> None:
        super().__init__()
        self.model, self.last, self.padding, self.settings = model, last, padding, settings
        self.input = str(getattr(model, "main_input_name", "input_ids"))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of a batch of tokens."""
        given: dict[str, Any] = {self.input: tokens} | self.settings
        if self.padding is not None:
            given["attention_mask"] = (tokens != self.padding).long()
        logits: Tensor = self.model(**given).logits
        return logits[:, -1] if self.last else logits


class NamedInputs(nn.Module):
    """A module that is called with keywords, as one of a single tensor: the parts lie flat, one after the other.

    Returns the `logits` of an object that has some, else the output as it is.
    """

    def __init__(self, model: nn.Module, parts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        super().__init__()
        self.model, self.parts, self.settings = model, parts, transformer_settings(model)

    def forward(self, x: Tensor) -> Any:
        """Return the output for a batch of packed parts."""
        given, start = {}, 0
        for name, shape in self.parts:
            part = x[:, start : start + prod(shape)]
            given[name] = part.reshape(len(part), *shape) if len(shape) > 1 else part if shape else part[:, 0]
            start += prod(shape)
        outputs = self.model(**given, **self.settings)
        return getattr(outputs, "logits", outputs)


def wrap_transformer(module: nn.Module) -> nn.Module:
    """Return a bare transformers or peft model as a module from its main input to logits, others unchanged.

    The padding token is that of the model's configuration.
    """
    config, name = getattr(module, "config", None), getattr(module, "main_input_name", None)
    if config is None or not isinstance(name, str):
        return module
    settings = transformer_settings(module)
    return TokenLogits(
        module, padding=getattr(config, "pad_token_id", None) if name == "input_ids" else None, **settings
    )


def transformer_settings(module: nn.Module) -> dict[str, Any]:
    """Return the arguments that every call gets: a decoder does not return the cache that only generation needs."""
    base: Any = module
    if callable(find := getattr(module, "get_base_model", None)):
        base = find()
    caches = hasattr(base, "main_input_name") and "use_cache" in inspect.signature(base.forward).parameters
    return {"use_cache": False} if caches else {}


class WrappedFactory:
    """A factory of bare transformers, which returns them wrapped."""

    def __init__(self, factory: "Factory", arguments: Mapping[str, Any]) -> None:
        self.factory, self.arguments = factory, dict(arguments)

    def __call__(self) -> nn.Module:
        """Return a new wrapped module."""
        return wrap_transformer(self.factory(**self.arguments))


TOO_LARGE = re.compile(r"alloc|overflow|too large|memory", re.IGNORECASE)
"""torch's messages for a layer that does not fit into memory."""

Factory = Callable[..., nn.Module]

MODELS: dict[str, Factory] = {
    factory.__name__: factory
    for factory in (
        linear, mlp, cnn, cnn_mcmahan, cnn_small, cnn_3x3, resnet, resnet18, resnet101, wide_resnet_40_4, bilstm,
        lstm,
    )
}  # fmt: skip
"""Sightline's models by their name in the experiment file."""


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    vocabulary: int = 0,
    settings: Mapping[str, Any],
    task: Task = CLASSIFICATION,
    factory: Factory | None = None,
) -> FlatModel:
    """Return the named model for these data and this task, as a flat vector and a module factory.

    If `factory` is given, the name begins with "python:", see `read_given_model`.

    Guarantees: raises `InvalidInput` for an unknown model or setting, a factory that cannot be imported or called, and
    a module whose output is not (batch, classes) or what else the task compares with targets. torch's global random
    state is left unchanged.

    >>> build_model("cnn", input_shape=(1, 28, 28), classes=10, kind=Kind.IMAGE, settings={}).parameters
    28938
    """
    factory = factory or (own_factory(name) if ":" in name else known_factory(name))
    facts: dict[str, Any] = {"input_shape": tuple(input_shape), "classes": classes, "kind": kind}
    facts |= {"vocabulary": vocabulary, "task": task.name}
    arguments = arguments_for(name, factory, facts, settings)
    ready: Callable[[], nn.Module] = partial(factory, **arguments)
    module = first_module(name, ready, own=":" in name)
    if (wrapped := wrap_transformer(module)) is not module:
        module, ready = wrapped, WrappedFactory(factory, arguments)
    constants = same_constants(name, module, ready)
    if ":" in name:
        refuse_shared_weights(name, module, ready)
    model = FlatModel(
        name, tuple(input_shape), classes, kind, layout_of(module), ready, vocabulary, dict(settings), constants, task
    )
    check_module(name, module, model)
    return model


def known_factory(name: str) -> Factory:
    """Return the factory of a bundled model; raise for an unknown name."""
    if name not in MODELS:
        way_out = did_you_mean(name, list(MODELS)) + ' (your own: "package.module:factory")'
        invalid("model.name", name, "unknown model", way_out)
    return MODELS[name]


def own_factory(name: str) -> Factory:
    """Return the user's factory behind "package.module:factory"."""
    if is_given_model(name):
        reason = "the model was passed by a Python program and cannot be restored from a file"
        invalid("model.name", name, reason, "pass it again: sightline.run(..., model=...)")
    return import_object("model.name", name, "a function or class that returns a torch.nn.Module")


def import_object(key: str, name: str, what: str) -> Callable[..., Any]:
    """Return the object behind "package.module:name"; raise if it cannot be imported or is not callable."""
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        cause = cause_of(error)
        invalid(key, name, f"module {module_name!r} cannot be imported ({cause})", "check PYTHONPATH and spelling")
    result = getattr(module, attribute, None)
    if result is None:
        known = [key for key in vars(module) if not key.startswith("_")]
        invalid(key, name, f"module {module_name!r} has no {attribute!r}", did_you_mean(attribute, known))
    if not callable(result):
        invalid(key, name, "is not callable", f"name {what}")
    return result  # type: ignore[no-any-return]


GIVEN = "python:"
"""Prefix of names of models that no file can restore."""


def is_given_model(name: str) -> bool:
    """Return whether the model of that name was passed by a Python program."""
    return name.startswith(GIVEN)


class ModuleCopies:
    """Factory for a module passed as an object: every call returns a copy with the weights it had then."""

    def __init__(self, module: nn.Module) -> None:
        self.module = self._copy(module)

    def __call__(self) -> nn.Module:
        """Return a copy that shares nothing with any other."""
        return self._copy(self.module)

    @staticmethod
    def _copy(module: nn.Module) -> nn.Module:
        name = type(module).__name__
        try:
            copied = deepcopy(module).cpu()
        except Exception as error:
            reason = f"cannot be copied ({cause_of(error)})"
            invalid("model", name, reason, "pass a function that creates the module")
        shared = {id(tensor) for tensor in chain(module.parameters(), module.buffers())}
        # A custom __deepcopy__ may return shared tensors; training would then change the caller's module.
        if copied is module or any(id(tensor) in shared for tensor in chain(copied.parameters(), copied.buffers())):
            invalid("model", name, "its copy shares tensors with it", "pass a function that creates the module")
        copied.zero_grad(set_to_none=True)
        return copied


def read_given_model(model: Any) -> tuple[str, Factory]:
    """Return name and factory of a module or factory passed by a Python program.

    Training starts from a module's own weights and leaves it unchanged, working on copies. A factory is called like one
    that is named in a file.

    >>> read_given_model(nn.Linear(2, 3))[0], read_given_model(linear)[0]
    ('python:Linear', 'python:linear')
    """
    if isinstance(model, nn.Module):
        return GIVEN + type(model).__name__, ModuleCopies(model)
    if not callable(model):
        way_out = "give a torch.nn.Module, a function that returns one, or a name"
        invalid("model", type(model).__name__, "is not a model", way_out)
    function = model.func if isinstance(model, partial) else model
    name = str(getattr(function, "__name__", type(function).__name__))
    return GIVEN + (re.sub(r"\W", "_", name) or "factory"), model


def refuse_shared_weights(name: str, module: nn.Module, ready: Callable[[], nn.Module]) -> None:
    """Raise if a factory returns the same trained tensors twice: one client's training would change another's model."""
    first = {
        parameter.data_ptr(): tensor_name for tensor_name, parameter in trained_parameters(module) if parameter.numel()
    }
    for tensor_name, parameter in trained_parameters(make_module(ready, seed=0)):
        if parameter.data_ptr() in first and parameter.numel():
            reason = (
                f"the factory returns the same tensor {tensor_name!r} on every call, so training changes every copy"
            )
            invalid("model.name", name, reason, "return a new module from every call")


def arguments_for(name: str, factory: Factory, facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the factory's arguments: facts of the data that it asks for, and settings; raise for unknown ones."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        invalid("model.name", name, "the arguments of this callable cannot be inspected", "wrap it in a function")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [key for key, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [key for key in named if key not in facts]
    for key in settings:
        if key in facts or (key not in known and not takes_any):
            reason = f"{name} has no such setting"
            invalid(f"model.{key}", settings[key], reason, did_you_mean(key, known) if known else "it has no settings")
    return {key: fact for key, fact in facts.items() if takes_any or key in named} | dict(settings)


def first_module(name: str, ready: Callable[[], nn.Module], *, own: bool) -> nn.Module:
    """Return the module, or raise with the reason why the factory failed."""
    try:
        module = make_module(ready, seed=0)
    except SightlineError:
        raise
    except Exception as error:
        cause = cause_of(error)
        if isinstance(error, MemoryError | RuntimeError) and TOO_LARGE.search(str(error)):
            invalid("model.name", name, f"does not fit into memory ({cause})", "make it smaller")
        # A failure in a bundled factory is a bug of ours: show its traceback.
        if not own:
            raise
        invalid(
            "model.name", name, f"the factory failed ({cause})", "it is called with input_shape, classes and settings"
        )
    if not isinstance(module, nn.Module):
        invalid("model.name", name, f"the factory returned a {type(module).__name__}", "return a torch.nn.Module")
    for tensor_name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            invalid(
                "model.name", name, f"{tensor_name!r} has no shape yet (a lazy layer)", "give the layer all its sizes"
            )
    return module


def same_constants(name: str, module: nn.Module, ready: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return the module's frozen tensors and buffers; raise unless the factory always creates the same."""
    result = {tensor_name: tensor.clone() for tensor_name, tensor in constants_of(module).items()}
    # Constants are created on every node from the factory. If they differed, nodes would train different models.
    again = constants_of(make_module(ready, seed=0)) if result else {}
    for tensor_name, tensor in result.items():
        if tensor_name not in again or not same_numbers(tensor, again[tensor_name]):
            reason = (
                f"the factory creates a different {tensor_name!r} on every call, but each node creates its own copy"
            )
            invalid("model.name", name, reason, "draw it from torch's generator, or read it from a file")
    return result


def cause_of(error: Exception) -> str:
    """Return type and first words of an error in the user's code, on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 160 else text[:157] + "..."


def check_module(name: str, module: nn.Module, model: FlatModel) -> None:
    """Raise unless the module has trainable float32 parameters and outputs that fit its task."""
    if not model.layout:
        reason = "all parameters are frozen" if model.constants else "the module has no parameters"
        invalid("model.name", name, reason, "give it at least one layer to train")
    for tensor_name, parameter in trained_parameters(module):
        if parameter.dtype != torch.float32:
            invalid("model.name", name, f"parameter {tensor_name!r} is {parameter.dtype}", "use float32 parameters")
    # Several batch sizes, one among them: a layer that confuses the batch with channels gives a wrong shape for some.
    for batch in (2, 3) if mixing_layer(module) is not None else (1, 2, 3):
        check_output(name, module, model, batch)
    if model.task.own_loss is not None:
        check_loss(model, module)
    if unknown_part(module) is not None or model.task.own_loss is not None:
        refuse_memory(model)


def check_output(name: str, module: nn.Module, model: FlatModel, batch: int) -> None:
    """Raise unless the module returns (batch, ...) as the task needs."""
    try:
        with torch.no_grad():
            output = module.eval()(probe_inputs(model, batch))
    except Exception as error:
        cause, shape = cause_of(error), (batch, *model.input_shape)
        invalid("model.name", name, f"forward fails on a batch of shape {shape} ({cause})", "fix forward")
    result = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(result, tuple) or not model.task.fits_output(result, batch, model.classes):
        reason = f"returns {result} for {batch} example{'s' if batch > 1 else ''}"
        invalid("model.name", name, reason, model.task.describe_output(model.classes))


def check_loss(model: FlatModel, module: nn.Module) -> None:
    """Raise unless the user's own loss returns one number for the output and target of one example."""
    loss, name = model.task.own_loss, model.task.loss_name
    with torch.no_grad():
        output = module.eval()(probe_inputs(model, 2))[0]
    y = probe_targets(model.task, model.classes, 2)[0]
    try:
        result = None if loss is None else loss(output.requires_grad_(), y)
    except Exception as error:
        reason = f"fails on an output of shape {tuple(output.shape)} and a target {tuple(y.shape)} ({cause_of(error)})"
        invalid("model.loss", name, reason, "it is called with one example's output and target, without a batch axis")
    if not isinstance(result, Tensor) or result.numel() != 1 or not result.is_floating_point():
        looks = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        invalid("model.loss", name, f"returns {looks} for one example", "return one number, as a tensor")
    if result.grad_fn is None:
        invalid("model.loss", name, "the loss does not depend on the output", "compute it with torch operations")


def own_loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the user's per-example loss behind "package.module:function"."""
    return import_object("model.loss", name, "a function of one output and one target")
