"""docs/reproduction/hierarchy.md from the results: the paper's claim, what came out here, verdict."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from experiments.claims import table as claim_table
from experiments.hierarchy.cells import CONTROL
from experiments.hierarchy.claims import GUESSING, claims
from experiments.hierarchy.costs import saved
from experiments.hierarchy.figures import PARTS
from experiments.hierarchy.pictures import draw
from experiments.hierarchy.results import Row, accuracy, found, shown, table
from experiments.hierarchy.words import FOOT, HEAD, NAMES, NOT_RUN, ONLY_GUESSING, WEIGHTS_SAY


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and beside it the figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = [name for name in NAMES if any(row["data"] == name for row in rows)]
    parts: list[Callable[[list[Row], str], str]] = [trust, saved, budgets, networks]
    words = [HEAD, "## Claims and verdicts", claim_table(claims(rows)), draw(rows, data, path)]
    words += [part(rows, name) for name in data for part in parts]
    words += [weights(rows), effort(rows), missing(rows), FOOT]
    path.write_text("\n\n".join(word for word in words if word) + "\n", encoding="utf-8")


def trust(rows: list[Row], data: str) -> str:
    """Figure 4."""
    open_ = found(rows, "fig4", "HFL", data)
    private = {share: found(rows, "fig4", f"p={share:g}", data) for share in (0.0, 0.5, 1.0)}
    if not open_ or not all(private.values()):
        return ""
    best = accuracy(open_)
    lines = [f"| without privacy (HFL) | {shown(open_)} | 100% |"]
    lines += [
        f"| p_c = {share:g}{' (HFL-DP)' if share == 0 else ''} | {shown(some)} | {100 * accuracy(some) / best:.0f}% |"
        for share, some in private.items()
    ]
    head = table("| figure 4, epsilon = 1 | accuracy in % | of the same model without privacy |", lines)
    if max(map(accuracy, private.values())) < GUESSING:
        return f"## {NAMES[data]}\n\n{head}\n\n{ONLY_GUESSING}"
    return f"## {NAMES[data]}\n\n{head}"


def budgets(rows: list[Row], data: str) -> str:
    """Figures 6 and 9."""
    some = [
        row
        for row in rows
        if row["figure"] in ("fig4", "fig6", "fig9") and row["data"] == data and row["facts"].get("epsilon")
    ]
    epsilons = sorted({row["facts"]["epsilon"] for row in some})
    if len(epsilons) < 2:
        return ""
    lines = []
    for share in (0.0, 0.5, 1.0):
        cells = [
            shown([r for r in some if (r["facts"]["share"], r["facts"]["epsilon"]) == (share, e)]) for e in epsilons
        ]
        lines.append(f"| {share:g} | " + " | ".join(cells) + " |")
    return table("| figures 6, 9: p_c | " + " | ".join(f"epsilon = {e:g}" for e in epsilons) + " |", lines)


def networks(rows: list[Row], data: str) -> str:
    """Figure 7."""
    shapes = {(2, 5): "2x5", (6, 5): "6x5", (2, 15): "2x15", (2, 25): "2x25"}
    runs = {shape: found(rows, "fig7", name, data) for shape, name in shapes.items()}
    runs[10, 5] = [row for row in found(rows, "fig4", "p=0.5", data) if row["seed"] == 0]
    if not all(runs.values()):
        return ""
    lines = [
        f"| {n} | {n // 5} x 5: {shown(runs[n // 5, 5])} | 2 x {n // 2}: {shown(runs[2, n // 2])} |"
        for n in (10, 30, 50)
    ]
    return table("| figure 7: devices | more subnets | larger subnets |", lines)


def weights(rows: list[Row]) -> str:
    """Figures 8 and 10."""
    some = [row for row in rows if row["figure"] in ("fig8", "fig10")]
    if not some:
        return ""
    lines = []
    for row in sorted(some, key=lambda row: (row["facts"]["weight"], row["facts"]["value"])):
        c = row["control"]
        lines.append(
            f"| {row['facts']['weight']} = {row['facts']['value']:g} | {fmean(c['tau']):.1f} | "
            f"{fmean(c['devices_trusted']):.1f} | {fmean(c['devices_untrusted']):.1f} | {row['rounds']} |"
        )
    header = "| weight, the others 1 | mean tau | devices, trusted | devices, untrusted | intervals |"
    return f"## What the weights do (figures 8 and 10)\n\n{table(header, lines)}\n\n{WEIGHTS_SAY}"


def effort(rows: list[Row]) -> str:
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    weights = ", ".join(f"{name} = {CONTROL[name]}" for name in ("energy", "delay", "accuracy"))
    return (
        f"{len(rows)} runs, {minutes:.0f} minutes of processor time on a busy machine (half of that on two cores). "
        f"Figure 5's control has the weights {weights}."
    )


def missing(rows: list[Row]) -> str:
    """The runs that the command would still make, by figure."""
    done = {row["key"] for row in rows}
    left = {name: [cell for cell in part() if cell.key not in done] for name, part in PARTS.items()}
    lines = [
        f"- {name}, {NAMES[data]}: {', '.join(cell.name for cell in cells if cell.data == data)}"
        for name, cells in left.items()
        for data in NAMES
        if any(cell.data == data for cell in cells)
    ]
    return "## Not run yet\n\n" + "\n".join(lines) + f"\n\n{NOT_RUN}" if lines else ""
