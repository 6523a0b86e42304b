"""Ways to break a mechanism: each is a plausible mistake, put in place by a monkeypatch."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import torch

from sightline.mechanisms import Bounded, Schedules
from sightline.mechanisms.clip_and_noise import FloatSum, GridSum
from sightline.mechanisms.samplers import PoissonCohorts
from sightline.models import Partitions
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.training.dp_sgd_settings import DPSGDSettings

CLIP = import_module("sightline.mechanisms.clip_and_noise")


def halved(monkeypatch):
    """Half of the noise that is claimed: in sums, exact or not, in private steps, and in the step of a server."""
    for kind in (FloatSum, GridSum):
        monkeypatch.setattr(kind, "noisy_sum", _half(kind.noisy_sum))
    samplewise, steps = import_module("sightline.mechanisms.dp_sgd"), DPSGDSettings.noise_of
    monkeypatch.setattr(samplewise, "with_gaussian_noise", _half(samplewise.with_gaussian_noise))
    monkeypatch.setattr(
        DPSGDSettings, "noise_of", lambda self, *a: (None if n is None else n / 2 for n in steps(self, *a))
    )


def _half(whole):
    return lambda *a, noise_multiplier, **k: whole(*a, noise_multiplier=noise_multiplier / 2, **k)


def unclipped(monkeypatch):
    """Clipping forgotten: of updates, and of the gradients of examples."""
    monkeypatch.setattr(CLIP, "clip_update", lambda update, *, clip_norm: Bounded(update, clip_norm))
    grid = import_module("sightline.mechanisms.clip_and_noise")
    monkeypatch.setattr(grid, "on_grid", lambda update, *, clip_norm: (_on_grid(update, clip_norm), False))
    for name in ("clipping", "fast.stacks"):
        training = import_module(f"sightline.training.{name}")
        monkeypatch.setattr(training, "clip_factors", lambda norms, clip_norm: torch.ones_like(norms).float())


def _on_grid(update, clip_norm):
    return np.trunc(update.double().numpy() * (2**24 / clip_norm)).astype(np.int64)


def same_noise_every_round(monkeypatch):
    """A seed that does not know the round."""
    whole = Streams.key
    monkeypatch.setattr(
        Streams,
        "key",
        lambda self, purpose, *, round=0, **k: whole(
            self, purpose, round=0 if purpose is Purpose.NOISE else round, **k
        ),
    )


def same_noise_for_everybody(monkeypatch):
    """A seed that does not know the client."""
    whole = Streams.key
    monkeypatch.setattr(
        Streams,
        "key",
        lambda self, purpose, *, participant=-1, **k: whole(
            self, purpose, participant=min(participant, 0) if purpose is Purpose.NOISE else participant, **k
        ),
    )


def everybody_is_sampled(monkeypatch):
    """Claims the amplification of inclusion, schedules or Poisson batches, and takes everybody, and every example."""
    monkeypatch.setattr(PoissonCohorts, "draw", lambda self, *a, **k: tuple(range(self.population)))
    monkeypatch.setattr(Schedules, "members_used", lambda self, step, allotment, *, members, **k: np.arange(members))
    private, sums = import_module("sightline.training.dp_sgd_settings"), Simulator._sum_gradients
    monkeypatch.setattr(private, "poisson_batches", lambda examples, rate, steps, rng: iter([None] * steps))
    monkeypatch.setattr(
        Simulator,
        "_sum_gradients",
        lambda self, call: sums(self, replace(call, plans=[replace(plan, rate=1.0) for plan in call.plans])),
    )


def one_part_for_all(monkeypatch):
    """Claims that the part is hidden, and sends everybody to the first."""
    monkeypatch.setattr(Partitions, "draw", lambda self, count, *, rng: np.zeros(count, dtype=np.int64))
