"""The figures by name, each as the runs it is drawn from."""

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from papers.hierarchy.cells import (
    CLIPPED_RATE,
    CNN_PLAIN_RATE,
    CONTROL,
    EVERY,
    LONG,
    NOTHING,
    Cell,
    add_control,
    clip_steps,
    drop_privacy,
    experiment,
    noise_as_published,
    release_every_step,
    run_as,
    train_cnn,
    trust_edges,
)

SHARES = (0.0, 0.5, 1.0)
EPSILONS = (0.5, 4.0)
LOUD = 0.2
"""An epsilon with about five times the noise of epsilon 1."""
WEIGHTS = (0.1, 1, 5, 20)
SEEDS = (0, 1, 2)
Runs = tuple[tuple[str, int], ...]
"""(data set, seed)."""
FASHION: Runs = tuple(("fashion_mnist", seed) for seed in SEEDS)
CIFAR: Runs = tuple(("cifar10", seed) for seed in SEEDS)


def curves(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figure 4: without privacy, and with p_c = 0 (HFL-DP), .5 and 1."""
    for data, seed in runs:
        yield Cell("fig4", "HFL", data, seed, drop_privacy(experiment(data, seed=seed)))
        for share in SHARES:
            plain = experiment(data, seed=seed, share=share)
            yield Cell("fig4", f"p={share:g}", data, seed, plain, {"share": share, "epsilon": 1.0})


def long_curves() -> Iterator[Cell]:
    """Figure 4 at the paper's 200 intervals: Fashion-MNIST."""
    for data, seed in FASHION:
        yield Cell("long", "HFL", data, seed, drop_privacy(experiment(data, seed=seed, intervals=LONG)))
        for share in SHARES:
            plain = experiment(data, seed=seed, share=share, intervals=LONG)
            yield Cell("long", f"p={share:g}", data, seed, plain, {"share": share, "epsilon": 1.0})


def comparators(runs: Runs = FASHION) -> Iterator[Cell]:
    """What clipping costs without noise, and with the noise that a guarantee for any model needs."""
    for data, seed in runs:
        yield Cell("clipped", "no noise", data, seed, clip_steps(experiment(data, seed=seed, share=1.0), NOTHING))
        for share in SHARES:
            yield Cell("clipped", f"p={share:g}", data, seed, clip_steps(experiment(data, seed=seed, share=share), 1.0))


def single_steps(runs: Runs = FASHION + CIFAR) -> Iterator[Cell]:
    """Clipped steps with an aggregation after every step: a deviation from the paper's every five."""
    for data, seed in runs:
        whole = experiment(data, seed=seed, share=1.0)
        silent = release_every_step(whole, 1.0)
        yield Cell("single", "HFL", data, seed, drop_privacy(silent))
        if data == "fashion_mnist":
            yield Cell("single", "five p=1", data, seed, release_every_step(whole, 1.0, rate=CLIPPED_RATE, every=EVERY))
        for share in SHARES:
            plain = release_every_step(experiment(data, seed=seed, share=share), 1.0)
            yield Cell("single", f"p={share:g}", data, seed, plain, {"share": share, "epsilon": 1.0})


def networks_of_convolutions(runs: Runs = FASHION) -> Iterator[Cell]:
    """A loss that is not convex: without privacy, the comparators, and trust, with an aggregation after every step.

    The first seed has the paper's aggregation every five steps too, and noise for whole devices.
    """
    for data, seed in runs:
        yield Cell("cnn", "HFL", data, seed, drop_privacy(train_cnn(data, seed=seed, rate=CNN_PLAIN_RATE)))
        if (data, seed) == FASHION[0]:
            yield Cell("cnn", "no noise", data, seed, train_cnn(data, seed=seed, share=1.0, epsilon=NOTHING))
            yield Cell("cnn", "HFL same rate", data, seed, drop_privacy(train_cnn(data, seed=seed)))
        alone = train_cnn(data, seed=seed, subnets=1, share=0.0)
        yield Cell("cnn", "PEDPFL", data, seed, run_as(alone, "pedpfl"))
        for share in SHARES:
            facts = {"share": share, "epsilon": 1.0}
            plain = train_cnn(data, seed=seed, share=share)
            plain = plain if share else run_as(plain, "hfl_dp")
            yield Cell("cnn", f"p={share:g}", data, seed, plain, facts)
            if seed == SEEDS[0]:
                five = train_cnn(data, seed=seed, share=share, every=EVERY)
                yield Cell("cnn", f"five p={share:g}", data, seed, five, facts)
                whole = train_cnn(data, seed=seed, share=share, every=EVERY, unit="client")
                yield Cell("cnn", f"client p={share:g}", data, seed, whole, facts)


def published(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figures 4 and 5 with Proposition 3.1's noise for epsilon 1, which is no guarantee."""
    for data, seed in runs:
        for share in SHARES:
            plain = noise_as_published(experiment(data, seed=seed, share=share))
            yield Cell("published", f"p={share:g}", data, seed, plain)
            if share == 0.5:
                yield Cell("published", "control", data, seed, add_control(plain, CONTROL))
        alone = experiment(data, seed=seed, subnets=1, size=50, share=0.0)
        yield Cell("published", "PEDPFL", data, seed, noise_as_published(alone))


def loud() -> Iterator[Cell]:
    """Figures 4 and 7 with five times the noise, where it matters who is trusted and how many there are."""
    for data, seed in FASHION:
        for share in SHARES:
            plain = experiment(data, seed=seed, share=share, epsilon=LOUD)
            yield Cell("loud", f"p={share:g}", data, seed, plain, {"share": share, "epsilon": LOUD})
        for size in (5, 25):
            plain = experiment(data, seed=seed, subnets=2, size=size, epsilon=LOUD)
            yield Cell("loud", f"2x{size}", data, seed, plain, {"subnets": 2, "size": size})


def costs(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figure 5: control, and PEDPFL (one subnet, nobody trusted); the other bars are figure 4's runs."""
    for data, seed in runs:
        yield Cell("fig5", "control", data, seed, add_control(experiment(data, seed=seed), CONTROL))
        yield Cell("fig5", "PEDPFL", data, seed, experiment(data, seed=seed, subnets=1, size=50, share=0.0))


def budgets(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figure 6: epsilon against trust; epsilon = 1 is figure 4; at epsilon = 4 p_c = .5 is left out."""
    for (data, seed), epsilon, share in product(runs, EPSILONS, SHARES):
        if epsilon < 1 or share != 0.5:
            plain = experiment(data, seed=seed, share=share, epsilon=epsilon)
            facts = {"share": share, "epsilon": epsilon}
            yield Cell("fig6", f"eps={epsilon:g} p={share:g}", data, seed, plain, facts)


def more_budget(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figure 9: epsilon = 1.5 with half of the edges trusted, beside .5 (figure 6) and 1 (figure 4)."""
    for data, seed in runs:
        plain = experiment(data, seed=seed, epsilon=1.5)
        yield Cell("fig9", "eps=1.5 p=0.5", data, seed, plain, {"share": 0.5, "epsilon": 1.5})


def networks(runs: Runs = FASHION) -> Iterator[Cell]:
    """Figure 7: more subnets of five devices, or two subnets of more devices; half of the edges trusted."""
    for (data, seed), (subnets, size) in product(runs, ((2, 5), (6, 5), (2, 15), (2, 25))):
        plain = experiment(data, seed=seed, subnets=subnets, size=size)
        yield Cell("fig7", f"{subnets}x{size}", data, seed, plain, {"subnets": subnets, "size": size})


def weights(figure: str, names: tuple[str, ...], delays: str = "max") -> Iterator[Cell]:
    """Figures 8 and 10: what the weights do to tau and s; four subnets of 15 devices.

    Decisions depend on costs relative to the plan, not on model or data, so the smallest of both will do.
    """
    for name, value in product(names, WEIGHTS):
        chosen = {"energy": 1, "delay": 1, "accuracy": 1, "tau_max": 40} | {name: value}
        plain = {
            "name": "hierarchy",
            "rounds": 20,
            "evaluate_every": 20,
            "data": {"source": "digits", "clients": 60},
            "model": {"name": "linear"},
            "topology": {"kind": "tree", "subnets": 4, "trusted": trust_edges(4, 0.5)},
            "algorithm": {"name": "h2fdp", "local_aggregation": 5, "control": chosen},
            "local": {"steps": 20, "batch_size": 1, "learning_rate": 0.1},
            "privacy": {"unit": "sample", "where": "edge", "epsilon": 1.0, "delta": 1e-5, "clip_norm": 1.0},
            "resources": {"model": "wireless"} | ({"delays": delays} if delays != "max" else {}),
        }
        label = f"{name}={value:g}" + (f" {delays}" if delays != "max" else "")
        yield Cell(figure, label, "digits", 0, plain, {"weight": name, "value": value, "delays": delays})


def colours() -> Iterator[Cell]:
    """All of it for CIFAR-10 but the louder noise."""
    for part in (curves, budgets, more_budget, networks, costs, published, comparators):
        yield from part(CIFAR)


def quick() -> Iterator[Cell]:
    """Some of the runs above, to see that they still give what is kept."""
    wanted = {"fig4/fashion_mnist/p=1/0", "published/fashion_mnist/p=0.5/0", "fig7/fashion_mnist/2x5/0"}
    yield from (cell for part in (curves, published, networks) for cell in part() if cell.key in wanted)
    yield from weights("fig10", ("delay",), "sum")


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "fig4": curves,
    "published": published,
    "fig5": costs,
    "loud": loud,
    "clipped": comparators,
    "fig7": networks,
    "fig6": budgets,
    "fig9": more_budget,
    "fig8": lambda: weights("fig8", ("energy", "accuracy")),
    "fig10": lambda: (*weights("fig10", ("delay",)), *weights("fig10", ("delay",), "sum")),
    "long": long_curves,
    "single": single_steps,
    "cnn": networks_of_convolutions,
    "cnn-cifar": lambda: networks_of_convolutions(CIFAR[:1]),
    "cifar": colours,
    "quick": quick,
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
