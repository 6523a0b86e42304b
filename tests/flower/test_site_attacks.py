"""Attacks on a site that once worked, by sequences of questions: each is refused, or gets what was approved and no more."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from sightline import engine
from sightline.config import parse
from sightline.errors import Refused
from sightline.mechanisms import CallId, CallKind, ClientState, Cohort, PrivateSteps, Public, StateAccess, Updates
from sightline.mechanisms.convex_solver import Regression, descend_accelerated, minimise_regression
from sightline.randomness import Streams
from sightline.runtimes import Simulator
from tests.flower.cases import CASES, changed, privacy, releases_of
from tests.flower.test_site import LOCAL, SAMPLE, SEGMENTS, approve, question, refused_by, site_of, state_of  # noqa: F401

PERTURBED = changed(
    privacy=privacy("sample", mechanism="output", sensitivity="clipped_model", noise_multiplier=1e3),
    algorithm={"name": "feddyn"},
)
OTHER = changed(privacy=privacy("client", "client", noise_multiplier=60.0))
DPSGD = changed(privacy=privacy("sample", noise_multiplier=50.0), algorithm={"name": "feddyn"})


def test_memory_of_output_perturbation_does_not_reach_private_steps(site_of):  # noqa: F811
    """Asked for output perturbation first, the site keeps an un-noised gradient; private steps would add it as it is."""
    site = site_of(PERTURBED, epsilon=1e3)
    approve(site, DPSGD)
    assert "value" in site.answer(question(PERTURBED, run="same")).arrays
    kept, noised = state_of(site).kept("gradient")
    assert kept is not None
    assert not noised
    answer = site.answer(question(DPSGD, run="same"))
    assert "value" in answer.arrays, "the other experiment begins from nothing"
    stores = {one.digest: state_of(site, place) for place, one in enumerate(site.approvals.all())}
    assert len(stores) == 2
    assert state_of(site, 1).kept("gradient")[1], "what it keeps was made from noised steps"
    # the state itself is typed: put into the other run by hand, it is refused before anything is computed
    message = state_of(site, 1).read()
    words = dict(message.fields) | {"kinds": {"gradient": "unnoised"}}
    state_of(site, 1).path.write_bytes(type(message)(words, message.arrays).to_bytes())
    before = len(releases_of(site))
    refused = site.answer(question(DPSGD, run="same", round=2)).fields["refused"]
    assert "made from un-noised values" in refused
    assert len(releases_of(site)) == before


def unnoised_updates(plain):
    setting = engine.calibrate_noise(engine.build_experiment(parse(plain)))
    worker = Simulator(setting, Streams.from_seed(1), Streams.from_seed(2))
    from sightline.algorithms.feddyn import GradientMemory

    state = ClientState({2: worker_start(setting)}, noised=False)
    recall = StateAccess(GradientMemory(0.1).memory(), state, worker.dimension)
    starts = {2: Public(worker_start(setting))}
    return setting, worker, Updates(Cohort((2,)), starts, worker, CallId(1, 0), recall=recall)


def worker_start(setting):
    return setting.start.clone()


def test_the_simulator_refuses_un_noised_state_in_private_steps_too():
    setting, worker, updates = unnoised_updates(SAMPLE)
    plan = PrivateSteps(1.0, 1.0, 0.5, 2, 4.0)
    with pytest.raises(Refused, match="made from un-noised values"):
        list(worker.run(replace(updates.make_call(CallKind.DP_SGD, [plan]), starts=setting.start)))
    with pytest.raises(Refused, match="made from un-noised values"):
        list(updates.train_privately(setting.mechanism._private_plans(updates, None)))


def test_segments_take_no_state(site_of):  # noqa: F811
    """Their steps are not noised one by one, so that what is kept of them would enter the next segment as it is."""
    setting, _, updates = unnoised_updates(SEGMENTS)
    with pytest.raises(Refused, match="carries examples of earlier segments"):
        setting.mechanism._private_plans(updates)
    site = site_of(SEGMENTS, epsilon=1e4)
    part = site.approvals.all()[0].calls[0].part
    memory = {"rule": "GradientMemory", "settings": {"alpha": 1.0}}
    assert "value" in site.answer(question(SEGMENTS, part=part, memory=memory)).arrays
    assert not state_of(site).read().fields["kinds"]


EXACT = CASES["output, exact"]


def test_a_solver_always_gets_there_and_says_nothing(site_of, monkeypatch):  # noqa: F811
    """Newton's steps made to fail: the answer is the same minimiser, by steps whose number is known beforehand."""
    from sightline.mechanisms import convex_solver

    site = site_of(EXACT, epsilon=1e3)
    assert site.approvals.all()[0].calls[0].steps == 199
    monkeypatch.setattr(convex_solver, "MOST_STEPS", 0)
    start = np.zeros(27, np.float32)
    answer = site.answer(question(EXACT, start=start))
    assert "value" in answer.arrays
    assert "refused" not in answer.fields


