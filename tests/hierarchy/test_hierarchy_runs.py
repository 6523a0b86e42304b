"""Runs on trees: the model of a naive loop, the ledger of closed-form counts, noise that moves with trust."""

import math
import re

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from safetensors.torch import load_file

import sightline
from sightline import engine
from sightline.apps.report import RunView
from sightline.apps.report.matrix import matrix_by_lines
from sightline.errors import InvalidInput
from sightline.events import Allocation, Clear, Gaussian, Poisson, Pooled, Segment
from sightline.ledger import Ledger
from sightline.topology.tree import ELSEWHERE, SAME, UNTRUSTED
from sightline.training.dp_sgd_settings import DPSGDSettings
from tests.engine.test_resume import Crash, crash_in, left_behind
from tests.oracle.hierarchy_naive import h2fdp

DELTA = 1e-5


def flat(run, setting):
    return setting.model.join(load_file(run.directory / "model.safetensors")).numpy()


def epsilon_by_google(events):
    """Composed by another library."""
    accountant = PLDAccountant()
    for event, times in events.items():
        inner = dp_event.GaussianDpEvent(
            event.noise_multiplier if isinstance(event, Gaussian) else event.event.noise_multiplier
        )
        made = inner if isinstance(event, Gaussian) else dp_event.PoissonSampledDpEvent(event.rate, inner)
        accountant.compose(made, times)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("rate", [None, 0.6])
@pytest.mark.parametrize("trusted", [[], ["edge-0", "edge-1"], 1.0])
def test_h2fdp_ends_where_the_naive_loop_does(treed, tmp_path, rate, trusted):
    sampling = {"scheme": "full"} if rate is None else {"scheme": "poisson", "rate": rate}
    experiment = treed(**{"topology.trusted": trusted, "sampling.clients": sampling})
    setting = engine.build_experiment(experiment)
    run = sightline.run(experiment, out=tmp_path / "run")
    edges = [(channel.members, channel.trusted) for channel in setting.topology.channels]
    expected = h2fdp(
        setting.federation, setting.start.numpy(), edges, rounds=3, tau=6, every=2, gamma=0.3, radius=0.5, batch_size=4,
        noise=0.8, seed=experiment.seed, rate=rate,
    )  # fmt: skip
    np.testing.assert_allclose(flat(run, setting), expected, rtol=2e-4, atol=2e-5)


def test_counts_per_observer_in_closed_form(treed, tmp_path):
    """R intervals of K_l segments: everybody has R K_l releases to answer for; how much each hides is the observer's."""
    run = sightline.run(treed(), out=tmp_path / "run")
    releases = 3 * 3
    trusted, alone, untrusted = "client-0", "client-3", "client-4"
    for observer in ("cloud", "public", "edge-2", "client-5"):
        for subject in (trusted, alone):
            assert run.ledger.composition(subject, observer) == {Gaussian(0.8): releases}
    for observer in ("cloud", "public", "client-0", "edge-2"):
        assert run.ledger.composition(untrusted, observer).total() == releases
    assert run.ledger.composition(trusted, "edge-0")[Clear()] == releases
    assert run.ledger.composition(trusted, "edge-1")[Clear()] == 0  # another trusted edge was handed nothing of it
    assert run.summary["trusted"] == ["edge-0", "edge-1"]
    assert set(run.summary["observers"]) == {"cloud", UNTRUSTED, SAME, ELSEWHERE, "public"}


