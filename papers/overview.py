"""papers/docs/index.md: one page over the systems, from their results and from the heads of their files."""

from pathlib import Path

from papers.commands import commands, listed
from papers.findings import Finding, Verdict, count_verdicts
from papers.systems import SYSTEMS, find_sentences, findings_of
from papers.times import Time, made_on, measured, told

PAGE = Path(__file__).parent / "docs" / "index.md"
AGREEING = (Verdict.REPRODUCED, Verdict.SAME_SIGN, Verdict.REGIME)
"""Verdicts that say under which conditions the paper is right."""


def write_overview(path: Path = PAGE) -> None:
    """Write the page."""
    found = {system: findings_of(system) for system in SYSTEMS}
    words = [
        "# What was reproduced",
        "Written by `python -m papers --page-only` from the kept results; the systems' own pages say how every "
        "number was made. `make reproduce` runs everything again and writes all pages; interrupted, it continues where "
        "it stopped. `make reproduce QUICK=1` runs a part of every system again and compares it with the kept "
        "results. `python -m papers --list` shows the commands.",
        write_total(),
        "## In short",
        write_summary(found),
        VERDICTS,
    ]
    for system, title in SYSTEMS.items():
        sentences = "\n".join(f"- {sentence}" for sentence in find_sentences(system))
        words += [f"### To the authors: {title}", sentences] if sentences else []
    for system, title in SYSTEMS.items():
        words += [f"## {title}", f"[The whole page, with a picture for every figure]({system}.md)."]
        words += [write_files(system)]
    path.write_text("\n\n".join(words) + "\n", encoding="utf-8")


VERDICTS = (
    "*Reproduced*: the paper's statement, or its difference with its sign and at least half its size (or within two "
    "standard errors). *Same sign*: its direction, of another size. *Depends on the regime*: it holds in one, not "
    "in another, and both are named and run. ± is a standard error over seeds; differences are paired by seed.\n\n"
    "Chosen after some runs had been looked at, so that the rows which rest on it say less: CIFAR-10's early target in "
    "H2FDP's Figure 5 (34 %), the small regimes of partitioning's Tables 1 and 2, u of objective perturbation in "
    "Upcycled-FL, R-DPCFL's `spanning` components."
)


def write_summary(found: dict[str, list[Finding]]) -> str:
    """Return the number of verdicts of each kind per paper."""
    lines = ["| paper | " + " | ".join(Verdict) + " | agree |", "|" + "---|" * (len(Verdict) + 2)]
    everything = [finding for findings in found.values() for finding in findings]
    for title, findings in [*((SYSTEMS[system], own) for system, own in found.items()), ("all", everything)]:
        counts = count_verdicts(findings)
        share = sum(counts[verdict] for verdict in AGREEING) / max(1, len(findings))
        lines.append(f"| {title} | " + " | ".join(str(count) for count in counts.values()) + f" | {share:.0%} |")
    return "\n".join(lines)


def write_total() -> str:
    """Return the total time of all commands, and the commit they ran on."""
    wanted = {command for _, command in commands()}
    times = {command: time for command, time in measured().items() if command in wanted}
    if not times:
        return "No command has been timed yet."
    spent = sum(times.values(), start=Time(0.0, 0.0, 1, 0.0))
    missing = len(wanted - set(times))
    rest = f" {missing} more have not been timed yet." if missing else ""
    cores = max(time.cores for time in times.values())
    places = ", ".join(f"{system} on {commit}" for system, commit in sorted(made_on().items()))
    return (
        f"Measured: {len(times)} commands, {told(spent.processor)} of processor time, {told(spent.wall)} by the clock "
        f"on {cores} cores, with a load of up to {spent.load:.0f}.{rest}" + (f" Made on: {places}." if places else "")
    )


def write_files(system: str) -> str:
    """Return the table of a system's experiment files."""
    lines = ["| file | reproduces | expect | takes | the whole of it |", "|---|---|---|---|---|"]
    for one in listed([system]):
        name = f"`papers/{system}/{one.file.name}`"
        lines.append(f"| {name} | {one.reproduces} | {one.expect} | {one.takes} | `{one.whole}` |")
    return "\n".join(lines)
