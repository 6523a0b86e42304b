"""Every run of Figures 3 and 5, scaled: personal models of group structures, at the printed rate and at a tuned one."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PER_WORKER = 100
"""Training images a worker, in the mean."""
SEEDS = (0, 1, 2)
"""Seeds of what stands beside the main comparison: sizes, periods, noise, Fashion-MNIST."""
METRICS = ["test_accuracy", "client_accuracy_worst", "client_train_loss_mean"]


@dataclass(frozen=True)
class Regime:
    """How far training gets: the model, and how large its steps are beside the noise."""

    epochs: int
    every: int
    model: str
    steps: int
    batch: int
    learning_rate: float
    clip_norm: float = 0.05

    @property
    def plain(self) -> dict[str, Any]:
        """The sections of the experiment file that it sets."""
        return {
            "rounds": self.epochs, "evaluate_every": self.every,
            "model": {"name": "mlp", "hidden": [32]} if self.model == "mlp" else {"name": self.model},
            "local": {"steps": self.steps, "batch_size": self.batch, "learning_rate": self.learning_rate},
        }  # fmt: skip


PRINTED = Regime(120, 40, "cnn_small", 1, 4, 0.01)
"""The printed noise, clip norm and way of an epoch: one step of .01 instead of 10 of .001."""
REGIMES = {
    "printed": PRINTED,
    "rate x 50": replace(PRINTED, learning_rate=0.5),
    "tuned": Regime(60, 20, "mlp", 10, 16, 0.05, clip_norm=0.25),
}


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
    regime: str = "printed"
    private: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """As the paper's legend has it: structure (N, M, S, noise)."""
        return f"{self.curve} ({self.workers}, {self.groups}, {self.period}, {self.noise:g})"

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join((self.source, self.regime, self.name, "private" if self.private else "clear", str(self.seed)))

    @property
    def topology(self) -> dict[str, Any]:
        """Who is in which group; the sorted ring's file is written when the data are there."""
        if self.structure == "sorted ring":
            return {"kind": "groups", "file": "sorted-ring.json", "period": self.period}
        return {"kind": "groups", "structure": self.structure, "groups": self.groups, "period": self.period}

    @property
    def plain(self) -> dict[str, Any]:
        """The experiment file, as a dictionary."""
        regime = REGIMES[self.regime]
        privacy = {"unit": "client", "noise_multiplier": self.noise, "clip_norm": regime.clip_norm}
        return regime.plain | {
            "name": "figure3", "seed": self.seed,
            "data": {"source": self.source, "clients": self.workers, "partition": "dirichlet", "concentration": 0.1,
                     "train_samples": PER_WORKER * self.workers, "test_samples": 5000},
            "topology": self.topology,
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
GL, CL, LB, RI, PLUS = STRUCTURES
LOUD = replace(GL, noise=8.0)
"""One model with the noise of a ring's group: 2 / 25 = 8 / 100."""
QUIET = replace(RI, noise=0.5)
"""A ring whose groups have the noise of the one model."""
SORTED = replace(RI, curve="RI by label", structure="sorted ring")


def seeded(cells: tuple[Cell, ...], regime: str, *, source: str = "mnist", private: bool = True) -> Iterator[Cell]:
    """Each cell with every seed."""
    for cell in cells:
        yield from (replace(cell, regime=regime, source=source, private=private, seed=seed) for seed in SEEDS)


def structures() -> Iterator[Cell]:
    """Figure 3 (a), (b)."""
    yield from (cell for regime in ("printed", "tuned") for cell in seeded(STRUCTURES, regime))


def causes() -> Iterator[Cell]:
    """What makes the ring lead: its noise, its groups, or the rate."""
    yield from seeded((LOUD, QUIET), "printed")
    yield from seeded((GL, RI), "rate x 50")


def sizes() -> Iterator[Cell]:
    """Figure 3 (c), (d): at the printed rate the baseline only."""
    yield from seeded(SIZES, "tuned")
    yield from seeded(SIZES[:1], "printed")


def fashion() -> Iterator[Cell]:
    """Figure 5 (a) to (d): at the printed rate the structures and the global model of 40 workers."""
    yield from seeded((*STRUCTURES, *SIZES, *PERIODS, *NOISE), "tuned", source="fashion_mnist")
    yield from seeded((*STRUCTURES, SIZES[0]), "printed", source="fashion_mnist")


def quick() -> Iterator[Cell]:
    """Global against ring in both regimes, and the sorted ring: one seed of other parts' runs."""
    yield from (replace(cell, regime=regime) for regime in ("printed", "tuned") for cell in (GL, RI))
    yield replace(SORTED, regime="tuned")


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "structures": structures,
    "order": lambda: seeded((SORTED,), "tuned"),
    "causes": causes,
    "sizes": sizes,
    "periods": lambda: seeded(PERIODS, "tuned"),
    "noise": lambda: seeded(NOISE, "tuned"),
    "fashion": fashion,
    "quick": quick,
}


def work(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    import sightline
    from sightline.config import parse

    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        plain = cell.plain
        if cell.structure == "sorted ring":
            plain["topology"]["file"] = str(write_sorted_ring(cell, Path(folder) / "sorted-ring.json"))
        run = sightline.run(parse(plain), out=Path(folder) / "run", progress=False)
        rows = [row for row in run.rounds if row.get("test_accuracy") is not None]
        summary = run.summary
    return {
        "key": cell.key, "source": cell.source, "regime": cell.regime, "name": cell.name, "private": cell.private,
        "seed": cell.seed, "epochs": [row["round"] for row in rows],
        **{name: [round(row[name], 5) for row in rows] for name in METRICS},
        "epsilon": summary["observers"], "cpu_seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def write_sorted_ring(cell: Cell, path: Path) -> Path:
    """The membership file of a ring whose workers are sorted by the label that each has most of."""
    import numpy as np

    from sightline import engine
    from sightline.config import parse

    built = engine.build_experiment(parse(replace(cell, structure="ring").plain))
    most = [int(np.bincount(np.asarray(client.train.y)).argmax()) for client in built.federation.clients]
    path.write_text(json.dumps({"workers": cell.workers, "groups": sort_ring(most, cell.groups)}), encoding="utf-8")
    return path


def sort_ring(most: list[int], groups: int) -> list[list[int]]:
    """A ring in the order of the workers' commonest labels, which the order reveals.

    >>> sort_ring([1, 0, 1, 0], 2)
    [[0, 1, 3], [0, 1, 2]]
    """
    from sightline.topology.groups import ring_groups

    order = sorted(range(len(most)), key=lambda worker: (most[worker], worker))
    return [sorted(order[place] for place in group) for group in ring_groups(len(most), groups)]
