"""Figure 5: energy and delay until a target accuracy, with and without control."""

from statistics import fmean

from experiments.hierarchy.results import Row, accuracy, found, shown, table
from experiments.hierarchy.words import CONTROL_LOSES

Bars = tuple[tuple[str, str], ...]
Means = dict[str, dict[str, float | None]]

TARGETS = {"fashion_mnist": 0.3, "cifar10": 0.3}
"""Shares of the accuracy that the same model reaches without privacy."""
BARS = (("fig5", "control"), ("fig4", "p=0.5"), ("fig4", "p=0"), ("fig5", "PEDPFL"))
WEAK_BARS = (("fig5", "control eps=8"), ("fig5", "eps=8"))
WEAK_TARGET = 0.45
COSTS = {"energy": 2, "delay": 3}
"""Where a point of a curve keeps what was spent until then."""


def cost_to(row: Row, target: float, kind: str) -> float | None:
    """What was spent when the accuracy first reached the target; None when it never did."""
    return next((point[COSTS[kind]] for point in row["curve"] if point[1] >= target), None)


def saved(rows: list[Row], data: str) -> str:
    """Figure 5, at the paper's epsilon and at one where less of the run is noise."""
    open_ = found(rows, "fig4", "HFL", data)
    if not open_ or not found(rows, "fig5", "control", data):
        return ""
    best = accuracy(open_) / 100
    means, text = bars(rows, data, BARS, TARGETS[data] * best)
    if means["control"]["energy"] is None:
        text += f"\n\n{CONTROL_LOSES}"
    if found(rows, "fig5", "control eps=8", data):
        text += "\n\n" + bars(rows, data, WEAK_BARS, WEAK_TARGET * best)[1]
    return text


def bars(rows: list[Row], data: str, names: Bars, target: float) -> tuple[Means, str]:
    """What every bar spent until it reached the target, as numbers and as a table."""
    lines, means = [], {}
    for figure, name in names:
        some = found(rows, figure, name, data)
        means[name] = {kind: mean_cost(some, target, kind) for kind in COSTS}
        whole = {kind: fmean(row["curve"][-1][place] for row in some) for kind, place in COSTS.items()} if some else {}
        lines.append(
            f"| {LABELS[name]} | {told(means[name]['energy'], 'J')} | {told(means[name]['delay'], 's')} | "
            f"{told(whole.get('energy'), 'J')} | {told(whole.get('delay'), 's')} | {shown(some)} | "
            f"{max((row['epsilon'] for row in some), default=0):.2f} |"
        )
    header = "| figure 5 | energy to target | delay to target | energy, all | delay, all | accuracy | epsilon spent |"
    return means, f"Target: {100 * target:.1f}%, a share of the accuracy without privacy.\n\n" + table(header, lines)


def mean_cost(some: list[Row], target: float, kind: str) -> float | None:
    """Over the seeds; None where one of them never reached the target."""
    costs = [cost_to(row, target, kind) for row in some]
    return fmean(cost for cost in costs if cost is not None) if costs and None not in costs else None


LABELS = {
    "control": "H2FDP with control", "p=0.5": "H2FDP", "p=0": "HFL-DP", "PEDPFL": "PEDPFL",
    "control eps=8": "H2FDP with control, epsilon = 8", "eps=8": "H2FDP, epsilon = 8",
}  # fmt: skip
CLAIMS = {
    "fashion_mnist": {"p=0.5": (25.1, 24.9), "p=0": (46.2, 43.2), "PEDPFL": (71.5, 51.3)},
    "cifar10": {"p=0.5": (17.6, 18.1), "p=0": (30.3, 30.1), "PEDPFL": (62.6, 36.2)},
}
"""The paper's savings in percent: (energy, delay)."""


def told(value: float | None, unit: str) -> str:
    return "not reached" if value is None else f"{value:.1f} {unit}"
