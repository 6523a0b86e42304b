"""A site answers the calls of experiments that its owner approved, with noise that nobody else knows, within its budget."""

import logging
import tomllib

import numpy as np
import pytest
import tomli_w
import torch

from sightline import accounting, engine
from sightline.api import Run
from sightline.config import parse
from sightline.data import Client, Federation, Kind
from sightline.errors import BudgetExhausted, InvalidInput, Refused
from sightline.ledger import Ledger, LedgerDamaged
from sightline.runtimes.flower.export import export_shards
from sightline.runtimes.remote.clients import RemoteClients
from sightline.runtimes.remote.message import WireMessage, experiment_digest
from sightline.runtimes.site.policy import blank_shard
from sightline.runtimes.site.process import ask_site, serve_site
from sightline.runtimes.site.site import CLOSED, Site
from sightline.runtimes.site.state import RunStore
from tests.flower.cases import CASES, changed, privacy, releases_of

DELTA = 1e-3
LOCAL = changed(privacy=privacy("client", "client", noise_multiplier=2.0))
CENTRAL = changed()
SAMPLE = changed(privacy=privacy("sample", noise_multiplier=1.0))


@pytest.fixture
def site_of(tmp_path):
    """Client 2's site, its policy changed as asked, the experiment approved `approved` times."""

    def make(plain, *, epsilon=100.0, approved=1, **policy):
        place = tmp_path / f"sites-{len(list(tmp_path.iterdir()))}"
        folder = export_shards(parse(plain), place, epsilon=epsilon)[2]
        file = folder / "site.toml"
        file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | policy))
        site = Site(folder)
        for _ in range(approved):
            approve(site, plain)
        return site

    return make


def approve(site, plain):
    return site.approve(site.draw_up(parse(plain)))


def question(plain, *, call="leaving", round=1, use=0, part=0, start=None, run="a", arrays=None, **more):
    parameters = 8 * 5 + 5 + 5 * 3 + 3
    words = {"digest": experiment_digest(parse(plain)), "run": run, "call": call, "client": 2, "round": round,
             "use": use, "part": part}  # fmt: skip
    start = np.zeros(parameters, np.float32) if start is None else start
    return WireMessage(words | more, {"start": start} | (arrays or {}))


