"""Rewrite a certified graph for ghost clipping: one backward pass that records every use of a trained tensor.

Every value of a certified graph holds the batch on a known axis or is batch-free. A trained tensor is batch-free, and
so is what is computed from trained tensors alone (a weight-normed matrix, merged LoRA factors): these are *trained
values*. A gradient can only reach them where a node takes one of them and returns a value with the batch: a *site*. The
rewritten graph runs each site with its trained values detached and keeps the site's output. Autograd then gives the
gradients of all these outputs at once, and each site's rule (`graph_rules`) turns input and output gradient into the
records of `per_example_norms`. No gradient of a weight is ever summed over the batch.

For a trained value that is not itself a tensor of the model, gradients are instantiated in its own space and carried on
to the tensors it was computed from by its own autograd graph, example by example
(`torch.autograd.grad(is_grads_batched=True)`).
"""

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from sightline.models.certificate import BatchAxis, CertifiedGraph
from sightline.training.fast.autograd_worker import NoClippingRule
from sightline.training.fast.per_example_norms import OuterProducts, Record, TableRows, instantiate_rows, join_views

Given = dict[str, Any]
"""Arguments of an operation by the names of its schema."""
Use = tuple[fx.Node, Record]
"""A trained value and what one of its sites recorded for it."""
Reader = Callable[[Tensor], Iterable[Use]]
"""Gradient of a kept output -> the records of its site."""

WITHOUT_DROPOUT: dict[str, tuple[str, Any]] = {
    "dropout": ("train", False),
    "native_dropout": ("train", False),
    "alpha_dropout": ("train", False),
    "feature_dropout": ("train", False),
    "feature_alpha_dropout": ("train", False),
    "scaled_dot_product_attention": ("dropout_p", 0.0),
    "lstm": ("dropout", 0.0),
    "gru": ("dropout", 0.0),
}
"""Operation -> the argument that turns its dropout off."""


@dataclass(eq=False)
class Tape:
    """Outputs, readers and values of one pass of a chunk."""

    batch: int = 0
    outputs: list[Tensor] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    values: dict[fx.Node, Tensor] = field(default_factory=dict)
    """Trained values that are not tensors of the model, with their autograd graph."""
    lookups: dict[fx.Node, Tensor] = field(default_factory=dict)
    """The fixed tokens at which a table was looked up."""

    def begin(self, batch: int) -> None:
        """Drop the last pass."""
        self.batch = batch
        for kept in (self.outputs, self.readers, self.values, self.lookups):
            kept.clear()

    def keep(self, output: Tensor, reader: Reader) -> Tensor:
        """Keep a site's output, whose gradient is needed, with its reader; return the output."""
        if not output.requires_grad:
            output.requires_grad_()
        self.outputs.append(output)
        self.readers.append(reader)
        return output


@dataclass(frozen=True, eq=False)
class OperationSite:
    """A node that takes trained values and returns a value with the batch."""

    tape: Tape
    node: fx.Node
    nodes: Mapping[str, Any]
    """The node's arguments by name."""
    trained: frozenset[fx.Node]
    axes: Mapping[fx.Node, Any]

    @property
    def axis(self) -> BatchAxis:
        """The batch axis of the (first) output."""
        result = self.axes[self.node]
        result = result[0] if isinstance(result, tuple) else result
        if not isinstance(result, BatchAxis):
            raise NoClippingRule(f"{self.node.target} has no batch axis")
        return result

    @property
    def rank(self) -> int:
        """The number of dimensions of the output."""
        return int(self.node.meta["val"].dim())

    def axis_of(self, name: str) -> BatchAxis | None:
        """Return the batch axis of an argument, or None."""
        node = self.nodes[name]
        result = self.axes.get(node) if isinstance(node, fx.Node) else None
        return result if isinstance(result, BatchAxis) else None

    def is_trained(self, name: str) -> bool:
        """Return whether this argument is a trained value."""
        return isinstance(self.nodes[name], fx.Node) and self.nodes[name] in self.trained

    def trained_names(self) -> list[str]:
        """Return the arguments that are trained values, without those inside lists."""
        return [name for name in self.nodes if self.is_trained(name)]

    def call(self, given: Given) -> Any:
        """Run the operation with its trained values detached."""
        own = self.trained_names()
        fixed = {name: value.detach() if name in own else value for name, value in given.items()}
        return self.node.target(**fixed)  # type: ignore[operator]

    def use(self, name: str, record: Record) -> Iterable[Use]:
        """Return the record of a trained argument; nothing for a fixed one."""
        return [(self.nodes[name], record)] if self.is_trained(name) else []

    def positions(self, value: Tensor, axis: BatchAxis | None = None) -> Tensor:
        """Return (..., K) as (B, P, K)."""
        return positions_of(value, axis or self.axis, self.tape.batch)


