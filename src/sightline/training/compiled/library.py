"""Find or compile the kernel library, probe it in a child process, and load it; it is never required."""

import ctypes
import hashlib
import os
import platform
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from sightline.training.compiled import kernel_calls
from sightline.training.compiled.compile_kernels import (
    FLAGS,
    FOLDER,
    NATIVE,
    SHIPPED,
    SOURCES,
    X86_LEVELS,
    compile_sources,
    find_compiler,
)

PROBE_SECONDS = 120
"""Time limit of the probe; after a timeout the next process tries again."""


@dataclass(frozen=True)
class Missing:
    """Why there is no compiled code, and what to do about it."""

    reason: str
    way_out: str = "remove local.compiled"


@cache
def find_library() -> ctypes.CDLL | Missing:
    """Return the library for this processor, the same one for the whole process, or why there is none."""
    for path in shipped_libraries():
        if not probe_library(path):
            return load_library(path)
    compiler = find_compiler()
    if compiler is None:
        return Missing("no C compiler was found", "install one (cc, gcc or clang), or remove local.compiled")
    folder = kept_folder()
    return compile_once(compiler) if folder is None else kept_library(compiler, folder)


DIGESTS: dict[str, str] = {}
"""Path of a loaded library -> digest of its bytes."""


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library that passed the probe."""
    DIGESTS[str(path)] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    return kernel_calls.open_library(str(path))


def library_digest() -> str | None:
    """Return the digest of the build in use, for records (builds may round differently); None without compiled code."""
    library = find_library()
    return None if isinstance(library, Missing) else DIGESTS[library._name]


def shipped_libraries() -> list[Path]:
    """Return the wheel's libraries that this processor should be able to run, best first."""
    known = processor_flags()
    names = [level for level, asked in X86_LEVELS.items() if not known or asked <= known]
    return [path for name in (*names, "baseline") if (path := FOLDER / SHIPPED / f"{name}.so").is_file()]


@cache
def processor_flags() -> frozenset[str]:
    """Return the processor's reported flags; empty if the system does not report them."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def kept_library(compiler: list[str], folder: Path) -> ctypes.CDLL | Missing:
    """Return the library from the user's cache, compiled first if it is missing or fails the probe."""
    path = folder / f"kernels-{name_build(compiler)}.so"
    with suppress(OSError):
        # Twice: a cached file that is corrupt or not ours is removed and compiled again.
        for _ in range(2):
            if not path.is_file() and (missing := write_library(compiler, path)):
                return missing
            if is_own(path, leaf=True) and not probe_library(path):
                return load_library(path)
            path.unlink()
    return compile_once(compiler)


def name_build(compiler: list[str]) -> str:
    """Return a digest of everything that determines the compiler's output."""
    digest = hashlib.blake2b(digest_size=16)
    version = b""
    with suppress(OSError):
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    for part in (*(source.read_bytes() for source in SOURCES), repr((FLAGS, NATIVE, compiler)).encode(), version):
        digest.update(len(part).to_bytes(8, "little") + part)
    digest.update(name_processor().encode())
    return digest.hexdigest()


def name_processor() -> str:
    """Return kind and flags of the processor."""
    return " ".join([platform.machine(), platform.processor(), *sorted(processor_flags())])


def write_library(compiler: list[str], path: Path) -> Missing | None:
    """Compile to `path` atomically; return why it could not be compiled, or None."""
    descriptor, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(descriptor)
    made = Path(name)
    try:
        error = compile_native(compiler, made)
        if error:
            return Missing(f"{compiler[0]} could not compile the kernels ({error})")
        made.chmod(0o700)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return None


def compile_native(compiler: list[str], target: Path) -> str:
    """Compile for this processor, or generically if the compiler cannot; return the first compiler error."""
    error = compile_sources(compiler, target, NATIVE)
    return "" if not error or not compile_sources(compiler, target, ()) else error


