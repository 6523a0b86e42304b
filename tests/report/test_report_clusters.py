"""The section on clusters: it draws what the run recorded, and says when the mixture was not sure."""

import json
import re

import pytest
from report_runs import FACTS, metrics, release, write

TRUTH = [0, 0, 1, 1, 1, 2, 2, 2]
FOUND = {
    "count": 3,
    "mss": 4.2,
    "mpo": 2.7e-5,
    "switch_round": 3,
    "points": [[0.0, 0.0], [0.02, 0.01], [1.0, 0.1], [0.98, 0.12], [0.97, 0.08], [0.5, 1.0], [0.52, 0.97], None],
    "centres": [[0.01, 0.0], [0.98, 0.1], [0.51, 0.98]],
    "radii": [0.05, 0.06, 0.04],
    "confidence": [[0.9999, 0.0001, 0.0]] * 2 + [[0.02, 0.93, 0.05]] * 3 + [[0.0, 0.0, 1.0]] * 2 + [[1 / 3] * 3],
    "tried": [[2, 1.5], [3, 4.2], [4, 0.9]],
    "truth": TRUTH,
    "minority": 0,
}


def run_of(directory, facts, *, places=True, rounds=6):
    rows = []
    for number in range(1, rounds + 1):
        how = "drawn" if number <= 3 else "chosen" if number <= 5 else "kept"
        where = [0, 0, 1, 1, 1, 2, 2, 2 if number != 4 else 1]
        row = metrics(number, rounds, {"public": 1.0})
        row |= {"true_cluster_accuracy": [0.5, 0.7, 0.8], "minority_accuracy": 0.5}
        rows.append(row | ({"clusters": {"assignment": where, "how": how, "purity": 0.875}} if places else {}))
    given = [] if facts is None else [("clusters", facts)]
    return write(directory, FACTS | {"clients": 8} | dict(given), rows, [release(t) for t in range(1, rounds + 1)])


def figures_of(html):
    """The words behind each explorable drawing."""
    parts = html.split('<figure class="heat">')[1:]
    return [json.loads(re.search(r'<script type="application/json">(.*?)</script>', part, re.S)[1]) for part in parts]


@pytest.fixture
def section(tmp_path, page_of):
    page = page_of.of(run_of(tmp_path / "run", {**FOUND, "points": [at or [None, None] for at in FOUND["points"]]}))
    html = page.html[page.html.index('<section id="clusters"') : page.html.index('<section id="clients"')]
    return page_of(html)


def test_every_client_that_sent_an_update_is_a_point(section):
    points, _ = figures_of(section.html)
    assert len(points["words"]) == 7  # the eighth was not there in round one
    assert points["words"][0] == (
        "client-0: cluster 0 with probability above 99.9 %; its data were made for true cluster 0, the smallest."
    )
    assert "cluster 1 with probability 93.0 %" in points["words"][2]
    assert section.html.count('<path class="cell point') == 2  # the minority stands apart
    assert section.html.count('<circle class="ring') == 3


def test_circles_are_in_the_scale_of_the_points(section):
    ring = re.search(r'<circle class="ring s1" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', section.html)
    circles = re.findall(r'<circle class="cell point s\d" data-place="\d" cx="([\d.]+)" cy="([\d.]+)"', section.html)
    across = float(circles[0][0]) - float(ring[1])  # from .01 to 1.0 in the updates' own unit
    assert float(ring[3]) == pytest.approx(0.05 * across / 0.99, abs=0.2)


def test_stays_and_phases_over_the_rounds(section):
    _, stays = figures_of(section.html)
    assert len(stays["words"]) == 7 + 3
    assert stays["words"][-3:] == [
        "client-7, rounds 1 to 3: cluster 2.",
        "client-7, round 4: cluster 1.",
        "client-7, rounds 5 to 6: cluster 2.",
    ]
    for words in (
        "Rounds 1 to 3: drawn by the server",
        "Rounds 4 to 5: chosen by the clients in private",
        "Round 6: kept",
    ):
        assert words in section.text


def test_confidence_accuracy_and_the_minority_are_said(section):
    for words in (
        "made out 3 clusters, the number with the surest mixture",
        "nothing of this costs privacy",
        "Least separation (MSS) 4.2",
        "Largest overlap below 0.1 %",
        "Soft until round 3",
        "Clients among their own kind 87.5 %",
        "smallest: true cluster 0 (2 clients) 50.0 %",
        "0, the smallest 2 2 in cluster 0 50.0 %",
        "2 3 3 in cluster 2 80.0 %",
    ):
        assert words in section.text, words
    assert section.html.count('<rect class="block"') == 3


def test_an_unsure_mixture_is_a_warning(tmp_path, page_of):
    text = page_of.of(run_of(tmp_path / "run", FOUND | {"mss": 1.234, "points": [[0.1, 0.2]] * 8})).text
    assert "The clusters overlap: MSS 1.23 is below 2, and they may not be the true ones." in text


def test_one_cluster_has_no_separation(tmp_path, page_of):
    one = {"count": 1, "mss": None, "mpo": 0.0, "tried": [], "centres": [[0.5, 0.5]], "radii": [0.1]}
    one |= {"points": [[0.4, 0.5]] * 8, "confidence": [[1.0]] * 8}
    page = page_of.of(run_of(tmp_path / "run", FOUND | one, places=False))
    assert "Least separation (MSS) one cluster" in page.text
    assert "made out 1 cluster, a number that was given" in page.text


def test_clustered_data_without_a_clustered_algorithm(tmp_path, page_of):
    text = page_of.of(
        run_of(tmp_path / "run", {"count": None, "mss": None, "truth": TRUTH, "minority": 0}, places=False)
    ).text
    assert "this algorithm does not look for them" in text
    assert "0, the smallest 2 50.0 %" in text


def test_without_the_truth_nothing_is_judged(tmp_path, page_of):
    page = page_of.of(run_of(tmp_path / "run", FOUND | {"truth": None, "minority": None, "points": [[0.1, 0.2]] * 8}))
    assert "True cluster" not in page.text
    assert "true cluster" not in page.text


def test_other_runs_have_no_such_section(tmp_path, page_of):
    assert 'id="clusters"' not in page_of.of(run_of(tmp_path / "run", None, places=False)).html
