"""Every mechanism of the registries is audited: the lower bound stays below the claim, and broken ones are caught."""

from importlib import import_module

import pytest
import torch

from sightline.audit import audit
from sightline.config import parse
from sightline.mechanisms.choose import MECHANISMS
from sightline.mechanisms.grid import GridSum
from sightline.mechanisms.output_sensitivity import Bound
from sightline.mechanisms.samplers import SAMPLERS
from tests.audit.breaking import everybody_is_sampled, halved, same_noise_for_everybody, unclipped
from tests.laws.combinations import Combination, plain

TINY = 1e-5
"""The chance that one honest mechanism is accused; there are about forty, so the file lies once in 2,000 seeds."""


def audited(
    trials=400,
    confidence=1 - TINY,
    delta=0.05,
    rounds=2,
    canaries=400,
    changes=None,
    observer=None,
    subject=None,
    **words,
):
    file = plain(Combination(**words))
    for section, keys in (changes or {}).items():
        file[section] |= keys
    return audit(
        parse(file),
        trials=trials,
        canaries=canaries,
        rounds=rounds,
        delta=delta,
        confidence=confidence,
        seed=3,
        observer=observer,
        subject=subject,
    )


SAMPLE = {"unit": "sample", "where": "client", "samples": "poisson"}
TREE = {"topology": "tree", "where": "edge"}
H2FDP = {"topology": "tree", "algorithm": "h2fdp"}


def of_registry():
    """One file for every mechanism, sampler, bound, arithmetic and way of drawing that the registries have."""
    for unit, where in MECHANISMS:
        if unit != "none":
            samples = "poisson" if unit == "sample" else "shuffle"
            own = (H2FDP if unit == "sample" else TREE) if where == "edge" else {}
            yield f"{unit} at {where}", {"unit": unit, "where": where, "samples": samples, **own}
    for scheme in SAMPLERS:
        yield f"clients {scheme}", {"clients": scheme}
        if scheme in ("full", "fixed"):
            yield f"clients {scheme}, replaced", {"clients": scheme, "adjacency": "replace"}
    for scheme in ("full", "balanced", "check_ins"):
        yield f"examples {scheme}", SAMPLE | {"samples": scheme}
    for bound in Bound:
        mean = bound is Bound.PER_SAMPLE_MEAN
        more = {"privacy": {"sensitivity": str(bound)}, "local": {"weight_decay": 0.0 if mean else 0.5, "steps": 1}}
        own = {"unit": "sample", "where": "client", "samples": "full" if mean else "shuffle"}
        yield f"output, {bound}", own | {"mechanism": "output", "changes": more}
    yield "objective", {"unit": "sample", "where": "client", "mechanism": "objective"}
    for place, more in {"server": {}, "client": {"where": "client"}, "edge": TREE}.items():
        yield f"integers at {place}", more | {"changes": {"privacy": {"arithmetic": "integer"}}}
        yield f"parts at {place}", more | {"split": "yes"}
    yield "groups", {"topology": "groups", "algorithm": "dp_ogl"}
    yield "groups, plus", {"topology": "groups", "algorithm": "dp_ogl_plus"}
    yield "selection", {"topology": "clusters", "algorithm": "ifca", "where": "client"}
    yield "clusters", {"topology": "clusters", "algorithm": "rdpcfl", **SAMPLE}


REGISTRY = dict(of_registry())


@pytest.mark.slow
@pytest.mark.parametrize("words", REGISTRY.values(), ids=REGISTRY)
def test_the_lower_bound_is_below_the_claim(words):
    sample = words.get("unit") == "sample"
    found = audited(trials=100 if sample else 400, **words)
    assert not found.broken, found
    assert 0 <= found.lower <= found.upper


def halved_steps(monkeypatch):
    """Private steps with half of their noise."""
    private = import_module("sightline.training.stacked_private")
    whole = private.add_noise
    monkeypatch.setattr(
        private, "add_noise", lambda gradient, noises, stds: whole(gradient, noises, [s / 2 for s in stds])
    )


def unclipped_steps(monkeypatch):
    """Private steps that forget to clip."""
    dense = import_module("sightline.training.dense_stack")
    monkeypatch.setattr(dense, "clip_factors", lambda norms, clip_norm: torch.ones_like(norms))


def whole_batches(monkeypatch):
    """Claims Poisson batches, and takes every example at every step."""
    private = import_module("sightline.training.privately")
    monkeypatch.setattr(private, "poisson", lambda examples, rate, steps, rng: iter([None] * steps))


def halved_integers(monkeypatch):
    """Half of the exact noise."""
    whole = GridSum.noisy
    monkeypatch.setattr(
        GridSum, "noisy", lambda self, *, noise_multiplier, **k: whole(self, noise_multiplier=noise_multiplier / 2, **k)
    )


QUIET = {"privacy": {"noise_multiplier": 2.0}}
SMALL = {"local": {"batch_size": 1, "steps": 2}}
BROKEN = {
    "half the noise in parts": (halved, {"split": "yes", "rounds": 4, "changes": QUIET}),
    "half the noise, balanced": (halved, {"clients": "balanced", "rounds": 4}),
    "half the noise, replaced": (halved, {"adjacency": "replace"}),
    "half the noise in integers": (halved_integers, {"changes": {"privacy": {"arithmetic": "integer"}}}),
    "half the noise of examples": (halved_steps, SAMPLE | {"samples": "full", "changes": QUIET}),
    "unclipped examples": (unclipped_steps, SAMPLE),
    "unclipped at an edge": (unclipped, TREE),
    "unclipped in a group": (unclipped, {"topology": "groups", "algorithm": "dp_ogl"}),
    "wrong batches": (whole_batches, SAMPLE | {"changes": SMALL}),
    "wrong sampler in groups": (
        everybody_is_sampled,
        {
            "topology": "groups",
            "algorithm": "dp_ogl",
            "changes": {"sampling": {"clients": {"scheme": "poisson", "rate": 0.05}}},
        },
    ),
    "one seed for all devices": (same_noise_for_everybody, TREE | {"observer": "edge-1"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_caught(broken, words, monkeypatch):
    broken(monkeypatch)
    found = audited(**({"confidence": 0.95, "delta": 0.1, "trials": 600, "canaries": 10} | words))
    assert found.broken, found
