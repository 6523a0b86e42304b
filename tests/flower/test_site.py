"""A site answers only what its own budget allows, with noise that nobody else knows, whatever the server asks."""

import dataclasses
import tomllib

import numpy as np
import pytest
import tomli_w
import torch

from sightline import accounting, engine
from sightline.api import Run
from sightline.config import parse, to_toml
from sightline.data import Client, Federation, Kind
from sightline.errors import Refused
from sightline.ledger import LedgerDamaged
from sightline.runtimes.flower.export import export_shards
from sightline.runtimes.remote.clients import RemoteClients
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.policy import blank_shard
from sightline.runtimes.site.process import ask_site, serve_site
from sightline.runtimes.site.site import Site
from tests.flower.cases import CASES, changed, privacy, releases_of

DELTA = 1e-3
LOCAL = changed(privacy=privacy("client", "client", noise_multiplier=2.0))
CENTRAL = changed()
SAMPLE = changed(privacy=privacy("sample", noise_multiplier=1.0))


@pytest.fixture
def site_of(tmp_path):
    """The folder of client 2's site, its policy changed as asked."""

    def make(plain, *, epsilon=100.0, **policy):
        place = tmp_path / f"sites-{len(list(tmp_path.iterdir()))}"
        folder = export_shards(parse(plain), place, epsilon=epsilon)[2]
        file = folder / "site.toml"
        file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | policy))
        return Site(folder)

    return make


def question(plain, *, call="leaving", round=1, noise=2.0, start=None, run="a", **more):
    experiment = parse(plain)
    parameters = 8 * 5 + 5 + 5 * 3 + 3
    words = {"experiment": to_toml(experiment), "call": call, "client": 2, "round": round, "use": 0, "terms": {},
             "noise": noise, "run": run, "channel": {"name": "server", "clip_factor": 1.0, "noise_factor": 1.0}}  # fmt: skip
    start = np.zeros(parameters, np.float32) if start is None else start
    return WireMessage(words | more, {"start": start})


def test_the_budget_holds_whatever_the_server_asks(site_of):
    site = site_of(LOCAL, epsilon=5.0)
    answers = [site.answer(question(LOCAL, round=round)) for round in range(1, 40)]
    sent = sum("value" in answer.arrays for answer in answers)
    exact = [accounting.gaussian(noise=2.0, steps=steps).epsilon(delta=DELTA) for steps in (sent, sent + 1)]
    assert exact[0] <= 5.0 < exact[1]
    assert site.spent() == pytest.approx(exact[0], rel=1e-6)
    assert all("the site keeps it to itself" in answer.words["refused"] for answer in answers[sent:])


def test_the_budget_outlives_runs_and_processes(site_of):
    site = site_of(LOCAL, epsilon=5.0)
    while "value" in site.answer(question(LOCAL, round=len(releases_of(site)))).arrays:
        pass
    again = Site(site.folder).answer(question(LOCAL, run="another run", round=1))
    assert "refused" in again.words
    weaker = Site(site.folder).answer(question(LOCAL, run="another server", noise=1e-3))
    assert "refused" in weaker.words


@pytest.mark.parametrize("harm", ["gone", "older"])
def test_a_ledger_that_lost_answers_is_no_fresh_budget(harm, site_of):
    site = site_of(LOCAL, epsilon=5.0)
    site.answer(question(LOCAL, round=1))
    budget = site.folder / "state" / "budget.sqlite"
    older = budget.read_bytes()
    site.answer(question(LOCAL, round=2))
    for file in budget.parent.glob("budget.sqlite*"):
        file.unlink()
    if harm == "older":
        budget.write_bytes(older)
    site = Site(site.folder)
    assert "lacks answers" in site.answer(question(LOCAL, round=3)).words["refused"]
    with pytest.raises(LedgerDamaged, match="lacks answers"):
        site.spent()


def test_the_site_computes_the_cost_itself(site_of):
    """A server that lies about the noise gets the noise that it claims, or nothing."""
    site = site_of(LOCAL, epsilon=5.0)
    channel = {"name": "server", "clip_factor": 1.0, "noise_factor": 0.01}
    assert "refused" in site.answer(question(LOCAL, noise=2.0, channel=channel)).words
    assert len(releases_of(site)) == 0


@pytest.mark.parametrize("call", ["train", "leaving"])
def test_nothing_goes_in_the_clear_to_a_server_that_is_not_trusted(call, site_of):
    careful = site_of(CENTRAL, trust_server=False)
    assert "does not trust the server" in careful.answer(question(CENTRAL, call=call)).words["refused"]
    trusting = site_of(CENTRAL, trust_server=True)
    assert "value" in trusting.answer(question(CENTRAL, call=call)).arrays
    assert trusting.spent() == 0


