"""Clipping rules of the operations in a certified graph; recurrent layers are unrolled step by step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from sightline.models.certificate import BatchAxis
from sightline.training.fast.autograd_worker import NoClippingRule, run_lstm
from sightline.training.fast.graph_tape import OperationSite, Use, add_site, examples_first
from sightline.training.fast.per_example_norms import OuterProducts, Record, TableRows, gram_pays


@dataclass(frozen=True, eq=False)
class Direction:
    """One direction of one recurrent layer: the nodes of its tensors (W_ih, W_hh, b_ih, b_hh)."""

    site: OperationSite
    nodes: Sequence[fx.Node]

    def use(self, index: int, record: Any) -> Iterable[Use]:
        """Return the record of one of its tensors; nothing for one that is fixed or absent."""
        node = self.nodes[index] if index < len(self.nodes) else None
        return [(node, record)] if node is not None and node in self.site.trained else []


Walk = Callable[[Direction, Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]
"""(direction, inputs (B, T, K) in its order, its tensors, its first states) -> (all states, last states ...)."""


@add_site("lstm.input")
def lstm_site(site: OperationSite) -> Callable[..., Any]:
    """Return the rule of an LSTM with any number of layers and directions."""
    return unrolled_site(site, walk_lstm, states=2)


@add_site("gru.input")
def gru_site(site: OperationSite) -> Callable[..., Any]:
    """Return the rule of a GRU with any number of layers and directions."""
    return unrolled_site(site, walk_gru, states=1)


def unrolled_site(site: OperationSite, walk: Walk, *, states: int) -> Callable[..., Any]:
    """Return a run of all layers in order with their directions; `states` is 1 for h, 2 for h and c."""
    nodes, width = site.nodes["params"], 4 if site.nodes["has_biases"] else 2
    count = site.nodes["num_layers"] * (2 if site.nodes["bidirectional"] else 1)
    first = bool(site.nodes["batch_first"])
    # Refuse what the unrolled loop does not cover: the caller then differentiates one example at a time.
    if site.is_trained("input") or len(nodes) != count * width or site.axis != BatchAxis(0 if first else 1):
        raise NoClippingRule(f"no clipping rule for this {site.node.target}")
    ways = count // site.nodes["num_layers"]

    def run(**given: Any) -> tuple[Tensor, ...]:
        x = given["input"] if first else given["input"].transpose(0, 1)
        starts = given["hx"] if isinstance(given["hx"], list | tuple) else [given["hx"]]
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(0, count, ways):
            outputs = []
            for direction in range(layer, layer + ways):
                own = slice(direction * width, (direction + 1) * width)
                back, tensors = direction > layer, [tensor.detach() for tensor in given["params"][own]]
                begin = [state[direction] for state in starts]
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
    """Run one direction of an LSTM layer, as `AutogradWorker` does."""
    bias = tensors[2] + tensors[3] if len(tensors) == 4 else None
    ran = run_lstm(x, tensors[0], tensors[1], bias, begin)

    def read(g: Tensor) -> Iterable[Use]:
        yield from direction.use(0, OuterProducts(x.detach(), g))
        yield from direction.use(1, OuterProducts(ran.before, g))
        for index in (2, 3):
            yield from direction.use(index, g.sum(1))

    direction.site.tape.keep(ran.gates, read)
    return ran.states, ran.hidden, ran.cell


def walk_gru(direction: Direction, x: Tensor, tensors: Sequence[Tensor], begin: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run one direction of a GRU layer: r, z = sigmoid(i + s), n = tanh(i_n + r s_n), h' = (1 - z) n + z h."""
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


Run = Callable[..., Any]


def kept_site(site: OperationSite, uses: Callable[[dict[str, Any], Tensor], Iterable[Use]]) -> Run:
    """Return a run of the operation that keeps its output and records `uses(arguments, output gradient)`."""

    def run(**given: Any) -> Tensor:
        fixed = {name: value.detach() if isinstance(value, Tensor) else value for name, value in given.items()}
        return site.tape.keep(site.call(given), lambda g: uses(fixed, g))

    return run