def test_noises_of_devices_add_up_except_for_who_gathers_them(treed, tmp_path):
    run = sightline.run(treed(**{"topology": {"kind": "tree", "subnets": [5, 1]}}), out=tmp_path / "run")
    pooled = Pooled(4, Gaussian(0.8))
    for observer in ("cloud", "client-1", "client-5", "edge-1"):
        assert run.ledger.composition("client-0", observer) == {pooled: 9}
    assert run.ledger.composition("client-0", "public") == {Pooled(5, Gaussian(0.8)): 9}
    assert run.ledger.composition("client-0", "edge-0") == {Gaussian(0.8): 9}
    assert run.ledger.composition("client-5", "cloud") == {Gaussian(0.8): 9}  # nobody to hide among
    assert run.ledger.composition("client-0", {"cloud", "edge-0"}) == {Gaussian(0.8): 9}
    assert run.ledger.composition("client-0", {"client-1", "client-2"}) == {
        Pooled(3, Gaussian(0.8)): 9
    }  # two are known
    assert run.ledger.composition("client-0", {f"client-{n}" for n in range(1, 6)}) == {Pooled(1, Gaussian(0.8)): 9}
    seen = run.summary["observers"]
    assert seen[UNTRUSTED] == pytest.approx(epsilon_by_google({Gaussian(0.8): 9}), rel=2e-3)
    assert seen[SAME] == pytest.approx(epsilon_by_google({Gaussian(1.6): 9}), rel=2e-3)
    assert seen[SAME] < seen["cloud"] == seen[UNTRUSTED]  # the lone device is as exposed to the cloud


def test_what_pooling_claims_is_what_the_sum_of_noises_does():
    """Monte Carlo: of k noises the observer knows one; z of what is left is sqrt(k - 1) z up to 5 sigma."""
    rng, k, z = np.random.default_rng(0), 5, 0.8
    noises = z * rng.standard_normal((200_000, k))
    unknown = noises.sum(1) - noises[:, 0]
    assert np.std(unknown) == pytest.approx(z * math.sqrt(k - 1), rel=5 / math.sqrt(2 * 200_000))


def test_hidden_participation_counts_only_where_it_is_hidden(treed, tmp_path):
    experiment = treed(**{"sampling.clients": {"scheme": "poisson", "rate": 0.5}})
    run = sightline.run(experiment, out=tmp_path / "run")
    assert run.ledger.composition("client-0", "cloud") == {Poisson(0.5, Gaussian(0.8)): 9}
    taken = run.ledger.composition("client-4", "edge-2")
    assert set(taken) <= {Gaussian(0.8)}  # the untrusted edge knows who answered
    assert 0 < taken[Gaussian(0.8)] < 9


@pytest.mark.parametrize("sampling", [{"scheme": "full"}, {"scheme": "poisson", "rate": 0.4}])
@pytest.mark.parametrize("trusted", [0.0, ["edge-0"], ["edge-2", "edge-1"], 1.0])
def test_every_observer_stays_within_the_target(treed, tmp_path, trusted, sampling):
    changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 5.0, "topology.trusted": trusted}
    experiment = treed(**changes, **{"sampling.clients": sampling})
    run = sightline.run(experiment, out=tmp_path / "run")
    tree = engine.build_experiment(experiment).topology
    parties = {"cloud", "public", *(node.name for node in tree.nodes), *(f"client-{n}" for n in range(6))}
    epsilons = [
        run.ledger.epsilon(f"client-{n}", observer, DELTA)
        for n in range(6) for observer in parties - set(tree.trusted) - {f"client-{n}"}
    ]  # fmt: skip
    assert max(epsilons) == run.epsilon <= 5.0
    if sampling["scheme"] == "full":
        assert run.epsilon > 4.99


def test_noise_moves_with_trust(treed):
    """Trust handed from edge to edge: the trusted one is handed clean sums and noises them, the others' devices do."""
    changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 5.0, "topology.subnets": 3}
    hidden = {"sampling.clients": {"scheme": "poisson", "rate": 0.4}}
    for name in ("edge-0", "edge-1", "edge-2"):
        setting = engine.calibrate_noise(
            engine.build_experiment(treed(**changes, **hidden, **{"topology.trusted": [name]}))
        )
        ledger = engine.plan_releases(setting)
        number = int(name[-1])
        for edge in range(3):
            members = [f"client-{n}" for n in (2 * edge, 2 * edge + 1)]
            sources = {r.source for r in ledger if r.subjects & set(members) and r.event not in (Clear(),)}
            assert sources == ({name} if edge == number else set(members))
            clear = [r for r in ledger if r.event == Clear() and r.subjects & set(members)]
            assert all(r.audience == {name} for r in clear)
            assert bool(clear) == (edge == number)
        needed = setting.mechanism.multipliers
        at_edge, at_device = needed[2 * number], needed[(2 * number + 2) % 6]
        assert at_edge < at_device  # participation is hidden behind the trusted edge only
        assert name not in [line.observer for line in setting.topology.lines[UNTRUSTED]]


