"""Rules of operations that rearrange numbers: views, slices, joins, look-ups, and new tensors."""

from math import prod

import torch
from torch import fx

from sightline.models.certificate.rules import (
    OWN_AXES,
    BatchAxis,
    BatchPositions,
    BatchSize,
    Call,
    Tags,
    add_rule,
    argument_nodes,
    broadcast_axis,
    object_to,
)

ENDLESS = 1 << 62
"""From here on the end of a slice means "to the end"."""


def symbolic_dim(call: Call) -> int | None:
    """Return the one dimension of the result that depends on the batch size, or None."""
    result = [dim for dim, size in enumerate(call.output.shape) if call.has_batch(size)]
    if len(result) > 1:
        object_to("spreads the batch over several axes", "keep the batch on one axis")
    return result[0] if result else None


# -- views -----------------------------------------------------------------------------------------------------------


@add_rule("view.default reshape.default _unsafe_view.default", rows="self", sizes="size shape", positions="self")
def view_tag(call: Call) -> Tags:
    """Return the tag of a view: the batch axis may merge with its neighbours or be split from them.

    Row-major order is kept. The value is (left, batch, right). A new shape with P numbers before the batch's axis and Q
    after it cuts at whole examples exactly when P divides left and Q divides right.
    """
    dim = symbolic_dim(call)
    before = call.tags[call["self"]]
    if before is None or dim is None:
        object_to("gives a fixed tensor a shape with the batch size", "use expand")
    shape, new = call.shape(call["self"]), tuple(call.output.shape)
    if isinstance(before, BatchPositions):
        if any(size != 1 for index, size in enumerate(new) if index != dim) or not call.is_batch(new[dim]):
            object_to("takes the positions of the batch apart")
        return BatchPositions(dim)
    tag = call.axis_of(call["self"])
    left = prod(shape[: tag.dim]) * tag.before
    right = tag.after * prod(shape[tag.dim + 1 :])
    ahead, behind = prod(new[:dim]), prod(new[dim + 1 :])
    if not ahead or not behind or left % ahead or right % behind:
        object_to("cuts across examples", "keep the batch on the first axis and reshape the others")
    return BatchAxis(dim, left // ahead, right // behind)


add_rule("flatten.using_ints", rows="self")(view_tag)
add_rule("unflatten.int", rows="self", sizes="sizes")(view_tag)


@add_rule("permute.default", rows="self")
def permute_tag(call: Call) -> Tags:
    """Return the tag of permuted axes."""
    tag = call.axis_of(call["self"])
    return tag.moved_to(call.dims("dims", call.rank(call["self"])).index(tag.dim))


def swap_tag(tag: BatchAxis, first: int, second: int) -> BatchAxis:
    """Return the tag after two axes are swapped."""
    return tag.moved_to({first: second, second: first}.get(tag.dim, tag.dim))


@add_rule("transpose.int", rows="self")
def transpose_tag(call: Call) -> Tags:
    """Return the tag after two axes are swapped."""
    rank = call.rank(call["self"])
    return swap_tag(call.axis_of(call["self"]), call.dim("dim0", rank), call.dim("dim1", rank))


@add_rule("swapaxes.default", rows="self")
def swapaxes_tag(call: Call) -> Tags:
    """Return the tag after two axes are swapped."""
    rank = call.rank(call["self"])
    return swap_tag(call.axis_of(call["self"]), call.dim("axis0", rank), call.dim("axis1", rank))


@add_rule("t.default mT.default", rows="self")
def matrix_transpose_tag(call: Call) -> Tags:
    """Return the tag after the last two axes are swapped; `t` leaves a vector unchanged."""
    rank = call.rank(call["self"])
    return swap_tag(call.axis_of(call["self"]), rank - 2, rank - 1) if rank > 1 else call.axis_of(call["self"])


@add_rule("unsqueeze.default", rows="self", positions="self")
def unsqueeze_tag(call: Call) -> Tags:
    """Return the tag with a new axis of length one."""
    result = call.tags[call["self"]]
    dim = call.dim("dim", call.rank(call["self"]) + 1)
    if isinstance(result, BatchPositions):
        return BatchPositions(result.dim + (dim <= result.dim))
    tag = call.axis_of(call["self"])
    return tag.moved_to(tag.dim + (dim <= tag.dim))


@add_rule("squeeze.dim squeeze.dims", rows="self")
def squeeze_tag(call: Call) -> Tags:
    """Return the tag without named axes of length one; the batch axis may not be named."""
    tag, shape = call.axis_of(call["self"]), call.shape(call["self"])
    dims = call.dims("dim", len(shape))
    # The axis would disappear for a batch of one, and only then.
    if tag.dim in dims:
        object_to("would lose the batch axis of a single example", "name another axis")
    return tag.moved_to(tag.dim - sum(dim < tag.dim and shape[dim] == 1 for dim in set(dims)))


@add_rule("expand.default", rows="self", sizes="size")
def expand_tag(call: Call) -> Tags:
    """Return the tag of repeated axes of length one; a fixed tensor may get a batch axis."""
    tag, rank = call.tag(call["self"]), call.rank(call["self"])
    if tag is not None:
        return tag.moved_to(tag.dim + call.output.dim() - rank)
    return new_axis(call)


def new_axis(call: Call) -> BatchAxis | None:
    """Return the batch axis of a tensor that is the same, or drawn independently, for every example."""
    dim = symbolic_dim(call)
    if dim is None and not any(isinstance(call.tags[node], BatchSize) for node in argument_nodes(call["size"])):
        return None
    if dim is None or not call.is_batch(call.output.shape[dim]):
        object_to("makes an axis of a multiple of the batch size", "make an axis of the batch size")
    return BatchAxis(dim)


@add_rule("repeat.default", rows="self", sizes="repeats")
def repeat_tag(call: Call) -> Tags:
    """Return the tag of a repeated tensor: the batch axis becomes (times, before, batch, after)."""
    tag, shape, repeats = call.tag(call["self"]), call.shape(call["self"]), call["repeats"]
    lead = len(repeats) - len(shape)
    if tag is None:
        dim = symbolic_dim(call)
        if dim is None or not call.is_batch(repeats[dim]):
            object_to("repeats a fixed tensor by a multiple of the batch size", "repeat it batch times")
        return BatchAxis(dim, 1, shape[dim - lead] if dim >= lead else 1)
    times = repeats[tag.dim + lead]
    if any(isinstance(count, fx.Node) for count in repeats) or not isinstance(times, int) or times < 1:
        object_to("repeats examples by the batch size", OWN_AXES)
    return BatchAxis(tag.dim + lead, tag.before * times, tag.after)


@add_rule("repeat_interleave.self_int", rows="self")
def interleave_tag(call: Call) -> Tags:
    """Return the tag after every entry of an axis is repeated in place."""
    tag, times = call.axis_of(call["self"]), call["repeats"]
    if call["dim"] is None or not isinstance(times, int) or times < 1:
        object_to("flattens the batch with other axes", "name an axis")
    dim = call.dim("dim", call.rank(call["self"]))
    return BatchAxis(tag.dim, tag.before, tag.after * times) if dim == tag.dim else tag


# -- parts -----------------------------------------------------------------------------------------------------------


@add_rule("select.int", rows="self")
def select_tag(call: Call) -> Tags:
    """Return the tag after one entry of an example's axis is selected."""
    tag, dim = call.axis_of(call["self"]), call.dim("dim", call.rank(call["self"]))
    if dim == tag.dim:
        object_to("takes one example out of the batch", OWN_AXES)
    return tag.moved_to(tag.dim - (dim < tag.dim))


def takes_all(call: Call, argument: str, dim: int) -> bool:
    """Return whether a slice along the batch axis takes all of it."""
    end, full = call["end"], call.shape(call[argument])[dim]
    at_end = end is None or (isinstance(end, int) and not isinstance(end, bool) and end >= ENDLESS)
    if isinstance(end, fx.Node) and isinstance(end.meta.get("val"), torch.SymInt):
        at_end = bool(end.meta["val"].node.expr == full.node.expr)
    first = call["start"] is None or (isinstance(call["start"], int) and call["start"] == 0)
    return at_end and first and isinstance(call["step"], int) and call["step"] == 1


@add_rule("slice.Tensor", rows="self", sizes="end", positions="self")
def slice_tag(call: Call) -> Tags:
    """Return the tag of a range of an example's axis, or of the whole batch."""
    result, dim = call.tags[call["self"]], call.dim("dim", call.rank(call["self"]))
    if result is None:
        object_to("slices a fixed tensor by the batch size")
    if not isinstance(result, BatchAxis | BatchPositions):
        object_to("takes a part of several values")
    if dim != result.dim and isinstance(call["end"], fx.Node):
        object_to("slices an example by the batch size")
    if (dim == result.dim or isinstance(result, BatchPositions)) and not takes_all(call, "self", dim):
        object_to("takes some of the batch", OWN_AXES)
    return result


@add_rule("slice_scatter.default", rows="self src", sizes="end")
def slice_scatter_tag(call: Call) -> Tags:
    """Return the tag after a range of an example's axis, or the whole batch, is overwritten."""
    tag, dim = call.axis_of(call["self"]), call.dim("dim", call.rank(call["self"]))
    if call.axis_of(call["src"]) != tag:
        object_to("writes values of other positions of the batch")
    if dim == tag.dim and not takes_all(call, "self", dim):
        object_to("writes over some of the batch", OWN_AXES)
    if dim != tag.dim and isinstance(call["end"], fx.Node):
        object_to("writes a slice of an example by the batch size")
    return tag


@add_rule("select_scatter.default", rows="self src")
def select_scatter_tag(call: Call) -> Tags:
    """Return the tag after one entry of an example's axis is overwritten."""
    tag, dim = call.axis_of(call["self"]), call.dim("dim", call.rank(call["self"]))
    if dim == tag.dim or call.axis_of(call["src"]) != tag.moved_to(tag.dim - (dim < tag.dim)):
        object_to("writes over one example, or values of other positions of the batch", OWN_AXES)
    return tag


@add_rule("split.Tensor split.sizes split_with_sizes.default chunk.default unsafe_split.Tensor unsafe_chunk.default "
          "tensor_split.sections tensor_split.indices", rows="self")  # fmt: skip
def split_tag(call: Call) -> Tags:
    """Return the tag of ranges of an example's axis."""
    tag = call.axis_of(call["self"])
    if call.dim("dim", call.rank(call["self"])) == tag.dim:
        object_to("splits the batch", OWN_AXES)
    return tag


@add_rule("unbind.int", rows="self")
def unbind_tag(call: Call) -> Tags:
    """Return the tag of all entries of an example's axis."""
    return select_tag(call)


@add_rule("unfold.default", rows="self")
def unfold_tag(call: Call) -> Tags:
    """Return the tag of windows along an example's axis, as a new last axis."""
    tag = call.axis_of(call["self"])
    if call.dim("dimension", call.rank(call["self"])) == tag.dim:
        object_to("lays windows over the batch", OWN_AXES)
    return tag


@add_rule("cat.default", rows="tensors")
def cat_tag(call: Call) -> Tags:
    """Return the tag of values joined along an example's axis, none of them fixed."""
    tags = {call.axis_of(tensor) for tensor in call["tensors"]}
    tag = tags.pop()
    if tags:
        object_to("joins tensors whose batch sits on different axes", "align the batch axes")
    if call.dim("dim", call.output.dim()) == tag.dim:
        object_to("joins values along the batch", OWN_AXES)
    return tag


@add_rule("stack.default", rows="tensors")
def stack_tag(call: Call) -> Tags:
    """Return the tag of values joined along a new axis."""
    tags = {call.axis_of(tensor) for tensor in call["tensors"]}
    tag = tags.pop()
    if tags:
        object_to("joins tensors whose batch sits on different axes", "align the batch axes")
    dim = call.dim("dim", call.output.dim())
    return tag.moved_to(tag.dim + (dim <= tag.dim))


@add_rule("diff.default", rows="self prepend append")
def diff_tag(call: Call) -> Tags:
    """Return the tag of differences along an example's axis."""
    tag = call.axis_of(call["self"])
    others = [operand for operand in (call["prepend"], call["append"]) if operand is not None]
    if call.dim("dim", call.rank(call["self"])) == tag.dim or any(call.axis_of(other) != tag for other in others):
        object_to("takes differences of examples", OWN_AXES)
    return tag


# -- new tensors -----------------------------------------------------------------------------------------------------


@add_rule("zeros.default ones.default full.default rand.default randn.default randint.default randint.low "
          "empty.memory_format", rows="", sizes="size")  # fmt: skip
def made_tag(call: Call) -> Tags:
    """Return the tag of a new tensor: the same for every example, or drawn independently for each."""
    return new_axis(call)


@add_rule("new_zeros.default new_ones.default new_full.default new_empty.default", rows="self", sizes="size")
def made_beside_tag(call: Call) -> Tags:
    """Return the tag of a new tensor; the tensor it is created from only provides its type."""
    return new_axis(call)


@add_rule("arange.default arange.start arange.start_step", rows="", sizes="end")
def positions_tag(call: Call) -> Tags:
    """Return the tag of 0, 1, ..., batch - 1."""
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    counts = isinstance(start, int) and start == 0 and isinstance(step, int) and step == 1
    if not counts or not call.is_batch(call["end"]) or not call.is_batch(call.output.shape[0]):
        object_to("counts with the batch size", "count up to a constant of the model")
    return BatchPositions(0)


# -- look-ups --------------------------------------------------------------------------------------------------------

ROWS_BY_BATCH = "looks up examples by values of the batch"


@add_rule("index.Tensor", rows="self indices", positions="indices")
def index_tag(call: Call) -> Tags:
    """Return the tag of a table lookup, of entries of each example, or of each example at its own positions."""
    used = [(dim, index) for dim, index in enumerate(call["indices"]) if index is not None]
    # A mask selects a data-dependent number of values: the shape of the result would depend on all examples.
    if any(index.meta["val"].dtype not in (torch.int64, torch.int32) for _, index in used):
        object_to(
            "a mask selects a number of values that depends on the data", "use torch.where or multiply by the mask"
        )
    dims = [dim for dim, _ in used]
    if not dims or dims != list(range(dims[0], dims[0] + len(dims))):
        object_to("looks up axes that are not adjacent", "index neighbouring axes")
    nodes = [index for _, index in used]
    result = call.tag(call["self"])
    if result is None:
        return table_tag(call, dims, nodes)
    if isinstance(call.tags[nodes[0]], BatchPositions):
        return own_positions_tag(call, result, dims, nodes)
    if any(call.tags[node] is not None for node in nodes) or result.dim in dims:
        object_to(ROWS_BY_BATCH, "use gather, or index the batch by torch.arange(len(x))")
    rank = max(map(call.rank, nodes))
    return result.moved_to(result.dim + (rank - len(dims)) * (dims[0] < result.dim))


def table_tag(call: Call, dims: list[int], nodes: list[fx.Node]) -> BatchAxis:
    """Return the tag of a fixed table at positions that come from the examples."""
    if any(isinstance(call.tags[node], BatchPositions) for node in nodes):
        object_to("looks up a fixed tensor by the position in the batch")
    tag = broadcast_axis(call, nodes, max(map(call.rank, nodes)))
    return tag.moved_to(tag.dim + dims[0])


def own_positions_tag(call: Call, indices: BatchAxis, dims: list[int], nodes: list[fx.Node]) -> BatchAxis:
    """Return the tag of x[arange(batch), positions]: each example at its own positions."""
    first, others = nodes[0], nodes[1:]
    positions, rank = call.tags[first], max(map(call.rank, nodes))
    if indices != BatchAxis(0) or dims[0] != 0 or not isinstance(positions, BatchPositions):
        object_to(ROWS_BY_BATCH, "let the batch be the first axis")
    dim = positions.dim + rank - call.rank(first)
    for other in others:
        index = dim - (rank - call.rank(other))
        tag = call.tags[other]
        fixed = tag is None and (index < 0 or call.shape(other)[index] == 1)
        if not fixed and tag != BatchAxis(index):
            object_to(ROWS_BY_BATCH, "align the batch axes of the indices")
    return BatchAxis(dim)


@add_rule("index_select.default", rows="self index")
def index_select_tag(call: Call) -> Tags:
    """Return the tag of entries of an example's axis, or of a fixed table indexed by the examples."""
    tag, chosen = call.tag(call["self"]), call.tag(call["index"])
    dim = call.dim("dim", call.rank(call["self"]))
    if tag is None:
        return call.axis_of(call["index"]).moved_to(dim)
    if chosen is not None or dim == tag.dim:
        object_to(ROWS_BY_BATCH, OWN_AXES)
    return tag


@add_rule("gather.default scatter.src scatter.value scatter_add.default", rows="self index src",
          never={"sparse_grad": False})  # fmt: skip
def gather_tag(call: Call) -> Tags:
    """Return the tag of gather and scatter along another axis, with the batch aligned in all operands."""
    operands = [call[name] for name in ("self", "index", "src") if name in call.arguments]
    tags = {call.axis_of(operand) for operand in operands}
    tag = tags.pop()
    if tags or call.dim("dim", call.rank(call["self"])) == tag.dim:
        object_to("moves entries between examples", "expand its operands to the same batch axis")
    return tag


@add_rule("embedding.default", rows="indices", never={"scale_grad_by_freq": False, "sparse": False})
def embedding_tag(call: Call) -> Tags:
    """Return the tag of rows of a fixed table."""
    return call.axis_of(call["indices"])
