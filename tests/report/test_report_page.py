"""The page says what the records say, shows every word as a word, and needs nothing but itself."""

import json
import math
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from report_runs import (
    EVENT,
    FACTS,
    clients,
    handover,
    metrics,
    per_sample,
    quickstart,
    release,
    spent,
    without_privacy,
    write,
)

import sightline
from sightline import accounting
from sightline.accounting.calibration import power_at_most
from sightline.apps.report import RunView, render_run, write_report
from sightline.apps.report import guarantee as headline
from sightline.engine import RunRecord
from sightline.errors import InvalidInput, SightlineError
from sightline.events import Clear, Gaussian
from sightline.formatting import format_upper
from sightline.ledger import parties
from tests.loops import for_every

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</style>{{ 7*7 }}"


def test_the_headline_equals_the_records(page: Any, run_dir: Path) -> None:
    run = RunView.read(run_dir)
    epsilon = accounting.epsilon({EVENT: 30}, 1e-3)
    assert run.epsilon == pytest.approx(epsilon, rel=1e-9)
    figures = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.html)
    assert ("Test accuracy", f"{100 * run.rounds[-1]['test_accuracy']:.1f} %") in figures
    assert ("Epsilon", format_upper(epsilon)) in figures
    assert ("Clients", "24") in figures
    assert ("Rounds", "30") in figures
    assert ("Releases", "60") in figures
    assert ("Protected", "each client") in figures
    assert "per client, δ = 0.001, target 8" in page.text


def test_every_section_fact_is_on_the_page(page: Any, run_dir: Path) -> None:
    for words in (
        "quickstart",
        "finished",
        "fedavg",
        "15 November 2026, 20:05 UTC",
        "whether any one client took part",
        *FACTS["guarantee"],
        *FACTS["caveats"],
        *FACTS["data_notes"],
        "It does not bind those who are trusted: server.",
        "Gaussian noise, z = 1.432, each client sampled in secret with probability 0.5",
        "Sent without noise to a trusted party",
        "clipped updates",
        "1–30",
        "derived from the seed: reproducible, for simulation only",
        "torch",
        "2.13.0",
        RunView.read(run_dir).head,
        'source = "digits"',
    ):
        assert " ".join(words.split()) in page.text.replace("\u00a0", " "), words


def test_traffic_adds_up(page: Any) -> None:
    assert f"{30 * 12 * 4810:,}" in page.text
    assert f"{30 * 24 * 4810:,}" in page.text


def test_the_curves_hold_every_round(page: Any, run_dir: Path) -> None:
    data = {row[0]: json.loads(row[1]) for row in charts(page.html)}
    assert set(data) == {"accuracy", "loss", "epsilon", "price"}
    rounds = RunView.read(run_dir).rounds
    shown = data["accuracy"]["lines"][0]["words"]
    assert shown == [f"{100 * row['test_accuracy']:.1f} %" for row in rounds]
    assert data["epsilon"]["lines"][0]["name"] == "other clients, public"
    assert data["epsilon"]["lines"][0]["words"] == [format_upper(row["epsilon"]["public"]) for row in rounds]


def charts(html: str) -> list[tuple[str, str]]:
    figures = re.findall(r'<figure class="chart" id="chart-(\w+)">(.*?)</figure>', html, re.DOTALL)
    found = [(name, re.search(r'<script type="application/json">(.*?)</script>', body)) for name, body in figures]
    return [(name, data[1]) for name, data in found if data]


def test_the_page_loads_nothing(page: Any) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
                assert (value or "").startswith(("#", "data:,")), (tag, name, value)
            assert not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
    assert "http://" not in page.html
    assert "https://" not in page.html
    assert "@import" not in page.html
    assert "url(" not in page.html


