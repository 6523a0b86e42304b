"""The files for systemd and Docker Compose that `server init` and `site init` write: syntax, paths, users."""

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")
from sightline.errors import InvalidInput
from sightline.runtimes.flower import services
from tests.commands import command


def read_unit(path):
    """Return the sections of a unit, as an INI file."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string(path.read_text())
    return unit


def read_compose(path):
    """Return the one service of a Compose file: by YAML, and by its lines, whose values are JSON."""
    head, name, *lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert head == "services:"
    pairs = [line.strip().split(": ", 1) for line in lines]
    assert all(line.startswith("    ") and not line.startswith("     ") for line in lines)
    plain = {key: json.loads(value) if value[0] in '[{"' else value for key, value in pairs}
    try:
        import yaml
    except ImportError:
        return name.strip(" :"), plain
    (found,) = yaml.safe_load(path.read_text())["services"].items()
    assert {key: found[1][key] for key in ("command", "volumes", "user")} == {
        key: plain[key] for key in ("command", "volumes", "user")
    }
    return name.strip(" :"), plain


@pytest.fixture
def short():
    """Return a folder whose path leaves room for a Unix socket's."""
    with tempfile.TemporaryDirectory(prefix="sightline-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def made(short):
    """Return the folders of a server and a site, and what the commands printed."""
    tmp_path = short
    np.savez(tmp_path / "mary.npz", train_x=np.zeros((20, 4), dtype=np.float32), train_y=np.arange(20) % 2)
    more = ("--users", "", "--systemd", "--compose")
    told = [command("server", "init", "server", "--address", "127.0.0.1:8000", *more, cwd=tmp_path)]
    site = ("--data", "mary.npz", "--classes", "2", "--epsilon", "8", "--unit", "client")
    told.append(command("site", "init", "st mary", "--name", "mary", *site, *more, cwd=tmp_path))
    assert [done.returncode for done in told] == [0, 0], [done.stderr for done in told]
    return {"server": tmp_path / "server", "site": tmp_path / "st mary"}, "".join(done.stdout for done in told)


@pytest.mark.parametrize("kind", ["server", "site"])
def test_a_unit_starts_what_its_folder_holds(made, kind):
    folders, told = made
    (path,) = folders[kind].glob("*.service")
    assert path.name == {"server": "sightline-server-server.service", "site": "sightline-site-st-mary.service"}[kind]
    unit = read_unit(path)
    assert list(unit) == ["DEFAULT", "Unit", "Service", "Install"]
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words == [sys.executable, "-m", "sightline", kind, "start", str(folders[kind])]
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["User"]
    assert f"systemctl enable --now {path.name}" in told
    assert path.stat().st_mode & 0o022 == 0
    program = shutil.which("systemd-analyze")
    if program is not None:
        done = subprocess.run([program, "verify", "--man=no", str(path)], capture_output=True, text=True)
        assert path.name not in done.stderr


@pytest.mark.parametrize("kind", ["server", "site"])
def test_a_compose_file_mounts_the_folder_at_its_own_path(made, kind):
    folders, told = made
    name, service = read_compose(folders[kind] / "docker-compose.yml")
    folder = str(folders[kind])
    assert (name, service["command"]) == (kind, ["sightline", kind, "start", folder])
    assert service["volumes"] == [{"type": "bind", "source": folder, "target": folder}]
    assert service["user"] == f"{os.geteuid()}:{os.getegid()}"
    assert (service["cap_drop"], service["cap_add"]) == (["ALL"], [])
    assert "docker compose --file" in told


def test_separate_users_are_started_by_root(tmp_path):
    unit = read_unit(services.write_unit(tmp_path, "site", ["a", "b", "c"]))
    assert "User" not in unit["Service"]
    _, service = read_compose(services.write_compose(tmp_path, "site", ["a", "b", "c"]))
    assert service["user"] == "0:0"
    assert service["cap_add"] == list(services.CAPABILITIES)
    assert [mount["target"] for mount in service["volumes"]] == [str(tmp_path), "/etc/passwd", "/etc/group"]


def test_letters_with_a_meaning_are_plain_in_both_files(tmp_path):
    folder = tmp_path / 'a %i $HOME "b'
    folder.mkdir()
    line = read_unit(services.write_unit(folder, "site", []))["Service"]["ExecStart"]
    assert 'a %%i $$HOME \\"b"' in line
    text = services.write_compose(folder, "site", []).read_text()
    assert "$$HOME" in text
    assert "$HOME" not in text.replace("$$", "")
    odd = tmp_path / "a\nExecStart=b"
    odd.mkdir()
    with pytest.raises(InvalidInput, match="a unit cannot hold"):
        services.write_unit(odd, "site", [])
    assert not list(odd.iterdir())
