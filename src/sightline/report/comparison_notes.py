"""What a table of runs does not say by itself, and what choosing from it costs."""

from collections import Counter

from sightline.events import Unit
from sightline.report.comparison import Comparison
from sightline.report.numbers import format_count, format_plural
from sightline.report.run import RunView

TUNING = (
    "Choosing among these runs by how well they did looks at private data once more, and no epsilon here counts "
    "that choice. Each epsilon is for publishing that run alone."
)


def comparison_notes(comparison: Comparison) -> list[str]:
    """Sentences that belong under the table."""
    runs = list(comparison.runs)
    private = [run for run in runs if run.unit is not Unit.NONE]
    found = [_unfinished_note(run) for run in runs if run.fact("status") != "finished"]
    found += [_unlike_note(private), TUNING if len(private) > 1 else "", _shared_noise(private)]
    return [sentence for sentence in found if sentence]


def _unfinished_note(run: RunView) -> str:
    status, planned = run.fact("status", "unknown"), run.fact("rounds_planned")
    how_far = (
        f"{format_count(run.rounds_done)} of {format_count(planned)} rounds"
        if planned
        else format_plural(run.rounds_done, "round")
    )
    return f"{run.directory.name} is not finished ({status}, {how_far}): its numbers are those of its last round."


def _unlike_note(private: list[RunView]) -> str:
    """Epsilons for different changes, or at different deltas, are different promises."""
    promises = {(run.unit, run.fact("adjacency"), run.delta) for run in private}
    if len(promises) < 2:
        return ""
    return "The epsilons are not one scale: the runs differ in unit, adjacency or delta."


def _shared_noise(private: list[RunView]) -> str:
    """Streams depend on the seed alone, so two simulations of one seed add the same noise to different sums."""
    simulated = Counter(run.fact("seed") for run in private if run.fact("noise_source", "seed") == "seed")
    if max(simulated.values(), default=0) < 2:
        return ""
    return (
        "Simulated runs of one seed share their noise: published together, the noise of one cancels the other's. "
        "Publish at most one of them, and train on real people's data with noise_source = os."
    )
