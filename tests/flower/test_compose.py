"""The compose file: it is well formed, its commands are ones that the programs take, and no node sees data."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="needs sightline[flower]: make flower-test")
pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "docker-compose.yml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
SITES, NODES = ([f"{kind}-{number}" for number in range(3)] for kind in ("site", "node"))


def mounted(name):
    """What a service sees: its own path -> the volume or the folder beside the file."""
    return {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES[name]["volumes"]}


def test_a_server_and_three_sites():
    assert set(SERVICES) == {"server", *SITES, *NODES}
    assert all(service["image"] == "sightline:local" for service in SERVICES.values())


def test_every_volume_and_network_is_declared():
    plain = yaml.safe_load(FILE.read_text())
    named = {source for name in SERVICES for source in mounted(name).values() if not source.startswith(".")}
    assert named == set(plain["volumes"])
    assert {net for service in SERVICES.values() for net in service.get("networks", ())} == set(plain["networks"])


def test_data_are_where_no_network_is():
    for number in range(3):
        site, node = SERVICES[f"site-{number}"], SERVICES[f"node-{number}"]
        assert site["network_mode"] == "none"
        assert "networks" not in site
        assert mounted(f"site-{number}")["/site"] == f"./sites/site-{number}"
        assert not any("sites" in source or "counter" in source for source in mounted(f"node-{number}").values())
        assert mounted(f"site-{number}")["/run/sightline"] == mounted(f"node-{number}")["/run/sightline"]
        assert site["user"].split(":")[0] != node["user"].split(":")[0]
        assert site["user"].split(":")[1] == node["user"].split(":")[1]  # the socket is for the group


def test_the_counter_is_not_where_the_state_is():
    for name in SITES:
        assert mounted(name)["/counter"] != mounted(name)["/site"]


def test_every_private_key_is_in_one_service():
    keys = [source for name in SERVICES for source in mounted(name).values() if source.startswith("./keys")]
    private = [key for key in keys if key != "./keys/ca.crt"]
    assert len(private) == len(set(private)) == 5  # the server's certificate and key, and three nodes' keys


@pytest.mark.parametrize("name", ["server", "site-0", "node-0"])
def test_the_programs_take_their_commands(name):
    program, *words = SERVICES[name]["command"]
    inner = [word for word in words[:2] if not word.startswith(("-", "/"))]
    ours = [sys.executable, "-m", "sightline"]
    line = [*(ours if program == "sightline" else [str(Path(sys.executable).parent / program)]), *inner, "--help"]
    told = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert told.returncode == 0
    for option in [word for word in words if word.startswith("--")]:
        assert option in told.stdout + told.stderr


def test_the_users_are_those_of_the_image():
    image = (DEPLOY / "Dockerfile").read_text()
    for service in SERVICES.values():
        user, group = service["user"].split(":")
        assert f"--uid {user} " in image
        assert f"--gid {group} " in image


def test_the_image_holds_the_package_and_neither_keys_nor_data():
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == {"pyproject.toml", "README.md", "LICENSE", "constraints-flower.txt", "src"}
    assert all((DEPLOY.parent / name).exists() for name in names)
    first, *kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert first == "*"
    assert {name.removeprefix("!") for name in kept} == names


def has_compose():
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not here")
def test_docker_takes_the_file():
    told = subprocess.run(["docker", "compose", "-f", str(FILE), "config", "--quiet"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