def need_fixed(site: OperationSite, *names: str) -> None:
    """Raise if any of these arguments is a trained value."""
    for name in names:
        if site.is_trained(name):
            raise NoClippingRule(f"no clipping rule for a trained {name} in {site.node.target}")


# -- products --------------------------------------------------------------------------------------------------------


@add_site("linear")
def linear_site(site: OperationSite) -> Run:
    """Return the rule of x W^T + b: outer products at every position, packed attention projections included."""
    need_fixed(site, "input")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        g = site.positions(g)
        yield from site.use("weight", OuterProducts(site.positions(given["input"]), g))
        yield from site.use("bias", g.sum(1))

    return kept_site(site, uses)


@add_site("addmm")
def addmm_site(site: OperationSite) -> Run:
    """Return the rule of beta b + alpha x W."""
    need_fixed(site, "mat1")
    if site.axis_of("mat1") is None:
        raise NoClippingRule("no clipping rule for a trained first factor in aten.addmm")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        g = site.positions(g)
        if site.is_trained("mat2"):
            yield from site.use("mat2", OuterProducts(g * given["alpha"], site.positions(given["mat1"])))
        if site.is_trained("self"):
            rows = g.sum(1) * given["beta"]
            yield from site.use("self", sum_to_shape(rows, tuple(given["self"].shape)))

    return kept_site(site, uses)


