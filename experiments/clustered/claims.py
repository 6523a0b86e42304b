"""The paper's claims with what came out and a verdict, from the results alone."""

from math import log
from statistics import fmean

from experiments.claims import Claim, judged
from experiments.clustered.tables import SHIFTS, Row, means_of, of_part, sure

MODULE = "python -m experiments.clustered"
FIRST, ACCURACY, BATCHES, RATIO = (f"{MODULE} {part}" for part in ("first cifar", "accuracy", "batches", "ratio"))


def claims(rows: list[Row]) -> list[Claim]:
    """One line per claim that the results can judge."""
    return [*_counting(rows), *_confidence(rows), *_accuracy(rows), *_batches(rows), *_noise(rows)]


def _right(rows: list[Row], sources: tuple[str, ...], points: str) -> tuple[int, int]:
    cells = [c for r in of_part(rows, "first") if r["source"] in sources for c in r["cells"] if c["points"] == points]
    return sum(cell["right"] for cell in cells), len(cells)


def _counting(rows: list[Row]) -> list[Claim]:
    lines = []
    for sources, claim in (
        (("mnist",), "MNIST: the number of clusters is found at every epsilon and seed"),
        (("fashion_mnist",), "Fashion-MNIST: the number of clusters is found at every epsilon and seed"),
        (("cifar10",), "CIFAR-10: found in most cases (3 mistakes in 20, all M = 5; ours: another model, one seed)"),
    ):
        (plane, many), (span, _) = (_right(rows, sources, points) for points in ("principal", "spanning"))
        if many:
            verdict = "reproduced" if plane == many else "only with `spanning`" if span == many else "partly"
            verdict = "not reproduced" if max(plane, span) == 0 else verdict
            here = f"`principal` {plane}/{many}, `spanning` {span}/{many}"
            lines.append(Claim("Figure 10 and its text", claim, here, verdict, FIRST))
    return lines


def _confidence(rows: list[Row]) -> list[Claim]:
    above, right, missed = sure(rows)
    if not above:
        return []
    here = f"MSS > 2: {right} of {above} fits are the true clusters; MSS <= 2: {missed} are"
    verdict = "nearly" if 0.95 * above <= right < above else judged(right == above)
    claim = 'With M known, an MSS above 2 means the true clusters ("almost always")'
    lines = [Claim("Figure 13", claim, here, verdict, FIRST)]
    for points in ("principal", "spanning"):
        cells = [c for r in of_part(rows, "first") for c in r["cells"] if c["points"] == points]
        sure_ones = [cell for cell in cells if max(cell["curve"].values()) > 2]
        true = sum(cell["right"] for cell in sure_ones)
        here = f"`{points}`: {true} of {len(sure_ones)} fits with MSS > 2 are the true clusters"
        holds = "holds" if true == len(sure_ones) else "does not hold"
        lines.append(Claim("Figure 13", "The same with M unknown (the paper does not say)", here, holds, FIRST))
    return lines


LEVEL = 1.0
"""Accuracies that differ by less, in points, are called level: two seeds tell no more."""


def _accuracy(rows: list[Row]) -> list[Claim]:
    lines = []
    for partition, epsilon in (("rotation", 3), ("rotation", 5), ("label_shift", 3)):
        for result, name, what in (
            ("Figure 11", "accuracy", "all clients"),
            ("Figure 12", "minority_accuracy", "the minority"),
        ):
            found = means_of(rows, partition, epsilon, name)
            found.pop("oracle_clusters", None)
            ours = found.pop("rdpcfl", None)
            if ours is not None:
                here = ", ".join(f"{a} {value:.1f}" for a, value in found.items())
                claim = f"R-DPCFL is ahead of the baselines for {what}, {SHIFTS[partition]}, epsilon = {epsilon}"
                standing = _standing(ours, found)
                lines.append(Claim(result, claim, f"{ours:.1f} against {here}", standing, ACCURACY))
    return lines


def _standing(ours: float, others: dict[str, float]) -> str:
    """Whom it is ahead of, level with, and behind."""
    ahead = [a for a, value in others.items() if ours > value + LEVEL]
    behind = [a for a, value in others.items() if ours < value - LEVEL]
    level = [a for a in others if a not in ahead and a not in behind]
    if len(ahead) == len(others):
        return "reproduced"
    words = {"ahead of": ahead, "level with": level, "behind": behind}
    return "partly: " + "; ".join(f"{word} {', '.join(some)}" for word, some in words.items() if some)


def _batches(rows: list[Row]) -> list[Claim]:
    runs = of_part(rows, "batches")
    first = sorted((row for row in runs if row["later"] == 32), key=lambda row: row["first"])
    later = sorted((row for row in runs if row["first"] == 2000), key=lambda row: row["later"])
    if len(first) < 2 or len(later) < 2:
        return []
    mss, later_mss = ([row["plane"]["mss"] for row in some] for some in (first, later))
    slope = log(fmean(first[0]["distances"]) / fmean(first[-1]["distances"])) / log(
        first[-1]["first"] / first[0]["first"]
    )
    here = ", ".join(f"b = {row['first']}: {row['plane']['mss']:.2f}" for row in first)
    smaller = ", ".join(f"b = {row['later']}: {row['plane']['mss']:.2f}" for row in later)
    larger, further = (
        "A larger first batch separates the clusters (MSS)",
        "A smaller later batch separates them further (MSS)",
    )
    closer = "Centres come k times closer when the first batch is k times as large (slope .95)"
    return [
        Claim("Figure 8", larger, here, _monotone(mss), BATCHES),
        Claim("Figure 8", further, smaller, _monotone(later_mss[::-1]), BATCHES),
        Claim("Figure 14, left", closer, f"slope {slope:.2f}", judged(0.8 < slope < 1.2), BATCHES),
    ]


def _noise(rows: list[Row]) -> list[Claim]:
    found = [value for row in of_part(rows, "ratio") for value in row["ratios"].values()]
    if not found:
        return []
    here = f"{min(found):.2f} to {max(found):.2f} with our accountant"
    claim = "A full first batch raises z by a small factor (up to 2.5)"
    return [Claim("Figure 14, right", claim, here, judged(max(found) <= 2.5), RATIO)]


def _monotone(values: list[float]) -> str:
    """Whether each is above the one before, or only the last above all."""
    if values == sorted(values):
        return "reproduced"
    return "at the end only" if values[-1] == max(values) else "not reproduced"