def test_two_levels_are_noised_once_at_the_top_of_the_trusted_chain(treed, tmp_path):
    tree = {"kind": "tree", "levels": [3, 2], "trusted": ["edge-0", "region-0"]}
    run = sightline.run(treed(**{"topology": tree, "algorithm": {"name": "fedavg"}}), out=tmp_path / "run")
    noisy = [r for r in run.ledger if r.source == "region-0"]
    assert {tuple(sorted(r.subjects)) for r in noisy} == {("client-0", "client-1")}
    assert all(r.audience == {"region-0", "cloud"} for r in noisy)
    clear = [r for r in run.ledger if r.event == Clear()]
    assert all(r.audience == {"edge-0", "region-0"} for r in clear)
    assert math.isfinite(run.epsilon)


@pytest.mark.parametrize("algorithm", ["h2fdp", "fedavg", "scaffold"])
@pytest.mark.parametrize(("name", "call"), [("save_checkpoint", 2), ("evaluate_models", 2)])
def test_an_interrupted_run_ends_as_an_unbroken_one(treed, tmp_path, monkeypatch, algorithm, name, call):
    experiment = treed(**{"algorithm": {"name": algorithm}, "local.steps": 5})
    with monkeypatch.context() as patch:
        crash_in(patch, engine.loop, name, call, before=True)
        with pytest.raises(Crash):
            sightline.run(experiment, out=tmp_path / "broken")
    sightline.run(experiment, out=tmp_path / "whole")
    sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")


FLAT = ["fedavg", "fedavgm", "fedprox", "fedadagrad", "fedadam", "fedyogi", "scaffold", "feddyn", "pfedme"]


@pytest.mark.parametrize("algorithm", FLAT)
def test_without_privacy_a_tree_is_a_star(treed, tmp_path, algorithm):
    open_ = {"privacy": {"unit": "none"}, "algorithm": {"name": algorithm, "upcycle": 0.3}, "rounds": 2}
    tree = sightline.run(treed(**open_), out=tmp_path / "tree")
    star = sightline.run(treed(**open_, **{"topology": {"kind": "star"}}), out=tmp_path / "star")
    setting = engine.build_experiment(treed(**open_))
    np.testing.assert_allclose(flat(tree, setting), flat(star, setting), rtol=1e-4, atol=1e-6)
    assert math.isinf(tree.epsilon)


@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize("where", ["edge", "client"])
def test_flat_algorithms_stay_within_their_target(treed, tmp_path, algorithm, where):
    changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 6.0, "privacy.where": where, "rounds": 2}
    run = sightline.run(treed(**changes, **{"algorithm": {"name": algorithm}}), out=tmp_path / "run")
    assert 5.99 < run.epsilon <= 6.0
    worst = run.ledger.composition("client-4", "edge-2")
    assert epsilon_by_google(worst) <= 6.0 * 1.002


