"""The machine that trains: processor, cores, bfloat16 support, and cached measurements."""

import fcntl
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sightline.data.features import cache_folder
from sightline.errors import invalid

FILE = "paths.json"
TOLD = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instruction sets named in reports."""
CPU_MAX, QUOTA, PERIOD = (
    Path("/sys/fs/cgroup/cpu.max"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""CPU quota of a container on Linux: cgroups version 2, then version 1."""


@cache
def read_processor() -> tuple[str, tuple[str, ...]]:
    """Return (name, instruction sets) as the operating system reports them."""
    result: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            result.setdefault(name.strip(), value.strip())
    name = result.get("model name") or platform.processor() or platform.machine()
    return name, tuple(sorted((result.get("flags") or result.get("Features") or "").split()))


def describe_processor() -> str:
    """Return the processor in one line: name, relevant instruction sets, cores."""
    name, flags = read_processor()
    shown = [flag for flag in TOLD if flag in flags] or [torch.backends.cpu.get_cpu_capability()]
    return f"{name}, {' '.join(shown)}, {count_cores()} cores"


def count_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota.

    Guarantees: at least 1, and never more than the operating system runs at once.
    """
    # os.cpu_count() reports the host's cores, also inside a container with a smaller quota.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, read_quota())))


def read_quota() -> float:
    """Return the container's CPU quota in cores; infinite if there is no limit."""
    with suppress(OSError, ValueError):
        quota, period = CPU_MAX.read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (path.read_text(encoding="ascii").strip() for path in (QUOTA, PERIOD))
        return math.inf if int(quota) <= 0 else int(quota) / int(period)
    return math.inf


def machine_key() -> str:
    """Return the cache key of this machine: processor, versions, threads. Any change triggers a new measurement."""
    name, flags = read_processor()
    digest = hashlib.sha256(" ".join((*flags, torch.backends.cpu.get_cpu_capability())).encode()).hexdigest()[:12]
    return f"{name} {digest}, torch {torch.__version__}, sightline {_own_version()}, {torch.get_num_threads()} threads"


def _own_version() -> str:
    with suppress(PackageNotFoundError):
        return version("sightline")
    return "unknown"


def recall_measured(work: str) -> dict[str, Any] | None:
    """Return the cached entry for this work on this machine; None if it is missing or unreadable."""
    result = _read_file(cache_folder() / FILE).get(machine_key(), {})
    entry = result.get(work) if isinstance(result, dict) else None
    return entry if isinstance(entry, dict) else None


def keep_measured(work: str, entry: Mapping[str, Any], *, stale: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Cache an entry and return the entry that counts from now on: another process's, if that one was first.

    `stale` is a cached entry that can no longer be used; it is replaced.

    Guarantees: the file is replaced whole and under a lock, so no entry is lost. A corrupt file is replaced. If the
    disk cannot be written, the entry is returned unchanged.
    """
    path = cache_folder() / FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            # The first writer wins: two runs started together must take the same paths, or their last bits differ.
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = _read_file(path)
            mine = kept.get(machine_key())
            mine = mine if isinstance(mine, dict) else {}
            first = mine.get(work)
            if isinstance(first, dict) and first != stale:
                return first
            _replace_file(path, kept | {machine_key(): mine | {work: dict(entry)}})
    except OSError:
        pass
    return dict(entry)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}


def _replace_file(path: Path, content: Mapping[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        part = Path(file.name)
        try:
            json.dump(content, file, indent=1)
            file.flush()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


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
"""Products and convolutions, forward and backward, in typical shapes of networks."""
SECONDS = 120


# The trial runs in a child process. Where a hypervisor hides a CPU feature, bfloat16 kernels end their process with an
# illegal instruction, which no exception handler can catch.
def check_bf16() -> None:
    """Raise unless products and convolutions in bfloat16 run here."""
    failure = find_failure()
    if failure is not None:
        invalid("local.precision", BF16, f"{failure} on this machine", 'use precision = "float32"')


@cache
def find_failure() -> str | None:
    """Return why the trial failed, or None; run once per process and cached per machine.

    Guarantees: only lasting outcomes are cached (computed, or killed) for this processor and version of torch. After
    any other failure the next process tries again.
    """
    work = f"bfloat16 {digest_processor()}"
    known = recall_measured(work)
    if known is not None and isinstance(known.get("failure"), str):
        return known["failure"] or None
    failure, lasting = try_kernels()
    # Lack of memory or time may be temporary; only outcomes that would repeat are cached.
    if lasting:
        keep_measured(work, {"failure": failure or ""}, stale=known)
    return failure


def try_kernels() -> tuple[str | None, bool]:
    """Return (failure or None, whether it is lasting) of a child process that computes in bfloat16."""
    command = [sys.executable, "-c", TRIAL]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bfloat16 could not be tried ({type(error).__name__})", False
    if child.returncode < 0:
        return f"bfloat16 kills its process (signal {-child.returncode})", True
    if child.returncode or "computed" not in child.stdout:
        last = next(iter(reversed(child.stderr.strip().splitlines())), "no word")[:120]
        return f"bfloat16 failed ({last})", False
    return None, True


def digest_processor() -> str:
    """Return a digest of the processor with all its features, of which `machine_key` has a few."""
    facts = [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        facts += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
