"""Recurrent layers as sites: written out step by step, so that the gradient of every gate can be read.

With gates_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh both matrices' gradients are sums over t of outer products of the
gates' gradient with x_t and h_{t-1}. torch's fused layers do not give the gates' gradients, and taken apart into single
operations cost three times as much.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from sightline.models.certificate import BatchAxis
from sightline.training.fast.autograd_worker import NoClippingRule, run_lstm
from sightline.training.fast.graph_records import OuterProducts
from sightline.training.fast.graph_tape import Site, Use, add_site


@dataclass(frozen=True, eq=False)
class Direction:
    """One direction of one layer: the nodes of its tensors (W_ih, W_hh, b_ih, b_hh), those that are trained."""

    site: Site
    nodes: Sequence[fx.Node]

    def use(self, place: int, record: Any) -> Iterable[Use]:
        """The record of one of its tensors; nothing for one that is fixed or absent."""
        node = self.nodes[place] if place < len(self.nodes) else None
        return [(node, record)] if node is not None and node in self.site.trained else []


Walk = Callable[[Direction, Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]
"""(direction, inputs (B, T, K) in its order, its tensors, its first states) -> (all states, last states ...)."""


@add_site("lstm.input")
def lstm_site(site: Site) -> Callable[..., Any]:
    """An LSTM of several layers and directions."""
    return unrolled_site(site, walk_lstm, states=2)


@add_site("gru.input")
def gru_site(site: Site) -> Callable[..., Any]:
    """A GRU of several layers and directions."""
    return unrolled_site(site, walk_gru, states=1)


def unrolled_site(site: Site, walk: Walk, *, states: int) -> Callable[..., Any]:
    """The layers one after the other, their directions beside each other; `states`: h, or h and c."""
    nodes, width = site.nodes["params"], 4 if site.nodes["has_biases"] else 2
    count = site.nodes["num_layers"] * (2 if site.nodes["bidirectional"] else 1)
    first = bool(site.nodes["batch_first"])
    if site.is_trained("input") or len(nodes) != count * width or site.axis != BatchAxis(0 if first else 1):
        raise NoClippingRule(f"no clipping rule for this {site.node.target}")
    ways = count // site.nodes["num_layers"]

    def run(**given: Any) -> tuple[Tensor, ...]:
        x = given["input"] if first else given["input"].transpose(0, 1)
        starts = given["hx"] if isinstance(given["hx"], list | tuple) else [given["hx"]]
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(0, count, ways):
            outputs = []
            for place in range(layer, layer + ways):
                own = slice(place * width, (place + 1) * width)
                back, tensors = place > layer, [one.detach() for one in given["params"][own]]
                begin = [one[place] for one in starts]
                seen, *end = walk(Direction(site, nodes[own]), x.flip(1) if back else x, tensors, begin)
                outputs.append(seen.flip(1) if back else seen)
                ends.append(tuple(end))
            x = torch.cat(outputs, 2) if ways > 1 else outputs[0]
            if given["dropout"] and given["train"] and layer + ways < count:
                x = functional.dropout(x, given["dropout"])
        last = [torch.stack([end[index] for end in ends]) for index in range(states)]
        return (x if first else x.transpose(0, 1), *last)

    return run


def walk_lstm(
    direction: Direction, x: Tensor, tensors: Sequence[Tensor], begin: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """One direction of an LSTM layer, as `AutogradWorker` runs it."""
    bias = tensors[2] + tensors[3] if len(tensors) == 4 else None
    ran = run_lstm(x, tensors[0], tensors[1], bias, begin)

    def read(g: Tensor) -> Iterable[Use]:
        yield from direction.use(0, OuterProducts(x.detach(), g))
        yield from direction.use(1, OuterProducts(ran.before, g))
        for place in (2, 3):
            yield from direction.use(place, g.sum(1))

    direction.site.tape.keep(ran.gates, read)
    return ran.states, ran.hidden, ran.cell


def walk_gru(direction: Direction, x: Tensor, tensors: Sequence[Tensor], begin: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One direction of a GRU layer: r, z = sigmoid(i + s), n = tanh(i_n + r s_n), h' = (1 - z) n + z h."""
    tape, (h,) = direction.site.tape, begin
    inner = functional.linear(x, tensors[0], tensors[2] if len(tensors) == 4 else None)

    def read_inputs(g: Tensor) -> Iterable[Use]:
        yield from direction.use(0, OuterProducts(x.detach(), g))
        yield from direction.use(2, g.sum(1))

    def reader(before: Tensor) -> Callable[[Tensor], Iterable[Use]]:
        def read_states(g: Tensor) -> Iterable[Use]:
            yield from direction.use(1, OuterProducts(before.unsqueeze(1), g.unsqueeze(1)))
            yield from direction.use(3, g)

        return read_states

    seen = []
    for own in tape.keep(inner, read_inputs).unbind(1):
        recurrent = functional.linear(h, tensors[1], tensors[3] if len(tensors) == 4 else None)
        reset, update, new = tape.keep(recurrent, reader(h.detach())).chunk(3, 1)
        in_reset, in_update, in_new = own.chunk(3, 1)
        reset, update = torch.sigmoid(in_reset + reset), torch.sigmoid(in_update + update)
        candidate = torch.tanh(in_new + reset * new)
        h = candidate + update * (h - candidate)
        seen.append(h)
    return torch.stack(seen, 1), h
