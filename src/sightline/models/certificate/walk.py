"""Walk an exported graph: tag every node by the rule of its operation, or stop with an objection."""

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, fx

from sightline.models.certificate import rules_layers, rules_shapes  # noqa: F401
from sightline.models.certificate.rules import (
    FILLING,
    FREE_ONLY,
    RULES,
    BatchAxis,
    BatchPositions,
    BatchSize,
    Call,
    Rule,
    Tag,
    Tags,
    argument_nodes,
    names_of,
    object_to,
    tensor_nodes,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

UNWRITTEN = frozenset({"empty.memory_format", "empty_like.default", "new_empty.default"})
"""Operations that return uninitialised memory, which may hold other examples: it must be written before it is read."""

CHECKS = frozenset({"_assert_tensor_metadata.default"})
"""Operations that only inspect types and shapes."""

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
"""Operations allowed on sizes."""

FEATURE_WORDS = {
    "wrap_with_set_grad_enabled": "torch.no_grad() or enable_grad() inside forward",
    "wrap_with_autocast": "torch.autocast inside forward",
}
WITHOUT_REGIONS = "use detach() for values without a gradient, torch.where for choices"


def refuse_regions(graph: fx.Graph) -> None:
    """Raise for parts of a graph that hold subgraphs, before they are inlined and their mode is lost."""
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.op == "get_attr" and isinstance(getattr(graph.owning_module, str(node.target), None), fx.GraphModule):
            # The body of a region; its call is the node to name.
            continue
        if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
            target_name = getattr(node.target, "__name__", str(node.target))
            raise_at(node, FEATURE_WORDS.get(target_name, "a separate region in the graph"), WITHOUT_REGIONS)


class Located(Exception):
    """An objection with the node at which it was raised."""

    def __init__(self, node: fx.Node | None, reason: str, way_out: str, *, operation: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.way_out, self.operation = node, reason, way_out, operation


def raise_at(node: fx.Node | None, reason: str, way_out: str) -> NoReturn:
    """Raise an objection at a node."""
    raise Located(node, reason, way_out)


def batch_symbol(exported: "ExportedProgram") -> Any:
    """Return the symbol of the batch size; raise unless it is free and only the input's first size."""
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in user_inputs(exported)]
    if len(inputs) != 1 or not isinstance(inputs[0].meta.get("val"), Tensor):
        raise_at(None, "forward takes more than one tensor", "let forward take one batch")
    first, *others = inputs[0].meta["val"].shape
    symbols = first.node.expr.free_symbols if isinstance(first, torch.SymInt) else set()
    if len(symbols) != 1 or not first.node.expr.is_Symbol or any(isinstance(size, torch.SymInt) for size in others):
        raise_at(None, "its code fixes the batch size", "compute with x.shape[0]")
    # A graph valid for some sizes only would need a proof, and a fallback, for the others.
    for limits in exported.range_constraints.values():
        if not (limits.lower <= 2 and limits.upper > 1 << 40):
            raise_at(None, f"its code allows only batch sizes in {limits}", "let forward accept any batch size")
    return symbols.pop()


def user_inputs(exported: "ExportedProgram") -> set[str]:
    """Return the placeholders that the caller provides."""
    return {name for name in exported.graph_signature.user_inputs if isinstance(name, str)}


def tag_graph(exported: "ExportedProgram") -> dict[fx.Node, Tags]:
    """Return the tag of every node; raise `Located` at the first node without a proof.

    Guarantees: by induction over the nodes, the claim of each tag (`BatchAxis`) holds. The output is (batch, ...) with
    row i a function of row i of the input. The tags agree with the symbolic shapes that torch inferred.
    """
    refuse_effects(exported)
    size, given = batch_symbol(exported), user_inputs(exported)
    tags: dict[fx.Node, Tags] = {}
    for node in exported.graph.nodes:
        try:
            if node.op == "placeholder":
                tags[node] = BatchAxis(0) if node.name in given else None
                check_shapes(node, tags[node], size)
            elif node.op == "output":
                check_output(node, tags)
                tags[node] = None
            else:
                tags[node] = tag_node(node, tags, size)
        except Exception as error:
            if isinstance(error, Located):
                raise
            # An error inside a rule is an objection too: nothing is certified by accident.
            reason = getattr(error, "reason", f"its rule failed ({type(error).__name__}: {error})")
            raise Located(node, reason, getattr(error, "way_out", "")) from error
    return tags


def refuse_effects(exported: "ExportedProgram") -> None:
    """Raise for anything that the graph does besides returning one tensor."""
    signature = exported.graph_signature
    # A buffer written in forward carries one example into later passes, where no clip bounds it.
    if signature.buffers_to_mutate:
        changed = ", ".join(sorted(signature.buffers_to_mutate.values()))
        nodes = [node for node in exported.graph.nodes if node.name in signature.buffers_to_mutate]
        reason, way_out = f"forward changes buffers ({changed})", "keep statistics out of forward (torch.nn.GroupNorm)"
        raise Located(nodes[-1] if nodes else None, reason, way_out, operation="forward")
    if signature.user_inputs_to_mutate:
        raise_at(None, "forward writes into its input", "work on a copy")
    kinds = {spec.kind.name for spec in signature.output_specs}
    if kinds != {"USER_OUTPUT"}:
        raise_at(None, "forward changes something besides its result", "let forward only return its result")
    if len(signature.output_specs) != 1:
        raise_at(None, "forward returns several values", "return the logits alone")


def check_output(node: fx.Node, tags: Mapping[fx.Node, Tags]) -> None:
    """Raise unless the result is (batch, ...)."""
    (result,) = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
    tag = tags[result] if isinstance(result, fx.Node) else None
    if tag != BatchAxis(0):
        where = "several values" if isinstance(tag, tuple) else names_of(tag)
        object_to(f"the result does not have one row for each example ({where})", "return (batch, ...)")


def tag_node(node: fx.Node, tags: Mapping[fx.Node, Tags], size: Any) -> Tags:
    """Return the tag of one operation's result."""
    if node.op != "call_function":
        object_to(f"{node.op} nodes are outside the proof", WITHOUT_REGIONS)
    if node.target is operator.getitem:
        return pick_tag(node, tags)
    if not isinstance(node.meta.get("val"), Tensor | tuple | list) and not _is_check(node):
        return size_tag(node, tags)
    call = bind_call(node, tags, size)
    if call.name in CHECKS:
        return None
    rule = RULES.get(call.name)
    # An allow list: an unknown operation is refused, also on batch-free values.
    if node.target._schema.is_mutable or (rule is None and call.name not in FREE_ONLY):  # type: ignore[union-attr]
        object_to("has no rule: it is not known whether it keeps examples apart", "use supported operations")
    touched = touches_batch(call, rule)
    if call.name in UNWRITTEN:
        refuse_unwritten(node)
    result: Tags = rule.check(call) if rule is not None and touched else None
    check_shapes(node, result, size)
    return result


def _is_check(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and operation_name(node) in CHECKS


def operation_name(node: fx.Node) -> str:
    """Return "name.overload" of an ATen operation, with its namespace if it is another one."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", str(target))
    space, _, name = target._schema.name.partition("::")
    return f"{'' if space == 'aten' else space + '::'}{name}.{target._overloadname}"


def bind_call(node: fx.Node, tags: Mapping[fx.Node, Tags], size: Any) -> Call:
    """Return the arguments of an operation by name, defaults included."""
    if not isinstance(node.target, torch._ops.OpOverload):
        object_to("is not an operation of torch", "use supported operations")
    arguments: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            arguments[argument.name] = node.args[index]
        else:
            default = argument.default_value if argument.has_default_value() else None
            arguments[argument.name] = node.kwargs.get(argument.name, default)
    if len(node.args) > len(arguments) or set(node.kwargs) - set(arguments):
        object_to("has arguments that its schema does not name")
    return Call(node, operation_name(node), arguments, tags, size)


def touches_batch(call: Call, rule: Rule | None) -> bool:
    """Return whether the batch enters through an argument; raise where the rule does not expect it."""
    touched = False
    for name, value in call.arguments.items():
        if rule is not None and name in rule.never and value != rule.never[name]:
            object_to(f"{name}={value}: its backward pass mixes examples or has no rows", f"{name}={rule.never[name]}")
        if name == "generator" and value is not None:
            object_to("draws from its own generator", "draw from torch's generator")
        for node in argument_nodes(value):
            touched |= expects_tag(call.tags[node], name, rule)
    return touched


def expects_tag(tag: Tags, name: str, rule: Rule | None) -> bool:
    """Return whether a tag holds the batch; raise if it may not appear in this argument."""
    match tag:
        case None:
            return False
        case BatchSize():
            if rule is None or name not in rule.sizes:
                object_to("computes with the batch size", "use the batch size in shapes only")
        case BatchPositions():
            if rule is None or name not in rule.positions:
                object_to("computes with the positions of examples in the batch", "use them only to index the batch")
        case BatchAxis():
            if rule is None:
                object_to("works across the batch or has no rule for it", "name the axes of one example, e.g. dim=-1")
            if rule.rows is not None and name not in rule.rows:
                object_to(f"has no rule for a batch in {name!r}", "let it depend on weights only")
        case tuple():
            object_to("takes several values as one")
    return True


def pick_tag(node: fx.Node, tags: Mapping[fx.Node, Tags]) -> Tag:
    """Return the tag of one of several results."""
    source, index = node.args
    if not isinstance(source, fx.Node) or not isinstance(index, int):
        object_to("picks by something that is not a number")
    result = tags[source]
    if not isinstance(source.meta.get("val"), tuple | list):
        object_to("picks from a single value")
    return result[index] if isinstance(result, tuple) else result


def size_tag(node: fx.Node, tags: Mapping[fx.Node, Tags]) -> Tag:
    """Return the tag of a Python number: a size or arithmetic of sizes; any other would be read from data."""
    value = node.meta.get("val")
    if not isinstance(value, int | torch.SymInt) or isinstance(value, bool | torch.SymBool):
        object_to("reads a value into Python or computes with the batch size", "compute with tensors only")
    if node.target is torch.ops.aten.sym_size.int:
        return BatchSize() if isinstance(value, torch.SymInt) else None
    if node.target not in ARITHMETIC or any(True for _ in tensor_nodes((node.args, node.kwargs))):
        object_to("reads a value into Python", "compute with tensors only")
    sources = argument_nodes((node.args, node.kwargs))
    return BatchSize() if any(tags[source] is not None for source in sources) else None


def refuse_unwritten(node: fx.Node) -> None:
    """Raise if memory is read before it is written."""
    for user in node.users:
        fills = isinstance(user.target, torch._ops.OpOverload) and operation_name(user) in FILLING
        if not fills or user.args[0] is not node or sum(source is node for source in user.all_input_nodes) != 1:
            object_to("reads memory that was not written, which may hold other examples", "use torch.zeros")
        if any(argument is node for argument in argument_nodes((user.args[1:], user.kwargs))):
            object_to("reads memory that was not written, which may hold other examples", "use torch.zeros")


def check_shapes(node: fx.Node, result: Tags, size: Any) -> None:
    """Raise if a tag contradicts torch's symbolic shapes: the batch on one axis, (before, batch, after) long."""
    # A second, independent check: a rule with a wrong axis is caught by the shapes that torch inferred.
    value = node.meta["val"]
    values = list(value) if isinstance(value, tuple | list) else [value]
    tags = list(result) if isinstance(result, tuple) else [result] * len(values)
    if len(tags) != len(values):
        object_to(f"returns {len(values)} values but its rule expects {len(tags)}")
    for output, tag in zip(values, tags, strict=True):
        if isinstance(output, Tensor):
            check_shape(output, tag, size)
        elif output is not None:
            object_to("returns something that is not a tensor")


def check_shape(value: Tensor, tag: Tag, size: Any) -> None:
    """Raise if a tag contradicts the symbolic shape of one tensor."""
    sizes: list[Any] = list(value.shape)
    symbolic = {dim: length.node.expr for dim, length in enumerate(sizes) if isinstance(length, torch.SymInt)}
    match tag:
        case None:
            expected = {}
        case BatchAxis(dim, before, after):
            expected = {dim: size * before * after}
            if any(size == 0 for size in value.shape if not isinstance(size, torch.SymInt)) or before < 1 or after < 1:
                object_to("is empty", "omit it")
        case BatchPositions(dim):
            expected = {dim: size}
            if any(size != 1 for index, size in enumerate(value.shape) if index != dim):
                object_to("computes with the positions of examples in the batch")
        case _:
            object_to("returns a tensor instead of a number")
    if symbolic != expected or value.is_sparse or value.is_complex() or value.is_quantized:
        object_to(f"its shape {tuple(map(str, value.shape))} is not what the proof expects ({names_of(tag)})")
