"""The question that `sightline groups` asks, and its answer: epsilon of every pair of workers of a planned run."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sightline.accounting import Accountant, Claim
from sightline.accounting.schemes import CLIP_NORM
from sightline.errors import did_you_mean, invalid, refuse
from sightline.events import Event, Gaussian, Poisson
from sightline.ledger.bottleneck import Bottleneck, tighten_matrix
from sightline.ledger.group_pairs import (
    Costing,
    Floats,
    GroupPlan,
    Ints,
    Pairs,
    Rhythm,
    Threat,
    epsilon_matrix,
    planned_pairs,
    worst_by_class,
)
from sightline.topology import STRUCTURES, Schedule, constant_schedule, read_schedule

FULL = 4096
"""Up to so many workers a matrix is written pair by pair, above by class."""
MOST = 10**7
"""Workers, groups and epochs of a question."""
MOST_CLASSES = 4096
"""More different memberships than these are not written or drawn as a matrix."""


@dataclass(frozen=True)
class Question:
    """Settings as the command line names them."""

    structure: str
    epochs: int
    noise: float
    delta: float
    workers: int | None = None
    count: int | None = None
    period: int = 1
    rate: float = 1.0
    plus: bool = False
    threat: str = "everyone"
    accountant: str = "pld"
    bottleneck: bool = False

    @cached_property
    def schedule(self) -> Schedule:
        """Who is in which group."""
        if self.structure in STRUCTURES:
            if self.workers is None:
                invalid("--workers", "missing", f"{self.structure} needs to know how many workers there are")
            if self.count is None and self.structure != "global":
                invalid("--groups", "missing", f"{self.structure} needs to know how many groups there are")
            return constant_schedule(self.workers, STRUCTURES[self.structure](self.workers, self.count or 1))
        if not self.structure.endswith(".json"):
            way_out = did_you_mean(self.structure, [*STRUCTURES]) + ", or give a .json file"
            invalid("--structure", self.structure, "no such structure", way_out)
        found = read_schedule(self.structure)
        for name, given, held in (("workers", self.workers, found.workers), ("groups", self.count, found.count)):
            if given is not None and given != held:
                invalid(f"--{name}", given, f"the membership file has {held} {name}", "leave it out")
        return found

    def planned_run(self) -> GroupPlan:
        """The run that the question is about."""
        schedule = self.schedule
        rates = schedule.rates or (self.rate,) * schedule.count
        factors = schedule.noise_factors or (1.0,) * schedule.count
        events = tuple(sampled_event(rate, self.noise * factor) for rate, factor in zip(rates, factors, strict=True))
        return GroupPlan(schedule, self.period, self.epochs, events, Rhythm.INTERVAL if self.plus else Rhythm.EPOCH)

    @property
    def costing(self) -> Costing:
        """How counts become epsilon."""
        return Costing(self.delta, Accountant(self.accountant))


def sampled_event(rate: float, noise: float) -> Event:
    """One release of a group."""
    return Gaussian(noise) if rate == 1 else Poisson(rate, Gaussian(noise))


AGAINST = {"everyone": "every other worker", "out-of-group": "workers outside one's groups"}


@dataclass(frozen=True, eq=False)
class Answer:
    """Epsilon of all pairs, by class; matrices are made when they are asked for."""

    question: Question
    pairs: Pairs

    @property
    def claim(self) -> Claim:
        """For whom the epsilons hold."""
        return Claim(AGAINST[self.question.threat], "add_remove", CLIP_NORM)

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.pairs.plan.schedule.workers

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.pairs.plan.schedule.count

    @cached_property
    def flow(self) -> tuple[Floats, Ints]:
        """(classes, classes): epsilon and releases by the flow count."""
        if len(self.pairs) > MOST_CLASSES:
            law = f"a matrix of {len(self.pairs)} different memberships is too large"
            refuse("--structure", self.question.structure, law, "leave out --out, --plot and --bottleneck")
        return epsilon_matrix(self.pairs, Threat(self.question.threat), self.question.costing)

    @cached_property
    def matrix(self) -> Floats:
        """(classes, classes): epsilon, NaN where the threat model says nothing."""
        epsilon, releases = self.flow
        return (
            tighten_matrix(self.pairs, epsilon, releases, self.question.costing)
            if self.question.bottleneck
            else epsilon
        )

    @cached_property
    def worst(self) -> Floats:
        """Per worker the epsilon of its worst observer; NaN where there is none."""
        if not self.question.bottleneck:
            by_class = worst_by_class(self.pairs, Threat(self.question.threat), self.question.costing)
        else:
            defined = ~np.isnan(self.matrix)
            by_class = np.where(defined.any(1), np.where(defined, self.matrix, -np.inf).max(1), np.nan)
        return np.asarray(by_class[self.pairs.class_of])

    @property
    def mean(self) -> float:
        """Mean over the workers that have an observer."""
        found = self.worst[~np.isnan(self.worst)]
        return float(found.mean()) if len(found) else math.nan

    @property
    def largest(self) -> float:
        """The worst pair of all."""
        found = self.worst[~np.isnan(self.worst)]
        return float(found.max()) if len(found) else math.nan

    @property
    def releases_max(self) -> int:
        """The largest number of releases that counts between two workers."""
        threat = Threat(self.question.threat)
        return max(
            int(
                np.where(self.pairs.allowed_pairs(threat, rows), self.pairs.release_counts(rows).sum(0), 0).max(
                    initial=0
                )
            )
            for rows in self.pairs.subject_chunks()
        )

    @property
    def tightened(self) -> int:
        """Pairs of workers for which the bottleneck bound is below the flow count."""
        less = self.matrix < self.flow[0] * (1 - 1e-9)
        sizes = self.pairs.sizes
        ordered = sizes[:, None] * sizes[None, :] - np.diag(sizes)
        return int((ordered * less).sum())

    def at(self, epochs: int) -> "Answer":
        """The same question for another number of epochs."""
        return answer_question(replace(self.question, epochs=epochs))


def answer_question(question: Question) -> Answer:
    """The answer to a question; everything wrong with it is said here."""
    if not (question.noise > 0 and math.isfinite(question.noise)):
        invalid("--noise", question.noise, "a noise multiplier is positive and finite")
    for name, value in (("workers", question.workers), ("groups", question.count), ("period", question.period),
                        ("epochs", question.epochs)):  # fmt: skip
        if value is not None and value > MOST:
            invalid(f"--{name}", value, f"at most {MOST:.0e} are worked out")
    if not 0 < question.rate <= 1:
        invalid("--rate", question.rate, "a probability lies in (0, 1]")
    if not 0 < question.delta < 1:
        invalid("--delta", question.delta, "delta lies in (0, 1)", "e.g. 1e-5")
    answer = Answer(question, planned_pairs(question.planned_run()))
    if question.bottleneck:
        Bottleneck(answer.pairs)
    return answer


def spread_over(matrix: Any, class_of: Ints) -> Any:
    """A matrix by class as one by worker."""
    return matrix[np.ix_(class_of, class_of)]


def save_npz(answer: Answer, path: Path) -> None:
    """Write `epsilon` and `releases` (row = subject, column = observer); by class above `FULL` workers.

    By class: `epsilon_by_class`, `releases_by_class`, and `class_of` says each worker's class.
    """
    if path.suffix != ".npz":
        invalid("--out", path, "the matrix is written as .npz", "give a name that ends in .npz")
    of = answer.pairs.class_of
    releases = answer.flow[1]
    arrays: dict[str, Floats | Ints] = {"worst": answer.worst, "class_of": of}
    if answer.workers <= FULL:
        epsilon, counts = spread_over(answer.matrix, of).copy(), spread_over(releases, of).copy()
        np.fill_diagonal(epsilon, np.nan)
        np.fill_diagonal(counts, 0)
        arrays |= {"epsilon": epsilon, "releases": counts}
    else:
        arrays |= {"epsilon_by_class": answer.matrix, "releases_by_class": releases}
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        invalid("--out", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")