@pytest.mark.parametrize("curvature", [1.0, 0.1, 1e-3])
def test_the_bound_on_iterations_is_enough_whatever_the_problem(curvature):
    rng = np.random.default_rng(int(1 / curvature))
    x = rng.normal(size=(20, 6))
    x = np.c_[x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(0.5), np.full(20, np.sqrt(0.5))]
    for far in (0.0, 1e3):
        problem = Regression(x, rng.integers(0, 3, 20), 3, far * rng.normal(size=21), curvature, 0.0)
        found = descend_accelerated(problem, gradient_tolerance=1e-9)
        assert np.linalg.norm(problem.value_and_gradient(found)[1]) <= 1e-9
        assert np.allclose(found, minimise_regression(problem, gradient_tolerance=1e-9), atol=1e-6)


@pytest.mark.parametrize(
    ("more", "law"),
    [
        ({"local": {"steps": 1, "weight_decay": 1e-9}}, "local steps"),
        ({"privacy": EXACT["privacy"] | {"gradient_tolerance": 1e-12}}, "rounding decides"),
    ],
)
def test_a_solver_without_a_bound_is_not_approved(more, law, site_of):  # noqa: F811
    site = site_of(EXACT, approved=0, epsilon=1e3)
    with pytest.raises(Refused, match=law):
        approve(site, EXACT | more)


def test_an_experiment_cannot_name_code(site_of, tmp_path, monkeypatch):  # noqa: F811
    """`subprocess:getoutput` was a shell; and a package is not even imported to find out what is in it."""
    package = tmp_path / "trap"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (package / "nets.py").write_text("def make(input_shape, classes): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    site = site_of(LOCAL, models={"trap.nets:make": "0" * 64})
    for name in ("subprocess:getoutput", "os:system", "trap.nets:make"):
        with pytest.raises(Refused, match=r"only code that its owner|not the allowed one"):
            approve(site, LOCAL | {"model": {"name": name}})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("more", "law"),
    [
        ({"topology": {"kind": "groups", "file": "/etc/passwd"}, "algorithm": {"name": "dp_ogl"}}, r"topology\.file"),
        ({"topology": {"kind": "tree", "file": "/etc/passwd"}}, r"topology\.file"),
        ({"resources": {"model": "measured", "file": "/etc/passwd"}}, r"resources\.file"),
    ],
)
def test_no_file_of_an_experiment_is_opened(more, law, site_of):  # noqa: F811
    site = site_of(LOCAL)
    with pytest.raises(Refused, match=law + r"=/etc/passwd: a site opens no file"):
        approve(site, LOCAL | more)


def test_data_and_start_of_an_experiment_are_not_read(site_of, tmp_path):  # noqa: F811
    site = site_of(LOCAL)
    plain = LOCAL | {"model": LOCAL["model"] | {"init": str(tmp_path / "nowhere.safetensors")}}
    plain |= {"data": {"source": str(tmp_path / "nowhere.npz"), "clients": 6, "classes": 3}}
    approve(site, plain)
    assert "value" in site.answer(question(plain)).arrays


@pytest.mark.parametrize("local", [{"epochs": 10**6, "batch_size": 8}, {"steps": 10**6, "batch_size": 8}])
def test_endless_work_is_not_approved(local, site_of):  # noqa: F811
    site = site_of(LOCAL)
    with pytest.raises(Refused, match="largest_steps=100000"):
        approve(site, LOCAL | {"local": local | {"learning_rate": 0.1}})
    with pytest.raises(Refused, match="largest_steps=100000"):
        approve(site, LOCAL | {"algorithm": {"name": "pfedme", "inner_steps": 10**6}})


@pytest.mark.parametrize(
    "more",
    [
        {"topology": {"kind": "tree", "subnets": 2}, "algorithm": {"name": "h2fdp", "control": {"delay": 1.0}}},
        {"privacy": LOCAL["privacy"] | {"where": "server", "adaptive_clipping": {}}},
    ],
    ids=["control", "clipping"],
)
def test_what_has_no_plan_is_not_approved(more, site_of):  # noqa: F811
    site = site_of(LOCAL)
    with pytest.raises(Refused, match="no plan to approve"):
        approve(site, LOCAL | more)


def test_another_experiment_than_the_approved_one_is_refused_and_logged(site_of, caplog):  # noqa: F811
    site = site_of(LOCAL)
    with caplog.at_level(logging.WARNING, "sightline.site"):
        for more in ({"rounds": 5}, {"seed": 7}, {"privacy": LOCAL["privacy"] | {"noise_multiplier": 1.9}}):
            assert "no experiment with this digest" in site.answer(question(LOCAL | more)).fields["refused"]
    assert caplog.text.count("no experiment with this digest") == 3
    assert len(releases_of(site)) == 0


