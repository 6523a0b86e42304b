"""Rules of the operations behind layers: products, convolutions, pooling, norms, attention, recurrences."""

from torch import fx

from sightline.models.certificate.rules import OVER_BATCH, OWN_AXES, BatchAxis, Call, Tags, add_rule, object_to

FIRST_AXIS = "let the batch be the first axis"

# -- products --------------------------------------------------------------------------------------------------------


@add_rule("linear.default", rows="input")
def linear_tag(call: Call) -> Tags:
    """Return the tag of a contraction of the last axis with fixed weights."""
    tag = call.axis_of(call["input"])
    if tag.dim == call.rank(call["input"]) - 1:
        object_to("sums over the batch", "let the last axis be the features")
    return tag


@add_rule("bilinear.default", rows="input1 input2")
def bilinear_tag(call: Call) -> Tags:
    """Return the tag of a contraction of two operands of the same batch with fixed weights."""
    tag = call.axis_of(call["input1"])
    if call.axis_of(call["input2"]) != tag or tag.dim == call.rank(call["input1"]) - 1:
        object_to("lets examples meet", FIRST_AXIS)
    return tag


def product_tag(call: Call, left: fx.Node, right: fx.Node) -> BatchAxis:
    """Return the tag of (..., n, k) times (..., k, m), without a sum over the batch or products between examples."""
    rank = call.output.dim()
    first, second = call.tag(left), call.tag(right)
    left_rank, right_rank = call.rank(left), call.rank(right)
    if first is not None and first.dim == left_rank - 1:
        object_to("sums over the batch", "multiply each example by weights, not by the other examples")
    if second is not None and second.dim == max(right_rank - 2, 0):
        object_to("sums over the batch", "multiply each example by weights, not by the other examples")
    if min(left_rank, right_rank) < 2:
        return vector_product_tag(call, first, second, right_rank)
    left_axis = None if first is None else first.moved_to(first.dim + rank - left_rank)
    two = None if second is None else second.moved_to(second.dim + rank - right_rank)
    axis = left_axis or two or object_to("multiplies fixed tensors")
    if left_axis is not None and two is not None and (left_axis != two or axis.dim >= rank - 2):
        object_to("multiplies examples with other examples", "use a batched product, as in attention")
    for node, tag in ((left, first), (right, second)):
        dim = axis.dim - (rank - call.rank(node))
        if tag is None and axis.dim < rank - 2 and dim >= 0 and call.shape(node)[dim] != 1:
            object_to("lays a fixed tensor along the batch, so a result depends on its position in the batch")
    return axis


def vector_product_tag(call: Call, first: BatchAxis | None, second: BatchAxis | None, right_rank: int) -> BatchAxis:
    """Return the tag of a product with a fixed vector, whose axis disappears."""
    if first is not None and second is None:
        return first
    if second is not None and first is None:
        return second.moved_to(second.dim - (second.dim == right_rank - 1))
    object_to("multiplies examples with other examples", "use a batched product, as in attention")


@add_rule("matmul.default", rows="self other")
def matmul_tag(call: Call) -> Tags:
    """Return the tag of a product of matrices, of batches of them, or with a vector."""
    return product_tag(call, call["self"], call["other"])


@add_rule("mm.default bmm.default", rows="self mat2")
def mm_tag(call: Call) -> Tags:
    """Return the tag of a product of matrices or of batches of them."""
    return product_tag(call, call["self"], call["mat2"])


def added_tag(call: Call, axis: BatchAxis) -> BatchAxis:
    """Return `axis` if what is added has the batch there too, or is fixed and not along it."""
    added = call["self"]
    dim = axis.dim - (call.output.dim() - call.rank(added))
    tag = call.tag(added)
    if tag is None and dim >= 0 and call.shape(added)[dim] != 1:
        object_to("lays a fixed tensor along the batch, so a result depends on its position in the batch")
    if tag is not None and tag != axis.moved_to(dim):
        object_to("lets examples meet: the batch sits on different axes of its operands", "align the batch axes")
    return axis


@add_rule("addmm.default", rows="self mat1 mat2")
def addmm_tag(call: Call) -> Tags:
    """Return the tag of a product and a sum."""
    return added_tag(call, checked_product(call, "mat1", "mat2"))


@add_rule("baddbmm.default", rows="self batch1 batch2")
def baddbmm_tag(call: Call) -> Tags:
    """Return the tag of a batched product and a sum."""
    return added_tag(call, checked_product(call, "batch1", "batch2"))


def checked_product(call: Call, left: str, right: str) -> BatchAxis:
    """Return the product's tag; raise if both factors are fixed."""
    if call.tag(call[left]) is None and call.tag(call[right]) is None:
        object_to("adds a fixed product to the batch", "multiply first, then add")
    return product_tag(call, call[left], call[right])


