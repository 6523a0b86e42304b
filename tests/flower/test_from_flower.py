"""docs/flower.md: the app with `PrivateStrategy` runs on the simulation engine, and what it writes is its account."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.accounting import epsilon
from sightline.ledger import read_ledger

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
pytest.importorskip("ray", reason="needs sightline[flower]: make flower-test")

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


def test_the_app_of_the_page_runs(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "app.py").write_text(code)
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = re.findall(r"weights \[(.*?)\], epsilon (\S+) for each of the 20 clients", done.stdout)
    rows = read_ledger(tmp_path / "rounds.sqlite")
    assert len(rows) == 12
    spent = rows.epsilon("clients", "public", 1e-2)
    assert spent == epsilon({rows[1].event: 6}, 1e-2)
    assert 7.9 < spent <= 8
    assert told[1] == f"{spent:.2f}"
    found = [float(number) for number in told[0].split()]
    assert all(abs(one - true) < 1.5 for one, true in zip(found, (1.0, -2.0, 0.5), strict=True))
