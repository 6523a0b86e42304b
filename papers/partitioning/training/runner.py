"""Pre-train once per source, then run every cell whose result is missing."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from papers.partitioning.training.cells import Cell, pretrained, pretraining


def ready(source: str, parts: int, network: str = "mlp") -> float:
    """Pre-train on 8 of the 10 classes, unless the weights are there; returns the test accuracy on those classes."""
    import sightline
    from sightline.config import parse

    path = pretrained(source, parts, network)
    note = path.with_suffix(".txt")
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            run = sightline.run(parse(pretraining(source, parts, network)), out=Path(folder) / "run", progress=False)
            path.parent.mkdir(exist_ok=True)
            note.write_text(f"{run.test_accuracy}\n")
            shutil.copy(run.directory / "model.safetensors", path)
    return float(note.read_text())


def run_cell(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    import sightline
    from sightline.config import parse

    known = ready(cell.source, cell.parts, cell.network) if cell.pretrained else None
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = sightline.run(parse(cell.plain), out=Path(folder) / "run", progress=False)
        summary = run.summary
    return {
        "key": cell.key, "table": cell.table, "regime": cell.regime, "source": cell.source,
        "method": cell.method, "parts": cell.parts,
        "seed": cell.seed, "accuracy": summary["test_accuracy"], "epsilon": summary["epsilon"],
        "noise_multiplier": summary["noise_multiplier"], "uplink_floats": summary["uplink_floats"],
        "pretrained_accuracy": known, "cpu_seconds": time.process_time() - begun,
    }  # fmt: skip


def pretrain(cells: list[Cell]) -> None:
    """All pre-trainings that the cells begin with, one after the other."""
    for cell in cells:
        if cell.pretrained:
            ready(cell.source, cell.parts, cell.network)
