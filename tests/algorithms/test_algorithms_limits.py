"""Limits in which one algorithm is another; and that every algorithm runs with its own epsilon or is refused."""

import math

import pytest

import sightline
from sightline import accounting, engine
from sightline.algorithms import REGISTRY
from sightline.engine import loop
from sightline.engine.execution import planned_schedule, work_stats
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian
from sightline.mechanisms import Cohort
from tests.engine.test_resume import Crash, crash_in, left_behind

STAR = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", "fedadagrad", "fedadam", "fedyogi")


def model(run):
    return (run.directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "settings", [{"name": "fedprox", "mu": 0.0}, {"name": "fedavgm", "server_momentum": 0.0}], ids=lambda s: s["name"]
)
@pytest.mark.parametrize(
    "privacy", [{"unit": "none"}, {"unit": "client", "noise_multiplier": 1.0}], ids=lambda p: p["unit"]
)
def test_at_zero_they_are_fedavg_bit_for_bit(tiny, tmp_path, settings, privacy):
    plain = sightline.run(tiny(privacy=privacy), out=tmp_path / "fedavg")
    limit = sightline.run(tiny(algorithm=settings, privacy=privacy), out=tmp_path / "limit")
    assert model(plain) == model(limit)


@pytest.mark.parametrize("name", STAR)
@pytest.mark.parametrize(
    ("unit", "where"), [("client", "server"), ("client", "client"), ("sample", "client"), ("sample", "server")]
)
def test_every_algorithm_runs_with_its_own_epsilon_or_is_refused(tiny, tmp_path, name, unit, where):
    work = {"local.epochs": None, "local.steps": 1} if (unit, where) == ("sample", "server") else {}
    experiment = tiny(
        rounds=2, algorithm={"name": name}, privacy={"unit": unit, "where": where, "noise_multiplier": 1.0}, **work
    )
    if unit == "sample" and (name == "pfedme" or (where == "server" and name in ("scaffold", "feddyn"))):
        with pytest.raises(Refused):
            sightline.run(experiment, out=tmp_path / "run")
        return
    run = sightline.run(experiment, out=tmp_path / "run")
    plain = sightline.run(
        tiny(rounds=2, privacy={"unit": unit, "where": where, "noise_multiplier": 1.0}, **work), out=tmp_path / "fedavg"
    )
    observer = "server" if where == "client" else "public"
    worst = max(accounting.epsilon(dict(run.ledger.composition(f"client-{n}", observer)), 1e-5) for n in range(6))
    assert run.epsilon == worst == plain.epsilon < math.inf


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "pfedme", "fedyogi"])
@pytest.mark.parametrize(
    ("place", "before"), [("save_checkpoint", True), ("save_checkpoint", False), ("append", False)]
)
def test_a_crash_changes_nothing_of_what_clients_keep(tiny, tmp_path, monkeypatch, name, place, before):
    experiment = tiny(algorithm={"name": name, "upcycle": 0.3})
    with monkeypatch.context() as patch:
        crash_in(patch, loop.Ledger if place == "append" else loop, place, 3, before=before)
        with pytest.raises(Crash):
            sightline.run(experiment, out=tmp_path / "broken")
    sightline.run(experiment, out=tmp_path / "whole")
    sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")


