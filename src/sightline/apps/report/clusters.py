"""The report's section on clusters: first updates as points, assignments over time, and quality per cluster."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sightline.apps.report.chart import Bars, Chart, ChartLine, Tick, bar_chart, line_chart
from sightline.apps.report.curves import ROUNDS, metric_axis
from sightline.apps.report.run_view import Content, RunView, Section
from sightline.formatting import NONE, format_count, format_metric, format_number, format_percent, format_plural

SIZE = 480
"""Height and width of the drawing, in its own units."""
EDGE = 40
COLOURS = 6


@dataclass(frozen=True)
class Point:
    """One client's update."""

    x: float
    y: float
    colour: int
    apart: bool
    """Whether the client's data come from the smallest true cluster."""
    words: str


@dataclass(frozen=True)
class Ring:
    """One component: its centre and one radius around it."""

    x: float
    y: float
    radius: float
    colour: int
    name: str


@dataclass(frozen=True)
class Scatter:
    """Points and rings on a square."""

    points: tuple[Point, ...]
    rings: tuple[Ring, ...]
    size: int = SIZE


def draw_scatter(facts: Mapping[str, Any]) -> Scatter | None:
    """Return the drawing, or None if the run's clusters do not come from a mixture in the plane."""
    given = facts.get("points") or []
    there = [n for n, at in enumerate(given) if len(at) == 2 and all(_finite_point(value) for value in at)]
    centres = facts.get("centres") or []
    # Two of many raw parameters would show nothing.
    raw = int(facts.get("dimensions") or 2) > len(given)
    if not there or raw or not centres or any(len(centre) != 2 for centre in centres):
        return None
    project = _projection([given[n] for n in there], centres)
    points = tuple(_make_point(n, project(given[n]), facts) for n in there)
    rings = []
    for m, (centre, radius) in enumerate(zip(centres, facts.get("radii") or [], strict=True)):
        x, y = project(centre)
        rings.append(Ring(x, y, _radius_length(project, centre, float(radius)), colour_of(m), f"cluster {m}"))
    return Scatter(points, tuple(rings))


def colour_of(cluster: int) -> int:
    """Return the colour of a cluster, the same in every drawing of the page."""
    return 1 + cluster % COLOURS


