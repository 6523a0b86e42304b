"""docs/images/scoreboard.svg: published and ours at the same epsilon, and each system beside itself without privacy."""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.scoreboard.rows import CLIENTS, CNN, LINEAR, SYSTEMS, Row
from benchmarks.scoreboard.runs import is_done, list_jobs

Results = dict[tuple[str, str, int | None], dict[str, Any]]


def draw_picture(results: Results, path: Path) -> None:
    """One line a row: a ring for what it is compared with, a point with its deviation over seeds for ours."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "scoreboard", "svg.fonttype": "none"}
    from matplotlib import pyplot

    canvas, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 3.4))
    published = [(row, row.goal) for row in (*LINEAR, *CNN, *CLIENTS)]
    _draw_rows(left, [(row.name, other, _accuracies(row, "run", results)) for row, other in published])
    left.set(title="theirs (ring) and ours, same epsilon", xlabel="test accuracy in percent")
    systems = [(row.name, _accuracies(row, "open", results), _accuracies(row, "run", results)) for row in SYSTEMS]
    _draw_rows(right, [(name, mean(open_) if open_ else None, ours) for name, open_, ours in systems])
    right.set(title="without privacy (ring) and at epsilon 8", xlabel="test accuracy in percent")
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


def _accuracies(row: Row, kind: str, results: Results) -> list[float]:
    jobs = [job for job in list_jobs([row], everything=True) if job.kind == kind and is_done(job, results)]
    return [100 * results[job.key]["test_accuracy"] for job in jobs]


def _draw_rows(axis: Any, rows: list[tuple[str, float | None, list[float]]]) -> None:
    shown = [row for row in rows if row[2]]
    for place, (_, other, ours) in enumerate(reversed(shown)):
        if other is not None:
            axis.plot([other, mean(ours)], [place, place], color="0.8", lw=1, zorder=0)
            axis.plot(other, place, "o", mfc="white", mec="black", ms=7)
        axis.errorbar(mean(ours), place, xerr=stdev(ours) if len(ours) > 1 else 0, fmt="o", color="C0", ms=5, capsize=2)
    axis.set_yticks(range(len(shown)), [name for name, _, _ in reversed(shown)])
    axis.grid(axis="x", color="0.9")
