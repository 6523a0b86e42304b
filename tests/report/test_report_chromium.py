"""The page in a real browser: it runs silently, fits a phone, and reads out values by keyboard."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_runs import FACTS, metrics, quickstart, release, spent, write

from sightline.apps.report import RunView, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
    "--dump-dom",
]


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what the console said."""
    address = page.resolve().as_uri()
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *flags, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


PROBE = """<!doctype html><iframe id="frame" src="report.html" width="%d" height="900"></iframe><pre id="out"></pre>
<script>
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const plot = page.querySelector("#chart-accuracy .plot"), tip = plot.querySelector(".tip");
  const press = (key) => { plot.dispatchEvent(new view.KeyboardEvent("keydown", {key, bubbles: true})); return tip.innerText; };
  plot.focus();
  const asked = {last: press("End"), first: press("Home"), second: press("ArrowRight")};
  press("Escape");
  page.querySelectorAll("details").forEach((details) => { details.open = true; });
  const escaped = tip.hidden;
  const box = plot.querySelector(".frame").getBoundingClientRect();
  plot.dispatchEvent(new view.PointerEvent("pointermove", {clientX: box.right - 1, clientY: box.top + 5, bubbles: true}));
  document.getElementById("out").textContent = JSON.stringify({
    ready: root.dataset.ready, scroll: root.scrollWidth, width: root.clientWidth, asked, escaped, hovered: tip.innerText,
    focused: page.activeElement === plot, height: plot.getBoundingClientRect().height,
    background: view.getComputedStyle(page.body).backgroundColor,
  });
};
</script>"""


def probe(directory: Path, profile: Path, width: int, *flags: str) -> tuple[dict[str, Any], list[str]]:
    """Load the page in a frame of that width, use it, and tell what happened."""
    page = directory / "probe.html"
    page.write_text(PROBE % width, encoding="utf-8")
    flags = ("--allow-file-access-from-files", "--virtual-time-budget=4000", *flags)
    dom, console = browse(page, profile, *flags)
    found = re.search(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1])), console


def test_it_runs_silently_on_a_phone_and_reads_values_by_keyboard(tmp_path: Path) -> None:
    directory = quickstart(tmp_path / "run")
    write_report(directory)
    told, console = probe(directory, tmp_path / "profile", 375)
    rounds = RunView.read(directory).rounds
    assert console == []
    assert told["ready"] == "yes"
    assert told["scroll"] <= told["width"] <= 375
    assert told["height"] > 100
    for key, row in (("first", rounds[0]), ("second", rounds[1]), ("last", rounds[-1])):
        assert f"round {row['round']}" in told["asked"][key]
        assert f"{100 * row['test_accuracy']:.1f} %" in told["asked"][key]
        assert f"{100 * row['client_accuracy_worst']:.1f} %" in told["asked"][key]
    assert told["focused"]
    assert told["escaped"]
    assert "round 30" in told["hovered"]


def test_dark_is_dark_and_hostile_words_neither_run_nor_overflow(tmp_path: Path) -> None:
    hostile = "<script>document.documentElement.dataset.hacked=1</script>" + "W" * 300
    facts = FACTS | {"name": hostile, "model": hostile, "trusted": [hostile], "observers": {hostile: "public"}}
    facts |= {"caveats": [hostile], "versions": {hostile: hostile}}
    rows = [metrics(n, 3, spent(n, 3, {hostile: 3.0})) for n in (1, 2, 3)]
    directory = write(tmp_path / "run", facts, rows, [release(1, source=hostile, what=hostile)], settings=hostile)
    write_report(directory)
    told, console = probe(directory, tmp_path / "profile", 375, "--blink-settings=preferredColorScheme=0")
    assert console == []
    assert told["ready"] == "yes"
    assert told["scroll"] <= told["width"]
    assert sum(int(part) for part in re.findall(r"\d+", told["background"])[:3]) < 150
    dom, console = browse(directory / "report.html", tmp_path / "second")
    assert console == []
    assert "data-hacked" not in dom
    assert "data-ready" in dom


LAYOUT = """<!doctype html><pre id="out"></pre><script>
const widths = %s, found = [];
widths.forEach((width) => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = "report.html";
  frame.onload = () => {
    const page = frame.contentDocument, brand = page.querySelector(".brand"), rows = new Map();
    page.querySelectorAll(".figures dd:not(.note)").forEach((value) => {
      const foot = page.createElement("span");
      foot.style.display = "inline-block";
      value.append(foot);
      const top = Math.round(value.parentElement.getBoundingClientRect().top);
      rows.set(top, [...(rows.get(top) || []), foot.getBoundingClientRect().bottom]);
    });
    found.push({
      width, brand: brand.getBoundingClientRect().height, mark: page.querySelector(".mark").getBoundingClientRect().width,
      feet: [...rows.values()], scroll: page.documentElement.scrollWidth,
      spill: [...page.querySelectorAll(".figures dd")].some((value) => value.scrollWidth > value.clientWidth + 1),
    });
    if (found.length === widths.length) out.textContent = JSON.stringify(found);
  };
  document.body.append(frame);
});
</script>"""


def test_the_logo_is_whole_and_the_figures_stand_on_one_line_at_every_width(tmp_path: Path) -> None:
    """With as many sections as a page can have: the names in its bar leave the logo no room to spare."""
    steps = {"control": {"energy": 1}, "resources": {"model": "wireless"}, "stop_at_epsilon": 9.0}
    extra = {"tau": 4.0, "step_size": 0.1, "energy_joule": 1.0, "delay_seconds": 1.0}
    rows = [metrics(n, 9, spent(n, 9, {"public": 7.99})) | extra for n in range(1, 10)]
    load = [{"who": "client", "members": 24, "steps": 9, "steps_are": "rounds", "rate": 0.5}]
    directory = write(tmp_path / "run", FACTS | steps | {"load": load}, rows, [release(n) for n in range(1, 10)])
    write_report(directory)
    (directory / "layout.html").write_text(LAYOUT % [320, 375, 700, 850, 950, 1280], encoding="utf-8")
    flags = ("--allow-file-access-from-files", "--virtual-time-budget=4000")
    dom, _ = browse(directory / "layout.html", tmp_path / "profile", *flags)
    found = json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)[1]))  # type: ignore[index]
    for one in found:
        assert one["brand"] < 30, one
        assert one["mark"] >= 30, one
        assert all(max(feet) - min(feet) <= 1 for feet in one["feet"]), one
        assert one["scroll"] <= one["width"], one
        assert not one["spill"], one
