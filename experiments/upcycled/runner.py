"""What one run of the reproduction gives."""

import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.upcycled.cells import Cell


def run_cell(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    from sightline import engine
    from sightline.api import Run
    from sightline.config import parse
    from sightline.runtimes import Simulator

    experiment = parse(cell.plain)
    rows: list[Any] = []
    begun, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = engine.calibrate_noise(engine.build_experiment(experiment))
        engine.run_loop(setting, Path(folder), Simulator, resume=False, on_round=rows.append)
        summary = Run(Path(folder)).summary
    judged = [row for row in rows if "test_loss" in row]
    return {
        "key": cell.key,
        "part": cell.part,
        "algorithm": cell.algorithm,
        "data": cell.data,
        "upcycled": cell.upcycled,
        "seed": cell.seed,
        "accuracy": summary["test_accuracy"],
        "loss": summary["test_loss"],
        "curve": [[row["round"], row["test_loss"], row["test_accuracy"]] for row in judged],
        "epsilon": summary["epsilon"],
        "noise_multiplier": summary["noise_multiplier"],
        "releases": summary["releases"],
        "uplink_floats": summary["uplink_floats"],
        "training_seconds": summary["seconds"],
        "wall_seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
    }
