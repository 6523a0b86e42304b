"""papers/docs/partitioning.md: what the paper says, what came out, from the results of the runs."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papers.findings import draw_results, write_table
from papers.paired import measure_mean
from papers.partitioning.claims import list_findings
from papers.partitioning.training.cells import REGIMES, ROWS, spent
from papers.partitioning.training.claims import PAPER

Row = dict[str, Any]
Key = tuple[str, str, str, str, int]
"""(table, regime, source, method, parts)."""

NAMES = {
    "baseline": "no amplification (the paper's baseline)",
    "published": "amplified as published",
    "ours": "our accountant",
}
TITLES = {"table1": "Table 1, sample level", "table2": "Table 2, user level"}
HEAD = Path(__file__).with_name("words.md")
"""What a person wrote about it."""


def write_page(results: Iterable[Row], page: Path) -> None:
    """The whole page: words, the findings with their pictures, then the tables that the results make."""
    found: dict[Key, list[Row]] = defaultdict(list)
    rows = list(results)
    for row in rows:
        found[row["table"], row["regime"], row["source"], row["method"], row["parts"]].append(row)
    findings = list_findings(rows)
    words = HEAD.read_text(encoding="utf-8").replace("{findings}", write_table(findings))
    parts = [words.replace("{pictures}", draw_results(findings, page.parent, "partitioning")).rstrip()]
    for table in TITLES:
        for regime in ("printed", "noisy", "resnet"):
            if (table, regime) in REGIMES:
                parts += [table_of(table, regime, source, found) for source in ("fashion_mnist", "cifar10")]
    parts += [sampled_table(found)]
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def table_of(name: str, regime: str, source: str, found: dict[Key, list[Row]]) -> str:
    """One table of the paper on one data set; empty when it was not run."""
    lines = []
    for method, parts in ROWS:
        rows = found.get((name, regime, source, method, parts), [])
        if rows:
            lines.append(row_of(name, regime, method, parts, rows))
    if not lines:
        return ""
    how = REGIMES[name, regime]
    unit = "users of two" if name == "table2" else "examples"
    title = f"### {TITLES[name]}, {source}, `{regime}`: {how.size:,} {unit}, rate {how.rate:g}, {how.rounds} steps"
    head = "| submodels | noise by | z of each ball | epsilon it costs | accuracy | best of 3 | the paper's |"
    return f"{title}\n\n{head}\n|---|---|---|---|---|---|---|\n" + "\n".join(lines)


def row_of(name: str, regime: str, method: str, parts: int, rows: list[Row]) -> str:
    """One row: noise, the epsilon that our accountant finds for it, accuracy over the seeds."""
    accuracy = {row["seed"]: 100 * row["accuracy"] for row in rows}
    noise, how = rows[0]["noise_multiplier"], REGIMES[name, regime]
    paper = PAPER.get((name, method, parts))
    cells = (
        str(parts) if parts > 1 else "1 (no splitting)", NAMES[method], f"{noise:.3f}",
        f"{spent(parts, noise, how.rate, how.rounds):.2f}", str(measure_mean(list(accuracy.values()))),
        f"{max(v for seed, v in accuracy.items() if seed < 3):.1f}", f"{paper:.2f}" if paper else "-",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def sampled_table(found: dict[Key, list[Row]]) -> str:
    """Section 4.2: Poisson against balanced."""
    lines = []
    for regime in ("scratch", "finetuning"):
        for scheme in ("poisson", "balanced"):
            rows = found.get(("section4.2", regime, "fashion_mnist", scheme, 1), [])
            if rows:
                accuracy = measure_mean([100 * row["accuracy"] for row in rows])
                lines.append(f"| {regime} | {scheme} | {rows[0]['noise_multiplier']:.3f} | {accuracy} |")
    if not lines:
        return ""
    head = "| | batches | z at (8, 1e-5), our accountant | accuracy |\n|---|---|---|---|"
    return "### Section 4.2, balanced iterations, fashion_mnist\n\n" + head + "\n" + "\n".join(lines)
