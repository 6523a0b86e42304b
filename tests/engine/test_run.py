"""One complete path: what a run does, against a naive loop, against its own ledger, and across every mechanism."""

import json
import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sightline
from sightline import accounting, algorithms, engine
from sightline.config import parse, to_toml
from sightline.engine import plan_releases
from sightline.engine.execution import DryExecution
from sightline.engine.metadata import RunFacts, collect_facts, describe_guarantee
from sightline.engine.round import TrainingRound
from sightline.errors import InvalidInput, Refused, SightlineError
from sightline.events import Clear, FixedCohort, Gaussian, Poisson, Pooled, Repeat, WithoutReplacement
from sightline.ledger import Ledger
from sightline.mechanisms import MECHANISMS, SAMPLERS, ClientState, Public, StateRule
from tests.oracle.fedavg_naive import central_fedavg


def final_model(run):
    tensors = load_file(run.directory / "model.safetensors")
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).numpy()


def test_it_equals_the_naive_loop(tiny, tmp_path):
    experiment = tiny()
    setting = engine.build_experiment(experiment)
    expected = central_fedavg(
        setting.federation, setting.start.numpy(), rounds=4, rate=0.6, clip_norm=0.5, noise_multiplier=0.8, seed=0,
        epochs=2, batch_size=4, learning_rate=0.2,
    )  # fmt: skip
    run = sightline.run(experiment, out=tmp_path / "run")
    found = load_file(run.directory / "model.safetensors")
    vector = np.concatenate([found["output.weight"].numpy().ravel(), found["output.bias"].numpy()])
    np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)


def test_the_directory_holds_what_is_promised(tiny, tmp_path):
    experiment = tiny()
    run = sightline.run(experiment, out=tmp_path / "run")
    assert {"config.toml", "run.sqlite", "model.safetensors", "report.html"} <= {
        p.name for p in run.directory.iterdir()
    }
    assert parse(tomllib.loads((run.directory / "config.toml").read_text())) == experiment
    assert (run.directory / "config.toml").read_text() == to_toml(experiment)
    needed = {"run_dir", "rounds_done", "test_accuracy", "test_loss", "epsilon", "delta", "unit", "releases", "seconds",
              "uplink_floats", "observers", "trusted"}  # fmt: skip
    assert needed <= set(run.summary)
    json.dumps(run.summary, allow_nan=False)
    assert run.summary["rounds_done"] == len(run.rounds) == 4


def test_same_seed_same_bits_other_seed_other_model(tiny, tmp_path):
    models = [final_model(sightline.run(tiny(seed=s), out=tmp_path / n)) for n, s in (("a", 3), ("b", 3), ("c", 4))]
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[0], models[2])


def test_epsilon_is_that_of_what_ran(tiny, tmp_path):
    run = sightline.run(tiny(), out=tmp_path / "run")
    event = Poisson(0.6, Gaussian(0.8))
    assert run.ledger.composition("client-2", "public") == {event: 4}
    assert run.ledger.composition("client-2", "server")[Clear()] == 4
    assert run.epsilon == accounting.epsilon({event: 4}, 1e-5)
    assert [row["epsilon"]["public"] for row in run.rounds] == sorted(row["epsilon"]["public"] for row in run.rounds)
    assert run.summary["trusted"] == ["server"]


def test_fixed_cohorts_are_accounted_as_fixed(tiny, tmp_path):
    fixed = {"sampling.clients": {"scheme": "fixed", "rate": 0.5}}
    replaced = sightline.run(tiny(**fixed, **{"privacy.adjacency": "replace"}), out=tmp_path / "replace")
    assert set(replaced.ledger.composition("client-0", "public")) == {WithoutReplacement(3, 5, Gaussian(0.8))}
    zeroed = sightline.run(tiny(**fixed), out=tmp_path / "zeroed")
    assert set(zeroed.ledger.composition("client-0", "public")) == {FixedCohort(3, 5, Gaussian(0.8))}
    assert set(zeroed.ledger.composition("client-0", {"client-1", "client-2"})) == {Gaussian(0.8)}
    assert Clear() in zeroed.ledger.composition("client-0", "server")
    assert any(
        "fixed size and is drawn in secret" in one for one in describe_guarantee(engine.build_experiment(tiny(**fixed)))
    )


