"""The compose file: well formed, with commands that the programs take; no node sees data, no app sees a key."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="needs sightline[flower]: make flower-test")
pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "docker-compose.yml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
SITES, NODES, NODE_APPS = ([f"{kind}-{number}" for number in range(3)] for kind in ("site", "node", "node-apps"))
APPS = ("apps", *NODE_APPS)
CONSTRAINTS = ("constraints-flower.txt", "constraints-torch.txt")
PAGE = (DEPLOY.parent / "docs" / "deployment.md").read_text()


def mounted(name):
    """What a service sees: its own path -> the volume or the folder beside the file."""
    return {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES[name]["volumes"]}


def test_a_server_and_three_sites():
    assert set(SERVICES) == {"server", "apps", *SITES, *NODES, *NODE_APPS}
    assert all(service["image"] == "sightline:local" for service in SERVICES.values())


def test_every_volume_and_network_is_declared():
    plain = yaml.safe_load(FILE.read_text())
    named = {source for name in SERVICES for source in mounted(name).values() if not source.startswith(".")}
    assert named == set(plain["volumes"])
    assert {net for service in SERVICES.values() for net in service.get("networks", ())} == set(plain["networks"])


def test_data_are_where_no_network_is():
    for number in range(3):
        site, asks = SERVICES[f"site-{number}"], SERVICES[f"node-apps-{number}"]
        assert site["network_mode"] == "none"
        assert "networks" not in site
        assert mounted(f"site-{number}")["/site"] == f"./sites/site-{number}"
        for name in (f"node-{number}", f"node-apps-{number}"):
            assert not any("sites" in source or "counter" in source for source in mounted(name).values())
        assert mounted(f"site-{number}")["/run/sightline"] == mounted(f"node-apps-{number}")["/run/sightline"]
        assert site["user"].split(":")[1] == asks["user"].split(":")[1]  # the socket is for the group
        assert asks["network_mode"] == f"service:node-{number}"


def test_apps_run_as_users_of_their_own_and_see_no_key():
    """An app ran as the SuperLink's user: it could rewrite `register.toml` and read `server.key`."""
    keepers, apps = ({SERVICES[name]["user"] for name in names} for names in (("server", *SITES, *NODES), APPS))
    assert {user.split(":")[0] for user in keepers}.isdisjoint(user.split(":")[0] for user in apps)
    for name in ("server", *NODES):
        command = SERVICES[name]["command"]
        assert command[command.index("--isolation") + 1] == "process"
        assert "--superexec-auth-secret-file" in command
    for name in APPS:
        assert SERVICES[name]["command"][0] == "flower-superexec"
        assert "--allow-runtime-dependency-installation" not in SERVICES[name]["command"]
        keys = [source for source in mounted(name).values() if source.startswith("./keys")]
        assert all(key == "./keys/ca.crt" or key.endswith("apps.secret") or "node-apps-" in key for key in keys)
    assert all("./server" not in mounted(name).values() for name in SERVICES if name != "server")


def test_the_register_is_read_only_and_only_the_apps_see_it():
    seen = [mount for service in SERVICES.values() for mount in service["volumes"] if "register" in mount]
    assert seen == ["./register.toml:/register.toml:ro"]
    assert "./register.toml" in mounted("apps").values()


def test_the_server_is_published_on_loopback_only():
    """Compose published port 8000 on all interfaces."""
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "server": ["127.0.0.1:8000:8000"]
    }


def test_the_page_has_the_same_commands_and_users():
    """What the page says that an app cannot do holds by these options, users and modes, in both."""
    for option in ("--isolation process", "--superexec-auth-secret-file", "--host 127.0.0.1", "--port 9094"):
        assert option in PAGE
    assert "no app and no node can change" not in PAGE
    owner = {}
    for user, globs in re.findall(r"chown (?:-R )?(\d+)(?::\d+)? ([^;\n]+)", PAGE):
        owner |= dict.fromkeys(globs.split(), user)
    for name, service in SERVICES.items():
        for source in (source for source in mounted(name).values() if source.startswith("./")):
            path = f"deploy/{source.removeprefix('./')}"
            given = {user for pattern, user in owner.items() if fnmatch(path, pattern)}
            wanted = "0" if source == "./register.toml" else service["user"].split(":")[0]
            assert given == {wanted} or source == "./keys/ca.crt", (name, source)


def test_the_counter_is_not_where_the_state_is():
    for name in SITES:
        assert mounted(name)["/counter"] != mounted(name)["/site"]


def test_every_private_key_is_in_one_service():
    keys = [source for name in SERVICES for source in mounted(name).values() if source.startswith("./keys")]
    private = [key for key in keys if key != "./keys/ca.crt"]
    # the server's certificate and key, three nodes' keys, and a copy of a secret for each SuperExec and whom it serves
    assert len(private) == len(set(private)) == 5 + 2 * 4


@pytest.mark.parametrize("name", ["server", "apps", "site-0", "node-0", "node-apps-0"])
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
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == {"pyproject.toml", "setup.py", "README.md", "LICENSE", "src", *CONSTRAINTS}
    assert all((DEPLOY.parent / name).exists() for name in names)
    first, *kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert first == "*"
    assert {name.removeprefix("!") for name in kept} == names


def test_the_image_installs_by_hash_and_holds_compiled_kernels():
    """Without `setup.py` and a compiler the image had no compiled kernels."""
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"apt-get install .*\bgcc\b", image)
    assert "training/compiled/kernels/*.so" in image  # the build ends without them
    for name in CONSTRAINTS:
        assert re.search(rf"--require-hashes .*-r /src/{name}", image)
    assert re.findall(r"^FROM (\S+)", image, re.MULTILINE) == ["${BASE}", "${BASE}"]


def has_compose():
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not here")
def test_docker_takes_the_file():
    told = subprocess.run(["docker", "compose", "-f", str(FILE), "config", "--quiet"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
