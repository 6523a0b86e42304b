"""docs/combinations.md: what goes with what, and why not.

python -m tests.laws.table      writes the page
"""

import re

from tests.laws.combinations import DIMENSIONS, PAGE, ROUNDS, reason_for, refusal, whole

PROMISES = {
    "clients, trusted server": {"unit": "client", "mechanism": "gaussian", "where": "server", "samples": "shuffle"},
    "clients, noise at the client": {
        "unit": "client",
        "mechanism": "gaussian",
        "where": "client",
        "samples": "shuffle",
    },
    "clients, noise where trust ends": {
        "unit": "client",
        "mechanism": "gaussian",
        "where": "edge",
        "samples": "shuffle",
    },
    "examples, DP-SGD at the client": {
        "unit": "sample",
        "mechanism": "gaussian",
        "where": "client",
        "samples": "poisson",
    },
    "examples, one step by a trusted server": {
        "unit": "sample",
        "mechanism": "gaussian",
        "where": "server",
        "samples": "poisson",
    },
    "examples, noise where trust ends": {
        "unit": "sample",
        "mechanism": "gaussian",
        "where": "edge",
        "samples": "poisson",
    },
    "examples, output perturbation": {"unit": "sample", "mechanism": "output", "where": "client", "samples": "shuffle"},
    "examples, objective perturbation": {
        "unit": "sample",
        "mechanism": "objective",
        "where": "client",
        "samples": "shuffle",
    },
    "clients, trusted server, correlated noise": {
        "unit": "client",
        "mechanism": "gaussian",
        "where": "server",
        "samples": "shuffle",
        "clients": "turns",
        "noise": "correlated",
    },
    "clients, trusted edges, correlated noise": {
        "unit": "client",
        "mechanism": "gaussian",
        "where": "edge",
        "samples": "shuffle",
        "clients": "turns",
        "noise": "correlated",
    },
    "examples, correlated noise over batches in order": {
        "unit": "sample",
        "mechanism": "gaussian",
        "where": "client",
        "samples": "poisson",
        "noise": "correlated",
    },
    "nobody": {"unit": "none", "mechanism": "gaussian", "where": "server", "samples": "shuffle"},
}

HEAD = """# What goes with what

Written by `make combinations`; a test checks that it is current. Every cell was asked of the program itself, on a tiny problem of {rounds} rounds:
**yes** means that it runs and that the epsilon of its ledger was confirmed by other code (`tests/laws`), a number is the reason for which it is
refused. Nothing else happens: no combination crashes, none is accounted as something that it is not.

What is not in a table follows the same rule: ask, and the answer is a run or one line. `make test` covers every pair of settings below by
runs; `make test-slow` plans the whole product of {kinds} and runs a tenth of what can run.
"""


class Reasons:
    """Reasons in the order in which they are met, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, reason: str, algorithm: str = "") -> str:
        """`yes`, or the number of the reason; one number for all algorithms that are refused in the same words."""
        reason = re.sub(rf"\b{algorithm}\b", "ALGORITHM", reason, count=1) if algorithm else reason
        return f"[{self._numbers.setdefault(reason, len(self._numbers) + 1)}]" if reason else "yes"

    def listed(self) -> str:
        """All of them."""
        return "\n".join(f"{number}. {reason}" for reason, number in self._numbers.items())


def verdict(**fixed: str) -> str:
    """Empty when any combination of that kind runs, else the reason why the plainest does not."""
    rest = {"upcycle": "no", "split": "no", "adjacency": "add_remove", "noise": "independent"} | fixed
    return "" if any(not refusal(c) for c in whole(**rest)) else reason_for((), **{"noise": "independent"} | fixed)  # type: ignore[arg-type]


def table(title: str, rows: dict[str, dict[str, str]], columns: dict[str, dict[str, str]], reasons: Reasons) -> str:
    """A table of verdicts: each row and each column fixes some settings."""
    lines = [f"## {title}", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, fixed in rows.items():
        asked = [fixed | more for more in columns.values()]
        cells = [reasons.cell(verdict(**one), one.get("algorithm", "")) for one in asked]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def named(dimension: str) -> dict[str, dict[str, str]]:
    """Every value of a dimension, fixed."""
    return {f"`{value}`": {dimension: value} for value in DIMENSIONS[dimension]}


def page() -> str:
    """The whole page."""
    reasons = Reasons()
    every = named("algorithm")
    parts = [
        table("Algorithms and topologies", every, named("topology"), reasons),
        table("Algorithms and what is protected", every, PROMISES, reasons),
        table(
            "Algorithms with upcycling and splitting",
            every,
            {"upcycled": {"upcycle": "yes"}, "split": {"split": "yes"}},
            reasons,
        ),
    ]
    for name in (*list(PROMISES)[:5], *(name for name in PROMISES if "correlated" in name)):
        rows = {word: fixed | PROMISES[name] for word, fixed in every.items()}
        parts.append(table(f"Samplers of clients: protecting {name}", rows, named("clients"), reasons))
    promised = {
        name: {key: value for key, value in fixed.items() if key != "samples"} for name, fixed in PROMISES.items()
    }
    noises = {
        name: {key: value for key, value in fixed.items() if key != "noise"} | {"noise": "correlated"}
        for name, fixed in PROMISES.items()
        if "correlated" not in name
    }
    parts += [
        table("What is protected and how examples are drawn", promised, named("samples"), reasons),
        table("What is protected and against which change", PROMISES, named("adjacency"), reasons),
        table("What is protected, split", PROMISES, {"split": {"split": "yes"}}, reasons),
        table("What is protected with correlated noise", noises, named("clients"), reasons),
    ]
    kinds = ", ".join(f"{len(values)} {name}" for name, values in DIMENSIONS.items())
    head = HEAD.format(rounds=ROUNDS, kinds=kinds)
    closing = ["## Reasons", "", "ALGORITHM stands for the one that the row names.", "", reasons.listed(), ""]
    return "\n".join([head, *parts, *closing])


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
