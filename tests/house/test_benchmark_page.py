"""Every row of the benchmark page has its own goal, and its table comes from the stored results."""

import json

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import measure, page
from sightline.config import Local


def test_every_batch_is_judged_by_its_own_goal():
    goals = {"batch_32": 1.25, "batch_256": 1.15}
    found = measure.graded("one", {"batch_32": 1.24, "batch_256": 1.2}, goals, at_least=False)
    assert (found["ok"], found["ratio"], found["goal"]) == (False, 1.2, "<= 1.15")
    assert [row["ok"] for row in found["rows"].values()] == [True, False]
    assert measure.graded(
        "one", {"batch_32": 2.5, "batch_256": 3.0}, {"batch_32": 2.5, "batch_256": 2.0}, at_least=True
    )["ok"]
    assert page.cell_of(found) == "1.24, 1.2 **missed**"


def test_both_sides_make_as_many_calls_in_a_row():
    calls = []
    ticks = iter(range(100))
    seconds = measure.in_a_row(lambda: calls.append(1), clock=lambda: 8 * next(ticks))()
    assert (len(calls), seconds) == (measure.CALLS, 1.0)


def test_the_table_is_made_from_what_was_kept(tmp_path, monkeypatch):
    text = tmp_path / "page.md"
    text.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "read_processor", lambda: ("AMD EPYC 9000", ()))
    monkeypatch.setattr(page, "describe_processor", lambda: "AMD EPYC 9000, avx2, 2 cores")
    page.keep_results({"start_up": {"ratio": 1.5, "goal": "<= 2", "ok": True, "unit": "s"}}, tmp_path)
    page.keep_results({"memory": {"skipped": "no room"}}, tmp_path)
    assert sorted(json.loads((tmp_path / "amd-epyc.json").read_text())["results"]) == ["memory", "start_up"]
    page.write_page(benchmarks.BENCHMARKS, page=text, folder=tmp_path)
    written = text.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert "| <= 2 | 1.5 s |" in written
    assert "not run: no room" in written
    assert "AMD EPYC 9000, avx2, 2 cores" in written


def test_the_page_of_the_docs_has_a_place_for_the_table(tmp_path):
    text = page.PAGE.read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    copy = tmp_path / "page.md"
    copy.write_text(text)
    page.write_page(benchmarks.BENCHMARKS, page=copy)
    assert copy.read_text() == text, "run python -m benchmarks --page-only"


def test_a_precision_that_is_not_there_is_a_reason_to_skip(monkeypatch):
    measure.check_precision("float32")
    monkeypatch.setattr(
        Local, "model_fields", {name: one for name, one in Local.model_fields.items() if name != "precision"}
    )
    with pytest.raises(measure.Absent, match="bf16"):
        measure.check_precision("bf16")
