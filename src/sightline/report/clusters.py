"""Clusters: the mixture over round one, how sure it is, who was where, and how well each cluster does."""

import math
from collections.abc import Mapping
from typing import Any

from sightline.report.bars import Bars, bar_chart
from sightline.report.chart import Chart, ChartLine, Tick, line_chart
from sightline.report.clusters_places import place_strips
from sightline.report.clusters_scatter import colour_of, draw_scatter
from sightline.report.curves import ACCURACY, ROUNDS
from sightline.report.numbers import NONE, format_count, format_number, format_percent, format_plural
from sightline.report.run import RunView
from sightline.report.section import Content, Section

SURE = 2.0
"""With the number of clusters known, an MSS above this has nearly always meant the true ones (figure 13)."""


def clusters_content(run: RunView) -> Content | None:
    """Everything that is known of clusters; None for runs that have none and whose data have none."""
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
        "accuracy": accuracy_by_cluster(run, facts),
        "table": clusters_table(run, facts),
    }


SECTION = Section("clusters", "Clusters", clusters_content)


def clusters_intro(facts: Mapping[str, Any]) -> str:
    """What was found and how, in a sentence or two."""
    found = facts.get("count")
    if found is None:
        return "The data were made in clusters; this algorithm does not look for them."
    if facts.get("points") is None:
        return f"{format_plural(int(found), 'cluster')}, each with a model of its own."
    how = "the number with the surest mixture" if facts.get("tried") else "a number that was given"
    return (
        f"From the noisy updates of round one the server made out {format_plural(int(found), 'cluster')}, {how}. "
        "It looked at released values only: nothing of this costs privacy."
    )


def doubt_note(facts: Mapping[str, Any]) -> str:
    """A warning when the mixture is not sure."""
    mss = facts.get("mss")
    if mss is None or not facts.get("points") or mss >= SURE:
        return ""
    return f"The clusters overlap: MSS {format_number(mss)} is below {SURE:g}, and they may not be the true ones."


def drawn_words(facts: Mapping[str, Any]) -> str:
    """What the two directions of the scatter are."""
    seen = int(facts.get("dimensions") or 2)
    if seen == 1:
        return "The first principal component of what the clients sent, from left to right."
    more = f" The mixture was fitted to {seen} of them." if seen > 2 else ""
    return f"The first two principal components of what the clients sent.{more}"


def clusters_figures(run: RunView, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and number of each fact."""
    last: Mapping[str, Any] = next((row["clusters"] for row in reversed(run.rounds) if row.get("clusters")), {})
    found: list[tuple[str, str]] = []
    if facts.get("count") is not None:
        found.append(("Clusters", format_count(facts["count"])))
    if facts.get("points"):
        found.append(
            ("Least separation (MSS)", format_number(facts["mss"]) if facts.get("mss") is not None else "one cluster")
        )
        found.append(("Largest overlap", overlap_words(facts.get("mpo"))))
        found.append(("Soft until round", format_count(facts.get("switch_round"))))
    if last.get("purity") is not None:
        found.append(("Clients among their own kind", format_percent(last["purity"])))
    if run.last("minority_accuracy") is not None:
        found.append(("Accuracy of the smallest cluster", format_percent(run.last("minority_accuracy"))))
    return found


def overlap_words(overlap: float | None) -> str:
    """An overlap as a share; tiny ones are not printed as nothing."""
    if overlap is None:
        return NONE
    return "below 0.1 %" if overlap < 1e-3 else format_percent(overlap)


def tried_chart(facts: Mapping[str, Any]) -> Bars | None:
    """The confidence of every number of clusters that was tried: the highest bar is the answer."""
    pairs = [(int(n), float(mss)) for n, mss in facts.get("tried") or [] if mss is not None and math.isfinite(mss)]
    if not pairs:
        return None
    words = [f"{n} clusters: MSS {format_number(mss)}" for n, mss in pairs]
    labels = [Tick(place + 0.5, str(n)) for place, (n, _) in enumerate(pairs)]
    heights = [mss for _, mss in pairs]
    return bar_chart(
        "tried", "How sure each number of clusters is", heights, words, labels=labels, x="clusters", y="MSS"
    )


def accuracy_by_cluster(run: RunView, facts: Mapping[str, Any]) -> Chart | None:
    """Mean accuracy of clients on their own test data, by true cluster, the smallest first and named."""
    truth = facts.get("truth")
    if truth is None:
        return None
    apart = facts.get("minority")
    order = sorted(set(truth), key=lambda m: (m != apart, m))
    lines = [ChartLine(_cluster_label(m, apart, truth), [_value_at(row, m) for row in run.rounds]) for m in order]
    title, xs = "Accuracy by true cluster", [float(row["round"]) for row in run.rounds]
    return line_chart("cluster-accuracy", title, xs, lines, x_axis=ROUNDS, y_axis=ACCURACY)


def clusters_table(run: RunView, facts: Mapping[str, Any]) -> list[list[str]]:
    """True cluster, its clients, where they ended, mean accuracy; empty without the truth."""
    truth = facts.get("truth")
    if truth is None:
        return []
    last = next((row["clusters"]["assignment"] for row in reversed(run.rounds) if row.get("clusters")), None)
    judged: Mapping[str, Any] = next((row for row in reversed(run.rounds) if row.get("true_cluster_accuracy")), {})
    rows = []
    for m in sorted(set(truth)):
        members = [n for n, cluster in enumerate(truth) if cluster == m]
        where = "" if last is None else _where_words([last[n] for n in members])
        name = f"{m}, the smallest" if m == facts.get("minority") else str(m)
        rows.append([name, format_count(len(members)), where, format_percent(_value_at(judged, m))])
    return rows


def _where_words(clusters: list[int]) -> str:
    return ", ".join(f"{clusters.count(m)} in cluster {m}" for m in sorted(set(clusters)))


def _cluster_label(cluster: int, apart: int | None, truth: list[int]) -> str:
    kind = "smallest: true cluster" if cluster == apart else "true cluster"
    return f"{kind} {cluster} ({format_plural(truth.count(cluster), 'client')})"


def _value_at(row: Mapping[str, Any], cluster: int) -> float | None:
    values = row.get("true_cluster_accuracy") or []
    return values[cluster] if cluster < len(values) else None