@pytest.mark.parametrize("changes", [
    {"topology": {"kind": "tree", "subnets": 1}},
    {"topology": {"kind": "tree", "subnets": 6, "trusted": 0.5}},
    {"topology": {"kind": "tree", "subnets": 2}, "algorithm.name": "hfl_dp", "privacy.where": None},
    {"topology": {"kind": "tree", "subnets": 1}, "algorithm.name": "pedpfl", "privacy.where": None},
    {"topology": {"kind": "star"}, "algorithm.name": "pedpfl", "privacy.where": None},
    {"privacy": {"unit": "none"}, "algorithm.name": "hfl"},
    {"privacy.adjacency": "replace"},
    {"algorithm.upcycle": 0.3},
    {"algorithm.schedule": "constant", "privacy.arithmetic": "integer"},
    {"privacy.unit": "sample", "topology.trusted": 0.0},
    {"privacy.unit": "sample", "topology": {"kind": "tree", "subnets": 2}, "algorithm.name": "hfl_dp"},
    {"privacy.unit": "sample", "topology": {"kind": "tree", "subnets": 1}, "algorithm.name": "pedpfl"},
    {"topology.trusted": [0.0, 1.0, 0.5], "algorithm.subnet_weights": "equal"},
])  # fmt: skip
def test_corners_run(treed, tmp_path, changes):
    run = sightline.run(treed(rounds=2, **changes, **{"algorithm.local_aggregation": 2}), out=tmp_path / "run")
    assert run.summary["rounds_done"] == 2
    assert math.isinf(run.epsilon) == (run.summary["unit"] == "none")


def vector_of(run):
    return torch.nn.utils.parameters_to_vector(run.model().parameters()).detach()


def test_every_subnet_releases_as_often_as_it_aggregates(treed, tmp_path):
    run = sightline.run(treed(**{"algorithm.local_aggregation": [2, 6, 3]}), out=tmp_path / "run")
    for subject, observer, segments in (("client-0", "cloud", 3), ("client-3", "cloud", 1), ("client-4", "edge-2", 2)):
        assert run.ledger.composition(subject, observer) == {Gaussian(0.8): 3 * segments}
    # Before the first global model a device of another subnet has seen nothing.
    first = next(release for release in run.ledger if release.source == "edge-0" and release.time == 1)
    assert "client-4" not in first.audience


def test_equal_lengths_give_the_bits_of_one_length(treed, tmp_path):
    one = sightline.run(treed(), out=tmp_path / "one")
    each = sightline.run(treed(**{"algorithm.local_aggregation": [2, 2, 2]}), out=tmp_path / "each")
    assert torch.equal(vector_of(one), vector_of(each))


def test_the_global_model_weighs_subnets_as_asked(treed, tmp_path):
    """Without noise and with one step: the global model is the weighted mean of what each subnet finds alone."""
    changes = {"privacy": {"unit": "none"}, "algorithm": {"name": "hfl", "local_aggregation": 6}, "rounds": 1}
    weighted = treed(**changes, **{"algorithm.subnet_weights": [1, 2, 5]})
    alone = []
    for k in range(3):
        only = {"algorithm.subnet_weights": [1e-12 if n != k else 1.0 for n in range(3)]}
        alone.append(vector_of(sightline.run(treed(**changes, **only), out=tmp_path / str(k))))
    found = vector_of(sightline.run(weighted, out=tmp_path / "all"))
    wanted = sum(weight * vector.double() for weight, vector in zip((1 / 8, 2 / 8, 5 / 8), alone, strict=True))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_sample_unit_counts_whole_segments(treed, tmp_path):
    changes = {"privacy.unit": "sample", "privacy.noise_multiplier": None, "privacy.epsilon": 4.0}
    experiment = treed(**changes)
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    run = sightline.run(experiment, out=tmp_path / "run")
    plans, sizes = setting.mechanism.plans, setting.federation.sizes
    assert plans[4].rate == min(4, sizes[4]) / sizes[4]
    (event,) = run.ledger.composition("client-4", "edge-2")
    assert isinstance(event, Segment)
    assert (event.steps, event.rate) == (2, 4 / sizes[4])
    assert event.first_step == pytest.approx(1 / (2 * 4), abs=1e-4)  # C / 2 G b with C = G
    assert run.ledger.composition("client-4", "edge-2")[event] == 9
    assert 3.99 < run.epsilon <= 4.0
    (below,) = run.ledger.composition("client-0", "cloud")
    assert below.rate == min(1.0, 4 / min(sizes[:3]))  # the member that is drawn most often
    assert below.first_step == pytest.approx(1 / (2 * min(4, *sizes[:3])), abs=1e-4)


