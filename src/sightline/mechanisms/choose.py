"""Which mechanism an experiment file asks for: by the unit it protects and by where the noise is added."""

from collections.abc import Callable, Sequence

from sightline.config import Experiment
from sightline.errors import refuse
from sightline.mechanisms.central import CentralMean
from sightline.mechanisms.local import LocalMean
from sightline.mechanisms.mechanism import Mechanism
from sightline.mechanisms.open import Open
from sightline.mechanisms.samplewise import SampleAtClient, SampleAtServer, steps_for
from sightline.mechanisms.worker import PrivateSteps

UNIT_NOISE = 1.0
"""The noise of a mechanism that has not been calibrated yet."""


def _plans(experiment: Experiment, sizes: Sequence[int]) -> dict[int, PrivateSteps]:
    local = experiment.local
    batch_size = None if experiment.samples_scheme == "full" else local.batch_size
    clip_norm = experiment.privacy.clip_norm
    return {
        client: steps_for(size, batch_size=batch_size, epochs=local.epochs, steps=local.steps, clip_norm=clip_norm)
        for client, size in enumerate(sizes)
    }


MECHANISMS: dict[tuple[str, str], Callable[[Experiment, Sequence[int]], Mechanism]] = {
    ("client", "server"): lambda experiment, sizes: CentralMean(experiment.privacy.clip_norm, UNIT_NOISE),
    ("client", "client"): lambda experiment, sizes: LocalMean(experiment.privacy.clip_norm, UNIT_NOISE),
    ("sample", "client"): lambda experiment, sizes: SampleAtClient(_plans(experiment, sizes)),
    ("sample", "server"): lambda experiment, sizes: SampleAtServer(
        _plans(experiment, sizes), experiment.local.learning_rate
    ),
    ("none", "server"): lambda experiment, sizes: Open(),
    ("none", "client"): lambda experiment, sizes: Open(),
}


def build_mechanism(experiment: Experiment, *, sizes: Sequence[int]) -> Mechanism:
    """The mechanism of an experiment, with unit noise."""
    privacy = experiment.privacy
    if privacy.mechanism != "gaussian":
        refuse("privacy.mechanism", privacy.mechanism, "not in this version", 'use mechanism = "gaussian"')
    if privacy.place == "edge":
        refuse("privacy.where", "edge", "a star has no edge servers", 'use where = "server" or "client"')
    if experiment.samples_scheme == "balanced":
        law = "balanced batches are not in this version"
        refuse("sampling.samples.scheme", "balanced", law, 'use scheme = "poisson"')
    return MECHANISMS[privacy.unit, privacy.place](experiment, sizes)
