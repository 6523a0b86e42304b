"""What the compiled functions take, and a small known job for each: the child process that tries a library.

Run as a program with the path of a library, it exits 0 if the library computes what numpy does. An illegal instruction
then ends this child and nothing else. Only numpy is imported, so that it starts quickly.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


class LinearSettings(ctypes.Structure):
    """C struct: settings of all clients of a linear model."""

    _fields_ = (
        ("features", ctypes.c_int64), ("classes", ctypes.c_int64), ("bias", ctypes.c_int64), ("width", ctypes.c_int64),
        ("rate", ctypes.c_float), ("momentum", ctypes.c_float), ("decay", ctypes.c_float),
        ("proximal", ctypes.c_float), ("step_norm", ctypes.c_float),
    )  # fmt: skip


class ConvSettings(ctypes.Structure):
    """C struct: settings of all clients of a convolutional chain; `chunk` examples are computed at once."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("stages", "classes", "parameters", "width", "chunk")),
        *((name, ctypes.c_float) for name in ("rate", "momentum", "decay", "proximal", "step_norm")),
    )  # fmt: skip


NOTHING, RELU, TANH = 0, 1, 2
"""Activations of a stage."""


class ConvStage(ctypes.Structure):
    """C struct: one convolution, then activation, pool, activation; and its tensors' offsets in the flat vector."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "channels", "height", "width", "outputs", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w",
            "before", "pool_h", "pool_w", "pool_stride_h", "pool_stride_w", "pool_pad_h", "pool_pad_w", "after",
            "weight", "bias",
        )
    )  # fmt: skip


def open_library(path: str) -> ctypes.CDLL:
    """Load a library and declare its functions."""
    library = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.sightline_walk.argtypes = [pointer] * 11 + [number]
    library.sightline_walk.restype = None
    library.sightline_conv_bytes.argtypes = [pointer] * 2
    library.sightline_conv_bytes.restype = number
    library.sightline_conv_walk.argtypes = [pointer] * 10 + [number]
    library.sightline_conv_walk.restype = None
    library.sightline_normals.argtypes = [pointer, number, pointer]
    library.sightline_normals.restype = None
    return library


def array_pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    """Return a pointer to an array's data."""
    return ctypes.c_void_p(array.ctypes.data)


def cross_entropy(logits: Doubles, y: NDArray[np.int64]) -> float:
    """Return the mean over examples of ln sum exp(logits) - logit of the label."""
    most = logits.max(1, keepdims=True)
    ends = np.log(np.exp(logits - most).sum(1)) + most[:, 0]
    return float((ends - logits[np.arange(len(y)), y]).mean())


def descend_numerically(loss: Callable[[Doubles], float], start: Doubles, rate: float) -> Doubles:
    """Take one gradient step, with the gradient from central differences."""
    shifts = np.eye(len(start)) * 1e-6
    gradient = [(loss(start + shift) - loss(start - shift)) / 2e-6 for shift in shifts]
    return start - rate * np.array(gradient)


def try_linear(library: ctypes.CDLL) -> bool:
    """Return whether a step of softmax regression equals numpy's."""
    rng = np.random.default_rng(1)
    x, y, table = rng.standard_normal((3, 5)).astype(np.float32), np.array([0, 2, 1]), np.array([[0, 2, 1, -1]])
    start = rng.standard_normal(18)
    weights, gradient, errors = start.astype(np.float32), np.empty(18, np.float32), np.empty(3, np.float32)
    settings = LinearSettings(5, 3, 1, 4, 0.5, 0, 0, 0, 0)
    arrays = [array_pointer(array) for array in (weights, gradient, errors, x, y, table)]
    library.sightline_walk(ctypes.byref(settings), arrays[0], None, *arrays[1:3], None, None, None, *arrays[3:], 1)
    expected = descend_numerically(
        lambda w: cross_entropy(x @ w[:15].reshape(3, 5).T + w[15:], y), start.astype(np.float32).astype(float), 0.5
    )
    return bool(np.allclose(weights, expected, atol=1e-5))


def tiny_logits(w: Doubles, x: Doubles) -> Doubles:
    """Return logits of a tiny network: 2x2 convolution (3 channels), 2x2 pool of stride 1, ReLU, dense layer."""
    patches = np.stack([x[:, i : i + 2, j : j + 3] for i in (0, 1) for j in (0, 1)])
    maps = np.einsum("ok,kbyx->boyx", w[:12].reshape(3, 4), patches) + w[12:15, None, None]
    pooled = np.max([maps[:, :, i : i + 1, j : j + 2] for i in (0, 1) for j in (0, 1)], axis=0)
    logits: Doubles = np.maximum(pooled, 0.0).reshape(len(x), -1) @ w[15:27].reshape(2, 6).T + w[27:]
    return logits


def tiny_loss(x: Doubles, y: NDArray[np.int64], w: Doubles) -> float:
    """Return the mean loss of the tiny network."""
    return cross_entropy(tiny_logits(w, x), y)


def try_conv(library: ctypes.CDLL) -> bool:
    """Return whether two steps of a tiny convolutional client equal numpy's."""
    rng = np.random.default_rng(2)
    x, y, table = rng.standard_normal((3, 3, 4)).astype(np.float32), np.array([1, 0, 1]), np.array([[0, 1], [2, -1]])
    stages = (ConvStage * 2)(
        ConvStage(1, 3, 4, 3, 2, 2, 1, 1, 0, 0, NOTHING, 2, 2, 1, 1, 0, 0, RELU, 0, 12),
        ConvStage(3, 1, 2, 2, 1, 2, 1, 1, 0, 0, NOTHING, 0, 0, 0, 0, 0, 0, NOTHING, 15, 27),
    )
    settings = ConvSettings(2, 2, 29, 2, 1, 0.5, 0, 0, 0, 0)
    weights = rng.standard_normal(29).astype(np.float32)
    expected = weights.astype(float)
    for rows in ([0, 1], [2]):
        batch, labels = x[rows].astype(float), y[rows]
        expected = descend_numerically(partial(tiny_loss, batch, labels), expected, 0.5)
    memory = np.empty(library.sightline_conv_bytes(ctypes.byref(settings), stages), np.uint8)
    arrays = [array_pointer(array) for array in (memory, weights, x, y, table)]
    library.sightline_conv_walk(ctypes.byref(settings), stages, *arrays[:2], None, None, None, *arrays[2:], 2)
    return bool(np.allclose(weights, expected, atol=1e-5))


def try_normals(library: ctypes.CDLL) -> bool:
    """Return whether normal numbers equal numpy's, extreme words included."""
    bits = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 1001)
    bits[:4] = 0, -1, -(2**63), 2**63 - 1
    both = np.empty(2002, np.float32)
    library.sightline_normals(array_pointer(bits), len(bits), array_pointer(both))
    radius = np.sqrt(-2 * np.log(np.maximum(np.abs(bits.astype(np.float32)).astype(float) * 2.0**-63, 2.0**-64)))
    angle = np.roll(bits.astype(np.int32), -(len(bits) // 2)) * (np.pi / 2**31)
    expected = np.concatenate([np.cos(angle) * radius, np.sin(angle) * radius])
    return bool(np.allclose(both, expected, rtol=1e-5, atol=1e-5))


def main(path: str) -> int:
    """Return 0 if every known job is computed correctly, else 3."""
    library = open_library(path)
    return 0 if all(job(library) for job in (try_linear, try_conv, try_normals)) else 3


# The child process of `run_probe` runs this file as a script and exits here.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
