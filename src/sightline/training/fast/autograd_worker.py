"""Per-example gradients by autograd with hooks on layers; LSTMs are unrolled to get them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from sightline.models.flat import FlatModel, bind_parameters, probe_inputs
from sightline.training.clipping import Balls, Clip, factors_of, square_norms
from sightline.training.fast.chains import size_pair
from sightline.training.fast.per_example_norms import AffineNorms, gram_rounding, unfold_patches
from sightline.training.gradients import GradientWorker


@dataclass(frozen=True, eq=False)
class DirectionRun:
    """One direction of one layer over one batch: inputs (B, T, K), states before (B, T, H), gates (B, T, 4 H)."""

    suffix: str
    inputs: Tensor
    before: Tensor
    gates: Tensor


class UnrolledLSTM(nn.Module):
    """An LSTM with the same numbers as the `nn.LSTM` it is built from, sharing its parameters.

    With gates_t = W_ih x_t + b + W_hh h_{t-1}, the gradient of the product W_ih x_t is the gradient of the gates, and
    with it both weights' gradients are sums over t of outer products. Every run is kept in `runs`.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm
        self.runs: list[DirectionRun] = []

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return states of every token (B, T, directions * H), and the last states of every layer and direction."""
        hidden, cells = [], []
        for layer in range(self.lstm.num_layers):
            ways = [f"_l{layer}", f"_l{layer}_reverse"][: 2 if self.lstm.bidirectional else 1]
            ends = [self.run(x, suffix) for suffix in ways]
            x = torch.cat([states for states, _, _ in ends], 2)
            hidden += [h for _, h, _ in ends]
            cells += [c for _, _, c in ends]
        return x, (torch.stack(hidden), torch.stack(cells))

    def run(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return states in token order, last hidden state and last cell of one direction of one layer."""
        back = suffix.endswith("reverse")
        x = x.flip(1) if back else x
        bias = None
        if self.lstm.bias:
            bias = getattr(self.lstm, "bias_ih" + suffix) + getattr(self.lstm, "bias_hh" + suffix)
        ran = run_lstm(x, getattr(self.lstm, "weight_ih" + suffix), getattr(self.lstm, "weight_hh" + suffix), bias)
        self.runs.append(DirectionRun(suffix, x.detach(), ran.before, ran.gates))
        return (ran.states.flip(1) if back else ran.states), ran.hidden, ran.cell


@dataclass(frozen=True, eq=False)
class LSTMStates:
    """States of one direction of an LSTM layer: gates before recurrence, states before and after each token."""

    gates: Tensor
    before: Tensor
    states: Tensor
    hidden: Tensor
    cell: Tensor


def run_lstm(
    x: Tensor, inputs: Tensor, recurrent: Tensor, bias: Tensor | None, begin: Sequence[Tensor] | None = None
) -> LSTMStates:
    """Run one direction of one layer over x (B, T, K) from the states `begin` (zero by default).

    W_ih x + b is computed for all tokens at once, always with a gradient to read.
    """
    gates: Tensor = x @ inputs.t()
    if bias is not None:
        gates = gates + bias
    gates = gates if gates.requires_grad else gates.requires_grad_()
    turned = recurrent.t()
    h = c = x.new_zeros(len(x), len(turned))
    if begin is not None:
        h, c = begin
    states = [h]
    for part in gates.unbind(1):
        i, f, new, o = torch.addmm(part, h, turned).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return LSTMStates(gates, torch.stack(states[:-1], 1).detach(), torch.stack(states[1:], 1), h, c)


def can_unroll(layer: nn.Module) -> bool:
    """Return whether the layer is a plain LSTM over (B, T, K)."""
    return type(layer) is nn.LSTM and layer.batch_first and not layer.proj_size and not layer.dropout


def unroll_lstms(module: nn.Module) -> None:
    """Replace every plain LSTM below `module` with an unrolled one."""
    for name, child in module.named_children():
        if isinstance(child, nn.LSTM) and can_unroll(child):
            setattr(module, name, UnrolledLSTM(child))
        else:
            unroll_lstms(child)


