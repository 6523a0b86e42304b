"""Every mechanism and algorithm of the registries is audited: the lower bound stays below the claim.

And what is broken is caught. The cases are in `cases.py`; `python -m tests.audit.table` writes what they find to
docs/auditing.md.
"""

from functools import cache

import pytest

from sightline import algorithms
from sightline.ledger.group_privacy import PairQuery, query_pairs
from sightline.mechanisms import MECHANISMS, SAMPLERS
from sightline.mechanisms.perturbation import Bound
from tests.audit.cases import (
    BREAKS,
    BROKEN,
    HONEST,
    KINDS,
    OUTSIDE,
    PROMISES,
    REASONS,
    audited,
    home,
    registry,
    runs_of,
)
from tests.audit.table import PAGE, algorithm_rows, named

TINY = 1e-5
"""The chance that one honest mechanism is accused; there are about 120, so the file lies once in 800 seeds."""


@pytest.mark.slow
@pytest.mark.parametrize("words", HONEST.values(), ids=HONEST)
def test_the_lower_bound_is_below_the_claim(words):
    found = audited(**{"trials": runs_of(words)} | words | {"confidence": 1 - TINY})
    assert not found.broken, found
    assert 0 <= found.lower <= found.upper


@pytest.mark.slow
@pytest.mark.parametrize("key", registry(), ids=" ".join)
def test_every_algorithm_keeps_every_promise_that_it_makes(key):
    words = registry()[key]
    found = audited(**words, trials=runs_of(words), canaries=60, confidence=1 - TINY)
    assert not found.broken, found


@pytest.mark.slow
@pytest.mark.parametrize("key", registry(), ids=" ".join)
def test_every_algorithm_lets_its_canary_be_heard(key):
    """With next to no noise the attack is all but sure: it could have found something above."""
    faint = {"privacy": {"noise_multiplier": 0.05, "clip_norm": 0.5}, "local": {"batch_size": 1000}}
    found = audited(**registry()[key], trials=40, canaries=10, changes=faint)
    assert found.findings[0].lower > 1, found


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=map(" ".join, BROKEN))
def test_what_is_broken_is_caught(broken, words, monkeypatch):
    broken(monkeypatch)
    found = audited(**words)
    assert found.broken, found


def pair_bounds(words):
    """(flow count, least of it and the bottleneck bound) of the last worker about the first."""
    topology = words["changes"]["topology"]
    for bottleneck in (False, True):
        question = PairQuery(
            structure=topology["file"], epochs=words["rounds"] + 1, noise=1.0, delta=words["delta"],
            period=topology["period"], bottleneck=bottleneck,
        )  # fmt: skip
        answer = query_pairs(question)
        first, *_, last = answer.pairs.class_of
        yield float(answer.matrix[first, last])


@cache
def seen_from_outside(name):
    return audited(**OUTSIDE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OUTSIDE if "plus" not in name])
def test_what_flows_to_another_group_stays_below_the_flow_count_and_the_bottleneck_bound(name):
    found = seen_from_outside(name)
    flow, least = pair_bounds(OUTSIDE[name])
    assert found.lower > 0
    assert found.upper == pytest.approx(flow, rel=1e-6)
    assert found.lower <= least <= flow


def test_every_break_is_tried_on_every_kind_or_is_none():
    four = ("half the noise", "one seed for all rounds", "unclipped", "wrong sampler")
    for how in four:
        missing = set(KINDS) - set(BREAKS[how][1])
        assert missing == {kind for other, kind in REASONS if other == how}


def test_the_page_has_a_row_for_everything_that_is_registered():
    page = PAGE.read_text()
    for name in HONEST:
        assert f"| {named(name)} |" in page, name
    for name in algorithms.REGISTRY:
        assert f"| `{name}` |" in page, name
    for how, kind in BROKEN:
        assert how in page, how
        assert f"| {kind} |" in page, kind
    for mechanism, unit, where in MECHANISMS:
        asked = {"mechanism": mechanism, "unit": unit, "where": where}
        plain = {"mechanism": "gaussian", "unit": "client", "where": "server"}
        assert unit == "none" or any(asked.items() <= (plain | words).items() for words in HONEST.values()), asked
    assert {f"clients {scheme}" for scheme in SAMPLERS} <= set(HONEST)
    assert {f"output, {bound}" for bound in Bound} <= set(HONEST)


def test_what_the_page_says_is_refused_is_refused():
    rows = algorithm_rows(PAGE.read_text())
    for name in algorithms.REGISTRY:
        for promise, cell in zip(PROMISES, rows[name], strict=True):
            assert (cell == "refused") == (home(name, promise)[0] is None), (name, promise)
