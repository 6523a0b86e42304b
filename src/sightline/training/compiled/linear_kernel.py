"""The compiled kernel for linear clients: all steps of a client in one call, when `local.compiled` asks for it."""

import ctypes
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.compiled.kernel_calls import LinearSettings, array_pointer
from sightline.training.compiled.library import Missing, find_library
from sightline.training.dispatch import dense_layers
from sightline.training.fast.stacked import Block, StackWalk
from sightline.training.local_work import Descent, batch_table, client_rows


def check_kernel(model: FlatModel) -> None:
    """Raise unless the kernel is for this model and there is compiled code here."""
    if not model.task.classic:
        law = f"compiled code has the gradient of cross entropy, not of {model.task.loss_name or model.task.name}"
        invalid("local.compiled", True, law, "leave it out")
    layers = dense_layers(model)
    if layers is None or len(layers) != 1:
        invalid("local.compiled", True, f"compiled code trains linear models, not {model.name}", "leave it out")
    kernel_library()


def kernel_library() -> ctypes.CDLL:
    """The library; raises where there is none."""
    library = find_library()
    if isinstance(library, Missing):
        invalid("local.compiled", True, library.reason, library.way_out)
    return library


def train_compiled(walk: StackWalk, clients: NDArray[np.intp]) -> Iterator[Block]:
    """One client after the other; a client's end is the same bits whoever else is trained.

    Guarantees: labels outside the classes are refused before the kernel reads them.
    """
    check_kernel(walk.model)
    ends = torch.stack([client_rows(walk.starts, client) for client in clients.tolist()]).contiguous()
    for end, client in zip(ends, clients.tolist(), strict=True):
        if walk.steps[client]:
            _walk_client(walk, end, client)
    yield clients, ends


def _walk_client(walk: StackWalk, end: Tensor, client: int) -> None:
    """Move one client's weights, in place, through all its steps."""
    work, shard = walk.work, walk.shards[client]
    x, y = shard_examples(shard, walk.model)
    batches = step_table(walk, client)
    descent = Descent.begin(work, walk.terms, end, client)
    settings = LinearSettings(
        x.shape[1], walk.model.classes, len(walk.model.layout) - 1, batches.shape[1],
        work.learning_rate, work.momentum, work.weight_decay, descent.proximal, work.step_norm or 0.0,
    )  # fmt: skip
    parts = (end, descent.velocity, torch.empty_like(end), torch.empty(walk.model.classes))
    terms, kept = term_pointers(descent)
    pointers = [None if part is None else ctypes.c_void_p(part.data_ptr()) for part in parts]
    data = [array_pointer(array) for array in (x, y, batches)]
    kernel_library().sightline_walk(ctypes.byref(settings), *pointers, *terms, *data, len(batches))
    del kept  # lived until the kernel was done


def shard_examples(shard: Shard, model: FlatModel) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Examples and labels as the kernels read them; labels outside the classes and other sizes are refused."""
    if shard.x.shape[1:] != model.input_shape:
        invalid("examples", shard.x.shape[1:], f"{model.name} takes examples of shape {model.input_shape}")
    x = np.ascontiguousarray(shard.x.reshape(len(shard), -1), np.float32)
    y = np.ascontiguousarray(shard.y, np.int64)
    if y.min() < 0 or y.max() >= model.classes:
        invalid("label", int(y.min() if y.min() < 0 else y.max()), f"labels are 0 to {model.classes - 1}")
    return x, y


def term_pointers(descent: Descent) -> tuple[list[ctypes.c_void_p | None], list[Tensor | None]]:
    """Anchor, linear term and mask as the kernels read them, and the tensors that must live as long."""
    terms = (descent.anchor, descent.linear, descent.mask)
    kept = [None if term is None else term.to(torch.float32).contiguous() for term in terms]
    return [None if term is None else ctypes.c_void_p(term.data_ptr()) for term in kept], kept


def step_table(walk: StackWalk, client: int) -> NDArray[np.int64]:
    """(steps, b) rows of the client's shard, padded with -1."""
    examples, steps = len(walk.shards[client]), walk.steps[client]
    if walk.work.batch_size is None:
        return np.tile(np.arange(examples), (steps, 1))
    width = min(walk.work.batch_size, examples)
    return batch_table(examples, walk.work, steps, walk.rngs[client], width=width, first=0, nothing=-1)