@pytest.mark.parametrize("call", ["train", "dp_sgd", "gradient_sums"])
def test_raw_results_are_no_way_around_local_noise(call, site_of):
    plan = {"clip_norm": 1.0, "noise_multiplier": 1e-6, "rate": 1.0, "steps": 1, "expected_batch": 1.0}
    for plain in (LOCAL, SAMPLE):
        answer = site_of(plain).answer(question(plain, call=call, plan=plan))
        assert "refused" in answer.words


@pytest.mark.parametrize(("policy", "whole"), [({}, True), ({"arithmetic": "float"}, False)])
def test_a_site_computes_in_integers_unless_its_owner_says_otherwise(policy, whole, site_of):
    """What leaves is a whole number of units C / 2^24, whatever the experiment says; it costs the same."""
    site = site_of(LOCAL, **policy)
    value = site.answer(question(LOCAL)).arrays["value"].astype(float)
    units = value / (0.4 * 2.0**-24)
    nearest = np.round(units)
    off = np.abs(value - nearest * (0.4 * 2.0**-24)) > np.spacing(np.abs(value).astype(np.float32))
    assert (not off.any()) is whole
    exact = accounting.gaussian(noise=2.0, steps=1).epsilon(delta=DELTA)
    assert site.spent() == pytest.approx(exact, rel=1e-6)


def test_a_site_that_counts_examples_has_no_integer_form(site_of):
    assert "value" in site_of(SAMPLE).answer(question(SAMPLE, noise=1.0)).arrays


def test_clipped_at_the_site(site_of):
    site = site_of(CENTRAL, trust_server=True)
    value = site.answer(question(CENTRAL)).arrays["value"]
    assert np.linalg.norm(value.astype(float)) <= 0.4


def test_the_same_question_gets_the_same_answer_and_is_charged_once(site_of):
    site = site_of(LOCAL)
    first = site.answer(question(LOCAL))
    again = Site(site.folder).answer(question(LOCAL))
    assert first.arrays["value"].tobytes() == again.arrays["value"].tobytes()
    assert len(releases_of(site)) == 1


def test_another_run_in_between_does_not_make_an_answer_forgotten(site_of):
    """The server that asks again counts one release, so there must be one value."""
    site = site_of(LOCAL)
    first = site.answer(question(LOCAL, run="a"))
    others = [site.answer(question(LOCAL, run=f"b{number}")) for number in range(7)]
    again = Site(site.folder).answer(question(LOCAL, run="a"))
    assert np.array_equal(first.arrays["value"], again.arrays["value"])
    assert len({answer.arrays["value"].tobytes() for answer in [first, *others]}) == 8
    assert len(releases_of(site)) == 8
    site.answer(question(LOCAL, run="a", round=2))
    assert not np.array_equal(site.answer(question(LOCAL, run="a")).arrays["value"], first.arrays["value"])
    assert len(releases_of(site)) == 10, "only the last answer of a run is kept: what was asked before it is new"


def test_another_question_has_other_noise_and_is_charged(site_of):
    """Asked for the same round twice from two starting points, the difference must not be free of noise."""
    site = site_of(LOCAL)
    values = [site.answer(question(LOCAL)).arrays["value"]]
    values += [site.answer(question(LOCAL, start=np.full(63, 1e-6, np.float32))).arrays["value"]]
    values += [site.answer(question(LOCAL, run="b")).arrays["value"]]
    assert len(releases_of(site)) == 3
    for left, right in ((0, 1), (0, 2), (1, 2)):
        # two clipped updates and two noises of 2 x 0.4 each: norm ~ sqrt(2 x 63) x 0.8 = 9; below 4 has odds < 1e-6
        assert np.linalg.norm(values[left] - values[right]) > 4


def test_a_crash_between_ledger_and_answer_is_not_charged_twice(site_of, monkeypatch):
    site = site_of(LOCAL)
    monkeypatch.setattr(type(site._store), "put_answer", lambda *args, **more: 1 / 0)
    assert "ZeroDivisionError" in site.answer(question(LOCAL)).words["refused"]
    assert len(releases_of(site)) == 1
    monkeypatch.undo()
    value = Site(site.folder).answer(question(LOCAL)).arrays["value"]
    assert len(releases_of(site)) == 1
    assert np.isfinite(value).all()


def test_noise_is_from_the_operating_system(site_of):
    """Two sites with the same data, asked the same, differ: no seed gives the noise away."""
    values = [site_of(LOCAL).answer(question(LOCAL)).arrays["value"] for _ in range(2)]
    assert np.linalg.norm(values[0] - values[1]) > 4
    for folder in (site_of(LOCAL).folder,):
        assert (folder / "state" / "noise-root.secret").stat().st_mode & 0o077 == 0