def test_the_policy_allows_only_the_pages_own_script_and_style(page: Any) -> None:
    policies = [a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")
    assert "unsafe" not in policies[0]


def test_hostile_words_stay_words(tmp_path: Path, page_of: Any) -> None:
    facts = {
        name: HOSTILE if isinstance(value, str) and name not in ("unit", "adjacency", "accountant") else value
        for name, value in FACTS.items()
    }
    facts |= {
        "guarantee": [HOSTILE],
        "caveats": [HOSTILE],
        "data_notes": [HOSTILE],
        "versions": {HOSTILE: HOSTILE},
        "algorithm_settings": {HOSTILE: HOSTILE},
        "sampling": {HOSTILE: {HOSTILE: HOSTILE}},
        "observers": {HOSTILE: "public"},
        "trusted": [HOSTILE],
    }
    rows = [metrics(n, 3, {HOSTILE: 1.0 * n}) for n in (1, 2, 3)]
    sources = [
        release(1, source=HOSTILE, what=HOSTILE),
        release(2, event=Clear(), audience=parties(HOSTILE.replace(",", "")), what=HOSTILE),
    ]
    page = page_of.of(write(tmp_path / "run", facts, rows, sources, settings=HOSTILE))
    scripts = [a for tag, a in page.elements if tag == "script"]
    assert len([a for a in scripts if a.get("type") != "application/json"]) == 1
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.html.count("<script>alert") == 0
    assert HOSTILE in " ".join(page.words)
    for _, data in charts(page.html):
        json.loads(data)
        assert "<" not in data


def test_no_privacy_is_said_plainly_and_no_curve_is_drawn(tmp_path: Path, page_of: Any) -> None:
    page = page_of.of(without_privacy(tmp_path / "run"))
    assert "There is no privacy guarantee." in page.text
    assert "no guarantee" in page.text
    assert {name for name, _ in charts(page.html)} == {"accuracy", "loss"}
    assert "What is promised" not in page.text
    assert "No party is trusted in this run" in page.text
    assert RunView.read(tmp_path / "run").epsilon == math.inf


def test_one_observer_without_a_guarantee_spoils_the_headline_but_not_the_others_curve(
    tmp_path: Path, page_of: Any
) -> None:
    rows = [metrics(n, 4, spent(n, 4, {"public": 2.0, "edges": None})) for n in range(1, 5)]
    facts = FACTS | {"observers": {"public": "public", "edges": "edge-0"}}
    releases = [release(n, event=Gaussian(9.0)) for n in range(1, 5)]
    releases.append(release(4, event=Clear(), audience=parties("edge-0")))
    page = page_of.of(write(tmp_path / "run", facts, rows, releases))
    assert "There is no privacy guarantee against edges." in page.text
    data = dict(charts(page.html))
    assert [line["name"] for line in json.loads(data["epsilon"])["lines"]] == ["public"]
    assert "price" not in data
    assert "No guarantee, hence no curve, against: edges." in page.text


def test_strong_and_weak_guarantees_are_told_apart(tmp_path: Path, page_of: Any) -> None:
    def told(noise: float) -> str:
        event = Gaussian(noise)
        final = accounting.epsilon({event: 1}, 1e-3)
        rows = [metrics(1, 1, {"public": final})]
        facts = FACTS | {"observers": {"public": "public"}}
        return str(page_of.of(write(tmp_path / str(noise), facts, rows, [release(1, event=event)])).text)

    assert "can hardly tell whether any one client took part" in told(5.0)
    assert "only limited evidence" in told(1.5)
    assert "the bound is loose" in told(0.5)


def test_releases_of_a_broken_round_count(tmp_path: Path, page_of: Any) -> None:
    directory = quickstart(tmp_path / "run", rounds=10)
    record = RunRecord.open(directory)
    record.ledger().append([handover(11), release(11)])
    record.close()
    run = RunView.read(directory)
    assert run.epsilon == pytest.approx(accounting.epsilon({EVENT: 11}, 1e-3), rel=1e-9)
    assert run.epsilon > run.written["public"]
    assert "The ledger holds 2 releases of a round that is not finished" in page_of.of(directory).text


def test_an_epsilon_that_the_ledger_does_not_bear_out_is_not_shown(tmp_path: Path, page_of: Any) -> None:
    rows = [metrics(n, 5, {"other clients": 0.01, "public": 0.01}) for n in range(1, 6)]
    directory = write(tmp_path / "run", FACTS, rows, [release(n) for n in range(1, 6)])
    assert RunView.read(directory).epsilon == pytest.approx(accounting.epsilon({EVENT: 5}, 1e-3), rel=1e-9)
    assert "The ledger adds up to more than the last round wrote" in page_of.of(directory).text


def test_an_empty_run_has_a_page(tmp_path: Path, page_of: Any) -> None:
    page = page_of.of(write(tmp_path / "broken", {}, [], []))
    assert "broken" in page.text
    assert "unknown" in page.text
    assert not charts(page.html)
    started = page_of.of(write(tmp_path / "started", FACTS | {"status": "running"}, [], []))
    assert "running" in started.text
    assert ("Epsilon", "0") in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", started.html)


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    return RunView.read(quickstart(tmp_path / "run", rounds=2))


@for_every(sorted(FACTS))
def test_any_fact_may_be_missing(fact: str, run: RunView) -> None:
    facts = {name: value for name, value in run.facts.items() if name != fact}
    assert "</html>" in render_run(RunView(run.directory, facts, run.rounds, run.ledger, run.head))


def test_a_missing_delta_or_unit_promises_nothing(tmp_path: Path) -> None:
    run = RunView.read(quickstart(tmp_path / "run", rounds=2))
    for fact in ("delta", "unit"):
        facts = {name: value for name, value in run.facts.items() if name != fact}
        assert RunView(run.directory, facts, run.rounds, run.ledger, run.head).epsilon == math.inf


def test_one_round_has_a_page(tmp_path: Path, page_of: Any) -> None:
    page = page_of.of(quickstart(tmp_path / "run", rounds=1))
    assert {name for name, _ in charts(page.html)} == {"accuracy", "loss", "epsilon"}


def test_many_rounds_make_a_small_page(tmp_path: Path) -> None:
    rounds = 20_000
    kinds: dict[str, float | None] = {"other clients": 5.0, "public": 6.0}
    rows = [{"round": n} | metrics(n, rounds, spent(n, rounds, kinds)) for n in range(1, rounds + 1)]
    run = RunView.read(write(tmp_path / "run", FACTS, [], []))
    html = render_run(RunView(run.directory, run.facts, rows, run.ledger, run.head))
    assert len(html) < 300_000
    for _, data in charts(html):
        assert len(json.loads(data)["x"]) <= 600


def test_rejected_updates_are_told(tmp_path: Path, page_of: Any) -> None:
    text = page_of.of(per_sample(tmp_path / "run")).text
    assert "2 updates in 1 round were not finite (NaN or infinite) and counted as zero." in text
    assert "whether any one example was used" in text


def test_the_page_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = quickstart(tmp_path / "run", rounds=2)
    before = write_report(directory).read_text()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InvalidInput, match="No space left"):
        write_report(directory)
    monkeypatch.undo()
    assert (directory / "report.html").read_text() == before
    assert not list(directory.glob(".report*"))


