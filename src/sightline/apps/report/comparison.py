"""Comparison of several runs: runs that differ only in the seed form one group, with mean and spread, as tables."""

import csv
import io
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sightline.apps.report.guarantee import sight_terms
from sightline.apps.report.run_view import RunView, runs_of
from sightline.apps.report.sections import setting_text
from sightline.config.experiment import unread_keys
from sightline.engine.record import replace_nonfinite
from sightline.errors import did_you_mean, invalid, printable
from sightline.events import Unit
from sightline.formatting import (
    INFINITE,
    METRICS,
    NONE,
    Metric,
    floats_as_bytes,
    format_count,
    format_duration,
    format_metric,
    format_number,
    format_percent,
    format_plural,
    format_short,
    format_upper,
    make_frame,
    text_table,
)

IGNORED = ("name", "seed")
"""Settings in which runs of one group may differ."""


MAIN_METRICS = tuple(METRICS[name] for name in ("accuracy", "macro_f1", "rmse", "perplexity", "loss"))
"""Metrics by which runs of some task are judged first."""


@dataclass(frozen=True)
class Spread:
    """Several numbers as one: mean, sample standard deviation (None for fewer than two), and range."""

    mean: float
    deviation: float | None
    least: float
    greatest: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of some numbers, or None if there are none.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, least=1.0, greatest=3.0, runs=2)
        """
        if not values:
            return None
        # One infinite epsilon makes the mean infinite: leaving it out would claim a guarantee for the group.
        finite = all(math.isfinite(value) for value in values)
        mean = fmean(values) if finite else math.inf
        deviation = stdev(values) if finite and len(values) > 1 else None
        return cls(mean, deviation, min(values), max(values), len(values))


MEASURES = (
    *(metric.test_key for metric in METRICS.values() if metric.name != "loss"),
    *(metric.client_key(which) for metric in MAIN_METRICS for which in ("mean", "worst")),
    *(f"minority_{metric.name}" for metric in MAIN_METRICS),
    "purity",
    "cluster_count",
    "test_loss",
    "epsilon",
    "seconds",
    "uplink_floats",
    "energy_joule",
    "delay_seconds",
)
"""The measures of a group, under the names of `sightline run --json`."""


def list_measures(runs: Iterable[RunView]) -> list[str]:
    """Return the measures of runs: those of every run, and those of the user's own metrics before the loss."""
    own = [m for run in runs for m in run.own_metrics]
    found = [key for m in own for key in (m.test_key, m.client_key("mean"), m.client_key("worst"))]
    place = MEASURES.index("test_loss")
    return list(dict.fromkeys((*MEASURES[:place], *found, *MEASURES[place:])))


ALWAYS = frozenset(
    ("test_accuracy", "client_accuracy_mean", "client_accuracy_worst", "test_loss", "epsilon", "seconds",
     "uplink_floats", "energy_joule", "delay_seconds")
)  # fmt: skip
"""Present in `--json` even if no run has them."""


def measure_run(run: RunView, name: str) -> float | None:
    """Return one measure of one run; epsilon is infinite without a guarantee, None is unknown."""
    if name == "epsilon":
        # A run without a guarantee is comparable only as infinite; a blank would look like unknown.
        return math.inf if run.unit is Unit.NONE else run.epsilon
    if name == "seconds":
        return run.fact("seconds") or run.total("seconds")
    if name in ("uplink_floats", "energy_joule", "delay_seconds"):
        return run.total(name) if any(value is not None for value in run.series(name)) else None
    if name == "cluster_count":
        return (run.fact("clusters") or {}).get("count")
    return next((value for row in reversed(run.rounds) if (value := measure_round(row, name)) is not None), None)


