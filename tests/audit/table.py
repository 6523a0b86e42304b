"""What the audits find, written to docs/auditing.md between two marks.

python -m tests.audit.table      runs every audit and every break of `cases.py` and writes the tables
"""

import re
import sys
from pathlib import Path

import pytest

from sightline import algorithms
from tests.audit.cases import BREAKS, BROKEN, HONEST, KINDS, PROMISES, REASONS, TRIALS, audited, registry

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"
BEGIN, END = "<!-- audited: begin -->", "<!-- audited: end -->"
FEW = 100


def named(case):
    """A case as its row names it."""
    return case.replace("|", "/")


def down(value):
    """A lower bound, never rounded up."""
    return f"{int(100 * value) / 100:.2f}"


def found(audit):
    """The cells of a row: who, runs, and bound and claim of both methods."""
    repeated, one = audit.findings
    who = f"{audit.facts['observer']} about {audit.facts['subject']}"
    cells = [who, f"{down(repeated.lower)}, {repeated.upper:.2f}", str(2 * repeated.details["runs"])]
    return [*cells, f"{down(one.lower)}, {one.upper:.2f}", str(one.details["canaries"])]


def honest():
    """One row for every mechanism, sampler, bound, arithmetic and view."""
    yield "| what | observer about subject | repeated: bound, claim | counted runs | one run: bound, claim | canaries |"
    yield "|---|---|---|---|---|---|"
    for name, words in HONEST.items():
        progress(name)
        yield f"| {named(name)} | {' | '.join(found(audited(**words)))} |"


def by_algorithm():
    """Every algorithm with every promise: bound and claim, or refused."""
    yield f"| algorithm | {' | '.join(PROMISES)} |"
    yield "|---|" + "---|" * len(PROMISES)
    for name in algorithms.REGISTRY:
        progress(name)
        yield f"| `{name}` | {' | '.join(cell(name, promise) for promise in PROMISES)} |"


def cell(name, promise):
    """Bound and claim of an algorithm with a promise."""
    words = registry().get((name, promise))
    if words is None:
        return "refused"
    audit = audited(**words, trials=FEW, canaries=FEW)
    return f"{down(audit.findings[0].lower)}, {audit.findings[0].upper:.2f}"


def algorithm_rows(page):
    """Algorithm -> its cells, as the page has them."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.split(BEGIN)[1], re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


def broken():
    """Every kind of release with every break: bound and claim."""
    yield f"| what | {' | '.join(BREAKS)} |"
    yield "|---|" + "---|" * len(BREAKS)
    for kind in KINDS:
        progress(kind)
        yield f"| {kind} | {' | '.join(caught(how, kind) for how in BREAKS)} |"


def caught(how, kind):
    """Bound and claim of a broken release."""
    if (how, kind) not in BROKEN:
        return REASONS.get((how, kind), "")
    breaks, words = BROKEN[how, kind]
    with pytest.MonkeyPatch.context() as monkeypatch:
        breaks(monkeypatch)
        audit = audited(**words)
    return f"{down(audit.findings[0].lower)} > {audit.findings[0].upper:.2f}" if audit.broken else "not caught"


def progress(name):
    """A line on stderr."""
    print(name, file=sys.stderr, flush=True)


def written():
    """The tables."""
    lines = [
        BEGIN, "",
        f"Written by `python -m tests.audit.table`: two rounds, delta 0.05 unless the case says otherwise, confidence 0.95, {TRIALS} runs of each world.", "",
        *honest(), "",
        f"Algorithms, by repeated runs ({FEW} of each world): bound, claim. What is refused says why in [combinations.md](combinations.md).", "",
        *by_algorithm(), "",
        "Broken on purpose, at delta 0.1: bound > claim means caught.", "",
        *broken(), "",
        END,
    ]  # fmt: skip
    return "\n".join(lines)


def main():
    """Write the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + written() + rest.partition(END)[2])


if __name__ == "__main__":
    main()
