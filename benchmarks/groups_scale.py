"""Seconds of `sightline groups` for 10,000 workers, 100 groups, 1,000 epochs / the 10 that are allowed."""

import io
import time
from contextlib import redirect_stdout
from typing import Any

from benchmarks.measure import line


def run() -> dict[str, Any]:
    """All pairs, by class."""
    from sightline.apps.cli.main import run_arguments

    words = "groups --structure ring --workers 10000 --groups 100 --period 10 --epochs 1000 --noise 2 --rate 0.7"
    begun = time.perf_counter()
    with redirect_stdout(io.StringIO()):
        run_arguments([*words.split(), "--delta", "1e-5"])
    seconds = time.perf_counter() - begun
    return line("groups_scale", seconds / 10, 1, at_least=False, seconds=round(seconds, 2))
