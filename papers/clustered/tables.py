"""What the results say, as tables, and what the findings pick from them."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from papers.clustered.accuracy import find_tuned
from papers.clustered.batches import FIRST_BATCHES, LATER_BATCHES
from papers.paired import measure_mean

Row = dict[str, Any]
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SHIFTS = {"rotation": "rotation", "label_shift": "label shift"}
ALGORITHMS = {
    "oracle_clusters": "Oracle clusters",
    "rdpcfl": "R-DPCFL",
    "ifca": "IFCA, private selection",
    "mrmtl": "MR-MTL",
    "local": "Local",
    "fedavg": "Global (DP-FedAvg)",
}


def of_part(rows: Iterable[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def table(header: list[str], lines: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines])


def counts(rows: list[Row]) -> str:
    """How often the number of clusters, and with it the clusters, were found (figure 10 and its text)."""
    cells: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in of_part(rows, "first"):
        for cell in row["cells"]:
            cells[row["source"], row["partition"], cell["points"]].append(cell)
    lines = []
    for (source, partition, points), some in cells.items():
        by_epsilon = defaultdict(list)
        for cell in some:
            by_epsilon[cell["epsilon"]].append(cell)
        found = ", ".join(f"{sum(c['right'] for c in own)}/{len(own)}" for own in by_epsilon.values())
        wrong = sorted({cell["count"] for cell in some if not cell["right"]})
        known = f"{sum(cell['known_right'] for cell in some)}/{len(some)}"
        least = f"{min(cell['mss'] for cell in some):.1f}"
        mistakes = ", ".join(map(str, wrong)) or "-"
        lines.append([NAMES[source], SHIFTS[partition], f"`{points}`", found, mistakes, known, least])
    epsilons = "3, 4, 5, 10, 15"
    return table(
        ["data", "shift", "points", f"right, of seeds, at epsilon {epsilons}", "other counts", "right with M = 4 known",
         "least MSS with M = 4"], lines,
    )  # fmt: skip


def sure_fits(rows: list[Row], points: str) -> tuple[int, int, int]:
    """(fits with MSS > 2, of those the true clusters, true clusters among the others), M known."""
    fits = [fit for fit in known_fits(rows) if fit["points"] == points]
    above, below = [fit for fit in fits if fit["mss"] > 2], [fit for fit in fits if fit["mss"] <= 2]
    return len(above), sum(fit["known_right"] for fit in above), sum(fit["known_right"] for fit in below)


def known_fits(rows: list[Row]) -> list[Row]:
    """All fits with the number of clusters known, at the noise of the epsilons and louder."""
    return [fit for row in of_part(rows, "first") for fit in (*row["cells"], *row["louder"])]


def noise(rows: list[Row]) -> str:
    """z of the whole run for each epsilon, beside the authors'."""
    theirs = {3: 2.908, 4: 2.245, 5: 1.853, 10: 1.089, 15: 0.858}
    ours = {
        cell["epsilon"]: cell["noise_multiplier"]
        for row in of_part(rows, "first")
        if row["samples"] == 8000
        for cell in row["cells"]
    }
    lines = [[str(e), f"{theirs[e]:.3f}", f"{z:.3f}", f"{z / theirs[e]:.2f}"] for e, z in sorted(ours.items())]
    return table(["epsilon", "authors' split", "here", "ratio"], lines)


def pick_runs(rows: list[Row], algorithm: str, *, source: str, epsilon: float, **where: Any) -> list[Row]:
    """Runs of one algorithm with M known, by seed."""
    wanted = {"partition": "rotation", "steps": "main", "auto": False} | where
    wanted |= {"algorithm": algorithm, "source": source, "epsilon": epsilon}
    found = [row for row in of_part(rows, "accuracy") if all(row[name] == value for name, value in wanted.items())]
    return sorted(found, key=lambda row: row["seed"])


def seeds_of(rows: list[Row], algorithm: str, name: str, **where: Any) -> dict[int, float]:
    """Seed -> accuracy in %."""
    return {row["seed"]: 100 * row[name] for row in pick_runs(rows, algorithm, **where)}


FAILED = 0.9
"""A run has failed when the purity of its clusters is below this: at least three of 21 clients are with strangers."""


def count_failures(
    rows: list[Row], algorithm: str, *, source: str, epsilon: float, steps: str = "main", partition: str = "rotation"
) -> tuple[int, int]:
    """(runs that failed, all runs)."""
    own = pick_runs(rows, algorithm, source=source, epsilon=epsilon, steps=steps, partition=partition)
    return sum(row["purity"] < FAILED for row in own), len(own)


