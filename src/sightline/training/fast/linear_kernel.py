"""The compiled kernel for linear clients: C compiled on the machine that runs it, once a process."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.dispatch import dense_layers
from sightline.training.fast.stacked import Block, StackWalk
from sightline.training.local_work import Descent, batch_table, client_rows

FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-shared", "-fPIC")
"""No -ffast-math: sums may be taken in another order where the source says so, NaN and infinity stay what they are."""


@cache
def compile_library(source: Path) -> ctypes.CDLL:
    """The compiled source, made once a process in a folder of its own that is then removed."""
    compiler = _find_compiler()
    with tempfile.TemporaryDirectory(prefix="sightline-") as folder:
        target = Path(folder) / "kernel.so"
        made = subprocess.run(
            [*compiler, *FLAGS, "-o", str(target), str(source), "-lm"], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            first = next(iter(made.stderr.split("\n")), "")
            invalid("local.compiled", True, f"{compiler[0]} could not compile it ({first[:80]})", "leave it out")
        try:
            return ctypes.CDLL(str(target))
        except OSError:
            law = f"compiled code cannot be loaded from {tempfile.gettempdir()}"
            invalid("local.compiled", True, law, "set TMPDIR to a folder that may hold programs, or leave it out")


def _find_compiler() -> list[str]:
    """$CC, or the first C compiler on the path."""
    asked = shlex.split(os.environ.get("CC", "")) or ["cc"]
    for words in (asked, ["gcc"], ["clang"]):
        if shutil.which(words[0]):
            return words
    invalid("local.compiled", True, "there is no C compiler here", "install one (cc, gcc or clang), or leave it out")


SOURCE = Path(__file__).with_suffix(".c")


class Work(ctypes.Structure):
    """The settings of all clients, as the kernel reads them."""

    _fields_ = (
        ("features", ctypes.c_int64), ("classes", ctypes.c_int64), ("bias", ctypes.c_int64), ("width", ctypes.c_int64),
        ("rate", ctypes.c_float), ("momentum", ctypes.c_float), ("decay", ctypes.c_float),
        ("proximal", ctypes.c_float), ("step_norm", ctypes.c_float),
    )  # fmt: skip


def check_kernel(model: FlatModel) -> None:
    """Raise unless the kernel is for this model and can be compiled here."""
    if not model.task.classic:
        law = f"compiled code has the gradient of cross entropy, not of {model.task.loss_name or model.task.name}"
        invalid("local.compiled", True, law, "leave it out")
    layers = dense_layers(model)
    if layers is None or len(layers) != 1:
        invalid("local.compiled", True, f"compiled code trains linear models, not {model.name}", "leave it out")
    compile_library(SOURCE)


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
    x, y = _shard_examples(shard, walk.model.classes)
    batches = _step_table(walk, client)
    descent = Descent.begin(work, walk.terms, end, client)
    settings = Work(
        x.shape[1], walk.model.classes, len(walk.model.layout) - 1, batches.shape[1],
        work.learning_rate, work.momentum, work.weight_decay, descent.proximal, work.step_norm or 0.0,
    )  # fmt: skip
    parts = (end, descent.velocity, torch.empty_like(end), torch.empty(walk.model.classes))
    terms = [None if term is None else term.contiguous() for term in (descent.anchor, descent.linear, descent.mask)]
    pointers = [None if part is None else ctypes.c_void_p(part.data_ptr()) for part in (*parts, *terms)]
    data = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, batches)]
    compile_library(SOURCE).sightline_walk(ctypes.byref(settings), *pointers, *data, ctypes.c_int64(len(batches)))


def _shard_examples(shard: Shard, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x = np.ascontiguousarray(shard.x.reshape(len(shard), -1), np.float32)
    y = np.ascontiguousarray(shard.y, np.int64)
    if y.min() < 0 or y.max() >= classes:
        invalid("label", int(y.min() if y.min() < 0 else y.max()), f"labels are 0 to {classes - 1}")
    return x, y


def _step_table(walk: StackWalk, client: int) -> NDArray[np.int64]:
    """(steps, b) rows of the client's shard, padded with -1."""
    examples, steps = len(walk.shards[client]), walk.steps[client]
    if walk.work.batch_size is None:
        return np.tile(np.arange(examples), (steps, 1))
    width = min(walk.work.batch_size, examples)
    return batch_table(examples, walk.work, steps, walk.rngs[client], width=width, first=0, nothing=-1)
