"""The page of a run on groups: a heatmap of every pair that says which releases got through and by which path."""

import json
import math
import re

import pytest

import sightline
from sightline.formatting import format_upper
from sightline.ledger import ledger_pairs
from sightline.ledger.group_pairs import next_hops, trace_routes


def pair_map(page):
    """The map of all pairs, as the page's script reads it."""
    return json.loads(re.search(r'<figure class="map".*?json">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture
def run(grouped, tmp_path):
    return sightline.run(grouped(**{"topology.groups": 3, "rounds": 6}), out=tmp_path / "run")


def test_every_pair_has_a_cell_with_its_epsilon_and_its_paths(run):
    page = run.report.read_text()
    data = pair_map(page)
    pairs = ledger_pairs(run.ledger, [f"client-{n}" for n in range(9)])
    across = len(pairs.classes)
    assert len(data["rows"]) == len(data["columns"]) == across
    said = [data["phrases"][place] for place in data["cells"]]
    assert len(said) == across**2
    words = said[pairs.class_of["client-1"] * across + pairs.class_of["client-4"]]
    assert "4 releases of group-0 up to round 4 by way of group-0 → group-1" in words
    direct = said[pairs.class_of["client-1"] * across + pairs.class_of["client-2"]]
    assert "6 releases of group-0 up to round 6 seen directly" in direct
    alone = said[pairs.class_of["client-3"] * (across + 1)]
    assert alone == "client-3: nobody observes itself."
    # Names and numbers stand in the picture itself, and "itself" has another colour than nothing.
    numbers = re.findall(r'<text class="number[^>]*>([^<]*)</text>', page)
    values = [value for row in pairs.epsilon(run.summary["delta"]).tolist() for value in row]
    assert numbers == [format_upper(value) for value in values if not math.isnan(value)]
    assert "itself: no line of sight" in page


def test_routes_count_what_the_flow_counts(run):
    ledger = run.ledger
    for subject in ("client-0", "client-1"):
        for observer in ("client-2", "client-4", "client-8"):
            ways = trace_routes(ledger, subject, next_hops(ledger, observer))
            assert sum(way.releases for way in ways) == ledger.composition(subject, observer).total()
            for way in ways:
                assert way.path[0] == way.source
                assert observer in ledger[max(r.id for r in ledger if r.source == way.path[-1])].audience


def test_other_runs_have_no_such_section(grouped, tmp_path):
    star = sightline.run(
        grouped(**{"topology": {"kind": "star"}, "algorithm.name": "fedavg"}), out=tmp_path / "star"
    )  # fmt: skip
    assert 'class="map"' not in star.report.read_text()


def test_many_memberships_are_a_map_and_more_are_said_not_drawn(run, monkeypatch):
    from sightline.apps.report import sections as groups
    from sightline.apps.report import write_report

    monkeypatch.setattr(groups, "MOST", 2)
    page = write_report(run.directory).read_text()
    assert 'class="map"' in page
    data = pair_map(page)
    pairs = ledger_pairs(run.ledger, [f"client-{n}" for n in range(9)])
    values = [value for row in pairs.epsilon(run.summary["delta"]).tolist() for value in row]
    for place, value in zip(data["cells"], values, strict=True):
        said = data["phrases"][place]
        assert format_upper(value) in said if value > 0 else "nothing" in said or "itself" in said
    monkeypatch.setattr(groups, "MAPPED", 2)
    assert "Too many for one page" in write_report(run.directory).read_text()
