"""Charts: round ticks, thinning that keeps extremes, and honest gaps."""

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.apps.report.chart import (
    Axis,
    ChartLine,
    axis_domain,
    axis_ticks,
    bar_chart,
    line_chart,
    nice_step,
    places_to_keep,
)

ROUNDS = Axis("round", tick=str, value=lambda x: f"round {x:g}", whole=True)
SHARE = Axis("share", tick=str, value=str, floor=0.0, ceiling=1.0)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    span = max(span, 1e-8 * abs(low))  # finer than that, floats themselves are no longer round
    high = low + span
    found = axis_ticks(low, high)
    assert len(found) <= 7
    assert found == sorted(set(found))
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in found)


@given(st.floats(1e-12, 1e12))
def test_a_nice_step_is_one_two_or_five(least: float) -> None:
    step = nice_step(least)
    digits = f"{step:.6e}".split("e")[0].rstrip("0").rstrip(".")
    assert digits in ("1", "2", "2.5", "5")
    assert least * (1 - 1e-6) <= step <= 2.5 * least * (1 + 1e-6)


def test_whole_axes_have_whole_ticks() -> None:
    assert all(tick == int(tick) for high in (1, 2, 3, 7, 12, 99, 1234) for tick in axis_ticks(0, high, whole=True))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_domain_holds_every_value_and_keeps_its_walls(values: list[float]) -> None:
    low, high = axis_domain(values, floor=0.0, ceiling=1.0)
    assert 0 <= low < high
    assert low <= min(values) + 1e-9
    assert high >= max(values) - 1e-9


def test_a_hundred_thousand_rounds_become_few_points_with_every_extreme() -> None:
    rng = random.Random(0)
    lines = [[rng.random() for _ in range(100_000)] for _ in range(3)]
    lines[0][77_777], lines[1][33_333], lines[2][5] = 9.0, -9.0, 7.0
    places = places_to_keep(lines)
    assert len(places) <= 600
    assert {0, 99_999, 77_777, 33_333, 5} <= set(places)
    for line in lines:
        assert min(line) == min(line[place] for place in places)
        assert max(line) == max(line[place] for place in places)


def test_thinning_does_not_close_a_gap() -> None:
    line: list[float | None] = [1.0] * 5000
    line[2500] = None
    assert 2500 in places_to_keep([line])


def test_short_lines_are_kept_whole() -> None:
    assert places_to_keep([[1.0, 2.0], [None, 3.0]]) == [0, 1]
    assert places_to_keep([]) == []


def test_one_round_is_a_dot_and_not_an_invisible_line() -> None:
    chart = line_chart("a", "A", [1.0], [ChartLine("test", [0.5])], x_axis=ROUNDS, y_axis=SHARE)
    assert chart is not None
    assert chart.lines[0].path == ""
    assert len(chart.lines[0].dots) == 1
    assert chart.reading["words"] == ["round 1"]


def test_missing_values_break_the_line_and_no_values_make_no_chart() -> None:
    values = [0.1, 0.2, None, 0.4, 0.5]
    other = [0.9] * 5
    chart = line_chart("a", "A", range(5), [ChartLine("x", values), ChartLine("y", other)], x_axis=ROUNDS, y_axis=SHARE)
    assert chart is not None
    assert chart.lines[0].path.count("M") == 2
    assert chart.lines[1].path.count("M") == 1
    assert chart.reading["lines"][0]["y"][2] is None
    assert line_chart("a", "A", range(3), [ChartLine("x", [None] * 3)], x_axis=ROUNDS, y_axis=SHARE) is None


def test_rounds_without_evaluation_do_not_tear_the_line() -> None:
    values = [None if place % 10 else place / 100 for place in range(100)]
    chart = line_chart("a", "A", range(100), [ChartLine("x", values)], x_axis=ROUNDS, y_axis=SHARE)
    assert chart is not None
    assert chart.lines[0].path.count("M") == 1
    assert len(chart.reading["x"]) == 10


def test_infinite_and_nan_are_gaps() -> None:
    lines = [ChartLine("x", [0.1, math.inf, math.nan, 0.4]), ChartLine("y", [0.1, 0.2, 0.3, 0.4])]
    chart = line_chart("a", "A", range(4), lines, x_axis=ROUNDS, y_axis=SHARE)
    assert chart is not None
    assert chart.reading["lines"][0]["y"][1:3] == [None, None]


def test_equal_lines_become_one_that_names_both() -> None:
    lines = [ChartLine("clients", [0.1, 0.2]), ChartLine("public", [0.1, 0.2])]
    chart = line_chart("a", "A", range(2), lines, x_axis=ROUNDS, y_axis=SHARE)
    assert chart is not None
    assert [line.name for line in chart.lines] == ["clients, public"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_every_point_lies_in_the_plot(values: list[float]) -> None:
    axis = Axis("y", tick=str, value=str)
    chart = line_chart("a", "A", range(len(values)), [ChartLine("x", values)], x_axis=ROUNDS, y_axis=axis)
    assert chart is not None
    numbers = [float(word) for word in re.findall(r"-?[\d.]+(?:e-?\d+)?", chart.lines[0].path)]
    assert all(-1 <= value <= 1001 for value in numbers)


def test_bars_rise_from_zero() -> None:
    chart = bar_chart("b", "B", [10.0, 5.0, 0.0], ["a", "b", "c"], labels=(), x="x", y="y")
    tops = [top for _, _, top, _ in chart.bars]
    assert tops == [0.0, 500.0, 1000.0]
    assert chart.y_ticks[0].text == "0"


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.5, 3e-9])
def test_a_constant_line_has_room(constant: float) -> None:
    low, high = axis_domain([constant] * 4, floor=0.0, ceiling=1.0)
    assert low <= constant <= high
    assert low < high


def test_bars_at_one_value_stand_beside_each_other() -> None:
    axis = Axis("x", tick=str, value=str)
    lines = [ChartLine(name, [y, y], margin=[0.1, 0.1], marks=True) for name, y in (("a", 0.4), ("b", 0.5), ("c", 0.6))]
    chart = line_chart("bars", "Bars", [1.0, 2.0], lines, x_axis=axis, y_axis=SHARE)
    assert chart is not None
    assert len({line.bars[0][0] for line in chart.lines}) == 3
    assert chart.lines[1].bars[0][0] == 0
    alone = line_chart("bars", "Bars", [1.0, 2.0], lines[:1], x_axis=axis, y_axis=SHARE)
    assert alone is not None
    assert alone.lines[0].bars[0][0] == 0
