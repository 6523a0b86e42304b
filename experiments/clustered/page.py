"""docs/reproduction/clustered.md from the results: the paper's claim, ours, verdict."""

from pathlib import Path

from experiments.claims import table
from experiments.clustered import tables
from experiments.clustered.claims import claims
from experiments.clustered.figures import drawn
from experiments.clustered.words import FOOT, HEAD, SETTING


def write_page(rows: list[tables.Row], path: Path) -> None:
    """Write the page, and its pictures beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = {row["part"] for row in rows}
    words = [HEAD, "## Claims and verdicts", table(claims(rows)), times(rows), SETTING]
    if "first" in there:
        words += ["## Number of clusters from round one (figures 10 and 13)", tables.counts(rows)]
        words += ["Noise of the whole run, N = 8,000:", tables.noise(rows)]
    for partition in ("rotation", "label_shift"):
        if any(row["part"] == "accuracy" and row["partition"] == partition for row in rows):
            title = f"## Accuracy, MNIST with {tables.SHIFTS[partition]} (figures 11 and 12, scaled)"
            words += [title, "Several values are seeds 0 and 1.", tables.accuracy(rows, partition)]
    if "batches" in there:
        words += ["## Batch sizes (figures 8 and 14, left)", tables.batches(rows)]
    if "ratio" in there:
        words += [
            "## Noise of a full first batch (figure 14, right)",
            "z(full) / z(b) for N = 50,000.",
            tables.ratios(rows),
        ]
    words += ["## Pictures", drawn(rows, path.parent), FOOT]
    path.write_text("\n\n".join(words) + "\n", encoding="utf-8")


def times(rows: list[tables.Row]) -> str:
    """Processor time of every part."""
    parts = dict.fromkeys(row["part"] for row in rows)
    spent = {part: sum(row["cpu_seconds"] for row in rows if row["part"] == part) / 60 for part in parts}
    each = ", ".join(f"{part} {minutes:.1f}" for part, minutes in spent.items())
    return f"Processor minutes: {sum(spent.values()):.0f} in all ({each}); two cores share them."
