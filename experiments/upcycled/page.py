"""docs/reproduction/upcycled.md from the results: the paper's value, ours, verdict."""

import json
from collections import defaultdict
from collections.abc import Iterable
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from experiments.upcycled.words import FOOT, HEAD, NOT_RUN, PRIVATE_HEAD

Row = dict[str, Any]
Pairs = dict[tuple[str, str], dict[bool, list[Row]]]

PAPER = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
TITLES = {
    "table1": "Table 1, synthetic data: 90% stragglers",
    "table3": "Table 3, synthetic data: 30% stragglers",
    "letters": "Table 1, letters a-j",
    "letters26": "Table 4, 26 letters",
    "tweets": "Table 1, tweets",
}
TABLE_OF = {"table1": "table1", "table3": "table3", "letters": "table1", "letters26": "table4", "tweets": "table1"}
DATA = {
    "iid": "Syn(iid)", "syn00": "Syn(0,0)", "syn55": "Syn(.5,.5)", "syn11": "Syn(1,1)", "letters": "letters a-j",
    "letters26": "26 letters", "tweets": "tweets",
}  # fmt: skip
PRIVATE = {
    "published": "Output perturbation as published (figure 3): clip 10, sigma 1.0, upcycled 0.8, FedAvg. No guarantee",
    "output": "Output perturbation with a guarantee: `strongly_convex`, FedProx mu = .5, epsilon = 8 for both",
    "objective": "Objective perturbation with a guarantee (figure 4): FedProx mu = .5, epsilon = 8 for both",
    "gradient": "Gradient perturbation: DP-SGD, one local epoch, FedAvg, epsilon = 8 for both",
}


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and beside it the figure of losses over time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = by_part(rows)
    words = [HEAD, summary(parts)]
    words += [table(part, parts[part]) for part in TITLES if part in parts]
    if any(part in parts for part in PRIVATE):
        words += [PRIVATE_HEAD, *(private_table(part, parts[part]) for part in PRIVATE if part in parts)]
    if "table5" in parts or "published" in parts:
        words.append(times(parts.get("table5") or parts["published"]))
    if "table1" in parts:
        words.append(figure(parts["table1"], path.with_name("upcycled-loss.svg")))
    missing = [part for part in (*TITLES, *PRIVATE, "table5") if part not in parts]
    if missing:
        words.append("## Not run here\n\n" + ", ".join(f"`{part}`" for part in missing) + NOT_RUN)
    path.write_text("\n\n".join(words) + "\n\n" + FOOT, encoding="utf-8")


def by_part(rows: Iterable[Row]) -> dict[str, Pairs]:
    """part -> (data, algorithm) -> upcycled? -> its runs, only seeds that both have."""
    parts: dict[str, Pairs] = defaultdict(lambda: defaultdict(lambda: {False: [], True: []}))
    for row in rows:
        parts[row["part"]][row["data"], row["algorithm"]][row["upcycled"]].append(row)
    for pairs in parts.values():
        for key, pair in list(pairs.items()):
            both = {r["seed"] for r in pair[False]} & {r["seed"] for r in pair[True]}
            pairs[key] = {up: [r for r in runs if r["seed"] in both] for up, runs in pair.items()}
            if not both:
                del pairs[key]
    return {part: pairs for part, pairs in parts.items() if pairs}


def mean_of(runs: list[Row], name: str, factor: float = 1.0) -> float:
    return factor * fmean(run[name] for run in runs)


def shown(runs: list[Row], name: str, factor: float = 1.0, digits: int = 2) -> str:
    values = [factor * run[name] for run in runs]
    return f"{fmean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def gain(pair: dict[bool, list[Row]], name: str = "accuracy", factor: float = 100.0) -> tuple[float, float]:
    """Mean and standard error of upcycled minus plain over the seeds."""
    plain = {run["seed"]: run[name] for run in pair[False]}
    gains = [factor * (run[name] - plain[run["seed"]]) for run in pair[True]]
    return fmean(gains), pstdev(gains) / sqrt(max(1, len(gains) - 1))


def verdict(ours: float, error: float, paper: float) -> str:
    """Whether the sign of the gain is the paper's."""
    if abs(ours) <= error:
        return "tie"
    return "agrees" if (ours > 0) == (paper >= 0) else "differs"


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
        "| data | loss: plain → upcycled | accuracy: plain → upcycled | epsilon (ledger, worst client) | releases |",
        "|---|---|---|---|---|",
    ]
    for (data, _), pair in pairs.items():
        epsilons = " → ".join(f"{max(run['epsilon'] for run in pair[up]):.4g}" for up in (False, True))
        releases = " → ".join(str(pair[up][0]["releases"]) for up in (False, True))
        lines.append(
            f"| {DATA[data]} | {shown(pair[False], 'loss')} → {shown(pair[True], 'loss')} | "
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


def figure(pairs: Pairs, path: Path) -> str:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "upcycled"
    from matplotlib import pyplot

    names = [name for name in ("iid", "syn00", "syn55", "syn11") if any(data == name for data, _ in pairs)]
    canvas, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 3.2), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for number, ((_, algorithm), pair) in enumerate((k, v) for k, v in pairs.items() if k[0] == name):
            for up, style in ((False, "--"), (True, "-")):
                curves = [run["curve"] for run in pair[up]]
                losses = [fmean(curve[i][1] for curve in curves) for i in range(len(curves[0]))]
                axis.plot([p[0] for p in curves[0]], losses, style, color=f"C{number}", label=algorithm if up else None)
        axis.set(title=DATA[name], xlabel="rounds", ylabel="test loss", yscale="log")
    axes[0][0].legend(fontsize=7)
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return f"## Loss over rounds (figures 2 and 5)\n\nDashed: plain; solid: upcycled.\n\n![losses]({path.name})"
