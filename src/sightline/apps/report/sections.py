"""Report sections: settings and ledger seal, clients, load, overlapping groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.apps.report.chart import Bars, Tick, bar_chart, nice_step
from sightline.apps.report.guarantee import pair_attack
from sightline.apps.report.matrix import draw_heat
from sightline.apps.report.run_view import Content, RunView, Section
from sightline.errors import invalid
from sightline.events import Unit
from sightline.formatting import format_count, format_number, format_plural, format_short, format_upper
from sightline.ledger import LedgerPairs, ledger_pairs, write_parties
from sightline.ledger.group_pairs import Route, group_alike, next_hops, trace_routes
from sightline.ledger.group_privacy import PairResult, spread_over
from sightline.topology import client_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NOISE_SOURCES = {
    "seed": "derived from the seed: reproducible, for simulation only",
    "os": "entropy of the operating system",
}


def settings_content(run: RunView) -> Content:
    """Return lists of facts, the resolved file, the versions, and the head of the hash chain."""
    return {
        "lists": [
            ("Training", shown_facts(training_facts(run))),
            ("Privacy", shown_facts(privacy_facts(run))),
            ("Machine", shown_facts(machine_facts(run))),
        ],
        "settings": run.settings,
        "head": run.head,
    }


SETTINGS_SECTION = Section("settings", "Settings", settings_content)


def training_facts(run: RunView) -> dict[str, Any]:
    """Return what was trained, on which data, by which algorithm."""
    return {
        "data": run.fact("source"),
        "examples are": run.fact("kind"),
        "classes": run.fact("classes"),
        "names of classes": run.fact("class_names"),
        "model": run.fact("model"),
        "parameters": run.fact("parameters"),
        "algorithm": run.fact("algorithm"),
        **{f"algorithm.{name}": value for name, value in run.fact("algorithm_settings", {}).items()},
        **{f"split: {name}": value for name, value in (run.fact("split") or {}).items()},
        "topology": run.fact("topology"),
        **{f"sampling.{name}": value for name, value in run.fact("sampling", {}).items()},
    }


def privacy_facts(run: RunView) -> dict[str, Any]:
    """Return what was promised and by which noise."""
    names = ("unit", "adjacency", "where", "clip_norm", "noise_multiplier", "noise_std", "target_epsilon", "delta")
    source = run.fact("noise_source")
    return {
        **{name: run.fact(name) for name in names},
        "accountant": run.fact("accountant"),
        "noise": NOISE_SOURCES.get(source, source),
    }


def machine_facts(run: RunView) -> dict[str, Any]:
    """Return the machine and the versions of the run."""
    versions = run.fact("versions", {})
    return {
        "seed": None if run.fact("seed") is None else str(run.fact("seed")),
        "device": run.fact("device"),
        "threads": run.fact("threads"),
        "MKL_CBWR": run.fact("mkl_cbwr"),
        "vector instructions": run.fact("cpu_capability"),
        "paths of local training": run.fact("paths"),
        "training processes": run.fact("workers"),
        "sightline": run.fact("sightline_version"),
        **{name: version for name, version in versions.items() if name != "sightline"},
    }


def shown_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that are known, as text."""
    return [(name, setting_text(value)) for name, value in facts.items() if value is not None and value != {}]


def setting_text(value: Any) -> str:
    """Return a setting as text.

    >>> setting_text({"min": 0.5, "max": 1.25}), setting_text({"scheme": "poisson", "rate": 0.5})
    ('0.5 to 1.25', 'poisson, rate 0.5')
    >>> setting_text([1, 2]), setting_text(4810)
    ('1, 2', '4,810')
    """
    if isinstance(value, Mapping):
        if set(value) == {"min", "max"}:
            return f"{setting_text(value['min'])} to {setting_text(value['max'])}"
        parts = [
            setting_text(part) if name == "scheme" else f"{name} {setting_text(part)}" for name, part in value.items()
        ]
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(part) for part in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return format_count(value)
    return format_short(value) if isinstance(value, float) else str(value)


MOST_BARS = 60


