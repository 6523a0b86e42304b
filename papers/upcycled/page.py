"""papers/docs/upcycled.md from the results: findings, pictures, then every cell."""

from collections.abc import Iterator
from pathlib import Path

from papers.findings import draw_results, write_table
from papers.upcycled.cells import ALGORITHMS
from papers.upcycled.claims import TABLES, find_results, say_to_authors
from papers.upcycled.numbers import DATA, PAPER, Pair, Row, is_clear, select_pair, write_arrow, write_estimate
from papers.upcycled.pictures import draw_curves
from papers.upcycled.words import AUTHORS_HEAD, DETAIL_HEAD, FOOT, HEAD, PICTURES, PRIVATE_HEAD

TITLES = {
    "table1": "Table 1, synthetic data, 90% stragglers",
    "letters": "Table 1, letters a-j, 90% stragglers",
    "tweets": "Table 1, Sent140, 90% stragglers",
    "table3": "Table 3, synthetic data, 30% stragglers",
    "letters30": "Table 3, letters a-j, 30% stragglers",
    "tweets30": "Table 3, Sent140, 30% stragglers",
    "letters26": "Table 4, 26 letters, 90% stragglers",
    "letters26-30": "Table 4, 26 letters, 30% stragglers",
}
PRIVATE = ("figure3", "figure4", "figure7", "figure8", "figure9")


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page and its pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    findings = find_results(rows)
    words = [HEAD, AUTHORS_HEAD, "\n".join(f"- {sentence}" for sentence in say_to_authors(rows))]
    words += ["## Claims and verdicts", write_table(findings), PICTURES]
    words += [draw_results(findings, path.parent, "upcycled")]
    words += [DETAIL_HEAD, *(write_cells(rows, part) for part in TITLES if has_part(rows, part))]
    words += [PRIVATE_HEAD, *(write_private(rows, part) for part in PRIVATE if has_part(rows, part))]
    words += ["## Loss over training", "Dashed: plain; solid: upcycled.", *draw_curves(rows, path.parent)]
    path.write_text("\n\n".join(words) + "\n\n" + FOOT, encoding="utf-8")


def has_part(rows: list[Row], part: str) -> bool:
    """Whether anything of a part was run."""
    return any(row["part"] == part for row in rows)


def write_cells(rows: list[Row], part: str) -> str:
    """A table of the paper, algorithm by algorithm."""
    lines = [
        f"### {TITLES[part]}",
        "",
        "| data | algorithm | paper: plain → upcycled | ours: plain → upcycled | gain, paper | gain, ours | clear? "
        "| settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data, pair, algorithm in list_pairs(rows, part):
        plain, up = find_paper(part, data, algorithm)
        gain = pair.differ_in("accuracy", 100.0)
        settings = " → ".join(next(iter(arm.values()))["setting"] for arm in (pair.plain, pair.upcycled))
        lines.append(
            f"| {DATA[data]} | {algorithm} | {plain:.2f} → {up:.2f} | {write_arrow(pair, digits=2)} "
            f"| {up - plain:+.2f} | {write_estimate(gain)} | {'yes' if is_clear(gain) else 'no'} | {settings} |"
        )
    return "\n".join(lines)


def list_pairs(rows: list[Row], part: str) -> Iterator[tuple[str, Pair, str]]:
    """(data, both arms, algorithm) of a part, in the paper's order."""
    for data in DATA:
        for algorithm in ALGORITHMS:
            pair = select_pair(rows, part, data, algorithm)
            if pair:
                yield data, pair, algorithm


def find_paper(part: str, data: str, algorithm: str) -> tuple[float, float]:
    """What the paper's table says of a cell."""
    for table, columns in TABLES.values():
        if (data, part) in columns:
            printed = PAPER[table][algorithm]
            plain, up = printed[part if part in printed else data]
            return plain, up
    raise KeyError(part)


def write_private(rows: list[Row], part: str) -> str:
    """A private figure, variant by variant."""
    lines = [
        f"### Figure {part.removeprefix('figure')}",
        "",
        "| data | algorithm | noise | u | loss: plain → upcycled | difference | accuracy | epsilon | releases |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    own = [row for row in rows if row["part"] == part and row["upcycled"] and row["variant"] != "without noise"]
    cells = dict.fromkeys((row["data"], row["algorithm"], row["variant"], row["setting"]) for row in own)
    for data, algorithm, variant, setting in cells:
        pair = select_pair(rows, part, data, algorithm, variant, setting)
        if pair:
            epsilons = " → ".join(f"{value:.4g}" for value in pair.means_of("epsilon"))
            releases = " → ".join(f"{value:.0f}" for value in pair.means_of("releases"))
            lines.append(
                f"| {DATA[data]} | {algorithm} | {variant} | {setting.removeprefix('u')} | "
                f"{write_arrow(pair, 'loss', 1.0, 3)} | {write_estimate(pair.differ_in('loss'), 3)} | "
                f"{write_arrow(pair)} | {epsilons} | {releases} |"
            )
    return "\n".join(lines)
