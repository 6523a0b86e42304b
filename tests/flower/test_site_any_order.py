"""Sites approve how many calls of each kind, where released values decide on the order; priced is the whole list."""

import tomllib
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file

import sightline
from sightline import accounting, engine
from sightline.api import Run
from sightline.config import parse
from sightline.data import Client, Federation
from sightline.errors import Refused, SightlineError
from sightline.events import Allocation, Clear, Exponential, Gaussian, Poisson, Pooled, Pure, Repeat
from sightline.randomness import Streams
from sightline.runtimes.flower.export import export_shards
from sightline.runtimes.remote.client_executor import ClientSide
from sightline.runtimes.remote.clients import RemoteClients
from sightline.runtimes.remote.message import WireMessage, experiment_digest
from sightline.runtimes.site import site as site_module
from sightline.runtimes.site.approval import Approval
from sightline.runtimes.site.calls_of_kind import CallsOfKind, gather_kinds
from sightline.runtimes.site.planned_calls import PlannedCall
from sightline.runtimes.site.policy import blank_shard, kind_of
from sightline.runtimes.site.site import Site
from sightline.runtimes.site.state import RunStore
from tests.engine.test_followed_plan import best_stopping
from tests.flower.cases import CLUSTERED, changed, privacy, releases_of
from tests.hostile.site_sequences import KILLS, Killed, _killing

DELTA, NUMBERS = 1e-3, 64 * 10 + 10
CHOICES = {"selection_rounds": 2, "selection_epsilon": 0.5}
DATA = {"source": "digits", "clients": 3, "partition": "label_shift", "clusters": [2, 1], "train_samples": 120}


