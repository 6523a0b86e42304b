"""Every run of Figures 3 and 5, scaled: personal models of group structures, by panel."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

EPOCHS = 60
PER_WORKER = 200
"""Training images a worker, in the mean."""
METRICS = [
    "test_accuracy",
    "client_accuracy_worst",
    "client_train_loss_mean",
    "group_accuracy_worst",
    "group_accuracy_best",
]


@dataclass(frozen=True)
class Cell:
    """One curve of the legend: structure, N, M, S, noise multiplier; RI+ is the ring under DP-OGL+."""

    curve: str
    structure: str
    groups: int
    period: int
    noise: float
    workers: int = 100
    source: str = "mnist"
    private: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """As the paper's legend has it: structure (N, M, S, noise)."""
        return f"{self.curve} ({self.workers}, {self.groups}, {self.period}, {self.noise:g})"

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join((self.source, self.name, "private" if self.private else "clear", str(self.seed)))

    @property
    def plain(self) -> dict[str, Any]:
        """The experiment file, as a dictionary."""
        topology = {"kind": "groups", "structure": self.structure, "groups": self.groups, "period": self.period}
        if self.structure == "labels":
            topology["label_share"] = 0.1
        privacy = {"unit": "client", "noise_multiplier": self.noise, "clip_norm": 0.25}
        return {
            "name": "figure3", "seed": self.seed, "rounds": EPOCHS, "evaluate_every": 10,
            "data": {"source": self.source, "clients": self.workers, "partition": "dirichlet", "concentration": 0.1,
                     "train_samples": PER_WORKER * self.workers, "test_samples": 10000},
            "model": {"name": "mlp", "hidden": [32]},
            "local": {"steps": 10, "batch_size": 64, "learning_rate": 0.05},
            "topology": topology,
            "algorithm": {"name": "dp_ogl_plus" if self.curve == "RI+" else "dp_ogl"},
            "sampling": {"clients": {"scheme": "poisson", "rate": 0.7}},
            "privacy": privacy if self.private else {"unit": "none"},
        }  # fmt: skip


STRUCTURES = (
    Cell("GL", "global", 1, 1, 2.0),
    Cell("CL", "clusters", 4, 2, 2.0),
    Cell("LB", "labels", 5, 10, 3.0),
    Cell("RI", "ring", 4, 10, 2.0),
    Cell("RI+", "ring", 4, 2, 2.0),
)
"""(a), (b): the structures."""
SIZES = (
    Cell("GL", "global", 1, 1, 2.0, workers=40),
    Cell("RI", "ring", 10, 10, 2.0),
    Cell("RI", "ring", 4, 10, 2.0, workers=40),
    Cell("RI+", "ring", 10, 2, 2.0),
    Cell("RI+", "ring", 4, 2, 1.3, workers=40),
)
"""(c), (d): small groups (N/M = 10) beside the large ones of (a), (b)."""
PERIODS = (
    Cell("LB", "labels", 5, 2, 3.0),
    Cell("RI", "ring", 4, 2, 2.0),
    Cell("RI+", "ring", 4, 4, 2.0),
)
"""(e), (f): other periods S than in (a), (b)."""
NOISE = (
    Cell("RI", "ring", 10, 10, 1.3),
    Cell("RI", "ring", 4, 10, 1.3, workers=40),
    Cell("RI+", "ring", 10, 2, 1.3),
    Cell("RI+", "ring", 4, 2, 2.0, workers=40),
)
"""(g), (h): the other noise for the small groups of (c), (d)."""


def structures(source: str = "mnist") -> Iterator[Cell]:
    """Two seeds with noise, one without."""
    for cell in STRUCTURES:
        yield replace(cell, source=source)
        yield replace(cell, source=source, private=False)
        yield replace(cell, source=source, seed=1)


def fashion() -> Iterator[Cell]:
    """Figure 5 (a) to (d): all of the above on Fashion-MNIST."""
    yield from structures("fashion_mnist")
    yield from (replace(cell, source="fashion_mnist") for cell in (*SIZES, *PERIODS, *NOISE))


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "structures": structures,
    "sizes": lambda: iter(SIZES),
    "periods": lambda: iter(PERIODS),
    "noise": lambda: iter(NOISE),
    "fashion": fashion,
}


def work(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    import sightline
    from sightline.config import parse

    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = sightline.run(parse(cell.plain), out=Path(folder) / "run", progress=False)
        rows = [row for row in run.rounds if row.get("test_accuracy") is not None]
        summary = run.summary
    return {
        "key": cell.key, "source": cell.source, "name": cell.name, "private": cell.private, "seed": cell.seed,
        "epochs": [row["round"] for row in rows],
        **{name: [row[name] for row in rows] for name in METRICS},
        "epsilon": summary["observers"], "cpu_seconds": time.process_time() - begun,
    }  # fmt: skip
