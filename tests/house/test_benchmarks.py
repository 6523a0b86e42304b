"""With --json the benchmarks print only JSON lines on stdout."""

import json
import sys

from benchmarks import __main__ as benchmarks
from benchmarks import groups_scale


def test_json_lines_and_nothing_else(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--json", "groups_scale"])
    benchmarks.main()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == "groups_scale"


def test_what_a_benchmark_prints_on_the_way_is_not_on_stdout(monkeypatch, capsys):
    monkeypatch.setattr(groups_scale, "run", lambda: print("on the way") or {"name": "groups_scale"})
    assert benchmarks.measured("groups_scale") == {"name": "groups_scale"}
    assert capsys.readouterr() == ("", "on the way\n")
