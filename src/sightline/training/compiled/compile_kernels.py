"""Compile the C sources into a library: compiler, flags, and the builds that a wheel ships.

Imports only the standard library, because the wheel's build loads this file by itself.
"""

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("linear_kernel.c", "conv_walk.c", "noise.c"))

# An update that is not finite must stay so: it is detected and dropped later. -ffast-math assumes that there is none.
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-shared", "-fPIC")
"""No -ffast-math: sums are reordered only where the source says so, and NaN and infinity keep their meaning."""

NATIVE = ("-march=native",)
"""Code compiled here targets this processor."""

SHIPPED = "kernels"
"""Folder of a wheel's libraries, beside this file."""

X86_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64": set[str](),
}
"""Builds in a wheel for x86-64, best first, and the processor flags that each needs."""


def find_compiler() -> list[str] | None:
    """Return $CC, or the first C compiler on the path, or None; an unparsable $CC counts as unset."""
    try:
        asked = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError:  # an open quote
        asked = ["cc"]
    return next((command for command in (asked, ["gcc"], ["clang"]) if shutil.which(command[0])), None)


def compile_sources(
    compiler: list[str], target: Path, flags: tuple[str, ...], sources: tuple[Path, ...] = SOURCES
) -> str:
    """Write the library to `target`; return the compiler's first error line, or an empty string."""
    command = [*compiler, *FLAGS, *flags, "-o", str(target), *map(str, sources), "-lm"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)[:80]
    return "" if made.returncode == 0 else (made.stderr.split("\n")[0][:80] or f"exit code {made.returncode}")


def build_levels() -> dict[str, tuple[str, ...]]:
    """Return names and flags of the libraries that a wheel for this machine holds."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {level: (f"-march={level}",) for level in X86_LEVELS}
    return {"baseline": ()}


def build_shipped(folder: Path) -> list[Path]:
    """Compile every level that the compiler supports into the folder; return the built paths, [] without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{level}.so": flags for level, flags in build_levels().items()}
    return [target for target, flags in wanted.items() if not compile_sources(compiler, target, flags)]
