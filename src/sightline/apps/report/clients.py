"""The report's sections about clients: how often each is used, how much data each has, how good its model is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from sightline.apps.report.chart import Bars, Tick, bar_chart, nice_step
from sightline.apps.report.numbers import format_count, format_number, format_plural, format_short
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Section

MOST_BARS = 60


@dataclass(frozen=True)
class UseSpread:
    """The law of how often one member is used: binomial, or a constant."""

    trials: int
    chance: float
    each: int = 1

    def at(self, level: float) -> int:
        """The quantile at a level."""
        return self.each * int(self._law.ppf(level))

    def chance_of(self, uses: int) -> float:
        """How likely one member is drawn so many times."""
        return float(self._law.pmf(uses))

    @property
    def _law(self) -> Any:
        from scipy import stats  # slow to load, and few pages need it

        return stats.binom(self.trials, self.chance)

    @property
    def mean(self) -> float:
        """The expected number of uses."""
        return self.each * self.trials * self.chance

    @property
    def deviation(self) -> float:
        """The standard deviation of the number of uses."""
        return float(self.each * np.sqrt(self.trials * self.chance * (1 - self.chance)))

    def figures(self, members: int) -> tuple[str, ...]:
        """Mean, standard deviation, where 98% lie, the median of the least and of the most used of all members."""
        low, high = self.at(0.01), self.at(0.99)
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
    """A table and a picture for clients and for examples; None where everybody is always used."""
    loads = [_load_words(load) for load in run.fact("load", [])]
    return {"loads": loads} if loads else None


LOAD_SECTION = Section("load", "How often each is used", load_content)


def _load_words(load: Mapping[str, Any]) -> dict[str, Any]:
    members, steps, who = int(load["members"]), int(load["steps"]), str(load["who"])
    scheduled = load.get("rate") is None
    rate = load["uses"] * load["epochs"] * load["chance"] / steps if scheduled else float(load["rate"])
    spread = UseSpread(steps, rate)
    rows = [("Poisson sampling" + (" at the same rate" if scheduled else ""), spread.figures(members))]
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
    """How many members are used how often under Poisson sampling; None where there is nothing to draw."""
    low, high = spread.at(1e-4), spread.at(1 - 1e-4)
    if not low < high <= low + MOST_BARS:
        return None
    uses = list(range(low, high + 1))
    heights = [members * spread.chance_of(use) for use in uses]
    words = [
        f"{format_plural(use, 'use')}: {format_number(height, 3)} {who}s"
        for use, height in zip(uses, heights, strict=True)
    ]
    every = -(-len(uses) // 8)
    labels = [Tick(place + 0.5, str(uses[place])) for place in range(0, len(uses), every)]
    title = f"Expected number of {who}s by how often " + (
        "Poisson sampling at the same rate would use them" if scheduled else "they are used"
    )
    return bar_chart(f"load-{who}", title, heights, words, labels=labels, x="uses", y=f"{who}s")


SINGLE = 60
"""Up to so many clients get a bar each; more are counted by size."""


def clients_content(run: RunView) -> Content | None:
    """Sizes as bars, with notes on the data and on rejected updates."""
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
    """Name and number of each fact."""
    found = [("Clients", format_count(run.fact("clients", len(sizes))))]
    if sizes:
        middle = median(sizes)
        found += [("Training examples", format_count(sum(sizes))), ("Smallest", format_count(min(sizes)))]
        found += [("Median", format_count(middle) if middle == int(middle) else format_number(middle, 4))]
        found += [("Largest", format_count(max(sizes)))]
    return [*found, ("Rejected updates", format_count(rejected))]


def sizes_chart(sizes: Sequence[int]) -> Bars:
    """One bar a client, largest first; a histogram when they are many."""
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
    bins = [(start + place * width, start + (place + 1) * width - 1) for place in range(len(heights))]
    words = [
        f"{a:,}–{b:,} examples: {format_plural(int(n), 'client')}" for (a, b), n in zip(bins, heights, strict=True)
    ]
    every = -(-len(bins) // 5)
    labels = [Tick(place, f"{bins[place][0]:,}") for place in range(0, len(bins), every)]
    title = "Clients by number of training examples"
    return bar_chart("sizes", title, heights, words, labels=labels, x="training examples", y="clients")


def _rejected_note(rejected: int, rounds: int) -> str:
    if not rejected:
        return ""
    came = (
        f"{format_plural(rejected, 'update')} in {format_plural(rounds, 'round')} {'was' if rejected == 1 else 'were'}"
    )
    return f"{came} not finite (NaN or infinite) and counted as zero."