def test_the_noise_has_the_scale_that_is_charged(site_of):
    site = site_of(LOCAL)
    # learning from zeros: the update is within 0.4, noise std is 2 x 0.4; 40 answers x 63 numbers, 8 sigma bounds
    values = np.stack([site.answer(question(LOCAL, round=n)).arrays["value"] for n in range(1, 41)]).astype(float)
    spread = (values - values.mean(0)).std() * np.sqrt(40 / 39)
    assert spread == pytest.approx(0.8, rel=8 / np.sqrt(2 * values.size))


def test_private_steps_are_charged_as_the_site_runs_them(site_of):
    site = site_of(SAMPLE, epsilon=50.0)
    site.answer(question(SAMPLE, noise=1.0))
    assert len(releases_of(site)) == 1
    examples = len(site.data.train)
    rate, steps = min(8, examples) / examples, 2 * -(-examples // 8)
    exact = accounting.poisson(noise=1.0, rate=rate, steps=steps).epsilon(delta=DELTA)
    assert site.spent() == pytest.approx(exact, rel=1e-6)


SEGMENTS = changed(
    topology={"kind": "tree", "subnets": 2, "trusted": 0.0},
    algorithm={"name": "h2fdp", "local_aggregation": 1},
    local={"steps": 4, "batch_size": 2, "learning_rate": 0.2},
    privacy=privacy("sample", "edge", noise_multiplier=1.0),
)


def test_a_segment_is_charged_for_no_fewer_steps_than_it_makes(site_of):
    """40 batches of 2 draw nearly every example; a server that speaks of one batch does not make it cheaper."""
    site = site_of(SEGMENTS)
    channel = {"name": "edge-0", "clip_factor": 1.0, "noise_factor": 1.0, "trusted": False}
    lying = {"steps": 40, "most_steps": 1, "learning_rate": 0.2}
    refused = site.answer(question(SEGMENTS, noise=1.0, channel=channel, terms=lying)).words["refused"]
    assert "most_steps=1" in refused
    assert len(releases_of(site)) == 0
    honest = lying | {"most_steps": 40}
    assert "value" in site.answer(question(SEGMENTS, noise=1.0, channel=channel, terms=honest)).arrays
    rate = 1 - (1 - 2 / len(site.data.train)) ** 40
    exact = accounting.poisson(noise=1.0, rate=rate, steps=1).epsilon(delta=DELTA)
    assert site.spent() == pytest.approx(exact, rel=1e-6)


def test_what_a_client_keeps_stays_at_the_site_and_a_repeated_round_begins_where_it_did(site_of):
    plain = changed(algorithm={"name": "feddyn"}, privacy=privacy("client", "client", noise_multiplier=2.0))
    rule = {"rule": "GradientMemory", "settings": {"alpha": 0.1}}
    site = site_of(plain)
    first = site.answer(question(plain, memory=rule))
    assert set(first.arrays) == {"value"}
    store, at = site._store, dataclasses.make_dataclass("At", ["round", "use"])
    after_one = store.kept("a", "gradient", at(2, 0))
    assert store.kept("a", "gradient", at(1, 0)) is None
    site.answer(question(plain, memory=rule, round=2))
    assert torch.equal(store.kept("a", "gradient", at(2, 0)), after_one)
    assert not torch.equal(store.kept("a", "gradient", at(3, 0)), after_one)
    assert store.kept("b", "gradient", at(3, 0)) is None


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"call": "everything"}, "no such question"),
        ({"round": "soon"}, "not one that this version asks"),
        ({"memory": {"rule": "os.system", "settings": {}}}, "no rule that this node knows"),
        ({"experiment": "]"}, "not TOML"),
    ],
)
def test_nonsense_is_refused_in_one_line(change, law, site_of):
    site = site_of(LOCAL)
    asked = question(LOCAL)
    refused = site.answer(WireMessage(dict(asked.words) | change, asked.arrays)).words["refused"]
    assert law in refused
    assert "\n" not in refused
    assert len(releases_of(site)) == 0


@pytest.mark.parametrize(
    ("plain", "law"),
    [
        (SAMPLE, "budget is for unit=client"),
        (changed(privacy={"unit": "none"}), "budget is for unit=client"),
        (changed(model={"name": "os:system"}, privacy=LOCAL["privacy"]), "no code that it has not allowed"),
        (changed(data=LOCAL["data"] | {"clients": 2}, privacy=LOCAL["privacy"]), "the experiment has 2 clients"),
    ],
)
def test_experiments_that_the_policy_does_not_allow(plain, law, site_of):
    site = site_of(LOCAL)
    assert law in site.answer(question(plain)).words["refused"]
    assert len(releases_of(site)) == 0


