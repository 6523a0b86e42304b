"""Train linear and small convolutional clients in compiled code, one call per client."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel, Slot, flatten_module, probe_inputs
from sightline.models.task import probe_targets
from sightline.training.compiled.kernel_calls import (
    NOTHING,
    RELU,
    TANH,
    ConvSettings,
    ConvStage,
    LinearSettings,
    array_pointer,
)
from sightline.training.compiled.library import Missing, find_library
from sightline.training.dispatch import dense_layers
from sightline.training.fast.chains import flat_children, size_pair
from sightline.training.fast.graph_worker import close_by_tensor
from sightline.training.fast.stacked import Block, PlainRun
from sightline.training.gradients import GradientWorker
from sightline.training.local_work import Descent, LocalTerms, LocalWork, batch_table, client_rows, shuffled_batches


# Clipping of examples is not compiled. These kernels take plain steps, and their result is clipped, summed and noised
# by the same code as any other update: wrong numbers would cost accuracy, never epsilon. One claim rests on the steps:
# with `step_norm` no step is longer. The convolutional walk sums that norm in double and scales whatever is not inside
# the ball, NaN too.
def check_kernel(model: FlatModel) -> None:
    """Raise unless the kernel supports this model and compiled code is available."""
    if not model.task.classic:
        other = model.task.loss_name or model.task.name
        reason = f"compiled code computes only the gradient of cross entropy, not of {other}"
        invalid("local.compiled", True, reason, "remove local.compiled")
    layers = dense_layers(model)
    if layers is None or len(layers) != 1:
        invalid(
            "local.compiled", True, f"compiled code trains linear models, not {model.name}", "remove local.compiled"
        )
    kernel_library()


def kernel_library() -> ctypes.CDLL:
    """Return the library; raise if there is none."""
    library = find_library()
    if isinstance(library, Missing):
        invalid("local.compiled", True, library.reason, library.way_out)
    return library


def train_compiled(run: PlainRun, clients: NDArray[np.intp]) -> Iterator[Block]:
    """Train one linear client after the other; a client's end has the same bits in any cohort.

    Guarantees: labels outside the classes are refused before the kernel reads them.
    """
    check_kernel(run.model)
    ends = torch.stack([client_rows(run.starts, client) for client in clients.tolist()]).contiguous()
    for end, client in zip(ends, clients.tolist(), strict=True):
        if run.steps[client]:
            _walk_linear_client(run, end, client)
    yield clients, ends


def _walk_linear_client(run: PlainRun, end: Tensor, client: int) -> None:
    """Move one client's weights, in place, through all its steps."""
    work, shard = run.work, run.shards[client]
    x, y = shard_examples(shard, run.model)
    batches = step_table(run, client)
    descent = Descent.begin(work, run.terms, end, client)
    settings = LinearSettings(
        x.shape[1], run.model.classes, len(run.model.layout) - 1, batches.shape[1],
        work.learning_rate, work.momentum, work.weight_decay, descent.proximal, work.step_norm or 0.0,
    )  # fmt: skip
    parts = (end, descent.velocity, torch.empty_like(end), torch.empty(run.model.classes))
    terms, kept = term_pointers(descent)
    pointers = [None if part is None else ctypes.c_void_p(part.data_ptr()) for part in parts]
    data = [array_pointer(array) for array in (x, y, batches)]
    kernel_library().sightline_walk(ctypes.byref(settings), *pointers, *terms, *data, len(batches))
    # The kernel reads these tensors by pointer: they must live until it returns.
    del kept


