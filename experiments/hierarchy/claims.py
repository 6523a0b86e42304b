"""What the H2FDP paper claims of Figures 4 to 10, and what came out."""

from collections.abc import Iterator
from statistics import fmean

from experiments.claims import Claim, judged
from experiments.hierarchy.costs import BARS, CLAIMS, COSTS, LABELS, TARGETS, Means, mean_cost
from experiments.hierarchy.results import Row, accuracy, found

MODULE = "python -m experiments.hierarchy"
DATA = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
GUESSING = 15.0
"""Accuracies in % below this are hardly more than one in ten classes by chance."""
SILENT = "says nothing: all guess"


def claims(rows: list[Row]) -> list[Claim]:
    """Figure by figure, one data set after the other."""
    found_ = [c for part in (trust, savings, budgets, networks, more_budget) for data in DATA for c in part(rows, data)]
    return sorted([*found_, *weights(rows)], key=lambda claim: int(claim.result.split()[1].rstrip(",")))


def of(rows: list[Row], figure: str, name: str, data: str) -> float | None:
    """Accuracy in % of one cell; None when it was not run."""
    some = found(rows, figure, name, data)
    return accuracy(some) if some else None


def verdict(holds: bool, *values: float) -> str:
    """Nothing can be said where all of the values are guesses."""
    return SILENT if max(values) < GUESSING else judged(holds)


def sized(ours: float, paper: float, *values: float) -> str:
    """A gain of the paper's size (within a factor of two), of its sign, or neither."""
    if max(values) < GUESSING:
        return SILENT
    return (
        "reproduced" if paper / 2 <= ours <= 2 * paper else "agrees in sign" if ours * paper > 0 else "not reproduced"
    )


def trust(rows: list[Row], data: str) -> Iterator[Claim]:
    """Figure 4."""
    values = [of(rows, "fig4", name, data) for name in ("HFL", "p=0", "p=0.5", "p=1")]
    if None in values:
        return
    best, none, half, whole = (value or 0.0 for value in values)
    gain, short = {"fashion_mnist": (6, 3), "cifar10": (12, 8)}[data]
    result, command = f"Figure 4, {DATA[data]}", f"{MODULE} fig4"
    here = f"{half - none:+.1f} ({none:.1f} -> {half:.1f})"
    yield Claim(result, f"p_c = .5 gains {gain} points", here, sized(half - none, gain, none, half), command)
    ratio = (whole - none) / (half - none) if half > none else 0.0
    here = f"{whole - none:+.1f}: {ratio:.1f} times" if ratio else f"{whole - none:+.1f}"
    yield Claim(result, "the gain almost doubles at p_c = 1", here, verdict(1.5 <= ratio <= 2.5, none, whole), command)
    words = f"p_c = 1 comes within {short} points of no privacy"
    yield Claim(result, words, f"{best - whole:.1f} points short", judged(best - whole <= short), command)


def savings(rows: list[Row], data: str) -> Iterator[Claim]:
    """Figure 5: what control saves on the way to the target."""
    best = of(rows, "fig4", "HFL", data)
    if best is None or not all(found(rows, figure, name, data) for figure, name in BARS):
        return
    target = TARGETS[data] * best / 100
    means: Means = {
        name: {kind: mean_cost(found(rows, figure, name, data), target, kind) for kind in COSTS}
        for figure, name in BARS
    }
    guessing = max(accuracy(found(rows, figure, name, data)) for figure, name in BARS) < GUESSING
    for name, (energy, delay) in CLAIMS[data].items():
        here, word = saved(means["control"], means[name])
        word = SILENT if guessing else word
        paper = f"control saves {energy}% energy, {delay}% delay against {LABELS[name]}"
        yield Claim(f"Figure 5, {DATA[data]}", paper, here, word, f"{MODULE} fig4 fig5")


def saved(mine: dict[str, float | None], other: dict[str, float | None]) -> tuple[str, str]:
    """(what was saved, verdict)."""
    if None in mine.values():
        neither = None in other.values()
        return ("neither" if neither else "only the other") + " reached the target", SILENT if neither else judged(
            False
        )
    if None in other.values():
        return "only control reached the target", judged(True)
    shares = [100 * (1 - (mine[kind] or 0.0) / (other[kind] or 1.0)) for kind in COSTS]
    return f"{shares[0]:.0f}% energy, {shares[1]:.0f}% delay", judged(min(shares) > 0)