def measure_round(row: Mapping[str, Any], name: str) -> float | None:
    """Return one measure after one round; None if the round does not have it as a number."""
    value = (row.get("clusters") or {}).get(name) if name == "purity" else row.get(name)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with the same settings except for the seed."""

    settings: Mapping[str, Any]
    """The settings in which the groups of a comparison differ."""
    runs: tuple[RunView, ...]
    title: str = ""

    @property
    def label(self) -> str:
        """Return the group in a few words: its own settings, or its title."""
        return self.title or setting_words(self.settings) or (self.runs[0].name if len(self.runs) == 1 else "all runs")

    @cached_property
    def measures(self) -> dict[str, Spread | None]:
        """Return every measure over the runs that have it."""
        return {name: self.measure(name) for name in list_measures(self.runs)}

    def measure(self, name: str) -> Spread | None:
        """Return one measure, or any number of a round's row, over the runs that have it."""
        values = [measure_run(run, name) for run in self.runs]
        return Spread.of([value for value in values if value is not None])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups, in the order in which their first run was named, and the settings in which they differ."""

    differs: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def runs(self) -> Iterator[RunView]:
        """Return every run."""
        return (run for group in self.groups for run in group.runs)

    @property
    def metrics(self) -> list[Metric]:
        """Return the main metrics of the runs: one, unless their tasks differ."""
        return list({run.metric.name: run.metric for run in self.runs}.values())

    @cached_property
    def columns(self) -> dict[str, tuple[str, Callable[[Spread], str]]]:
        """Return every measure that a table can show, with its title and how it is written."""
        own = {metric.name: metric for run in self.runs for metric in run.own_metrics}.values()
        return (
            {name: COLUMNS[name] for name in COLUMNS if name in MEASURES[: MEASURES.index("test_loss")]}
            | {metric.test_key: (f"Test {metric.title}", _metric_column(metric)) for metric in own}
            | COLUMNS
            | {m.client_key("worst"): (f"Worst client's {m.title}", _metric_column(m)) for m in own}
        )

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per run: the settings that differ, then its measures."""
        runs = [(group, run) for group in self.groups for run in group.runs]
        every = list_measures(self.runs)
        measured = [{name: measure_run(run, name) for name in every} for _, run in runs]
        there = [name for name in every if any(row[name] is not None for row in measured)]
        return make_frame(
            [
                {"run": str(run.directory), "seed": run.fact("seed"), "status": run.fact("status")}
                | {name: _frame_cell(value) for name, value in group.settings.items()}
                | {"rounds_done": run.rounds_done}
                | {name: math.nan if row[name] is None else row[name] for name in there}
                for (group, run), row in zip(runs, measured, strict=True)
            ]
        )

    def __str__(self) -> str:
        return text_table("", *comparison_table(self))


def compare_runs(runs: Sequence[Path]) -> Comparison:
    """Read the runs in these folders and group them by the settings that differ."""
    return group_runs([RunView.read(directory) for directory in runs_of(runs)])


def compare(*runs: Path | str) -> Comparison:
    """Read runs, or folders of runs such as a sweep's, and return them side by side, as `sightline compare` does.

    `print` shows the table; `.to_frame()` has one row per run.
    """
    if not runs:
        invalid("runs", "none", "no run is named", "give run directories, or a folder of runs")
    return compare_runs([Path(run) for run in runs])


def group_runs(runs: Sequence[RunView]) -> Comparison:
    """Group runs by the settings in which they differ, seeds together."""
    settings = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one if name not in IGNORED)
    differs = tuple(name for name in names if len({_sort_key(one.get(name)) for one in settings}) > 1)
    groups: dict[str, tuple[dict[str, Any], list[RunView]]] = {}
    for run, one in zip(runs, settings, strict=True):
        # Grouped by the settings that differ, in the order of the runs: seeds and names do not separate runs.
        own = {name: one.get(name) for name in differs}
        groups.setdefault(_sort_key(own), (own, []))[1].append(run)
    return Comparison(differs, tuple(Group(own, tuple(members)) for own, members in groups.values()))


def each_by_itself(runs: Sequence[RunView], titles: Sequence[str]) -> Comparison:
    """Return every run as its own group, under its own title."""
    differs = group_runs(runs).differs
    groups = [
        Group({name: flat_settings(run).get(name) for name in differs}, (run,), title)
        for run, title in zip(runs, titles, strict=True)
    ]
    return Comparison(differs, tuple(groups))


def flat_settings(run: RunView) -> dict[str, Any]:
    """Return the settings of a run under dotted names, or {} if its file is missing or broken.

    Keys of `[data]` that its source does not read are left out.
    """
    try:
        tables = tomllib.loads(run.settings)
        data = tables.get("data")
        if isinstance(data, dict):
            unread = unread_keys(data)
            tables["data"] = {key: value for key, value in data.items() if key not in unread}
        settings = dict(_flatten_table(tables))
    except (ValueError, RecursionError):
        # Not TOML, nested too deep, or too long a number.
        return {}
    # A run to which rounds were added keeps the file that its noise was planned for.
    return settings | ({"rounds": run.fact("rounds_planned")} if run.fact("rounds_added") else {})


