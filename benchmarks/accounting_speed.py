"""Processor seconds of accounting / what is allowed: golden rows 1 s, a million steps 5 s, a calibration 10 s."""

import time
import tomllib
from collections.abc import Callable
from typing import Any

from benchmarks.measure import ROOT, line


def spent(call: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def run() -> dict[str, Any]:
    """The worst of each kind; nothing is warmed up but the imports."""
    from sightline import accounting

    accounting.poisson(noise=3.0, rate=0.5, steps=2).epsilon(delta=1e-5)
    rows = tomllib.loads((ROOT / "tests" / "golden" / "accounting.toml").read_text())["row"]
    golden = [
        spent(lambda row=row: getattr(accounting, row["scheme"])(**row["arguments"]).epsilon(delta=row["delta"]))  # type: ignore[misc]
        for row in rows
    ]
    million = [
        spent(lambda z=z, q=q: accounting.poisson(noise=z, rate=q, steps=10**6).epsilon(delta=1e-5))  # type: ignore[misc]
        for z, q in ((1.0, 1e-3), (0.5, 1e-4), (5.0, 0.01))
    ]
    scheme = accounting.balanced(noise=1.0, steps=2000, uses=655)
    calibration = spent(lambda: scheme.calibrated(epsilon=8.0, delta=1e-5))
    seconds = {"golden row": max(golden), "a million steps": max(million), "calibration": calibration}
    worst = max(seconds["golden row"] / 1, seconds["a million steps"] / 5, seconds["calibration"] / 10)
    told = {name: round(value, 3) for name, value in seconds.items()}
    return line("accounting_speed", worst, 1, at_least=False, seconds=told)