def accuracy(rows: list[Row]) -> str:
    """Means over clients and over the minority's, and failures (figures 11 and 12)."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in of_part(rows, "accuracy"):
        way = STEPS_WORDS[row["steps"]] + (", M unknown" if row["auto"] else "")
        groups[row["source"], row["partition"], row["epsilon"], row["algorithm"], way].append(row)
    lines = [
        [NAMES[source], SHIFTS[partition], f"{epsilon:g}", ALGORITHMS[algorithm] + way, *accuracy_cells(own)]
        for (source, partition, epsilon, algorithm, way), own in sorted(groups.items())
    ]
    header = ["data", "shift", "epsilon", "algorithm", "z", "all clients, %", "minority, %", "least minority, %"]
    return table([*header, "failed", "least MSS"], lines)


STEPS_WORDS = {
    "main": "",
    "choices": ", a choice in every round",
    "small": ", smaller steps",
    "resnet": ", ResNet on 16 x 16",
    "resnet-more": ", ResNet on 16 x 16, 1,000 examples",
}


def accuracy_cells(own: list[Row]) -> list[str]:
    """The cells of one algorithm and epsilon."""
    clustered = [row["purity"] for row in own if row["purity"] is not None]
    scores = [row["mss"] for row in own if row["mss"] is not None]
    return [
        f"{own[0]['noise_multiplier']:.2f}",
        *(str(measure_mean([100 * row[name] for row in own])) for name in ("accuracy", "minority_accuracy")),
        f"{100 * min(row['minority_accuracy'] for row in own):.1f}",
        f"{sum(purity < FAILED for purity in clustered)} of {len(clustered)}" if clustered else "-",
        f"{min(scores):.1f}" if scores else "-",
    ]


def tell_tuning(rows: list[Row]) -> str:
    """What the grid prefers on MNIST, after the reported runs; nothing where it was not run whole."""
    own = [row for row in of_part(rows, "tuning") if row["source"] == "mnist"]
    if not set(ALGORITHMS) <= {row["algorithm"] for row in own}:
        return ""
    best = {name: find_tuned(own, "mnist", name) for name in ALGORITHMS}
    told = ", ".join(f"{ALGORITHMS[name]} {rate:g}" for name, (rate, _) in best.items())
    return f" (best rates there: {told}; penalty {best['mrmtl'][1]:g})"


def separations(rows: list[Row], what: str, size: int) -> list[Row]:
    """All draws with this first batch (later ones of 32), or with a full first batch and these later ones."""
    full = [cell for row in of_part(rows, "later") for cell in row["cells"]]
    if what == "later":
        return [cell for cell in full if cell["later"] == size]
    own = [row for row in of_part(rows, "batches") if row["first"] == size]
    whole = [row["first"] for row in of_part(rows, "later")]
    return own or [cell for cell in full if cell["later"] == 32 and size in whole]


def batches(rows: list[Row]) -> str:
    """Separation of the true clusters, and how often a blind fit is right, for all batch sizes (figure 8)."""
    lines = []
    for what, sizes in (("first", FIRST_BATCHES), ("later", LATER_BATCHES)):
        for size in sizes:
            own = separations(rows, what, size)
            if own:
                lines.append([what, str(size), f"{own[0]['noise_multiplier']:.2f}", *separation_cells(own)])
    header = ["which batch", "size", "z", "draws"]
    for word in ("two components", "three components"):
        header += [f"separation, {word}", "blind fit right"]
    return table(header, lines)


def separation_cells(own: list[Row]) -> list[str]:
    """Draws, then mean separation and right fits in both kinds of points."""
    cells = [str(len(own))]
    for kind in ("principal", "spanning"):
        found = measure_mean([one[kind]["true"] for one in own])
        right = sum(one[kind]["known_right"] for one in own)
        cells += [f"{found.mean:.2f} ± {found.error:.2f}", f"{right} of {len(own)}"]
    return cells


def ratios(rows: list[Row]) -> str:
    """Noise with a full first batch over noise with equal batches (figure 14, right)."""
    lines = []
    for row in sorted(of_part(rows, "ratio"), key=lambda row: row["epsilon"]):
        lines.append([f"{row['epsilon']:g}", *(f"{value:.2f}" for value in row["ratios"].values())])
    sizes = list(of_part(rows, "ratio")[0]["ratios"]) if lines else []
    return table(["epsilon", *(f"b = {size}" for size in sizes)], lines)
