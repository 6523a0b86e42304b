"""papers/docs/clustered.md from the results: findings, pictures, then the tables behind them."""

from pathlib import Path

from papers.clustered import tables
from papers.clustered.claims import list_findings
from papers.clustered.figures import draw_fits
from papers.clustered.words import FOOT, HEAD, SETTING
from papers.findings import draw_results, write_table


def write_page(rows: list[tables.Row], path: Path) -> None:
    """Write the page, and its pictures beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    findings = list_findings(rows)
    words = [HEAD, "## Findings", write_table(findings), spent_times(rows), "## Paper and ours"]
    words += [draw_results(findings, path.parent, "clustered"), draw_fits(rows, path.parent), SETTING]
    there = {row["part"] for row in rows}
    if "first" in there:
        words += ["## Number of clusters from round one (figures 10 and 13)", tables.counts(rows)]
        words += ["Noise of the whole run, N = 8,000:", tables.noise(rows)]
    if "accuracy" in there:
        words += ["## Accuracy (figures 11 and 12, scaled)", tables.accuracy(rows)]
    if "later" in there:
        words += ["## Batch sizes (figure 8)", tables.batches(rows)]
    if "ratio" in there:
        title = "## Noise of a full first batch (figure 14, right)"
        words += [title, "z(full) / z(b) for N = 50,000.", tables.ratios(rows)]
    path.write_text(
        "\n\n".join(word for word in [*words, FOOT.replace("{tuned}", tables.tell_tuning(rows))] if word) + "\n",
        encoding="utf-8",
    )


def spent_times(rows: list[tables.Row]) -> str:
    """Processor time of every part."""
    parts = dict.fromkeys(row["part"] for row in rows)
    spent = {part: sum(row["cpu_seconds"] for row in rows if row["part"] == part) / 60 for part in parts}
    each = ", ".join(f"{part} {minutes:.1f}" for part, minutes in spent.items())
    return f"Processor minutes: {sum(spent.values()):.0f} in all ({each}); two cores share them."