def sum_to_shape(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return rows (B, O) of a bias that is a vector, a row, or one number for all."""
    if shape and shape[-1] == rows.shape[1]:
        return rows.reshape(len(rows), *shape)
    return rows.sum(1).reshape(len(rows), *shape)


@add_site("mm matmul bmm")
def product_site(site: OperationSite) -> Run:
    """Return the rule of a product of a batch with a trained matrix, from either side."""
    left, right = [name for name in site.nodes if name in ("self", "mat2", "other", "tensor1", "tensor2")][:2]
    if site.is_trained(left):
        return left_product(site, left, right)
    weight = site.nodes[right].meta["val"]
    if weight.dim() > 2:
        return batched_product(site, left, right)

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        a = site.positions(given[left], site.axis_of(left))
        if weight.dim() == 1:
            g = g.unsqueeze(-1)
            yield from site.use(right, torch.bmm(site.positions(g).transpose(1, 2), a).squeeze(1))
        else:
            yield from site.use(right, OuterProducts(site.positions(g), a))

    return kept_site(site, uses)


def left_product(site: OperationSite, left: str, right: str) -> Run:
    """Return the rule of W x, as the transposed product x^T W^T."""
    axis = site.axis_of(right)
    if site.nodes[left].meta["val"].dim() != 2 or site.nodes[right].meta["val"].dim() < 2 or axis is None:
        return batched_product(site, right, left)
    turned = turn_axis(axis, site.nodes[right].meta["val"].dim()), turn_axis(site.axis, site.rank)

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        a = site.positions(given[right].transpose(-1, -2), turned[0])
        yield from site.use(left, OuterProducts(a, site.positions(g.transpose(-1, -2), turned[1])))

    return kept_site(site, uses)


def turn_axis(axis: BatchAxis, rank: int) -> BatchAxis:
    """Return the batch axis after the last two axes are swapped."""
    last = {rank - 1: rank - 2, rank - 2: rank - 1}
    return BatchAxis(last.get(axis.dim, axis.dim), axis.before, axis.after)


def batched_product(site: OperationSite, batch: str, weight: str) -> Run:
    """Return the rule of a stack of matrices: spread over the batch if it is a stack axis, else outer products."""
    if site.axis.dim < site.rank - 2:
        return spread_site(site)
    stack, axis = site.nodes[weight].meta["val"], site.axis_of(batch)
    same = stack.shape[:-2] == site.node.meta["val"].shape[:-2] and site.nodes[batch].meta["val"].dim() == site.rank
    if site.is_trained("self") or axis is None or axis.dim != site.rank - 2 or not same:
        raise NoClippingRule(f"no clipping rule for a stack of trained matrices in {site.node.target}")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        a, g = (
            examples_first(factor, axis, site.tape.batch).reshape(
                site.tape.batch, *stack.shape[:-2], -1, factor.shape[-1]
            )
            for factor in (given[batch], g)
        )
        yield from site.use(weight, torch.matmul(a.transpose(-1, -2), g))

    return kept_site(site, uses)


# -- tables ----------------------------------------------------------------------------------------------------------


@add_site("embedding")
def embedding_site(site: OperationSite) -> Run:
    """Return the rule of a table lookup at the tokens of every example."""
    axis, padding = site.axis_of("indices"), site.nodes["padding_idx"]
    if axis is None or site.nodes["scale_grad_by_freq"] or site.nodes["sparse"]:
        raise NoClippingRule("no clipping rule for this lookup")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        tokens = examples_first(given["indices"], axis, site.tape.batch).reshape(site.tape.batch, -1)
        g = site.positions(g)
        # torch gives the padding row no gradient, so neither does the record.
        if padding >= 0:
            g = torch.where((tokens == padding)[..., None], torch.zeros_like(g), g)
        yield from site.use("weight", TableRows(tokens, g))

    return kept_site(site, uses)


@add_site("index.Tensor index_select")
def index_site(site: OperationSite) -> Run:
    """Return the rule of a hand-written lookup, table[tokens]."""
    listed = site.nodes.get("indices")
    name = "index" if listed is None else "indices"
    node = site.nodes["index"] if listed is None else listed[0]
    axis = site.axes.get(node) if node is not None else None
    plain = site.nodes["dim"] == 0 if listed is None else len(listed) == 1
    table = site.nodes["self"].meta["val"]
    if not plain or not isinstance(axis, BatchAxis) or table.dim() != 2 or not site.is_trained("self"):
        raise NoClippingRule(f"no clipping rule for trained values in {site.node.target}")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        index = given[name] if listed is None else given[name][0]
        tokens = examples_first(index, axis, site.tape.batch).reshape(site.tape.batch, -1)
        # Negative indices count from the end of the table.
        tokens = torch.where(tokens < 0, tokens + table.shape[0], tokens)
        yield from site.use("self", TableRows(tokens, site.positions(g)))

    return kept_site(site, uses)


# -- normalisation ---------------------------------------------------------------------------------------------------


@add_site("layer_norm rms_norm")
def layer_norm_site(site: OperationSite) -> Run:
    """Return the rule of scale and shift over the last axes."""
    need_fixed(site, "input")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        shape = list(given["normalized_shape"])
        whole = (site.tape.batch, -1, *shape)
        parts = examples_first(g, site.axis, site.tape.batch).reshape(whole)
        if site.is_trained("weight"):
            if "bias" in given:
                x = functional.layer_norm(given["input"], shape, eps=given["eps"])
            else:
                x = functional.rms_norm(given["input"], shape, eps=given["eps"])
            x = examples_first(x, site.axis, site.tape.batch).reshape(whole)
            yield from site.use("weight", (parts * x).sum(1))
        if "bias" in given:
            yield from site.use("bias", parts.sum(1))

    return kept_site(site, uses)


@add_site("group_norm instance_norm")
def channel_norm_site(site: OperationSite) -> Run:
    """Return the rule of scale and shift per channel."""
    need_fixed(site, "input")
    if site.axis != BatchAxis(0):
        raise NoClippingRule(f"no clipping rule for {site.node.target} with the batch on another axis than the first")

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        x, channels = given["input"], g.shape[1]
        parts = g.reshape(len(g), channels, -1)
        if site.is_trained("weight"):
            groups = given.get("num_groups", channels)
            x = functional.group_norm(x, groups, eps=given["eps"]).reshape(len(g), channels, -1)
            yield from site.use("weight", (parts * x).sum(2))
        yield from site.use("bias", parts.sum(2))

    return kept_site(site, uses)


# -- convolutions ----------------------------------------------------------------------------------------------------


@add_site("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution_site(site: OperationSite) -> Run:
    """Return the rule of a convolution: one grouped convolution, or patches where Gram matrices are cheaper."""
    need_fixed(site, "input")
    weight = site.nodes["weight"].meta["val"]
    kernel = tuple(weight.shape[2:])
    if site.axis != BatchAxis(0) or site.rank != weight.dim():
        raise NoClippingRule(f"no clipping rule for {site.node.target} with the batch on another axis than the first")
    how = convolution_settings(site, kernel)
    inputs, outputs = kernel_size(weight), int(weight.shape[0])
    plain = len(kernel) == 2 and how["groups"] == 1 and not how["transposed"]

    def uses(given: dict[str, Any], g: Tensor) -> Iterable[Use]:
        positions = g[0, 0].numel()
        if site.is_trained("weight"):
            if plain and gram_pays(positions, inputs, outputs):
                patches = functional.unfold(given["input"], kernel, how["dilation"], how["padding"], how["stride"])
                record: Record = OuterProducts(patches.transpose(1, 2), g.flatten(2).transpose(1, 2))
            else:
                record = kernel_rows(given["input"], g, tuple(weight.shape), how)
            yield from site.use("weight", record)
        yield from site.use("bias", g.reshape(len(g), g.shape[1], -1).sum(2))

    return kept_site(site, uses)


def kernel_size(weight: Tensor) -> int:
    """Return the size of one output channel's kernel."""
    return int(weight[0].numel())


def convolution_settings(site: OperationSite, kernel: tuple[int, ...]) -> dict[str, Any]:
    """Return stride, padding, dilation and output padding as lists, groups, and whether it is transposed."""
    given, axes = site.nodes, len(kernel)
    transposed = bool(given.get("transposed", "output_padding" in given))
    spread = {name: one_each(given.get(name, 0), axes) for name in ("stride", "dilation", "output_padding")}
    padding = given["padding"]
    if isinstance(padding, str):
        wide = [dilation * (size - 1) for dilation, size in zip(spread["dilation"], kernel, strict=True)]
        if padding == "same" and any(width % 2 for width in wide):
            raise NoClippingRule('no clipping rule for padding="same" of an even kernel')
        padding = [width // 2 for width in wide] if padding == "same" else [0] * axes
    return {**spread, "padding": one_each(padding, axes), "groups": given["groups"], "transposed": transposed}


def one_each(value: int | list[int] | tuple[int, ...], axes: int) -> list[int]:
    """Return one number per axis."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    return listed * axes if len(listed) == 1 else listed


def kernel_rows(x: Tensor, g: Tensor, shape: tuple[int, ...], how: dict[str, Any]) -> Tensor:
    """Return (B, *weight) gradients: all examples as groups of one convolution."""
    batch = len(x)
    rows: Tensor = torch.ops.aten.convolution_backward(
        g.contiguous().view(1, batch * g.shape[1], *g.shape[2:]),
        x.contiguous().view(1, batch * x.shape[1], *x.shape[2:]),
        x.new_empty(batch * shape[0], *shape[1:]),
        None,
        how["stride"],
        how["padding"],
        how["dilation"],
        how["transposed"],
        how["output_padding"],
        batch * how["groups"],
        [False, True, False],
    )[1]
    return rows.view(batch, *shape)


# -- element by element ----------------------------------------------------------------------------------------------

SPREADING = """
add sub mul div true_divide rsub pow minimum maximum where masked_fill lerp addcmul addcdiv atan2 fmin fmax clamp
clamp_min clamp_max expand expand_as hypot logaddexp logaddexp2 copysign xlogy heaviside remainder fmod
"""
"""Operations that broadcast their operands: a bare parameter, a position, a scale."""


@add_site(SPREADING)
def spread_site(site: OperationSite) -> Run:
    """Return the rule of a trained value broadcast against a batch: repeated per example, kept apart by autograd."""
    names, axis, rank = site.trained_names(), site.axis, site.rank
    if len(names) != len(site.trained):
        raise NoClippingRule(f"no clipping rule for a list of trained values in {site.node.target}")

    def run(**given: Any) -> Any:
        for name in names:
            given[name] = spread_value(site, name, given[name].detach(), axis, rank)
        return site.node.target(**given)  # type: ignore[operator]

    return run


def spread_value(site: OperationSite, name: str, value: Tensor, axis: BatchAxis, rank: int) -> Tensor:
    """Return the value repeated for every example along the batch axis, kept on the tape."""
    batch, shape = site.tape.batch, tuple(value.shape)
    whole = [1] * (rank - value.dim()) + list(shape)
    whole[axis.dim] = batch * axis.before * axis.after
    spread = value.reshape([1] * (rank - value.dim()) + list(shape)).expand(whole)

    def read(g: Tensor) -> Iterable[Use]:
        parts = g.reshape(*g.shape[: axis.dim], axis.before, batch, axis.after, *g.shape[axis.dim + 1 :])
        rows = parts.sum((axis.dim, axis.dim + 2)) if axis.before * axis.after > 1 else parts
        rows = rows.movedim(axis.dim if axis.before * axis.after > 1 else axis.dim + 1, 0)
        return site.use(name, rows.reshape(batch, *shape))

    return site.tape.keep(spread, read)


@add_site("einsum")
def einsum_site(site: OperationSite) -> Run:
    """Return the rule of einsum: a trained operand gets the batch's letter and is repeated per example."""
    inputs, arrow, result = site.nodes["equation"].replace(" ", "").partition("->")
    terms, operands = inputs.split(","), site.nodes["tensors"]
    letters = {
        terms[index][axis.dim]
        for index, node in enumerate(operands)
        if isinstance(axis := site.axes[node], BatchAxis) and axis.before == axis.after == 1
    }
    own = [index for index, node in enumerate(operands) if node in site.trained]
    letter = letters.pop() if len(letters) == 1 and arrow and "." not in inputs else ""
    if not letter or any(letter in terms[index] for index in own):
        raise NoClippingRule(f"no clipping rule for {site.nodes['equation']!r} in {site.node.target}")
    spread = ",".join(letter + term if index in own else term for index, term in enumerate(terms))

    def run(**given: Any) -> Tensor:
        tensors = list(given["tensors"])
        for index in own:
            value = tensors[index].detach()
            repeated = value.expand(site.tape.batch, *value.shape)
            tensors[index] = site.tape.keep(repeated, lambda g, node=operands[index]: [(node, g)])  # type: ignore[misc]
        return torch.einsum(f"{spread}->{result}", tensors)

    return run


@add_site("scaled_dot_product_attention")
def attention_site(site: OperationSite) -> Run:
    """Return the rule of attention with a trained bias of the scores, or trained queries, keys or values."""
    if site.axis.dim >= site.rank - 2:
        raise NoClippingRule("no clipping rule for attention over the batch")
    return spread_site(site)


@add_site("prelu")
def prelu_site(site: OperationSite) -> Run:
    """Return the rule of PReLU with one slope, or one per channel."""
    need_fixed(site, "self")
    axis, rank = site.axis, site.rank
    if axis.dim == 1:
        raise NoClippingRule("no clipping rule for slopes beside the batch")

    def run(**given: Any) -> Tensor:
        x, slopes = given["self"], given["weight"].detach()
        shape = [1] * rank
        shape[1 if rank > 1 and slopes.numel() > 1 else 0] = slopes.numel()
        spread = spread_value(site, "weight", slopes.reshape(shape), axis, rank)
        return torch.where(x > 0, x, spread * x)

    return run
