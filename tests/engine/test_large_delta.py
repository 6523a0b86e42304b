"""A delta of one over the number of protected units promises nothing: refused unless asked for, noted near it."""

import json

import pytest

import sightline
from sightline import engine
from sightline.apps.cli.main import run_arguments
from sightline.config import parse, to_toml
from sightline.errors import Refused

SMALL = {"rounds": 1, "model": {"name": "linear"}}


def small(delta, *, clients=10, unit="client", examples=160, **privacy):
    privacy = {"unit": unit, "noise_multiplier": 2.0, "delta": delta} | privacy
    data = {"clients": clients, "train_samples": examples, "test_samples": 20}
    return parse(SMALL | {"data": data, "privacy": privacy, "local": {"steps": 1, "batch_size": 8}})


def built(*given, **more):
    return engine.calibrate_noise(engine.build_experiment(small(*given, **more)))


@pytest.mark.parametrize(
    ("delta", "more", "units"),
    [
        (0.5, {}, "10 clients"),
        (0.1, {}, "10 clients"),
        (1 / 49, {"clients": 49}, "49 clients"),
        (0.08, {"unit": "sample"}, "13 examples"),
        (0.01, {"unit": "sample", "where": "server"}, "130 examples"),
    ],
)
def test_one_over_the_number_of_units_is_refused(delta, more, units):
    with pytest.raises(Refused, match=rf"^privacy\.delta=.*: publishing one of {units} at random .*allow_large_delta"):
        built(delta, **more)
    assert built(delta, **more, allow_large_delta=True).multipliers


@pytest.mark.parametrize(("delta", "more"), [(0.09, {}), (0.06, {"unit": "sample"}), (0.5, {"clients": 1})])
def test_below_it_runs(delta, more):
    assert built(delta, **more).multipliers


def test_without_privacy_there_is_no_delta_to_speak_of():
    assert engine.calibrate_noise(engine.build_experiment(parse(SMALL | {"privacy": {"unit": "none", "delta": 0.5}})))


def test_an_untold_setting_leaves_resolved_files_as_they_were():
    assert "allow_large_delta" not in to_toml(small(1e-3))


@pytest.mark.parametrize(("delta", "said"), [(0.02, "0.1"), (0.01, None), (0.2, "0.1")])
def test_near_it_and_above_it_the_run_says_so(delta, said, tmp_path):
    run = sightline.run(small(delta, allow_large_delta=delta > 0.1), out=tmp_path / "run", progress=False)
    told = f"delta = {delta:g} is large: publishing one of 10 clients at random has delta = {said}"
    for place in (" ".join(run.summary["notes"]), run.report.read_text()):
        assert (told in place) == (said is not None)
    assert json.loads(json.dumps(run.summary))["delta"] == delta


def test_the_command_says_it_in_one_line_and_leaves_nothing(tmp_path, capsys):
    file = tmp_path / "ten.toml"
    file.write_text(to_toml(small(0.5)))
    assert run_arguments(["run", str(file), "--out", str(tmp_path / "run"), "--json"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "use at most 0.01, or set allow_large_delta = true" in printed.err
    assert not (tmp_path / "run").exists()


def test_the_groups_calculator_notes_it(capsys):
    words = ["groups", "--structure", "ring", "--workers", "20", "--groups", "4", "--epochs", "3", "--noise", "2"]
    assert run_arguments([*words, "--delta", "0.01", "--json"]) == 0
    assert "one of 20 workers" in json.loads(capsys.readouterr().out)["notes"][0]
    assert run_arguments([*words, "--delta", "0.001", "--json"]) == 0
    assert "notes" not in json.loads(capsys.readouterr().out)
