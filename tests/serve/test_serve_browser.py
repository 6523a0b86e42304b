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

from sightline import accounting
from sightline.engine.record import RunRecord
from sightline.report import Run
from sightline.report.numbers import count, percent, upper
from sightline.serve import Server
from tests.report.report_runs import handover, metrics, per_sample, quickstart, release, spent

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(NODE is None, reason="no node on this machine"),
    pytest.mark.skipif(not (HERE / "node_modules" / "playwright-core").is_dir(), reason="no Playwright: make browser"),
]

ROUNDS = 6


def go_on(directory: Path, ends: threading.Event) -> None:
    """Write a round every now and then, as a run at work does, then finish."""
    for number in range(2, ROUNDS + 1):
        ends.wait(0.4)
        record = RunRecord.open(directory)
        record.ledger().append([handover(number), release(number)])
        record.add_round(number, metrics(number, ROUNDS, spent(number, ROUNDS, {"public": 5.0})))
        if number == ROUNDS:
            record.remember({"status": "finished"})
        record.close()


def begin_when_looked_at(server: Server, directory: Path, ends: threading.Event) -> None:
    """Let the run go on once somebody has its page open: then it is in the server's memory."""
    while not server.site.live._entries.get(directory) and not ends.is_set():
        time.sleep(0.1)
    go_on(directory, ends)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("browser")
    quickstart(place / "quick", rounds=80, created="2026-11-15T20:05:17+00:00")
    quickstart(place / "sweep" / "prox", rounds=5, seed=1, algorithm="fedprox", created="2026-11-14T20:05:17+00:00")
    per_sample(place / "sample", rounds=5)
    quickstart(place / "live", rounds=1, status="running", rounds_planned=ROUNDS, created="2026-01-01T00:00:00+00:00")
    return place


@pytest.fixture(scope="module")
def seen(folder: Path) -> Iterator[dict[str, Any]]:
    ends = threading.Event()
    with Server(folder, host="127.0.0.1", port=0) as server:
        threads = [
            threading.Thread(target=server.serve_forever),
            threading.Thread(target=begin_when_looked_at, args=(server, folder / "live", ends)),
        ]
        for thread in threads:
            thread.start()
        try:
            words = [str(NODE), "browse.mjs", str(CHROMIUM), server.url]
            done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            yield json.loads(done.stdout)
        finally:
            ends.set()
            server.shutdown()
            for thread in threads:
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
        run = Run.read(folder / name)
        assert rows[name][3] == percent(run.last("test_accuracy"))
        assert rows[name][4].split()[0] == upper(run.epsilon)
    assert seen["filtered"] == ["sweep/\nprox"]
    assert seen["filteredAddress"].endswith("?q=prox")


def test_two_runs_are_chosen_by_keyboard_and_compared(seen: dict[str, Any], folder: Path) -> None:
    assert len(seen["chosen"]) == 2
    assert seen["counted"] == "2 chosen"
    assert [row[0] for row in seen["comparison"]] == seen["chosen"]
    for row in seen["comparison"]:
        run = Run.read(folder / row[0])
        assert percent(run.last("test_accuracy")) in row
        assert upper(run.epsilon) in row
    assert {"chart-by-rounds", "chart-by-epsilon", "chart-by-time", "chart-by-traffic"} <= set(seen["charts"])
    longest = max((Run.read(folder / name) for name in seen["chosen"]), key=lambda run: run.rounds_done)
    assert percent(longest.last("test_accuracy")) in seen["read"]


def test_the_report_page_shows_the_report(seen: dict[str, Any], folder: Path) -> None:
    run = Run.read(folder / "quick")
    assert seen["figures"]["Test accuracy"] == percent(run.last("test_accuracy"))
    assert seen["figures"]["Epsilon"] == upper(run.epsilon)
    assert seen["figures"]["Releases"] == count(len(run.ledger))


def test_the_matrix_answers_to_pointer_keys_and_search(seen: dict[str, Any], folder: Path) -> None:
    run = Run.read(folder / "quick")
    value = upper(run.epsilon)
    assert "public" in seen["hovered"][0]
    assert f"epsilon {value}" in seen["hovered"][0]
    assert "80 releases of server up to round 80, seen directly" in seen["hovered"][1]
    assert seen["moved"][0].startswith("Of client-0..23, client-0..23 can learn at most")
    assert "client-1 seen by client-0" in seen["moved"][1]
    assert "What others can learn of it" in seen["searched"]
    assert value in seen["searched"]


def test_the_ledger_is_walked_and_searched(seen: dict[str, Any]) -> None:
    assert [int(cell.split()[0]) for cell in seen["ledger"]] == list(range(100))
    assert [int(cell.split()[0]) for cell in seen["later"]] == list(range(100, 160))
    assert seen["barRound"] == "60"
    assert seen["found"] == "160 of 160 releases hold “clipped updates”"


def test_the_calculator_follows_its_sliders(seen: dict[str, Any]) -> None:
    first = accounting.balanced(noise=2, steps=1000, uses=100).epsilon(delta=1e-5)
    assert seen["calculator"]["this scheme"] == upper(first, digits=4)
    noise = float(seen["turned"]["noise"])
    assert noise > 2
    turned = accounting.balanced(noise=noise, steps=1000, uses=100)
    assert seen["turned"]["numbers"]["this scheme"] == upper(turned.epsilon(delta=1e-5), digits=4)
    poisson = accounting.poisson(noise=noise, rate=0.1, steps=1000).epsilon(delta=1e-5)
    assert seen["turned"]["numbers"]["Poisson sampling"] == upper(poisson, digits=4)
    assert "noise=-3" in seen["mistake"]
    assert seen["knobs"] == ["noise", "parts", "rate", "steps", "delta"]


def test_a_run_at_work_is_followed_to_its_end(seen: dict[str, Any], folder: Path) -> None:
    run = Run.read(folder / "live")
    assert run.rounds_done == ROUNDS
    assert seen["liveBefore"] == "running"
    assert seen["liveAfter"]["Rounds"] == count(ROUNDS)
    assert seen["liveAfter"]["Epsilon"] == upper(run.epsilon)
    assert seen["liveAfter"]["Test accuracy"] == percent(run.last("test_accuracy"))


def test_pages_fit_a_phone_and_dark_is_dark(seen: dict[str, Any]) -> None:
    assert [page for page, (needed, there) in seen["widths"].items() if needed > there] == []
    assert sum(int(part) for part in re.findall(r"\d+", seen["dark"])[:3]) < 150
    assert sum(int(part) for part in re.findall(r"\d+", seen["phone"])[:3]) > 600


def test_it_works_without_its_script(seen: dict[str, Any]) -> None:
    rows, epsilon = seen["withoutScript"]
    assert rows == 1
    assert epsilon == upper(accounting.gaussian(noise=2, steps=10).epsilon(delta=1e-5), digits=4)