def test_a_damaged_ledger_gets_no_page(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=3)
    connection = sqlite3.connect(directory / "run.sqlite")
    connection.execute("""UPDATE release SET body = replace(body, '1.4321', '9.4321') WHERE id = 1""")
    connection.commit()
    connection.close()
    with pytest.raises(SightlineError, match="hash chain"):
        write_report(directory)
    assert not (directory / "report.html").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"run\.sqlite"):
        write_report(tmp_path)


@pytest.mark.parametrize("number", [3, 60, 61, 500])
def test_the_sizes_of_few_and_of_many_clients(tmp_path: Path, page_of: Any, number: int) -> None:
    sizes = [10 + (i * 37) % 400 for i in range(number)]
    facts = FACTS | {"sizes": sizes, "clients": number}
    page = page_of.of(write(tmp_path / "run", facts, [], [release(1, subjects=clients(number))]))
    titles = re.findall(r"<rect.*?<title>(.*?)</title>", page.html)
    told = [int(words.split(": ")[1].split()[0].replace(",", "")) for words in titles]
    assert sum(told) == (sum(sizes) if number <= 60 else number)


def test_a_real_run_has_a_page_with_its_own_numbers(tmp_path: Path, page_of: Any) -> None:
    example = Path(__file__).parents[2] / "examples" / "quickstart.toml"
    words = ["rounds=2", "privacy.noise_multiplier=2.0", "evaluate_every=2"]
    done = sightline.run(example, overrides=words, out=tmp_path / "run")
    page = page_of((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    figures = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.html))
    assert figures["Epsilon"] == format_upper(done.summary["epsilon"])
    assert figures["Test accuracy"] == f"{100 * done.summary['test_accuracy']:.1f} %"
    assert figures["Releases"] == str(done.summary["releases"])
    assert "Gaussian noise, z = 2, each client sampled in secret with probability 0.5" in page.text.replace(
        "\u00a0", " "
    )
    assert "server" in RunView.read(tmp_path / "run").trusted


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5, 2.99, 3.0, 4.0, 8.0, 32.0, 900.0])
def test_the_odds_are_a_sentence_at_every_epsilon(epsilon: float) -> None:
    """A bound of almost everything is no number to print: then it says at which epsilon it would be less."""
    power = power_at_most(epsilon, 1e-3)
    said = headline.test_power_words({"public": power}, 1e-3)
    shown = [float(word) for word in re.findall(r"at most ([\d.]+) %", said)]
    assert not any(value > 95.3 for value in shown)
    if power <= 0.95:
        assert 100 * power <= shown[0] <= 100 * power + 0.1
        assert len(shown) == 1
    else:
        assert "almost every true case" in said
        assert shown == [13.7, 37.1]


def test_a_sentence_tells_observers_apart() -> None:
    said = headline.test_power_words({"public": 0.2, "{server}": 0.3, "edges": 0.999}, 1e-3)
    assert "almost every true case (edges); at epsilon 1" in said
    assert "finds at most 30.0 % of the true cases ({server}), 20.0 % (public); a blind guess" in said
    many = headline.test_power_words({f"{n} hops": 0.5 - 0.05 * n for n in range(1, 7)}, 1e-3)
    assert "finds at most 45.0 % of the true cases (1 hops) down to 20.0 % (6 hops); a blind guess" in many


def test_a_number_and_its_percent_stay_together(tmp_path: Path) -> None:
    notes = re.findall(r'<dd class="note">(.*?)</dd>', write_report(quickstart(tmp_path / "run", rounds=2)).read_text())
    assert any("worst" in note for note in notes)
    assert not any(" %" in note or "δ = " in note for note in notes)
    promise = re.findall(r"<p>(In numbers.*?)</p>", write_report(tmp_path / "run").read_text())
    assert len(promise) == 1
    assert " %" not in promise[0]


def test_a_worst_client_is_told_with_its_examples_and_with_what_most_reach(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=2)
    record = RunRecord.open(directory)
    few = {"client_accuracy_worst": 0.0, "client_worst_examples": 3, "client_accuracy_decile": 0.75}
    record.add_round(3, metrics(3, 3, {"public": 1.0}) | few)
    record.close()
    page = write_report(directory).read_text()
    assert "10th percentile 75.0\u00a0%, worst 0.0\u00a0% (a client with 3 test examples)" in page
    assert "10th percentile <b>75.0 %</b>" in page
