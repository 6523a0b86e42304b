"""What control does: energy and delay until a target (Figure 5), and what its weights choose (Figures 8 and 10)."""

from collections.abc import Iterator
from statistics import fmean

from papers.findings import Finding, Point, Verdict
from papers.hierarchy.results import COSTS, Row, cost_to, find_seeds
from papers.hierarchy.words import DATA, MODULE, PRINTED, WEIGHTED
from papers.paired import Estimate, judge_difference, measure_mean

TARGETS = {"fashion_mnist": (0.75, 0.70), "cifar10": (0.42, 0.34)}
"""Near convergence (the paper's 75% for Fashion-MNIST), and before."""
BARS = {"p=0.5": "H2FDP without control", "p=0": "HFL-DP", "PEDPFL": "PEDPFL"}
SAVINGS = {
    "fashion_mnist": {"p=0.5": (25.1, 24.9), "p=0": (46.2, 43.2), "PEDPFL": (71.5, 51.3)},
    "cifar10": {"p=0.5": (17.6, 18.1), "p=0": (30.3, 30.1), "PEDPFL": (62.6, 36.2)},
}
"""The paper's, in percent: (energy, delay)."""


def bar_runs(rows: list[Row], data: str, name: str, *, published: bool = False) -> dict[int, Row]:
    """The runs behind a bar of Figure 5."""
    if published:
        return find_seeds(rows, "published", name, data)
    return find_seeds(rows, "fig5" if name in ("control", "PEDPFL") else "fig4", name, data)


def saved_by_control(
    rows: list[Row], data: str, name: str, target: float, *, published: bool = False
) -> tuple[Estimate | None, Estimate | None]:
    """(energy, delay) in percent that control saves on the way to the target, paired by seed; None: not reached."""
    mine, other = (bar_runs(rows, data, bar, published=published) for bar in ("control", name))
    found = []
    for kind in COSTS:
        pairs = [(cost_to(mine[s], target, kind), cost_to(other[s], target, kind)) for s in mine.keys() & other.keys()]
        shares = [100 * (1 - a / b) for a, b in pairs if a is not None and b is not None]
        found.append(measure_mean(shares) if shares and len(shares) == len(pairs) else None)
    return found[0], found[1]


def tell_savings(energy: Estimate | None, delay: Estimate | None) -> str:
    """In words."""
    if energy is None or delay is None:
        return "not all reach the target"
    return f"energy {energy}, delay {delay}, in %"


def find_savings(rows: list[Row], data: str) -> Iterator[Finding]:
    """Figure 5."""
    for name, other in BARS.items():
        if not bar_runs(rows, data, "control") or not bar_runs(rows, data, name):
            continue
        paper, (late, early) = SAVINGS[data][name], TARGETS[data]
        ours, before = (saved_by_control(rows, data, name, target) for target in (late, early))
        printed = saved_by_control(rows, data, name, early, published=True)
        word = judge_savings(paper, ours, (before, printed))
        points = tuple(
            Point(f"{kind} saved against {other}, %", said, mine and mine.mean, _error(mine), same and same.mean)
            for kind, said, mine, same in zip(COSTS, paper, ours, printed, strict=True)
        )
        yield Finding(
            f"Figure 5, {DATA[data]}",
            f"control saves {paper[0]}% energy and {paper[1]}% delay against {other}",
            f"{PRINTED[data]}; to 75%, here to {100 * late:g}% and {100 * early:g}%",
            f"to {100 * early:g}%: {tell_savings(*printed)}" if bar_runs(rows, data, name, published=True) else "-",
            f"to {100 * late:g}%: {tell_savings(*ours)}; to {100 * early:g}%: {tell_savings(*before)}",
            word,
            "" if word is Verdict.REPRODUCED else WEIGHTED,
            f"{MODULE} fig4 fig5 published" if data == "fashion_mnist" else f"{MODULE} cifar",
            points,
        )


def _error(ours: Estimate | None) -> float:
    return 0.0 if ours is None or ours.error != ours.error else ours.error


Pair = tuple[Estimate | None, Estimate | None]


