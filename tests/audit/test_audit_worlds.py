"""An audit makes the file's first round on its own data, beside worlds that lack one subject."""

from dataclasses import replace

import pytest

from sightline import engine
from sightline.apps.audit.audit import compare_worlds
from sightline.mechanisms import gaussian_means
from tests.engine.many_kinds import experiment


def built(kind="star"):
    return engine.calibrate_noise(engine.build_experiment(experiment(kind, rounds=2)))


@pytest.mark.parametrize("kind", ["star", "clients", "tree"])
def test_an_honest_file_holds(kind):
    found = compare_worlds(built(kind), seed=0)
    assert not found["twin_worlds_refuted"]
    assert "without one of 4 subjects" in found["twin_worlds"]


def test_a_mean_over_the_drawn_cohort_is_refuted(monkeypatch):
    honest = gaussian_means.CentralMean.mean

    def mean(self, updates, context):
        found = honest(self, updates, context)
        factor = 10 * context.sampler.expected / max(1, len(updates.cohort.members))
        return replace(found, values={key: value * factor for key, value in found.values.items()})

    monkeypatch.setattr(gaussian_means.CentralMean, "mean", mean)
    found = compare_worlds(built(), seed=0)
    assert found["twin_worlds_refuted"]
    assert "it moves the value by" in found["twin_worlds"]
