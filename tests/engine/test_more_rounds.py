"""More rounds on a run that has ended: as if all had been planned from the start at that noise, or a refusal."""

import re
import shutil

import pytest

import sightline
from sightline import accounting
from sightline.apps.cli.main import run_arguments
from sightline.apps.report import RunView
from sightline.apps.report.comparison import compare_runs
from sightline.apps.report.officer import officer_warnings
from sightline.engine import RunRecord, build_experiment, calibrate_noise, more_rounds, plan_longer
from sightline.engine.checkpoint import CHECKPOINT, CheckpointDamaged
from sightline.engine.run_directory import RUN_ID, SECRET
from sightline.errors import InvalidInput, Refused, SightlineError
from tests.control.test_control_runs import CONTROL, DEAR, TREE
from tests.engine.conftest import TINY, changed
from tests.engine.leftovers import Crash, crash_in, left_behind

CALIBRATED = {"privacy.noise_multiplier": None, "privacy.epsilon": 6.0, "privacy.delta": 1e-3}


def stated(err):
    """The largest epsilon that was stated before training."""
    return max(float(number) for number in re.findall(r"at most ([0-9.]+) after round", err))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        CALIBRATED,
        CALIBRATED | {"privacy.unit": "sample", "sampling.clients": {"scheme": "full"}},
        {"algorithm.name": "scaffold", "privacy.where": "client"},
        {"local.momentum": 0.5, "privacy.adaptive_clipping": {"quantile": 0.5}},
        {"topology": {"kind": "graph", "structure": "ring"}, "algorithm.name": "dsgd", "privacy.where": "client",
         "privacy.unit": "sample", "sampling.clients": {"scheme": "full"}},
        {"privacy": {"unit": "none"}},
    ],
    ids=["given noise", "calibrated", "examples", "clients keep state", "adaptive clipping", "graph", "no privacy"],
)  # fmt: skip
def test_it_ends_as_a_run_of_all_rounds_at_that_noise(tiny, tmp_path, capsys, changes):
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    before, multipliers = run.epsilon, calibrate_noise(build_experiment(run.experiment)).multipliers
    sightline.run(tmp_path / "run", more_rounds=3)
    sightline.run(tmp_path / "run", more_rounds=2)
    told = capsys.readouterr().err
    # The oracle never heard of added rounds: nine rounds with the noise of four, given as such.
    whole = build_experiment(tiny(**changes | {"rounds": 9}))
    fresh = sightline.engine.run_loop(
        whole.with_noise(multipliers) if multipliers else whole, fresh_directory(tmp_path), simulator(), resume=False
    )
    assert fresh is None
    model, ledger, rounds = left_behind(tmp_path / "run")
    expected = left_behind(tmp_path / "fresh")
    assert model == expected[0]
    assert ledger == expected[1]
    assert [row["test_loss"] for row in rounds] == [row["test_loss"] for row in expected[2]]
    assert run.summary["rounds_done"] == 9
    assert any("5 rounds were added" in words for words in officer_warnings(RunView.read(tmp_path / "run")))
    noted = next(note for note in run.summary["notes"] if "Planned for 4 rounds; 5 were added" in note)
    assert noted.endswith("epsilon counts all 9: privacy.epsilon = 6 was for 4.") == ("privacy.epsilon" in changes)
    if changes != {"privacy": {"unit": "none"}}:
        assert before < run.epsilon <= stated(told)
        assert ("privacy.epsilon=6: was for 4 rounds and does not hold for 9" in told) == ("privacy.epsilon" in changes)
        assert run.metadata["target_epsilon"] is None
    assert compare_runs([tmp_path / "run", tmp_path / "fresh"]).differs[:1] != ("rounds",)


def fresh_directory(tmp_path):
    (tmp_path / "fresh").mkdir()
    return tmp_path / "fresh"


def simulator():
    from sightline.runtimes.process_count import simulator_maker

    return simulator_maker(1)


def test_epsilon_is_that_of_all_rounds_by_the_formula(tiny, tmp_path):
    run = sightline.run(tiny(), out=tmp_path / "run")
    sightline.run(run.directory, more_rounds=5)
    delta = run.experiment.privacy.delta
    assert run.epsilon == pytest.approx(accounting.poisson(noise=0.8, rate=0.6, steps=9).epsilon(delta=delta), rel=1e-6)


def test_noise_of_the_operating_system_has_a_new_root_and_no_round_is_made_again(tiny, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    run = sightline.run(tiny(**{"privacy.noise_source": "os"}), out=directory)
    first, rows = run.metadata["noise_root"], [release.body() for release in run.ledger]
    with monkeypatch.context() as patched:
        crash_in(patched, more_rounds.RunRecord, "add_round", 1, before=True)
        with pytest.raises(Crash):
            sightline.run(directory, more_rounds=2)
    assert (directory / SECRET).exists()
    assert run.metadata["noise_root"] != first
    # Back behind the end, round 4 would get a second noise on the same value.
    damaged = tmp_path / "damaged"
    shutil.copytree(directory, damaged)
    for name in (CHECKPOINT, "checkpoint-before.safetensors"):
        if (damaged / name).exists():
            (damaged / name).write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointDamaged):
        sightline.run(damaged, resume=True)
    sightline.run(directory, resume=True)
    assert [release.body() for release in run.ledger][: len(rows)] == rows
    assert run.summary["rounds_done"] == 6
    assert max(release.time for release in run.ledger) == 6
    assert not (directory / SECRET).exists()


