"""The Python door: what `sightline run` does, in one call."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline import engine
from sightline.config import Experiment, read
from sightline.engine import RunRecord, finite
from sightline.errors import invalid
from sightline.ledger import Ledger
from sightline.report import write_report
from sightline.runtimes import Simulator


@dataclass(frozen=True)
class Run:
    """A finished (or budget-stopped) run: its numbers, its ledger, its report."""

    directory: Path

    @property
    def record(self) -> RunRecord:
        """The database of the run."""
        return RunRecord.open(self.directory)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The metrics of every round."""
        return self.record.rounds()

    @property
    def ledger(self) -> Ledger:
        """Every release, and the epsilon of any subject against any observer."""
        return self.record.ledger()

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.directory / "report.html"

    @property
    def summary(self) -> dict[str, Any]:
        """What `sightline run --json` prints."""
        return summarised(self.directory)

    @property
    def test_accuracy(self) -> float:
        """Accuracy of the last evaluated model on the test set; NaN before the first."""
        return _number(self.summary["test_accuracy"], math.nan)

    @property
    def epsilon(self) -> float:
        """The worst epsilon over untrusted observers; infinite when nothing is promised."""
        return _number(self.summary["epsilon"], math.inf)


def run(
    file: Path | str | Experiment,
    *,
    overrides: Iterable[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    seed: int | None = None,
    on_round: Callable[[Mapping[str, Any]], None] = lambda row: None,
) -> Run:
    """Run an experiment file (or an `Experiment`) and return its results.

    `overrides` are the words of `--set`, such as `"privacy.epsilon=4"`. Everything that can be wrong with the input
    raises `InvalidInput` before a run directory exists.
    """
    words = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if isinstance(file, Experiment) and words:
        invalid("overrides", words, "an Experiment is final", "apply them when you read the file")
    experiment = file if isinstance(file, Experiment) else read(file, words)
    place = None if out is None else Path(out)
    directory = engine.directory_to_resume(experiment, place) if resume else None
    setting = engine.calibrated(engine.build(experiment))
    directory = directory or engine.new_directory(experiment, place)
    engine.run(setting, directory, Simulator, resume=resume, on_round=on_round)
    write_report(directory)
    return Run(directory)


def summarised(directory: Path) -> dict[str, Any]:
    """The numbers of a run, as plain values; None stands for infinite or unknown."""
    record = RunRecord.open(directory)
    try:
        facts, rounds = record.facts, record.rounds()
        releases = len(record.store.read())
    finally:
        record.close()
    last: dict[str, Any] = next((row for row in reversed(rounds) if row.get("test_accuracy") is not None), {})
    observers = rounds[-1]["epsilon"] if rounds else dict.fromkeys(facts.get("observers", {}), 0.0)
    epsilons = [math.inf if value is None else value for value in observers.values()]
    summary: dict[str, Any] = finite(
        {
            "run_dir": str(directory),
            "report": str(directory / "report.html"),
            "status": facts.get("status"),
            "status_reason": facts.get("status_reason"),
            "rounds_done": len(rounds),
            "test_accuracy": last.get("test_accuracy"),
            "test_loss": last.get("test_loss"),
            "client_accuracy_mean": last.get("client_accuracy_mean"),
            "client_accuracy_worst": last.get("client_accuracy_worst"),
            "epsilon": max(epsilons, default=math.inf),
            "delta": facts.get("delta"),
            "unit": facts.get("unit"),
            "adjacency": facts.get("adjacency"),
            "observers": observers,
            "trusted": facts.get("trusted"),
            "noise_multiplier": facts.get("noise_multiplier"),
            "noise_source": facts.get("noise_source"),
            "releases": releases,
            "rejected_updates": int(sum(row.get("rejected") or 0 for row in rounds)),
            "seconds": facts.get("seconds"),
            "uplink_floats": sum(row.get("uplink_floats") or 0.0 for row in rounds),
        }
    )
    return summary


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