@pytest.mark.parametrize(
    ("source", "real_sites", "says", "not_says"),
    [
        ("seed", False, "Noise and sampling come from the seed", "Each site draws"),
        ("os", False, "Noise and sampling come from AES-256-CTR", "seed"),
        ("seed", True, "Each site draws its batches, and the noise that it adds, from AES-256-CTR", "no protection"),
        ("os", True, "The server draws from AES-256-CTR", "from the seed;"),
    ],
)
def test_the_report_says_what_the_runtime_draws_from(tiny, source, real_sites, says, not_says):
    """A report of real sites said "from the seed: no protection", though sites draw from the operating system."""
    setting = engine.build_experiment(tiny(**{"privacy.noise_source": source, "privacy.where": "client"}))
    facts = collect_facts(setting, real_sites=real_sites).privacy
    told = " ".join(facts.caveats[:2])
    assert says in told
    assert not_says not in told
    assert facts.noise_source == ("os" if real_sites else source)


def test_a_guarantee_does_not_call_a_large_factor_almost_nothing(tiny):
    """At epsilon 8 "almost as likely" was a factor of 2,981."""
    first = describe_guarantee(engine.build_experiment(tiny()))[0]
    assert "up to a factor of e^epsilon, plus delta" in first
    assert "almost" not in first


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_who_remembers_is_not_hidden_in_a_fixed_cohort(tiny, tmp_path, name):
    """Later rounds tell who was in an earlier cohort: nothing is claimed of it."""
    fixed = {"sampling.clients": {"scheme": "fixed", "rate": 0.5}, "algorithm": {"name": name}}
    run = sightline.run(tiny(**fixed), out=tmp_path / "run")
    assert set(run.ledger.composition("client-0", "public")) == {Gaussian(0.8)}
    assert any(
        "not claimed to hide their members" in sentence
        for sentence in describe_guarantee(engine.build_experiment(tiny(**fixed)))
    )


def test_an_algorithm_that_forgets_to_say_that_it_remembers_is_refused(tiny):
    setting = engine.build_experiment(
        tiny(**{"sampling.clients": {"scheme": "fixed", "rate": 0.5}, "algorithm": {"name": "scaffold"}})
    )
    hidden = replace(
        setting,
        algorithm=algorithms.with_facts(setting.algorithm, remembers=False),
        samplers={name: replace(one, hidden=True) for name, one in setting.samplers.items()},
    )
    with pytest.raises(Refused, match="reveals who was drawn"):
        plan_releases(hidden)


def test_in_a_star_noises_add_up_against_all_but_the_server(tiny, tmp_path):
    run = sightline.run(
        tiny(**{"privacy.where": "client", "sampling.clients": {"scheme": "full"}}), out=tmp_path / "run"
    )
    assert run.ledger.composition("client-0", "server") == {Gaussian(0.8): 4}
    assert run.ledger.composition("client-0", "client-1") == {Pooled(5, Gaussian(0.8)): 4}
    assert run.ledger.composition("client-0", "public") == {Pooled(6, Gaussian(0.8)): 4}
    assert run.ledger.composition("client-0", {"client-1", "client-2", "public"}) == {Pooled(3, Gaussian(0.8)): 4}
    assert run.ledger.composition("client-0", {"client-1", "server"}) == {Gaussian(0.8): 4}
    assert run.summary["observers"]["server"] > 1.5 * run.summary["observers"]["public"]
    assert run.epsilon == accounting.epsilon({Gaussian(0.8): 4}, 1e-5)


def test_everybodys_noise_hides_who_was_drawn(tiny, tmp_path):
    changes = {"privacy.where": "client", "privacy.everyone_sends_noise": True}
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    assert run.ledger.composition("client-0", "client-1") == {Poisson(0.6, Pooled(5, Gaussian(0.8))): 4}
    assert run.ledger.composition("client-0", "server") == {Gaussian(0.8): 4}
    assert run.ledger.composition("client-0", {"client-1", "client-2"}) == {Poisson(0.6, Pooled(4, Gaussian(0.8))): 4}
    other = sightline.run(tiny(seed=9, **changes), out=tmp_path / "other")
    assert [one.body() for one in run.ledger] == [one.body() for one in other.ledger]  # it tells nobody's draws
    for refused in ({"privacy.arithmetic": "integer"}, {"privacy.where": "server"}, {"privacy.unit": "sample"}):
        with pytest.raises(SightlineError, match="everyone_sends_noise"):
            tiny(**(changes | refused))


def test_noise_at_the_clients_trusts_nobody(tiny, tmp_path):
    run = sightline.run(tiny(**{"privacy.where": "client"}), out=tmp_path / "run")
    took_part = [run.ledger.composition(f"client-{n}", "server").total() for n in range(6)]
    assert max(took_part) <= 4
    assert run.summary["trusted"] == []
    assert run.summary["observers"]["server"] >= run.summary["observers"]["public"]
    assert run.epsilon == accounting.epsilon({Gaussian(0.8): max(took_part)}, 1e-5)
    assert Clear() not in run.ledger.composition("client-0", {"server", "public", "client-1"})


