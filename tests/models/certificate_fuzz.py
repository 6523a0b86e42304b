"""Random programs of torch's operations, tagged by the rules and run for real: is every tag true?

A program is a list of calls on a batch x, on fixed tensors and on sizes. Each call is made on fake tensors with a
symbolic batch, where the rule gives its tag, and on real ones. A tag is true when changing one row of the input, to
other numbers, to zeros or to nan, leaves the other rows of the value and of the input's gradient as they were, bit by
bit, and when a batch without that row gives the other rows the same values.
"""

import operator
import random
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from sightline.models.certificate import BatchAxis, BatchPositions, BatchSize
from sightline.models.certificate.rules import RULES, Mixing
from sightline.models.certificate.walk import UNWRITTEN, tag_node

BATCH = 4
CHANGED = 2
"""The row that is changed."""
RANDOM = ("rand", "dropout", "bernoulli", "exponential", "uniform", "normal", "empty")
aten = torch.ops.aten


def overload(name: str):
    """The operation "name.overload"."""
    word, _, which = name.partition(".")
    return getattr(getattr(aten, word), which)


class Unfit(Exception):
    """torch cannot make this call, or only for one batch size."""


class Ref(int):
    """The number of a value of the program, as an argument."""


def put_in(arguments, values):
    """The arguments with values in the place of their numbers."""
    if isinstance(arguments, Ref):
        return values[arguments]
    if isinstance(arguments, list | tuple):
        return type(arguments)(put_in(one, values) for one in arguments)
    if isinstance(arguments, dict):
        return {word: put_in(one, values) for word, one in arguments.items()}
    return arguments


@dataclass
class Program:
    """Calls so far, with fake values, nodes and tags of each."""

    inputs: list[Tensor]
    batched: int
    """How many of the inputs are rows of a batch; the others are fixed."""
    calls: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.graph, self.fakes, self.nodes, self.tags = fx.Graph(), [], [], {}
        self.accepted: set[str] = set()
        self.reals: list = list(self.inputs)
        size = None
        for place, tensor in enumerate(self.inputs):
            rows = place < self.batched
            dynamic = [DimDynamic.DYNAMIC if rows and not dim else DimDynamic.STATIC for dim in range(tensor.dim())]
            if place and rows:  # the same batch size for all
                fake = self.fakes[0].new_empty((self.fakes[0].shape[0], *tensor.shape[1:]), dtype=tensor.dtype)
            else:
                context = StatelessSymbolicContext(dynamic_sizes=dynamic)
                fake = self.mode.from_tensor(tensor.detach(), symbolic_context=context)
            self._keep(self.graph.placeholder(f"x{place}"), fake, BatchAxis(0) if rows else None)
            size = self.fakes[0].shape[0].node.expr if size is None else size
        self.symbol = size

    def _keep(self, node, fake, tag) -> Ref:
        node.meta["val"] = fake
        self.nodes.append(node)
        self.fakes.append(fake)
        self.tags[node] = tag
        return Ref(len(self.nodes) - 1)

    def add(self, target, *arguments, **named) -> Ref | None:
        """Append a call when torch can make it and the rules give it a tag; None else."""
        if self.specialised:
            raise Unfit("after the batch size was fixed")
        try:
            real = target(*put_in(arguments, self.reals), **put_in(named, self.reals))
            with enable_python_dispatcher(), self.mode:
                fake = target(*put_in(arguments, self.fakes), **put_in(named, self.fakes))
        except Exception as error:  # whatever torch says of arguments that do not fit
            raise Unfit(str(error)) from None
        if self.specialised:
            raise Unfit("the batch size was fixed")
        node = self.graph.call_function(target, put_in(arguments, self.nodes), put_in(named, self.nodes))
        node.meta["val"] = fake
        try:
            tag = tag_node(node, self.tags, self.symbol)
        except Mixing:
            self.graph.erase_node(node)
            return None
        self.calls.append((target, arguments, named))
        ref = self._keep(node, fake, tag)
        self.reals.append(real)
        if tag is not None and isinstance(target, torch._ops.OpOverload):
            self.accepted.add(f"{target._schema.name.partition('::')[2]}.{target._overloadname}")
        return ref

    @property
    def specialised(self) -> bool:
        """Whether a call has fixed the batch size, after which export would give up."""
        size = self.fakes[0].shape[0]
        return not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol

    def run(self, inputs: list[Tensor]) -> list:
        """All values for these inputs, from the same random draws every time."""
        torch.manual_seed(0)
        values = list(inputs)
        for target, arguments, named in self.calls:
            values.append(target(*put_in(arguments, values), **put_in(named, values)))
        return values

    @property
    def draws(self) -> bool:
        """Whether a call draws at random."""
        return any(any(word in str(target) for word in RANDOM) for target, _, _ in self.calls)


