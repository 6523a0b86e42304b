"""The gallery: every file has its head and is an experiment, every command exists, the one page follows the others."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.gallery import commands
from experiments.overview import MISSING, SYSTEMS, write_overview
from sightline.cli.experiments import command
from sightline.config import read
from sightline.config.exhibit import Exhibit, exhibits
from sightline.errors import InvalidInput

ROOT = Path(__file__).parents[2]


def test_every_system_is_in_the_gallery():
    assert {exhibit.system for exhibit in exhibits(ROOT / "experiments")} == set(SYSTEMS)


def test_every_file_is_an_experiment_with_a_name_of_its_own():
    names = [read(exhibit.file).name for exhibit in exhibits(ROOT / "experiments")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("line", commands())
def test_every_command_is_a_module_of_ours(line: str):
    python, flag, module, *_ = shlex.split(line)
    assert (python, flag) == ("python", "-m")
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_a_file_without_a_head_is_named(tmp_path: Path):
    (tmp_path / "bare.toml").write_text("rounds = 1\n")
    with pytest.raises(InvalidInput, match="its first lines are not"):
        Exhibit.read(tmp_path / "bare.toml")


def test_the_list_and_its_json_agree():
    listed = CliRunner().invoke(command, ["groups", "--folder", str(ROOT / "experiments")])
    found = json.loads(CliRunner().invoke(command, ["groups", "--folder", str(ROOT / "experiments"), "--json"]).output)
    assert found["experiments"]
    for entry in found["experiments"]:
        assert Path(entry["file"]).name in listed.output.replace("\n", "")


def sections(page: Path) -> list[str]:
    return re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)


def test_the_page_is_current(tmp_path: Path):
    write_overview(tmp_path / "page.md")
    shown, fresh = sections(ROOT / "docs" / "reproduction.md"), sections(tmp_path / "page.md")
    assert len(shown) == len(fresh) == 1 + len(SYSTEMS)
    for old, new in zip(shown, fresh, strict=True):
        assert old == new or MISSING in old, "run: python -m experiments --page-only"
