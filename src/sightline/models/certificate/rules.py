"""Types of the proof (tags, certificate, objection), the registry of rules, and pointwise and reducing operations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from torch.export import ExportedProgram


# The proof is an induction over the nodes of a graph: if the claims of all inputs hold, the rule of an operation shows
# the claim of its result. Whatever has no rule is an objection, so a missing rule costs speed, never privacy.
@dataclass(frozen=True)
class BatchAxis:
    """The batch sits in this dimension, which is (before, batch, after) in row-major order.

    Claim of the tag: the part of the value at position i of the batch is a function of row i of the input, of
    batch-free values and of random numbers, and not of the number of rows.
    """

    dim: int
    before: int = 1
    after: int = 1

    def moved_to(self, dim: int) -> "BatchAxis":
        """Return the same batch in another dimension."""
        return BatchAxis(dim, self.before, self.after)


@dataclass(frozen=True)
class BatchPositions:
    """0, 1, ..., batch - 1 along this dimension, all others of length one; may only index the batch."""

    dim: int


@dataclass(frozen=True)
class BatchSize:
    """A Python number computed from the batch size; may only appear where a shape is expected."""


Tag = BatchAxis | BatchPositions | BatchSize | None
"""None: batch-free, a function of parameters, buffers, constants and random numbers alone."""
Tags = Tag | tuple[Tag, ...]


class Mixing(Exception):
    """A rule cannot show that a value keeps examples apart; becomes an `Objection`."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.reason, self.way_out = reason, way_out


def object_to(reason: str, way_out: str = "") -> NoReturn:
    """Raise `Mixing`: an operation cannot be certified, and why."""
    raise Mixing(reason, way_out)


@dataclass(frozen=True)
class Objection:
    """Why a module is not certified: the first operation without a proof, its source line, the reason, the way out."""

    operation: str
    source: str
    reason: str
    way_out: str

    def __str__(self) -> str:
        """Return all of it on one line."""
        where = f" ({self.source})" if self.source else ""
        return f"{self.operation}{where}: {self.reason}; {self.way_out}"


