"""Every page says what the records say, as text, and leaves the runs as they were."""

import html
import json
import math
import re
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from serve_asking import Ask, asking, site_of

from sightline import accounting
from sightline.accounting import SCHEMES, Accountant
from sightline.apps.cli.main import run_arguments
from sightline.apps.report import RunView
from sightline.apps.report.comparison import compare_runs
from sightline.apps.report.comparison import plain_comparison as compared_plain
from sightline.apps.serve.calculator import bar_scale
from sightline.apps.serve.matrix import pair_classes
from sightline.apps.serve.run_folder import LiveRuns
from sightline.apps.serve.running import PAGE
from sightline.config import read
from sightline.engine import RunRecord
from sightline.formatting import format_percent, format_upper
from sightline.ledger import LedgerDamaged
from tests.report.report_runs import FACTS, handover, metrics, per_sample, quickstart, release, spent, write


def text_of(body: bytes) -> str:
    plain = re.sub(r"<(script|style).*?</\1>", " ", body.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def api(ask: Ask, target: str) -> Any:
    answer = ask(target)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = ["/", "/groups", "/tree", "/run?run=quick", "/sight?run=quick&q=client-3", "/pair?run=quick&subject=client-1&observer=public",
         "/ledger?run=quick&q=mean", "/compare?run=quick&run=open", "/calculator", "/calculator?part=curve"]  # fmt: skip


def test_looking_changes_nothing(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "runs" / "quick", rounds=3)
    quickstart(tmp_path / "runs" / "open", rounds=3)
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.iterdir()}
    ask = asking(site_of(tmp_path / "runs"))
    for page in PAGES:
        assert ask(page).status == 200, page
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.iterdir()} == before


def test_the_list_shows_what_the_runs_wrote(ask: Ask, folder: Path) -> None:
    rows = {row["run"]: row for row in api(ask, "/api/runs")["runs"]}
    assert set(rows) == {"quick", "sweep/name=a,seed=1", "open", "sample"}
    page = text_of(ask("/").body)
    for name, row in rows.items():
        run = RunView.read(folder / name)
        assert row["accuracy"] == run.last("test_accuracy")
        assert row["epsilon"] == (None if row["unit"] == "none" else max(run.rounds[-1]["epsilon"].values()))
        assert format_percent(row["accuracy"]) in page
        assert row["unit"] == "none" or format_upper(row["epsilon"]) in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=prox", {"sweep/name=a,seed=1"}),
        ("q=SEED+1+prox", {"sweep/name=a,seed=1"}),
        ("unit=none", {"open"}),
        ("unit=sample&status=finished", {"sample"}),
        ("status=running", set()),
        ("algorithm=fedprox", {"sweep/name=a,seed=1"}),
    ],
)
def test_filters(ask: Ask, query: str, found: set[str]) -> None:
    assert {row["run"] for row in api(ask, f"/api/runs?{query}")["runs"]} == found
    page = ask(f"/?{query}").body.decode()
    shown = {html.unescape(value) for value in re.findall(r'type="checkbox" name="run" value="([^"]*)"', page)}
    assert shown == found