def compile_once(compiler: list[str]) -> ctypes.CDLL | Missing:
    """Compile for this process only, in a temporary folder, where nothing can be cached."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="sightline-")
    except OSError as refusal:
        return Missing(
            f"no folder to compile in is available ({refusal.strerror})", "set TMPDIR, or remove local.compiled"
        )
    with temporary as folder:
        path = Path(folder) / "kernels.so"
        error = compile_native(compiler, path)
        if error:
            return Missing(f"{compiler[0]} could not compile the kernels ({error})")
        if wrong := run_probe(path):
            return Missing(wrong)
        try:
            return load_library(path)
        except OSError:
            reason = f"compiled code cannot be loaded from {tempfile.gettempdir()}"
            return Missing(reason, "set TMPDIR to a folder that may hold programs, or remove local.compiled")


def kept_folder() -> Path | None:
    """Return `sightline/compiled/` in the user's cache folder.

    Returns None if the user has no home, the folder cannot be created, or others may write there.
    """
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        folder = caches / "sightline" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = folder.resolve(strict=True)
        # A library is loaded only from a folder that no other user can write to, nor any folder above it: write access
        # there would mean running code as this user.
        safe = is_own(real, leaf=True) and all(is_own(parent, leaf=False) for parent in real.parents)
    # Path.home() raises RuntimeError; a NUL in a path raises ValueError.
    except (OSError, RuntimeError, ValueError):
        return None
    return real if safe and os.access(real, os.W_OK) else None


def is_own(path: Path, *, leaf: bool) -> bool:
    """Return whether no other user can change this path; shared folders with the sticky bit are fine above a leaf."""
    result = path.lstat()
    owners = {os.geteuid()} if leaf else {os.geteuid(), 0}
    shared = bool(result.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return result.st_uid in owners and (not shared or (not leaf and bool(result.st_mode & stat.S_ISVTX)))


def probe_library(path: Path) -> str:
    """Return what is wrong with a library on this processor, or an empty string; the outcome is cached."""
    folder = kept_folder()
    try:
        digest = hashlib.blake2b(path.read_bytes() + name_processor().encode(), digest_size=16).hexdigest()
    except OSError as error:
        return f"compiled code cannot be read ({error.strerror})"
    note = None if folder is None else folder / f"probed-{digest}"
    if note is not None and note.is_file() and is_own(note, leaf=True):
        return note.read_text(encoding="utf-8")
    wrong = run_probe(path)
    # A timeout may be due to load, so it is not cached.
    if note is not None and wrong != SLOW:
        with suppress(OSError):
            made = note.with_suffix(f".{os.getpid()}")
            made.write_text(wrong, encoding="utf-8")
            made.chmod(0o600)
            made.replace(note)
    return wrong


SLOW = "compiled code was not tried out in time"


def run_probe(path: Path) -> str:
    """Load the library and run its known jobs in a child process; return what went wrong, or an empty string."""
    # A hypervisor may hide instructions that the processor reports, and a file may be corrupt. An illegal instruction
    # then ends the child, not the run.
    command = [sys.executable, "-I", "-W", "ignore", str(Path(kernel_calls.__file__)), str(path)]
    try:
        code = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return SLOW
    except OSError as error:
        return f"compiled code cannot be tried ({error.strerror})"
    if code < 0:
        return f"compiled code ends with signal {-code} on this processor"
    return {0: "", 3: "compiled code does not compute what it should here"}.get(code, "compiled code cannot be loaded")


def noise_missing() -> str | None:
    """Return why there is no compiled noise here, or None if there is."""
    library = find_library()
    return library.reason if isinstance(library, Missing) else None


def normals_of(bits: Tensor) -> Tensor | None:
    """Return two standard normal float32 numbers per int64 word, all cosines first; None without compiled code.

    Guarantees: a function of the words alone. Equal to `draw_gaussian` up to float32 rounding, with tails as long.
    Never NaN.
    """
    library = find_library()
    if isinstance(library, Missing):
        return None
    bits, both = bits.contiguous(), torch.empty(2 * len(bits))
    library.sightline_normals(bits.data_ptr(), len(bits), both.data_ptr())
    return both