class ClippingRule(ABC):
    """One layer's record of one chunk; `gradient` maps parameter names to views of the flat gradient."""

    def __init__(self, layer: nn.Module, gradient: dict[str, Tensor]) -> None:
        self.layer, self.gradient = layer, gradient

    @abstractmethod
    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Take input and output gradient; return |gradient|^2 of every example for each of this layer's parameters."""

    @abstractmethod
    def blank(self, broken: Tensor) -> None:
        """Zero these examples' records: a factor of zero does not turn NaN into zero."""

    @abstractmethod
    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Add sum_j s_j g_j to the gradient of each parameter."""


class AffineRule(ClippingRule):
    """Rule of linear layers, on vectors (B, K) or sequences (B, ..., K)."""

    def norms_of(self, x: Tensor, g: Tensor) -> AffineNorms:
        """Return the affine map's inputs and output gradients as (B, P, K) and (B, P, O)."""
        batch = len(x)
        return AffineNorms(
            x.reshape(batch, -1, x.shape[-1]), g.reshape(batch, -1, g.shape[-1]), bias="bias" in self.gradient
        )

    @override
    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        self.page = self.norms_of(x, g)
        return self.page.norms()

    @override
    def blank(self, broken: Tensor) -> None:
        self.page.blank(broken)

    @override
    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        self.gradient["weight"] += self.as_weight(self.page.weight_sum(factors["weight"]))
        bias = self.page.bias_sum(factors["bias"]) if "bias" in factors else None
        if bias is not None:
            self.gradient["bias"] += bias
        del self.page

    def as_weight(self, total: Tensor) -> Tensor:
        """Return (O, K) in the weight's own layout."""
        return total


class ConvolutionRule(AffineRule):
    """Rule of convolutions, as affine maps of their patches."""

    layer: nn.Conv2d

    @override
    def norms_of(self, x: Tensor, g: Tensor) -> AffineNorms:
        how = (size_pair(self.layer.kernel_size), size_pair(self.layer.stride), size_pair(self.layer.padding))
        return AffineNorms(unfold_patches(x, *how), g.permute(0, 2, 3, 1).flatten(1, 2), bias="bias" in self.gradient)

    def as_weight(self, total: Tensor) -> Tensor:
        """Return (O, kh, kw, C) as (O, C, kh, kw)."""
        size = size_pair(self.layer.kernel_size)
        return total.view(len(total), *size, -1).permute(0, 3, 1, 2)


class NormRule(ClippingRule):
    """Rule of GroupNorm and LayerNorm: gradients are small, so they are instantiated."""

    layer: nn.GroupNorm | nn.LayerNorm

    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Record rows of scale and shift: sums over positions of g times the normalised input, and of g."""
        self.rows = {"weight": self.sum_positions(g * self.normalise_input(x)), "bias": self.sum_positions(g)}
        self.rows = {name: self.rows[name] for name in self.gradient}
        return {name: square_norms(rows) for name, rows in self.rows.items()}

    def normalise_input(self, x: Tensor) -> Tensor:
        """Return the input before scale and shift."""
        if isinstance(self.layer, nn.GroupNorm):
            return functional.group_norm(x, self.layer.num_groups, eps=self.layer.eps)
        return functional.layer_norm(x, list(self.layer.normalized_shape), eps=self.layer.eps)

    def sum_positions(self, values: Tensor) -> Tensor:
        """Sum over everything but the example and the parameter's own axes."""
        if isinstance(self.layer, nn.GroupNorm):
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        return values.reshape(len(values), -1, *self.layer.normalized_shape).sum(1)

    @override
    def blank(self, broken: Tensor) -> None:
        self.rows = {
            name: rows.flatten(1).masked_fill(broken[:, None], 0.0).view_as(rows) for name, rows in self.rows.items()
        }

    @override
    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        for name, rows in self.rows.items():
            self.gradient[name] += (factors[name] @ rows.flatten(1)).view(rows.shape[1:])
        del self.rows


