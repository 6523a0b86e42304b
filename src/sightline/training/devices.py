"""Where clients are trained: the CPU, or a graphics processor that has shown that it clips as it must."""

import os

import torch
from torch import Tensor

from sightline.errors import invalid
from sightline.models.flat import CPU
from sightline.training.clipping import clipped_rows

KINDS = ("cuda", "mps")
"""The devices beside the CPU, in the order in which "auto" asks for them."""


def find_device(wanted: str) -> torch.device:
    """The device of that name; "auto": the first that is there and clips right, else the CPU.

    Guarantees: a device that is not there, or that lets a row through which is longer than its clip norm, is not used;
    on one that is, torch computes in float32 and by algorithms that give the same bits every time.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if wanted == "cpu":
        return CPU
    for kind in KINDS if wanted == "auto" else (wanted,):
        if not is_available(kind):
            continue
        require_float32()
        problem = find_clipping_problem(torch.device(kind))
        if problem is None:
            return torch.device(kind)
        if wanted != "auto":
            invalid("device", kind, f"clipping there is not what it is on the CPU: {problem}", 'use device = "cpu"')
    if wanted != "auto":
        invalid("device", wanted, "torch finds no such device here", 'use device = "cpu", or leave it out')
    return CPU


def is_available(kind: str) -> bool:
    """Whether torch can use a device of this kind here."""
    return torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()


def require_float32() -> None:
    """Let torch compute in float32 on devices, never in shorter numbers, and the same bits every time.

    A round that is made again after an interruption has the same noise: another value under it would be seen through.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True)


def find_clipping_problem(device: torch.device) -> str | None:
    """What is wrong with sums of clipped rows on a device, or None: the law of the clip norm tried, in float64.

    >>> find_clipping_problem(torch.device("cpu")) is None
    True
    """
    draw = torch.Generator().manual_seed(0)
    for length in (64, (1 << 16) + 64):
        rows = torch.randn(6, length, generator=draw) * torch.tensor([1e-8, 1e-3, 1.0, 1.0, 1.0, 1e8])[:, None]
        rows[3, 5], rows[4, 7] = float("nan"), float("inf")
        for number, row in enumerate(rows):
            problem = _find_row_problem(row, device, finite=number not in (3, 4))
            if problem is not None:
                return f"{problem} (a row of {length} numbers)"
        here, there = clipped_rows(rows, 1.0), clipped_rows(rows.to(device), 1.0).cpu()
        if not torch.allclose(here, there, rtol=1e-4, atol=1e-6):
            return f"its sum is another (rows of {length} numbers)"
    return None


def _find_row_problem(row: Tensor, device: torch.device, *, finite: bool) -> str | None:
    """What is wrong with one clipped row: longer than 1, or not zero though it is not finite."""
    found = clipped_rows(row[None].to(device), 1.0).cpu().double()
    length = float(found.norm())
    if not finite:
        return None if length == 0 else "a row that is not finite is not zero"
    return None if length <= 1 else f"a row clipped to 1 has norm {length:.8g}"


def describe_device(device: torch.device) -> str:
    """A device in words: its kind, and which model of a CUDA device it is."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