def budgets(rows: list[Row], data: str) -> Iterator[Claim]:
    """Figure 6."""
    pairs = {
        epsilon: [of(rows, figure, f"{name}p={share}", data) for share in (0, 1)]
        for epsilon, figure, name in ((0.5, "fig6", "eps=0.5 "), (1.0, "fig4", ""), (4.0, "fig6", "eps=4 "))
    }
    known = {
        epsilon: (none or 0.0, whole or 0.0) for epsilon, (none, whole) in pairs.items() if None not in (none, whole)
    }
    if len(known) < len(pairs):
        return
    least, small = {"fashion_mnist": (10, 25), "cifar10": (20, 40)}[data]
    gains = {epsilon: whole - none for epsilon, (none, whole) in known.items()}
    here = ", ".join(f"epsilon {epsilon:g}: {gain:+.1f}" for epsilon, gain in gains.items())
    values = [value for pair in known.values() for value in pair]
    result, command = f"Figure 6, {DATA[data]}", f"{MODULE} fig4 fig6"
    paper = f"trust in all edges gains at least {least}%, {small}% at epsilon = .5"
    enough, much = min(gains.values()) >= least, gains[0.5] >= small
    word = "partly" if enough and not much and max(values) >= GUESSING else verdict(enough and much, *values)
    word = "agrees in sign" if word == judged(False) and min(gains.values()) > 0 else word
    yield Claim(result, paper, here, word, command)


def networks(rows: list[Row], data: str) -> Iterator[Claim]:
    """Figure 7."""
    names = (("fig7", "2x5"), ("fig4", "p=0.5"), ("fig7", "2x25"))
    values = [of(rows, figure, name, data) for figure, name in names]
    if None in values:
        return
    small, wide, large = (value or 0.0 for value in values)
    most = {"fashion_mnist": 42, "cifar10": 25}[data]
    result, command = f"Figure 7, {DATA[data]}", f"{MODULE} fig4 fig7"
    here = f"{wide - small:+.1f} with more subnets, {large - small:+.1f} with larger ones"
    paper = f"from 10 to 50 devices accuracy gains up to {most}%"
    yield Claim(result, paper, here, sized(max(wide, large) - small, most, small, wide, large), command)
    here = f"{large - wide:+.1f} (50 devices)"
    yield Claim(result, "larger subnets beat more subnets", here, verdict(large > wide, wide, large), command)


def more_budget(rows: list[Row], data: str) -> Iterator[Claim]:
    """Figure 9."""
    names = (("fig6", "eps=0.5 p=0.5"), ("fig4", "p=0.5"), ("fig9", "eps=1.5 p=0.5"))
    values = [of(rows, figure, name, data) for figure, name in names]
    if None in values:
        return
    less, one, more = (value or 0.0 for value in values)
    down, up = {"fashion_mnist": (13, 8.5), "cifar10": (20, 6.1)}[data]
    paper = f"epsilon from 1 to .5 costs about {down}%, to 1.5 gains {up}%"
    here = f"{less - one:+.1f} and {more - one:+.1f}"
    words = {sized(one - less, down, less, one), sized(more - one, up, one, more)}
    word = words.pop() if len(words) == 1 else "agrees in sign" if less < one < more else "partly"
    yield Claim(f"Figure 9, {DATA[data]}", paper, here, word, f"{MODULE} fig4 fig6 fig9")


def weights(rows: list[Row]) -> Iterator[Claim]:
    """Figures 8 and 10: from the least to the greatest weight."""
    for figure, name, paper in (
        ("8", "energy", "more weight on energy: longer intervals, fewer devices"),
        ("8", "accuracy", "more weight on accuracy: shorter intervals, more devices"),
        ("10", "delay", "more weight on delay: longer intervals, fewer devices"),
    ):
        some = [row for row in rows if row["figure"] == f"fig{figure}" and row["facts"]["weight"] == name]
        some.sort(key=lambda row: row["facts"]["value"])
        if some:
            first, last = chosen(some[0]), chosen(some[-1])
            sign = -1 if name == "accuracy" else 1
            right = (sign * (last[0] - first[0]) > 0) + (sign * (first[1] - last[1]) > 0)
            here = f"tau {first[0]:.1f} -> {last[0]:.1f}, devices {first[1]:.1f} -> {last[1]:.1f}"
            word = ("not reproduced", "partly", "reproduced")[right]
            yield Claim(f"Figure {figure}", paper, here, word, f"{MODULE} fig{figure}")


def chosen(row: Row) -> tuple[float, float]:
    """(mean interval, mean devices of a subnet)."""
    control = row["control"]
    return fmean(control["tau"]), fmean([*control["devices_trusted"], *control["devices_untrusted"]])