def test_a_broken_or_unborn_run_does_not_hide_the_others(tmp_path: Path) -> None:
    quickstart(tmp_path / "good", rounds=1)
    for name, content in (("empty", b""), ("noise", b"not a database at all, and long enough to be looked at")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sqlite").write_bytes(content)
    ask = asking(site_of(tmp_path))
    assert [row["run"] for row in api(ask, "/api/runs")["runs"]] == ["good"]
    assert ask("/run?run=noise").status in (400, 404)


def test_releases_after_the_last_round_are_told_in_the_list_and_counted_on_the_page(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "late", rounds=3, status="running")
    record = RunRecord.open(directory)
    record.ledger().append([handover(4), release(4)])
    record.close()
    ask = asking(site_of(tmp_path))
    row = api(ask, "/api/runs")["runs"][0]
    assert row["since"] == 2
    assert "2 releases since" in text_of(ask("/").body)
    told = api(ask, "/api/run?run=late")
    assert told["epsilon"] == RunView.read(directory).epsilon
    assert told["epsilon"] > row["epsilon"]
    assert format_upper(told["epsilon"]) in text_of(ask("/run?run=late").body)


def test_a_round_that_did_not_work_out_epsilon_leaves_the_last_known_one(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "thin", rounds=3, status="running")
    before = api(asking(site_of(tmp_path)), "/api/runs")["runs"][0]["epsilon"]
    record = RunRecord.open(directory)
    record.ledger().append([handover(4), release(4)])
    record.add_round(4, {name: value for name, value in metrics(4, 4, {}).items() if name != "epsilon"})
    record.close()
    ask = asking(site_of(tmp_path))
    row = api(ask, "/api/runs")["runs"][0]
    assert (row["round"], row["epsilon"], row["since"]) == (4, before, 2)
    assert f"{format_upper(before)} per client, added or removed, δ = 0.001, 2 releases since" in text_of(ask("/").body)


def test_a_run_in_memory_grows_into_the_run_on_disk(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=2)
    live = LiveRuns()
    for number in (3, 4):
        with live.held(directory) as (run, made):
            assert made.once(number, lambda: "made") == "made"
        record = RunRecord.open(directory)
        record.ledger().append([handover(number), release(number)])
        record.add_round(number, metrics(number, 4, spent(number, 4, {"public": 5.0})))
        record.remember_metadata({"status": f"round {number}"})
        record.close()
        fresh = RunView.read(directory)
        with live.held(directory) as (run, made):
            assert made.once(number, lambda: "moved on") == "moved on"
            assert (run.rounds, run.head, run.facts) == (fresh.rounds, fresh.head, fresh.facts)
            assert list(run.ledger) == list(fresh.ledger)
            assert run.spent == fresh.spent


def test_a_run_that_is_made_anew_is_read_anew(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=5)
    live = LiveRuns()
    with live.held(directory) as (run, _):
        assert run.rounds_done == 5
    for path in directory.iterdir():
        path.unlink()
    quickstart(directory, rounds=2)
    with live.held(directory) as (run, _):
        assert (run.rounds_done, len(run.ledger)) == (2, 4)


def cut(directory: Path) -> None:
    record = RunRecord.open(directory)
    record._connection.execute("UPDATE release SET body = replace(body, 'server', 'surfer') WHERE id = 3")
    record.close()


def test_a_damaged_ledger_gets_no_report_and_its_page_says_where(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run", rounds=4)
    cut(directory)
    with pytest.raises(LedgerDamaged):
        RunView.read(directory)
    ask = asking(site_of(tmp_path))
    answer = ask("/run?run=run")
    assert answer.status == 400
    assert "hash chain is broken" in text_of(answer.body)
    rows = api(ask, "/api/ledger?run=run")["releases"]
    assert [row["id"] for row in rows if not row["whole"]] == [3]
    assert "broken" in text_of(ask("/ledger?run=run").body)


@pytest.fixture(scope="module")
def long_ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    place = tmp_path_factory.mktemp("long")
    quickstart(place / "long", rounds=173)
    return asking(site_of(place))


def walked(ask: Ask, query: str = "", way: str = "after") -> list[dict[str, Any]]:
    """Every release, page by page, forwards or backwards."""
    found, start = [], 0 if way == "after" else 10**6
    while start is not None:
        told = api(ask, f"/api/ledger?run=long&start={start}{query}")
        found.append(told["releases"])
        start = told[way]
    pages = found if way == "after" else found[::-1]
    return [row for page in pages for row in page]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({1: 2, 2: 2, 3: 2}, "2 releases in every round"),
        ({1: 2, 2: 3, 3: 2}, ""),
        ({1: 2, 3: 2}, ""),
        (dict.fromkeys(range(1, 401), 1), "10 releases in every 10 rounds"),
        ({1: 7}, "7 releases in every round"),
    ],
)
def test_equal_rounds_are_told_and_not_drawn_as_bars(tmp_path: Path, made: dict[int, int], words: str) -> None:
    releases = [release(time) for time, number in made.items() for _ in range(number)]
    write(tmp_path / "run", FACTS, [], releases)
    page = asking(site_of(tmp_path))("/ledger?run=run").body.decode()
    assert ('class="strip even"' in page) == bool(words)
    assert (f"{words}: select a place to jump there" if words else "select a bar to jump there") in page


