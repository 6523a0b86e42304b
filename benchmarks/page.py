"""The table of docs/performance.md: one column per processor family, from measurements on it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from sightline.training.machine import describe_processor, read_processor

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
TITLE_WORDS = 2
"""Words of a processor's name that say its family: AMD EPYC, Intel Xeon."""


def family_of(name: str) -> str:
    """Return the family of a processor as a file name.

    >>> family_of("AMD EPYC 7763 64-Core Processor"), family_of("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    ('amd-epyc', 'intel-xeon')
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", " ", name.lower()))
    return "-".join(words[:TITLE_WORDS]) or "unknown"


def keep_results(found: Mapping[str, Mapping[str, Any]], folder: Path = RESULTS) -> Path:
    """Add results to the earlier ones of this processor family; keep those that were not run now."""
    name, _ = read_processor()
    path = folder / f"{family_of(name)}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["results"] if path.is_file() else {}
    new = {name: one for name, one in found.items() if "skipped" not in one or name not in kept}
    content = {"processor": describe_processor(), "results": dict(sorted((kept | new).items()))}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def read_results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return processor -> its results by benchmark."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {one["processor"]: one["results"] for one in found}


def cell_of(result: Mapping[str, Any] | None) -> str:
    """Return the ratios, marked where one misses its goal.

    >>> cell_of({"ratio": 1.304, "ok": False}), cell_of({"skipped": "no peer"}), cell_of(None)
    ('1.3 **missed**', 'not run: no peer', '')
    """
    if result is None:
        return ""
    if "skipped" in result:
        return f"not run: {result['skipped']}"
    rows = result.get("rows") or {"": result}
    told = [f"{_rounded(one['ratio'])}{'' if one.get('ok', True) else ' **missed**'}" for one in rows.values()]
    unit = f" {result['unit']}" if "unit" in result else ""
    return ", ".join(told) + unit


def _rounded(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"


def goal_of(results: Mapping[str, Any], name: str) -> str:
    """Return the goals of a benchmark from its newest measurement."""
    for found in results.values():
        if name in found and "goal" in found[name]:
            return ", ".join(row["goal"] for row in found[name].get("rows", {"": found[name]}).values())
    return ""


def write_table(benchmarks: Mapping[str, str], results: Mapping[str, Any]) -> str:
    """Return the Markdown table: a row for every measured benchmark, a column for every processor."""
    head = ["benchmark", "measured", "goal", *results]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, measured in benchmarks.items():
        if any(name in found for found in results.values()):
            cells = [cell_of(found.get(name)) for found in results.values()]
            lines.append(f"| `{name}` | {measured} | {goal_of(results, name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(benchmarks: Mapping[str, str], *, page: Path = PAGE, folder: Path = RESULTS) -> None:
    """Put the table between its marks; nothing else on the page changes."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    table = write_table(benchmarks, read_results(folder))
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
