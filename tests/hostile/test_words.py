"""Words of others: on a terminal they are spelt out, on a page they are text, in a path they stay where they are."""

import json
import re
import unicodedata
import warnings
from html.parser import HTMLParser

import pytest

from sightline.accounting.accountant import Curve
from sightline.api import Run
from sightline.apps.cli.main import run_arguments
from sightline.apps.report.comparison import compare_runs
from sightline.apps.report.comparison_figure import draw_comparison
from sightline.apps.sweep import folder_name, list_jobs
from sightline.config import read
from sightline.errors import HIDDEN, InvalidInput, printable
from sightline.ledger import Ledger
from tests.report.report_runs import FACTS, SETTINGS, metrics, release, spent, write

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b5m"
BIDI = "\u202egnp.exe\u2066\u200f\ufeff"
MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
RICH = "[bold]x[/italic] [link=http://evil.example]y[/link]"
WORD = f"{ESCAPES}{BIDI}{MARKUP}{RICH}\r\nsightline: epsilon 0.1\udcff"
"""As a command line may hold it: bytes that are no text come as half characters."""
EVIL = f"{ESCAPES}{BIDI}{MARKUP}{RICH}\r\nsightline: epsilon 0.1\x00\ud800"


def harmless(text):
    """No character that a terminal obeys or hides, but for the ends of lines."""
    return not [one for one in text if one != "\n" and unicodedata.category(one) in HIDDEN]


def test_every_hidden_character_is_spelt_out():
    every = "".join(chr(point) for point in range(0x11000))
    shown = printable(every)
    assert harmless(shown)
    assert "\n" not in shown
    assert printable("Grüße, 日本 ε ≤ 8") == "Grüße, 日本 ε ≤ 8"


@pytest.mark.parametrize(
    "words",
    [
        ["run", f"no{ESCAPES}file.toml"],
        ["run", "x.toml", "--set", f"name={WORD}"],
        ["run", "x.toml", "--set", f"{WORD}=1"],
        ["run", "x.toml", "--set", f"algorithm.name={WORD}"],
        ["run", "x.toml", "--set", f"data.source={WORD}"],
        ["report", f"no{WORD}run"],
        ["compare", f"no{WORD}run"],
        [f"re{WORD}port"],
        ["run", f"--re{WORD}sume", "x.toml"],
        ["account", "--ledger", f"no{ESCAPES}"],
        ["sweep", "x.toml", "--over", f"name={WORD}"],
        ["audit", f"no{ESCAPES}{BIDI}"],
        ["serve", "--runs", f"no{ESCAPES}"],
        ["serve", "--host", f"no{ESCAPES}"],
    ],
    ids=lambda words: " ".join(words)[:12],
)
def test_no_mistake_commands_the_terminal(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text("rounds = 1")
    assert run_arguments(words) in (1, 2)
    said = capsys.readouterr()
    assert harmless(said.err + said.out)
    assert words[0] == "sweep" or len(said.err.strip().splitlines()) == 1


def test_a_file_that_holds_them_is_told_in_one_line(tmp_path):
    path = tmp_path / "x.toml"
    for text in (f"rounds = 1\nname = {json.dumps(EVIL)}", f"rounds = 1\n[privacy]\nunit = {json.dumps(BIDI)}"):
        path.write_text(text.replace("\\ud800", ""))
        with pytest.raises(InvalidInput) as caught:
            read(path)
        assert harmless(str(caught.value))
        assert "\n" not in str(caught.value)


@pytest.fixture
def evil_runs(tmp_path):
    """Two runs whose facts and settings are hostile words."""
    facts = {name: EVIL if isinstance(value, str) and name not in ("unit", "adjacency", "accountant", "status") else value
             for name, value in FACTS.items()}  # fmt: skip
    facts |= {"observers": {EVIL: "public"}, "trusted": [EVIL], "notes": [EVIL], "caveats": [EVIL]}
    made = []
    for number in (1, 2):
        rows = [metrics(n, 2, spent(n, 2, {EVIL: 3.0})) for n in (1, 2)]
        releases = [release(1, source=EVIL, what=EVIL), release(2, source=EVIL, what=EVIL)]
        odd = json.dumps(f"{number}{EVIL}").replace("\\ud800", "").replace("\\u0000", "")
        settings = SETTINGS.replace('"digits"', odd) + f"[model]\nname = {odd}\n"
        made.append(write(tmp_path / "runs" / str(number), facts, rows, releases, settings=settings))
    return made


def test_tables_of_runs_are_printed_as_text(evil_runs, capsys):
    assert run_arguments(["compare", *map(str, evil_runs)]) == 0
    said = capsys.readouterr()
    assert harmless(said.out + said.err)
    shown = re.sub(r"\s+", "", said.out)
    assert "[/italic]" in shown
    assert run_arguments(["report", str(evil_runs[0])]) == 0
    said = capsys.readouterr()
    assert harmless(said.out + said.err)


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def only_text(html, *, scripts=0):
    """Nothing of what came in became an element, an attribute or a script."""
    found = Elements(html).found
    own = [attributes for tag, attributes in found if tag == "script" and attributes.get("type") != "application/json"]
    assert len(own) == scripts
    assert not [tag for tag, _ in found if tag in ("img", "iframe", "object", "embed", "base")]
    assert not [name for _, attributes in found for name in attributes if name.startswith("on")]
    assert "<script>alert" not in html
    links = [attributes["href"] for _, attributes in found if attributes.get("href")]
    assert not [link for link in links if re.match(r"\s*(javascript|data:text)", link)]


def test_pages_of_runs_comparisons_and_sweeps_hold_text(evil_runs, tmp_path):
    assert run_arguments(["report", str(evil_runs[0])]) == 0
    only_text((evil_runs[0] / "report.html").read_text(), scripts=1)
    draw_comparison(compare_runs(evil_runs), tmp_path / "page.html", title=EVIL)
    only_text((tmp_path / "page.html").read_text(), scripts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fonts lack the stranger characters
        draw_comparison(compare_runs(evil_runs), tmp_path / "page.svg", title=EVIL)
    assert "<script>alert" not in (tmp_path / "page.svg").read_text()


def test_values_that_show_themselves_hold_text(evil_runs):
    odd = [release(1, source=EVIL, what=EVIL, audience=frozenset({MARKUP.replace(",", "")}))]
    only_text(Ledger(odd)._repr_html_())
    only_text(Curve([1.0, 2.0], delta=1e-5)._repr_html_())
    only_text(Run(evil_runs[0])._repr_html_())


@pytest.mark.parametrize(
    "word",
    ["name=../../x", "name=/etc/x", "name=..", "name=.hidden", f"name={ESCAPES}", f"name={BIDI}", "name=a/b", "name=" + "x" * 500, "../x=1"],
    ids=repr,
)  # fmt: skip
def test_folders_of_a_sweep_stay_in_it(word, tmp_path):
    name = folder_name([word])
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & {"/", "\\", "\0"}
    assert not name.startswith(".")
    assert len(name) < 200
    (tmp_path / "x.toml").write_text("rounds = 1")
    for job in list_jobs(tmp_path / "x.toml", over=[word], seeds=None, given=[], out=tmp_path / "out"):
        assert job.directory.resolve().parent == (tmp_path / "out").resolve()
