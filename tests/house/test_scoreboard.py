"""The scoreboard: its files are valid, its page follows from the stored results, and finished jobs are not repeated."""

import json

import numpy as np
import pytest
import torch

import sightline
from benchmarks.scoreboard import __main__ as command
from benchmarks.scoreboard import heart, nets, rows, runs
from benchmarks.scoreboard.page import PAGE, PICTURE, find_lines, render_page, write_accuracy
from benchmarks.scoreboard.rows import CNN, LINEAR, ROWS, Row
from benchmarks.scoreboard.runs import Job, do_job, is_done, list_jobs, read_results
from sightline.accounting import gaussian
from sightline.config import read
from sightline.errors import InvalidInput
from sightline.events import Allocation, Gaussian, Poisson
from tests.loops import for_every


@for_every(ROWS)
def test_every_row_is_a_valid_file(row):
    experiment = read(row.file)
    assert experiment.name == row.name
    assert experiment.privacy.epsilon <= 8
    if row.noise is not None:
        assert (experiment.privacy.epsilon, experiment.privacy.delta) == (3.0, 1e-5)
        assert experiment.data.test_fraction == 0.0


def test_every_file_has_a_row():
    assert {file.stem for file in rows.HERE.glob("*.toml")} == {row.name for row in ROWS}


def test_the_page_is_what_the_results_say():
    assert PAGE.read_text() == render_page(read_results()), "run python -m benchmarks.scoreboard --page-only"


def test_the_picture_shows_every_row_that_was_run():
    shown = PICTURE.read_text()
    for row in ROWS:
        assert (f">{row.name}<" in shown) == bool(find_lines(row, read_results())), row.name


def test_numbers_of_the_readme_are_those_of_the_page():
    """Accuracies are rounded to the nearest tenth; they are not bounds."""
    text = (PAGE.parents[1] / "README.md").read_text()
    for row, name in zip(LINEAR, ("MNIST", "Fashion-MNIST", "CIFAR-10"), strict=True):
        mean = 100 * np.mean([line["test_accuracy"] for line in find_lines(row, read_results())])
        assert f"{name} {mean:.1f}" in text


def test_every_kept_line_is_about_a_file_as_it_is_now():
    known = {job.key: job for job in list_jobs(ROWS, everything=True)}
    for key, line in read_results().items():
        assert key in known
        assert line["digest"] == known[key].digest, f"{key} is of another file"


def test_no_run_that_is_kept_spent_more_than_was_stated():
    for (name, kind, _), line in read_results().items():
        if kind == "run":
            assert line["epsilon"] <= read(rows.HERE / f"{name}.toml").privacy.epsilon
        if kind == "audit":
            assert not line["refuted"]
            assert line["epsilon_lower"] <= line["epsilon_upper"]


@for_every([row for row in ROWS if row.audit])
def test_an_audited_file_has_the_rate_the_steps_and_the_budget_of_its_row(row):
    own, audited = read(row.file), read(row.file, row.audit)
    assert (own.rounds, own.privacy, own.algorithm) == (audited.rounds, audited.privacy, audited.algorithm)
    if row.noise is not None:
        size = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}[own.data.source]
        assert audited.local.batch_size / rows.DIGITS == pytest.approx(
            own.local.batch_size / size, rel=3e-2
        )  # whole examples
    else:
        assert audited.data.clients == own.data.clients


def test_digits_has_as_many_training_examples_as_the_audit_counts_with():
    from sightline.data import load_federation
    from sightline.randomness import Streams

    audited = read(LINEAR[0].file, LINEAR[0].audit)
    assert load_federation(audited.data, streams=Streams.from_seed(0)).sizes.tolist() == [rows.DIGITS]


TINY = """
name = "tiny"
rounds = 2
[data]
clients = 2
[model]
name = "linear"
[privacy]
epsilon = 8.0
delta = 1e-3
allow_large_delta = true
"""


def test_what_is_done_is_not_done_again_unless_its_file_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows, "HERE", tmp_path)
    monkeypatch.setattr(runs, "SCRATCH", tmp_path / "runs")
    kept = tmp_path / "results.jsonl"
    monkeypatch.setattr(runs.read_results, "__defaults__", (kept,))
    monkeypatch.setattr(runs.do_job, "__defaults__", (kept,))
    (tmp_path / "tiny.toml").write_text(TINY)
    row = Row("tiny", "tiny", "tests", seeds=(3,))
    (job,) = list_jobs([row])
    assert command.run_jobs([job]) == []
    assert command.run_jobs([job]) == []
    assert "1 of 1 jobs were done before" in capsys.readouterr().out
    (line,) = map(json.loads, kept.read_text().splitlines())
    direct = sightline.run(tmp_path / "tiny.toml", seed=3, out=tmp_path / "direct")
    assert line["test_accuracy"] == direct.test_accuracy
    assert line["epsilon"] == direct.epsilon
    assert not list((tmp_path / "runs").iterdir())
    assert write_accuracy(row, read_results(kept)) == f"{100 * direct.test_accuracy:.2f} (1 seed)"
    (tmp_path / "tiny.toml").write_text(TINY.replace("rounds = 2", "rounds = 1"))
    assert not is_done(job, read_results(kept))