def test_a_client_that_skipped_rounds_is_still_covered(tiny, tmp_path):
    """An observer of the last mean can work back to every release that any client's memory was computed from."""
    run = sightline.run(
        tiny(rounds=6, algorithm={"name": "scaffold"}, **{"privacy.where": "client"}), out=tmp_path / "run"
    )
    ledger = run.ledger
    took_part = {n: ledger.composition(f"client-{n}", "server").total() for n in range(6)}
    assert min(took_part.values()) < 6
    last = [release for release in ledger if "public" in release.audience][-1]
    reached, waiting = set(), [last.id]
    while waiting:
        found = waiting.pop()
        if found not in reached:
            reached.add(found)
            waiting += ledger[found].inputs
    assert reached == set(range(len(ledger)))


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_memory_does_not_go_with_cohorts_whose_coins_depend_on_each_other(tiny, tmp_path, name):
    """Others who remember whether they were drawn would show later who else was: only independent coins stay hidden."""
    fixed = {"algorithm": {"name": name}, "sampling.clients": {"scheme": "fixed", "rate": 0.5}}
    with pytest.raises(Refused, match="keep state"):
        sightline.run(tiny(**fixed, **{"privacy.adjacency": "replace"}), out=tmp_path / "run")
    run = sightline.run(tiny(rounds=2, **fixed), out=tmp_path / "zeroed")  # no amplification is claimed there
    assert run.epsilon == accounting.epsilon({Gaussian(0.8): 2}, 1e-5)


REPLACED = {"privacy.adjacency": "replace", "sampling.clients": {"scheme": "full"}}


@pytest.mark.parametrize("where", ["server", "client"])
def test_scaffold_counts_with_no_sizes_that_a_neighbour_need_not_have(tiny, tmp_path, where):
    """Replace-one: the subject may have more or fewer examples, and everybody's control variate would be another."""
    changes = REPLACED | {"algorithm": {"name": "scaffold"}, "privacy.where": where}
    with pytest.raises(Refused, match="more or fewer examples"):
        sightline.run(tiny(**changes), out=tmp_path / "refused")
    run = sightline.run(tiny(**changes, **{"local.epochs": None, "local.steps": 2}), out=tmp_path / "run")
    assert run.epsilon > 0


def test_feddyn_counts_with_shares_of_clients_only(tiny, tmp_path):
    """No number that follows from sizes is there to be used; its own share is the cohort's."""
    setting = engine.build_experiment(tiny(**REPLACED, algorithm={"name": "feddyn"}))
    samplers = [setting.sampler_of(channel) for channel in setting.topology.gathering_channels]
    stats = work_stats(setting, Cohort((0, 1)), planned_schedule(setting), samplers)
    assert stats.share == 1.0
    for name in ("steps", "most_steps"):
        with pytest.raises(Refused, match="more or fewer examples"):
            getattr(stats, name)
    assert sightline.run(tiny(**REPLACED, algorithm={"name": "feddyn"}), out=tmp_path / "run").epsilon > 0


def test_what_clients_keep_is_not_in_the_published_model(tiny, tmp_path):
    from safetensors.torch import load_file

    run = sightline.run(tiny(algorithm={"name": "pfedme"}), out=tmp_path / "run")
    assert set(load_file(run.directory / "model.safetensors")) == {"output.weight", "output.bias"}


@pytest.mark.parametrize(
    ("settings", "law"),
    [
        ({"name": "fedprox", "mu": -1.0}, "not be negative"),
        ({"name": "fedavgm", "server_momentum": 1.0}, r"\[0, 1\)"),
        ({"name": "feddyn", "alpha": 0.0}, "positive"),
        ({"name": "pfedme", "inner_steps": 0}, "whole number"),
        ({"name": "pfedme", "penalty": -1.0}, "positive"),
        ({"name": "fedyogi", "beta2": 1.0}, r"\[0, 1\)"),
        ({"name": "fedyogi", "tau": 0.0}, "positive"),
        ({"name": "fedadam", "beta1": -0.1}, r"\[0, 1\)"),
        ({"name": "fedadagrad", "beta2": 0.9}, "no such setting"),
        ({"name": "scaffold", "mu": 0.5}, "no such setting"),
        ({"name": "fedprox", "mu": "a"}, "finite number"),
    ],
)
def test_settings_are_checked(tiny, tmp_path, settings, law):
    with pytest.raises(InvalidInput, match=law):
        sightline.run(tiny(algorithm=settings), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_registry_has_them():
    assert set(STAR) <= set(REGISTRY)
