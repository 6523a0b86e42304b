"""docs/reproduction.md: one page over the systems, from their results and from the heads of their files."""

from collections import Counter
from pathlib import Path

from experiments.claims import Claim, table
from experiments.commands import commands, listed
from experiments.systems import SYSTEMS, claims_of
from experiments.times import Time, measured, told

DOCS = Path(__file__).parents[1] / "docs"


def write_overview(path: Path = DOCS / "reproduction.md") -> None:
    """Write the page."""
    words = [
        "# What was reproduced",
        "Written by `python -m experiments --page-only` from the kept results; the systems' own pages say how every "
        "number was made. `make reproduce` runs everything anew, goes on where it was broken off, and writes all "
        "pages; `python -m experiments --list` shows its commands.",
        total(),
    ]
    for system, title in SYSTEMS.items():
        claims = claims_of(system)
        words += [f"## {title}", f"[The whole page](reproduction/{system}.md). {counted(claims)}", table(claims)]
        words += [files(system)]
    path.write_text("\n\n".join(words) + "\n", encoding="utf-8")


def total() -> str:
    """What all commands together took."""
    times = measured()
    wanted = {command for _, command in commands()}
    spent = sum((times[name] for name in times), start=Time(0.0, 0.0, 1, 0.0))
    if not times:
        return "No command has been timed yet."
    missing = len(wanted - set(times))
    rest = f" {missing} more have not been timed yet." if missing else ""
    cores = max(time.cores for time in times.values())
    return (
        f"Measured: {len(times)} commands, {told(spent.processor)} of processor time, {told(spent.wall)} by the clock "
        f"on {cores} cores, with a load of up to {spent.load:.0f}.{rest}"
    )


def counted(claims: list[Claim]) -> str:
    """How many claims came out how."""
    words = Counter(claim.verdict.split(":")[0].split(";")[0] for claim in claims).most_common()
    return f"{len(claims)} claims and cells: " + ", ".join(f"{count} {word}" for word, count in words) + "."


def files(system: str) -> str:
    """The experiment files of a system."""
    lines = ["| file | reproduces | expect | takes | the whole of it |", "|---|---|---|---|---|"]
    for one in listed([system]):
        name = f"`experiments/{system}/{one.file.name}`"
        lines.append(f"| {name} | {one.reproduces} | {one.expect} | {one.takes} | `{one.whole}` |")
    return "\n".join(lines)