def test_calls_come_in_increasing_order_and_skipping_is_fine(site_of):  # noqa: F811
    site = site_of(LOCAL)
    assert "value" in site.answer(question(LOCAL, round=2)).arrays
    assert "must come in order" in site.answer(question(LOCAL, round=1)).fields["refused"]
    assert "value" in site.answer(question(LOCAL, round=4)).arrays
    assert "must come in order" in site.answer(question(LOCAL, round=2)).fields["refused"]
    assert "must come in order" in site.answer(question(LOCAL, round=3)).fields["refused"]
    assert len(releases_of(site)) == 2


def test_the_same_call_from_another_start_is_refused(site_of):  # noqa: F811
    site = site_of(LOCAL)
    first = site.answer(question(LOCAL)).arrays["value"]
    moved = np.full(63, 1e-6, np.float32)
    assert "with other vectors" in site.answer(question(LOCAL, start=moved)).fields["refused"]
    assert np.array_equal(site.answer(question(LOCAL)).arrays["value"], first)
    assert len(releases_of(site)) == 1


def test_an_old_copy_of_the_whole_state_is_refused_by_the_counter(site_of, tmp_path):  # noqa: F811
    import shutil

    site = site_of(LOCAL, counter=str(tmp_path / "counter"))
    site.answer(question(LOCAL))
    shutil.copytree(site.folder / "state", tmp_path / "snapshot")
    assert "value" in site.answer(question(LOCAL, round=2)).arrays
    shutil.rmtree(site.folder / "state")
    shutil.copytree(tmp_path / "snapshot", site.folder / "state")
    again = question(LOCAL, round=2, start=np.ones(63, np.float32))
    assert "old copy" in refused_by(type(site)(site.folder), again)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_order_of_questions_every_call_has_one_value(seed, site_of):  # noqa: F811
    """Random rounds, starts, runs and restarts against the rule itself: must come in order, one value, one run."""
    rng = np.random.default_rng(seed)
    site = site_of(LOCAL)
    starts = [np.zeros(63, np.float32), np.full(63, 1e-3, np.float32)]
    bound, last, given = None, 0, {}
    for _ in range(25):
        run, round, which = "ab"[int(rng.random() < 0.2)], int(rng.integers(0, 6)), int(rng.integers(2))
        if rng.random() < 0.2:
            site = type(site)(site.folder)
        answer = site.answer(question(LOCAL, run=run, round=round, start=starts[which]))
        fits = bound in (None, run) and 1 <= round <= 4
        again = given.get(round, (None, None))
        if fits and round > last:
            bound, last = run, round
            given = {round: (which, answer.arrays["value"].tobytes())}
        elif fits and again[0] == which:
            assert answer.arrays["value"].tobytes() == again[1]
        else:
            assert "value" not in answer.arrays
            assert "refused" in answer.fields
    times = [release.time for release in releases_of(site)]
    assert times == sorted(set(times))


def test_a_state_that_is_old_but_for_its_budget_does_not_answer_a_call_again(site_of, tmp_path):  # noqa: F811
    """The counter follows the budget's file: put back around it, the rest of the state knew of no answer."""
    import shutil

    site = site_of(LOCAL, counter=str(tmp_path / "counter"))
    state = site.folder / "state"
    shutil.copytree(state, tmp_path / "snapshot")
    assert "value" in site.answer(question(LOCAL)).arrays
    (tmp_path / "snapshot" / "lifetime.sqlite").write_bytes((state / "lifetime.sqlite").read_bytes())
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "snapshot", state)
    for start in (None, np.ones(63, np.float32)):
        assert "restore the newest" in refused_by(type(site)(site.folder), question(LOCAL, start=start))


def test_an_answer_that_a_crash_left_uncounted_is_counted_when_it_leaves(site_of, monkeypatch):  # noqa: F811
    """Also when other answers have moved the counter on since: by its name, not by its number."""
    site = site_of(LOCAL, epsilon=1e3)
    approve(site, OTHER)
    whole, calls = type(site.budget).advance, []

    def crash_once(self, what, **more):
        calls.append(what)
        if len(calls) == 1:
            raise KeyboardInterrupt
        whole(self, what, **more)

    monkeypatch.setattr(type(site.budget), "advance", crash_once)
    with pytest.raises(KeyboardInterrupt):
        site.answer(question(LOCAL))
    assert not site.budget.was_counted(calls[0])
    assert "value" in site.answer(question(OTHER)).arrays
    assert "value" in site.answer(question(LOCAL)).arrays
    assert site.budget.was_counted(calls[0])