def rows_of_value(value: Tensor, tag: BatchAxis) -> Tensor:
    """The batch on the first axis."""
    shape = list(value.shape)
    batch = shape[tag.dim] // (tag.before * tag.after)
    split = value.reshape(*shape[: tag.dim], tag.before, batch, tag.after, *shape[tag.dim + 1 :])
    return split.movedim(tag.dim + 1, 0)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def others(rows: Tensor) -> Tensor:
    return torch.cat([rows[:CHANGED], rows[CHANGED + 1 :]])


def gradients(program: Program, inputs: list[Tensor], ref: int, tag: BatchAxis, changed: bool) -> list[Tensor]:
    """The gradient of a weighted sum of a value with respect to the rows; other weights for the changed row."""
    ready = [one.detach().clone().requires_grad_(one.is_floating_point()) for one in inputs[: program.batched]]
    value = program.run([*ready, *inputs[program.batched :]])[ref]
    if not value.is_floating_point() or not value.requires_grad:
        return []
    rows = rows_of_value(value, tag)
    weights = torch.linspace(-1, 2, rows[0].numel()).view(rows[0].shape) + torch.arange(len(rows)).view(
        -1, *[1] * (rows.dim() - 1)
    )
    if changed:
        weights[CHANGED] = -3.7
    wanted = [one for one in ready if one.requires_grad]
    try:
        found = torch.autograd.grad(rows, wanted, weights, allow_unused=True)
    except RuntimeError as error:
        if "is not implemented" in str(error):
            return []
        raise
    return [one for one in found if one is not None]


KINDS = ("other", "zero", "nan", "huge")
"""What the changed row becomes."""


def false_tag(program: Program, kinds: tuple[str, ...] = KINDS) -> str | None:
    """The first value whose tag is not true, in words."""
    base = program.run(program.inputs)
    refs = [number for number, node in enumerate(program.nodes) if not isinstance(program.fakes[number], tuple | list)]
    for kind in kinds:
        inputs = [change_row(one, kind) if place < program.batched else one for place, one in enumerate(program.inputs)]
        try:
            moved = program.run(inputs)
        except RuntimeError:  # no probability, no index
            continue
        for ref in refs:
            tag = program.tags[program.nodes[ref]]
            if isinstance(tag, BatchSize | BatchPositions) or not isinstance(base[ref], Tensor):
                continue
            if tag is None:
                if not same_bits(base[ref], moved[ref]):
                    return f"{describe(program, ref)}: batch-free, and changes with a row ({kind})"
            elif not same_bits(others(rows_of_value(base[ref], tag)), others(rows_of_value(moved[ref], tag))):
                return f"{describe(program, ref)}: {tag}, and other rows change with a row ({kind})"
        last = refs[-1]
        tag = program.tags[program.nodes[last]]
        if isinstance(tag, BatchAxis):
            before = gradients(program, program.inputs, last, tag, changed=False)
            after = gradients(program, inputs, last, tag, changed=True)
            for one, two in zip(before, after, strict=True):
                if not same_bits(others(one), others(two)):
                    return f"{describe(program, last)}: {tag}, and other rows' gradients change ({kind})"
    return smaller_batch(program, base, refs)


def change_row(tensor: Tensor, kind: str) -> Tensor:
    """The tensor with another row in one place."""
    moved = tensor.clone()
    if not tensor.is_floating_point():
        moved[CHANGED] = (tensor[CHANGED] + 1) % 3
    elif kind == "other":
        moved[CHANGED] = tensor[CHANGED].flip(-1) * 1.7 - 0.3
    else:
        moved[CHANGED] = {"zero": 0.0, "nan": float("nan"), "huge": 1e30}[kind]
    return moved


