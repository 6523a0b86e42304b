"""Training on a part, the slow way: the whole model with the other parts switched off, one example at a time."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_oracle import load


def switched_off(model, positions: Tensor) -> nn.Module:
    """The whole module in which units and blocks outside `positions` give nothing."""
    module, inside = model.module(), set(positions.tolist())
    slots = {slot.name: slot for slot in model.layout}
    if hasattr(module, "blocks"):
        for name, _ in list(module.blocks.named_children()):
            starts = [slot.start for slot in model.layout if slot.name.startswith(f"blocks.{name}.")]
            if not any(start in inside for start in starts):
                setattr(module.blocks, name, nn.Identity())
        return module
    for name, layer in list(module.named_children()):
        if isinstance(layer, nn.Linear):
            bias = slots[f"{name}.bias"]
            kept = torch.tensor([float(place in inside) for place in range(bias.start, bias.stop)])
            layer.register_forward_hook(lambda _, given, output, kept=kept: output * kept)
    return module


def gradient(model, weights: Tensor, positions: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(d,) gradient of one example's loss in its part; zero where the part has no parameters."""
    named = {slot.name: slot for slot in model.layout}
    whole = model.module()
    load(whole, weights)
    module = switched_off(model, positions)
    module.load_state_dict(whole.state_dict(), strict=False)
    loss = functional.cross_entropy(module(x[None]), y[None])
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    flat = torch.zeros(model.parameters)
    for name, part in zip(parameters, found, strict=True):
        if part is not None:
            flat[named[name].start : named[name].stop] = part.reshape(-1)
    return flat


def gradient_in(sub, model, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`gradient` in a submodel; a part that is a list of tensors has the whole network, and the other tensors held."""
    flat = gradient(model, weights, sub.positions, x, y)
    return flat if sub.moves is None else torch.where(sub.moves > 0, flat, torch.zeros(()))


def clipped(flat: Tensor, unsplit: Tensor, clip_norm: float, unsplit_clip_norm: float) -> Tensor:
    """Both pieces scaled into their balls."""
    out = flat.clone()
    for piece, radius in ((~unsplit, clip_norm), (unsplit, unsplit_clip_norm)):
        norm = float(flat[piece].double().norm())
        out[piece] = flat[piece] * min(1.0, radius / norm) if norm > 0 else flat[piece]
    return out
