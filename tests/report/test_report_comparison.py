"""Runs side by side: groups by what differs, mean and spread as numpy has them, nothing prettier than the records."""

import csv
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from report_runs import quickstart, without_privacy

import sightline
from sightline.apps.cli.main import run_arguments
from sightline.apps.cli.report import compare_command as command
from sightline.apps.cli.report import format_table
from sightline.apps.report import RunView
from sightline.apps.report.comparison import (
    TUNING,
    Comparison,
    Spread,
    align_epsilons,
    compare_runs,
    comparison_notes,
    comparison_table,
    csv_table,
    latex_table,
    plain_comparison,
    readable_header,
)
from sightline.apps.report.comparison_figure import (
    AGAINST,
    SWEPT,
    FigureChoice,
    comparison_charts,
    draw_comparison,
    group_course,
    quantity_of,
    read_size,
    swept_axis,
    swept_lines,
)
from sightline.engine import RunRecord
from sightline.formatting import format_upper

ACCURACY = quantity_of("test_accuracy")
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
    text = format_table(header, [row, ["3", *row[1:]]], left=3, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(text.count(cell) == 2 for cell in row[1:] if len(cell) > 2)
    assert all(word in text for word in "rounds algorithm name privacy noise multiplier Runs accuracy Sent".split())
    assert len(format_table(header, [row], left=3, width=None).splitlines()) == 3


def test_a_cell_that_is_wider_than_the_terminal_is_folded() -> None:
    lines = format_table(["model.hidden", "Runs"], [["[" + "64, " * 40 + "10]", "1"]], left=1, width=80).splitlines()
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
    one = group_course(group, BY["rounds"], ACCURACY)
    assert one.x == (1.0, 2.0, 3.0)
    first, second = (RunView.read(run).series("test_accuracy") for run in (short, long))
    for place, (mean, deviation) in enumerate(zip(one.mean, one.deviation, strict=True)):
        pair = [first[place], second[place]]
        assert mean == pytest.approx(np.mean(pair))
        assert deviation == pytest.approx(np.std(pair, ddof=1))
    spent = group_course(group, BY["epsilon"], ACCURACY)
    rows = [[max(row["epsilon"].values()) for row in RunView.read(run).rounds[:3]] for run in (short, long)]
    assert list(spent.x) == [max(pair) for pair in zip(*rows, strict=True)]


def test_every_group_has_its_line_also_where_their_x_differ(folder: Path) -> None:
    drawn = {chart.id: chart for chart in comparison_charts(compare_runs([folder]))}
    assert {"swept", "by-rounds", "by-epsilon", "by-time", "by-traffic"} == set(drawn)
    assert all(line.path for line in drawn["by-epsilon"].lines)
    assert "by-energy" not in drawn


def test_notes_say_what_choosing_costs_and_that_noise_is_shared(folder: Path, tmp_path: Path) -> None:
    found = " ".join(comparison_notes(compare_runs([folder])))
    assert "no epsilon here counts that choice" in found
    assert "share their noise" in found
    secret = [made(tmp_path / "os", "fedavg", seed, noise_source="os") for seed in (0, 1)]
    terms = "Epsilon is per client, added or removed, δ = 0.001, against the worst observer that is not trusted."
    assert comparison_notes(compare_runs(secret)) == [terms, TUNING]
    assert comparison_notes(compare_runs(secret[:1])) == [terms]
    late = made(tmp_path / "late", "fedavg", 0, status="running")
    assert "not finished (running" in comparison_notes(compare_runs([late]))[0]
    other = made(tmp_path / "other", "fedavg", 7, delta=1e-6)
    unlike = " ".join(comparison_notes(compare_runs([secret[0], other])))
    assert "not one scale" in unlike
    assert "δ = 0.001 (" in unlike
    assert "per client, added or removed, δ = 1e-6 (" in unlike


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


def swept_over(folder: Path, **values: list[object]) -> Path:
    """Runs of every epsilon and clip norm with three seeds, whose last accuracy is known."""
    for place, epsilon in enumerate(values["epsilon"]):
        for clip in values.get("clip", [1.0]):
            for seed in range(3):
                directory = quickstart(folder / f"{epsilon}-{clip}-{seed}", rounds=4, seed=seed)
                settings = f"epsilon = {epsilon}\nclip_norm = {clip}\n"
                text = f'name = "x"\nseed = {seed}\n[privacy]\n{settings}'
                (directory / "config.toml").write_text(text)
                with RunRecord.open(directory) as record:
                    row = record.rounds()[-1] | {"test_accuracy": 0.5 + 0.1 * place + 0.01 * seed * float(clip)}
                    record.add_round(row.pop("round"), row | {"purity": 9.0, "clusters": {"purity": 0.25 * (1 + seed)}})
    return folder


def test_a_metric_stands_against_the_swept_setting_with_one_deviation(tmp_path: Path) -> None:
    comparison = compare_runs([swept_over(tmp_path, epsilon=[8, 1, 2, 4], clip=[1.0, 2.0])])
    axis = swept_axis(comparison)
    assert axis is not None
    assert axis.key == "privacy.epsilon"
    assert list(axis.at) == ["1", "2", "4", "8"]
    assert np.diff(list(axis.at.values())) == pytest.approx(math.log10(2))  # by factors: equal distances
    lines = swept_lines(comparison, axis, ACCURACY)
    assert list(lines) == ["clip_norm 1", "clip_norm 2"]
    for clip in (1.0, 2.0):
        for text, accuracy in (("8", 0.5), ("1", 0.6), ("2", 0.7), ("4", 0.8)):
            point = lines[f"clip_norm {clip:g}"][axis.at[text]]
            values = accuracy + 0.01 * clip * np.arange(3)
            assert (point.mean, point.deviation) == pytest.approx((values.mean(), values.std(ddof=1)))
    chart = next(one for one in comparison_charts(comparison) if one.id == SWEPT)
    assert [tick.text for tick in chart.x_ticks] == ["1", "2", "4", "8"]
    for line in chart.lines:
        assert len(line.bars) == len(line.dots) == 4
        assert all(low > high for _, low, high in line.bars)  # downwards: the lower end is further down


def test_words_are_categories_without_lines_and_the_axis_may_be_chosen(folder: Path) -> None:
    comparison = compare_runs([folder])
    axis = swept_axis(comparison, "algorithm.name")
    assert axis is not None
    assert (axis.title, axis.at, axis.linked) == ("algorithm", {"fedavg": 0.0, "fedprox": 1.0}, False)
    (chart,) = comparison_charts(comparison, FigureChoice((SWEPT,), x="algorithm.name"))
    assert all(line.path == "" and line.dots for line in chart.lines)


def test_tables_for_a_paper_hold_the_numbers_of_the_runs(tmp_path: Path) -> None:
    comparison = compare_runs([swept_over(tmp_path, epsilon=[1, 2])])
    rows = list(csv.DictReader(csv_table(comparison).splitlines()))
    assert [row["privacy.epsilon"] for row in rows] == ["1", "2"]
    for row, group in zip(rows, comparison.groups, strict=True):
        values = [run.last("test_accuracy") for run in group.runs]
        assert float(row["test_accuracy"]) == pytest.approx(np.mean(values))
        assert float(row["test_accuracy_std"]) == pytest.approx(np.std(values, ddof=1))
        assert float(row["epsilon"]) == max(run.epsilon for run in group.runs)
        assert float(row["purity"]) == pytest.approx(0.5)  # of the clusters, not the row's own number
    latex = latex_table(comparison, ["test_accuracy", "purity", "epsilon"]).splitlines()
    assert latex[0] == r"\begin{tabular}{lrrrr}"
    assert latex[2] == r"target epsilon & Runs & Test accuracy & Purity & $\varepsilon$ \\"
    assert latex[4].startswith(r"1 & 3 & 51.0 $\pm$ 1.0\,\% & 50.0 $\pm$ 25.0\,\% & ")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_has_the_size_of_a_column_and_the_same_bytes_again(tmp_path: Path, ending: str) -> None:
    comparison = compare_runs([swept_over(tmp_path / "runs", epsilon=[1, 2, 4])])
    paths = [tmp_path / f"{n}.{ending}" for n in (0, 1)]
    for path in paths:
        draw_comparison(comparison, path, choice=FigureChoice((SWEPT,), "purity", size=read_size("column")))
    content = paths[0].read_bytes()
    assert content == paths[1].read_bytes()
    if ending == "png":
        assert int.from_bytes(content[16:20], "big") == round(3.25 * 300)
    elif ending == "svg":
        assert b'width="234pt"' in content  # 3.25 in at 72 pt
    else:
        assert b"/MediaBox [ 0 0 234 " in content
        assert b"/Type3" not in content  # which publishers refuse


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--panels", "swept,round"], '--panels=round: no such panel; did you mean "rounds"?'),
        (["--size", "wide"], "--size=wide: not a size; use column, text, page, or WIDTHxHEIGHT"),
        (["--columns", "test_acc"], '--columns=test_acc: no such measure; did you mean "test_accuracy"?'),
        (["--x", "privacy.delta", "--figure", "f.html"], "--x=privacy.delta: the runs do not differ in it"),
        (["--metric", "acuracy", "--figure", "f.html"], "--metric=acuracy: no run has it"),
        (["--panels", "energy", "--figure", "f.png"], "--panels=energy: these runs have no numbers for it"),
        (["--table", "csv", "--json"], "--table=csv: --json is given too"),
    ],
)
def test_a_mistake_in_a_figure_or_table_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run_arguments(["compare", str(folder), *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"sightline: {reason}")
    assert told.err.count("\n") == 1
    assert not list(tmp_path.glob("f.*"))


def test_frames_hold_runs_rounds_and_releases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[dict[str, object]]] = []
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: made.append(rows) or rows))
    rows = sightline.compare(folder).to_frame()
    assert [(row["algorithm.name"], row["seed"]) for row in rows] == [
        (a, s) for a in ("fedavg", "fedprox") for s in (0, 1, 2)
    ]
    assert all(len(row) == len(rows[0]) for row in rows)
    run = sightline.Run(folder / "fedavg-0")
    assert [row["test_accuracy"] for row in run.to_frame()] == [row["test_accuracy"] for row in run.rounds]
    releases = run.ledger.to_frame()
    assert [row["event"] for row in releases] == [type(release.event).__name__ for release in run.ledger]
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (sightline.compare(folder), run, run.ledger):
        with pytest.raises(sightline.InvalidInput, match="pip install pandas"):
            frame.to_frame()