def smaller_batch(program: Program, base: list, refs: list[int]) -> str | None:
    """Whether a row's values depend on how many rows there are."""
    if program.draws:
        return None
    fewer = program.run([others(one) if k < program.batched else one for k, one in enumerate(program.inputs)])
    for ref in refs:
        tag = program.tags[program.nodes[ref]]
        if not isinstance(base[ref], Tensor) or isinstance(tag, BatchSize | BatchPositions):
            continue
        one, two = base[ref], fewer[ref]
        if isinstance(tag, BatchAxis):
            one, two = others(rows_of_value(one, tag)), rows_of_value(two, tag)
        if one.shape != two.shape or not torch.allclose(one.double(), two.double(), 1e-4, 1e-4, equal_nan=True):
            return f"{describe(program, ref)}: {tag}, and depends on the number of rows"
    return None


def describe(program: Program, ref: int) -> str:
    """The program up to a value, in short."""
    lines = [f"{len(program.inputs) + k}={str(c[0]).removeprefix('aten.')}{c[1]}{c[2] or ''}" for k, c in
             enumerate(program.calls[: ref + 1 - len(program.inputs)])]  # fmt: skip
    return f"inputs {[tuple(one.shape) for one in program.inputs]}: " + "; ".join(lines)


# -- arguments drawn at random ---------------------------------------------------------------------------------------


