"""What one run of the reproduction gives."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers.upcycled.cells import Cell

if TYPE_CHECKING:
    from sightline.config import Experiment
    from sightline.data import Federation
    from sightline.engine.build import BuiltExperiment


def run_cell(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    from sightline import engine
    from sightline.api import Run
    from sightline.config import parse

    experiment = parse(cell.plain)
    rows: list[Any] = []
    begun, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        built = engine.build_experiment(experiment, federation=read_data(cell, experiment))
        setting = engine.calibrate_noise(built)
        loop = time.process_time()
        engine.run_loop(setting, Path(folder), simulator_of(cell), resume=False, on_round=rows.append)
        loop = time.process_time() - loop
        summary = Run(Path(folder)).summary
    judged = [row for row in rows if "test_loss" in row]
    names = ("key", "part", "algorithm", "data", "variant", "setting", "upcycled", "seed")
    return {name: getattr(cell, name) for name in names} | {
        "accuracy": summary["test_accuracy"],
        "loss": summary["test_loss"],
        "curve": [[row["round"], _short(row["test_loss"]), _short(row["test_accuracy"])] for row in judged],
        "epsilon": summary["epsilon"],
        "noise_multiplier": summary["noise_multiplier"],
        "releases": summary["releases"],
        "uplink_floats": summary["uplink_floats"],
        "training_cpu_seconds": loop,
        "wall_seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
    }


def _short(value: float) -> float:
    """Six digits of a curve's number."""
    return float(f"{value:.6g}")


def read_data(cell: Cell, experiment: "Experiment") -> "Federation":
    """The data of the cell's own seed; reduced to few features where the cell asks for it."""
    from sightline.data import load_federation
    from sightline.randomness import Streams

    seed = cell.plain["seed"] if cell.data_seed is None else cell.data_seed
    found = load_federation(experiment.data, streams=Streams.from_seed(seed))
    if not cell.reduced:
        return found
    from papers.upcycled.networks import reduce_features

    return reduce_features(found)


def simulator_of(cell: Cell) -> Any:
    """The simulator; with a gradient clip, every local step is scaled onto its ball."""
    from sightline.runtimes import Simulator
    from sightline.runtimes.local_trainer import trainer_for

    if cell.gradient_clip is None:
        return Simulator

    def clipped(setting: "BuiltExperiment", *streams: Any, **more: Any) -> Simulator:
        simulator = Simulator(setting, *streams, **more)
        work = replace(simulator.clients.work, step_norm=cell.gradient_clip)
        simulator.clients = replace(simulator.clients, work=work)
        simulator._trainer = trainer_for(simulator.clients, 1)
        return simulator

    return clipped
