"""The clients: how many examples each holds, and whose updates had to be left out."""

from collections.abc import Sequence
from statistics import median

from sightline.report.bars import Bars, bar_chart
from sightline.report.chart import Tick
from sightline.report.numbers import format_count, format_number, format_plural
from sightline.report.run import RunView
from sightline.report.scale import nice_step
from sightline.report.section import Content, Section

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
