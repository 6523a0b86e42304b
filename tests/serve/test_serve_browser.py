"""The pages in a real browser, by Playwright: clicks, keys, a run that goes on, and numbers that equal the JSON."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_asking import at_work

import sightline
from sightline import accounting
from sightline.apps.report import RunView
from sightline.apps.report.comparison import align_epsilons
from sightline.apps.serve import Server
from sightline.engine import RunRecord
from sightline.formatting import format_count, format_percent, format_upper
from sightline.ledger.group_privacy import PairQuery, query_pairs
from tests.interrupts import stopped_after
from tests.report.report_runs import handover, metrics, per_sample, quickstart, release, spent

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),  # one visit is what all tests look at
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(NODE is None, reason="no node on this machine"),
    pytest.mark.skipif(not (HERE / "node_modules" / "playwright-core").is_dir(), reason="no Playwright: make browser"),
]

ROUNDS = 6
FOLLOWED = 40
EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = "a-name-that-goes-on-and-on-because-someone-wanted-to-remember-everything"
TREE = [
    'data={source="digits",clients=50,partition="iid"}',
    'topology={kind="tree",subnets=10,trusted=0.5}',
    'algorithm={name="h2fdp",local_aggregation=5,control={energy=3,delay=3,accuracy=1,tau_max=40}}',
    "local={steps=20,batch_size=4,learning_rate=0.3}",
    'privacy={unit="client",where="edge",epsilon=40.0,delta=1e-3,clip_norm=1.0}',
]
"""Edges of both kinds: where all pairs are alike there is a table in the place of a map."""
TOPOLOGIES = {
    "groups": ("overlapping-groups", ["rounds=6", "data.clients=40", "topology.period=5"]),
    "tree": ("control", [*TREE, "rounds=3"]),
    "clusters": ("clustered", ["rounds=3"]),
    LONG: ("control", [*TREE, "rounds=2", "seed=3"]),
}


def go_on(directory: Path, ends: threading.Event) -> None:
    """Write a round every now and then, as a run at work does, then finish."""
    for number in range(2, ROUNDS + 1):
        ends.wait(0.4)
        record = RunRecord.open(directory)
        record.ledger().append([handover(number), release(number)])
        record.add_round(number, metrics(number, ROUNDS, spent(number, ROUNDS, {"public": 5.0})))
        if number == ROUNDS:
            record.remember_metadata({"status": "finished"})
        record.close()


def begin_when_looked_at(server: Server, directory: Path, ends: threading.Event) -> None:
    """Let the run continue once its page is open: then it is in the server's memory."""
    while not server.site.live._entries.get(directory) and not ends.is_set():
        time.sleep(0.1)
    go_on(directory, ends)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("browser")
    quickstart(place / "quick", rounds=80, created="2026-11-15T20:05:17+00:00")
    quickstart(place / "sweep" / "prox", rounds=5, seed=1, algorithm="fedprox", created="2026-11-14T20:05:17+00:00")
    per_sample(place / "sample", rounds=5)
    for name, (example, overrides) in TOPOLOGIES.items():
        sightline.run(EXAMPLES / f"{example}.toml", overrides=overrides, out=place / name)
    quickstart(place / "live", rounds=1, status="running", rounds_planned=ROUNDS, created="2026-01-01T00:00:00+00:00")
    return place