@pytest.mark.parametrize("noise", [1.5, {"min": 1.5, "max": 2.5}, None])
def test_the_noise_in_a_summary_is_a_number_or_unknown(tmp_path: Path, noise: object) -> None:
    summary = sightline.Run(quickstart(tmp_path / "run", rounds=2, noise_multiplier=noise)).summary
    ends = (1.5, 2.5) if isinstance(noise, dict) else (noise, noise)
    assert (summary["noise_multiplier"], summary["noise_multiplier_max"]) == ends


def test_runs_ledgers_and_comparisons_print_as_tables(folder: Path) -> None:
    run = sightline.Run(folder / "fedavg-0")
    told = dict(line.split("  ", 1) for line in str(run).splitlines()[1:])
    assert told["test accuracy"].strip() == f"{100 * run.test_accuracy:.1f}%"
    assert str(run.ledger).splitlines()[0].startswith(f"{len(run.ledger)} releases, unit client")
    assert len(str(run.ledger).splitlines()) == 4  # what is handed over, and the noisy mean
    assert str(sightline.compare(folder)).splitlines()[0].split()[:3] == ["rounds", "algorithm.name", "Runs"]


def test_epsilons_of_one_column_have_as_many_decimals_and_are_rounded_up() -> None:
    values = [8.0, 12.3411, 0.01231, 0.0, math.inf, None]
    texts = align_epsilons(values)
    assert texts == ["8.000", "12.342", "0.013", "0", "∞", "–"]
    assert align_epsilons([1e9, 1.0]) == [format_upper(1e9), format_upper(1.0)]


def test_a_page_names_settings_in_words() -> None:
    comparison = Comparison(("local.learning_rate", "algorithm.name", "server.learning_rate", "privacy.epsilon"), ())
    header = readable_header(comparison, [*comparison.differs, "Runs"])
    assert header == ["local learning rate", "algorithm", "server learning rate", "target epsilon", "Runs"]
