"""Runs side by side: groups by what differs, mean and spread as numpy has them, nothing prettier than the records."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from report_runs import quickstart, without_privacy

from sightline.apps.cli.main import run_arguments
from sightline.apps.cli.report import compare_command as command
from sightline.apps.cli.report import lay_out
from sightline.apps.report import RunView
from sightline.apps.report.comparison import (
    AGAINST,
    TUNING,
    Spread,
    compare_runs,
    comparison_charts,
    comparison_notes,
    comparison_table,
    group_course,
    plain_comparison,
)

BY = {against.name: against for against in AGAINST}


def made(folder: Path, algorithm: str, seed: int, rounds: int = 4, **facts: object) -> Path:
    """A run whose file names its algorithm and seed."""
    directory = quickstart(folder / f"{algorithm}-{seed}", rounds=rounds, seed=seed, algorithm=algorithm, **facts)
    text = (
        f'name = "x"\nseed = {seed}\nrounds = {rounds}\n[algorithm]\nname = "{algorithm}"\n[privacy]\nclip_norm = 1.0\n'
    )
    (directory / "config.toml").write_text(text)
    return directory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for algorithm in ("fedavg", "fedprox"):
        for seed in (0, 1, 2):
            made(tmp_path / "runs", algorithm, seed, rounds=4 + seed, seconds=1.0 + seed)
    return tmp_path / "runs"


def test_seeds_are_one_group_and_only_what_differs_is_a_column(folder: Path) -> None:
    comparison = compare_runs([folder])
    assert comparison.differs == ("rounds", "algorithm.name")
    for seed in (1, 2):
        for directory in folder.glob(f"*-{seed}"):
            text = (directory / "config.toml").read_text()
            (directory / "config.toml").write_text(text.replace(f"rounds = {4 + seed}", "rounds = 4"))
    comparison = compare_runs([folder])
    assert comparison.differs == ("algorithm.name",)
    assert [(group.label, len(group.runs)) for group in comparison.groups] == [("fedavg", 3), ("fedprox", 3)]


def test_every_value_stands_under_its_own_heading(tmp_path: Path) -> None:
    """The file names rounds before the algorithm; by the alphabet it would be the other way round."""
    for rounds, algorithm in ((2, "fedavg"), (3, "fedavg"), (2, "fedprox"), (3, "fedprox")):
        made(tmp_path / f"{rounds}", algorithm, seed=0, rounds=rounds)
    comparison = compare_runs([tmp_path])
    header, rows = comparison_table(comparison)
    assert header[:3] == ["rounds", "algorithm.name", "Runs"]
    assert sorted(row[:2] for row in rows) == [["2", "fedavg"], ["2", "fedprox"], ["3", "fedavg"], ["3", "fedprox"]]
    for group in comparison.groups:
        assert group.settings["rounds"] == len(group.runs[0].rounds)
        assert group.label == f"rounds {group.settings['rounds']}, {group.settings['algorithm.name']}"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_table_keeps_within_the_terminal_and_cuts_nothing(width: int) -> None:
    header = [
        "rounds",
        "algorithm.name",
        "privacy.noise_multiplier",
        "Runs",
        "Test accuracy",
        "Time",
        "Sent by clients",
    ]
    row = ["200", "dp_ogl_plus", "1.125", "12", "90.0 ± 1.2 %", "12 min 3 s ± 2 min 3 s", "8.00 MB ± 0"]
    lines = lay_out(header, [row, ["3", *row[1:]]], left=3, width=width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(cell) == 2 for cell in row[1:] if len(cell) > 2)
    assert all(word in text for word in "rounds algorithm name privacy noise multiplier Runs accuracy Sent".split())
    assert len(lay_out(header, [row], left=3, width=None)) == 3


def test_a_cell_that_is_wider_than_the_terminal_is_folded() -> None:
    lines = lay_out(["model.hidden", "Runs"], [["[" + "64, " * 40 + "10]", "1"]], left=1, width=80)
    assert max(map(len, lines)) <= 80
    assert "".join("".join(lines).split()).count("64,") == 40


def test_a_file_with_a_date_in_it_is_compared(tmp_path: Path) -> None:
    for day in (1, 2):
        directory = made(tmp_path / f"{day}", "fedavg", seed=0)
        (directory / "config.toml").write_text(f"born = 2026-01-0{day}\n")
    told = json.loads(CliRunner().invoke(command, [str(tmp_path), "--json"]).stdout)
    assert [group["settings"] for group in told["groups"]] == [{"born": "2026-01-01"}, {"born": "2026-01-02"}]


def test_mean_and_spread_are_numpys_and_epsilon_is_the_largest(tmp_path: Path) -> None:
    runs = [made(tmp_path, "fedavg", seed, seconds=2.0**seed) for seed in range(4)]
    told = plain_comparison(compare_runs(runs))["groups"][0]
    values = [RunView.read(run).last("test_accuracy") for run in runs]
    assert told["test_accuracy"]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
    assert told["test_accuracy"]["deviation"] == pytest.approx(np.std(values, ddof=1), rel=1e-12, abs=1e-15)
    assert told["seconds"]["deviation"] == pytest.approx(np.std([1, 2, 4, 8], ddof=1))
    assert told["epsilon"]["greatest"] == max(RunView.read(run).epsilon or math.inf for run in runs)
    assert told["seeds"] == [0, 1, 2, 3]


def test_no_guarantee_is_infinite_in_the_table_and_null_in_json(tmp_path: Path) -> None:
    comparison = compare_runs([without_privacy(tmp_path / "open"), quickstart(tmp_path / "private", rounds=3)])
    groups = plain_comparison(comparison)["groups"]
    assert any(group["epsilon"]["greatest"] is None for group in groups)
    header, rows = comparison_table(comparison)
    assert "∞" in [row[header.index("Epsilon")] for row in rows]


def test_one_run_has_no_spread_and_none_has_no_number() -> None:
    assert Spread.of([]) is None
    one = Spread.of([3.0])
    assert one is not None
    assert one.deviation is None
    both = Spread.of([1.0, math.inf])
    assert both is not None
    assert both.mean == both.greatest == math.inf
    assert both.deviation is None


def test_a_group_is_drawn_at_its_common_rounds_with_the_largest_epsilon(tmp_path: Path) -> None:
    short, long = made(tmp_path, "fedavg", 0, rounds=3), made(tmp_path, "fedavg", 1, rounds=5)
    (long / "config.toml").write_text((short / "config.toml").read_text())
    (group,) = compare_runs([short, long]).groups
    one = group_course(group, BY["rounds"])
    assert one.x == (1.0, 2.0, 3.0)
    first, second = (RunView.read(run).series("test_accuracy") for run in (short, long))
    for place, (mean, deviation) in enumerate(zip(one.mean, one.deviation, strict=True)):
        pair = [first[place], second[place]]
        assert mean == pytest.approx(np.mean(pair))
        assert deviation == pytest.approx(np.std(pair, ddof=1))
    spent = group_course(group, BY["epsilon"])
    rows = [[max(row["epsilon"].values()) for row in RunView.read(run).rounds[:3]] for run in (short, long)]
    assert list(spent.x) == [max(pair) for pair in zip(*rows, strict=True)]


def test_every_group_has_its_line_also_where_their_x_differ(folder: Path) -> None:
    drawn = {chart.id: chart for chart in comparison_charts(compare_runs([folder]))}
    assert {"by-rounds", "by-epsilon", "by-time", "by-traffic"} == set(drawn)
    assert all(line.path for line in drawn["by-epsilon"].lines)
    assert "by-energy" not in drawn


def test_notes_say_what_choosing_costs_and_that_noise_is_shared(folder: Path, tmp_path: Path) -> None:
    found = " ".join(comparison_notes(compare_runs([folder])))
    assert "no epsilon here counts that choice" in found
    assert "share their noise" in found
    secret = [made(tmp_path / "os", "fedavg", seed, noise_source="os") for seed in (0, 1)]
    assert comparison_notes(compare_runs(secret)) == [TUNING]
    assert comparison_notes(compare_runs(secret[:1])) == []
    late = made(tmp_path / "late", "fedavg", 0, status="running")
    assert "not finished (running" in comparison_notes(compare_runs([late]))[0]
    other = made(tmp_path / "other", "fedavg", 7, delta=1e-6)
    assert "not one scale" in " ".join(comparison_notes(compare_runs([secret[0], other])))


@pytest.mark.parametrize("ending", ["html", "png", "svg"])
def test_the_command_prints_a_table_and_draws(folder: Path, tmp_path: Path, ending: str) -> None:
    figure = tmp_path / f"figure.{ending}"
    result = CliRunner().invoke(command, [str(folder), "--figure", str(figure)])
    assert result.exit_code == 0, result.output
    assert "fedavg" in result.stdout
    assert "± " in result.stdout or "Test accuracy" in result.stdout
    start = figure.read_bytes()[:400]
    assert {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<svg"}[ending] in start


def test_json_is_one_object_whose_runs_equal_their_records(folder: Path) -> None:
    told = json.loads(CliRunner().invoke(command, [str(folder), "--json"]).stdout)
    assert len(told["runs"]) == 6
    for row in told["runs"]:
        run = RunView.read(Path(row["run_dir"]))
        assert row["test_accuracy"] == run.last("test_accuracy")
        assert row["epsilon"] == run.epsilon
    assert {name for group in told["groups"] for name in group["runs"]} == {row["run_dir"] for row in told["runs"]}


def test_a_run_named_twice_counts_once(folder: Path) -> None:
    assert len(list(compare_runs([folder, folder / "fedavg-0"]).runs)) == 6


def test_hostile_settings_are_text(tmp_path: Path) -> None:
    for number in (0, 1):
        directory = made(tmp_path / "runs", "fedavg", number)
        (directory / "config.toml").write_text(f'"<script>{number}</script>" = "<b onload=x>{number}"\n')
    figure = tmp_path / "figure.html"
    assert CliRunner().invoke(command, [str(tmp_path / "runs"), "--figure", str(figure)]).exit_code == 0
    assert "<script>0" not in figure.read_text()
    assert "<b onload" not in figure.read_text()


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["runs", "--figure", "x.doc"], ["runs", "--figure", "no/x.png"]])
def test_mistakes_are_one_line_and_exit_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    made(tmp_path / "runs", "fedavg", 0, rounds=1)
    monkeypatch.chdir(tmp_path / "empty" if words == ["."] else tmp_path)
    assert run_arguments(["compare", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
