"""What the audits find, written to docs/auditing.md between two marks.

python -m tests.audit.table                 runs every audit and every break of `cases.py` and writes the tables
python -m tests.audit.table breaks          one of them: mechanisms, algorithms, breaks
python -m tests.audit.table breaks "client: edge" "sample: parts"      some of its rows; the others stay as they are
"""

import re
import sys
from pathlib import Path

import pytest

from sightline import algorithms
from tests.audit.cases import BREAKS, BROKEN, HONEST, KINDS, PROMISES, REASONS, audited, registry, runs_of

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


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


def honest(row):
    """A mechanism, sampler, bound, arithmetic or view."""
    words = HONEST[row]
    return found(audited(**{"trials": runs_of(words)} | words))


def by_algorithm(row):
    """An algorithm with every promise: bound and claim, or refused."""
    return [cell(row, promise) for promise in PROMISES]


def cell(name, promise):
    """Bound and claim of an algorithm with a promise."""
    words = registry().get((name, promise))
    if words is None:
        return "refused"
    audit = audited(**words, trials=runs_of(words), canaries=10)
    return f"{down(audit.findings[0].lower)}, {audit.findings[0].upper:.2f}"


def algorithm_rows(page):
    """Algorithm -> its cells, as the page has them."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", between(page, "algorithms"), re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


def broken(row):
    """A kind of release with every break: bound and claim."""
    return [caught(how, row) for how in BREAKS]


def caught(how, kind):
    """Bound and claim of a broken release."""
    if (how, kind) not in BROKEN:
        return REASONS.get((how, kind), "")
    breaks, words = BROKEN[how, kind]
    with pytest.MonkeyPatch.context() as monkeypatch:
        breaks(monkeypatch)
        audit = audited(**words)
    return f"{down(audit.findings[0].lower)} > {audit.findings[0].upper:.2f}" if audit.broken else "not caught"


METHODS = ["observer about subject", "repeated: bound, claim", "counted runs", "one run: bound, claim", "canaries"]
TABLES = {
    "mechanisms": (["what", *METHODS], HONEST, named, honest),
    "algorithms": (["algorithm", *PROMISES], algorithms.REGISTRY, "`{}`".format, by_algorithm),
    "breaks": (["what", *BREAKS], KINDS, named, broken),
}
"""Table -> its head, its rows, how they are named, and what makes the cells of one."""


def marks(name):
    """What stands before and after a table."""
    return f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"


def between(page, name):
    """A table as the page has it."""
    begin, end = marks(name)
    return page.partition(begin)[2].partition(end)[0]


def lines(name, wanted):
    """Yield the lines of a table; rows that are wanted or missing are computed again."""
    head, rows, shown, cells = TABLES[name]
    old = {line.split(" | ")[0].removeprefix("| "): line for line in between(PAGE.read_text(), name).splitlines()}
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "---|" * (len(head) - 1)
    for row in rows:
        if wanted and row not in wanted and shown(row) in old:
            yield old[shown(row)]
        else:
            print(row, file=sys.stderr, flush=True)
            yield f"| {shown(row)} | {' | '.join(cells(row))} |"


def main(names):
    """Write all tables, or one, or some rows of it."""
    for name in names[:1] or TABLES:
        table = "\n".join(lines(name, names[1:]))
        page, (begin, end) = PAGE.read_text(), marks(name)
        before, _, rest = page.partition(begin)
        PAGE.write_text(before + begin + table + end + rest.partition(end)[2])


if __name__ == "__main__":
    main(sys.argv[1:])
