"""The compiled library: shipped with the package, or compiled here once and kept; never required.

Guarantees: a library is loaded only after a child process has loaded it on this processor and found its small known
jobs right; nothing is loaded from a folder that somebody else may write; where there is none, a reason is given.
"""

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
"""A child that takes longer says nothing; it is asked again in the next process."""


@dataclass(frozen=True)
class Missing:
    """Why there is no compiled code, and what could be done."""

    reason: str
    way_out: str = "leave it out"


@cache
def find_library() -> ctypes.CDLL | Missing:
    """The library for this processor, the same in the whole process; or why there is none."""
    for path in shipped_libraries():
        if not probe_library(path):
            return load_library(path)
    compiler = find_compiler()
    if compiler is None:
        return Missing("there is no C compiler here", "install one (cc, gcc or clang), or leave it out")
    folder = kept_folder()
    return compile_once(compiler) if folder is None else kept_library(compiler, folder)


DIGESTS: dict[str, str] = {}
"""Path of a library that was loaded -> digest of its bytes."""


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library that was found right."""
    DIGESTS[str(path)] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    return kernel_calls.open_library(str(path))


def library_digest() -> str | None:
    """Which build is in use, for records: another one may round differently; None without compiled code."""
    library = find_library()
    return None if isinstance(library, Missing) else DIGESTS[library._name]


def shipped_libraries() -> list[Path]:
    """The wheel's libraries that this processor should be able to run, best first."""
    known = processor_flags()
    names = [level for level, asked in X86_LEVELS.items() if not known or asked <= known]
    return [path for name in (*names, "baseline") if (path := FOLDER / SHIPPED / f"{name}.so").is_file()]


@cache
def processor_flags() -> frozenset[str]:
    """What the processor says that it can do; empty where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def kept_library(compiler: list[str], folder: Path) -> ctypes.CDLL | Missing:
    """The library in the user's cache; compiled first where it is not there, or is not right any more."""
    path = folder / f"kernels-{name_build(compiler)}.so"
    with suppress(OSError):
        for _ in range(2):
            if not path.is_file() and (missing := write_library(compiler, path)):
                return missing
            if is_own(path, leaf=True) and not probe_library(path):
                return load_library(path)
            path.unlink()
    return compile_once(compiler)


def name_build(compiler: list[str]) -> str:
    """A digest of everything that decides what the compiler writes."""
    digest = hashlib.blake2b(digest_size=16)
    version = b""
    with suppress(OSError):
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    for part in (*(source.read_bytes() for source in SOURCES), repr((FLAGS, NATIVE, compiler)).encode(), version):
        digest.update(len(part).to_bytes(8, "little") + part)
    digest.update(name_processor().encode())
    return digest.hexdigest()


def name_processor() -> str:
    """Kind and abilities of the processor."""
    return " ".join([platform.machine(), platform.processor(), *sorted(processor_flags())])


def write_library(compiler: list[str], path: Path) -> Missing | None:
    """Compile to a file that is complete or not there; why it could not be compiled."""
    descriptor, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(descriptor)
    made = Path(name)
    try:
        error = compile_native(compiler, made)
        if error:
            return Missing(f"{compiler[0]} could not compile it ({error})")
        made.chmod(0o700)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return None


def compile_native(compiler: list[str], target: Path) -> str:
    """Compile for this processor, or for any where the compiler does not know how; the first error of the compiler."""
    error = compile_sources(compiler, target, NATIVE)
    return "" if not error or not compile_sources(compiler, target, ()) else error


def compile_once(compiler: list[str]) -> ctypes.CDLL | Missing:
    """Compile for this process in a folder of its own that is then removed: where nothing can be kept."""
    try:
        place = tempfile.TemporaryDirectory(prefix="sightline-")
    except OSError as refusal:
        return Missing(f"there is no folder to compile it in ({refusal.strerror})", "set TMPDIR, or leave it out")
    with place as folder:
        path = Path(folder) / "kernels.so"
        error = compile_native(compiler, path)
        if error:
            return Missing(f"{compiler[0]} could not compile it ({error})")
        if wrong := run_probe(path):
            return Missing(wrong)
        try:
            return load_library(path)
        except OSError:
            law = f"compiled code cannot be loaded from {tempfile.gettempdir()}"
            return Missing(law, "set TMPDIR to a folder that may hold programs, or leave it out")


def kept_folder() -> Path | None:
    """`sightline/compiled/` in the user's folder of caches.

    None when the user has no home, the folder cannot be made, or others may write there.
    """
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        folder = caches / "sightline" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = folder.resolve(strict=True)
        safe = is_own(real, leaf=True) and all(is_own(parent, leaf=False) for parent in real.parents)
    except (OSError, RuntimeError, ValueError):  # Path.home() raises RuntimeError; a NUL in a path, ValueError
        return None
    return real if safe and os.access(real, os.W_OK) else None


def is_own(path: Path, *, leaf: bool) -> bool:
    """Whether nobody else may change what is there; above a leaf, a folder where all may write keeps each one's own."""
    found = path.lstat()
    owners = {os.geteuid()} if leaf else {os.geteuid(), 0}
    shared = bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return found.st_uid in owners and (not shared or (not leaf and bool(found.st_mode & stat.S_ISVTX)))


def probe_library(path: Path) -> str:
    """What is wrong with a library on this processor, or an empty text; asked once and then remembered."""
    folder = kept_folder()
    try:
        digest = hashlib.blake2b(path.read_bytes() + name_processor().encode(), digest_size=16).hexdigest()
    except OSError as error:
        return f"compiled code cannot be read ({error.strerror})"
    note = None if folder is None else folder / f"probed-{digest}"
    if note is not None and note.is_file() and is_own(note, leaf=True):
        return note.read_text(encoding="utf-8")
    wrong = run_probe(path)
    if note is not None and wrong != SLOW:
        with suppress(OSError):
            made = note.with_suffix(f".{os.getpid()}")
            made.write_text(wrong, encoding="utf-8")
            made.chmod(0o600)
            made.replace(note)
    return wrong


SLOW = "compiled code was not tried out in time"


def run_probe(path: Path) -> str:
    """Let a child load the library and do its known jobs; what went wrong, or an empty text."""
    command = [sys.executable, "-I", "-W", "ignore", str(Path(kernel_calls.__file__)), str(path)]
    try:
        code = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return SLOW
    except OSError as error:
        return f"compiled code cannot be tried out ({error.strerror})"
    if code < 0:
        return f"compiled code ends with signal {-code} on this processor"
    return {0: "", 3: "compiled code does not compute what it should here"}.get(code, "compiled code cannot be loaded")