def test_one_failure_does_not_keep_others_from_being_run(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "HERE", tmp_path)
    (tmp_path / "broken.toml").write_text("rounds = 0")
    monkeypatch.setattr(runs, "SCRATCH", tmp_path / "runs")
    (failed,) = command.run_jobs([Job(Row("broken", "", ""), "run", 0)])
    assert "rounds=0" in failed


def test_what_processes_do_can_be_imported_there():
    """A spawned process does not load the module that was called with -m, and would wait for ever."""
    assert command.attempt_job.__module__ == runs.__name__


@pytest.mark.slow
def test_processes_keep_the_lines_of_all_jobs(tmp_path):
    made = [Row(f"row-{batch}", "", "", noise=rows.Noise(1000, batch, 2, 2.0)) for batch in (10, 50, 100)]
    failures = list(command.attempt_jobs([Job(row, "price") for row in made], 2, tmp_path / "kept.jsonl"))
    assert failures == [None, None, None]
    assert {name for name, _, _ in read_results(tmp_path / "kept.jsonl")} == {row.name for row in made}


def test_quick_is_one_seed_of_few_rows():
    quick = [job for job in list_jobs(ROWS, quick=True) if job.kind == "run"]
    assert {job.row.name for job in quick} == {row.name for row in ROWS if row.quick}
    assert all(job.seed == job.row.seeds[0] for job in quick)
    assert not any(job.row.away for job in list_jobs(ROWS) if job.kind == "run")


PRICES = {"mnist-cnn": (2.36, 2.30), "fashion-cnn": (2.39, 2.33), "cifar10-cnn": (2.39, 2.31)}
"""What was worked out before there was a scoreboard, to two digits: Poisson, balanced."""


@pytest.mark.slow
@pytest.mark.parametrize("row", [*LINEAR, *CNN], ids=lambda row: row.name)
def test_published_noise_costs_what_the_page_says(row, tmp_path):
    line = do_job(Job(row, "price"), tmp_path / "kept.jsonl")
    kept = read_results().get(Job(row, "price").key)
    assert kept is not None
    assert (line["poisson"], line["balanced"]) == (kept["poisson"], kept["balanced"])
    expected = PRICES.get(row.name, (line["poisson"], line["balanced"]))
    assert (line["poisson"], line["balanced"]) == pytest.approx(expected, abs=0.01)


def test_prices_are_of_all_their_steps_and_of_their_statistics():
    events = runs.published_events(rows.Noise(1000, 100, 20, 2.0, 8.0))
    assert events["poisson"] == {Gaussian(8.0): 2, Poisson(0.1, Gaussian(2.0)): 200}
    assert events["balanced"] == {Gaussian(8.0): 2, Allocation(200, 20, Gaussian(2.0)): 1}
    cheap = Job(Row("none", "", "", noise=rows.Noise(100, 100, 1, 4.0)), "price")
    assert runs.price_noise(cheap)["poisson"] == pytest.approx(
        gaussian(noise=4.0, steps=1).epsilon(delta=1e-5), abs=2e-3
    )


@pytest.mark.parametrize(
    ("build", "shape", "parameters"),
    [
        (nets.build_digit_net, (1, 28, 28), 26_010),
        (nets.build_digit_net, (81, 7, 7), 33_066),
        (nets.build_photo_net, (3, 32, 32), 550_570),
        (nets.build_photo_net, (243, 8, 8), 187_210),
        (nets.build_photo_net, (243, 8, 4), 182_090),
    ],
)
def test_networks_are_those_of_the_paper(build, shape, parameters):
    net = build(input_shape=shape, classes=10)
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters


def write_patients(folder, rng):
    """Write four files shaped like the real ones: 14 columns, with some missing values."""
    (folder / "heart_disease").mkdir()
    for name in heart.HOSPITALS:
        lines = []
        for _ in range(90):
            sick = int(rng.integers(0, 2))
            age, pain = rng.integers(35, 70) + 8 * sick, rng.integers(1, 4) + sick
            row = [age, rng.integers(0, 2), pain, rng.integers(100, 160), "?" if rng.random() < 0.1 else 230, 0,
                   rng.integers(0, 3), rng.integers(110, 180) - 20 * sick, sick, 1.5 * sick, "?", "?", "?", 2 * sick]  # fmt: skip
            lines.append(",".join(map(str, row)))
        (folder / "heart_disease" / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


def test_the_file_of_four_hospitals_runs_on_tables_of_their_shape(tmp_path, monkeypatch):
    write_patients(tmp_path, np.random.default_rng(0))
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    run = sightline.run(rows.HERE / "heart-disease.toml", out=tmp_path / "run", overrides=["rounds=10"])
    assert run.test_accuracy > 0.7
    assert run.epsilon <= 1.0
    assert run.metadata["input_shape"] == [13]


def test_hospitals_without_their_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"processed\.cleveland\.data"):
        next(heart.hospitals(4, np.random.default_rng(0)))
    (tmp_path / "heart_disease").mkdir()
    (tmp_path / "heart_disease" / "processed.cleveland.data").write_text("1,2,3\n")
    with pytest.raises(InvalidInput, match="3 columns"):
        next(heart.hospitals(4, np.random.default_rng(0)))
