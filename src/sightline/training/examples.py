"""The gradient of every example alone, as rows: one at a time (always right), or by torch.func where that agrees."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.models.flat import FlatModel, flatten_module, probe_inputs

Rows = Callable[[nn.Module, FlatModel, Tensor, Tensor, Tensor], Tensor]
"""(module bound to the weights, model, weights, x, y) -> (batch, d)."""


def one_by_one(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The definition: a forward and a backward pass for every example on its own."""
    rows = torch.zeros(len(y), model.parameters)
    parameters = [module.get_parameter(slot.name) for slot in model.layout]
    for index in range(len(y)):
        loss = functional.cross_entropy(module(x[index : index + 1].clone()), y[index : index + 1])
        for slot, part in zip(model.layout, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.to_dense().reshape(-1)
    return rows


def vectorised_gradients(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same by torch.func: vmap(grad). The module is still given one example: a batch of size one."""

    def loss(tensors: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return functional.cross_entropy(call_with(module, tensors, one_x.unsqueeze(0)), one_y.unsqueeze(0))

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    with sdpa_kernel(SDPBackend.MATH):  # torch.func has no rule for the other kernels of attention
        parts = per_example(model.split(weights), x.clone(), y)
    return torch.cat([parts[slot.name].reshape(len(y), slot.size) for slot in model.layout], 1)


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The module's result with these tensors as its parameters, put once into every layer that shares them.

    (torch's own way with tied weights leaves a layer that stands in two places without its parameter.)
    """
    names = {id(one): name for name, one in module.named_parameters()}
    everywhere = {
        f"{place}.{word}".lstrip("."): tensors[names[id(one)]]
        for place, layer in module.named_modules()
        for word, one in layer._parameters.items()
        if one is not None and names[id(one)] in tensors
    }
    output: Tensor = torch.func.functional_call(module, everywhere, (x,), tie_weights=False)
    return output


def logits_apart(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, rows: Rows) -> Tensor:
    """The logits of every example alone, by torch.func where `rows` may use it."""

    tensors = model.split(weights)

    def alone(one: Tensor) -> Tensor:
        return call_with(module, tensors, one.unsqueeze(0))[0]

    if rows is vectorised_gradients and len(x):
        with suppress(Exception), sdpa_kernel(SDPBackend.MATH):
            found: Tensor = torch.func.vmap(alone, randomness="different")(x.clone())
            return found
    outputs = [module(x[index : index + 1].clone()) for index in range(len(x))]
    return torch.cat(outputs) if outputs else torch.empty(0, model.classes)


def choose_rows(module: nn.Module, model: FlatModel) -> Rows:
    """`vectorised` when it runs and agrees with the definition on this module, else `one_by_one`.

    Both are asked in evaluation and in training; where training draws at random only the former can agree.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        return one_by_one  # torch.func falls back to a slow loop of its own there
    probe = model.module()
    weights = flatten_module(probe)
    x, y = probe_inputs(model, 3), torch.arange(3) % model.classes

    def drawn(rows: Rows, seed: int = 0) -> Tensor:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return rows(probe, model, weights, x, y)

    for training in (False, True):
        probe.train(training)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                fast = drawn(vectorised_gradients)
        except Exception:
            return one_by_one
        slow = drawn(one_by_one)
        if not rows_agree(fast, slow) and rows_agree(slow, drawn(one_by_one, seed=1)):
            return one_by_one
    return vectorised_gradients


def rows_agree(fast: Tensor, slow: Tensor) -> bool:
    """Whether rows agree to float32 rounding."""
    return torch.allclose(fast, slow, rtol=1e-3, atol=1e-5, equal_nan=True)