def refused_by(site, message):
    """Why a site refuses, as its log says; the server is told that, or only that the site is closed."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("sightline.site").addHandler(handler)
    try:
        answer = site.answer(message)
    finally:
        logging.getLogger("sightline.site").removeHandler(handler)
    assert not answer.arrays
    why = lines[-1].partition("refused: ")[2] or lines[-1]
    assert answer.fields["refused"] in (why, CLOSED)
    return why


def reserved(site):
    """What the one approval costs alone; the filter over all of them counts no less."""
    (approval,) = site.approvals.all()
    assert site.spent() >= approval.epsilon * (1 - 1e-9)
    return approval.epsilon


def state_of(site, number=0):
    """What the site remembers of a run."""
    return RunStore(site.folder / "state" / "approvals" / f"{site.approvals.all()[number].id}.secret")


def test_what_is_reserved_is_what_the_whole_length_costs(site_of):
    site = site_of(LOCAL, epsilon=5.0)
    exact = accounting.gaussian(noise=2.0, steps=4).epsilon(delta=DELTA)
    assert reserved(site) == pytest.approx(exact, rel=1e-6)
    answers = [site.answer(question(LOCAL, round=round)) for round in range(1, 7)]
    assert ["value" in answer.arrays for answer in answers] == [True] * 4 + [False] * 2
    assert "is not in the plan" in answers[4].fields["refused"]
    assert reserved(site) == pytest.approx(exact, rel=1e-6)


def test_an_experiment_that_does_not_fit_the_budget_is_not_approved(site_of):
    site = site_of(LOCAL, epsilon=5.0)
    with pytest.raises(BudgetExhausted, match="epsilon=5"):
        approve(site, LOCAL | {"rounds": 40})
    assert len(site.approvals.all()) == 1
    weaker = LOCAL | {"privacy": LOCAL["privacy"] | {"noise_multiplier": 0.1}}
    with pytest.raises(BudgetExhausted):
        approve(Site(site.folder), weaker)
    assert "no experiment with this digest is approved" in site.answer(question(weaker)).fields["refused"]


def test_what_the_owner_reads(site_of):
    site = site_of(LOCAL, approved=0)
    said = "\n".join(site.describe(site.draw_up(parse(LOCAL))))
    for words in ("at most 4 answers of client-2", "noise multiplier 2", "clip norm 0.4", "epsilon 3.1", "not signed",
                  "at most 6 local steps", "the server and everybody else"):  # fmt: skip
        assert words in said
    assert site.approvals.all() == []


def test_a_second_run_needs_a_second_approval(site_of):
    site = site_of(LOCAL)
    assert "value" in site.answer(question(LOCAL, run="a")).arrays
    assert "bound to another run" in site.answer(question(LOCAL, run="b")).fields["refused"]
    once = site.spent()
    approve(site, LOCAL)
    assert site.spent() > once
    other = Site(site.folder).answer(question(LOCAL, run="b"))
    assert np.linalg.norm(other.arrays["value"] - site.answer(question(LOCAL, run="a")).arrays["value"]) > 4
    assert len(releases_of(site)) == 2


def test_data_that_changed_after_the_approval_are_not_used(site_of):
    site = site_of(LOCAL)
    with np.load(site.folder / "data.npz") as found:
        arrays = {name: np.array(found[name]) for name in found}
    np.savez(site.folder / "data.npz", **arrays | {"train_x": arrays["train_x"] + 1})
    assert "approve the experiment again" in Site(site.folder).answer(question(LOCAL)).fields["refused"]


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
    assert "state=budget.sqlite: it lacks answer" in refused_by(Site(site.folder), question(LOCAL, round=3))
    with pytest.raises(LedgerDamaged, match="restore the newest state/ as a whole"):
        Site(site.folder).check()


def test_an_older_memory_of_a_run_is_noticed_by_the_ledger(site_of):
    """Put back, it would let the same call be answered again, from another start."""
    site = site_of(LOCAL)
    site.answer(question(LOCAL, round=1))
    older = state_of(site).path.read_bytes()
    site.answer(question(LOCAL, round=2))
    state_of(site).path.write_bytes(older)
    assert "restore the newest" in refused_by(site, question(LOCAL, round=2, start=np.ones(63)))


def test_nothing_in_a_message_changes_the_noise(site_of):
    site = site_of(LOCAL, epsilon=5.0)
    lies = {"noise": 1e-6, "channel": {"name": "server", "noise_factor": 0.01}, "plan": {"noise_multiplier": 1e-6},
            "terms": {"steps": 10**6}, "memory": {"rule": "GradientMemory", "settings": {"alpha": 1.0}},
            "experiment": "rounds = 10", "epsilon": 1e9}  # fmt: skip
    value = site.answer(question(LOCAL, **lies)).arrays["value"]
    # noise of 2 x 0.4 on 63 numbers: std within 8 sigma
    assert value.std() > 0.8 * (1 - 8 / np.sqrt(2 * 63))
    assert "kinds" not in state_of(site).read().fields or not state_of(site).read().fields["kinds"]


def test_nothing_goes_in_the_clear_to_a_server_that_is_not_trusted(site_of):
    careful = site_of(CENTRAL, approved=0, trust_server=False)
    with pytest.raises(Refused, match="this site does not trust"):
        approve(careful, CENTRAL)
    trusting = site_of(CENTRAL, trust_server=True)
    assert "value" in trusting.answer(question(CENTRAL)).arrays
    # what the trusted server publishes counts: four Gaussians of noise 0.8 whose cohorts are drawn at rate 0.7
    exact = accounting.poisson(noise=0.8, rate=0.7, steps=4).epsilon(delta=DELTA)
    assert reserved(trusting) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("call", ["train", "dp_sgd", "gradient_sums"])
def test_raw_results_are_no_way_around_local_noise(call, site_of):
    plan = {"clip_norm": 1.0, "noise_multiplier": 1e-6, "rate": 1.0, "steps": 1, "expected_batch": 1.0}
    for plain in (LOCAL, SAMPLE):
        site = site_of(plain)
        assert "not in the plan" in site.answer(question(plain, call=call, plan=plan)).fields["refused"]
        assert len(releases_of(site)) == 0


@pytest.mark.parametrize(("policy", "whole"), [({}, True), ({"arithmetic": "float"}, False)])
def test_a_site_computes_in_integers_unless_its_owner_says_otherwise(policy, whole, site_of):
    """What leaves is a whole number of units C / 2^24, whatever the experiment says; it costs the same."""
    site = site_of(LOCAL, **policy)
    answers = [site.answer(question(LOCAL, round=number)).arrays["value"] for number in (1, 2, 3, 4)]
    value = np.concatenate(answers).astype(float)  # one answer alone has few numbers small enough to show it
    units = value / (0.4 * 2.0**-24)
    nearest = np.round(units)
    off = np.abs(value - nearest * (0.4 * 2.0**-24)) > np.spacing(np.abs(value).astype(np.float32))
    assert (not off.any()) is whole
    exact = accounting.gaussian(noise=2.0, steps=4).epsilon(delta=DELTA)
    assert reserved(site) == pytest.approx(exact, rel=1e-6)


def test_a_site_that_counts_examples_has_no_integer_form(site_of):
    assert "value" in site_of(SAMPLE).answer(question(SAMPLE)).arrays


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


def test_a_crash_between_ledger_and_answer_is_not_charged_twice(site_of, monkeypatch):
    site = site_of(LOCAL)
    monkeypatch.setattr(RunStore, "put_answer", lambda *args, **more: 1 / 0)
    assert "ZeroDivisionError" in site.answer(question(LOCAL)).fields["refused"]
    assert len(releases_of(site)) == 1
    monkeypatch.undo()
    other = Site(site.folder).answer(question(LOCAL, start=np.ones(63, np.float32)))
    assert "with other vectors" in other.fields["refused"]
    value = Site(site.folder).answer(question(LOCAL)).arrays["value"]
    assert len(releases_of(site)) == 1
    assert np.isfinite(value).all()


def test_a_call_that_a_crash_ended_does_not_stop_the_run(site_of, monkeypatch):
    site = site_of(LOCAL)
    monkeypatch.setattr(RunStore, "put_answer", lambda *args, **more: 1 / 0)
    site.answer(question(LOCAL))
    monkeypatch.undo()
    assert "value" in Site(site.folder).answer(question(LOCAL, round=2)).arrays
    assert "value" in Site(site.folder).answer(question(LOCAL, round=3)).arrays


def test_nor_does_a_crash_before_the_ledger_is_written(site_of, monkeypatch):
    site = site_of(LOCAL)
    monkeypatch.setattr(Ledger, "append", lambda *args, **more: 1 / 0)
    assert "ZeroDivisionError" in site.answer(question(LOCAL)).fields["refused"]
    monkeypatch.undo()
    for round in (2, 3, 4):
        assert "value" in Site(site.folder).answer(question(LOCAL, round=round)).arrays
    assert len(releases_of(site)) == 3


def test_noise_is_from_the_operating_system(site_of):
    """Two sites with the same data, asked the same, differ: no seed gives the noise away."""
    values = [site_of(LOCAL).answer(question(LOCAL)).arrays["value"] for _ in range(2)]
    assert np.linalg.norm(values[0] - values[1]) > 4
    for folder in (site_of(LOCAL).folder,):
        assert (folder / "state" / "noise-root.secret").stat().st_mode & 0o077 == 0


def test_the_noise_has_the_scale_that_is_charged(site_of):
    plain = LOCAL | {"rounds": 40}
    site = site_of(plain)
    # learning from zeros: the update is within 0.4, noise std is 2 x 0.4; 40 answers x 63 numbers, 8 sigma bounds
    values = np.stack([site.answer(question(plain, round=n)).arrays["value"] for n in range(1, 41)]).astype(float)
    spread = (values - values.mean(0)).std() * np.sqrt(40 / 39)
    assert spread == pytest.approx(0.8, rel=8 / np.sqrt(2 * values.size))


def test_private_steps_are_charged_as_the_site_runs_them(site_of):
    site = site_of(SAMPLE, epsilon=50.0)
    examples = len(site.data.train)
    rate, steps = min(8, examples) / examples, 4 * 2 * -(-examples // 8)
    exact = accounting.poisson(noise=1.0, rate=rate, steps=steps).epsilon(delta=DELTA)
    assert reserved(site) == pytest.approx(exact, rel=1e-6)


SEGMENTS = changed(
    topology={"kind": "tree", "subnets": 2, "trusted": 0.0},
    algorithm={"name": "h2fdp", "local_aggregation": 1},
    local={"steps": 4, "batch_size": 2, "learning_rate": 0.2},
    privacy=privacy("sample", "edge", noise_multiplier=1.0),
)


def test_a_segment_is_charged_for_the_steps_that_it_makes(site_of):
    site = site_of(SEGMENTS, epsilon=1e4)
    rate = 2 / len(site.data.train)
    first = 1 / (2 * 2) + 1e-5  # C / 2 G b, and what rounding may add
    exact = accounting.segment(noise=1.0, steps=1, rate=rate, segments=16, first_step=first).epsilon(delta=DELTA)
    assert reserved(site) == pytest.approx(exact, rel=1e-6)
    call = site.approvals.all()[0].calls[0]
    asked = question(SEGMENTS, part=call.part, terms={"steps": 40, "most_steps": 1})
    assert "value" in site.answer(asked).arrays


@pytest.mark.parametrize(
    ("start", "law"),
    [
        (np.zeros(5, np.float32), "(63,) numbers are needed"),
        (np.zeros((1, 63), np.float32), "(63,) numbers are needed"),
        (np.zeros(63, np.int64), "(63,) numbers are needed"),
        (np.full(63, np.nan, np.float32), "at most 10000"),
        (np.full(63, np.inf, np.float32), "at most 10000"),
        (np.full(63, 1e4, np.float32), "at most 10000"),
        (np.full(63, 3e38, np.float32), "at most 10000"),
    ],
)
def test_a_start_outside_the_public_ball_is_refused(start, law, site_of):
    site = site_of(LOCAL)
    assert law in site.answer(question(LOCAL, start=start)).fields["refused"]
    assert len(releases_of(site)) == 0


@pytest.mark.parametrize(
    ("more", "law"),
    [
        ({"call": "everything"}, "not in the plan"),
        ({"round": "soon"}, "is a whole number"),
        ({"round": True}, "is a whole number"),
        ({"round": 5}, "not in the plan"),
        ({"round": 0}, "not in the plan"),
        ({"use": 1}, "not in the plan"),
        ({"part": 1}, "not in the plan"),
        ({"digest": "../../x"}, "digest=../../x: is text that matches"),
        ({"digest": 7}, "digest=7: is text that matches"),
        ({"run": "x" * 65}, "xxx: is text that matches"),
        ({"run": "a\nrefused: nothing"}, "run=a refused: nothing: is text that matches"),
        ({"question": float("inf")}, "question=inf: is text that matches"),
    ],
    ids=str,
)
def test_what_is_not_in_the_plan_is_refused_in_one_line(more, law, site_of):
    site = site_of(LOCAL)
    refused = site.answer(question(LOCAL, **more)).fields["refused"]
    assert law in refused
    assert "\n" not in refused
    assert len(releases_of(site)) == 0


@pytest.mark.parametrize(
    ("plain", "law"),
    [
        (SAMPLE, "budget is for unit=client"),
        (changed(privacy={"unit": "none"}), "budget is for unit=client"),
        (changed(model={"name": "os:system"}, privacy=LOCAL["privacy"]), "only code that its owner has allowed"),
        (changed(data=LOCAL["data"] | {"clients": 2}, privacy=LOCAL["privacy"]), "the experiment has 2 clients"),
    ],
)
def test_experiments_that_the_policy_does_not_allow(plain, law, site_of):
    site = site_of(LOCAL)
    with pytest.raises((Refused, InvalidInput), match=law):
        approve(site, plain)
    assert len(site.approvals.all()) == 1


def test_a_delta_that_promises_nothing_is_refused_by_the_site(site_of):
    with pytest.raises(Refused, match="clients at random would meet it"):
        site_of(LOCAL, delta=0.5)
    assert site_of(LOCAL, delta=0.5, allow_large_delta=True).approvals.all()
    with pytest.raises(Refused, match=r"site\.toml: delta=0\.5: publishing one of \d+ examples"):
        site_of(SAMPLE, delta=0.5)


def test_what_a_client_keeps_stays_at_the_site_with_its_kind(site_of):
    plain = changed(algorithm={"name": "feddyn"}, privacy=privacy("client", "client", noise_multiplier=2.0))
    site = site_of(plain, approved=2)
    first = site.answer(question(plain))
    assert set(first.arrays) == {"value"}
    kept, noised = state_of(site).kept("gradient")
    assert not noised
    assert kept.any()
    site.answer(question(plain, round=2))
    assert not torch.equal(state_of(site).kept("gradient")[0], kept)
    assert state_of(site, 1).kept("gradient")[0] is None


def test_what_private_steps_made_is_known_to_be_noised(site_of):
    plain = changed(algorithm={"name": "feddyn"}, privacy=privacy("sample", noise_multiplier=1.0))
    site = site_of(plain, epsilon=1e4)
    assert "value" in site.answer(question(plain)).arrays
    assert state_of(site).kept("gradient")[1]
    assert "value" in site.answer(question(plain, round=2)).arrays


def test_scaffold_gets_the_vectors_of_its_rule_and_nothing_else_of_it(site_of):
    plain = changed(algorithm={"name": "scaffold"}, privacy=privacy("client", "client", noise_multiplier=2.0))
    site = site_of(plain)
    assert "rule/control" in site.answer(question(plain)).fields["refused"]
    rule = {"rule/control": np.zeros(63, np.float32), "rule/steps": np.array(4.0), "rule/most_steps": np.array(6.0)}
    sent = WireMessage.from_bytes(question(plain, arrays=rule).to_bytes())
    assert sent.arrays["rule/steps"].shape == (), "numbers without axes came as vectors, and were refused"
    for wrong in (0.0, -1.0, np.nan, 1e9):
        asked = question(plain, arrays=rule | {"rule/steps": np.array(wrong)})
        assert "rule/steps" in site.answer(asked).fields["refused"]
    assert "value" in site.answer(sent).arrays


def test_a_site_behind_a_socket(site_of, tmp_path):
    import threading

    site, ready = site_of(LOCAL), threading.Event()
    door = tmp_path / "door"
    assert "no site answers" in ask_site(door, WireMessage()).fields["refused"]
    threading.Thread(target=serve_site, args=(site, door), kwargs={"ready": ready.set}, daemon=True).start()
    assert ready.wait(600)
    assert ask_site(door, WireMessage({"call": "hello"})).fields["client"] == 2
    assert ask_site(door, question(LOCAL)).arrays["value"].shape == (63,)


def fails(*args, **more):
    raise ValueError("example 17 is 0.25")


@pytest.mark.parametrize("plain", [LOCAL, SAMPLE], ids=["clipped", "private steps"])
def test_a_failed_computation_looks_like_any_answer(plain, site_of, monkeypatch):
    """The value is that of blank examples, with the noise: no word says that anything failed."""
    from sightline.runtimes import Simulator

    site, run = site_of(plain), Simulator.run

    def failing(self, call):
        if self.clients.shards[2].x.any():
            fails()
        return run(self, call)

    monkeypatch.setattr(Simulator, "run", failing)
    answer = site.answer(question(plain))
    assert answer.fields["rejected"] is False
    assert set(answer.fields) == set(Site(site.folder).answer(question(plain)).fields)
    assert answer.arrays["value"].std() > 0.01
    assert len(releases_of(site)) == 1


@pytest.mark.parametrize(
    "case",
    [
        "objective",
        "output, exact",
        "parts, local noise",
        "private steps",
        "private steps, correlated noise",
        "tree, own noise",
        "algorithm scaffold",
        "algorithm dp_ogl",
        "algorithm mrmtl",
        "balanced participation",
        "gradient at the server",
    ],
)
def test_sites_and_a_server_without_data_run_the_mechanisms_of_members(case, tmp_path):
    """The whole way, without a network: a server that knows sizes only, and six sites."""
    plain = CASES[case]
    if case == "objective":  # the filter over a site's life has no Gaussian for a pure epsilon of 60
        plain = plain | {"privacy": plain["privacy"] | {"epsilon": 8.0}}
    experiment = parse(plain)
    trusting = {"trust_server": True} if "tree" in case or "ogl" in case else {}
    sites = {}
    for number, folder in enumerate(export_shards(experiment, tmp_path / "sites", epsilon=1e3)):
        file = folder / "site.toml"
        file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | trusting))
        sites[number] = Site(folder)
        approve(sites[number], plain)

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
        lambda setting, *streams: RemoteClients(setting, Direct(), fields={"run": "a"}, simulated=False,
                                         tell=lambda *words: told.append(words)),
        resume=False,
    )  # fmt: skip
    assert told == []
    run = Run(tmp_path / "run")
    # sites draw from their operating system, although the file says "seed"
    assert run.metadata["noise_source"] == "os"
    assert not any("come from the seed" in one for one in run.metadata["caveats"])
    assert any(one.startswith("Each site draws its batches") for one in run.metadata["caveats"])
    # what a site reserved covers what the server's ledger says that it has let go of
    for number, site in sites.items():
        if not site.policy.trust_server:
            assert site.spent() >= run.ledger.epsilon(f"client-{number}", "server", DELTA) * (1 - 1e-9)


def frozen_head(input_shape, classes):
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(input_shape[0], classes))
    layers[1].bias.requires_grad_(False)
    return layers


def doubled(output, target):
    return 2 * torch.nn.functional.cross_entropy(output, target)


def source_hash():
    import hashlib
    from pathlib import Path

    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def test_a_loss_of_the_experiments_own_is_code_too(site_of):
    name = "tests.flower.test_site:doubled"
    own = LOCAL | {"model": {"name": "linear", "loss": name}}
    with pytest.raises(Refused, match=r"model.loss=tests.flower.test_site:doubled: this site runs only code"):
        site_of(own)
    with pytest.raises(Refused, match=r"model.loss.*not the allowed one"):
        site_of(own, models={name: "0" * 64})
    site = site_of(own, models={name: source_hash()})
    start = np.zeros((parse(own).data.features + 1) * 3, np.float32)
    assert "value" in site.answer(question(own, start=start)).arrays


def test_a_site_holds_labels_and_nothing_else(site_of):
    numbers = LOCAL | {"model": {"name": "linear", "task": "regression"}}
    with pytest.raises(InvalidInput, match="sites hold labels, one for each example"):
        site_of(numbers)
    with pytest.raises(InvalidInput, match="a regression predicts numbers"):
        approve(site_of(LOCAL), numbers)


def test_schedules_are_planned_before_they_are_approved(site_of):
    """The learning rate of a round is the site's own number: no message can name another."""
    own = LOCAL | {"local": LOCAL["local"] | {"schedule": "linear", "optimizer": "adam", "momentum": 0.0}}
    site = site_of(own)
    (approval,) = site.approvals.all()
    rates = [call.terms["learning_rate"] for call in approval.calls if "learning_rate" in call.terms]
    whole = LOCAL["local"].get("learning_rate", 0.1)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(whole / LOCAL["rounds"])
    assert len(rates) == len(approval.calls) - 1  # the first round has the whole rate


