"""docs/reproduction/partitioning.md: what the paper says, what came out, from the results of the runs."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.claims import table as claim_table
from experiments.partitioning.claims import claims
from experiments.partitioning.training.cells import CENTRAL, ROWS, SOURCES, USERS, spent

Row = dict[str, Any]
Key = tuple[str, str, str, int]
"""(table, source, method, parts)."""

NAMES = {
    "baseline": "no amplification (the paper's baseline)",
    "published": "amplified as published",
    "ours": "our accountant",
}
PAPER = {
    ("table1", 3, "baseline"): "79.80", ("table1", 3, "published"): "82.43", ("table1", 8, "baseline"): "76.80",
    ("table1", 8, "published"): "80.52", ("table1", 1, "baseline"): "84.99",
    ("table2", 3, "baseline"): "78.47", ("table2", 3, "published"): "80.28", ("table2", 8, "baseline"): "76.96",
    ("table2", 8, "published"): "79.11", ("table2", 1, "baseline"): "82.18",
}  # fmt: skip
HEAD = Path(__file__).with_name("words.md")
"""What a person wrote about it."""


def write_page(results: Iterable[Row], page: Path) -> None:
    """The whole page: words, then the tables that the results make."""
    found: dict[Key, list[Row]] = defaultdict(list)
    rows = list(results)
    for row in rows:
        found[row["table"], row["source"], row["method"], row["parts"]].append(row)
    parts = [HEAD.read_text(encoding="utf-8").replace("{claims}", claim_table(claims(rows))).rstrip()]
    parts += [table("table1", source, found) for source in SOURCES] + [table("table2", "fashion_mnist", found)]
    parts += [sampled(found)]
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def table(name: str, source: str, found: dict[Key, list[Row]]) -> str:
    """One table of the paper on one data set; empty when it was not run."""
    lines = []
    for method, parts in ROWS:
        rows = found.get((name, source, method, parts), [])
        if rows:
            lines.append(told(name, method, parts, rows))
    if not lines:
        return ""
    title = {"table1": "Table 1, sample level", "table2": "Table 2, user level"}[name]
    head = (
        "| submodels | noise by | z of each ball | epsilon it really costs | accuracy, mean (sd) | best | the paper's |"
    )
    return f"### {title}, {source}\n\n{head}\n|---|---|---|---|---|---|---|\n" + "\n".join(lines)


def told(name: str, method: str, parts: int, rows: list[Row]) -> str:
    """One row: noise, the epsilon that our accountant finds for it, accuracy over the seeds."""
    accuracy = [100 * row["accuracy"] for row in rows]
    noise = rows[0]["noise_multiplier"]
    rate, steps = (
        (CENTRAL["batch"] / CENTRAL["size"], CENTRAL["rounds"])
        if name == "table1"
        else (USERS["rate"], int(USERS["rounds"]))
    )
    spread = f" ({statistics.stdev(accuracy):.1f})" if len(accuracy) > 1 else ""
    cells = (
        str(parts) if parts > 1 else "1 (no splitting)", NAMES[method], f"{noise:.3f}",
        f"{spent(parts, noise, rate, steps):.2f}", f"{statistics.mean(accuracy):.1f}{spread}", f"{max(accuracy):.1f}",
        PAPER.get((name, parts, method), "-"),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def sampled(found: dict[Key, list[Row]]) -> str:
    """Section 4.2: Poisson against balanced."""
    lines = []
    for source in SOURCES:
        for scheme in ("poisson", "balanced"):
            rows = found.get(("section4.2", source, scheme, 1), [])
            if rows:
                accuracy = [100 * row["accuracy"] for row in rows]
                spread = f" ({statistics.stdev(accuracy):.1f})" if len(accuracy) > 1 else ""
                noise = f"{rows[0]['noise_multiplier']:.3f}"
                lines.append(f"| {source} | {scheme} | {noise} | {statistics.mean(accuracy):.1f}{spread} |")
    if not lines:
        return ""
    head = "| data | batches | z at (8, 1e-5), our accountant | accuracy, mean (sd) |\n|---|---|---|---|"
    return "### Section 4.2, balanced iterations\n\n" + head + "\n" + "\n".join(lines)
