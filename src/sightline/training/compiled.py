"""C sources of this room, compiled on the machine that runs them, once a process; nothing stays on disk."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from sightline.errors import invalid

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
