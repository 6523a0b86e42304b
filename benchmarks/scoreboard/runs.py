"""What the board is made of: runs, audits and prices, each kept as a line of `results.jsonl` when it is done."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import sightline
from benchmarks.scoreboard.rows import HERE, Noise, Row
from sightline.accounting import epsilon
from sightline.apps.audit import audit
from sightline.config import read
from sightline.errors import SightlineError
from sightline.events import Allocation, Event, Gaussian, Poisson
from sightline.training.machine import describe_processor

RESULTS = HERE / "results.jsonl"
SCRATCH = HERE.parents[1] / "runs" / "scoreboard"
DELTA = 1e-5
RUNS, CANARIES = 4, 1000
"""Of an audit: runs with canaries, canaries at the most."""
METRICS = ("test_accuracy", "client_accuracy_mean", "minority_accuracy", "epsilon", "noise_multiplier", "rounds_done")


@dataclass(frozen=True)
class Job:
    """One line that is to be made: a run of a row with a seed, with privacy or without ("open"), its audit, or a price.

    The price is that of the published noise.
    """

    row: Row
    kind: str
    seed: int | None = None

    @property
    def key(self) -> tuple[str, str, int | None]:
        """By which its line is found."""
        return self.row.name, self.kind, self.seed

    @property
    def title(self) -> str:
        """Return the job's name for progress messages."""
        return " ".join([self.row.name, self.kind, *([] if self.seed is None else [f"seed {self.seed}"])])

    @property
    def digest(self) -> str:
        """Of what the line is about; another file, published noise or attack is another line."""
        if self.kind == "price":
            return repr(self.row.noise)
        if self.kind == "open":
            return f"{self.row.digest} {' '.join(self.row.open)}"
        if self.kind == "audit":
            attack = repr((self.row.audit, self.row.rounds, self.row.trials, RUNS, CANARIES))
            return f"{self.row.digest} {hashlib.blake2b(attack.encode(), digest_size=4).hexdigest()}"
        return self.row.digest


def list_jobs(rows: Iterable[Row], *, quick: bool = False, everything: bool = False) -> list[Job]:
    """What a board of these rows needs; quick: one seed of the quick ones. Prices first, they take seconds."""
    chosen = list(rows)
    jobs = [Job(row, "price") for row in chosen if row.noise is not None]
    for row in chosen:
        if quick and not row.quick:
            continue
        if everything or not row.away:
            seeds = row.seeds[:1] if quick else row.seeds
            jobs += [Job(row, kind, seed) for kind in ("run", *(["open"] if row.open else [])) for seed in seeds]
        jobs += [Job(row, "audit")] if row.audited else []
    return jobs


def read_results(file: Path = RESULTS) -> dict[tuple[str, str, int | None], dict[str, Any]]:
    """The lines that are kept, the last of each kind."""
    if not file.is_file():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    return {(line["row"], line["kind"], line.get("seed")): line for line in lines}


def is_done(job: Job, results: dict[tuple[str, str, int | None], dict[str, Any]]) -> bool:
    """Whether the line is there and about the file as it is now."""
    return job.key in results and results[job.key]["digest"] == job.digest


def do_job(job: Job, file: Path = RESULTS) -> dict[str, Any]:
    """Compute the line and append it, so that stopping between two jobs loses nothing."""
    began = time.process_time()
    found = {"price": price_noise, "run": run_row, "open": run_row, "audit": audit_row}[job.kind](job)
    seconds = {"processor_seconds": round(time.process_time() - began, 1), "torch": version("torch")}
    seconds |= {"processor": describe_processor()}
    line = {"row": job.row.name, "kind": job.kind, "seed": job.seed, "digest": job.digest} | seconds | found
    with file.open("a", encoding="utf-8") as kept:
        kept.write(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
    return line


def attempt_job(job: Job, file: Path | None = None) -> str | None:
    """Run a job; return the reason if it fails. Not in `__main__`, which a spawned process cannot import from."""
    torch.set_num_threads(1)  # as the page says; jobs are done side by side
    try:
        do_job(job) if file is None else do_job(job, file)
    except SightlineError as error:
        return f"{job.title}: {error}"
    return None


def run_row(job: Job) -> dict[str, Any]:
    """Run the file with the seed. An interrupted run continues; the directory is removed at the end."""
    out = SCRATCH / f"{job.row.name}-{job.kind}-{job.row.digest}-{job.seed}"
    resumed = (out / "run.sqlite").is_file()
    words = job.row.open if job.kind == "open" else ()
    found = sightline.run(job.row.file, seed=job.seed, out=out, resume=resumed, progress=False, overrides=words).summary
    line = {name: found[name] for name in METRICS if found.get(name) is not None}
    shutil.rmtree(out)
    told = {} if job.kind == "open" else {"observers": found["observers"], "delta": found["delta"]}
    return line | told | ({"resumed": True} if resumed else {})


def audit_row(job: Job) -> dict[str, Any]:
    """Attacks on the row's mechanism with its own calibrated noise: what they say epsilon is at least."""
    experiment = read(job.row.file, job.row.audit)
    rounds = job.row.rounds or experiment.rounds
    found = audit(experiment, trials=job.row.trials, canaries=CANARIES, runs=RUNS, rounds=rounds)
    told = found.told()
    kept = ("epsilon_lower", "epsilon_upper", "confidence", "refuted", "delta", "rounds", "observer", "subject")
    return {name: _plain(told[name]) for name in kept}


def price_noise(job: Job) -> dict[str, Any]:
    """Their noise by our accountant, as if their batches were Poisson's, or balanced."""
    noise = job.row.noise
    if noise is None:
        return {}
    return {name: round_up(epsilon(events, DELTA)) for name, events in published_events(noise).items()}


def published_events(noise: Noise) -> dict[str, dict[Event, int]]:
    """Their releases: what was paid for statistics of the features, and all steps of training."""
    step = Gaussian(noise.multiplier)
    before: dict[Event, int] = {} if noise.statistics is None else {Gaussian(noise.statistics): 2}
    return {
        "poisson": before | {Poisson(noise.batch / noise.examples, step): noise.steps},
        "balanced": before | {Allocation(noise.steps, noise.epochs, step): 1},
    }


def round_up(value: float, digits: int = 3) -> float:
    """An upper bound stays one when it is written down."""
    return math.ceil(value * 10**digits) / 10**digits


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