@pytest.fixture(scope="module")
def seen(folder: Path) -> Iterator[dict[str, Any]]:
    ends = threading.Event()
    with at_work(folder) as server:
        thread = threading.Thread(target=begin_when_looked_at, args=(server, folder / "live", ends))
        thread.start()
        real = ["run", str(EXAMPLES / "quickstart.toml"), "--out", str(folder / "real")]
        working = stopped_after(1, [*real, "--set", f"rounds={FOLLOWED}", "--json"])
        try:
            words = [str(NODE), "browse.mjs", str(CHROMIUM), server.url, str(working.pid)]
            done = subprocess.run(words, cwd=HERE, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            yield json.loads(done.stdout)
        finally:
            working.kill()
            working.communicate()
            ends.set()
            thread.join()


def test_nothing_is_said_on_the_console_and_nothing_is_asked_elsewhere(seen: dict[str, Any]) -> None:
    said = [line for line in seen["console"] if "/nowhere" not in line]  # the browser itself tells of a 404
    assert said == []
    assert seen["elsewhere"] == []


def test_the_token_leaves_the_address_and_strangers_stay_outside(seen: dict[str, Any]) -> None:
    assert "token" not in seen["address"]
    assert seen["stranger"][0] == 401
    assert "quick" not in seen["stranger"][1]


def test_the_list_says_what_the_records_say(seen: dict[str, Any], folder: Path) -> None:
    rows = {re.sub(r"\s", "", cells[1].partition("fed")[0]): cells for cells in seen["runs"]}
    for name in ("quick", "sample", "sweep/prox"):
        run = RunView.read(folder / name)
        assert rows[name][3] == format_percent(run.last("test_accuracy"))
        assert rows[name][4].split()[0] == format_upper(run.epsilon)
    assert seen["filtered"] == ["sweep/\nprox"]
    assert seen["filteredAddress"].endswith("?q=prox")


def test_two_runs_are_chosen_by_keyboard_and_compared(seen: dict[str, Any], folder: Path) -> None:
    assert len(seen["chosen"]) == 2
    assert seen["counted"] == "2 chosen"
    assert [row[0] for row in seen["comparison"]] == seen["chosen"]
    runs = [RunView.read(folder / row[0]) for row in seen["comparison"]]
    for row, run, epsilon in zip(seen["comparison"], runs, align_epsilons([one.epsilon for one in runs]), strict=True):
        assert format_percent(run.last("test_accuracy")) in row
        assert epsilon in row
    assert {"chart-by-rounds", "chart-by-epsilon", "chart-by-time", "chart-by-traffic"} <= set(seen["charts"])
    longest = max((RunView.read(folder / name) for name in seen["chosen"]), key=lambda run: run.rounds_done)
    assert format_percent(longest.last("test_accuracy")) in seen["read"]


def test_the_report_page_shows_the_report(seen: dict[str, Any], folder: Path) -> None:
    run = RunView.read(folder / "quick")
    assert seen["figures"]["Test accuracy"] == format_percent(run.last("test_accuracy"))
    assert seen["figures"]["Epsilon"] == format_upper(run.epsilon)
    assert seen["figures"]["Releases"] == format_count(len(run.ledger))


def test_the_matrix_answers_to_pointer_keys_and_search(seen: dict[str, Any], folder: Path) -> None:
    run = RunView.read(folder / "quick")
    value = format_upper(run.epsilon)
    assert "public" in seen["hovered"][0]
    assert f"epsilon {value}" in seen["hovered"][0]
    assert "80 releases of server up to round 80, seen directly" in seen["hovered"][1]
    assert seen["moved"][0].startswith("Of client-0..23, client-0..23 can learn at most")
    assert "client-1 seen by client-0" in seen["moved"][1]
    assert "What others can learn about it" in seen["searched"]
    assert value in seen["searched"]


@pytest.mark.parametrize("name", ["groups", "tree", "clusters"])
def test_the_map_of_every_topology_says_what_the_json_says(seen: dict[str, Any], folder: Path, name: str) -> None:
    found = seen["maps"][name]
    told, x, y = found["told"], found["x"], found["y"]
    run = RunView.read(folder / name)
    for words, row in ((found["hovered"], y), (found["above"], y - 1)):
        value = told["epsilon"][row][x]
        assert told["subjects"][row] in words
        assert (format_upper(value) in words) if value else re.search("itself|nothing|without noise", words)
    subject, observer = re.match(r"(\S+) seen by (\S+):", found["ways"]).groups()  # type: ignore[union-attr]
    assert observer in told["observers"][x] or "client" in observer
    epsilon = run.ledger.epsilon(subject, observer, run.delta or 0.0)
    assert ("no bound" if epsilon == float("inf") else format_upper(epsilon)) in found["ways"]
    assert "What others can learn about it" in found["searched"]


def test_a_run_of_another_process_is_followed_from_the_list_to_its_end(seen: dict[str, Any], folder: Path) -> None:
    first, later = (int(words.split()[0]) for words in seen["realRounds"])
    assert 1 == first < later <= FOLLOWED
    run = RunView.read(folder / "real")
    assert run.rounds_done == FOLLOWED
    assert seen["realAfter"]["Epsilon"] == format_upper(run.epsilon)
    assert seen["realAfter"]["Test accuracy"] == format_percent(run.last("test_accuracy"))


def test_words_stand_out_by_day_and_by_night(seen: dict[str, Any]) -> None:
    assert seen["contrast"] == {}


def test_the_ledger_is_walked_and_searched(seen: dict[str, Any]) -> None:
    assert [int(cell.split()[0]) for cell in seen["ledger"]] == list(range(100))
    assert [int(cell.split()[0]) for cell in seen["later"]] == list(range(100, 160))
    assert seen["barRound"] == "60"
    assert seen["found"] == "160 of 160 releases hold “clipped updates”"


def test_the_calculator_follows_its_sliders(seen: dict[str, Any]) -> None:
    first = accounting.balanced(noise=2, steps=1000, uses=100).epsilon(delta=1e-5)
    assert seen["calculator"]["this scheme"] == format_upper(first, digits=4)
    noise = float(seen["turned"]["noise"])
    assert noise > 2
    turned = accounting.balanced(noise=noise, steps=1000, uses=100)
    assert seen["turned"]["numbers"]["this scheme"] == format_upper(turned.epsilon(delta=1e-5), digits=4)
    poisson = accounting.poisson(noise=noise, rate=0.1, steps=1000).epsilon(delta=1e-5)
    assert seen["turned"]["numbers"]["Poisson sampling"] == format_upper(poisson, digits=4)
    assert "noise=-3" in seen["mistake"]
    assert seen["knobs"] == ["noise", "parts", "rate", "steps", "delta"]


def test_the_planners_follow_their_sliders(seen: dict[str, Any]) -> None:
    first, turned, chosen = seen["groups"]
    asked = {"structure": "ring", "workers": 40, "count": 8, "period": 5, "epochs": 31, "rate": 0.7, "delta": 1e-5}
    for noise, numbers in ((3.0, first), (float(turned["noise"]), turned["numbers"])):
        answer = query_pairs(PairQuery(noise=noise, **asked))
        assert numbers["worst worker"] == format_upper(answer.largest, digits=4)
        assert numbers["mean over workers"] == format_upper(answer.mean, digits=4)
    assert float(turned["noise"]) > 3
    assert chosen.startswith("Of ") or "itself" in chosen
    assert len(seen["tree"]) == 6


def test_a_run_at_work_is_followed_to_its_end(seen: dict[str, Any], folder: Path) -> None:
    run = RunView.read(folder / "live")
    assert run.rounds_done == ROUNDS
    assert seen["liveBefore"] == "running"
    assert seen["liveAfter"]["Rounds"] == format_count(ROUNDS)
    assert seen["liveAfter"]["Epsilon"] == format_upper(run.epsilon)
    assert seen["liveAfter"]["Test accuracy"] == format_percent(run.last("test_accuracy"))


def test_pages_fit_a_phone_and_dark_is_dark(seen: dict[str, Any]) -> None:
    assert [page for page, (needed, there) in seen["widths"].items() if needed > there] == []
    assert sum(int(part) for part in re.findall(r"\d+", seen["dark"])[:3]) < 150
    assert sum(int(part) for part in re.findall(r"\d+", seen["phone"])[:3]) > 600


def test_it_works_without_its_script(seen: dict[str, Any]) -> None:
    rows, epsilon = seen["withoutScript"]
    assert rows == 1
    assert epsilon == format_upper(accounting.gaussian(noise=2, steps=10).epsilon(delta=1e-5), digits=4)
