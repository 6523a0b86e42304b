"""The figures by name, each as the runs it is drawn from."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.hierarchy.cells import CONTROL, Cell, experiment, open_run, trusted, with_control

BOTH = ("fashion_mnist", "cifar10")
SHARES = (0.0, 0.5, 1.0)
EPSILONS = (0.5, 4.0)
WEIGHTS = (0.1, 1, 5, 20)
SEEDS = (0,)


def curves() -> Iterator[Cell]:
    """Figure 4: without privacy, and with p_c = 0 (HFL-DP), .5 and 1."""
    for data in BOTH:
        for seed in SEEDS:
            yield Cell("fig4", "HFL", data, seed, open_run(data, seed=seed), {"share": None})
            for share in SHARES:
                plain = experiment(data, seed=seed, trusted=trusted(10, share))
                yield Cell("fig4", f"p={share:g}", data, seed, plain, {"share": share, "epsilon": 1.0})


def costs() -> Iterator[Cell]:
    """Figure 5: control, and PEDPFL (one subnet, nobody trusted); the other bars are figure 4's runs.

    Fashion-MNIST also at epsilon = 8, where less of the run is noise.
    """
    for data in BOTH:
        for seed in SEEDS:
            plain = experiment(data, seed=seed)
            yield Cell("fig5", "control", data, seed, with_control(plain, CONTROL))
            yield Cell("fig5", "PEDPFL", data, seed, experiment(data, seed=seed, subnets=1, size=50, trusted=0.0))
    weak = experiment("fashion_mnist", seed=0, epsilon=8.0)
    yield Cell("fig5", "eps=8", "fashion_mnist", 0, weak)
    yield Cell("fig5", "control eps=8", "fashion_mnist", 0, with_control(weak, CONTROL))


def budgets() -> Iterator[Cell]:
    """Figure 6: epsilon against trust; epsilon = 1 is figure 4."""
    for data in BOTH:
        for epsilon in EPSILONS:
            for share in SHARES:
                plain = experiment(data, seed=0, trusted=trusted(10, share), epsilon=epsilon)
                facts = {"share": share, "epsilon": epsilon}
                yield Cell("fig6", f"eps={epsilon:g} p={share:g}", data, 0, plain, facts)


def more_budget() -> Iterator[Cell]:
    """Figure 9: epsilon = 1.5 with half of the edges trusted, beside .5 (figure 6) and 1 (figure 4)."""
    for data in BOTH:
        plain = experiment(data, seed=0, epsilon=1.5)
        yield Cell("fig9", "eps=1.5 p=0.5", data, 0, plain, {"share": 0.5, "epsilon": 1.5})


def networks() -> Iterator[Cell]:
    """Figure 7: more subnets of five devices, or two subnets of more devices; half of the edges trusted."""
    for data in BOTH:
        for total in (10, 30, 50):
            shapes = {(total // 5, 5), (2, total // 2)}
            for subnets, size in sorted(shapes):
                if (subnets, size) == (10, 5):
                    continue  # figure 4's
                plain = experiment(data, seed=0, subnets=subnets, size=size)
                facts = {"subnets": subnets, "size": size}
                yield Cell("fig7", f"{subnets}x{size}", data, 0, plain, facts)


def weights(figure: str, names: tuple[str, ...]) -> Iterator[Cell]:
    """Figures 8 and 10: what the weights do to tau and s; four subnets of 15 devices.

    Decisions depend on costs relative to the plan, not on model or data, so the smallest of both will do.
    """
    for name in names:
        for value in WEIGHTS:
            chosen = {"energy": 1, "delay": 1, "accuracy": 1, "tau_max": 40} | {name: value}
            plain = with_control(experiment("fashion_mnist", seed=0, subnets=4, size=15), chosen)
            plain |= {"data": {"source": "digits", "clients": 60}, "rounds": 20, "evaluate_every": 20}
            yield Cell(figure, f"{name}={value:g}", "fashion_mnist", 0, plain, {"weight": name, "value": value})


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "fig4": curves,
    "fig5": costs,
    "fig6": budgets,
    "fig7": networks,
    "fig8": lambda: weights("fig8", ("energy", "accuracy")),
    "fig9": more_budget,
    "fig10": lambda: weights("fig10", ("delay",)),
}


def work(cell: Cell) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    from sightline import engine
    from sightline.api import Run
    from sightline.config import parse
    from sightline.runtimes import Simulator

    rows: list[Any] = []
    begun, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = engine.calibrate_noise(engine.build_experiment(parse(cell.plain)))
        engine.run_loop(setting, Path(folder), Simulator, resume=False, on_round=rows.append)
        summary = Run(Path(folder)).summary
    spent, curve = {"energy_joule": 0.0, "delay_seconds": 0.0}, []
    for row in rows:
        spent = {name: value + row[name] for name, value in spent.items()}
        if row.get("test_accuracy") is not None:
            curve.append([row["round"], row["test_accuracy"], spent["energy_joule"], spent["delay_seconds"]])
    return {
        "key": cell.key, "figure": cell.figure, "name": cell.name, "data": cell.data, "seed": cell.seed,
        "facts": cell.facts, "curve": curve, "accuracy": summary["test_accuracy"], "epsilon": summary["epsilon"],
        "noise_multiplier": summary["noise_multiplier"], "rounds": summary["rounds_done"],
        "control": summary.get("control"), "wall_seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
    }  # fmt: skip