class EmbeddingRule(ClippingRule):
    """Rule of embeddings: |G|^2 = sum over pairs of positions with equal tokens of g_p . g_q; the sum is a scatter."""

    def read(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """Return norms from the Gram matrix of the gradients, masked by equality of tokens."""
        self.tokens, self.g = x.flatten(1), g.flatten(1, -2)
        same = (self.tokens[:, :, None] == self.tokens[:, None, :]).to(g.dtype)
        inner = (torch.bmm(self.g, self.g.transpose(1, 2)) * same).sum((1, 2), dtype=torch.float64).clamp_min(0)
        slack = gram_rounding(torch.linalg.vector_norm(self.g, dim=2), self.g.shape[1] + self.g.shape[2])
        return {"weight": inner + slack}

    @override
    def blank(self, broken: Tensor) -> None:
        self.g = self.g.masked_fill(broken[:, None, None], 0.0)

    def add_clipped(self, factors: Mapping[str, Tensor]) -> None:
        """Scatter the scaled gradients to their tokens' rows."""
        scaled = (self.g * factors["weight"][:, None, None]).flatten(0, 1)
        self.gradient["weight"].index_add_(0, self.tokens.flatten(), scaled)
        del self.tokens, self.g


class RecurrentRule:
    """One direction of an LSTM layer: two affine maps, of inputs and of states before, with the gates' gradient."""

    def __init__(self, gradient: dict[str, Tensor]) -> None:
        self.gradient = gradient

    def read(self, run: DirectionRun, g: Tensor) -> Tensor:
        """Return |gradient|^2 of every example over both weights and both biases."""
        self.pages = {
            "ih": AffineNorms(run.inputs, g, bias="bias_ih" in self.gradient),
            "hh": AffineNorms(run.before, g, bias="bias_hh" in self.gradient),
        }
        both = [torch.stack(list(page.norms().values())).sum(0) for page in self.pages.values()]
        return both[0] + both[1]

    def blank(self, broken: Tensor) -> None:
        """Zero these examples' records."""
        for page in self.pages.values():
            page.blank(broken)

    def add_clipped(self, factors: Tensor) -> None:
        """Add the clipped sums of both maps."""
        for name, page in self.pages.items():
            self.gradient[f"weight_{name}"] += page.weight_sum(factors)
            bias = page.bias_sum(factors)
            if bias is not None:
                self.gradient[f"bias_{name}"] += bias
        del self.pages


def rule_for(layer: nn.Module) -> Callable[[nn.Module, dict[str, Tensor]], ClippingRule] | None:
    """Return the clipping rule for this layer, or None. Types are exact: a subclass may compute something else."""
    kind = type(layer)
    if kind in (nn.GroupNorm, nn.LayerNorm):
        return NormRule
    if kind is nn.Linear:
        return AffineRule
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        plain = layer.groups == 1 and size_pair(layer.dilation) == (1, 1) and layer.padding_mode == "zeros"
        return ConvolutionRule if plain and not isinstance(layer.padding, str) else None
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        plain = (
            layer.padding_idx is None and layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        )
        return EmbeddingRule if plain else None
    return None


RECORD_BYTES = 1 << 27
"""Memory limit for the records of one chunk of examples."""


class NoClippingRule(Exception):
    """This pass cannot be recorded: a layer ran twice, or a recorded value was overwritten."""


class AutogradWorker(GradientWorker):
    """Worker with autograd for plain steps and ghost clipping for private ones."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        # Only gradients of outputs are read: no parameter of the twin needs one.
        self.twin = model.module().requires_grad_(False)
        bind_parameters(self.twin, model.layout, self.weights)
        unroll_lstms(self.twin)
        self.seen: dict[str, tuple[Tensor, Tensor, int]] = {}
        self.rules: dict[str, ClippingRule] = {}
        self.recurrent: dict[tuple[str, str], RecurrentRule] = {}
        self.attach_rules(model.split(self.gradient))
        self.per_chunk = 0
        self.definition: GradientWorker | None = None

    def attach_rules(self, gradient: dict[str, Tensor]) -> None:
        """Give every layer with parameters its clipping rule; raise `NoClippingRule` if one has none."""
        taken = 0
        for name, layer in self.twin.named_modules():
            if isinstance(getattr(layer, "inplace", None), bool):
                # An in-place layer would overwrite an input that a rule has recorded.
                layer.inplace = False
            tensors = [] if isinstance(layer, nn.LSTM) else [key for key, _ in layer.named_parameters(recurse=False)]
            if any(tensor_name(name, tensor) not in gradient for tensor in tensors):
                raise NoClippingRule(f"layer {name} shares a parameter with another, or has a frozen one")
            own = {tensor: gradient[tensor_name(name, tensor)] for tensor in tensors}
            if isinstance(layer, UnrolledLSTM):
                taken += self.attach_recurrent(name, layer, gradient)
            elif own:
                kind = rule_for(layer)
                if kind is None:
                    raise NoClippingRule(f"no clipping rule for {type(layer).__name__}")
                self.rules[name] = kind(layer, own)
                layer.register_forward_hook(lambda _, inputs, output, name=name: self.see_layer(name, inputs, output))
                taken += len(own)
        # Every parameter needs exactly one rule: one without would be missing from the norm and from the clip.
        if taken != len(self.model.layout):
            raise NoClippingRule("a parameter belongs to no known layer")

    def attach_recurrent(self, name: str, layer: UnrolledLSTM, gradient: dict[str, Tensor]) -> int:
        """Attach one clipping rule per direction and layer of an LSTM; return its number of tensors."""
        tensors = [tensor for tensor, _ in layer.lstm.named_parameters()]
        for suffix in {tensor.split("_", 2)[2] for tensor in tensors}:
            own = {
                tensor.rsplit("_" + suffix, 1)[0]: gradient[tensor_name(name, tensor)]
                for tensor in tensors
                if tensor.split("_", 2)[2] == suffix
            }
            self.recurrent[name, "_" + suffix] = RecurrentRule(own)
        return len(tensors)

    def see_layer(self, name: str, inputs: Any, output: Tensor) -> None:
        """Keep a layer's input and output, and make sure that the output's gradient can be read."""
        if name in self.seen or len(inputs) != 1:
            raise NoClippingRule(f"layer {name} ran twice or takes more than one input")
        if not output.requires_grad:
            output.requires_grad_()
        self.seen[name] = (inputs[0].detach(), output, inputs[0]._version)

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Write the clipped sum by ghost clipping if this pass allows it and has one view, else by definition."""
        if views > 1:
            self.sum_by_definition(x, y, clip, views)
            return
        self.gradient.zero_()
        try:
            self.add_passes(x, y, clip, views)
        except NoClippingRule:
            if self.probing:
                raise
            self.sum_by_definition(x, y, clip, views)

    def sum_by_definition(self, x: Tensor, y: Tensor, clip: Clip, views: int) -> None:
        """Write the clipped sum of examples that are differentiated alone."""
        if self.definition is None:
            self.definition = GradientWorker(self.model)
        self.definition.weights.copy_(self.weights)
        self.definition.clipped_sum(x, y, clip, views=views)
        self.gradient.copy_(self.definition.gradient)

    def most_examples(self, views: int) -> int:
        """Return how many examples' records fit into RECORD_BYTES, measured on a made-up example."""
        if not self.per_chunk:
            with torch.random.fork_rng(devices=[]):
                self.per_chunk = max(1, RECORD_BYTES // self.record_bytes())
        return self.per_chunk

    def record_bytes(self) -> int:
        """Return the size of one example's records."""
        self.output_gradients(probe_inputs(self.model, 1), self.trial_targets())
        ends = [(a, z) for a, z, _ in self.seen.values()]
        kernels = sum(9 * a.numel() if z.dim() == 4 else a.numel() for a, z in ends)
        return 4 * (kernels + 3 * sum(z.numel() for _, z in ends) + min(self.model.parameters, 1 << 22))

    def output_gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], int]:
        """Run one forward and one backward pass; return gradients of all recorded outputs, gates last."""
        self.seen.clear()
        lstms = {name: layer for name, layer in self.twin.named_modules() if isinstance(layer, UnrolledLSTM)}
        for layer in lstms.values():
            layer.runs.clear()
        loss = self.model.task.losses(self.twin(x), y, "sum")
        # An in-place overwrite would silently replace the recorded input, and with it the norm.
        if any(a._version != version for a, _, version in self.seen.values()):
            raise NoClippingRule("a layer's input was overwritten")
        self.runs = {(name, run.suffix): run for name, layer in lstms.items() for run in layer.runs}
        if len(self.runs) != sum(len(layer.runs) for layer in lstms.values()):
            raise NoClippingRule("an LSTM ran twice")
        ends = [output for _, output, _ in self.seen.values()] + [run.gates for run in self.runs.values()]
        return list(torch.autograd.grad(loss, ends)), len(self.seen)

    @override
    def pass_squares(self, x: Tensor, y: Tensor, views: int) -> list[dict[str, Tensor]]:
        self.twin.train(not self.probing)
        gradients, plain = self.output_gradients(x, y)
        norms = [
            named_norms(n, self.rules[n].read(seen[0], g))
            for (n, seen), g in zip(self.seen.items(), gradients[:plain], strict=True)
        ]
        norms += [
            {"": self.recurrent[key].read(run, g)}
            for (key, run), g in zip(self.runs.items(), gradients[plain:], strict=True)
        ]
        return norms

    @override
    def add_clipped(self, x: Tensor, y: Tensor, examples: int, clip: Clip, views: int) -> None:
        if self.recurrent and isinstance(clip, Balls):
            raise NoClippingRule("the weights of an LSTM have no separate norms")
        broken, factors = factors_of(self.pass_squares(x, y, views), clip, examples)
        if broken is not None:
            for name in self.seen:
                self.rules[name].blank(broken)
            for key in self.runs:
                self.recurrent[key].blank(broken)
        for name in self.seen:
            own = {tensor: factors(tensor_name(name, tensor)) for tensor in self.rules[name].gradient}
            self.rules[name].add_clipped(own)
        for key in self.runs:
            self.recurrent[key].add_clipped(factors(""))


def tensor_name(layer: str, tensor: str) -> str:
    """Return the name of a layer's tensor in the model."""
    return f"{layer}.{tensor}".lstrip(".")


def named_norms(layer: str, norms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a layer's norms under the full names of its tensors."""
    return {tensor_name(layer, tensor): square for tensor, square in norms.items()}
