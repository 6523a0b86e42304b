"""The gradient of every example alone, as rows: one at a time (always right), or by torch.func where that agrees."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.models.flat import FlatModel
from sightline.models.registry import probe_inputs

Rows = Callable[[nn.Module, FlatModel, Tensor, Tensor, Tensor], Tensor]
"""(module bound to the weights, model, weights, x, y) -> (batch, d)."""


def one_by_one(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The definition: a forward and a backward pass for every example on its own."""
    rows = torch.zeros(len(y), model.parameters)
    parameters = [p for p in module.parameters() if p.requires_grad]
    slots = [slot for slot, p in zip(model.layout, module.parameters(), strict=True) if p.requires_grad]
    for index in range(len(y)):
        loss = functional.cross_entropy(module(x[index : index + 1]), y[index : index + 1])
        for slot, part in zip(slots, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if part is not None:
                rows[index, slot.start : slot.stop] = part.reshape(-1)
    return rows


def vectorised(module: nn.Module, model: FlatModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same by torch.func: vmap(grad)."""

    def loss(vector: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        output = torch.func.functional_call(module, model.split(vector), (one_x.unsqueeze(0),))
        return functional.cross_entropy(output, one_y.unsqueeze(0))

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    rows: Tensor = per_example(weights, x, y)
    return rows


def choose_rows(module: nn.Module, model: FlatModel) -> Rows:
    """`vectorised` when a probe shows that it runs and agrees with the definition on this module, else `one_by_one`."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        return one_by_one  # torch.func falls back to a slow loop of its own there
    module.eval()
    weights = torch.cat([p.detach().reshape(-1) for p in model.module().parameters()])
    x, y = probe_inputs(model, 3), torch.arange(3) % model.classes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fast = vectorised(module, model, weights, x, y)
    except Exception:
        return one_by_one
    probe = model.module().eval()
    agrees = torch.allclose(fast, one_by_one(probe, model, weights, x, y), rtol=1e-3, atol=1e-5)
    return vectorised if agrees else one_by_one