def test_one_example_moves_a_segment_by_at_most_twice_its_norm(treed):
    """Brute force: exchange one example of a device and look how far its released sum can move."""
    experiment = treed(**{"privacy.unit": "sample", "privacy.clip_norm": 0.2})
    setting = engine.build_experiment(experiment)
    shard = setting.federation.clients[4].train
    from sightline.training import LocalTerms, LocalWork, dp_sgd

    def segment(x):
        work = LocalWork(learning_rate=0.3, batch_size=4, steps=4, step_norm=0.2)
        rng = [np.random.default_rng(5)]
        blocks = dp_sgd(
            setting.model,
            setting.start,
            [type(shard)(x, shard.y)],
            work,
            DPSGDSettings(
                clip_norm=0.2,
                noise_std=[0.0],
                sample_rates=[1.0],
                steps=[4],
                divisors=[1.0],
                sampling_rngs=rng,
                noise_rngs=rng,
            ),
            terms=LocalTerms(),
        )
        return next(blocks)[1][0] - setting.start

    other = shard.x.copy()
    other[0] = -100 * other[0]
    before, after = segment(shard.x), segment(other)
    assert float(before.norm()) <= 0.3 * 4 * 0.2 * (1 + 1e-6)
    assert float((before - after).norm()) <= 2 * 0.3 * 4 * 0.2 * (1 + 1e-6)