def test_a_delta_that_promises_nothing_is_refused_by_the_site(site_of):
    said = site_of(LOCAL, delta=0.5).answer(question(LOCAL)).words
    assert "clients at random would meet it" in said["refused"]
    assert "refused" not in site_of(LOCAL, delta=0.5, allow_large_delta=True).answer(question(LOCAL)).words
    with pytest.raises(Refused, match=r"site\.toml: delta=0\.5: publishing one of \d+ examples"):
        site_of(SAMPLE, delta=0.5)


def test_a_start_of_the_wrong_size_is_refused(site_of):
    assert "63 parameters" in site_of(LOCAL).answer(question(LOCAL, start=np.zeros(5, np.float32))).words["refused"]


def test_a_site_behind_a_socket(site_of, tmp_path):
    import threading

    site, ready = site_of(LOCAL), threading.Event()
    door = tmp_path / "door"
    assert "nobody answers" in ask_site(door, WireMessage()).words["refused"]
    threading.Thread(target=serve_site, args=(site, door), kwargs={"ready": ready.set}, daemon=True).start()
    assert ready.wait(600)
    assert ask_site(door, WireMessage({"call": "hello"})).words["client"] == 2
    assert ask_site(door, question(LOCAL)).arrays["value"].shape == (63,)


BROKEN = np.full(63, 3e38, np.float32)


def test_that_an_update_was_not_finite_is_told_only_to_who_may_see_it(site_of):
    told = site_of(CENTRAL, trust_server=True).answer(question(CENTRAL, start=BROKEN))
    assert told.words["rejected"] is True
    assert not told.arrays["value"].any()
    silent = site_of(LOCAL).answer(question(LOCAL, start=BROKEN))
    assert silent.words["rejected"] is False
    assert np.isfinite(silent.arrays["value"]).all()


def test_of_a_failed_computation_nothing_is_told(site_of, monkeypatch):
    from sightline.runtimes.remote.client_executor import ClientSide

    def fails(*args):
        raise ValueError("example 17 is 0.25")

    site = site_of(LOCAL)
    monkeypatch.setattr(ClientSide, "compute_task", fails)
    refused = site.answer(question(LOCAL)).words["refused"]
    assert "0.25" not in refused
    assert len(releases_of(site)) == 1


@pytest.mark.parametrize(
    "case", ["objective", "output, exact", "parts, local noise", "private steps", "tree, own noise"]
)
def test_sites_and_a_server_without_data_run_the_mechanisms_of_members(case, tmp_path):
    """The whole way, without a network: a server that knows sizes only, and six sites."""
    plain = CASES[case]
    experiment = parse(plain)
    trusting = {"trust_server": True} if "tree" in case else {}
    sites = {}
    for number, folder in enumerate(export_shards(experiment, tmp_path / "sites", epsilon=1e6)):
        file = folder / "site.toml"
        file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | trusting))
        sites[number] = Site(folder)

    class Direct:
        def ask(self, letters, group):
            return {n: WireMessage.from_bytes(sites[n].answer(letter).to_bytes()) for n, letter in letters.items()}

        def close(self):
            pass

    like = sites[0].data.train
    blank = tuple(Client(blank_shard(like, len(site.data.train)), blank_shard(like, 0)) for site in sites.values())
    federation = Federation("sites", blank, blank_shard(like, 0), 3, Kind.VECTOR)
    setting = engine.calibrate_noise(engine.build_experiment(experiment, federation=federation), real_nodes=True)
    told = []
    (tmp_path / "run").mkdir()
    engine.run_loop(
        setting, tmp_path / "run",
        lambda setting, *streams: RemoteClients(setting, Direct(), words={"run": "a"}, simulated=False,
                                         tell=lambda *words: told.append(words)),
        resume=False,
    )  # fmt: skip
    assert told == []
    run = Run(tmp_path / "run")
    # a site's own ledger and the server's agree on what the site has let go of, against a server that is not trusted
    for number, site in sites.items():
        if site.policy.trust_server:
            continue
        assert site.spent() == pytest.approx(run.ledger.epsilon(f"client-{number}", "server", DELTA), rel=1e-9)


def frozen_head(input_shape, classes):
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(input_shape[0], classes))
    layers[1].bias.requires_grad_(False)
    return layers


def test_frozen_tensors_of_another_start_are_not_taken_for_the_sites_own(site_of):
    """The server's file would hold other frozen tensors than the factory made at the site."""
    own = LOCAL | {"model": {"name": "tests.flower.test_site:frozen_head"}}
    site = site_of(own, own_code=True)
    start = np.zeros(parse(own).data.features * 3, np.float32)
    assert "value" in site.answer(question(own, start=start)).arrays
    told = site.answer(question(own | {"model": own["model"] | {"init": "start.safetensors"}}, start=start)).words
    assert "'1.bias'" in told["refused"]
    assert "do not travel" in told["refused"]