@add_rule("einsum.default", rows="tensors")
def einsum_tag(call: Call) -> Tags:
    """Return the tag of einsum: one batch letter, in every operand with the batch, in no fixed one, in the result."""
    equation = str(call["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms, operands = left.split(","), call["tensors"]
    if not arrow or "." in equation or list(map(len, terms)) != [call.rank(operand) for operand in operands]:
        object_to("leaves axes without a letter", 'name every axis and the result, as in "btd,bsd->bts"')
    tags = [call.tag(operand) for operand in operands]
    letters = {term[tag.dim] for term, tag in zip(terms, tags, strict=True) if tag is not None}
    inside = {(tag.before, tag.after) for tag in tags if tag is not None}
    if len(letters) != 1 or len(inside) != 1:
        object_to("lets examples meet: the batch has several letters", "give the batch one letter")
    letter = letters.pop()
    if right.count(letter) != 1:
        object_to("sums over the batch", "keep the letter of the batch in the result")
    if any(term.count(letter) != (tag is not None) for term, tag in zip(terms, tags, strict=True)):
        object_to("lays a fixed tensor along the batch, or pairs examples with positions")
    return BatchAxis(right.index(letter), *inside.pop())


# -- convolutions, pooling, padding ----------------------------------------------------------------------------------


@add_rule(
    "conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding convolution.default "
    "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input",
    rows="input",
)
def convolution_tag(call: Call) -> Tags:
    """Return the tag of a convolution of (batch, channels, positions...) with fixed kernels."""
    tag = call.axis_of(call["input"])
    # An input without a batch axis is legal in torch: then the examples would be taken for channels and mixed.
    if tag.dim != 0 or call.rank(call["input"]) != call.rank(call["weight"]):
        object_to("uses the batch as channels or positions", "give it (batch, channels, ...)")
    return tag


def add_places(names: str, count: int, rows: str = "self") -> None:
    """Register operations that mix only the last `count` axes and keep all axes."""

    def places_tag(call: Call) -> Tags:
        """Return the tag of an operation on the last axes of one example."""
        (operand,) = (call[name] for name in rows.split())
        tag = call.axis_of(operand)
        if tag.dim >= call.rank(operand) - count:
            object_to(OVER_BATCH, "give it (batch, channels, ...)")
        return tag

    add_rule(names, rows=rows)(places_tag)


for count in (1, 2, 3):
    add_places(
        f"max_pool{count}d.default max_pool{count}d_with_indices.default avg_pool{count}d.default "
        f"adaptive_avg_pool{count}d.default adaptive_max_pool{count}d.default "
        f"upsample_nearest{count}d.default _upsample_nearest_exact{count}d.default "
        f"reflection_pad{count}d.default replication_pad{count}d.default",
        count,
    )
    add_places(f"upsample_nearest{count}d.vec _upsample_nearest_exact{count}d.vec", count, "input")
add_places("_adaptive_avg_pool2d.default", 2)
add_places("_adaptive_avg_pool3d.default", 3)
add_places("upsample_linear1d.default", 1)
add_places("upsample_linear1d.vec", 1, "input")
add_places("upsample_bilinear2d.default upsample_bicubic2d.default", 2)
add_places("upsample_bilinear2d.vec upsample_bicubic2d.vec", 2, "input")
add_places("upsample_trilinear3d.default", 3)
add_places("upsample_trilinear3d.vec", 3, "input")
add_places("pixel_shuffle.default pixel_unshuffle.default", 3)


@add_rule("pad.default constant_pad_nd.default", rows="self")
def pad_tag(call: Call) -> Tags:
    """Return the tag of padding, two numbers per last axis."""
    tag = call.axis_of(call["self"])
    if tag.dim >= call.rank(call["self"]) - len(call["pad"]) // 2:
        object_to("pads the batch", OWN_AXES)
    return tag


@add_rule("im2col.default", rows="self")
def patches_tag(call: Call) -> Tags:
    """Return the tag of patches of (batch, channels, height, width); three axes would be one example."""
    tag = call.axis_of(call["self"])
    if tag.dim != 0 or call.rank(call["self"]) != 4:
        object_to("uses the batch as channels", "give it (batch, channels, height, width)")
    return tag


@add_rule("channel_shuffle.default", rows="self")
def channel_shuffle_tag(call: Call) -> Tags:
    """Return the tag of a shuffle of dimension 1."""
    tag = call.axis_of(call["self"])
    if tag.dim != 0:
        object_to(OVER_BATCH, FIRST_AXIS)
    return tag


@add_rule("grid_sampler.default grid_sampler_2d.default", rows="input grid")
def grid_tag(call: Call) -> Tags:
    """Return the tag of sampling each example at its own positions."""
    tag = call.axis_of(call["input"])
    if tag.dim != 0 or call.axis_of(call["grid"]) != tag:
        object_to("lets examples meet", FIRST_AXIS)
    return tag


@add_rule("affine_grid_generator.default", rows="theta", sizes="size")
def affine_grid_tag(call: Call) -> Tags:
    """Return the tag of positions from each example's own transformation."""
    if call.tag(call["theta"]) != BatchAxis(0) or not call.is_batch(call["size"][0]):
        object_to("lets examples meet", FIRST_AXIS)
    return BatchAxis(0)


# -- normalisation ---------------------------------------------------------------------------------------------------

GROUP_NORM = "use torch.nn.GroupNorm or LayerNorm, whose statistics are each example's own"


@add_rule("layer_norm.default native_layer_norm.default rms_norm.default", rows="input")
def layer_norm_tag(call: Call) -> Tags:
    """Return the tag of statistics over the last axes."""
    tag = call.axis_of(call["input"])
    if tag.dim >= call.rank(call["input"]) - len(call["normalized_shape"]):
        object_to("takes statistics over the batch", GROUP_NORM)
    return tag


@add_rule("group_norm.default", rows="input")
def group_norm_tag(call: Call) -> Tags:
    """Return the tag of statistics per entry of the first axis: (examples, channels, ...)."""
    tag = call.axis_of(call["input"])
    if tag.dim != 0:
        object_to("takes statistics over the batch", "give it (batch, channels, ...)")
    return tag


@add_rule("instance_norm.default", rows="input")
def instance_norm_tag(call: Call) -> Tags:
    """Return the tag of statistics over positions, none kept: (examples, channels, positions...)."""
    tag = call.axis_of(call["input"])
    kept = call["running_mean"] is not None or call["running_var"] is not None or call["use_input_stats"] is not True
    if kept or tag.dim != 0 or call.rank(call["input"]) < 3:
        object_to("takes or keeps statistics over the batch", GROUP_NORM)
    return tag


@add_rule("batch_norm.default _native_batch_norm_legit_no_training.default", rows="input")
def batch_norm_tag(call: Call) -> Tags:
    """Return the tag of batch norm with fixed statistics: pointwise, one number per entry of dimension 1."""
    tag = call.axis_of(call["input"])
    fixed = call.arguments.get("training", False) is False and None not in (call["running_mean"], call["running_var"])
    if not fixed or tag.dim == 1:
        object_to("takes statistics over the batch", GROUP_NORM)
    return tag if call.name == "batch_norm.default" else (tag, None, None)


@add_rule("_native_batch_norm_legit.no_stats", rows="input")
def refuse_batch_norm(call: Call) -> Tags:
    """Raise: statistics of the current batch mix examples."""
    object_to("takes statistics over the batch", GROUP_NORM)


# -- attention and recurrences ---------------------------------------------------------------------------------------


@add_rule("scaled_dot_product_attention.default", rows="query key value attn_mask")
def attention_tag(call: Call) -> Tags:
    """Return the tag of attention within one batch, which is not on the last two axes; a mask is fixed or its own."""
    operands = [call["query"], call["key"], call["value"]]
    rank, tags = call.rank(operands[0]), {call.axis_of(operand) for operand in operands}
    tag = tags.pop()
    if tags or {call.rank(operand) for operand in operands} != {rank}:
        object_to("lets examples meet: the batch sits on different axes of its operands", "align the batch axes")
    if tag.dim >= rank - 2 or (call["enable_gqa"] and tag.dim == rank - 3):
        object_to("attends over the batch", "set batch_first=True, or keep the batch before heads and positions")
    mask = call["attn_mask"]
    if mask is not None:
        dim, own = tag.dim - (rank - call.rank(mask)), call.tag(mask)
        if own is None and dim >= 0 and call.shape(mask)[dim] != 1:
            object_to("lays a fixed mask along the batch")
        if own is not None and own != tag.moved_to(dim):
            object_to("masks examples by others", "align the batch axes")
    return tag


@add_rule("lstm.input gru.input rnn_tanh.input rnn_relu.input", rows="input hx")
def recurrence_tag(call: Call) -> Tags:
    """Return the tags of a recurrence over (batch, time, features) or (time, batch, features) and its hidden states."""
    tag = call.axis_of(call["input"])
    hidden = [call["hx"]] if isinstance(call["hx"], fx.Node) else list(call["hx"])
    if tag.dim != (0 if call["batch_first"] is True else 1) or call.rank(call["input"]) != 3:
        object_to("uses the batch as time", "set batch_first=True")
    state = tag.moved_to(1)
    if any(call.axis_of(start) != state or call.rank(start) != 3 for start in hidden):
        object_to("starts from hidden states of other examples", "omit the hidden state, or expand it")
    return (tag, *(state for _ in hidden))


@add_rule("lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default", rows="input hx")
def cell_tag(call: Call) -> Tags:
    """Return the tag of one recurrence step: (batch, features) and hidden states of the same batch."""
    tag = call.axis_of(call["input"])
    hidden = [call["hx"]] if isinstance(call["hx"], fx.Node) else list(call["hx"])
    if tag.dim != 0 or call.rank(call["input"]) != 2 or any(call.axis_of(state) != tag for state in hidden):
        object_to("starts from hidden states of other examples", "omit the hidden state, or expand it")
    return tag