def test_the_pages_of_a_ledger_hold_every_release_once_both_ways(long_ask: Ask) -> None:
    assert [row["id"] for row in walked(long_ask)] == list(range(346))
    assert all(row["whole"] for row in walked(long_ask))
    pages = [api(long_ask, f"/api/ledger?run=long&start={start}") for start in (0, 100, 300)]
    assert [len(page["releases"]) for page in pages] == [PAGE, PAGE, 46]
    assert (pages[0]["before"], pages[2]["after"]) == (None, None)


def test_a_search_finds_what_a_look_at_every_row_finds(long_ask: Ask) -> None:
    every = walked(long_ask)
    for word in ("noisy", "CLIPPED", "poisson", "nothing at all", "%", "_"):
        wanted = [
            row["id"] for row in every
            if word.lower() in json.dumps({k: v for k, v in row.items() if k not in ("id", "hash", "whole")}, separators=(",", ":")).lower()
        ]  # fmt: skip
        assert [row["id"] for row in walked(long_ask, f"&q={quote(word)}")] == wanted
    noisy = [row["id"] for row in walked(long_ask, "&q=noisy")]
    told = api(long_ask, f"/api/ledger?run=long&q=noisy&start={noisy[120]}")
    assert told["before"] == noisy[20]


def test_a_round_leads_to_its_first_release(long_ask: Ask) -> None:
    assert api(long_ask, "/api/ledger?run=long&round=50")["releases"][0]["time"] == 50
    for strange in ("-3", "x", "9" * 30, "1e3"):
        assert long_ask(f"/ledger?run=long&round={strange}&start={strange}").status == 200


