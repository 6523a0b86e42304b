"""`available` and `sightline datasets`: what is here, what is missing, how to get it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from data_files import write_images

from sightline.apps.cli.info import datasets_command as command
from sightline.data import available_datasets
from sightline.data.sources import SOURCES


def test_available_tells_the_files_that_lack(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", train=3, test=2)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    write_images(tmp_path / "fashion_mnist", train=3, test=2)
    states = {status.name: status for status in available_datasets(tmp_path)}
    assert list(states) == list(SOURCES)
    assert states["digits"].available
    assert states["digits"].looked_in == ""
    assert states["fashion_mnist"].available
    assert states["mnist"].missing == ("t10k-labels-idx1-ubyte.gz",)
    assert states["mnist"].looked_in == str(tmp_path / "mnist")
    assert len(states["emnist_letters"].missing) == 4
    (tmp_path / "emnist_letters").mkdir()
    for name in SOURCES["emnist_letters"].files[1]:
        (tmp_path / "emnist_letters" / name).touch()
    assert {s.name for s in available_datasets(tmp_path) if s.available} >= {"emnist_letters"}
    for status in states.values():
        assert status.how_to_get
        assert status.licence
        assert status.examples
        assert status.available == (not status.missing)


def test_the_command_prints_one_json_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["folder"] == str(tmp_path)
    assert [entry["name"] for entry in printed["datasets"]] == list(SOURCES)
    assert {entry["name"] for entry in printed["datasets"] if entry["available"]} == {"digits", "synthetic"}


def test_the_command_prints_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path))
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    for name in SOURCES:
        assert name in result.stdout
    assert str(tmp_path) in result.stdout
    assert "put train-images-idx3-ubyte.gz" in result.stdout
    assert command.name == "datasets"


def test_the_room_imports_nothing_heavy() -> None:
    code = "import sys, sightline.data, sightline.apps.cli.info; sightline.data.available_datasets(); " + (
        "print([name for name in ('torch', 'scipy', 'sklearn', 'PIL', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
