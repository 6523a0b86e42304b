"""Run cells, one JSON line each; a cell whose line is there already is not run again."""

import json
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from experiments.upcycled.cells import Cell


def run_cell(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    from sightline import engine
    from sightline.api import summarised
    from sightline.config import parse
    from sightline.runtimes import Simulator

    experiment = parse(cell.plain)
    rows: list[Any] = []
    begun, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = engine.calibrated(engine.build(experiment))
        engine.run(setting, Path(folder), Simulator, resume=False, on_round=rows.append)
        summary = summarised(Path(folder))
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


def done_keys(results: Path) -> set[str]:
    """The cells whose results are in the file."""
    return {row["key"] for row in read(results)}


def read(results: Path) -> list[dict[str, Any]]:
    """All results; a line that was cut off by an interruption is left out."""
    rows = []
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def run_all(cells: Iterable[Cell], results: Path, *, workers: int) -> None:
    """Run what is missing, `workers` at a time, and write every result as soon as it is there."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = done_keys(results)
    waiting = [cell for cell in cells if cell.key not in done]
    columns = (TextColumn("{task.description:42}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar, ProcessPoolExecutor(workers) as pool, results.open("a", encoding="utf-8") as file:
        task = bar.add_task("upcycled", total=len(waiting))
        running: dict[Future[dict[str, Any]], Cell] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                cell = waiting.pop(0)
                running[pool.submit(run_cell, cell)] = cell
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                cell = running.pop(future)
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
                bar.update(task, advance=1, description=cell.key)
