"""An audit puts its canary before the user's own module, and sees one that mixes examples."""

import json

import pytest

from sightline import engine
from sightline.apps.audit import audit, audit_built
from sightline.apps.audit.audit import repeat_runs
from sightline.apps.audit.canary_setup import AskedPair
from sightline.apps.audit.many_canaries import for_own_model
from sightline.apps.cli.main import run_arguments
from sightline.config import parse, to_toml
from sightline.training import dispatch, gradients
from tests.training import strange_modules

CONFIDENCE = 1 - 1e-4
"""An honest mechanism is accused once in ten thousand seeds; the seeds are fixed."""


def experiment(name, **samples):
    return parse({
        "name": "own", "rounds": 3, "data": {"source": "tests.training.strange_modules:shards", "clients": 3,
        "classes": strange_modules.CLASSES, "partition": "natural"},
        "model": {"name": f"tests.training.strange_modules:{name}"}, "local": {"batch_size": 16},
        "sampling": {"samples": samples or {"scheme": "full"}},
        "privacy": {"unit": "sample", "where": "client", "noise_multiplier": 5.0, "clip_norm": 0.1, "delta": 1e-3},
    })  # fmt: skip


def attacked(name, trials=60, **samples):
    """(what the attack on the module found, by how many clip norms a canary moved a sum)."""
    setting = engine.calibrate_noise(engine.build_experiment(experiment(name, **samples)))
    stage = for_own_model(setting, rounds=1, delta=1e-3, pair=AskedPair())
    found = repeat_runs(stage, trials=trials, confidence=CONFIDENCE, seed=1, progress=lambda done, all: None)
    return found, stage.moved


@pytest.fixture
def unguarded(monkeypatch):
    """As it was: a module is given whole batches when a probe of two examples in evaluation agrees."""
    for place in (dispatch, gradients):
        monkeypatch.setattr(place, "unknown_part", lambda module: None)


@pytest.mark.parametrize(
    ("name", "words"),
    [("CentredInTraining", {}), ("Plain", {"scheme": "poisson"}), ("Plain", {"scheme": "balanced", "uses": 2})],
)
def test_a_module_that_is_given_one_example_at_a_time_is_not_accused(name, words):
    found, moved = attacked(name, trials=20, **words)
    assert 0.99 < moved <= 1 + 1e-4
    assert found.lower <= found.upper


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize(("name", "heard"), [("DrownedInTraining", True), ("CentredInTraining", False)])
def test_a_module_that_mixes_examples_in_a_batch_is_caught(name, heard):
    found, moved = attacked(name, trials=60 if heard else 20)
    assert isinstance(dispatch.worker_for(engine.build_experiment(experiment(name)).model), dispatch.AutogradWorker)
    assert moved > 2
    assert (found.lower > found.upper) == heard  # also through the noise, when it is far enough


def test_masks_that_are_drawn_are_no_movement():
    found, moved = attacked("Dropped", trials=20)
    assert moved is None
    assert found.lower <= found.upper


def test_the_whole_audit_has_the_finding_and_the_confidence_is_shared():
    setting = engine.calibrate_noise(engine.build_experiment(experiment("Plain")))
    found = audit_built(setting, trials=20, canaries=10, rounds=1, delta=1e-3, confidence=0.95)
    assert [finding.method for finding in found.findings] == ["repeated", "canaries", "curve", "scores", "own model"]
    assert {round(finding.confidence, 9) for finding in found.findings} == {0.99}
    assert not found.broken


def test_models_of_ours_are_audited_as_before():
    words = experiment("Plain").model_dump(exclude_none=True) | {"model": {"name": "mlp"}}
    found = audit(parse(words), trials=20, canaries=10, rounds=1, delta=1e-3, runs=1)
    assert [finding.method for finding in found.findings] == ["repeated", "canaries", "curve", "scores"]


@pytest.mark.usefixtures("unguarded")
def test_the_command_says_why_and_exits_with_one(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(to_toml(experiment("CentredInTraining")))
    words = ["audit", str(file), "--trials", "20", "--canaries", "10", "--rounds", "1", "--json"]
    assert run_arguments(words) == 1
    said = capsys.readouterr()
    assert "one example moves a sum by more than the clip norm" in said.err
    told = json.loads(said.out)
    assert told["refuted"]
    assert told["findings"][-1]["clip_norms_moved"] > 2
    assert all(
        one["epsilon_lower"] <= one["epsilon_upper"] for one in told["findings"][:-1]
    )  # its own network is blind