def test_a_model_of_ones_own_is_allowed_by_the_hash_of_its_source(site_of):
    name = "tests.flower.test_site:frozen_head"
    own = LOCAL | {"model": {"name": name}}
    start = np.zeros(parse(own).data.features * 3, np.float32)
    site = site_of(own, models={name: source_hash()})
    assert "value" in site.answer(question(own, start=start)).arrays
    with pytest.raises(Refused, match="not the allowed one"):
        site_of(own, models={name: "0" * 64})
    with pytest.raises(Refused, match="are not sent to sites"):
        approve(site, own | {"model": own["model"] | {"init": "start.safetensors"}})
    with pytest.raises(InvalidInput, match=r"own_code=True.*models"):
        site_of(own, own_code=True)


PLANNED = ("local noise", "gradient at the server", "tree, sample unit", "algorithm scaffold", "algorithm feddyn",
           "algorithm pfedme", "algorithm mrmtl")  # fmt: skip
"""Cases with every kind of call, rule and vector that a plan can have."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", PLANNED)
def test_vectors_of_every_permitted_type_are_answered(case, dtype, site_of):
    """One message with a float64 start failed on blank examples too, and ended the approval for good."""
    plain = CASES[case]
    site = site_of(plain, epsilon=1e4, trust_server=True)
    (approval,) = site.approvals.all()
    call = approval.calls[0]
    blank = call.blank_vectors(site._built(approval.id).built.model.parameters)
    arrays = {name: vector.numpy().astype(dtype) for name, vector in blank.items()}
    at = {"call": call.kind, "round": call.round, "use": call.use, "part": call.part}
    answer = site.answer(question(plain, **at, arrays=arrays))
    assert "value" in answer.arrays, answer.fields
    assert site.budget.record().ended == {}


def test_a_vector_that_overflows_the_type_of_the_model_is_refused(site_of):
    site = site_of(LOCAL, largest_start=1e300)
    start = np.full(63, 1e39)
    assert "norm inf" in site.answer(question(LOCAL, start=start)).fields["refused"]
    assert len(releases_of(site)) == 0