class Drawer:
    """Arguments for the operations, mostly ones that can be called, often with odd axes."""

    def __init__(self, seed: int, *, tokens: bool = False) -> None:
        self.dice = random.Random(seed)
        generator = torch.Generator().manual_seed(seed % 2**31)
        rank = self.dice.choice([1, 2, 2, 3])
        shape = [self.dice.choice([1, 2, 3, 4, 6]) for _ in range(rank)]
        inputs = [torch.randn((BATCH, *shape), generator=generator)]
        inputs.append(torch.randn((BATCH, *shape), generator=generator))
        inputs.append(torch.randint(3, (BATCH, *shape), generator=generator))
        fixed = [torch.randn(shape, generator=generator), torch.randn((shape[-1], 3), generator=generator),
                 torch.randn((4, shape[-1]), generator=generator), torch.randint(3, (5,), generator=generator),
                 torch.randn((1, *shape), generator=generator), torch.randn((), generator=generator),
                 torch.randn((BATCH, *shape), generator=generator)]  # fmt: skip
        self.program = Program([*inputs, *fixed], 3)
        self.size = self.program.add(aten.sym_size.int, Ref(0), 0)

    def tensors(self, *, rows: bool = False) -> list[Ref]:
        """The numbers of values that are tensors."""
        found = [Ref(k) for k, fake in enumerate(self.program.fakes) if isinstance(fake, Tensor)]
        if rows:
            found = [ref for ref in found if isinstance(self.program.tags[self.program.nodes[ref]], BatchAxis)]
        return found

    def tensor(self) -> Ref:
        """A value, mostly one with rows and mostly a late one."""
        found = self.tensors(rows=self.dice.random() < 0.8)
        real = [ref for ref in found if self.program.fakes[ref].is_floating_point()]
        found = real if real and self.dice.random() < 0.85 else found
        return found[-1] if self.dice.random() < 0.5 else self.dice.choice(found)

    def shape(self, ref: int) -> list:
        return list(self.program.fakes[ref].shape)

    def argument(self, name: str, kind: str, first: Ref | None):
        """A value for an argument of this type."""
        rank = len(self.shape(first)) if first is not None else 2
        dim = lambda: self.dice.randrange(-rank, rank) if rank else 0  # noqa: E731
        if kind == "List[Tensor]":
            return [self.tensor() for _ in range(self.dice.choice([1, 2, 2, 3]))]
        if kind in ("Tensor", "Optional[Tensor]"):
            return self.tensor()
        if "dim" in name or "axis" in name:
            several = "List" in kind or "[]" in kind
            return [dim() for _ in range(self.dice.choice([0, 1, 1, 2]))] if several else dim()
        if name == "rounding_mode":
            return self.dice.choice(["floor", "trunc"])
        if kind == "bool":
            return self.dice.random() < 0.5
        if kind.startswith("List[int]") or "[]" in kind:
            return [self.dice.choice([1, 1, 2, 0]) for _ in range(self.dice.choice([1, 2, 4]))]
        if kind in ("int", "SymInt"):
            return self.dice.choice([0, 1, 1, 2, -1, 3])
        return self.dice.choice([0.5, 2.0, -1.0, 1.0, 0.25])

    def new_shape(self, ref: Ref) -> list:
        """Another shape of as many numbers, the batch size among them where it was."""
        shape = self.shape(ref)
        if not all(isinstance(size, int) or (size.node.expr / self.program.symbol).is_Integer for size in shape):
            raise Unfit("positions of the batch")
        flat: list = []
        for size in shape:  # factors in order; the batch is one of them
            if isinstance(size, torch.SymInt):
                rest = size.node.expr / self.program.symbol
                flat += [int(rest)] if self.dice.random() < 0.5 and rest != 1 else []
                flat.append("batch")
                flat += [int(rest)] if flat[-2:-1] != [int(rest)] and rest != 1 else []
            else:
                flat += (2, size // 2) if size % 2 == 0 and size > 2 else (size,)
        if self.dice.random() < 0.2:
            self.dice.shuffle(flat)
        groups: list[list] = []
        for one in flat:
            if groups and self.dice.random() < 0.5:
                groups[-1].append(one)
            else:
                groups.append([one])
        return [self.sized(group) for group in groups]

    def sized(self, group: list):
        """The product of some factors, as a number or as a node of the program."""
        number = prod(one for one in group if one != "batch")
        if "batch" not in group:
            return number
        return self.size if number == 1 else self.program.add(operator.mul, self.size, number)

    def call(self, name: str) -> Ref | None:
        """Try one call of an operation with arguments drawn at random."""
        target = overload(name)
        words = (name.replace(".", "_"), name.partition(".")[0])
        special = next((f for w in words if (f := getattr(self, "args_" + w.lstrip("_"), None)) is not None), None)
        if special is not None:
            made = special()
            return None if made is None else self.program.add(target, *made)
        arguments: list = []
        first = None
        named = {}
        for one in target._schema.arguments:
            if one.has_default_value() and self.dice.random() < 0.5 and "dim" not in one.name:
                if not one.kwarg_only:
                    arguments.append(one.default_value)
                continue
            if one.name in ("generator", "layout", "device", "pin_memory", "memory_format", "dtype", "implicit"):
                if not one.kwarg_only:
                    arguments.append(torch.float32 if one.name == "dtype" else None)
                continue
            value = self.argument(one.name, str(one.type), first)
            first = value if first is None and isinstance(value, Ref) else first
            if one.kwarg_only:
                named[one.name] = value
            else:
                arguments.append(value)
        return self.program.add(target, *arguments, **named)

    # operations whose arguments want to fit together

    def last(self) -> int:
        return self.shape(self.tensor())[-1]

    def fixed(self, *shape: int) -> Ref:
        return self.program.add(aten.full.default, list(shape), 0.3)

    def args_view(self):
        ref = self.tensor()
        return ref, self.new_shape(ref)

    args_reshape = args_unsafe_view = args_view

    def args_expand(self):
        ref = self.tensor()
        sizes = [3 if size == 1 and self.dice.random() < 0.5 else -1 for size in self.shape(ref)]
        lead = [self.dice.choice([self.size, 2])] if self.dice.random() < 0.5 else []
        return ref, lead + sizes

    def args_repeat(self):
        ref = self.tensor()
        times = [self.dice.choice([1, 1, 2, self.size]) for _ in self.shape(ref)]
        return ref, ([self.size] if self.dice.random() < 0.3 else []) + times

    def args_linear(self):
        ref = self.tensor()
        return ref, self.fixed(3, self.concrete(self.shape(ref)[-1])), None

    def concrete(self, size) -> int:
        """A size as a number; where it holds the batch, what it is at first."""
        return size.node.hint if isinstance(size, torch.SymInt) else size

    def args_mm(self):
        ref = self.tensor()
        other = self.tensor() if self.dice.random() < 0.5 else self.fixed(self.concrete(self.shape(ref)[-1]), 2)
        if self.dice.random() < 0.5 and len(self.shape(other)) == 2:
            other = self.program.add(aten.t.default, other) or other
        return ref, other

    def args_matmul(self):
        ref, other = self.args_mm()
        if self.dice.random() < 0.5 and len(self.shape(other)) > 1:
            other = self.program.add(aten.transpose.int, other, -1, -2) or other
        return (ref, other) if self.dice.random() < 0.6 else (other, ref)

    args_bmm = args_matmul

    def args_addmm(self):
        return self.fixed(1, 2), *self.args_mm()

    def args_baddbmm(self):
        ref = self.to_rank(3)
        other = self.program.add(aten.transpose.int, ref, -1, -2) if self.dice.random() < 0.7 else self.tensor()
        return self.fixed(1, 1, 1), ref, other or ref

    def args_einsum(self):
        refs = [self.tensor() for _ in range(self.dice.choice([1, 2]))]
        letters = "".join(self.dice.sample("abcd", 4))
        words = [letters[: len(self.shape(ref))] for ref in refs]
        if self.dice.random() < 0.3:
            words[-1] = words[-1][::-1]
        used = sorted(set("".join(words)))
        right = "".join(self.dice.sample(used, self.dice.randrange(1, len(used) + 1)))
        return ",".join(words) + "->" + right, refs

    def to_rank(self, rank: int) -> Ref:
        """Return a value with `rank` axes."""
        ref = self.tensor()
        while len(self.shape(ref)) < rank:
            added = self.program.add(aten.unsqueeze.default, ref, self.dice.randrange(-1, 2))
            if added is None:
                return ref
            ref = added
        return ref

    def args_conv(self, places: int):
        ref = self.to_rank(places + self.dice.choice([1, 2, 2, 2]))
        channels = self.concrete(self.shape(ref)[-places - 1])
        return ref, self.fixed(2, channels, *[1] * places), None

    def args_conv1d(self):
        return self.args_conv(1)

    def args_conv2d(self):
        return self.args_conv(2)

    def args_conv3d(self):
        return self.args_conv(3)

    def args_conv_transpose(self, places: int):
        ref = self.to_rank(places + self.dice.choice([1, 2, 2]))
        return ref, self.fixed(self.concrete(self.shape(ref)[-places - 1]), 2, *[2] * places), None

    def args_conv_transpose1d(self):
        return self.args_conv_transpose(1)

    def args_conv_transpose2d(self):
        return self.args_conv_transpose(2)

    def args_conv_transpose3d(self):
        return self.args_conv_transpose(3)

    def args_convolution(self):
        ref, weight, _ = self.args_conv(2)
        return ref, weight, None, [1, 1], [1, 0], [1, 1], False, [0, 0], 1

    def args_layer_norm(self):
        ref = self.tensor()
        count = self.dice.choice([1, 1, 2])
        return ref, [self.concrete(one) for one in self.shape(ref)[-count:]]

    args_rms_norm = args_layer_norm

    def args_native_layer_norm(self):
        return *self.args_layer_norm(), None, None, 1e-5

    def args_group_norm(self):
        return self.to_rank(self.dice.choice([2, 3, 4])), self.dice.choice([1, 1, 2]), None, None

    def args_instance_norm(self):
        return self.to_rank(self.dice.choice([2, 3, 4])), None, None, None, None, True, 0.1, 1e-5, False

    def args_batch_norm(self):
        ref = self.to_rank(2)
        channels = self.concrete(self.shape(ref)[1])
        mean, var = self.fixed(channels), self.fixed(channels)
        return ref, None, None, mean, var, self.dice.random() < 0.2, 0.1, 1e-5, False

    def args_native_batch_norm_legit_no_training(self):
        return *self.args_batch_norm()[:5], 0.1, 1e-5

    def args_native_batch_norm_legit(self):
        return None

    def args_scaled_dot_product_attention(self):
        ref = self.to_rank(self.dice.choice([2, 3, 4]))
        other = ref if self.dice.random() < 0.6 else self.tensor()
        mask = None
        if self.dice.random() < 0.4:
            length = self.concrete(self.shape(ref)[-2])
            mask = self.fixed(*self.dice.choice([(length, length), (1, length, length), (BATCH, length, length)]))
        return ref, other, ref, mask, 0.0, mask is None and self.dice.random() < 0.5

    def args_rnn(self, gates: int, states: int):
        ref = self.to_rank(3)
        width = self.concrete(self.shape(ref)[-1])
        first = self.dice.random() < 0.5
        middle = self.shape(ref)[0 if first else 1]
        sizes = [1, self.size if isinstance(middle, torch.SymInt) else middle, 2]
        hidden = [self.program.add(aten.zeros.default, sizes) for _ in range(states)]
        weights = [self.fixed(2 * gates, width), self.fixed(2 * gates, 2)]
        return ref, hidden if states == 2 else hidden[0], weights, False, 1, 0.0, True, False, first

    def args_lstm(self):
        return self.args_rnn(4, 2)

    def args_gru(self):
        return self.args_rnn(3, 1)

    def args_rnn_tanh(self):
        return self.args_rnn(1, 1)

    args_rnn_relu = args_rnn_tanh

    def args_cell(self, gates: int, states: int):
        ref = self.to_rank(2)
        width = self.concrete(self.shape(ref)[-1])
        hidden = self.program.add(aten.zeros.default, [self.size, 2])
        return ref, [hidden] * states if states == 2 else hidden, self.fixed(2 * gates, width), self.fixed(2 * gates, 2)

    def args_lstm_cell(self):
        return self.args_cell(4, 2)

    def args_gru_cell(self):
        return self.args_cell(3, 1)

    def args_rnn_tanh_cell(self):
        return self.args_cell(1, 1)

    args_rnn_relu_cell = args_rnn_tanh_cell

    def whole(self) -> Ref:
        """A value of whole numbers in 0, 1, 2."""
        found = [ref for ref in self.tensors() if self.program.fakes[ref].dtype == torch.int64]
        ref = self.dice.choice(found)
        return self.program.add(aten.remainder.Scalar, ref, 3) or ref

    def args_embedding(self):
        return self.fixed(3, 2), self.whole(), -1, False, False

    def args_one_hot(self):
        return self.whole(), 3

    def args_bucketize(self):
        return self.tensor(), self.program.add(aten.arange.default, 3, dtype=torch.float32)

    def args_index(self):
        ref = self.tensor() if self.dice.random() < 0.7 else self.fixed(3, 3, 2)
        positions = self.program.add(aten.arange.default, self.size)
        if self.dice.random() < 0.3:
            positions = self.program.add(aten.unsqueeze.default, positions, self.dice.choice([0, 1]))
        choices = [None, positions, self.program.add(aten.zeros.default, [2], dtype=torch.int64)]
        small = self.program.add(aten.zeros_like.default, self.whole())
        choices.append(small)
        return ref, [self.dice.choice(choices) for _ in range(self.dice.choice([1, 2, 2, 3]))]

    def args_index_select(self):
        index = self.program.add(aten.zeros_like.default, self.whole())
        ref = self.tensor()
        return ref, self.dice.randrange(-1, len(self.shape(ref))), index

    def indices(self):
        ref = self.tensor()
        index = self.program.add(aten.zeros_like.default, ref, dtype=torch.int64)
        return ref, self.dice.randrange(-len(self.shape(ref)), len(self.shape(ref))), index

    def args_gather(self):
        return self.indices()

    def args_scatter(self):
        return *self.indices(), 0.5

    def args_scatter_add(self):
        ref, dim, index = self.indices()
        return ref, dim, index, ref

    def args_slice(self):
        ref = self.tensor()
        dim = self.dice.randrange(-len(self.shape(ref)), len(self.shape(ref)))
        return ref, dim, self.dice.choice([0, 0, 1, None]), self.dice.choice([1 << 63 - 1, 2, self.size, -1, None]), 1

    def args_slice_scatter(self):
        ref = self.tensor()
        return ref, ref, self.dice.randrange(0, len(self.shape(ref))), 0, 2**63 - 1

    def args_select_scatter(self):
        ref = self.tensor()
        dim = self.dice.randrange(-len(self.shape(ref)), len(self.shape(ref)))
        return ref, self.program.add(aten.select.int, ref, dim, 0) or ref, dim, -1

    def args_prelu(self):
        ref = self.tensor()
        return ref, self.fixed(self.concrete(self.shape(ref)[1]) if self.dice.random() < 0.7 else 1)

    def args_bernoulli_default(self):
        return (self.program.add(aten.sigmoid.default, self.tensor()),)

    def mask(self) -> Ref:
        return self.program.add(aten.gt.Scalar, self.tensor(), 0)

    def args_masked_fill_Scalar(self):
        return self.tensor(), self.mask(), 0.5

    def args_where(self):
        return self.mask(), self.tensor(), self.tensor()

    def args_where_Scalar(self):
        return self.mask(), 0.5, 2.0

    def args_where_ScalarOther(self):
        return self.mask(), self.tensor(), 0.5

    def args_where_ScalarSelf(self):
        return self.program.add(aten.gt.Scalar, self.tensor(), 0), 0.5, self.tensor()

    def args_fill_Tensor(self):
        return self.tensor(), self.fixed()

    def args_masked_fill_Tensor(self):
        ref = self.tensor()
        return ref, self.program.add(aten.gt.Scalar, self.tensor(), 0), self.fixed()

    def args_scatter_src(self):
        return self.args_scatter_add()

    def args_bilinear(self):
        one, two = self.tensor(), self.tensor()
        widths = [self.concrete(self.shape(ref)[-1]) for ref in (one, two)]
        return one, two, self.fixed(2, *widths)

    def args_unsafe_chunk(self):
        ref = self.tensor()
        return ref, self.dice.choice([1, 2]), self.dice.randrange(-1, len(self.shape(ref)))

    def args_bitwise_and_Scalar(self):
        return self.whole(), 1

    args_bitwise_or_Scalar = args_bitwise_xor_Scalar = args_bitwise_and_Scalar
    args_and___Scalar = args_or___Scalar = args_xor___Scalar = args_bitwise_and_Scalar

    def args_arange(self):
        return None

    def args_arange_start(self):
        return self.dice.choice([0, 0, 1]), self.size

    args_arange_start_step = args_arange_start

    def args_randint(self):
        return 3, self.sizes()

    def args_randint_low(self):
        return -1, 3, self.sizes()

    def sizes(self):
        return [self.dice.choice([self.size, 2, 1]) for _ in range(self.dice.choice([1, 2, 3]))]

    def args_zeros(self):
        return (self.sizes(),)

    args_ones = args_rand = args_randn = args_zeros

    def args_full(self):
        return self.sizes(), self.dice.choice([0.5, self.size])

    def args_new_zeros(self):
        return self.tensor(), self.sizes()

    args_new_ones = args_new_zeros

    def args_new_full(self):
        return self.tensor(), self.sizes(), 0.5

    def places(self, count: int):
        return self.to_rank(count + self.dice.choice([1, 2, 2])), [1] * count

    def args_grid_sampler(self):
        ref = self.to_rank(4)
        return ref, self.program.add(aten.full.default, [self.size, 2, 2, 2], 0.1), 0, 0, False

    args_grid_sampler_2d = args_grid_sampler

    def args_affine_grid_generator(self):
        return self.program.add(aten.full.default, [self.size, 2, 3], 0.1), [self.size, 2, 2, 2], False

    def args_im2col(self):
        return self.to_rank(self.dice.choice([3, 4])), [1, 1], [1, 1], [0, 0], [1, 1]

    def args_pad(self):
        ref = self.tensor()
        return ref, [self.dice.choice([0, 1]) for _ in range(2 * self.dice.choice([1, 1, 2, len(self.shape(ref))]))]

    args_constant_pad_nd = args_pad


for places in (1, 2, 3):  # the same arguments for all kinds of pooling
    for word in ("max_pool", "avg_pool"):
        setattr(Drawer, f"args_{word}{places}d", lambda self, p=places: self.places(p))
        setattr(Drawer, f"args_{word}{places}d_with_indices", lambda self, p=places: self.places(p))
    for word in ("adaptive_avg_pool", "adaptive_max_pool", "upsample_nearest", "upsample_nearest_exact"):
        setattr(Drawer, f"args_{word}{places}d", lambda self, p=places: self.places(p))
    for word in ("reflection_pad", "replication_pad"):
        setattr(Drawer, f"args_{word}{places}d", lambda self, p=places: (self.places(p)[0], [0, 0] * p))
for word in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d"):
    setattr(Drawer, f"args_upsample_{word}", lambda self, p=int(word[-2]): (*self.places(p), False))

SKIPPED = UNWRITTEN | {name for name in RULES if name.endswith(".vec")}
"""Read elsewhere: unwritten memory has no value to compare, `.vec` is the same operation by other arguments."""


def random_program(seed: int, length: int, names: list[str]) -> Drawer:
    """Draw a program in `length` tries; leave out what torch cannot call or the rules refuse."""
    drawer = Drawer(seed)
    for _ in range(length):
        with suppress(Unfit, IndexError, ValueError):  # no such axis, nothing to draw from
            drawer.call(drawer.dice.choice(names))
    return drawer
