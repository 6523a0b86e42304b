"""The jobs of a sweep: one experiment and one folder for every combination of `--over` values and seeds."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path

from sightline.config import Experiment, read
from sightline.engine import RunRecord, read_settings
from sightline.engine.record import DATABASE
from sightline.errors import InvalidInput, invalid

MOST = 10_000
"""Limit of runs per sweep; more are taken for a mistake."""

OPEN, CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep; without an experiment, the mistake in its settings."""

    words: tuple[str, ...]
    directory: Path
    experiment: Experiment | None
    mistake: str = ""

    @property
    def name(self) -> str:
        """Return its settings on one line."""
        return ", ".join(self.words) or "as it is"


def list_jobs(file: Path, *, over: Sequence[str], seeds: int | None, given: Sequence[str], out: Path) -> list[SweepJob]:
    """Return a job for every combination of the values in `over`, each with `seeds` seeds from the file's seed upwards.

    All jobs share the `given` settings. A combination that the file's rules forbid becomes a job with its mistake; a
    mistake that all jobs share is raised.
    """
    base = read(file, given)
    grid = [split_choices(word) for word in over]
    if seeds is not None:
        if seeds < 1:
            invalid("--seeds", seeds, "at least one seed")
        if any(word.startswith("seed=") for words in grid for word in words):
            invalid("--seeds", seeds, "--over seed=... is given too", "keep one of the two")
        # Combinations share their seeds on purpose: differences between rows are then less due to chance.
        grid.append([f"seed={base.seed + number}" for number in range(seeds)])
    count = 1
    for words in grid:
        count *= len(words)
    if count > MOST:
        invalid("--over", f"{count:,} runs", f"a sweep has at most {MOST:,}", "sweep over less")
    return [_make_job(file, given, words, out) for words in product(*grid)]


def _make_job(file: Path, given: Sequence[str], words: tuple[str, ...], out: Path) -> SweepJob:
    directory = out / folder_name(words)
    try:
        return SweepJob(words, directory, read(file, [*given, *words]))
    except InvalidInput as error:
        return SweepJob(words, directory, None, str(error))


def split_choices(word: str) -> list[str]:
    """Split a word with several values into words with one each; commas inside brackets and quotes belong to a value.

    >>> split_choices("model.hidden=[64],[64,32]")
    ['model.hidden=[64]', 'model.hidden=[64,32]']
    """
    key, equals, text = word.partition("=")
    values = [value.strip() for value in _split_values(text)]
    if not (key.strip() and equals and all(values)):
        invalid("--over", word, "is not key=value,value", "e.g. --over algorithm.name=fedavg,fedprox")
    if len(set(values)) < len(values):
        invalid("--over", word, "names a value twice")
    return [f"{key.strip()}={value}" for value in values]


def _split_values(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in OPEN + CLOSE:
            depth += 1 if letter in OPEN else -1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def folder_name(words: Sequence[str]) -> str:
    """Return a folder name that states the settings, with a digest if characters had to be replaced or cut.

    >>> folder_name(["algorithm.name=fedavg", "seed=0"]), folder_name([])
    ('algorithm.name=fedavg,seed=0', 'run')
    """
    full = ",".join(words) or "run"
    plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", full)[:120].lstrip(".")
    return plain if plain == full else f"{plain}-{hashlib.sha256(full.encode(errors='surrogatepass')).hexdigest()[:8]}"


class JobStatus(StrEnum):
    """What is to be done with a job."""

    START = "start"
    RESUME = "resume"
    DONE = "done"
    TAKEN = "taken"
    """Its folder holds a run of other settings."""


def job_status(directory: Path, experiment: Experiment) -> JobStatus:
    """Return how far the run in a folder is; one that was killed before its first release starts again."""
    # The folder itself is the only state of a sweep: there is no list of jobs that could disagree with the runs.
    if not (directory / DATABASE).is_file():
        return JobStatus.START
    with RunRecord.open(directory) as record:
        status, begun = record.facts.get("status"), record.pages.count_releases() > 0
    if not begun:
        return JobStatus.START
    if read_settings(directory) != experiment:
        return JobStatus.TAKEN
    return JobStatus.DONE if status in ("finished", "stopped") else JobStatus.RESUME