def test_a_damaged_last_checkpoint_does_not_go_back_a_round(tiny, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    run = sightline.run(tiny(**{"privacy.noise_source": "os"}), out=directory)
    # The run is opened again and dies before its first new round: the checkpoint before the last is of round 3.
    with monkeypatch.context() as patched:
        crash_in(patched, sightline.engine.loop, "save_checkpoint", 1, before=True)
        with pytest.raises(Crash):
            sightline.run(directory, more_rounds=2)
    (directory / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointDamaged, match="from round 3, but code changed after round 4"):
        sightline.run(directory, resume=True)
    with pytest.raises(InvalidInput, match="has not ended"):
        sightline.run(directory, more_rounds=2)
    ended = tmp_path / "ended"
    sightline.run(tiny(), out=ended)
    (ended / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(InvalidInput, match="is missing or damaged, and no round may run twice"):
        sightline.run(ended, more_rounds=2)
    assert sightline.Run(ended).metadata["status"] == "finished"
    assert run.metadata["status"] != "finished"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy.noise": "correlated", "sampling.clients": {"scheme": "turns", "groups": 3}}, "correlated noise was"),
        ({"sampling.clients": {"scheme": "balanced", "uses": 2}}, "its schedule .balanced. was drawn for 4 rounds"),
        ({"local.schedule": "cosine"}, "its learning rate .* has ended after 4 rounds"),
        ({"privacy.stop_at_epsilon": 4.0}, "its budget is spent .stop_at_epsilon=4"),
        (
            {"algorithm.name": "ifca", "topology": {"kind": "clusters", "count": 2}, "privacy.unit": "sample",
             "sampling.clients": {"scheme": "full"}, "algorithm.selection_epsilon": 0.1},
            "ifca plans for the number of rounds",
        ),
        (TREE | {"algorithm.control": CONTROL | {"accuracy": 50}}, "algorithm.control has spread its steps over 6"),
        (TREE | DEAR, "the run ended before its last planned round .algorithm.control chose longer intervals"),
    ],
    ids=["correlated", "schedule", "learning rate", "budget", "selection", "control", "ended early"],
)  # fmt: skip
def test_what_was_planned_for_its_rounds_is_refused_and_left_alone(tiny, tmp_path, changes, reason):
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    left, facts = left_behind(run.directory), run.metadata
    with pytest.raises((Refused, InvalidInput), match=reason) as error:
        sightline.run(run.directory, more_rounds=2)
    assert "start a new run from its model" in str(error.value)
    assert (left_behind(run.directory), run.metadata) == (left, facts)


def test_a_plan_that_does_not_begin_like_the_old_one_is_refused(tiny, monkeypatch):
    built = calibrate_noise(build_experiment(tiny()))

    def more_often(experiment):
        plain = experiment.model_dump(mode="json", exclude_none=True)
        return build_experiment(sightline.config.parse(changed(plain, {"sampling.clients.rate": 0.9})))

    with pytest.raises(Refused, match="other releases from the start"):
        plan_longer(built, more_often, 6)
    # Also without the sentences about schedules: the plans themselves tell.
    monkeypatch.setattr(more_rounds, "_refuse_fixed_lengths", lambda experiment, rounds: None)
    for sampler in ({"scheme": "balanced", "uses": 2}, {"scheme": "check_ins", "rate": 0.8, "epochs": 2}):
        with pytest.raises(SightlineError):
            plan_longer(calibrate_noise(build_experiment(tiny(**{"sampling.clients": sampler}))), build_experiment, 6)


def test_sites_have_approved_their_rounds_only(tiny, tmp_path):
    run = sightline.run(tiny(), out=tmp_path / "run")
    (run.directory / RUN_ID).write_text("a run of real sites")
    with pytest.raises(InvalidInput, match="its sites approved the original rounds only"):
        sightline.run(run.directory, more_rounds=2)
    with RunRecord.open_to_read(run.directory) as record:
        assert record.facts["status"] == "finished"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--rounds", "20"],
            "--rounds=20: adds rounds to a run that has ended; e.g. --rounds +20; for a new run --set rounds=20",
        ),
        (["--rounds", "+0"], "--rounds=+0: is a whole number of rounds, at least one"),
        (["--rounds", "+2", "--runtime", "sightline_example:TRANSPORT"], ""),
    ],
)
def test_mistakes_are_one_line(tiny, tmp_path, capsys, words, reason):
    run = sightline.run(tiny(), out=tmp_path / "run", progress=False)
    capsys.readouterr()
    assert run_arguments(["run", str(run.directory), *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"sightline: {reason}")
    assert told.count("\n") == 1


def test_the_command_states_epsilon_before_it_trains(tiny, tmp_path, capsys):
    run = sightline.run(tiny(), out=tmp_path / "run", progress=False)
    capsys.readouterr()
    assert run_arguments(["run", str(run.directory), "--rounds", "+2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "continues after round 4 to round 6 with the same noise: epsilon against" in lines[0]
    assert lines[1].startswith("round 5/6")
    assert compare_runs([run.directory]).groups[0].runs[0].rounds_done == 6
    assert TINY["rounds"] == run.experiment.rounds == 4


def test_a_file_is_not_a_run(tiny):
    with pytest.raises(
        InvalidInput, match=r"rounds=\+2: more rounds need a run directory, and an Experiment is not one"
    ):
        sightline.run(tiny(), more_rounds=2)