def _flatten_table(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_table(value, f"{before}{name}.")
        else:
            # Through JSON, so that a date, which no run writes, becomes its text.
            yield f"{before}{name}", json.loads(_sort_key(value))


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def setting_words(settings: Mapping[str, Any]) -> str:
    """Return settings in a few words.

    >>> setting_words({"algorithm.name": "fedavg", "privacy.clip_norm": 0.5})
    'fedavg, clip_norm 0.5'
    """
    pairs = [(name.rpartition(".")[2], say_setting(value)) for name, value in settings.items()]
    plain = ("name", "kind", "scheme", "source", "partition")
    return ", ".join(value if key in plain else f"{key} {value}" for key, value in pairs)


def say_setting(value: Any) -> str:
    """Return a setting for a table; a dash if a group's file does not have it."""
    return setting_text(value) if not isinstance(value, str) else value


TUNING = (
    "Choosing among these runs by how well they did looks at private data once more, and no epsilon here counts "
    "that choice. Each epsilon is for publishing that run alone."
)


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the sentences under the table."""
    runs = list(comparison.runs)
    private = [run for run in runs if run.unit is not Unit.NONE]
    notes = [_unfinished_note(run) for run in runs if run.fact("status") != "finished"]
    notes += [_terms_note(private), TUNING if len(private) > 1 else "", _shared_noise(private)]
    return [sentence for sentence in notes if sentence]


def _unfinished_note(run: RunView) -> str:
    status, planned = run.fact("status", "unknown"), run.fact("rounds_planned")
    how_far = (
        f"{format_count(run.rounds_done)} of {format_count(planned)} rounds"
        if planned
        else format_plural(run.rounds_done, "round")
    )
    return f"{run.directory.name} is not finished ({status}, {how_far}): its numbers are those of its last round."


def _terms_note(private: list[RunView]) -> str:
    """Return the terms of the epsilons, with a warning if they are for different units, adjacencies or deltas."""
    promises: dict[str, list[str]] = {}
    for run in private:
        promises.setdefault(sight_terms(run), []).append(run.directory.name)
    if len(promises) < 2:
        return "".join(f"Epsilon is {terms}, against the worst observer that is not trusted." for terms in promises)
    named = (f"{terms} ({names[0]}{', …' if len(names) > 1 else ''})" for terms, names in promises.items())
    return f"The epsilons are not one scale: the runs differ in unit, adjacency or delta: {'; '.join(named)}."


def _shared_noise(private: list[RunView]) -> str:
    """Return a warning if simulations share a seed: they add the same noise to different sums."""
    # Only noise from a seed is shared; runs with noise_source = "os" never share theirs.
    simulated = Counter(run.fact("seed") for run in private if run.fact("noise_source", "seed") == "seed")
    if max(simulated.values(), default=0) < 2:
        return ""
    return (
        "Simulated runs of one seed share their noise: published together, the noise of one cancels the other's. "
        "Publish at most one of them, and train on real people's data with noise_source = os."
    )


def plain_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return what `--json` prints; None is infinite or unknown."""
    plain: dict[str, Any] = replace_nonfinite(
        {
            "differs": list(comparison.differs),
            "groups": [_plain_group(group) for group in comparison.groups],
            "runs": [_plain_run(run) for run in comparison.runs],
            "notes": comparison_notes(comparison),
        }
    )
    return plain


def _plain_group(group: Group) -> dict[str, Any]:
    named = {name: spread for name, spread in group.measures.items() if spread is not None or name in ALWAYS}
    measures = {name: None if spread is None else asdict(spread) for name, spread in named.items()}
    seeds = [run.fact("seed") for run in group.runs]
    runs = [str(run.directory) for run in group.runs]
    return {"settings": dict(group.settings), "runs": runs, "seeds": seeds} | measures


def _plain_run(run: RunView) -> dict[str, Any]:
    about = {"run_dir": str(run.directory), "name": run.name, "status": run.fact("status")}
    about |= {"seed": run.fact("seed"), "rounds_done": run.rounds_done, "delta": run.delta, "unit": str(run.unit)}
    measured = {name: measure_run(run, name) for name in list_measures([run])}
    known = {name: value for name, value in measured.items() if value is not None or name in ALWAYS}
    return about | {"metric": run.metric.name} | known | {"settings": flat_settings(run)}


def _metric_text(metric: Metric) -> Callable[[float], str]:
    return lambda value: format_metric(metric, value)


def _metric_column(metric: Metric) -> Callable[[Spread], str]:
    return lambda spread: mean_and_spread(spread, _metric_text(metric))


COLUMNS: dict[str, tuple[str, Callable[[Spread], str]]] = {
    **{m.test_key: (f"Test {m.title}", _metric_column(m)) for m in METRICS.values() if m.name != "loss"},
    "test_loss": ("Test loss", _metric_column(METRICS["loss"])),
    **{m.client_key("worst"): ("Worst client", _metric_column(m)) for m in MAIN_METRICS},
    **{f"minority_{m.name}": (f"Minority {m.title}", _metric_column(m)) for m in MAIN_METRICS},
    "purity": ("Purity", lambda spread: mean_and_spread(spread, format_percent)),
    "cluster_count": ("Clusters", lambda spread: mean_and_spread(spread, format_short)),
    "epsilon": ("Epsilon", lambda spread: format_upper(spread.greatest)),
    "seconds": ("Time", lambda spread: mean_and_spread(spread, format_duration)),
    "uplink_floats": ("Sent by clients", lambda spread: mean_and_spread(spread, floats_as_bytes)),
    "energy_joule": ("Energy", lambda spread: mean_and_spread(spread, lambda joule: f"{format_number(joule)} J")),
    "delay_seconds": ("Delay", lambda spread: mean_and_spread(spread, format_duration)),
}
"""Measures in a table. Of several epsilons the largest is shown: a mean of upper bounds is not a bound."""


def mean_and_spread(spread: Spread, show: Callable[[float], str]) -> str:
    """Return mean and spread, with one unit if they share it.

    >>> mean_and_spread(Spread(0.9, 0.0123, 0.88, 0.92, 3), _metric_text(METRICS["accuracy"]))
    '90.0 ± 1.2 %'
    >>> mean_and_spread(Spread(2e6, 0.0, 2e6, 2e6, 3), floats_as_bytes)
    '8.00 MB ± 0'
    """
    mean = show(spread.mean)
    if spread.deviation is None:
        return mean
    if not spread.deviation and not mean.endswith("%"):
        return f"{mean} ± 0"
    deviation = show(spread.deviation)
    value, _, unit = mean.partition(" ")
    room, _, same = deviation.partition(" ")
    return f"{value} ± {room} {unit}" if unit and unit == same and " " not in unit else f"{mean} ± {deviation}"


def comparison_table(comparison: Comparison, columns: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the settings that differ, the number of runs, and every measure that some group has.

    `columns` names the measures to show instead.
    """
    there = shown_measures(comparison, columns)
    named = any(group.title for group in comparison.groups)
    settings = ["Run"] if named else [*comparison.differs, "Runs"]
    header, differs = [*settings, *(comparison.columns[name][0] for name in there)], () if named else comparison.differs
    rows = [_table_row(group, differs, there, comparison.columns) for group in comparison.groups]
    if "epsilon" in there:
        place = len(settings) + there.index("epsilon")
        spreads = [group.measures["epsilon"] for group in comparison.groups]
        known = [None if spread is None else spread.greatest for spread in spreads]
        for row, text in zip(rows, align_epsilons(known), strict=True):
            row[place] = text
    return header, rows


def align_epsilons(values: Sequence[float | None]) -> list[str]:
    """Return upper bounds as texts with the same number of decimals, rounded up; a dash for None.

    >>> align_epsilons([8.0, 12.341, 0.0123, math.inf, None]), align_epsilons([7.9932, 389.2])
    (['8.000', '12.341', '0.013', '∞', '–'], ['8.00', '389.20'])
    """
    least = min((value for value in values if value), default=1.0)
    # Very large or small bounds are written with an exponent, each by itself.
    if not 1e-4 < least <= max((one for one in values if one and math.isfinite(one)), default=1.0) < 1e6:
        return [NONE if value is None else format_upper(value) for value in values]
    quantum = Decimal(10) ** -max(2, 1 - math.floor(math.log10(least)))
    exact = [Decimal(repr(float(value))) if value and math.isfinite(value) else None for value in values]
    texts = [f"{one.quantize(quantum, rounding=ROUND_CEILING):,}" if one else "" for one in exact]
    return [text or (NONE if value is None else format_upper(value)) for value, text in zip(values, texts, strict=True)]


def setting_title(key: str) -> str:
    """Return a setting without its section, in words.

    >>> setting_title("local.learning_rate"), setting_title("algorithm.name"), setting_title("privacy.epsilon")
    ('learning rate', 'algorithm', 'epsilon')
    """
    *section, last = key.split(".")
    kind = last in ("name", "kind", "scheme", "source", "model")
    return (section[-1] if kind and section else last).replace("_", " ")


def readable_header(comparison: Comparison, header: Sequence[str]) -> list[str]:
    """Return the header of a table with the settings in words; those of equal words keep their section."""
    titles = {key: "target epsilon" if key == "privacy.epsilon" else setting_title(key) for key in comparison.differs}
    times = Counter(titles.values())
    titles = {key: title if times[title] == 1 else re.sub("[._]", " ", key) for key, title in titles.items()}
    return [titles.get(name, name) for name in header]


def check_columns(names: Sequence[str], known: Iterable[str] = tuple(COLUMNS)) -> None:
    """Raise for a measure that no table can show; `known` are all if the runs have no metrics of the user's own."""
    known = list(known)
    for name in names:
        if name not in known:
            invalid("--columns", name, "no such measure", did_you_mean(name, known))


def shown_measures(comparison: Comparison, columns: Sequence[str] = ()) -> list[str]:
    """Return the measures of a table: those asked for, or all of the tasks of these runs that some group has."""
    if columns:
        check_columns(columns, comparison.columns)
        return list(columns)
    metrics = {metric.name: metric for run in comparison.runs for metric in run.metrics}
    wanted = {metric.test_key for metric in metrics.values()} | {m.client_key("worst") for m in comparison.metrics}
    judged = (*METRICS.values(), *metrics.values())
    own = {metric.test_key for metric in judged} | {metric.client_key("worst") for metric in judged}
    known = [name for name in comparison.columns if name in wanted or name not in own]
    return [name for name in known if any(group.measures.get(name) for group in comparison.groups)]


def _table_row(group: Group, differs: Sequence[str], there: list[str], columns: Mapping[str, Any]) -> list[str]:
    settings = [say_setting(group.settings[name]) for name in differs]
    cells = [group.title] if group.title else [*settings, format_count(len(group.runs))]
    measures = [group.measures.get(name) for name in there]
    shown = [NONE if spread is None else columns[name][1](spread) for name, spread in zip(there, measures, strict=True)]
    return [*cells, *shown]


def latex_table(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return the table for LaTeX (package booktabs)."""
    header, rows = comparison_table(comparison, columns)
    left = len(header) - len(shown_measures(comparison, columns)) - 1
    titles = readable_header(comparison, header)
    lines = [" & ".join(map(latex_text, row)) + r" \\" for row in (titles, *rows)]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"% Mean and standard deviation over the runs of a row; the largest epsilon. Needs \usepackage{booktabs}.",
        ]
    )


LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    " %": r"\,\%", "±": r"$\pm$", INFINITE: r"$\infty$", NONE: "--", "²": "$^2$",
}  # fmt: skip
"""Characters that LaTeX reads in its own way, and what stands for them."""


def latex_text(text: str) -> str:
    """Return text as LaTeX prints it.

    >>> print(latex_text("90.0 ± 1.2 %"), latex_text("clip_norm"), latex_text("Epsilon"))
    90.0 $\\pm$ 1.2\\,\\% clip\\_norm $\\varepsilon$
    """
    if text == COLUMNS["epsilon"][0]:
        return r"$\varepsilon$"
    plain = printable(text)
    return re.sub("|".join(map(re.escape, sorted(LATEX, key=len, reverse=True))), lambda one: LATEX[one[0]], plain)


def csv_table(comparison: Comparison, columns: Sequence[str] = ()) -> str:
    """Return the table as CSV with full numbers: the mean of every measure and `NAME_std`; the largest epsilon."""
    # The keys of the settings and measures stay as they are: scripts read them.
    rows = [_csv_row(group, shown_measures(comparison, columns)) for group in comparison.groups]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _csv_row(group: Group, there: Sequence[str]) -> dict[str, Any]:
    row = {name: _frame_cell(value) for name, value in group.settings.items()} | {"runs": len(group.runs)}
    for name in there:
        spread = group.measures.get(name)
        if name == "epsilon":
            row[name] = None if spread is None else spread.greatest
        else:
            row |= {name: spread and spread.mean, f"{name}_std": spread and spread.deviation}
    return row


def _frame_cell(value: Any) -> Any:
    """Return a setting for a cell of a frame: a number or text as it is, a list or table as JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
