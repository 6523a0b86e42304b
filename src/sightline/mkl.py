"""MKL's reproducible mode, turned on for every process that trains.

torch multiplies matrices with MKL on x86. By default MKL adds in another order when an operand lies elsewhere in
memory: on AMD, and with older instructions on Intel, the last bits of a client's update then depend on which other
clients are trained with it. With conditional numerical reproducibility (`MKL_CBWR`) they do not.
docs/reproducibility.md says what follows from that and what does not.
"""

import ctypes
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "MKL_CBWR"
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")
# Names of the same function: in torch's own wheels, which contain MKL; in MKL as a library beside torch.
GET, SET = ("mkl_serv_cbwr_get", "mkl_cbwr_get"), ("mkl_serv_cbwr_set", "mkl_cbwr_set")

ALL, STRICT, AUTO = -1, 0x10000, 2
# MKL's code branches in the order of their numbers (`mkl_types.h`).
BRANCHES = ("OFF", "OFF", "AUTO", "COMPATIBLE", "SSE2", "SSE3", "SSSE3", "SSE4_1", "SSE4_2", "AVX", "AVX2",
            "AVX512_MIC", "AVX512", "AVX512_MIC_E1", "AVX512_E1")  # fmt: skip


def turn_on_reproducible_mode() -> None:
    """Turn the mode on in this process and in its children; an `MKL_CBWR` that the user has set is kept.

    Guarantees: on before and after `import torch`, unless torch has already computed with MKL (MKL reads the variable
    with its first operation; if torch is loaded, the runtime call is made as well). Does not import torch.
    """
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = "AUTO"
    if "torch" in sys.modules and read_mode() == "OFF":
        _find_function(SET)(AUTO)


def read_mode() -> str | None:
    """Return MKL's code branch as `MKL_CBWR` names it; "OFF": results depend on memory; None: torch without MKL."""
    call = _find_function(GET)
    if call is None:
        return None
    result = int(call(ALL))
    branch = result & ~STRICT
    name = BRANCHES[branch] if 0 <= branch < len(BRANCHES) else str(branch)
    return f"{name},STRICT" if result & STRICT else name


@cache
def warn_unless_reproducible() -> None:
    """Warn once per process if the mode is off because MKL was used before it could be turned on."""
    if read_mode() == "OFF":
        warnings.warn(
            f"{VARIABLE}={os.environ.get(VARIABLE)} came too late: torch had computed with MKL before sightline was "
            "imported, so the last bits of a run can depend on where in memory its numbers lie; import sightline "
            f"first, or set {VARIABLE}=AUTO before Python starts",
            RuntimeWarning,
            stacklevel=2,
        )


@cache
def _find_function(names: tuple[str, ...]) -> Any:
    """Return the function under one of its names, from the library that torch itself calls; None without MKL."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    for library in (folder / name for name in LIBRARIES if (folder / name).is_file()):
        loaded = ctypes.CDLL(str(library))
        for name in names:
            if hasattr(loaded, name):
                return getattr(loaded, name)
    return None
