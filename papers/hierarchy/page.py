"""papers/docs/hierarchy.md from the results: the findings, their pictures, then the tables behind them."""

from pathlib import Path
from statistics import fmean

from papers.findings import draw_results, write_table
from papers.hierarchy.cells import CONTROL
from papers.hierarchy.claims import Arms, list_findings, say_to_authors
from papers.hierarchy.costs import BARS, TARGETS, bar_runs
from papers.hierarchy.results import COSTS, Row, by_seed, cost_to, mean_accuracy, show_table
from papers.hierarchy.words import CNN_WORDS, DATA, FOOT, HEAD, SETTING, SINGLE_WORDS


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and beside it the pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    findings = list_findings(rows)
    words = [HEAD]
    if Arms(rows, "fashion_mnist").has("fig4", "HFL", "p=0", "p=1"):
        words.append("\n".join(f"- {sentence}" for sentence in say_to_authors(rows)))
    words += ["## Figure by figure", write_table(findings), draw_results(findings, path.parent, "hierarchy"), SETTING]
    for data in DATA:
        words += [table_of_trust(rows, data), table_of_costs(rows, data), table_of_networks(rows, data)]
    words += [table_of_segments(rows), table_of_cnn(rows), table_of_weights(rows), tell_effort(rows), FOOT]
    path.write_text("\n\n".join(word for word in words if word) + "\n", encoding="utf-8")


def show_runs(runs: dict[int, Row]) -> str:
    """The mean with its error, and the seeds behind it."""
    if not runs:
        return "not run"
    each = " / ".join(f"{value:.1f}" for value in by_seed(runs).values())
    return str(mean_accuracy(runs)) + (f": {each}" if len(runs) > 1 else "")


def table_of_trust(rows: list[Row], data: str) -> str:
    """Figures 4, 6 and 9: accuracy by budget and trust, and the comparators."""
    arms = Arms(rows, data)
    if not arms["fig4", "HFL"]:
        return ""
    lines = [f"| without privacy (HFL) | {show_runs(arms['fig4', 'HFL'])} | | |"]
    if arms["clipped", "no noise"]:
        lines.append(f"| clipped steps, no noise | {show_runs(arms['clipped', 'no noise'])} | | |")
    for epsilon in (0.2, 0.5, 1.0, 1.5, 4.0):
        cells = [show_runs(runs) if (runs := arms.at(epsilon, share)) else "" for share in (0.0, 0.5, 1.0)]
        if any(cells):
            lines.append(f"| epsilon = {epsilon:g} | " + " | ".join(cells) + " |")
    for title, figure in (
        ("clipped steps, epsilon = 1", "clipped"),
        ("as published, no guarantee", "published"),
        ("epsilon = 1, k = 200", "long"),
    ):
        if arms[figure, "p=1"]:
            cells = [show_runs(arms[figure, f"p={share:g}"]) for share in (0.0, 0.5, 1.0)]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    if arms["long", "HFL"]:
        lines.append(f"| without privacy, k = 200 | {show_runs(arms['long', 'HFL'])} | | |")
    header = "| accuracy in % | p_c = 0 | p_c = .5 | p_c = 1 |"
    return f"## {DATA[data]}\n\n{show_table(header, lines)}"


def show_costs(runs: dict[int, Row]) -> str:
    """What a whole run spends: joule | seconds."""
    return " | ".join(f"{fmean(row['curve'][-1][place] for row in runs.values()):.1f}" for place in COSTS.values())


def table_of_segments(rows: list[Row]) -> str:
    """Clipped steps of softmax regression: released every 5 steps as printed, and every step."""
    lines = []
    for data, title in DATA.items():
        arms = Arms(rows, data)
        for name, figure, silent, before, count in (
            ("every 5 steps (as printed), steps of 1, rate .4", "clipped", "no noise", "", 4),
            ("every 5 steps (as printed), steps of 40, rate .4", "single", "five no noise", "five ", 4),
            ("every step (deviation), steps of 40, rate 6", "single", "HFL", "", 20),
        ):
            if whole := arms["single", "p=1"] and arms[figure, f"{before}p=1"]:
                each = [
                    show_runs(arms[figure, arm]) for arm in (silent, *(f"{before}p={p}" for p in ("0", "0.5", "1")))
                ]
                lines.append(f"| {title} | {name} | {' | '.join(each)} | {count} | {show_costs(whole)} |")
    header = (
        "| softmax, clipped, epsilon 1 | aggregations | no noise | p_c = 0 | p_c = .5 | p_c = 1 | an interval | joule, "
        "all | seconds, all |"
    )
    return f"## Clipped steps: a release every step\n\n{SINGLE_WORDS}\n\n{show_table(header, lines)}" if lines else ""


