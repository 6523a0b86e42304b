"""How much local work a released mean is the mean of: public, because sizes and settings are."""

import math
from collections.abc import Sequence

from sightline.algorithms.contract import WorkStats
from sightline.config import Local
from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import Cohort, CohortSampler, LocalSchedule, effective_steps


def effort_of(
    setting: BuiltExperiment, cohort: Cohort, pace: LocalSchedule, samplers: Sequence[CohortSampler]
) -> WorkStats:
    """Learning rate, effective steps and share of the clients behind a mean update.

    Guarantees: with unit `client` the cohort is not looked at, because it may be a secret: plain means over everybody
    and the expected share. Otherwise means over the cohort by data size, as the mechanisms weigh.
    """
    experiment, sizes, local = setting.experiment, setting.federation.sizes.tolist(), setting.experiment.local
    full = experiment.samples_scheme == "full"
    if pace.steps is not None:
        local = local.model_copy(update={"steps": pace.steps, "epochs": None})
    most = max(whole_steps(size, local, full=full) for size in sizes)
    if experiment.privacy.unit == "client":
        weights = dict.fromkeys(setting.clients, 1.0)
        share = math.fsum(s.expected for s in samplers) / sum(s.population for s in samplers)
    else:
        weights = {member: float(sizes[member]) for member in cohort.members}
        share = math.fsum(weights.values()) / math.fsum(sizes)
    steps = {n: expected_steps(sizes[n], local, full=full) for n in weights}
    mean = math.fsum(weights[n] * steps[n] for n in weights) / math.fsum(weights.values()) if weights else 0.0
    return WorkStats(pace.learning_rate or local.learning_rate, mean, most, share)


def whole_steps(size: int, local: Local, *, full: bool, epochs: int | None = None) -> float:
    """Effective steps of a client of that size that finishes its epochs."""
    if local.steps is not None:
        return effective_steps(local.steps, local.momentum)
    per_epoch = 1 if full else math.ceil(size / local.batch_size)
    return effective_steps((epochs or local.epochs or 1) * per_epoch, local.momentum)


def expected_steps(size: int, local: Local, *, full: bool) -> float:
    """The same; with stragglers the mean over how many epochs the client manages."""
    whole = whole_steps(size, local, full=full)
    if not local.stragglers or local.epochs is None or local.epochs < 2:
        return whole
    some = [whole_steps(size, local, full=full, epochs=done) for done in range(1, local.epochs)]
    return (1 - local.stragglers) * whole + local.stragglers * math.fsum(some) / len(some)