def shard_examples(shard: Shard, model: FlatModel) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return examples and labels as the kernels read them; raise for other shapes and labels outside the classes."""
    if shard.x.shape[1:] != model.input_shape:
        invalid("examples", shard.x.shape[1:], f"{model.name} takes examples of shape {model.input_shape}")
    x = np.ascontiguousarray(shard.x.reshape(len(shard), -1), np.float32)
    y = np.ascontiguousarray(shard.y, np.int64)
    # C indexes by these labels without a check of its own.
    if y.min() < 0 or y.max() >= model.classes:
        invalid("label", int(y.min() if y.min() < 0 else y.max()), f"labels are 0 to {model.classes - 1}")
    return x, y


def term_pointers(descent: Descent) -> tuple[list[ctypes.c_void_p | None], list[Tensor | None]]:
    """Return pointers to anchor, linear term and mask, and the tensors that must outlive them."""
    terms = (descent.anchor, descent.linear, descent.mask)
    kept = [None if term is None else term.to(torch.float32).contiguous() for term in terms]
    return [None if term is None else ctypes.c_void_p(term.data_ptr()) for term in kept], kept


def step_table(run: PlainRun, client: int) -> NDArray[np.int64]:
    """Return (steps, b) rows of the client's shard, padded with -1."""
    examples, steps = len(run.shards[client]), run.steps[client]
    if run.work.batch_size is None:
        return np.tile(np.arange(examples), (steps, 1))
    width = min(run.work.batch_size, examples)
    return batch_table(examples, run.work, steps, run.rngs[client], width=width, first=0, nothing=-1)


MOST_STAGES = 32
"""The kernel's limit on layers."""

EXAMPLE_FLOATS = 1 << 18
"""Most numbers that one example may take in the kernel; larger networks are faster with torch's kernels."""

CHUNK, CHUNK_FLOATS = 16, 1 << 20
"""Examples computed at once, and their memory limit in numbers; a function of the model only."""


class NotWalkable(Exception):
    """Why the kernel cannot train a model."""


@dataclass(frozen=True, eq=False)
class WalkKernel:
    """The compiled training walk of one model."""

    library: ctypes.CDLL
    stages: tuple[ConvStage, ...]
    chunk: int

    def settings(self, model: FlatModel, work: LocalWork, proximal: float, width: int) -> ConvSettings:
        """Return the kernel's settings for these steps."""
        return ConvSettings(
            len(self.stages), model.classes, model.parameters, width, self.chunk,
            work.learning_rate, work.momentum, work.weight_decay, proximal, work.step_norm or 0.0,
        )  # fmt: skip


KERNELS: WeakKeyDictionary[FlatModel, WalkKernel | str] = WeakKeyDictionary()


def walk_kernel_for(model: FlatModel) -> WalkKernel | str:
    """Return the compiled walk of this model if it passes the probe, else the reason why not."""
    if model not in KERNELS:
        KERNELS[model] = _choose_kernel(model)
    return KERNELS[model]


def _choose_kernel(model: FlatModel) -> WalkKernel | str:
    try:
        stages = read_stages(model)
        chunk = chunk_of(stages)
    except NotWalkable as reason:
        return str(reason)
    library = find_library()
    if isinstance(library, Missing):
        return library.reason
    kernel = WalkKernel(library, stages, chunk)
    return (
        kernel if agrees_with_autograd(kernel, model) else f"compiled steps of {model.name} are not those of autograd"
    )


