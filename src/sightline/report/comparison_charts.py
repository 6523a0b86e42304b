"""Accuracy of several groups of runs against rounds, epsilon, time, traffic and energy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from sightline.report.chart import Axis, Chart, ChartLine, line_chart
from sightline.report.comparison import Comparison, Group
from sightline.report.curves import ACCURACY, ROUNDS, SPENT, worst_epsilons
from sightline.report.numbers import floats_as_bytes, format_duration, format_number
from sightline.report.run import RunView
from sightline.report.scale import places_to_keep

POINTS = 120
"""At most so many points a line."""


@dataclass(frozen=True)
class Against:
    """One way to draw accuracy: the axis, where a run stands on it after each round, and how a group does."""

    name: str
    title: str
    axis: Axis
    course: Callable[[RunView], Sequence[float | None]]
    together: Callable[[Sequence[float]], float] = fmean


def _sum_metric(name: str) -> Callable[[RunView], list[float | None]]:
    def course(run: RunView) -> list[float | None]:
        values = run.series(name)
        if all(value is None for value in values):
            return list(values)
        return list(accumulate(value or 0.0 for value in values))

    return course


TIME = Axis("time", tick=format_duration, value=format_duration)
TRAFFIC = Axis("sent by clients", tick=floats_as_bytes, value=floats_as_bytes)
ENERGY = Axis("energy", tick=lambda joule: f"{format_number(joule)} J", value=lambda joule: f"{format_number(joule)} J")

AGAINST = (
    Against("rounds", "Accuracy by round", ROUNDS, lambda run: [float(row["round"]) for row in run.rounds]),
    Against("epsilon", "Accuracy for the epsilon spent", SPENT, worst_epsilons, max),
    Against("time", "Accuracy by time", TIME, _sum_metric("seconds")),
    Against("traffic", "Accuracy by traffic", TRAFFIC, _sum_metric("uplink_floats")),
    Against("energy", "Accuracy by energy", ENERGY, _sum_metric("energy_joule")),
)
"""Of the runs of one group the largest epsilon is drawn, and the mean of everything else."""


@dataclass(frozen=True)
class Course:
    """Where a group stood: x, mean accuracy, and its standard deviation (None of fewer than two runs)."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]


def group_course(group: Group, against: Against) -> Course:
    """A group at the rounds in which all of its runs were evaluated, thinned out with its extremes kept."""
    found = [_by_round(run, against) for run in group.runs]
    common = sorted(set(found[0]).intersection(*found[1:]))
    means = [fmean(one[number][1] for one in found) for number in common]
    places = places_to_keep([means], limit=POINTS)
    deviations = [stdev([one[number][1] for one in found]) if len(found) > 1 else None for number in common]
    return Course(
        tuple(against.together([one[common[place]][0] for one in found]) for place in places),
        tuple(means[place] for place in places),
        tuple(deviations[place] for place in places),
    )


def _by_round(run: RunView, against: Against) -> dict[int, tuple[float, float]]:
    rows = zip(run.rounds, against.course(run), strict=True)
    pairs = [(row["round"], x, row.get("test_accuracy")) for row, x in rows]
    return {number: (x, reached) for number, x, reached in pairs if x is not None and reached is not None}


def comparison_charts(comparison: Comparison) -> list[Chart]:
    """Every chart that some group has numbers for."""
    found = [comparison_chart(comparison, against) for against in AGAINST]
    return [one for one in found if one is not None]


def comparison_chart(comparison: Comparison, against: Against) -> Chart | None:
    """One chart: a line for each group, a band of one standard deviation where it has several runs."""
    courses = [group_course(group, against) for group in comparison.groups]
    xs = sorted({x for one in courses for x in one.x})
    place = {x: number for number, x in enumerate(xs)}
    lines = [_group_line(group, one, place) for group, one in zip(comparison.groups, courses, strict=True) if one.x]
    return line_chart(f"by-{against.name}", against.title, xs, lines, x_axis=against.axis, y_axis=ACCURACY, joined=True)


def _group_line(group: Group, one: Course, place: dict[float, int]) -> ChartLine:
    values: list[Any] = [None] * len(place)
    margin: list[Any] = [None] * len(place)
    for x, mean, deviation in zip(one.x, one.mean, one.deviation, strict=True):
        values[place[x]], margin[place[x]] = mean, deviation
    return ChartLine(group.label, values, margin=margin)