CNN_ALONE = (
    ("HFL", "without privacy (HFL)"),
    ("HFL same rate", "without privacy, at the rate of clipped steps"),
    ("no noise", "clipped steps, no noise"),
    ("PEDPFL", "PEDPFL"),
)


def table_of_cnn(rows: list[Row]) -> str:
    """A loss that is not convex."""
    lines = []
    for data, title in DATA.items():
        arms = Arms(rows, data)
        if not arms["cnn", "p=1"]:
            continue
        for name, label in CNN_ALONE:
            if arms["cnn", name]:
                lines.append(
                    f"| {title}, {label} | {show_runs(arms['cnn', name])} | | | {show_costs(arms['cnn', name])} |"
                )
        for before, label in (
            ("", "unit sample, every step (deviation)"),
            ("five ", "unit sample, every 5 steps (as printed)"),
            ("client ", "unit client, every 5 steps"),
        ):
            if arms["cnn", f"{before}p=1"]:
                each = [show_runs(arms["cnn", f"{before}p={share:g}"]) for share in (0.0, 0.5, 1.0)]
                lines.append(f"| {title}, {label} | {' | '.join(each)} | {show_costs(arms['cnn', f'{before}p=1'])} |")
    header = "| CNN, epsilon 1 | p_c = 0 (HFL-DP) | p_c = .5 | p_c = 1 | joule, all | seconds, all |"
    return f"## A CNN: a loss that is not convex\n\n{CNN_WORDS}\n\n{show_table(header, lines)}" if lines else ""


def table_of_costs(rows: list[Row], data: str) -> str:
    """Figure 5: what every bar spent until the targets, and in all."""
    lines = []
    for published in (False, True):
        for name, title in {"control": "H2FDP with control", **BARS}.items():
            if runs := bar_runs(rows, data, name, published=published):
                costs = [tell_cost(runs, target, kind) for target in TARGETS[data] for kind in COSTS]
                whole = [f"{fmean(row['curve'][-1][place] for row in runs.values()):.2f}" for place in COSTS.values()]
                epsilon = max(row["epsilon"] for row in runs.values())
                named = f"{title}, as published" if published else title
                lines.append(f"| {' | '.join([named, *costs, *whole, show_runs(runs), f'{epsilon:.2f}'])} |")
    late, early = (f"{100 * target:g}%" for target in TARGETS[data])
    header = (
        f"| figure 5 | joule to {late} | seconds | joule to {early} | seconds | joule, all | seconds, all | accuracy | "
        "epsilon in truth |"
    )
    return show_table(header, lines) if lines else ""


def tell_cost(runs: dict[int, Row], target: float, kind: str) -> str:
    """The mean over the seeds; how many did not reach it."""
    costs = [cost_to(row, target, kind) for row in runs.values()]
    there = [cost for cost in costs if cost is not None]
    short = len(costs) - len(there)
    return (f"{fmean(there):.2f}" if there else "-") + (f" ({short} of {len(costs)} never)" if short else "")


def table_of_networks(rows: list[Row], data: str) -> str:
    """Figure 7."""
    arms = Arms(rows, data)
    if not arms["fig7", "2x5"]:
        return ""
    pairs = ((10, arms["fig7", "2x5"], arms["fig7", "2x5"]), (30, arms["fig7", "6x5"], arms["fig7", "2x15"]))
    lines = [
        f"| {n} | {n // 5} x 5: {show_runs(more)} | 2 x {n // 2}: {show_runs(larger)} |"
        for n, more, larger in (*pairs, (50, arms.at(1.0, 0.5), arms["fig7", "2x25"]))
    ]
    return show_table("| figure 7: devices | more subnets | larger subnets |", lines)


def table_of_weights(rows: list[Row]) -> str:
    """Figures 8 and 10."""
    some = [row for row in rows if row["figure"] in ("fig8", "fig10")]
    lines = []
    for row in some:
        c, facts = row["control"], row["facts"]
        lines.append(
            f"| {facts['weight']} = {facts['value']:g} | {facts['delays']} | {fmean(c['tau']):.1f} | "
            f"{fmean(c['devices_trusted']):.1f} | {fmean(c['devices_untrusted']):.1f} | {row['rounds']} |"
        )
    header = "| weight, the others 1 | delays | mean tau | devices, trusted | devices, untrusted | intervals |"
    return f"## What the weights do (figures 8 and 10)\n\n{show_table(header, lines)}" if lines else ""


def tell_effort(rows: list[Row]) -> str:
    """How many runs, and what they took."""
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    weights = ", ".join(f"{name} = {CONTROL[name]}" for name in ("energy", "delay", "accuracy"))
    return (
        f"{len(rows)} runs, {minutes:.0f} minutes of processor time on a busy machine. Figure 5's control has the "
        f"weights {weights}; intervals of at most {CONTROL['tau_max']} steps."
    )