@pytest.mark.parametrize(("changes", "words"), [
    ({"local.momentum": 0.5}, "beyond eta m G"),
    ({"local.steps": 7}, "divisor of local.steps"),
    ({"local": {"epochs": 1}}, "counts steps"),
    ({"sampling.clients": {"scheme": "balanced", "uses": 2}}, "allows one use per round"),
    ({"privacy.where": "server"}, "before the cloud could add noise"),
    ({"privacy.unit": "sample", "privacy.where": "client"}, "adds noise to sums of clipped steps"),
    ({"algorithm.name": "hfl"}, "without privacy"),
    ({"algorithm": {"name": "hfl_dp"}}, "every device adds noise"),
    ({"algorithm": {"name": "hfl_dp"}, "privacy.unit": "sample"}, "topology.trusted=.*trusts no server"),
    ({"algorithm.name": "pedpfl", "privacy.unit": "sample", "topology": {"kind": "star"}}, "without trusted servers"),
    ({"algorithm.local_aggregation": []}, "whole number of steps"),
    ({"algorithm.local_aggregation": [2, 3]}, "2 values for 3 subnets"),
    ({"algorithm.local_aggregation": [2, 3, 4]}, "local_aggregation=4: an interval of local.steps=6"),
    ({"algorithm.local_aggregation": [2, 3, 6], "topology": {"kind": "tree", "levels": [3, 1], "trusted": 1.0}},
     "trusted region sums several subnets"),
    ({"algorithm.subnet_weights": [1, 2, -1]}, "positive number for each subnet"),
    ({"topology.trusted": [0.5, 0.5]}, "2 probabilities for 3 servers"),
    ({"algorithm.name": "pedpfl", "privacy.where": "client"}, "one subnet"),
    ({"algorithm": {"name": "h2fdp", "schedule": "cosine"}}, "unknown step size schedule"),
    ({"algorithm": {"name": "local"}}, "runs on star"),
    ({"topology": {"kind": "star"}}, "runs on tree"),
    ({"algorithm": {"name": "fedavg"}, "topology": {"kind": "star"}}, "has no edge servers"),
    ({"algorithm": {"name": "fedavg"}, "privacy.unit": "sample"}, "of many unclipped steps has no bound"),
    ({"algorithm": {"name": "fedavg"}, "privacy.where": "server"}, "would see updates without noise"),
    ({"algorithm": {"name": "scaffold"}, "privacy.adjacency": "replace",
      "sampling.clients": {"scheme": "fixed", "rate": 0.5}}, "keep state"),
])  # fmt: skip
def test_what_does_not_compose_is_refused(treed, tmp_path, changes, words):
    with pytest.raises(InvalidInput, match=words) as error:
        sightline.run(treed(**changes), out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_trusted_cloud_noises_once(treed, tmp_path):
    changes = {"privacy.where": "server", "topology.trusted": 1.0, "algorithm": {"name": "fedavg"}}
    run = sightline.run(treed(**changes), out=tmp_path / "run")
    star = sightline.run(treed(**changes, **{"topology": {"kind": "star"}}), out=tmp_path / "star")
    setting = engine.build_experiment(treed(**changes))
    np.testing.assert_allclose(flat(run, setting), flat(star, setting), rtol=1e-5)
    assert run.epsilon == star.epsilon
    assert run.summary["trusted"] == ["edge-0", "edge-1", "edge-2", "cloud"]


def test_schedules_of_regions_are_apart(treed, tmp_path):
    """Two regions must not share a hidden schedule: members of one would give away the coins of the other's."""
    changes = {
        "topology": {"kind": "tree", "levels": [4, 2], "trusted": 1.0}, "data.clients": 8, "rounds": 12,
        "algorithm": {"name": "fedavg"}, "sampling.clients": {"scheme": "balanced", "uses": 6},
    }  # fmt: skip
    setting = engine.build_experiment(treed(**changes))
    assert [channel.name for channel in setting.topology.gathering_channels] == ["region-0", "region-1"]
    assert len({setting.channel_number(channel) for channel in setting.topology.gathering_channels}) == 2
    run = sightline.run(treed(**changes), out=tmp_path / "run")
    (event,) = run.ledger.composition("client-0", "cloud")
    assert event == Allocation(12, 6, Gaussian(0.8))


def test_the_report_has_a_column_for_every_kind(treed, tmp_path):
    run = sightline.run(treed(**{"topology.subnets": [1, 2, 3]}), out=tmp_path / "run")
    table = matrix_by_lines(RunView.read(run.directory))
    assert [column.kind for column in table.columns] == ["cloud", UNTRUSTED, SAME, ELSEWHERE, "public", "trusted"]
    rows = {subjects: cells for subjects, _, cells in table.rows}
    assert set(rows) == {"client-0", "client-1..2", "client-3..5"}
    assert (rows["client-0"][2].text, rows["client-0"][2].there) == ("–", False)  # it has no mates
    own, pooled = rows["client-3..5"][1], rows["client-3..5"][0]
    assert pooled.epsilon == run.ledger.epsilon("client-3", "cloud", DELTA) < own.epsilon
    assert own.epsilon == run.ledger.epsilon("client-3", "edge-2", DELTA)
    assert all(cells[-1].clear == ("client-3" not in subjects) for subjects, cells in rows.items())
    page = run.report.read_text()
    assert "devices of the same subnet" in page
    heads = " ".join(re.findall(r'<th scope="col".*?</th>', page))
    assert "the worst of" in heads
    assert ".." not in re.sub(r'title="[^"]*"', "", heads)


def test_an_edge_knows_nothing_of_the_others_inside_an_interval(treed, tmp_path):
    """Local releases flow from their own edge's only; the cloud's mean brings them together."""
    run = sightline.run(treed(rounds=1), out=tmp_path / "run")
    local = [r for r in run.ledger if r.source == "edge-0" and "client-0" in r.audience]
    assert len(local) == 2
    behind = run.ledger.view("client-0").composition("client-4").total()
    assert behind == 3  # by the global model at the end of the interval
    within = Ledger([release for release in run.ledger if release.id <= local[-1].id])
    assert within.composition("client-4", "client-0").total() == 0
    assert within.composition("client-1", "client-0").total() == 2


def test_a_budget_stops_a_tree(treed, tmp_path):
    whole = sightline.run(treed(), out=tmp_path / "whole")
    spent = [max(row["epsilon"].values()) for row in whole.rounds]
    run = sightline.run(treed(**{"privacy.stop_at_epsilon": (spent[1] + spent[2]) / 2}), out=tmp_path / "run")
    assert run.summary["status"] == "stopped"
    assert run.epsilon <= (spent[1] + spent[2]) / 2
