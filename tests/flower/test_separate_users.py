"""Apps run as users of their own: what an app that came over the network can do to the server and to a node."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
from tests.flower.deployment import BIN, Deployment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of several users are started"),
]

USERS = {"superlink": 2001, "apps": 2004, "node": 2003, "node-apps": 2005}
PROGRAMS = ("flower-superlink", "flower-superexec", "flower-supernode", "flwr-serverapp", "flwr-clientapp", "flwr")

SERVER = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def tried(deed):
    try:
        deed()
    except OSError as error:
        return type(error).__name__
    return "done"

@app.main()
def main(grid, context):
    path = {name: Path(str(value)) for name, value in context.run_config.items() if name != "pid"}
    other = path["register"].with_name("mine.toml")
    found = {
        "read the register": tried(path["register"].read_bytes),
        "write the register": tried(lambda: path["register"].write_text("mine")),
        "replace the register": tried(lambda: (other.write_text("mine"), other.replace(path["register"]))),
        "read the server's key": tried(path["key"].read_bytes),
        "open the database": tried(lambda: path["database"].open("r+b").close()),
        "read the SuperLink's secret": tried(path["secret"].read_bytes),
        "signal the SuperLink": tried(lambda: os.kill(context.run_config["pid"], 0)),
        "write its own results": tried(lambda: Path("results").write_text("mine")),
    }
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    words = RecordDict({"words": ConfigRecord({"key": str(path["node-key"])})})
    (answer,) = grid.send_and_receive([Message(words, nodes[0], MessageType.TRAIN)])
    found["read the node's key"] = str(answer.content["words"]["did"])
    print("found", json.dumps(found), flush=True)
"""
CLIENT = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def answer(message, context):
    try:
        did = Path(message.content["words"]["key"]).read_bytes() and "done"
    except OSError as error:
        did = type(error).__name__
    return Message(RecordDict({"words": ConfigRecord({"did": did})}), reply_to=message)
"""


def runs_for_others(python):
    """Whether another user can start this interpreter; capabilities are gone before it is looked up."""
    line = f"import os; os.setgroups([]); os.setgid(2004); os.setuid(2004); os.execv({str(python)!r}, ['p', '-c', ''])"
    return subprocess.run([sys.executable, "-c", line], stderr=subprocess.DEVNULL).returncode == 0


def programs_for_others(folder):
    """Flower's programs in a folder that every user can enter, by an interpreter that every user can start."""
    if runs_for_others(sys.executable):
        return BIN
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    if not system.exists() or not runs_for_others(system):
        pytest.skip(f"other users cannot start {sys.executable}, and there is no {system}")
    folder.mkdir()
    known = {point.name: point for point in entry_points(group="console_scripts")}
    paths = [path for path in sys.path if "site-packages" in path or path.endswith("src")]
    for name in PROGRAMS:
        where = known[name]
        text = (
            f"import sys\nsys.path[:0] = {paths!r}\nfrom {where.module} import {where.attr} as main\nsys.exit(main())\n"
        )
        (folder / name).write_text(f"#!{system}\n{text}")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def folder():
    """A folder that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="sightline-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def write_app(folder, settings):
    project = {
        "project": {"name": "attack", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
        "tool": {"flwr": {"app": {"publisher": "nobody", "config": settings,
                                  "components": {"serverapp": "attack.server:app", "clientapp": "attack.client:app"}}}},
    }  # fmt: skip
    (folder / "attack").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    (folder / "attack" / "__init__.py").touch()
    (folder / "attack" / "server.py").write_text(SERVER)
    (folder / "attack" / "client.py").write_text(CLIENT)


def what_an_app_can_do(folder, users):
    """Start a server and a node with these users, send them the app, and return what it could do."""
    deployment = Deployment(folder, programs=programs_for_others(folder / "bin"), users=users)
    try:
        deployment.superlink()
        key = deployment.register("site-0")
        deployment.supernode("node", key, 'site-socket="site.socket"', apps="node-apps")
        register, home = deployment.write_register([key], [600]), deployment.home_of("superlink")
        settings = {"register": str(register), "key": str(home / "server.key"), "database": str(home / "superlink.db"),
                    "secret": str(home / "superexec.secret"), "pid": deployment.processes["superlink"].pid,
                    "node-key": str(deployment.home_of("node") / "site-0")}  # fmt: skip
        write_app(folder / "app", settings)
        before = register.read_text()
        started = deployment.flwr("run", folder / "app", "mine", "--stream")
        (line,) = [line for line in started.stdout.splitlines() if line.startswith("found ")]
        return json.loads(line.removeprefix("found ")), register.read_text() == before
    finally:
        deployment.close()


FORBIDDEN = ("write the register", "replace the register", "read the server's key", "open the database",
             "read the SuperLink's secret", "signal the SuperLink", "read the node's key")  # fmt: skip


def test_an_app_can_do_nothing_to_the_server_nor_to_the_node(folder):
    """Under one user an app rewrote `register.toml` and read `server.key`, although the page said that none can."""
    found, untouched = what_an_app_can_do(folder, USERS)
    assert untouched
    assert {deed: found[deed] for deed in FORBIDDEN} == dict.fromkeys(FORBIDDEN, "PermissionError")
    assert found["read the register"] == found["write its own results"] == "done"


def test_under_one_user_it_can_do_all_of_it(folder):
    """The test above would see a deed that is done: with one user for all, every one is."""
    found, untouched = what_an_app_can_do(folder, {})
    assert not untouched
    assert set(found.values()) == {"done"}