def clustered(name="rdpcfl", count=2, **more):
    algorithm = {"name": name} | ({} if name == "oracle_clusters" else CHOICES)
    sections = CLUSTERED | {"rounds": 6, "data": DATA, "topology": {"kind": "clusters", "count": count}}
    sections |= {"privacy": privacy("sample", "client", noise_multiplier=1.5), "algorithm": algorithm}
    return changed(**(sections | {"local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.2}} | more))


PLAIN = clustered()
FULL = Repeat(2, Gaussian(1.5))
"""Round one of two epochs: two full batches."""


@pytest.fixture
def site_of(tmp_path):
    """Client 2's site with the experiment approved."""

    def make(plain, *, client=2, approve=True, epsilon=1e3, **policy):
        place = tmp_path / f"sites-{len(list(tmp_path.iterdir()))}"
        folder = export_shards(parse(plain), place, epsilon=epsilon)[client]
        file = folder / "site.toml"
        file.write_text(tomli_w.dumps(tomllib.loads(file.read_text()) | policy))
        site = Site(folder)
        if approve:
            site.approve(site.draw_up(parse(plain)))
        return site

    return make


def ask(site, plain, call="leaving", round=2, use=0, *, models=2, start=0.0, terms=None, run="a", **more):
    """Ask for a training, or for a choice among `models`."""
    words = {"digest": experiment_digest(parse(plain)), "run": run, "call": call, "client": 2, "round": round,
             "use": use, "part": 0, "terms": {} if terms is None else terms}  # fmt: skip
    arrays = {"start": np.full(NUMBERS, start, np.float32)}
    if call == "choose":
        arrays = {"candidates": np.arange(models * NUMBERS, dtype=np.float32).reshape(models, NUMBERS) / 1e4}
    return site.answer(WireMessage(words | more, arrays))


def approval_of(site):
    (approval,) = site.approvals.all()
    return approval


def refusal(answer):
    assert not answer.arrays
    assert "\n" not in answer.fields["refused"]
    return answer.fields["refused"]


# Pricing


def test_priced_is_the_whole_list_and_no_path_costs_more(site_of):
    approval = approval_of(site_of(PLAIN))
    training = next(event for event in approval.composition if isinstance(getattr(event, "event", None), Poisson))
    whole = {FULL: 1, training: 5, Exponential(0.5): 2}
    assert dict(approval.composition) == whole
    assert approval.epsilon == pytest.approx(accounting.epsilon(whole, DELTA), rel=1e-9)
    for counts in product((0, 1), (0, 3, 5), (0, 2)):
        path = {event: times for event, times in zip(whole, counts, strict=True) if times}
        assert not path or accounting.epsilon(path, DELTA) <= approval.epsilon * (1 + 1e-4)
    kinds = sum((Counter({tuple(kind.most): kind.times}) for kind in approval.kinds), Counter())
    assert sum(kinds.values()) == len(approval.whole_list) == sum(whole.values())


def test_what_was_asked_for_is_never_the_price(site_of):
    """The odometer: "stop if the first release reveals much" at the price of the path has true delta 1.87e-5."""
    assert best_stopping(4.0, 2, 1e-5) > 1.8
    assert best_stopping(4.0, 1, 1e-5) == pytest.approx(1, rel=0.02)
    plain = clustered("oracle_clusters", rounds=2, privacy=privacy("client", "client", noise_multiplier=4.0))
    site = site_of(plain)
    both = accounting.gaussian(noise=4.0, steps=2).epsilon(delta=DELTA)
    for asked in range(3):
        assert approval_of(site).epsilon == pytest.approx(both, rel=1e-6)
        assert site.spent() >= both * (1 - 1e-9)
        assert len(releases_of(site)) == asked
        ask(site, plain, round=asked + 1)


def test_the_owner_reads_numbers_of_calls_and_their_limits(site_of):
    auto = clustered(count="auto", data=DATA | {"clients": 20, "clusters": [10, 10], "train_samples": 400})
    site = site_of(auto, approve=False)
    said = "\n".join(site.describe(site.draw_up(parse(auto))))
    for words in ("at most 1 training on all examples at once", "at most 5 trainings, noised here",
                  "at most 2 private choices among at most 10 models", "the server decides on their order"):  # fmt: skip
        assert words in said


def test_calls_of_a_fixed_order_are_stored_as_before(site_of):
    plain = changed(privacy=privacy("client", "client", noise_multiplier=2.0))
    approval = approval_of(site_of(plain))
    assert not approval.kinds
    assert "kinds" not in approval.to_json()
    kinds = approval_of(site_of(PLAIN)).kinds
    again = Approval.from_json(approval_of(site_of(PLAIN)).to_json())
    assert [kind.times for kind in again.kinds] == [kind.times for kind in kinds]
    assert not again.calls


# Counts and ranges


def test_any_order_is_answered_and_no_more_calls_than_were_approved(site_of):
    site = site_of(PLAIN)
    asked = [("leaving", {}), ("choose", {}), ("leaving", {"whole_batch": True}), ("leaving", {}), ("choose", {})]
    for use, (call, terms) in enumerate(asked):
        assert "value" in ask(site, PLAIN, call, use=use, terms=terms).arrays
    before = releases_of(site)
    assert "all that were approved" in refusal(ask(site, PLAIN, "choose", use=5))
    assert "all that were approved" in refusal(ask(site, PLAIN, use=5, terms={"whole_batch": True}))
    assert releases_of(site) == before
    assert site.progress(approval_of(site)) == (5, 3)
    for use in range(5, 8):
        assert "value" in ask(Site(site.folder), PLAIN, use=use).arrays
    assert "all that were approved" in refusal(ask(Site(site.folder), PLAIN, use=8))
    made = Counter(release.event for release in releases_of(site))
    assert made == approval_of(site).composition
    assert site.progress(approval_of(site)) == (8, 0)
    # the refused call did not use up its place
    assert "value" in ask(Site(site.folder), PLAIN, use=7).arrays


@pytest.mark.parametrize("when", list(KILLS))
def test_a_count_survives_a_kill(when, site_of):
    site = site_of(PLAIN)
    assert "value" in ask(site, PLAIN, "choose", use=0).arrays
    with _killing(*KILLS[when]), pytest.raises(Killed):
        ask(site, PLAIN, "choose", use=1)
    other = Site(site.folder)
    if when == "before anything is written":
        assert "value" in ask(other, PLAIN, "choose", use=2).arrays
        assert "all that were approved" in refusal(ask(other, PLAIN, "choose", use=3))
        return
    assert "all that were approved" in refusal(ask(other, PLAIN, "choose", use=2))
    value = ask(other, PLAIN, "choose", use=1).arrays["value"]
    assert np.array_equal(ask(Site(site.folder), PLAIN, "choose", use=1).arrays["value"], value)
    assert len(releases_of(site)) == 2
    assert "all that were approved" in refusal(ask(other, PLAIN, "choose", use=2))


def test_counts_put_back_are_noticed_by_the_ledger(site_of):
    site = site_of(PLAIN)
    ask(site, PLAIN, "choose", use=0)
    path = site.folder / "state" / "approvals" / f"{approval_of(site).id}.secret"
    older = path.read_bytes()
    ask(site, PLAIN, "choose", use=1)
    path.write_bytes(older)
    assert "closed" in refusal(ask(Site(site.folder), PLAIN, "choose", use=2))
    assert len(releases_of(site)) == 2


def test_a_run_store_and_a_ledger_put_back_under_a_running_site_are_noticed(site_of):
    """Both together agree with each other; 41 trainings were answered where 5 were approved."""
    site = site_of(PLAIN)
    ask(site, PLAIN, "choose", use=0)
    state = site.folder / "state"
    files = [state / "approvals" / f"{approval_of(site).id}.secret", state / "budget.sqlite"]
    older = [file.read_bytes() for file in files]
    ask(site, PLAIN, "choose", use=1)
    for file, content in zip(files, older, strict=True):
        file.write_bytes(content)
    for use in (2, 3):
        assert "closed" in refusal(ask(site, PLAIN, "choose", use=use))
        assert "closed" in refusal(ask(site, PLAIN, use=use + 2))


def test_without_its_counts_a_site_stays_within_what_was_reserved(site_of, monkeypatch):
    site = site_of(PLAIN)
    monkeypatch.setattr(RunStore, "refuse_spent", lambda *args: None)
    for use in range(2):
        assert "value" in ask(site, PLAIN, "choose", use=use).arrays
    assert "reveals more than was approved" in refusal(ask(site, PLAIN, "choose", use=2))
    assert len(releases_of(site)) == 2
    assert "value" in ask(site, PLAIN, use=3).arrays


def test_one_place_has_one_question(site_of):
    site = site_of(PLAIN)
    first = ask(site, PLAIN, use=1)
    again = ask(site, PLAIN, use=1)
    assert np.array_equal(first.arrays["value"], again.arrays["value"])
    for other in ({"start": 1e-6}, {"terms": {"whole_batch": True}}, {"terms": {"learning_rate": 0.1}},
                  {"call": "choose"}):  # fmt: skip
        assert "with other vectors" in refusal(ask(site, PLAIN, use=1, **other))
    assert "must come in order" in refusal(ask(site, PLAIN, use=0))
    assert "must come in order" in refusal(ask(site, PLAIN, round=1, use=5))
    assert len(releases_of(site)) == 1


def test_a_crashed_call_of_one_kind_is_not_answered_as_another(site_of):
    """Same vectors and place: were it the same question, the other kind would be made without being counted."""
    site = site_of(PLAIN)
    with _killing(*KILLS["before the ledger"]), pytest.raises(Killed):
        ask(site, PLAIN, use=0)
    assert "with other vectors" in refusal(ask(Site(site.folder), PLAIN, use=0, terms={"whole_batch": True}))
    assert "value" in ask(Site(site.folder), PLAIN, use=0).arrays
    (made,) = releases_of(site)
    assert isinstance(made.event.event, Poisson)


@pytest.mark.parametrize(
    ("asked", "law"),
    [
        ({"call": "choose", "models": 3}, "candidates=3: approved is at most 2"),
        ({"call": "choose", "models": 0}, "candidates=0: approved is at most 2"),
        ({"call": "choose", "terms": {"steps": 1}}, "steps=1: approved is no such term"),
        ({"terms": {"steps": 1000}}, "steps=1000: approved is no such term"),
        ({"terms": {"learning_rate": 0.3}}, "learning_rate=0.3: approved is at most 0.2"),
        ({"terms": {"learning_rate": True}}, "learning_rate=True: approved is at most 0.2"),
        ({"terms": {"learning_rate": -0.1}}, "approved is at most 0.2"),
        ({"terms": {"whole_batch": 1}}, "whole_batch=1: approved is no such term"),
        ({"terms": {"batch_size": 1}}, "batch_size=1: approved is no such term"),
        ({"terms": {"repeat": 9}}, "repeat=9: approved is no such term"),
        ({"terms": {"candidates": 1}}, "candidates=1: approved is no such term"),
        ({"terms": {"a\nb": {"c": []}}}, "approved is no such term"),
        ({"terms": {"repeat": None}}, "repeat=None: approved is no such term"),
        ({"terms": {"foo": None}}, "foo=None: approved is no such term"),
        ({"terms": {"learning_rate": None}}, "learning_rate=None: approved is at most 0.2"),
        ({"call": "choose", "terms": {"candidates": 2}}, "candidates=2: approved is no such term"),
        ({"call": "dp_sgd"}, "no such call is approved"),
        ({"part": 1}, "no such call is approved"),
    ],
    ids=str,
)
def test_calls_beyond_their_ranges_are_refused_and_cost_nothing(asked, law, site_of):
    site = site_of(PLAIN)
    said = refusal(ask(site, PLAIN, **asked))
    assert "not in the plan" in said
    assert law in said
    assert releases_of(site) == []
    assert "value" in ask(site, PLAIN, use=0).arrays


def test_fewer_models_and_smaller_steps_are_of_the_kind_and_charged_at_the_limit(site_of):
    site = site_of(PLAIN)
    assert "value" in ask(site, PLAIN, "choose", use=0, models=1).arrays
    assert "value" in ask(site, PLAIN, use=1, terms={"learning_rate": 0.01}).arrays
    assert {release.event for release in releases_of(site)} < set(approval_of(site).composition)


def planned(**more):
    return PlannedCall(1, 0, 0, "leaving", {"name": "server"}, 0, **more)


def claim(*events, joint=""):
    from sightline.events import Adjacency, Unit
    from sightline.ledger import Release

    facts = (Unit.CLIENT, Adjacency.ADD_REMOVE)
    whom = frozenset({"client-0"})
    return [Release(1, "client-0", whom, *facts, event, frozenset({"public"}), joint=joint) for event in events]


EXPERIMENT = parse(PLAIN)


def test_lower_steps_are_of_the_kind_only_where_the_whole_update_is_clipped():
    calls = [planned(terms={"steps": steps}, steps=steps) for steps in (4, 7, 2)]
    (kind,) = gather_kinds(calls, [claim(Gaussian(1.0))] * 3, EXPERIMENT)
    assert (kind.times, kind.most["steps"], kind.call.steps) == (3, 7, 7)
    assert kind.read_call(3, 1, {"steps": 5}, 0).terms == {"steps": 5}
    for wrong in ({"steps": 8}, {}, {"steps": 0}, {"steps": True}):
        with pytest.raises(SightlineError, match="approved is at most 7"):
            kind.read_call(3, 1, wrong, 0)
    many = gather_kinds(calls, [claim(Repeat(3, Poisson(0.1, Gaussian(1.0))))] * 3, EXPERIMENT)
    assert [("steps" in kind.most, kind.times) for kind in many] == [(False, 1)] * 3
    # Calls of other events are other kinds, whatever else they share.
    two = gather_kinds(calls[:1] * 2, [claim(Gaussian(1.0)), claim(Gaussian(2.0))], EXPERIMENT)
    assert [kind.times for kind in two] == [1, 1]


def test_the_noise_of_segments_follows_the_step_size_so_it_is_fixed(site_of):
    from sightline.events import Segment

    convex = clustered("ifca", privacy=privacy("sample", "client", noise_multiplier=2.0, sensitivity="convex"),
                       local={"steps": 1, "weight_decay": 0.1, "learning_rate": 0.2, "batch_size": 8})  # fmt: skip
    assert [list(kind.most) for kind in approval_of(site_of(convex)).kinds] == [[], ["candidates"]]
    segment = Segment(2, 0.1, 0.5, Gaussian(1.0))
    (kind,) = gather_kinds([planned(terms={"learning_rate": 0.1})], [claim(segment)], EXPERIMENT)
    assert kind.most == {}
    with pytest.raises(SightlineError, match=r"approved is 0\.1"):
        kind.read_call(1, 0, {"learning_rate": 0.05}, 0)


@pytest.mark.parametrize(
    "event",
    [Allocation(4, 2, Gaussian(1.0)), Pooled(3, Gaussian(1.0)), Clear(), Pure(1.0),
     Repeat(2, Allocation(4, 2, Gaussian(1.0)))],
    ids=str,
)  # fmt: skip
def test_events_without_a_bound_in_any_order_are_refused(event):
    with pytest.raises(Refused, match="released values decide on the order of the calls"):
        gather_kinds([planned()], [claim(event)], EXPERIMENT)


def test_members_that_keep_state_and_joint_rows_are_refused():
    with pytest.raises(Refused, match="its clients keep state"):
        gather_kinds([planned(rule="Control")], [claim(Gaussian(1.0))], EXPERIMENT)
    with pytest.raises(Refused, match="in a fixed order only"):
        gather_kinds([planned()], [claim(Gaussian(1.0), joint="stream 1")], EXPERIMENT)
    private = EXPERIMENT.privacy.model_copy(update={"noise": "correlated"})
    with pytest.raises(Refused, match="in a fixed order only"):
        gather_kinds([planned()], [claim(Gaussian(1.0))], EXPERIMENT.model_copy(update={"privacy": private}))


def test_noise_of_the_server_has_no_bound_in_any_order_here(site_of):
    plain = clustered("oracle_clusters", privacy=privacy("sample", "server", noise_multiplier=1.0),
                      local={"steps": 1, "batch_size": 8})  # fmt: skip
    site = site_of(plain, approve=False, trust_server=True)
    with pytest.raises(Refused, match=r"event=clear: released values decide"):
        site.draw_up(parse(plain))


def test_a_kind_of_another_time_is_another_approval(site_of):
    """A stored approval with more calls than the plan gives is not used."""
    site = site_of(PLAIN)
    approval = approval_of(site)
    kinds = [replace(kind, times=kind.times + 1) for kind in approval.kinds]
    assert all(isinstance(kind, CallsOfKind) for kind in kinds)
    site.approvals.put(replace(approval, kinds=kinds))
    assert "gives another plan" in refusal(ask(Site(site.folder), PLAIN))


# The whole way

AUTO = clustered(topology={"kind": "clusters", "count": "auto", "candidates": [3]})
"""It finds three clusters, one more than a plan assumes."""


@pytest.mark.parametrize(
    "plain",
    [PLAIN, AUTO, clustered("ifca"), clustered("oracle_clusters"),
     clustered(privacy=privacy("sample", "client", epsilon=8.0))],
    ids=["rdpcfl", "rdpcfl auto", "ifca", "oracle", "rdpcfl calibrated"],
)  # fmt: skip
def test_clusters_at_three_sites_cost_what_was_planned(plain, tmp_path, monkeypatch):
    # With the simulator's draws in place of their own, sites give the simulator's bits.
    seed, own_draws = Streams.from_seed(parse(plain).seed), parse(plain).privacy.epsilon is not None
    if not own_draws:
        monkeypatch.setattr(site_module, "ClientSide", lambda built, *streams: ClientSide(built, seed, seed))
    experiment, sites = parse(plain), {}
    for number, folder in enumerate(export_shards(experiment, tmp_path / "sites", epsilon=1e3)):
        sites[number] = Site(folder)
        sites[number].approve(sites[number].draw_up(experiment))

    class Direct:
        def ask(self, letters, group):
            return {n: WireMessage.from_bytes(sites[n].answer(letter).to_bytes()) for n, letter in letters.items()}

        def close(self):
            pass

    like = sites[0].data.train
    blank = tuple(Client(blank_shard(like, len(site.data.train)), blank_shard(like, 0)) for site in sites.values())
    federation = Federation("sites", blank, blank_shard(like, 0), 10, kind_of(like))
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
    ledger, plan = Run(tmp_path / "run").ledger, engine.plan_releases(setting, real_nodes=True)
    for number, site in sites.items():
        name, approval = f"client-{number}", approval_of(site)
        assert ledger.composition(name, "server") == plan.composition(name, "server") == approval.composition
        assert Counter(release.event for release in releases_of(site)) == approval.composition
        assert site.progress(approval) == (len(approval.whole_list), 0)
        assert approval.epsilon == pytest.approx(ledger.epsilon(name, "server", DELTA), rel=1e-6)
        if own_draws:
            assert 0.9 * experiment.privacy.epsilon < approval.epsilon <= experiment.privacy.epsilon * (1 + 1e-4)
    choices = {release.what for release in ledger if "choice" in release.what}
    assert choices <= {f"choice of one of {3 if plain == AUTO else 2} models by right answers"}
    whole = sightline.run(experiment, out=tmp_path / "simulated", progress=False)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", whole.directory))
    equal = all(array.tobytes() == theirs[name].tobytes() for name, array in ours.items())
    assert equal is not own_draws
    assert own_draws or [release.body() for release in ledger] == [release.body() for release in whole.ledger]
