"""Ways to break a mechanism: each is a mistake that somebody could make, put in place by a monkeypatch."""

from importlib import import_module

from sightline.mechanisms.clip import Bounded
from sightline.mechanisms.gaussian import FloatSum
from sightline.mechanisms.samplers import PoissonCohorts
from sightline.randomness import Purpose, Streams

CLIP = import_module("sightline.mechanisms.clip")


def halved(monkeypatch):
    """Half of the noise that is claimed."""
    whole = FloatSum.noisy
    monkeypatch.setattr(
        FloatSum,
        "noisy",
        lambda self, *, noise_multiplier, **k: whole(self, noise_multiplier=noise_multiplier / 2, **k),
    )


def unclipped(monkeypatch):
    """Clipping forgotten."""
    monkeypatch.setattr(CLIP, "clip", lambda update, *, clip_norm: Bounded(update, clip_norm))


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
    """Claims Poisson's amplification, and takes everybody."""
    monkeypatch.setattr(PoissonCohorts, "draw", lambda self, *, rng: tuple(range(self.population)))
