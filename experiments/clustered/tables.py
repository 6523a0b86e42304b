"""What the results say, as tables of claim, result and verdict."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

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


def sure(rows: list[Row]) -> tuple[int, int, int]:
    """(fits with MSS > 2, of those the true clusters, true clusters among the others), in the paper's plane."""
    fits = [fit for fit in known_fits(rows) if fit["points"] == "principal"]
    above, below = [fit for fit in fits if fit["mss"] > 2], [fit for fit in fits if fit["mss"] <= 2]
    return len(above), sum(fit["known_right"] for fit in above), sum(fit["known_right"] for fit in below)


def known_fits(rows: list[Row]) -> list[Row]:
    """All fits with the number of clusters known, at the noise of the epsilons and louder."""
    return [fit for row in of_part(rows, "first") for fit in (*row["cells"], *row["louder"])]


def noise(rows: list[Row]) -> str:
    """z of the whole run for each epsilon, beside the authors'."""
    theirs = {3: 2.908, 4: 2.245, 5: 1.851, 10: 1.089, 15: 0.856}
    ours = {
        cell["epsilon"]: cell["noise_multiplier"]
        for row in of_part(rows, "first")
        if row["samples"] == 8000
        for cell in row["cells"]
    }
    lines = [[str(e), f"{theirs[e]:.3f}", f"{z:.3f}", f"{z / theirs[e]:.2f}"] for e, z in sorted(ours.items())]
    return table(["epsilon", "authors' split", "here", "ratio"], lines)


def accuracy(rows: list[Row], partition: str) -> str:
    """Mean accuracy over clients and over the minority's, seeds side by side (figures 11 and 12)."""
    runs = [row for row in of_part(rows, "accuracy") if row["partition"] == partition]
    lines = []
    for auto in (False, True):
        for name, title in ALGORITHMS.items():
            for epsilon in sorted({row["epsilon"] for row in runs}):
                own = [r for r in runs if (r["algorithm"], r["epsilon"], r["auto"]) == (name, epsilon, auto)]
                if own:
                    lines.append([title + (", M unknown" if auto else ""), f"{epsilon:g}", *accuracy_cells(own)])
    return table(["algorithm", "epsilon", "z", "all clients, %", "minority, %", "purity", "MSS"], lines)


def accuracy_cells(own: list[Row]) -> list[str]:
    """The cells of one algorithm and epsilon, one value per seed."""

    def each(name: str, form: str, factor: float = 1.0) -> str:
        values = [row[name] for row in sorted(own, key=lambda row: row["seed"])]
        return " / ".join("-" if value is None else format(factor * value, form) for value in values)

    return [
        f"{own[0]['noise_multiplier']:.2f}", each("accuracy", ".1f", 100), each("minority_accuracy", ".1f", 100),
        each("purity", ".2f"), each("mss", ".1f"),
    ]  # fmt: skip


def means_of(rows: list[Row], partition: str, epsilon: float, name: str) -> dict[str, float]:
    """Algorithm -> mean in % over the seeds that all algorithms have: MNIST, M known."""
    runs = [row for row in of_part(rows, "accuracy") if row["partition"] == partition and not row["auto"]]
    seeds = [{r["seed"] for r in runs if (r["algorithm"], r["epsilon"]) == (a, epsilon)} for a in ALGORITHMS]
    common = set.intersection(*seeds)
    own = [row for row in runs if row["epsilon"] == epsilon and row["seed"] in common]
    return {a: 100 * fmean(row[name] for row in own if row["algorithm"] == a) for a in ALGORITHMS if common}


def batches(rows: list[Row]) -> str:
    """Separation, noise and distance of the centres for every pair of batch sizes (figures 8 and 14, left)."""
    lines = [
        [
            str(row["first"]), str(row["later"]), f"{row['noise_multiplier']:.2f}", f"{row['plane']['mss']:.2f}",
            said(row["plane"]["known_right"]), f"{row['mss']:.2f}", said(row["known_right"]),
            f"{fmean(row['distances']):.4f}",
        ]
        for row in sorted(of_part(rows, "batches"), key=lambda row: (row["first"], row["later"]))
    ]  # fmt: skip
    header = ["first batch", "later batch", "z", "MSS, `principal`", "right", "MSS, `spanning`", "right"]
    return table([*header, "mean distance of noiseless centres"], lines)


def ratios(rows: list[Row]) -> str:
    """Noise with a full first batch over noise with equal batches (figure 14, right)."""
    lines = []
    for row in sorted(of_part(rows, "ratio"), key=lambda row: row["epsilon"]):
        lines.append([f"{row['epsilon']:g}", *(f"{value:.2f}" for value in row["ratios"].values())])
    sizes = list(of_part(rows, "ratio")[0]["ratios"]) if lines else []
    return table(["epsilon", *(f"b = {size}" for size in sizes)], lines)


def said(right: bool) -> str:
    return "yes" if right else "no"