@dataclass(frozen=True)
class UseSpread:
    """The distribution of how often one member is used: binomial, or a constant."""

    trials: int
    chance: float
    each: int = 1

    def at(self, level: float) -> int:
        """Return the quantile at a level."""
        return self.each * int(self._law.ppf(level))

    def chance_of(self, uses: int) -> float:
        """Return the probability that one member is drawn `uses` times."""
        return float(self._law.pmf(uses))

    @property
    def _law(self) -> Any:
        # Slow to import, and few pages need it.
        from scipy import stats

        return stats.binom(self.trials, self.chance)

    @property
    def mean(self) -> float:
        """Return the expected number of uses."""
        return self.each * self.trials * self.chance

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the number of uses."""
        return float(self.each * np.sqrt(self.trials * self.chance * (1 - self.chance)))

    def figures(self, members: int) -> tuple[str, ...]:
        """Return mean, standard deviation, central 98 %, medians of the least and most used of all members."""
        low, high = self.at(0.01), self.at(0.99)
        # The median of the minimum of n draws is their quantile at 1 - 2^(-1/n); expm1 keeps precision for large n.
        least, most = self.at(-np.expm1(np.log(0.5) / members)), self.at(np.exp(np.log(0.5) / members))
        whole = format_count(low) if low == high else f"{format_count(low)} to {format_count(high)}"
        return (
            format_short(self.mean, 4),
            format_number(self.deviation, 3),
            whole,
            format_count(least),
            format_count(most),
        )


def load_content(run: RunView) -> Content | None:
    """Return a table and a chart for clients and for examples; None if every member is always used."""
    loads = [_load_words(load) for load in run.fact("load", [])]
    return {"loads": loads} if loads else None


LOAD_SECTION = Section("load", "How often each is used", load_content)


def _load_words(load: Mapping[str, Any]) -> dict[str, Any]:
    members, steps, who = int(load["members"]), int(load["steps"]), str(load["who"])
    scheduled = load.get("rate") is None
    rate = load["uses"] * load["epochs"] * load["chance"] / steps if scheduled else float(load["rate"])
    spread = UseSpread(steps, rate)
    rows = [("Poisson sampling" + (" at the same rate" if scheduled else ""), spread.figures(members))]
    # Realised cohorts are secret: everything here follows from the settings alone.
    words = "When it was whose turn is shown nowhere: these numbers follow from the settings alone."
    if scheduled:
        own = UseSpread(int(load["epochs"]), float(load["chance"]), int(load["uses"]))
        rows.insert(0, ("This run's schedule", own.figures(members)))
        if load["chance"] == 1:
            words = (
                f"Every {who} is used exactly {format_count(own.mean)} times "
                f"in {format_count(steps)} {load['steps_are']}. {words}"
            )
    return {"who": who, "rows": rows, "words": words, "chart": _use_chart(spread, members, who, scheduled)}


def _use_chart(spread: UseSpread, members: int, who: str, scheduled: bool) -> Bars | None:
    """Return how many members are used how often under Poisson sampling, or None."""
    low, high = spread.at(1e-4), spread.at(1 - 1e-4)
    # Nothing to draw if every member is used equally often; too many bars are unreadable.
    if not low < high <= low + MOST_BARS:
        return None
    uses = list(range(low, high + 1))
    heights = [members * spread.chance_of(use) for use in uses]
    words = [
        f"{format_plural(use, 'use')}: {format_number(height, 3)} {who}s"
        for use, height in zip(uses, heights, strict=True)
    ]
    every = -(-len(uses) // 8)
    labels = [Tick(index + 0.5, str(uses[index])) for index in range(0, len(uses), every)]
    title = f"Expected number of {who}s by how often " + (
        "Poisson sampling at the same rate would use them" if scheduled else "they are used"
    )
    return bar_chart(f"load-{who}", title, heights, words, labels=labels, x="uses", y=f"{who}s")


SINGLE = 60
"""Up to this many clients get a bar each; more are counted by size."""


def clients_content(run: RunView) -> Content | None:
    """Return sizes as bars, with notes on the data and on rejected updates."""
    sizes = [int(size) for size in run.fact("sizes", [])]
    if not sizes and not run.fact("clients"):
        return None
    rejected = int(run.total("rejected"))
    return {
        "chart": sizes_chart(sizes) if sizes else None,
        "figures": clients_figures(run, sizes, rejected),
        "rejected": _rejected_note(rejected, sum(bool(row.get("rejected")) for row in run.rounds)),
        "notes": list(run.fact("data_notes", [])),
    }


CLIENTS_SECTION = Section("clients", "Clients", clients_content)


def clients_figures(run: RunView, sizes: Sequence[int], rejected: int) -> list[tuple[str, str]]:
    """Return the name and number of each fact."""
    facts = [("Clients", format_count(run.fact("clients", len(sizes))))]
    if sizes:
        middle = median(sizes)
        facts += [("Training examples", format_count(sum(sizes))), ("Smallest", format_count(min(sizes)))]
        facts += [("Median", format_count(middle) if middle == int(middle) else format_number(middle, 4))]
        facts += [("Largest", format_count(max(sizes)))]
    return [*facts, ("Rejected updates", format_count(rejected))]


def sizes_chart(sizes: Sequence[int]) -> Bars:
    """Return one bar per client, largest first, or a histogram of many clients."""
    return _single_bars(sizes) if len(sizes) <= SINGLE else _size_histogram(sizes)


def _single_bars(sizes: Sequence[int]) -> Bars:
    order = sorted(range(len(sizes)), key=lambda client: -sizes[client])
    words = [f"client-{client}: {format_plural(sizes[client], 'example')}" for client in order]
    heights = [float(sizes[client]) for client in order]
    title = "Training examples per client"
    return bar_chart("sizes", title, heights, words, labels=(), x="clients, largest first", y="examples")


def _size_histogram(sizes: Sequence[int]) -> Bars:
    low, high = min(sizes), max(sizes)
    width = int(nice_step((high - low + 1) / 20, whole=True))
    start = low // width * width
    heights = [0.0] * ((high - start) // width + 1)
    for size in sizes:
        heights[(size - start) // width] += 1
    bins = [(start + index * width, start + (index + 1) * width - 1) for index in range(len(heights))]
    words = [
        f"{a:,}–{b:,} examples: {format_plural(int(n), 'client')}" for (a, b), n in zip(bins, heights, strict=True)
    ]
    every = -(-len(bins) // 5)
    labels = [Tick(index, f"{bins[index][0]:,}") for index in range(0, len(bins), every)]
    title = "Clients by number of training examples"
    return bar_chart("sizes", title, heights, words, labels=labels, x="training examples", y="clients")


def _rejected_note(rejected: int, rounds: int) -> str:
    if not rejected:
        return ""
    came = (
        f"{format_plural(rejected, 'update')} in {format_plural(rounds, 'round')} {'was' if rejected == 1 else 'were'}"
    )
    return f"{came} not finite (NaN or infinite) and counted as zero."


MOST_DRAWN = 1500
"""More workers than this are drawn by class."""
POINTS = 40
"""Number of epochs at which the curve is computed."""


def draw_groups(answer: PairResult, path: Path) -> None:
    """Write a PNG with the heatmap and the curve."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        invalid("--plot", path, "figures need matplotlib", 'pip install "sightline[figures]"')
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    draw_heatmap(left, answer)
    draw_curve(right, answer)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        invalid("--plot", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def draw_heatmap(axes: "Axes", answer: PairResult, *, top: float | None = None) -> Any:
    """Draw epsilon of subject (row) against observer (column); white where the threat model has no pair."""
    by_worker = answer.workers <= MOST_DRAWN
    values = spread_over(answer.matrix, answer.pairs.class_of).copy() if by_worker else answer.matrix
    # A worker learns nothing new about itself: the diagonal stays white.
    if by_worker:
        np.fill_diagonal(values, np.nan)
    image = axes.imshow(values, cmap="magma", vmin=0.0, vmax=top, interpolation="nearest")
    what = "worker" if by_worker else "class of workers"
    axes.set(xlabel=f"observer ({what})", ylabel=f"subject ({what})", title=plot_title(answer))
    axes.figure.colorbar(image, ax=axes, label=f"epsilon at delta = {answer.query.delta:g}", shrink=0.9)
    return image


def plot_title(answer: PairResult) -> str:
    """Return one line that says what is drawn."""
    q = answer.query
    name = "DP-OGL+" if q.plus else "DP-OGL"
    structure = q.structure if not q.structure.endswith(".json") else Path(q.structure).stem
    return f"{name}, {structure}, M = {answer.groups}, S = {q.period}, T = {q.epochs}"


def draw_curve(axes: "Axes", answer: PairResult) -> None:
    """Draw the mean over workers of the worst observer's epsilon, with one standard deviation, per epoch."""
    epochs = sampled_epochs(answer.query.epochs)
    rows = [answer.at(int(epoch)).worst for epoch in epochs]
    mean, deviation = mean_and_deviation(rows)
    axes.plot(epochs, mean, color="#b5367a", label="mean over workers")
    axes.fill_between(epochs, mean - deviation, mean + deviation, color="#b5367a", alpha=0.25, label="± one sd")
    axes.plot(
        epochs, [float(np.nanmax(row, initial=0.0)) for row in rows], color="#51127c", lw=1, ls="--", label="largest"
    )
    axes.set(xlabel="epoch t", ylabel="epsilon of the worst observer", title=f"threat: {answer.query.threat}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def sampled_epochs(epochs: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return 1 .. T, thinned out."""
    return np.unique(np.linspace(1, epochs, min(POINTS, epochs)).round().astype(np.int64))


def mean_and_deviation(rows: list[Any]) -> tuple[Any, Any]:
    """Return mean and deviation over the workers that have an observer; 0 if none has."""
    held = [row[~np.isnan(row)] for row in rows]
    mean = np.array([some.mean() if len(some) else 0.0 for some in held])
    return mean, np.array([some.std() if len(some) else 0.0 for some in held])


MOST = 48
"""Up to this many distinct memberships, every cell names the paths by which releases got through."""
MAPPED = 200
"""More distinct memberships than this are not drawn."""


def groups_content(run: RunView) -> Content | None:
    """Return the heatmap of a run on overlapping groups; None for every other run."""
    # Other topologies have few kinds of observers: the matrix of the report covers them.
    if run.fact("topology") != "groups" or run.unit is Unit.NONE or not len(run.ledger):
        return None
    names = [client_name(n) for n in range(int(run.fact("clients", 0)))]
    number = len(group_alike(run.ledger, names))
    about: Content = {
        "classes": format_plural(number, "different membership"),
        "delta": format_short(run.delta) if run.delta else "",
        "who": run.who,
        "map": None,
    }
    if not number or number > MAPPED:
        return about
    pairs = ledger_pairs(run.ledger, names)
    epsilons = [[_pair_epsilon(run, pairs, n, i) for i in range(len(row))] for n, row in enumerate(pairs.compositions)]
    words = [write_parties(frozenset(some)) for some in pairs.classes]
    heat = draw_heat(epsilons, words, words)
    if number <= MOST:
        heat["data"] |= {"phrases": _pair_phrases(run, pairs, epsilons), "cells": list(range(number * number))}
    return about | {"map": heat}


GROUPS_SECTION = Section("groups", "Every pair of workers", groups_content)


def _pair_epsilon(run: RunView, pairs: LedgerPairs, subject: int, observer: int) -> float | None:
    composed = pairs.compositions[subject][observer]
    return None if composed is None else run.epsilon_of(frozenset(composed.items()))


def _pair_phrases(run: RunView, pairs: LedgerPairs, epsilons: Sequence[Sequence[float | None]]) -> list[str]:
    phrases = []
    # One search per observer class, shared by all subjects: members of a class see the same releases.
    hops = [next_hops(run.ledger, names[0]) for names in pairs.classes]
    for n, row in enumerate(epsilons):
        for i, value in enumerate(row):
            subject = next((name for name in pairs.classes[n] if name != pairs.classes[i][0]), "")
            ways = trace_routes(run.ledger, subject, hops[i]) if subject else []
            attack = pair_attack(run, frozenset((pairs.compositions[n][i] or {}).items()))
            phrases.append(f"{_pair_words(pairs.classes[n], pairs.classes[i], value, ways)} {attack}".rstrip())
    return phrases


def _pair_words(subjects: Sequence[str], observers: Sequence[str], epsilon: float | None, ways: Sequence[Route]) -> str:
    who, whom = write_parties(frozenset(observers)), write_parties(frozenset(subjects))
    if epsilon is None:
        return f"{whom}: nobody observes itself."
    if not epsilon:
        return f"Of {whom}, {who} learned nothing: no release got through."
    counted = "; ".join(
        f"{format_plural(way.releases, 'release')} of {way.source} up to round {way.last}"
        + (" seen directly" if len(way.path) == 1 else f" by way of {' → '.join(way.path)}")
        for way in ways
    )
    return f"Of {whom}, seen by {who}: epsilon {format_upper(epsilon)}. {counted}."