@pytest.mark.parametrize("name", ["quick", "open", "sample"])
def test_every_pair_is_what_the_ledger_says_of_it(folder: Path, name: str) -> None:
    run = RunView.read(folder / name)
    held = pair_classes(run)
    checked = 0
    for n in held.subjects:
        for i in held.observers:
            observer = held.classes[i].names[0]
            subject = next((one for one in held.classes[n].names if one != observer), None)
            if subject is None:
                assert held.epsilon(n, i) is None
                continue
            by_ledger = run.ledger.epsilon(subject, observer, run.delta or 0.0)
            open_ = str(run.unit) == "none" and run.ledger.composition(subject, observer)
            assert held.epsilon(n, i) == (float("inf") if open_ else by_ledger)
            checked += 1
    assert checked >= 2


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Nine participants and a server, three at a time."""
    per_sample(tmp_path / "many", rounds=2, number=9)
    monkeypatch.setattr("sightline.apps.serve.matrix.MOST", 3)
    monkeypatch.setattr("sightline.apps.serve.matrix.LEAST", 3)
    return asking(site_of(tmp_path))


def test_windows_put_together_are_the_whole(narrow: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = api(narrow, "/api/sight?run=many")
    down, across = first["total"]
    assert down > 3
    rows: list[list[float | None]] = []
    for row in range(0, down, 3):
        beside = [api(narrow, f"/api/sight?run=many&row={row}&column={column}") for column in range(0, across, 3)]
        assert [one["row"] for one in beside] == [row] * len(beside)
        rows += [[*chain(*parts)] for parts in zip(*(one["epsilon"] for one in beside), strict=True)]
    monkeypatch.undo()
    whole = api(asking(site_of(tmp_path)), "/api/sight?run=many")
    assert len(whole["subjects"]) == down
    assert rows == whole["epsilon"]


def test_a_search_brings_the_window_that_holds_it(narrow: Ask) -> None:
    page = narrow("/sight?run=many&q=client-7").body.decode()
    assert "Rows 7 to 9 of 9" in page
    assert '<th scope="row">client-7</th>' in page
    links = [html.unescape(link) for link in re.findall(r'href="(/sight[^"]*row=[^"]*)"', page)]
    assert any("row=3" in link for link in links)
    for link in links:
        assert narrow(link).status == 200
    for strange in ("-1", "x", "9" * 30, "10**9"):
        assert narrow(f"/sight?run=many&row={strange}&column={strange}").status == 200


def test_where_observers_are_too_many_to_ask_the_worst_of_all_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_sample(tmp_path / "many", rounds=2, number=9)
    monkeypatch.setattr("sightline.apps.serve.matrix.WORK", 1)
    page = text_of(asking(site_of(tmp_path))("/sight?run=many&q=client-3").body)
    run = RunView.read(tmp_path / "many")
    for kind, value in run.spent.items():
        assert f"{kind}, worst case over all participants {format_upper(value)}" in page


def test_long_work_is_announced_before_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    per_sample(tmp_path / "many", rounds=2, number=12)
    monkeypatch.setattr("sightline.apps.serve.matrix.QUICK", 1)
    ask = asking(site_of(tmp_path))
    first = ask("/sight?run=many").body.decode()
    assert "Computing" in first
    assert 'class="map"' not in first
    assert 'class="map"' in ask("/sight?run=many&part=page").body.decode()
    assert "Computing" not in ask("/sight?run=many").body.decode()


def test_the_cells_of_a_map_say_what_the_json_says(tmp_path: Path) -> None:
    per_sample(tmp_path / "many", rounds=2, number=12)
    ask = asking(site_of(tmp_path))
    told = api(ask, "/api/sight?run=many")
    page = ask("/sight?run=many").body.decode()
    data = json.loads(re.search(r'<figure class="map".*?json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert (data["rows"], data["columns"]) == (told["subjects"], told["observers"])
    words = [data["phrases"][place] for place in data["cells"]]
    for said, value in zip(words, (value for row in told["epsilon"] for value in row), strict=True):
        assert (format_upper(value) in said) if value else ("nothing" in said or "itself" in said or "clear" in said)


def test_the_matrix_page_shows_the_json(ask: Ask) -> None:
    told = api(ask, "/api/sight?run=quick")
    page = text_of(ask("/sight?run=quick").body)
    assert told["subjects"] == ["client-0..23"]
    assert set(told["observers"]) == {"client-0..23", "public", "server"}
    for value in told["epsilon"][0]:
        assert (format_upper(value) if value else "without noise") in page
    pair = text_of(ask("/pair?run=quick&subject=client-1&observer=public").body)
    assert format_upper(max(value for value in told["epsilon"][0] if value)) in pair
    assert "12 releases of server up to round 12, seen directly" in pair
    assert re.search(r"The best attack finds at most [\d.]+ % at 1 %, [\d.]+ % at 5 % false alarms", pair)
    nothing = text_of(ask("/pair?run=quick&subject=public&observer=client-1").body)
    assert "No release reached this observer" in nothing


def test_a_pair_is_of_those_who_have_a_name(ask: Ask) -> None:
    stranger = ask("/pair?run=quick&subject=client-1&observer=publik")
    assert stranger.status == 400
    assert 'observer=publik: no participant has this name; did you mean "public"?' in text_of(stranger.body)
    assert ask("/pair?run=quick&subject=client-24&observer=public").status == 400
    together = text_of(ask("/pair?run=quick&subject=client-1&observer=client-2,public").body)
    assert "12 releases of server up to round 12, seen directly" in together
    assert "No participant’s name contains" in text_of(ask("/sight?run=quick&q=client-24").body)


def test_the_comparison_is_that_of_the_command(ask: Ask, folder: Path) -> None:
    names = ["quick", "sweep/name=a,seed=1"]
    told = api(ask, "/api/compare?by=settings&" + "&".join(f"run={quote(name)}" for name in names))
    assert told == compared_plain(compare_runs([folder / name for name in names]))
    page = ask("/compare?" + "&".join(f"run={quote(name)}" for name in names)).body.decode()
    for row in told["runs"]:
        assert format_percent(row["test_accuracy"]) in page
    for chart in ("by-rounds", "by-epsilon", "by-time", "by-traffic"):
        assert f'id="chart-{chart}"' in page
    assert ask("/compare?" + "&".join(f"run=x{n}" for n in range(99))).status == 400


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_calculator_says_what_the_accountant_says(ask: Ask, scheme: str) -> None:
    small = (
        "steps=64&uses=8&rate=0.125&parts=3&chance=0.5&noise=1.5&delta=1e-6&epochs=1&samples=90&batch_size=9&rounds=20"
    )
    told = api(ask, f"/api/account?scheme={scheme}&{small}")
    family = SCHEMES[scheme]
    numbers = {parameter.name: told[parameter.name] for parameter in family.ranged_parameters}
    made = family.make(**family.complete_numbers(numbers))
    assert told["epsilon"]["this scheme"] == made.epsilon(delta=1e-6)
    assert told["epsilon"]["by RDP"] == made.epsilon(delta=1e-6, accountant=Accountant.RDP)
    page = text_of(ask(f"/calculator?scheme={scheme}&{small}").body)
    for value in told["epsilon"].values():
        assert format_upper(value, digits=4) in page


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.slow
def test_the_calculator_solves_for_the_noise(ask: Ask, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The noise that `sightline calibrate` finds, on the page rounded up so that it still meets the budget."""
    small = COMMANDS[scheme].replace("64", "8").replace("uses 8", "uses 2")
    words = ["--epsilon", "2", *small.split()[2:], "--delta", "1e-6"]
    assert run_arguments(["calibrate", scheme, *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["noise_multiplier"]
    query = asked_of_the_page(words)
    told = api(ask, f"/api/account?scheme={scheme}&solve=noise&{query}")
    assert told["noise_multiplier"]["this scheme"] == pytest.approx(said, rel=1e-5)
    assert told["epsilon"] == 2
    page = ask(f"/calculator?scheme={scheme}&solve=noise&{query}").body.decode()
    shown = float(re.search(r"this scheme</dt><dd><b>([^<]*)</b>", page)[1])  # type: ignore[index]
    family = SCHEMES[scheme]
    given = {parameter.name: told.get(parameter.name) for parameter in family.ranged_parameters}
    for noise, enough in ((shown, True), (0.99 * shown, False)):
        made = family.make(**family.complete_numbers({**given, "noise": noise}))
        assert (made.epsilon(delta=1e-6) <= 2) == enough
    assert 'name="epsilon"' in page
    assert 'name="noise"' not in page
    if scheme in ("poisson", "gaussian"):
        assert b"chart-calculator" in ask(f"/calculator?scheme={scheme}&solve=noise&{query}&part=curve").body


def test_the_calculator_opens_on_poisson_sampling(ask: Ask) -> None:
    page = ask("/calculator").body.decode()
    assert '<option value="poisson" selected>' in page
    assert page.index('value="poisson"') < page.index('value="balanced"')
    assert api(ask, "/api/account")["scheme"] == "poisson"
    noise = api(ask, "/api/account?solve=noise")["noise_multiplier"]
    assert noise["this scheme"] < noise["by RDP"] < noise["no amplification"]


def test_the_calculators_rivals_are_what_they_are_called(ask: Ask) -> None:
    balanced = api(ask, "/api/account?scheme=balanced&noise=2&steps=100&uses=10&epochs=3&delta=1e-5")["epsilon"]
    assert balanced["Poisson sampling"] == accounting.poisson(noise=2, rate=0.1, steps=300).epsilon(delta=1e-5)
    assert balanced["no amplification"] == accounting.gaussian(noise=2, steps=30).epsilon(delta=1e-5)
    split = api(ask, "/api/account?scheme=split&noise=2&parts=4&rate=0.1&steps=50&delta=1e-5")["epsilon"]
    assert split["Poisson sampling"] == accounting.poisson(noise=2, rate=0.1, steps=50).epsilon(delta=1e-5)
    assert split["no amplification"] == accounting.gaussian(noise=2, steps=50).epsilon(delta=1e-5)
    assert split["this scheme"] <= split["Poisson sampling"] <= split["no amplification"]


COMMANDS = {
    "balanced": "--noise 1.5 --steps 64 --uses 8",
    "poisson": "--noise 1.5 --rate 0.125 --steps 64",
    "split": "--noise 1.5 --parts 3 --rate 0.125 --steps 64",
    "dropout": "--noise 1.5 --rate 0.125 --steps 64",
    "check-ins": "--noise 1.5 --steps 64 --chance 0.5",
    "gaussian": "--noise 1.5 --steps 64",
    "fixed": "--noise 1.5 --cohort 5 --clients 50 --steps 64",
    "pooled": "--noise 1.5 --clients 20 --rate 0.25 --steps 64",
    "segment": "--noise 1.5 --steps 5 --rate 0.125 --segments 8 --first-step 0.25",
    "convex": "--noise 1.5 --steps 5 --rate 0.125 --segments 8",
    "convex-once": "--noise 1.5 --chance 0.125 --segments 8",
    "correlated": "--noise 1.5 --steps 64 --separation 4 --uses 8 --rate 1",
    "clustered": "--noise 1.5 --samples 90 --batch-size 9 --rounds 20 --selection-epsilon 0.1",
}


def asked_of_the_page(words: list[str]) -> str:
    """The query of a command's options."""
    pairs = [(name, value) for name, value in pairwise(words) if name.startswith("--")]
    return "&".join(f"{name.removeprefix('--').replace('-', '_')}={value}" for name, value in pairs)


def test_the_calculator_draws_the_strategy_and_the_error_over_rounds(ask: Ask) -> None:
    query = "/calculator?scheme=correlated&noise=2.5&steps=100&separation=10&uses=10&rate=1&delta=1e-5"
    page = ask(query).body.decode()
    assert '<option value="bsr" selected>' in page
    assert "4.233" in text_of(page.encode())  # the sensitivity 4.2324, rounded up
    charts = ask(query + "&part=curve").body.decode()
    assert 'id="chart-strategy"' in charts
    strategy, error = re.findall(r'<script type="application/json">(.*?)</script>', charts, re.DOTALL)[1:]
    assert json.loads(strategy)["lines"][0]["words"][:3] == ["1", "0.5", "0.375"]
    (correlated, independent) = (line["words"] for line in json.loads(error)["lines"])
    assert float(correlated[-1]) == pytest.approx(2.5 * 9.143911**0.5, rel=1e-3)
    assert float(independent[-1]) == pytest.approx(0.590678 * (10 * 100) ** 0.5, rel=1e-3)
    band = ask(query + "&strategy=band").body.decode()
    assert '<option value="band" selected>' in band
    assert text_of(band.encode()) != text_of(page.encode())
    assert "strategy=tree: no such choice" in text_of(ask(query + "&strategy=tree").body)


def test_the_calculator_notes_a_large_delta_where_it_knows_how_many(ask: Ask) -> None:
    query = "scheme=clustered&samples=100&delta=0.01"
    told = api(ask, f"/api/account?{query}")
    assert "publishing one of 100 examples at random" in told["note"]
    assert told["note"] in text_of(ask(f"/calculator?{query}").body)
    assert "note" not in api(ask, "/api/account?scheme=clustered&samples=100&delta=1e-5")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_calculator_says_what_the_command_says(ask: Ask, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = COMMANDS[scheme].split()
    assert run_arguments(["account", scheme, *words, "--delta", "1e-6", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["epsilon"]
    query = asked_of_the_page(words)
    page = ask(f"/calculator?scheme={scheme}&{query}&delta=1e-6").body.decode()
    assert re.search(r"this scheme</dt><dd><b>([^<]*)</b>", page)[1] == format_upper(said, digits=4)  # type: ignore[index]


@pytest.mark.parametrize(
    "query",
    [
        "structure=ring&workers=40&groups=8&period=5&epochs=31&noise=3&rate=0.7",
        "structure=string&workers=1000&groups=20&period=3&epochs=10&noise=3&rate=1&plus=1",
        "structure=ring&workers=30&groups=5&period=4&epochs=21&noise=2&rate=1&threat=out-of-group",
        "structure=global&workers=10&groups=1&period=1&epochs=5&noise=2&rate=1",
    ],
)
def test_the_page_of_groups_says_what_the_command_says(
    ask: Ask, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part.partition("=")[::2] for part in query.split("&")]
    words = [word for name, value in options for word in ([f"--{name}"] if name == "plus" else [f"--{name}", value])]
    assert run_arguments(["groups", *words, "--delta", "1e-5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    told = api(ask, f"/api/groups?{query}&delta=1e-5")
    assert {name: said[name] for name in told} == told
    page = ask(f"/groups?{query}&delta=1e-5").body.decode()
    shown = dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", page))
    assert shown["worst worker"] == format_upper(said["epsilon_max"], digits=4)
    assert shown["mean over workers"] == format_upper(said["epsilon_mean"], digits=4)
    data = json.loads(re.search(r'json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert any(format_upper(said["epsilon_max"]) in phrase for phrase in data["phrases"])


def test_where_nobody_is_curious_nothing_is_said_of_them(ask: Ask) -> None:
    page = ask("/groups?structure=global&threat=out-of-group").body.decode()
    assert "<b>no observer</b>" in page
    assert "share a group: outside this threat" in page


def test_the_page_of_trees_says_what_a_ledger_says(ask: Ask) -> None:
    from sightline.engine import build_experiment, calibrate_noise, plan_releases

    privacy = 'privacy={unit="client",where="edge",noise_multiplier=1.5,clip_norm=1.0,delta=1e-3}'
    changes = ["rounds=3", "topology.subnets=4", "topology.trusted=0.5", "local.steps=10"]
    experiment = read(EXAMPLES / "hierarchy.toml", [privacy, *changes])
    setting = calibrate_noise(build_experiment(experiment))
    ledger = plan_releases(setting)
    told = api(ask, "/api/tree?noise=1.5&devices=10&segments=2&rounds=3&delta=1e-3")
    edges = setting.topology.edges
    for kind in ("trusted", "untrusted"):
        edge = next(one for one in edges if one.trusted == (kind == "trusted"))
        device, neighbour = (f"client-{n}" for n in edge.members[:2])
        stranger = next(f"client-{one.members[0]}" for one in edges if one is not edge)
        for name, observer in (("its edge", edge.name), ("its subnet", neighbour), ("all others", stranger),
                               ("all others", "cloud"), ("all others", "public")):  # fmt: skip
            said = ledger.epsilon(device, observer, 1e-3)
            if observer == "public" and kind == "untrusted":  # who adds no noise knows none: one more counts
                assert said < told[kind][name]
                continue
            assert told[kind][name] == (None if said == float("inf") else said), (kind, observer)
    page = text_of(ask("/tree?noise=1.5&devices=10&segments=2&rounds=3&delta=1e-3").body)
    assert format_upper(told["untrusted"]["its edge"], digits=4) in page
    assert format_upper(told["untrusted"]["all others"], digits=4) in page


@pytest.mark.parametrize("path", ["/groups", "/tree"])
@pytest.mark.parametrize("query", ["noise=x", "noise=-1", "delta=0", "noise=nan", "workers=1.5&devices=1.5"])
def test_the_planners_answer_nonsense_with_one_line(ask: Ask, path: str, query: str) -> None:
    assert ask(f"/api{path}?{query}").status == 400
    page = ask(f"{path}?{query}")
    assert page.status == 200
    assert 'class="warn"' in page.body.decode()
    assert ask("/api/groups?structure=pyramid").status == 400


@pytest.mark.parametrize(
    "query",
    [
        "noise=x",
        "noise=-1",
        "noise=nan",
        "noise=inf",
        "steps=1.5",
        "steps=1e12",
        "delta=0",
        "uses=2000&scheme=balanced",
        "scheme=ponzi",
        "solve=delta",
        "epsilon=0&solve=noise",
        "epsilon=x&solve=noise",
        "epsilon=inf&solve=noise",
    ],
)
def test_the_calculator_answers_nonsense_with_one_line(ask: Ask, query: str) -> None:
    assert ask(f"/api/account?{query}").status == 400
    page = ask(f"/calculator?{query}")
    assert page.status in (200, 400)
    assert query.partition("=")[0] + "=" in text_of(page.body)


def test_the_curve_is_never_below_the_accountant(ask: Ask) -> None:
    for against in ("noise", "steps"):
        body = ask(
            f"/calculator?scheme=poisson&noise=1&rate=0.1&steps=100&delta=1e-5&part=curve&against={against}"
        ).body
        data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', body.decode(), re.DOTALL)[1])  # type: ignore[index]
        (line,) = [line for line in data["lines"] if line["name"].startswith("this scheme")]
        for at, words in list(zip(data["words"], line["words"], strict=True))[::5]:
            value = float(at.split()[1])
            noise, steps = (value, 100) if against == "noise" else (1.0, int(value))
            exact = accounting.poisson(noise=noise, rate=0.1, steps=steps).epsilon(delta=1e-5)
            assert exact <= float(words.replace(",", "")) <= 1.002 * exact
        assert all(a < b for a, b in pairwise(data["x"]))


def test_words_of_users_are_text_on_every_page(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    facts = FACTS | dict.fromkeys(("name", "algorithm", "source", "topology", "model", "status", "created"), bad)
    facts |= {"trusted": [bad], "observers": {bad: "public"}, "caveats": [bad], "notes": [bad]}
    rows = [metrics(n, 2, spent(n, 2, {bad: 3.0})) for n in (1, 2)]
    made = [release(1, source=bad, what=bad), release(2, audience=frozenset({"public", "<b>x</b>"}))]
    folder = "<b onclick=alert(1)>&amp;"
    write(tmp_path / folder, facts, rows, made, settings=f"x = '''{bad.replace(chr(39), '')}'''")
    ask, name, evil = asking(site_of(tmp_path)), quote(folder), quote(bad)
    pages = ["/", f"/?q={evil}&status={evil}", f"/run?run={name}", f"/sight?run={name}&q=%3Cb", f"/sight?run={name}&q={evil}",
             f"/ledger?run={name}", f"/ledger?run={name}&q={evil}&round={evil}", f"/compare?run={name}&by={evil}",
             f"/pair?run={name}&subject={evil}&observer={evil}", f"/calculator?noise={evil}", f"/calculator?scheme={evil}",
             f"/run?run={evil}", f"/{evil}", f"/calculator?against={evil}"]  # fmt: skip
    for page in pages:
        answer = ask(page)
        text = answer.body.decode()
        assert answer.status < 500, page
        for tag in ("<script>alert", "<img", "<b onclick", "<b>x"):
            assert tag not in text, page
        assert not re.search(r"<[^>]*\sonerror=[^>]*>", re.sub(r'"[^"]*"', '""', text)), page


def test_a_failure_inside_is_one_line_for_the_reader(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("sightline.apps.serve.calculator.epsilon_rows", broken)
    answer = ask("/calculator")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_saved_report_is_the_report(ask: Ask, folder: Path) -> None:
    from sightline.apps.report import render_run

    answer = ask("/report.html?run=quick")
    assert answer.body.decode() == render_run(RunView.read(folder / "quick"))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="quick.html"'


def test_a_long_run_is_announced_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quickstart(tmp_path / "long", rounds=3)
    monkeypatch.setattr("sightline.apps.serve.running.LONG", 5)
    ask = asking(site_of(tmp_path))
    first = ask("/run?run=long").body.decode()
    assert "Reading and checking 6 releases" in first
    assert "headline" not in first
    whole = ask("/run?run=long&part=page").body.decode()
    assert 'id="headline"' in whole
    assert "Reading and checking" not in whole
    assert 'id="headline"' in ask("/run?run=long").body.decode()


def test_bars_are_logarithmic_and_have_an_axis() -> None:
    scale = bar_scale([1.829, 2.102, 634.0, math.inf])
    shares = [float(scale.share(value)) for value in (1.829, 2.102, 634.0, math.inf, 0.0, math.nan)]
    assert shares[0] > 8
    assert shares[:4] == sorted(set(shares[:4]))
    assert shares[3:] == [100.0, 0.0, 0.0]
    assert [tick["text"] for tick in scale.ticks] == ["1", "10", "100", "1000"]
    assert float(bar_scale([1.0]).share(1.0)) > 0


def test_the_officers_record_is_linked_and_downloaded(ask: Ask) -> None:
    assert "/officer.html?run=quick" in ask("/run?run=quick").body.decode()
    answer = ask("/officer.html?run=quick")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="quick-record.html"'
    page = answer.body.decode()
    assert "Training examples" in page
    assert "noise_multiplier" not in page
    assert "e^epsilon" not in page