@dataclass(frozen=True, eq=False)
class CertifiedGraph:
    """A functional graph with a tag for every node: row i of the output depends only on row i of the input.

    `parameters`, `buffers` and `constants` say what each placeholder except the input gets. Names are those of
    `named_parameters()` and `named_buffers()`; tied tensors have one name.
    """

    exported: "ExportedProgram"
    axes: Mapping[fx.Node, Tags] = field(repr=False)
    """The tag of every node: an axis, several for several results, or None if batch-free."""
    parameters: Mapping[fx.Node, str]
    buffers: Mapping[fx.Node, str]
    constants: Mapping[fx.Node, Tensor] = field(repr=False)
    """Tensors that the code created while it was exported."""

    def run(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the graph's output for a batch, with these tensors (by name) as parameters and buffers."""
        names = {**self.parameters, **self.buffers}
        given = [
            self.constants[node] if node in self.constants else tensors[names[node]] if node in names else x
            for node in self.exported.graph.nodes
            if node.op == "placeholder"
        ]
        output: tuple[Any, ...] = self.exported.graph_module(*given)
        result: Tensor = output[0]
        return result


@dataclass(frozen=True, eq=False)
class Certificate(CertifiedGraph):
    """The proof for a module in training mode; `evaluation` is its graph without dropout, proven as well.

    Only the graphs may run: a proof about them says nothing about the module's Python code. Dropout of the training
    graph draws from torch's generator.
    """

    evaluation: CertifiedGraph


VERSIONS = ("2.13",)
"""Versions of torch for which the rules were read and fuzzed; with any other, nothing is certified."""


@dataclass(frozen=True, eq=False)
class Call:
    """One operation of a graph with its arguments by name and the tags of everything before it."""

    node: fx.Node
    name: str
    arguments: Mapping[str, Any]
    tags: Mapping[fx.Node, Tags]
    size: Any
    """The symbol of the batch size."""

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def tag(self, argument: Any) -> BatchAxis | None:
        """Return the batch axis of a tensor argument; None if it is batch-free or absent."""
        result = self.tags[argument] if isinstance(argument, fx.Node) else None
        if result is not None and not isinstance(result, BatchAxis):
            object_to("computes with the positions of examples in the batch", "use them only to index the batch")
        return result

    def axis_of(self, argument: Any) -> BatchAxis:
        """Return the batch axis of an argument that must hold the batch."""
        return self.tag(argument) or object_to("a fixed tensor is used where a tensor with the batch is expected")

    def shape(self, argument: fx.Node) -> tuple[Any, ...]:
        """Return the sizes of a tensor argument; the batch size is symbolic."""
        return tuple(argument.meta["val"].shape)

    def rank(self, argument: fx.Node) -> int:
        """Return the number of dimensions of a tensor argument."""
        return len(self.shape(argument))

    @property
    def output(self) -> Tensor:
        """The value that stands for the result, the first of several."""
        value = self.node.meta["val"]
        result: Tensor = value[0] if isinstance(value, tuple | list) else value
        return result

    def tensors(self) -> list[fx.Node]:
        """Return all tensor arguments, including those in lists."""
        return [node for value in self.arguments.values() for node in tensor_nodes(value)]

    def dim(self, argument: str, rank: int) -> int:
        """Return a dimension argument, counted from the front."""
        return front_dim(self[argument], rank)

    def dims(self, argument: str, rank: int) -> list[int]:
        """Return dimension arguments, counted from the front; raise if there are none, which means all of them."""
        value = self[argument]
        listed = list(value) if isinstance(value, list | tuple) else [value]
        if value is None or not listed:
            object_to("reduces all axes, the batch among them", "name the axes of one example, e.g. dim=-1")
        return [front_dim(dim, rank) for dim in listed]

    def has_batch(self, size: Any) -> bool:
        """Return whether a size is computed from the batch size."""
        return isinstance(size, torch.SymInt) and self.size in size.node.expr.free_symbols

    def is_batch(self, value: Any) -> bool:
        """Return whether a size, or the node that computes it, is the batch size itself."""
        result = value.meta.get("val") if isinstance(value, fx.Node) else value
        return isinstance(result, torch.SymInt) and bool(result.node.expr == self.size)


def front_dim(value: Any, rank: int) -> int:
    """Return a dimension counted from the front; raise for anything that is not one."""
    if not isinstance(value, int) or isinstance(value, bool) or not -max(rank, 1) <= value < max(rank, 1):
        object_to(f"{value!r} is not a dimension of a tensor with {rank}")
    return value % max(rank, 1)


def tensor_nodes(value: Any) -> Iterator[fx.Node]:
    """Yield the nodes that stand for tensors in an argument, including lists."""
    for node in argument_nodes(value):
        if isinstance(node.meta.get("val"), Tensor | tuple | list):
            yield node


def argument_nodes(value: Any) -> Iterator[fx.Node]:
    """Yield all nodes in an argument, however nested."""
    result: list[fx.Node] = []
    fx.node.map_arg(value, result.append)
    yield from result


Check = Callable[[Call], Tags]


@dataclass(frozen=True)
class Rule:
    """What is known about one operation: where the batch may enter, and where it sits in the result."""

    check: Check
    rows: frozenset[str] | None
    """Arguments in which the batch may sit; None for every tensor."""
    sizes: frozenset[str] = frozenset()
    """Arguments in which the batch size may appear."""
    positions: frozenset[str] = frozenset()
    """Arguments in which positions of the batch may appear."""
    never: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with their only allowed value; with others the backward pass would mix examples."""


RULES: dict[str, Rule] = {}
"""Every operation with a rule, as "name.overload" of `torch.ops.aten`."""


def add_rule(
    names: str, *, rows: str | None = None, sizes: str = "", positions: str = "", never: Mapping[str, Any] | None = None
) -> Callable[[Check], Check]:
    """Return a decorator that registers a rule for several operations; names and arguments are space-separated."""

    def register(check: Check) -> Check:
        for name in names.split():
            if name in RULES:
                # Two rules for one operation would make the proof depend on import order.
                raise ValueError(f"{name} has two rules")
            RULES[name] = Rule(
                check,
                None if rows is None else frozenset(rows.split()),
                frozenset(sizes.split()),
                frozenset(positions.split()),
                never or {},
            )
        return check

    return register


FREE_ONLY = frozenset(
    """_weight_norm_interface.default _weight_norm.default linspace.default logspace.default eye.default eye.m
    tril_indices.default triu_indices.default randperm.default scalar_tensor.default outer.default prod.default
    prod.dim_int sum.default mean.default max.default min.default std.default var.default linalg_norm.default
    norm.Scalar norm.ScalarOpt_dtype cumprod.default squeeze.default dot.default linalg_matrix_exp.default
    linalg_qr.default linalg_inv.default inverse.default linalg_solve.default linalg_householder_product.default
    meshgrid.indexing meshgrid.default diag.default diag_embed.default kron.default mv.default tensordot.default
    all.default any.default""".split()
)
"""More operations allowed on batch-free values only: pure, with a linear backward pass."""


# -- element by element ----------------------------------------------------------------------------------------------

POINTWISE = """
add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode
true_divide.Tensor rsub.Tensor rsub.Scalar neg.default abs.default exp.default exp2.default expm1.default log.default
log2.default log10.default log1p.default sqrt.default rsqrt.default square.default reciprocal.default
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar sin.default cos.default tan.default asin.default acos.default
atan.default atan2.default sinh.default cosh.default tanh.default asinh.default acosh.default atanh.default
sigmoid.default logit.default erf.default erfc.default relu.default relu6.default gelu.default silu.default mish.default
hardtanh.default hardswish.default hardsigmoid.default leaky_relu.default elu.default selu.default celu.default
softplus.default log_sigmoid.default softshrink.default hardshrink.default threshold.default _prelu_kernel.default
clamp.default clamp.Tensor clamp_min.default clamp_min.Tensor clamp_max.default clamp_max.Tensor minimum.default
maximum.default fmin.default fmax.default where.self where.ScalarSelf where.ScalarOther where.Scalar
masked_fill.Scalar masked_fill.Tensor eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
gt.Tensor gt.Scalar ge.Tensor ge.Scalar logical_and.default logical_or.default logical_xor.default logical_not.default
bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar
bitwise_not.default __and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar __xor__.Tensor __xor__.Scalar
sign.default sgn.default floor.default ceil.default round.default round.decimals trunc.default frac.default
remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar floor_divide.default floor_divide.Scalar lerp.Tensor
lerp.Scalar addcmul.default addcdiv.default isnan.default isinf.default isfinite.default nan_to_num.default
logaddexp.default logaddexp2.default hypot.default xlogy.Tensor copysign.Tensor heaviside.default sinc.default
fill.Scalar fill.Tensor copy.default zero.default clone.default contiguous.default alias.default detach.default
lift_fresh_copy.default expand_as.default _to_copy.default to.dtype to.dtype_layout
dropout.default native_dropout.default alpha_dropout.default feature_dropout.default feature_alpha_dropout.default
bernoulli.default bernoulli.p exponential.default uniform.default normal_functional.default
"""
"""Each number of the result depends only on the numbers at its own position, or is drawn at random."""

FILLING = frozenset(
    """bernoulli.p exponential.default uniform.default normal_functional.default fill.Scalar fill.Tensor
    zero.default""".split()
)
"""Operations that overwrite their first argument without reading it."""


@add_rule(POINTWISE)
def broadcast_tag(call: Call) -> Tags:
    """Return the tag of a pointwise operation: operands agree on the batch axis, fixed ones have length one there."""
    return broadcast_axis(call, call.tensors(), call.output.dim())


def broadcast_axis(call: Call, operands: Sequence[fx.Node], rank: int) -> BatchAxis:
    """Return the batch axis when these operands are broadcast to `rank` dimensions."""
    axes = {
        tag.moved_to(tag.dim + rank - call.rank(operand))
        for operand in operands
        if (tag := call.tag(operand)) is not None
    }
    if len(axes) != 1:
        object_to("lets examples meet: the batch sits on different axes of its operands", "align the batch axes")
    axis = axes.pop()
    for operand in operands:
        dim = axis.dim - (rank - call.rank(operand))
        # A fixed tensor along the batch would give every position its own value: swapping two examples would change
        # results.
        if call.tag(operand) is None and dim >= 0 and call.shape(operand)[dim] != 1:
            object_to("lays a fixed tensor along the batch, so a result depends on its position in the batch")
    return axis


@add_rule(
    "zeros_like.default ones_like.default full_like.default rand_like.default randn_like.default "
    "randint_like.default randint_like.low_dtype empty_like.default",
    rows="self",
)
def tag_like(call: Call) -> Tags:
    """Return the tag of a new tensor of the same shape."""
    return call.axis_of(call["self"])


@add_rule("type_as.default to.other", rows="self other")
def tag_of_self(call: Call) -> Tags:
    """Return the tag of the first operand; the second only provides its type."""
    return call.tag(call["self"])


@add_rule("prelu.default", rows="self")
def prelu_tag(call: Call) -> Tags:
    """Return the tag of PReLU with one slope, or one per entry of dimension 1."""
    tag = call.axis_of(call["self"])
    if tag.dim == 1 and call["weight"].meta["val"].numel() != 1:
        object_to("has one slope for each position in the batch")
    return tag


@add_rule("bucketize.Tensor", rows="self")
def bucket_tag(call: Call) -> Tags:
    """Return the tag of a lookup of every number in fixed boundaries."""
    return call.axis_of(call["self"])


@add_rule("one_hot.default", rows="self")
def one_hot_tag(call: Call) -> Tags:
    """Return the tag of one-hot encoding with a given number of classes."""
    # Without it, the largest label of the batch would set the width for every example.
    if not isinstance(call["num_classes"], int) or call["num_classes"] <= 0:
        object_to("takes its number of classes from the largest label of the batch", "give num_classes")
    return call.axis_of(call["self"])


# -- along named axes ------------------------------------------------------------------------------------------------

OVER_BATCH = "works across the batch"
OWN_AXES = "let it work over the axes of one example"


@add_rule(
    "sum.dim_IntList mean.dim amax.default amin.default var.dim std.dim std.correction var_mean.correction "
    "std_mean.correction max.dim min.dim argmax.default argmin.default logsumexp.default any.dim any.dims "
    "all.dim all.dims norm.ScalarOpt_dim median.dim nansum.default count_nonzero.dim_IntList",
    rows="self",
)
def reduce_tag(call: Call) -> Tags:
    """Return the tag of a reduction over axes of one example."""
    tag, rank = call.axis_of(call["self"]), call.rank(call["self"])
    dims = call.dims("dim", rank)
    if tag.dim in dims:
        object_to(OVER_BATCH, OWN_AXES)
    kept = bool(call.arguments.get("keepdim", False))
    return tag if kept else tag.moved_to(tag.dim - sum(dim < tag.dim for dim in set(dims)))


RULES["linalg_vector_norm.default"] = RULES["sum.dim_IntList"]
RULES["var.correction"] = RULES["sum.dim_IntList"]


@add_rule(
    "softmax.int log_softmax.int _softmax.default _log_softmax.default cumsum.default logcumsumexp.default "
    "cummax.default cummin.default sort.default sort.stable topk.default argsort.default argsort.stable glu.default "
    "_safe_softmax.default",
    rows="self",
)
def along_tag(call: Call) -> Tags:
    """Return the tag of an operation along one axis of an example that keeps all axes."""
    tag = call.axis_of(call["self"])
    if call.dim("dim", call.rank(call["self"])) == tag.dim:
        object_to(OVER_BATCH, OWN_AXES)
    return tag


@add_rule("flip.default roll.default", rows="self")
def flip_tag(call: Call) -> Tags:
    """Return the tag of an operation that moves positions along axes of one example."""
    tag = call.axis_of(call["self"])
    if tag.dim in call.dims("dims", call.rank(call["self"])):
        object_to("moves examples to other positions of the batch", OWN_AXES)
    return tag


@add_rule("cosine_similarity.default", rows="x1 x2")
def similarity_tag(call: Call) -> Tags:
    """Return the tag of a broadcast followed by a reduction of one axis."""
    operands = [call["x1"], call["x2"]]
    rank = max(map(call.rank, operands))
    tag, dim = broadcast_axis(call, operands, rank), call.dim("dim", rank)
    if dim == tag.dim:
        object_to(OVER_BATCH, OWN_AXES)
    return tag.moved_to(tag.dim - (dim < tag.dim))


@add_rule("tril.default triu.default", rows="self")
def triangle_tag(call: Call) -> Tags:
    """Return the tag of an operation that keeps or drops numbers by position on the last two axes."""
    tag = call.axis_of(call["self"])
    if tag.dim >= call.rank(call["self"]) - 2:
        object_to("depends on the position in the batch", OWN_AXES)
    return tag


@add_rule("diagonal.default", rows="self")
def diagonal_tag(call: Call) -> Tags:
    """Return the tag of a diagonal: two axes of one example become the last axis."""
    tag, rank = call.axis_of(call["self"]), call.rank(call["self"])
    dims = {call.dim("dim1", rank), call.dim("dim2", rank)}
    if tag.dim in dims:
        object_to("pairs examples with positions", OWN_AXES)
    return tag.moved_to(tag.dim - sum(dim < tag.dim for dim in dims))


def names_of(tag: Tag) -> str:
    """Return a tag in words, for messages."""
    match tag:
        case None:
            return "batch-free"
        case BatchAxis(dim, before, after):
            inside = "" if before == after == 1 else f" (as {before} x batch x {after})"
            return f"batch on axis {dim}{inside}"
        case BatchPositions(dim):
            return f"positions of the batch on axis {dim}"
        case BatchSize():
            return "the batch size"