def _finite_point(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _projection(points: Sequence[Sequence[float]], centres: Sequence[Sequence[float]]) -> Any:
    """Return the map from values to positions, with one scale for both directions, so that circles stay circles."""
    columns = list(zip(*points, *centres, strict=True))
    lows = [min(column) for column in columns]
    span = max(max(column) - low for column, low in zip(columns, lows, strict=True)) or 1.0
    room = (SIZE - 2 * EDGE) / span

    def project(at: Sequence[float]) -> tuple[float, float]:
        return round(EDGE + (at[0] - lows[0]) * room, 1), round(SIZE - EDGE - (at[1] - lows[1]) * room, 1)

    return project


def _radius_length(project: Any, centre: Sequence[float], radius: float) -> float:
    return round(abs(float(project((centre[0] + radius, centre[1]))[0] - project(centre)[0])), 1)


def _make_point(client: int, at: tuple[float, float], facts: Mapping[str, Any]) -> Point:
    chances = (facts.get("confidence") or [])[client]
    # Only the released mixture is used here: showing the likeliest cluster of a client costs no privacy.
    likeliest = max(range(len(chances)), key=lambda m: chances[m])
    truth = facts.get("truth")
    words = f"client-{client}: cluster {likeliest} with probability {chance_words(chances[likeliest])}"
    if truth is not None:
        smallest = ", the smallest" if truth[client] == facts.get("minority") else ""
        words += f"; its data were made for true cluster {truth[client]}{smallest}"
    return Point(*at, colour_of(likeliest), truth is not None and truth[client] == facts.get("minority"), words + ".")


def chance_words(chance: float) -> str:
    """Return a probability as text, never rounded to certainty.

    >>> chance_words(0.9999), chance_words(0.731)
    ('above 99.9 %', '73.1 %')
    """
    # A posterior is never certain, so 100 % is not printed.
    return "above 99.9 %" if chance > 0.999 else f"{100 * chance:.1f} %"


WIDTH, ROW = 480.0, 12.0
MOST_CLIENTS = 120
MOST_BLOCKS = 6000
HOW = {
    "known": "known beforehand",
    "drawn": "drawn by the server from the mixture",
    "chosen": "chosen by the clients in private",
    "kept": "kept from before",
}


@dataclass(frozen=True)
class Block:
    """A client's stay in one cluster."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    words: str


@dataclass(frozen=True)
class PlaceStrips:
    """All stays, and the phases above them."""

    blocks: tuple[Block, ...]
    phases: tuple[tuple[float, str], ...]
    """Start and name of each way of assignment."""
    height: float
    width: float = WIDTH


def place_strips(rows: Sequence[Mapping[str, Any]], truth: Sequence[int] | None) -> PlaceStrips | None:
    """Return the strips of the rounds that had clusters; None without any, or with more than can be drawn."""
    there = [row for row in rows if row.get("clusters")]
    if not there or len(there[0]["clusters"]["assignment"]) > MOST_CLIENTS:
        return None
    clients = range(len(there[0]["clusters"]["assignment"]))
    # By true cluster, where it is known: a wrong assignment stands out as a stripe of another colour.
    order = sorted(clients, key=lambda n: (0 if truth is None else truth[n], n))
    blocks = [block for strip, client in enumerate(order) for block in _client_strip(there, client, strip)]
    return PlaceStrips(tuple(blocks), _phase_spans(there), len(order) * ROW) if len(blocks) <= MOST_BLOCKS else None


def _client_strip(rows: Sequence[Mapping[str, Any]], client: int, strip: int) -> list[Block]:
    step, blocks = WIDTH / len(rows), []
    stays = groupby(enumerate(rows), key=lambda pair: pair[1]["clusters"]["assignment"][client])
    for cluster, stay in stays:
        held = list(stay)
        first, last = held[0][1]["round"], held[-1][1]["round"]
        when = f"round {first}" if first == last else f"rounds {first} to {last}"
        words = f"client-{client}, {when}: cluster {cluster}."
        x, width = held[0][0] * step, len(held) * step
        blocks.append(Block(round(x, 2), strip * ROW, round(width, 2), ROW - 2, colour_of(cluster), words))
    return blocks


def _phase_spans(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, str], ...]:
    spans = []
    for how, stay in groupby(enumerate(rows), key=lambda pair: pair[1]["clusters"]["how"]):
        held = list(stay)
        first, last = held[0][1]["round"], held[-1][1]["round"]
        when = f"Round {first}" if first == last else f"Rounds {first} to {last}"
        spans.append((round(held[0][0] * WIDTH / len(rows), 2), f"{when}: {HOW.get(how, how)}"))
    return tuple(spans)


SURE = 2.0
"""With the number of clusters known, an MSS above this has nearly always meant the true ones (figure 13)."""


def clusters_content(run: RunView) -> Content | None:
    """Return everything known about clusters; None for runs without clusters in algorithm and data."""
    facts = run.fact("clusters")
    if not facts:
        return None
    drawn, stays = draw_scatter(facts), place_strips(run.rounds, facts.get("truth"))
    return {
        "intro": clusters_intro(facts),
        "doubt": doubt_note(facts),
        "figures": clusters_figures(run, facts),
        "scatter": drawn,
        "scatter_data": {"words": [point.words for point in drawn.points], "across": 1} if drawn else {},
        "rings": [(ring.colour, ring.name) for ring in drawn.rings] if drawn else [],
        "drawn": drawn_words(facts),
        "places": stays,
        "places_data": {"words": [block.words for block in stays.blocks], "across": 1} if stays else {},
        "colours": [(colour_of(m), f"cluster {m}") for m in range(int(facts.get("count") or 0))],
        "tried": tried_chart(facts),
        "metric": run.metric.title,
        "by_cluster": metric_by_cluster(run, facts),
        "table": clusters_table(run, facts),
    }


SECTION = Section("clusters", "Clusters", clusters_content)


def clusters_intro(facts: Mapping[str, Any]) -> str:
    """Return what was found and how, in a sentence or two."""
    count = facts.get("count")
    if count is None:
        return "The data were made in clusters; this algorithm does not look for them."
    if facts.get("points") is None:
        return f"{format_plural(int(count), 'cluster')}, each with a model of its own."
    how = "the number with the surest mixture" if facts.get("tried") else "a number that was given"
    return (
        f"From the noisy updates of round one the server made out {format_plural(int(count), 'cluster')}, {how}. "
        "It looked at released values only: nothing of this costs privacy."
    )


def doubt_note(facts: Mapping[str, Any]) -> str:
    """Return a warning if the mixture is uncertain."""
    mss = facts.get("mss")
    if mss is None or not facts.get("points") or mss >= SURE:
        return ""
    return f"The clusters overlap: MSS {format_number(mss)} is below {SURE:g}, and they may not be the true ones."


def drawn_words(facts: Mapping[str, Any]) -> str:
    """Return what the two directions of the scatter are."""
    seen = int(facts.get("dimensions") or 2)
    if seen == 1:
        return "The first principal component of what the clients sent, from left to right."
    more = f" The mixture was fitted to {seen} of them." if seen > 2 else ""
    return f"The first two principal components of what the clients sent.{more}"


def clusters_figures(run: RunView, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and number of each fact."""
    last: Mapping[str, Any] = next((row["clusters"] for row in reversed(run.rounds) if row.get("clusters")), {})
    rows: list[tuple[str, str]] = []
    if facts.get("count") is not None:
        rows.append(("Clusters", format_count(facts["count"])))
    if facts.get("points"):
        rows.append(
            ("Least separation (MSS)", format_number(facts["mss"]) if facts.get("mss") is not None else "one cluster")
        )
        rows.append(("Largest overlap", overlap_words(facts.get("mpo"))))
        rows.append(("Soft until round", format_count(facts.get("switch_round"))))
    if last.get("purity") is not None:
        rows.append(("Clients among their own kind", format_percent(last["purity"])))
    reached = run.last(f"minority_{run.metric.name}")
    if reached is not None:
        rows.append((f"{run.metric.heading} of the smallest cluster", format_metric(run.metric, reached)))
    return rows


def overlap_words(overlap: float | None) -> str:
    """Return an overlap as a share; tiny ones are not printed as zero."""
    if overlap is None:
        return NONE
    return "below 0.1 %" if overlap < 1e-3 else format_percent(overlap)


def tried_chart(facts: Mapping[str, Any]) -> Bars | None:
    """Return the confidence of every number of clusters that was tried: the highest bar is the answer."""
    pairs = [(int(n), float(mss)) for n, mss in facts.get("tried") or [] if mss is not None and math.isfinite(mss)]
    if not pairs:
        return None
    words = [f"{n} clusters: MSS {format_number(mss)}" for n, mss in pairs]
    labels = [Tick(index + 0.5, str(n)) for index, (n, _) in enumerate(pairs)]
    heights = [mss for _, mss in pairs]
    return bar_chart(
        "tried", "How sure each number of clusters is", heights, words, labels=labels, x="clusters", y="MSS"
    )


def metric_by_cluster(run: RunView, facts: Mapping[str, Any]) -> Chart | None:
    """Return the clients' mean metric on their own test data by true cluster, the smallest first."""
    truth = facts.get("truth")
    if truth is None:
        return None
    apart = facts.get("minority")
    order = sorted(set(truth), key=lambda m: (m != apart, m))
    key = f"true_cluster_{run.metric.name}"
    lines = [ChartLine(_cluster_label(m, apart, truth), [_value_at(row, key, m) for row in run.rounds]) for m in order]
    title, xs = f"{run.metric.heading} by true cluster", [float(row["round"]) for row in run.rounds]
    name, axis = f"cluster-{run.metric.name}", metric_axis(run.metric)
    return line_chart(name, title, xs, lines, x_axis=ROUNDS, y_axis=axis)


def clusters_table(run: RunView, facts: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of true cluster, its clients, where they ended, mean metric; [] without the true clusters."""
    truth = facts.get("truth")
    if truth is None:
        return []
    last = next((row["clusters"]["assignment"] for row in reversed(run.rounds) if row.get("clusters")), None)
    key = f"true_cluster_{run.metric.name}"
    judged: Mapping[str, Any] = next((row for row in reversed(run.rounds) if row.get(key)), {})
    rows = []
    for m in sorted(set(truth)):
        members = [n for n, cluster in enumerate(truth) if cluster == m]
        where = "" if last is None else _where_words([last[n] for n in members])
        name = f"{m}, the smallest" if m == facts.get("minority") else str(m)
        rows.append([name, format_count(len(members)), where, format_metric(run.metric, _value_at(judged, key, m))])
    return rows


def _where_words(clusters: list[int]) -> str:
    return ", ".join(f"{clusters.count(m)} in cluster {m}" for m in sorted(set(clusters)))


def _cluster_label(cluster: int, apart: int | None, truth: list[int]) -> str:
    kind = "smallest: true cluster" if cluster == apart else "true cluster"
    return f"{kind} {cluster} ({format_plural(truth.count(cluster), 'client')})"


def _value_at(row: Mapping[str, Any], key: str, cluster: int) -> float | None:
    values = row.get(key) or []
    return values[cluster] if cluster < len(values) else None