def judge_savings(paper: tuple[float, float], ours: Pair, others: tuple[Pair, ...]) -> Verdict:
    """The worse of both savings; where another target or noise gives the size, the regime."""
    found = _judge_pair(paper, ours)
    elsewhere = [_judge_pair(paper, one) for one in others]
    return Verdict.REGIME if found is not Verdict.REPRODUCED and Verdict.REPRODUCED in elsewhere else found


def _judge_pair(paper: tuple[float, float], ours: Pair) -> Verdict:
    if ours[0] is None or ours[1] is None:
        return Verdict.NOT_REPRODUCED
    found = {judge_difference(said, one) for said, one in zip(paper, ours, strict=True) if one is not None}
    return next(word for word in (Verdict.NOT_REPRODUCED, Verdict.SAME_SIGN, Verdict.REPRODUCED) if word in found)


def find_weights(rows: list[Row]) -> Iterator[Finding]:
    """Figures 8 and 10: from the least to the greatest weight."""
    for figure, name, paper in (
        ("8", "energy", "more weight on energy: longer intervals, fewer devices"),
        ("8", "accuracy", "more weight on accuracy: shorter intervals, more devices"),
        ("10", "delay", "more weight on delay: longer intervals, fewer devices"),
    ):
        ends = {how: weigh_ends(rows, f"fig{figure}", name, how) for how in ("max", "sum")}
        if ends["max"] is None:
            continue
        sign = -1 if name == "accuracy" else 1
        right = {how: follows(found, sign) for how, found in ends.items() if found is not None}
        word = Verdict.REPRODUCED if right["max"] else Verdict.REGIME if right.get("sum") else Verdict.NOT_REPRODUCED
        ours = "; ".join(f"{SENDING[how]}{tell_ends(found)}" for how, found in ends.items() if found is not None)
        cause = (
            "devices that send side by side take as long as the slowest, so fewer of them save no delay; one after "
            f"the other (`{MODULE} fig10`) they do"
        )
        yield Finding(
            f"Figure {figure}",
            paper,
            "tau at most 40, at most 15 devices a subnet, Fashion-MNIST; here the digits: choices depend on costs and "
            "noise, not on the images",
            "-",
            ours,
            word,
            "" if word is Verdict.REPRODUCED else cause,
            f"{MODULE} fig{figure}",
            tuple(weight_points(rows, f"fig{figure}", name, figure)),
        )


SENDING = {"max": "side by side: ", "sum": "one after the other: "}
Choice = tuple[float, float]


def weigh_ends(rows: list[Row], figure: str, name: str, how: str) -> tuple[Choice, Choice] | None:
    """(mean interval, mean devices) at the least and at the greatest weight."""
    some = [row for row in rows if row["figure"] == figure and row["facts"]["weight"] == name]
    some = sorted((row for row in some if row["facts"]["delays"] == how), key=lambda row: row["facts"]["value"])
    return (mean_choice(some[0]), mean_choice(some[-1])) if some else None


def mean_choice(row: Row) -> Choice:
    """(mean interval, mean devices of a subnet)."""
    control = row["control"]
    return fmean(control["tau"]), fmean([*control["devices_trusted"], *control["devices_untrusted"]])


def follows(ends: tuple[Choice, Choice], sign: int) -> bool:
    """Whether more weight lengthens intervals and asks fewer devices (sign 1), or the other way round."""
    first, last = ends
    return sign * (last[0] - first[0]) > 0 and sign * (first[1] - last[1]) > 0


def tell_ends(ends: tuple[Choice, Choice]) -> str:
    """In words."""
    first, last = ends
    return f"tau {first[0]:.1f} -> {last[0]:.1f}, devices {first[1]:.1f} -> {last[1]:.1f}"


def weight_points(rows: list[Row], figure: str, name: str, number: str) -> Iterator[Point]:
    """The mean interval and devices at every weight; the paper draws them without numbers."""
    for row in rows:
        if row["figure"] == figure and row["facts"]["weight"] == name:
            tau, devices = mean_choice(row)
            yield Point(f"tau at {row['name']}", None, tau)
            yield Point(f"devices at {row['name']}", None, devices)