def chunk_of(stages: tuple[ConvStage, ...]) -> int:
    """Return how many examples are computed at once; raise `NotWalkable` for large networks."""
    floats, depth = 0, stages[0].channels
    for stage in stages:
        tall, wide = output_size(stage)
        image = (stage.height + 2 * stage.pad_h) * (stage.width + 2 * stage.pad_w)
        lanes = -(-stage.outputs // 16) * 16
        floats += 2 * image * depth + tall * wide * (3 * lanes + 1)
        depth = lanes
    if floats > EXAMPLE_FLOATS:
        raise NotWalkable(f"one example takes {floats} numbers, and compiled code is for up to {EXAMPLE_FLOATS}")
    return max(1, min(CHUNK, CHUNK_FLOATS // floats))


def output_size(stage: ConvStage) -> tuple[int, int]:
    """Return height and width of a stage's convolution."""
    tall = (stage.height + 2 * stage.pad_h - stage.kernel_h) // stage.stride_h + 1
    return tall, (stage.width + 2 * stage.pad_w - stage.kernel_w) // stage.stride_w + 1


def read_stages(model: FlatModel) -> tuple[ConvStage, ...]:
    """Return the stages of a chain; raise `NotWalkable` for anything else."""
    module = model.module()
    if type(module) is not nn.Sequential or len(model.input_shape) != 3:
        raise NotWalkable(f"{model.name} is not a chain of layers on images")
    if not model.task.classic or model.device.type != "cpu":
        raise NotWalkable("compiled code has the gradient of cross entropy, on the CPU")
    chain = ChainReader(model)
    for name, layer in flat_children(module):
        chain.read_layer(name, layer)
    return chain.finish(model.classes)


class ChainReader:
    """Translation of a chain of layers into stages."""

    def __init__(self, model: FlatModel) -> None:
        self.slots: dict[str, Slot] = {slot.name: slot for slot in model.layout}
        self.size: tuple[int, ...] = model.input_shape
        self.stages: list[ConvStage] = []
        self.flat = False

    def read_layer(self, name: str, layer: nn.Module) -> None:
        """Add a layer to the stages; raise `NotWalkable` if the kernel does not support it here."""
        # Exact types: a subclass may compute something else.
        kind = type(layer)
        if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d and not self.flat:
            self.add_convolution(name, layer)
        elif isinstance(layer, nn.Linear) and kind is nn.Linear and self.flat and layer.in_features == prod(self.size):
            self.add_stage(name, layer, layer.out_features, (self.size[1], self.size[2]), (1, 1), (0, 0))
        elif isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d and self.stages and not self.flat:
            self.add_pool(layer)
        elif kind in (nn.ReLU, nn.Tanh) and self.stages and self.stages[-1].after == NOTHING:
            self.stages[-1].after = RELU if kind is nn.ReLU else TANH
        elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1) and not self.flat:
            self.flat = True
        else:
            raise NotWalkable(f"{name} ({kind.__name__}) is not what compiled code has at this place")

    def add_convolution(self, name: str, layer: nn.Conv2d) -> None:
        """Add a plain convolution: no groups, no dilation, zero padding."""
        plain = layer.groups == 1 and size_pair(layer.dilation) == (1, 1) and layer.padding_mode == "zeros"
        if not plain or isinstance(layer.padding, str) or layer.in_channels != self.size[0]:
            raise NotWalkable(f"{name} is not a plain convolution")
        how = (size_pair(layer.kernel_size), size_pair(layer.stride), size_pair(layer.padding))
        self.add_stage(name, layer, layer.out_channels, *how)

    def add_stage(
        self, name: str, layer: nn.Conv2d | nn.Linear, outputs: int, kernel: tuple[int, int], stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> None:  # fmt: skip
        """Add a stage with trained tensors."""
        weight, bias = self.slots.get(f"{name}.weight"), self.slots.get(f"{name}.bias")
        if weight is None or (layer.bias is not None and bias is None):
            raise NotWalkable(f"{name} is not trained")
        nothing = (NOTHING, 0, 0, 0, 0, 0, 0, NOTHING)
        offsets = (weight.start, -1 if bias is None else bias.start)
        stage = ConvStage(*self.size, outputs, *kernel, *stride, *padding, *nothing, *offsets)
        self.size = (outputs, *output_size(stage))
        self.stages.append(stage)

    def add_pool(self, layer: nn.MaxPool2d) -> None:
        """Add a max pool to the last stage; ReLU before it becomes ReLU after it, since both select the same pixel."""
        stage = self.stages[-1]
        plain = size_pair(layer.dilation) == (1, 1) and not layer.ceil_mode and not layer.return_indices
        if not plain or stage.pool_h:
            raise NotWalkable("a pool with dilation, ceil_mode or indices, or one behind another")
        if stage.after == TANH:
            stage.before, stage.after = TANH, NOTHING
        stage.pool_h, stage.pool_w = size_pair(layer.kernel_size)
        stage.pool_stride_h, stage.pool_stride_w = size_pair(layer.stride)
        stage.pool_pad_h, stage.pool_pad_w = size_pair(layer.padding)
        tall = (self.size[1] + 2 * stage.pool_pad_h - stage.pool_h) // stage.pool_stride_h + 1
        wide = (self.size[2] + 2 * stage.pool_pad_w - stage.pool_w) // stage.pool_stride_w + 1
        self.size = (self.size[0], tall, wide)

    def finish(self, classes: int) -> tuple[ConvStage, ...]:
        """Return the stages; raise `NotWalkable` unless the chain maps images to class logits."""
        ends = self.flat and self.stages and self.size == (classes, 1, 1)
        if not ends or self.stages[-1].after != NOTHING or self.stages[-1].pool_h or len(self.stages) < 2:
            raise NotWalkable("compiled code is for convolutions followed by dense layers, the last without activation")
        if len(self.stages) > MOST_STAGES:
            raise NotWalkable(f"compiled code has room for {MOST_STAGES} layers")
        return tuple(self.stages)


def train_walked(run: PlainRun, clients: NDArray[np.intp]) -> Iterator[Block]:
    """Train one convolutional client after the other; a client's end has the same bits in any cohort.

    Guarantees: labels outside the classes and examples of another size are refused before the kernel reads them.
    """
    kernel = walk_kernel_for(run.model)
    if isinstance(kernel, str):
        invalid("paths.plain", "compiled", kernel, "use another path")
    yield clients, walk_clients(kernel, run, clients)


def walk_clients(kernel: WalkKernel, run: PlainRun, clients: NDArray[np.intp]) -> Tensor:
    """Return the end vectors of these clients."""
    ends = torch.stack([client_rows(run.starts, client) for client in clients.tolist()]).contiguous()
    memory: list[NDArray[np.uint8]] = []
    for end, client in zip(ends, clients.tolist(), strict=True):
        if run.steps[client]:
            _walk_client(kernel, run, end, client, memory)
    return ends


def _walk_client(kernel: WalkKernel, run: PlainRun, end: Tensor, client: int, memory: list[NDArray[np.uint8]]) -> None:
    """Move one client's weights, in place, through all its steps; `memory` is reused between clients."""
    x, y = shard_examples(run.shards[client], run.model)
    batches = step_table(run, client)
    descent = Descent.begin(run.work, run.terms, end, client)
    settings = kernel.settings(run.model, run.work, descent.proximal, batches.shape[1])
    stages = (ConvStage * len(kernel.stages))(*kernel.stages)
    if not memory:
        memory.append(np.empty(kernel.library.sightline_conv_bytes(ctypes.byref(settings), stages), np.uint8))
    terms, kept = term_pointers(descent)
    data = [array_pointer(array) for array in (x, y, batches)]
    kernel.library.sightline_conv_walk(
        ctypes.byref(settings), stages, array_pointer(memory[0]), end.data_ptr(), *terms, *data, len(batches)
    )
    # The kernel reads these tensors by pointer: they must live until it returns.
    del kept


def agrees_with_autograd(kernel: WalkKernel, model: FlatModel) -> bool:
    """Return whether a few steps of two probe clients end, tensor by tensor, where autograd's do."""
    x, y = probe_inputs(model, 7).numpy(), probe_targets(model.task, model.classes, 7).numpy()
    # Momentum, weight decay, a proximal term, a short last batch and a tiny shard: one probe of every branch.
    work = LocalWork(0.05, momentum=0.5, batch_size=3, steps=4, weight_decay=0.01)
    shards, terms = [Shard(x, y), Shard(x[:2], y[:2])], LocalTerms(proximal=0.1)
    start = flatten_module(model.module())
    rngs = [np.random.default_rng(client) for client in range(2)]
    run = PlainRun(model, start, shards, work, terms, rngs, [4, 4])
    ends = walk_clients(kernel, run, np.arange(2))
    worker = GradientWorker(model)
    for client, shard in enumerate(shards):
        worker.weights.copy_(start)
        descent = Descent.begin(work, terms, worker.weights, client)
        for batch in shuffled_batches(len(shard), work, 4, np.random.default_rng(client)):
            worker.mean_gradient(worker.inputs(shard.x[batch]), torch.from_numpy(shard.y[batch]))
            descent.step(worker.weights, worker.gradient)
        moved = worker.weights - start
        if not close_by_tensor(model, ends[client] - start, moved, 1e-4 * float(moved.norm())):
            return False
    return True