def test_sample_unit_charges_every_client_its_own_steps(tiny, tmp_path):
    changes = {"privacy.unit": "sample", "sampling.clients": {"scheme": "full"}, "privacy.noise_multiplier": 1.5}
    experiment = tiny(**changes)
    run = sightline.run(experiment, out=tmp_path / "run")
    sizes = engine.build_experiment(experiment).federation.sizes
    for client, size in enumerate(sizes):
        step = Poisson(min(1.0, 4 / size), Gaussian(1.5))
        steps = 2 * math.ceil(size / 4)
        assert run.ledger.composition(f"client-{client}", "public") == {Repeat(steps, step): 4}


def test_epsilon_calibrates_the_whole_run(tiny, tmp_path):
    target = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0}
    run = sightline.run(tiny(**target), out=tmp_path / "central")
    assert 2.99 < run.epsilon <= 3.0
    sample = {"privacy.unit": "sample", "sampling.clients": {"scheme": "full"}}
    own = sightline.run(tiny(**target, **sample), out=tmp_path / "sample")
    for client in range(6):
        assert 2.99 < own.ledger.epsilon(f"client-{client}", "public", 1e-5) <= 3.0
    assert own.summary["noise_multiplier"] < own.summary["noise_multiplier_max"]


@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_calibration_covers_the_busiest_client(tiny, tmp_path, algorithm):
    changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0, "privacy.where": "client"}
    run = sightline.run(tiny(**changes, **{"algorithm.name": algorithm}), out=tmp_path / "run")
    assert 0 < run.epsilon <= 3.0


def test_no_privacy_is_said_to_be_none(tiny, tmp_path):
    run = sightline.run(tiny(**{"privacy": {"unit": "none"}}), out=tmp_path / "run")
    assert run.summary["epsilon"] is None
    assert run.epsilon == math.inf
    assert "no guarantee" in run.report.read_text().lower()


def test_local_training_gives_everybody_a_model(tiny, tmp_path):
    changes = {"algorithm.name": "local", "privacy.unit": "sample", "sampling.clients": {"scheme": "full"}}
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    names = load_file(run.directory / "model.safetensors")
    assert {name.split("/")[0] for name in names} == {f"client-{n}" for n in range(6)}
    observed = run.ledger.composition("client-1", "client-2")
    assert observed == run.ledger.composition("client-1", "public")
    assert observed.total() == 4


def test_an_empty_cohort_is_a_round_of_noise(tiny, tmp_path):
    run = sightline.run(tiny(**{"sampling.clients": {"scheme": "poisson", "rate": 1e-9}}), out=tmp_path / "run")
    assert run.summary["rounds_done"] == 4
    local = {"sampling.clients": {"scheme": "poisson", "rate": 1e-9}, "privacy.where": "client"}
    silent = sightline.run(tiny(**local), out=tmp_path / "local")
    assert silent.epsilon == 0.0


def broken_client(*, clients, rng):
    for number in range(clients):
        scale = 1e30 if number == 1 else 1.0
        x = (rng.standard_normal((12, 4)) * scale).astype(np.float32)
        yield x, rng.integers(0, 2, 12), x[:2] / scale, rng.integers(0, 2, 2)


def test_a_broken_client_counts_as_zero_and_is_counted(tiny, tmp_path):
    changes = {
        "data": {"source": "tests.engine.test_run:broken_client", "clients": 5, "partition": "natural"},
        "sampling.clients": {"scheme": "full"},
        "local.learning_rate": 1e6,
    }
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    assert run.summary["rejected_updates"] >= 1
    assert np.isfinite(final_model(run)).all()


def test_private_personal_models_need_noise_at_the_client(tiny):
    with pytest.raises(Refused, match="where"):
        engine.build_experiment(tiny(**{"algorithm.name": "local"}))


def test_updates_are_released_once(tiny, tmp_path):
    setting = engine.calibrate_noise(engine.build_experiment(tiny()))
    r = TrainingRound(setting, Ledger(), DryExecution(setting.federation.sizes.tolist()), 1)
    updates = r.train(r.sample(), Public(torch.zeros(1)))
    r.release_mean(updates)
    with pytest.raises(Refused, match="released already"):
        r.release_mean(updates)


