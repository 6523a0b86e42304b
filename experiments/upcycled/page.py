"""docs/reproduction/upcycled.md from the results: the paper's value, ours, verdict."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from experiments.claims import table as claim_table
from experiments.upcycled.claims import claims
from experiments.upcycled.numbers import DATA, PAPER, TABLE_OF, Pairs, Row, by_part, gain, mean_of, shown, verdict
from experiments.upcycled.pictures import drawn
from experiments.upcycled.words import CELLS_BELOW, FOOT, HEAD, NOT_RUN, PRIVATE_HEAD

TITLES = {
    "table1": "Table 1, synthetic data: 90% stragglers",
    "table3": "Table 3, synthetic data: 30% stragglers",
    "letters": "Table 1, letters a-j",
    "letters26": "Table 4, 26 letters",
    "tweets": "Table 1, tweets",
}
PRIVATE = {
    "published": "Output perturbation as published (figure 3): clip 10, sigma 1.0, upcycled 0.8, FedAvg. No guarantee",
    "output": "Output perturbation with a guarantee: `strongly_convex`, FedProx mu = .5, epsilon = 8 for both",
    "objective": "Objective perturbation with a guarantee (figure 4): FedProx mu = .5, epsilon = 8 for both",
    "gradient": "Gradient perturbation: DP-SGD, one local epoch, FedAvg, epsilon = 8 for both",
    "figure7-output": "Letters a-j, output perturbation as published (figure 7, left): 10 clients, 20 iterations, MLP",
    "figure7-objective": "Letters a-j, objective perturbation, guaranteed (figure 7, right): 5 clients, 2 iterations",
    "figure8-output": "Tweets, output perturbation as published (figure 8, left): 4 iterations, 3 epochs each, bi-LSTM",
    "figure9-output": "26 letters, output perturbation as published (figure 9, left): 10 clients, 20 iterations, MLP",
    "figure9-objective": "26 letters, objective perturbation, guaranteed (figure 9, right): 10 clients, 8 iterations",
}


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and beside it the figure of losses over time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = by_part(rows)
    words = [HEAD, summary(parts), "## Claims and verdicts", CELLS_BELOW, claim_table(claims(parts))]
    words += [table(part, parts[part]) for part in TITLES if part in parts]
    if any(part in parts for part in PRIVATE):
        words += [PRIVATE_HEAD, *(private_table(part, parts[part]) for part in PRIVATE if part in parts)]
    if "table5" in parts or "published" in parts:
        words.append(times(parts.get("table5") or parts["published"]))
    words += ["## Loss over training, figure by figure", "Dashed: plain; solid: upcycled.", *drawn(parts, path.parent)]
    missing = [part for part in (*TITLES, *PRIVATE, "table5") if part not in parts]
    if missing:
        words.append("## Not run here\n\n" + ", ".join(f"`{part}`" for part in missing) + NOT_RUN)
    path.write_text("\n\n".join(words) + "\n\n" + FOOT, encoding="utf-8")


def table(part: str, pairs: Pairs) -> str:
    lines = [
        f"## {TITLES[part]}",
        "",
        "| data | algorithm | paper: plain → upcycled | ours: plain → upcycled | gain, paper | gain, ours (± s.e.) "
        "| seeds | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (data, algorithm), pair in pairs.items():
        plain, up = PAPER[TABLE_OF[part]][algorithm][data]
        ours, error = gain(pair)
        lines.append(
            f"| {DATA[data]} | {algorithm} | {plain:.2f} → {up:.2f} | {shown(pair[False], 'accuracy', 100)} → "
            f"{shown(pair[True], 'accuracy', 100)} | {up - plain:+.2f} | {ours:+.2f} ± {error:.2f} "
            f"| {len(pair[True])} | {verdict(ours, error, up - plain)} |"
        )
    return "\n".join(lines)


def summary(parts: dict[str, Pairs]) -> str:
    lines = ["## In short", ""]
    for part in TITLES:
        if part in parts:
            gains = [gain(pair) for pair in parts[part].values()]
            better = sum(mean > 0 for mean, _ in gains)
            clear = sum(mean > error for mean, error in gains)
            worse = sum(mean < -error for mean, error in gains)
            runs = sum(len(runs) for pair in parts[part].values() for runs in pair.values())
            lines.append(
                f"- {TITLES[part]}: upcycled is better in the mean in {better} of {len(gains)} cells, by more than a "
                f"standard error in {clear}, worse by more than one in {worse}. {runs} runs; "
                f"{cpu_minutes(parts[part])}."
            )
    for part in PRIVATE:
        if part in parts:
            better = sum(gain(pair, "loss", 1.0)[0] < 0 for pair in parts[part].values())
            lines.append(f"- {PRIVATE[part]}: upcycled has the lower loss in {better} of {len(parts[part])} cells.")
    return "\n".join(lines)


def cpu_minutes(pairs: Pairs) -> str:
    """Processor time of a whole part, from the runs that measured it, algorithm by algorithm."""
    measured: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for (_, algorithm), pair in pairs.items():
        for run in (*pair[False], *pair[True]):
            counts[algorithm] += 1
            if "cpu_seconds" in run:
                measured[algorithm].append(run["cpu_seconds"])
    if set(measured) != set(counts):
        return "processor time not measured"
    total = sum(fmean(measured[name]) * count for name, count in counts.items())
    share = sum(map(len, measured.values()))
    return f"{total / 60:.0f} minutes of processor time ({share} runs measured, the rest at their algorithm's mean)"


def private_table(part: str, pairs: Pairs) -> str:
    lines = [
        f"### {PRIVATE[part]}",
        "",
        "| data | algorithm | loss: plain → upcycled | accuracy: plain → upcycled | epsilon (ledger, worst client) "
        "| releases |",
        "|---|---|---|---|---|---|",
    ]
    for (data, algorithm), pair in pairs.items():
        epsilons = " → ".join(f"{max(run['epsilon'] for run in pair[up]):.4g}" for up in (False, True))
        releases = " → ".join(str(pair[up][0]["releases"]) for up in (False, True))
        lines.append(
            f"| {DATA[data]} | {algorithm} | {shown(pair[False], 'loss')} → {shown(pair[True], 'loss')} | "
            f"{shown(pair[False], 'accuracy', 100)} → {shown(pair[True], 'accuracy', 100)} | {epsilons} | {releases} |"
        )
    return "\n".join(lines)


def times(pairs: Pairs) -> str:
    lines = [
        "## Table 5: training time",
        "",
        "Output perturbation on Syn(iid), 80 iterations for both. Half of them need no client, so expect a ratio of "
        "about .5. Our seconds were measured on a machine that was busy with other work.",
        "",
        "| algorithm | paper, seconds | ratio | ours, seconds | ratio |",
        "|---|---|---|---|---|",
    ]
    for (data, algorithm), pair in pairs.items():
        if data == "iid":
            plain, up = PAPER["table5"][algorithm]["iid"]
            ours = [mean_of(pair[which], "training_seconds") for which in (False, True)]
            lines.append(
                f"| {algorithm} | {plain:.1f} → {up:.1f} | {up / plain:.2f} | {ours[0]:.1f} → {ours[1]:.1f} | "
                f"{ours[1] / ours[0]:.2f} |"
            )
    return "\n".join(lines)
