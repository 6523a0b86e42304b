"""Whether this machine computes in bfloat16: tried in a child process, because such kernels may kill their process."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from sightline.data.features import cache_folder
from sightline.errors import invalid

FLOAT32, BF16 = "float32", "bf16"
PRECISIONS = (FLOAT32, BF16)

TRIAL = """
import torch
torch.set_num_threads(1)
def numbers(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)
def image(*shape):
    return torch.randn(*shape).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
for rows, inputs, outputs in ((1, 3, 2), (10, 784, 200), (32, 4096, 128), (256, 75, 33)):
    y = torch.nn.functional.linear(numbers(rows, inputs), numbers(outputs, inputs), numbers(outputs))
    y.float().sum().backward()
torch.bmm(numbers(3, 5, 40), numbers(3, 40, 7)).float().sum().backward()
for batch, channels, outputs, size in ((1, 1, 16, 5), (10, 32, 64, 3), (32, 16, 32, 4), (9, 3, 7, 1)):
    y = torch.conv2d(image(batch, channels, 14, 14), image(outputs, channels, size, size), numbers(outputs))
    torch.nn.functional.max_pool2d(torch.relu(y), 2).float().sum().backward()
print("computed")
"""
"""Products and convolutions, forward and backward, in the kinds of shapes that networks have."""
SECONDS = 120


def check_bf16() -> None:
    """Raise unless products and convolutions in bfloat16 run here."""
    failure = find_failure()
    if failure is not None:
        invalid("local.precision", BF16, f"{failure} on this machine", 'use precision = "float32"')


@cache
def find_failure() -> str | None:
    """What happened to the trial, None when it computed; asked once a process, and once a machine.

    Guarantees: kept in the user's cache is only what cannot change: that it computed, or that it was killed, on this
    processor with this version of torch. A trial that failed otherwise is tried again by the next process.
    """
    path, machine = cache_folder() / "bf16.json", name_machine()
    known = read_outcomes(path)
    if machine in known:
        return known[machine] or None
    failure, lasting = try_kernels()
    if lasting:
        keep_outcomes(path, known | {machine: failure or ""})
    return failure


def try_kernels() -> tuple[str | None, bool]:
    """(what happened or None, whether it would happen again) to a child that computes in bfloat16."""
    words = [sys.executable, "-c", TRIAL]
    try:
        child = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bfloat16 could not be tried ({type(error).__name__})", False
    if child.returncode < 0:
        return f"bfloat16 kills its process (signal {-child.returncode})", True
    if child.returncode or "computed" not in child.stdout:
        last = next(iter(reversed(child.stderr.strip().splitlines())), "no word")[:120]
        return f"bfloat16 failed ({last})", False
    return None, True


def name_machine() -> str:
    """The processor with all its features, and the version of torch: what an outcome holds for."""
    words = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        words += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return f"torch {torch.__version__} {hashlib.blake2b(repr(words).encode(), digest_size=12).hexdigest()}"


def read_outcomes(path: Path) -> dict[str, str]:
    """The outcomes that were kept; none where the file is missing or is not ours."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: word for name, word in found.items() if isinstance(word, str)}
    return {}


def keep_outcomes(path: Path, outcomes: dict[str, str]) -> None:
    """Write the outcomes in one move; without a place to write, the next process tries again."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.touch(mode=0o644)
        fresh.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
        fresh.replace(path)