def test_what_clients_kept_is_among_the_inputs_of_what_they_send(tiny):
    """Also when nothing that they start from now was computed from the releases behind it."""
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**{"privacy.where": "client"})))
    ledger, execution = Ledger(), DryExecution(setting.federation.sizes.tolist())
    first = TrainingRound(setting, ledger, execution, 1)
    received = first.release_mean(first.train(first.sample(), Public(torch.zeros(1))))
    kept = {"some": ClientState({}, received.sources)}
    r = TrainingRound(setting, ledger, execution, 2, kept)
    before = len(ledger)
    r.release_mean(r.train(r.sample(), Public(torch.zeros(1)), memory=StateRule("some")))
    sent = [release for release in list(ledger)[before:] if release.subjects]
    assert sent
    assert all(received.sources <= set(release.inputs) for release in sent)


def test_a_hidden_cohort_is_released_once(tiny):
    setting = engine.calibrate_noise(engine.build_experiment(tiny()))
    r = TrainingRound(setting, Ledger(), DryExecution(setting.federation.sizes.tolist()), 1)
    start, cohort = Public(torch.zeros(1)), r.sample()
    r.release_mean(r.train(cohort, start))
    with pytest.raises(Refused, match="no cohort was drawn"):
        r.release_mean(r.train(cohort, start))


def test_nobody_who_was_not_drawn_hides_behind_coins(tiny):
    setting = engine.calibrate_noise(engine.build_experiment(tiny()))
    r = TrainingRound(setting, Ledger(), DryExecution(setting.federation.sizes.tolist()), 1)
    with pytest.raises(Refused, match="no cohort was drawn"):
        r.release_mean(r.train(r.everyone(), Public(torch.zeros(1))))


def test_mechanisms_are_exactly_the_known_ones():
    gaussian = {("gaussian", u, w) for u in ("client", "sample", "none") for w in ("server", "client", "edge")}
    assert set(MECHANISMS) == gaussian | {(name, "sample", "client") for name in ("output", "objective")}


@pytest.mark.parametrize("unit", ["client", "sample", "none"])
@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("scheme", sorted(SAMPLERS))
@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_every_combination_runs_with_its_own_epsilon_or_is_refused(tiny, tmp_path, unit, where, scheme, algorithm):
    rate = {"full": {}, "balanced": {"uses": 1}, "turns": {"groups": 2}}.get(scheme, {"rate": 0.5})
    changes = {
        "rounds": 2,
        "algorithm.name": algorithm,
        "sampling.clients": {"scheme": scheme, **rate},
        "privacy": {"unit": unit, "where": where} | ({} if unit == "none" else {"noise_multiplier": 1.0}),
    }
    if (unit, where) == ("sample", "server"):
        changes |= {"local.epochs": None, "local.steps": 1}
    try:
        run = sightline.run(tiny(**changes), out=tmp_path / "run")
    except InvalidInput:
        assert (algorithm, where) == ("local", "server")
        assert not (tmp_path / "run").exists()
        return
    again = accounting.epsilon(dict(max(
        (run.ledger.composition(f"client-{n}", "server" if where == "client" else "public") for n in range(6)),
        key=lambda c: accounting.epsilon(dict(c), 1e-5),
    )), 1e-5)  # fmt: skip
    assert run.epsilon == again


def test_what_nine_in_ten_clients_reach_and_on_how_few_the_worst_was_tried(tiny, tmp_path):
    from sightline.engine import build_experiment
    from sightline.engine.evaluation import tenth_percentile

    experiment = tiny(**{"data.clients": 30, "rounds": 1})
    row = sightline.run(experiment, out=tmp_path / "run").rounds[-1]
    assert row["client_accuracy_worst"] <= row["client_accuracy_decile"] <= 1
    sizes = {len(client.test.y) for client in build_experiment(experiment).federation.clients}
    assert row["client_worst_examples"] in sizes
    values = [place / 100 for place in range(100)]
    assert sum(value >= tenth_percentile(values) for value in values) == 90
    assert tenth_percentile(list(reversed(values))) == tenth_percentile(values)


def test_facts_are_stored_under_their_names_and_read_back(tiny, tmp_path):
    stored = sightline.run(tiny(), out=tmp_path / "run").metadata
    facts = RunFacts.from_stored(stored)
    assert facts.data.sizes == tuple(stored["sizes"])
    assert json.loads(json.dumps(facts.to_stored())).items() <= stored.items()
    del stored["delta"]
    with pytest.raises(KeyError, match="delta"):
        RunFacts.from_stored(stored)