def examples_first(value: Tensor, axis: BatchAxis, batch: int) -> Tensor:
    """Return the value with the batch as first axis: (B, leading axes, before, after, trailing axes)."""
    shape = value.shape
    parts = value.reshape(*shape[: axis.dim], axis.before, batch, axis.after, *shape[axis.dim + 1 :])
    return parts.movedim(axis.dim + 1, 0)


def positions_of(value: Tensor, axis: BatchAxis, batch: int) -> Tensor:
    """Return (..., K) as (B, P, K); the last axis is not the batch."""
    if axis == BatchAxis(0):
        return value.reshape(batch, -1, value.shape[-1])
    return examples_first(value, axis, batch).reshape(batch, -1, value.shape[-1])


Rule = Callable[[OperationSite], Callable[..., Any]]
"""OperationSite -> what runs in its place, with the operation's arguments by name."""
SITES: dict[str, Rule] = {}
"""Operation, with or without its overload -> the rule of its sites."""


def add_site(names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule for operations of `torch.ops.aten`."""

    def register(rule: Rule) -> Rule:
        for name in names.split():
            SITES[name] = rule
        return rule

    return register


def operation_name(node: fx.Node) -> str:
    """Return the name of an ATen operation without its overload."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).partition("::")[2]


def arguments_of(node: fx.Node) -> Given:
    """Return all arguments of an ATen operation by name, defaults included."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return defaults | given | dict(node.kwargs)


def holds_batch(tags: Any) -> bool:
    """Return whether a node's value, or one of its values, holds the batch."""
    return any(isinstance(tag, BatchAxis) for tag in (tags if isinstance(tags, tuple) else (tags,)))


@dataclass(frozen=True)
class Origin:
    """The model tensor that a trained value equals: itself, transposed, or its rows at fixed tokens."""

    name: str
    flipped: bool = False
    lookup: bool = False


class RecordingGraph:
    """A certified graph that records its sites; see the module.

    Raises `NoClippingRule` if a trained value is used where no rule is known.
    """

    def __init__(self, certified: CertifiedGraph, trained: Iterable[str], *, dropout: bool = True) -> None:
        names = set(trained)
        self.certified, self.tape = certified, Tape()
        self.tensors = {node: name for node, name in certified.parameters.items() if name in names}
        self.trained = trained_values(certified, self.tensors)
        self.origins = {node: result for node in self.trained if (result := self.find_origin(node)) is not None}
        self.loops: set[fx.Node] = set()
        self.module = copy_graph(certified, self.place_site, dropout=dropout)

    def place_site(self, node: fx.Node) -> tuple[Callable[..., Any], Given] | None:
        """Return what runs in place of a node and its arguments; None for the node itself."""
        if node.op != "call_function" or node in self.tensors:
            return None
        own = [source for source in node.all_input_nodes if source in self.trained]
        if not own:
            return None
        origin = self.origins.get(node)
        if origin is not None and origin.lookup:
            return self.keep_lookup(node), arguments_of(node)
        if not holds_batch(self.certified.axes[node]):
            return None
        name = operation_name(node)
        rule = SITES.get(str(node.target).removeprefix("aten.")) or SITES.get(name)
        # Without a rule there is no safe default: a use that is not recorded would be missing from the norm.
        if rule is None:
            raise NoClippingRule(f"no clipping rule for trained values in {node.target}")
        arguments = arguments_of(node)
        site = OperationSite(self.tape, node, arguments, frozenset(own), self.certified.axes)
        return self.keep_values(rule(site), arguments, own), arguments

    def keep_values(self, run: Callable[..., Any], arguments: Given, own: Sequence[fx.Node]) -> Callable[..., Any]:
        """Return the site's rule, which also keeps trained values that are not tensors of the model."""
        made = [node for node in own if node not in self.origins]
        named = {name: value for name, value in arguments.items() if isinstance(value, fx.Node) and value in made}
        listed = {
            (name, index): node
            for name, value in arguments.items()
            if isinstance(value, list | tuple)
            for index, node in enumerate(value)
            if isinstance(node, fx.Node) and node in made
        }
        if not made:
            return run

        def run_site(**given: Any) -> Any:
            for name, node in named.items():
                self.tape.values[node] = given[name]
            for (name, index), node in listed.items():
                self.tape.values[node] = given[name][index]
            return run(**given)

        return run_site

    def keep_lookup(self, node: fx.Node) -> Callable[..., Any]:
        """Return a table lookup at fixed tokens that keeps the tokens."""

        def run_lookup(**given: Any) -> Any:
            self.tape.lookups[node] = given["indices"]
            return node.target(**given)  # type: ignore[operator]

        return run_lookup

    def find_origin(self, node: fx.Node) -> Origin | None:
        """Return the model tensor that a trained value equals, up to a transposition or a lookup of fixed rows."""
        if node in self.tensors:
            return Origin(self.tensors[node])
        name, arguments = (
            operation_name(node),
            arguments_of(node) if node.op == "call_function" and operation_name(node) else {},
        )
        before = self.find_origin(arguments["self"]) if name in ("t", "transpose", "permute", "alias") else None
        if before is not None and not before.lookup and node.meta["val"].dim() == 2:
            return Origin(before.name, before.flipped != swaps_axes(name, arguments))
        if name != "embedding" or arguments["padding_idx"] != -1 or arguments["indices"] in self.trained:
            return None
        table = self.find_origin(arguments["weight"])
        return Origin(table.name, lookup=True) if table is not None and not (table.flipped or table.lookup) else None

    def run(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the output of a chunk; `tensors` are all parameters and buffers by name."""
        self.tape.begin(len(x))
        self.leaves = {name: tensors[name].detach().requires_grad_() for name in self.tensors.values()}
        output: Tensor = self.module(*feed_graph(self.certified, {**tensors, **self.leaves}, x))[0]
        return output

    def records(self, losses: Tensor, views: int = 1) -> dict[str, list[Record]]:
        """Run one backward pass; return every use of every trained tensor, with views joined into examples."""
        # Summing the losses is safe: the certificate proves that the rows of every kept output belong to one example
        # each.
        gradients = torch.autograd.grad(losses.sum(), self.tape.outputs, allow_unused=True)
        uses: dict[fx.Node, list[Record]] = {}
        with torch.no_grad():
            for reader, gradient in zip(self.tape.readers, gradients, strict=True):
                for node, record in () if gradient is None else reader(gradient):
                    uses.setdefault(node, []).append(join_views(record, views))
        result: dict[str, list[Record]] = {}
        for node, records in uses.items():
            for name, record in self.carry_on(node, records):
                result.setdefault(name, []).append(record)
        self.tape.begin(0)
        return result

    def carry_on(self, node: fx.Node, records: list[Record]) -> Iterable[tuple[str, Record]]:
        """Return records of the model tensors that a trained value equals or was computed from."""
        origin = self.origins.get(node)
        if origin is not None and not origin.lookup:
            return [(origin.name, flip_record(record, node) if origin.flipped else record) for record in records]
        shape = tuple(node.meta["val"].shape)
        with torch.no_grad():
            rows = sum(instantiate_rows(record, shape) for record in records)
        if not isinstance(rows, Tensor):
            return []
        if origin is not None:
            tokens = self.tape.lookups[node].reshape(1, -1).expand(len(rows), -1)
            return [(origin.name, TableRows(tokens, rows.reshape(len(rows), tokens.shape[1], -1)))]
        value = self.tape.values[node]
        return self.pull_back(node, value, rows.to(value.dtype)) if value.requires_grad else []

    def pull_back(self, node: fx.Node, value: Tensor, rows: Tensor) -> Iterable[tuple[str, Record]]:
        """Return gradients of the tensors that a value was computed from, example by example."""
        names = list(self.leaves)
        leaves = [self.leaves[name] for name in names]
        if node not in self.loops:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    parts = torch.autograd.grad(
                        value, leaves, rows, retain_graph=True, allow_unused=True, is_grads_batched=True
                    )
                return [(name, part) for name, part in zip(names, parts, strict=True) if part is not None]
            except Exception:
                # torch cannot batch one of the operations: continue with one example after the other.
                self.loops.add(node)
        single = [torch.autograd.grad(value, leaves, row, retain_graph=True, allow_unused=True) for row in rows]
        return [
            (name, torch.stack([row[index] for row in single]))
            for index, name in enumerate(names)
            if single[0][index] is not None
        ]

    def activation_numbers(self) -> int:
        """Return how many numbers one example takes between the nodes."""
        return sum(numbers_of(node, tags) for node, tags in self.certified.axes.items() if holds_batch(tags))


def swaps_axes(name: str, arguments: Given) -> bool:
    """Return whether an operation on a matrix swaps its two axes."""
    if name == "transpose":
        return bool(arguments["dim0"] % 2 != arguments["dim1"] % 2)
    if name == "permute":
        return [dim % 2 for dim in arguments["dims"]] == [1, 0]
    return name == "t"


def flip_record(record: Record, node: fx.Node) -> Record:
    """Return the record of a transposed tensor as one of the tensor itself."""
    if isinstance(record, OuterProducts):
        return record.flipped()
    return instantiate_rows(record, tuple(node.meta["val"].shape)).transpose(1, 2)


def trained_values(certified: CertifiedGraph, tensors: Mapping[fx.Node, str]) -> set[fx.Node]:
    """Return the batch-free values that depend on a trained tensor."""
    result = set(tensors)
    for node in certified.exported.graph.nodes:
        free = node.op == "call_function" and not holds_batch(certified.axes[node])
        if free and any(source in result for source in node.all_input_nodes):
            result.add(node)
    return result


def numbers_of(node: fx.Node, tags: Any) -> int:
    """Return how many numbers of a node's value belong to one example."""
    values = node.meta["val"]
    if not isinstance(values, tuple | list):
        values, tags = [values], [tags]
    elif not isinstance(tags, tuple):
        tags = [tags] * len(values)
    if node.target is operator.getitem:
        return 0
    return sum(
        axis.before * axis.after * prod(int(size) for dim, size in enumerate(value.shape) if dim != axis.dim)
        for value, axis in zip(values, tags, strict=True)
        if isinstance(axis, BatchAxis) and isinstance(value, Tensor)
    )


Placement = Callable[[fx.Node], tuple[Callable[..., Any], Given] | None]


def copy_graph(
    certified: CertifiedGraph, placement: Placement = lambda node: None, *, dropout: bool = True
) -> fx.GraphModule:
    """Return the certified graph as a module, with some nodes replaced, and optionally without dropout."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()

    def copied(value: Any) -> Any:
        return fx.node.map_arg(value, lambda source: copies[source])

    for node in certified.exported.graph.nodes:
        placed = placement(node)
        name = operation_name(node) if node.op == "call_function" else ""
        if placed is not None or (name in WITHOUT_DROPOUT and not dropout):
            run, given = (node.target, arguments_of(node)) if placed is None else placed
            if name in WITHOUT_DROPOUT and not dropout:
                given = given | dict([WITHOUT_DROPOUT[name]])
            copies[node] = graph.call_function(run, (), copied(given))
            continue
        copies[node] = graph.node_copy(node, lambda source: copies[source])
        if name == "view" and node.target is torch.ops.aten.view.default:
            # A site's output may have another memory layout, on which view would fail.
            copies[node].target = torch.ops.aten.reshape.default
    graph.lint()
    return fx.GraphModule(nn.Module(), graph)


def feed_graph(certified: CertifiedGraph, tensors: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
    """Return the values for the placeholders of a graph."""
    names = {**certified.parameters, **certified.buffers}
    return [
        certified.constants[node] if node in certified.constants else tensors[names[node]] if node in names else x
        for node in certified.exported.graph.nodes
        if node.op == "placeholder"
    ]
