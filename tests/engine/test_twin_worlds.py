"""Values are computed again without one subject: what is claimed holds, and five kinds of broken code are caught."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import sightline
from sightline import engine
from sightline.engine import twin_worlds
from sightline.errors import InvalidInput, Refused
from sightline.mechanisms import StateAccess, gaussian_means
from sightline.training import gradients
from tests.engine.many_kinds import experiment


def verified(kind, out, verify=3, **more):
    run = sightline.run(experiment(kind, rounds=2, **more), out=out, verify=verify, progress=False)
    (note,) = [note for note in run.metadata["notes"] if note.startswith("Twin worlds")]
    return note


@pytest.mark.parametrize("kind", ["star", "clients", "groups", "tree"])
def test_what_is_claimed_of_clients_holds(kind, tmp_path):
    note = verified(kind, tmp_path / "run")
    assert "without one of 3 subjects" in note
    assert float(note.split("shift was ")[1].split("%")[0]) <= 100.01


SAMPLES = {"privacy.unit": "sample", "privacy.where": "client", "sampling.clients": {"scheme": "full"}}
SERVER = {**SAMPLES, "privacy.where": "server", "local.steps": 1, "local.epochs": None}


@pytest.mark.parametrize("more", [SAMPLES, SERVER], ids=["at the client", "at the server"])
def test_what_is_claimed_of_examples_holds(more, tmp_path):
    note = verified("star", tmp_path / "run", 4, **more)
    assert ", 0 of them with the subject drawn" not in note


def test_a_run_that_is_verified_has_the_bits_of_one_that_is_not(tmp_path):
    verified("star", tmp_path / "a")
    sightline.run(experiment("star", rounds=2), out=tmp_path / "b", progress=False)
    read = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert read[0] == read[1]


def test_a_wrong_clip_is_caught(tmp_path, monkeypatch):
    honest = gaussian_means.CentralMean.mean

    def mean(self, updates, context):
        late = replace(self, clip_norm=2 * self.clip_norm, noise_multiplier=self.noise_multiplier / 2)
        return honest(late, updates, context)

    monkeypatch.setattr(gaussian_means.CentralMean, "mean", mean)
    with pytest.raises(Refused, match=r"verify=client-\d+: round 1, server: it moves the value by"):
        verified("star", tmp_path / "run", 8, **{"privacy.clip_norm": 1e-3})


def test_normalisation_by_the_drawn_cohort_is_caught(tmp_path, monkeypatch):
    honest = gaussian_means.CentralMean.mean

    def mean(self, updates, context):
        found = honest(self, updates, context)
        factor = context.sampler.expected / max(1, len(updates.cohort.members))
        return replace(found, values={key: value * factor for key, value in found.values.items()})

    monkeypatch.setattr(gaussian_means.CentralMean, "mean", mean)
    with pytest.raises(Refused, match="it moves the value by"):
        verified("star", tmp_path / "run", 8)


class Centred(nn.Module):
    """Subtracts the mean of the batch, in training only."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)

    def forward(self, x):
        h = self.layer(x)
        return h - 30 * h.mean(0) if self.training else h


OWN = {"model": {"name": "tests.engine.test_twin_worlds:Centred"}, **SAMPLES, "privacy.clip_norm": 0.01}


@pytest.mark.slow
def test_a_module_that_mixes_is_caught_where_nothing_guards_it(tmp_path, monkeypatch):
    """On the path of torch's own layers, which are given whole batches."""

    def whole_batch(module, model, weights, x, y):
        loss = nn.functional.cross_entropy(module(x), y, reduction="none")
        names = [module.get_parameter(slot.name) for slot in model.layout]
        rows = [torch.autograd.grad(one, names, retain_graph=True) for one in loss]
        return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])

    monkeypatch.setattr(gradients, "choose_rows", lambda module, model: whole_batch)
    with pytest.raises(Refused, match="verify=client"):
        verified("star", tmp_path / "run", 8, **OWN)


def test_the_first_round_of_an_own_module_is_compared_unasked(tmp_path):
    note = verified("star", tmp_path / "run", None, **OWN)
    assert "without one of 2 subjects" in note
    silent = sightline.run(experiment("star", rounds=1, **OWN), out=tmp_path / "silent", verify=0, progress=False)
    assert not [note for note in silent.metadata["notes"] if note.startswith("Twin worlds")]


def test_un_noised_memory_behind_private_steps_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(StateAccess, "require_noised", lambda self: None)
    kept = StateAccess.keep_value
    monkeypatch.setattr(StateAccess, "keep_value", lambda self, n, value, *, noised: kept(self, n, value, noised=False))
    with pytest.raises(Refused, match="un-noised"):
        verified("star", tmp_path / "run", 4, **SAMPLES, **{"algorithm.name": "scaffold"})


@pytest.mark.parametrize(("verify", "more"), [(-1, {}), (2, {"privacy": {"unit": "none"}})])
def test_mistakes_are_one_line(verify, more, tmp_path):
    with pytest.raises(InvalidInput, match="verify="):
        sightline.run(experiment("star", rounds=1, **more), out=tmp_path / "run", verify=verify, progress=False)


def test_a_world_without_its_subject_is_the_same_for_everybody_else():
    setting = engine.build_experiment(experiment("star", rounds=1))
    without = twin_worlds.remove_subject(setting.federation, twin_worlds.Subject(2, 1))
    for place, (old, new) in enumerate(zip(setting.federation.clients, without.clients, strict=True)):
        assert (old is new) == (place != 2)


def test_dropout_is_no_false_alarm(tmp_path):
    """A batch without an example has other masks: only batches that do not hold it are compared."""
    model = {"model": {"name": "mlp", "hidden": [6], "dropout": 0.3}}
    note = verified("star", tmp_path / "run", 8, **SAMPLES, **model)
    assert ", 0 of them with the subject drawn" in note
