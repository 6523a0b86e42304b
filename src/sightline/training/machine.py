"""The machine that trains: its processor in words, the cores that this process may use, and what was measured on it."""

import fcntl
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sightline.data.features import cache_folder

FILE = "paths.json"
TOLD = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instruction sets by which a reader knows what to expect of a processor."""
CPU_MAX, QUOTA, PERIOD = (
    Path("/sys/fs/cgroup/cpu.max"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Where Linux says how much of the processor a container may use: cgroups of version 2, and of version 1."""


@cache
def read_processor() -> tuple[str, tuple[str, ...]]:
    """(name, instruction sets) as the operating system tells them."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    return name, tuple(sorted((found.get("flags") or found.get("Features") or "").split()))


def describe_processor() -> str:
    """The processor in one line: name, the instruction sets that matter here, cores."""
    name, flags = read_processor()
    told = [flag for flag in TOLD if flag in flags] or [torch.backends.cpu.get_cpu_capability()]
    return f"{name}, {' '.join(told)}, {count_cores()} cores"


def count_cores() -> int:
    """How many cores this process may use: by its affinity, and by the share that its container is given.

    Guarantees: at least 1, and never more than the operating system would run at once.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, read_quota())))


def read_quota() -> float:
    """The processors' time that the container may use, in cores; infinite where nothing limits it."""
    with suppress(OSError, ValueError):
        quota, period = CPU_MAX.read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (path.read_text(encoding="ascii").strip() for path in (QUOTA, PERIOD))
        return math.inf if int(quota) <= 0 else int(quota) / int(period)
    return math.inf


def machine_key() -> str:
    """What a measurement is about besides the work: processor, versions, threads. Another one is measured anew."""
    name, flags = read_processor()
    told = hashlib.sha256(" ".join((*flags, torch.backends.cpu.get_cpu_capability())).encode()).hexdigest()[:12]
    return f"{name} {told}, torch {torch.__version__}, sightline {_own_version()}, {torch.get_num_threads()} threads"


def _own_version() -> str:
    with suppress(PackageNotFoundError):
        return version("sightline")
    return "unknown"


def recall_measured(work: str) -> dict[str, Any] | None:
    """What was found for this work on this machine; None where nothing was, or what is there cannot be read."""
    found = _read_file(cache_folder() / FILE).get(machine_key(), {})
    entry = found.get(work) if isinstance(found, dict) else None
    return entry if isinstance(entry, dict) else None


def keep_measured(work: str, entry: Mapping[str, Any], *, stale: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Keep what was found, and return what counts from now on: where another process was first, what that one found.

    `stale` is what was there and cannot be used any more: it is replaced.

    Guarantees: the file is written whole or not at all, one process after the other, so that nobody's entry is lost;
    one that is damaged is replaced. On a disk that cannot be written the entry is returned as it came.
    """
    path = cache_folder() / FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
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
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace_file(path: Path, content: Mapping[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        part = Path(file.name)
        try:
            json.dump(content, file, indent=1)
            file.flush()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
