"""A server and its sites from empty folders: init, invite, join, run; what a bad file does."""

import datetime
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import InvalidInput

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
from sightline.config import parse, to_toml
from sightline.runtimes.flower import federation, processes
from tests.commands import command
from tests.flower.cases import changed, privacy
from tests.flower.deployment import free_port
from tests.flower.test_separate_users import runs_for_others

ROUNDS, SITES = 2, ("mary", "john")
EXPERIMENT = changed(
    name="two",
    rounds=ROUNDS,
    data={"source": "digits", "clients": 2, "partition": "iid", "train_samples": 90},
    model={"name": "linear"},
    sampling={"clients": {"scheme": "full"}},
    privacy=privacy("client", "client", noise_multiplier=8.0),
)
POLICY = {"classes": 10, "unit": "client", "epsilon": 8.0, "delta": 1e-5}


@pytest.fixture
def invited(tmp_path):
    """Return the folders of a server and of two sites, and the invitation."""
    server = tmp_path / "server"
    federation.init_server(server, f"127.0.0.1:{free_port()}", None, [])
    requests = [federation.init_site(tmp_path / name, name, POLICY, b"", 90, []) for name in SITES]
    federation.write_invitation(server, parse(EXPERIMENT), federation.assign_numbers([], requests))
    return server, tmp_path / "mary", tmp_path / "john", server / federation.INVITATION


def joined(site, path):
    invitation, content, _ = federation.read_invitation(path)
    return federation.join_server(site, invitation, content)


def test_sites_get_numbers_in_order_and_keep_them(invited):
    server, mary, john, path = invited
    assert (joined(mary, path), joined(john, path)) == (0, 1)
    known = federation.read_sites(server)
    again = federation.SiteRequest(name="john", key=federation.make_node_key("john")[1], examples=7)
    more = federation.assign_numbers(known, [again])
    assert [(site.client, site.name, site.examples) for site in more] == [(0, "mary", 90), (1, "john", 7)]
    with pytest.raises(InvalidInput, match="one name or one key"):
        federation.assign_numbers([], [again, again])


def write_states(path, labels):
    rows = [f"{number % 7},{number % 3},{labels[number % len(labels)]}" for number in range(30)]
    path.write_text("\n".join(["age,dose,state", *rows]), encoding="utf-8")


def test_named_classes(tmp_path):
    """It said source = "digits", features = 60 and classes = 10 to the owner of a table with two inputs."""
    names, server = ["healthy", "ill", "unsure"], tmp_path / "server"
    federation.init_server(server, f"127.0.0.1:{free_port()}", None, [])
    write_states(tmp_path / "states.csv", names)
    init = ("--data", "states.csv", "--label", "state", "--epsilon", "8", "--unit", "client")
    for site, classes in (
        ("mary", "healthy,ill,unsure"),
        ("john", "healthy, ill, unsure"),
        ("anne", "ill,healthy,unsure"),
    ):
        done = command("site", "init", site, *init, "--classes", classes, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"{site}/{site}.request.toml" in done.stdout
    with np.load(tmp_path / "mary" / "site" / "data.npz") as kept:
        assert kept["train_y"].tolist() == [0, 1, 2] * 10
    for wrong in ("healthy", "healthy,,ill", "ill,ill"):
        told = command("site", "init", "other", *init, "--classes", wrong, cwd=tmp_path)
        assert f"--classes={wrong}: is neither a number nor a list" in told.stderr
    assert (
        "label 'unsure' is not one of them"
        in command("site", "init", "other", *init, "--classes", "healthy,ill", cwd=tmp_path).stderr
    )
    (tmp_path / "two.toml").write_text(to_toml(parse(EXPERIMENT | {"data": {"clients": 2}})), encoding="utf-8")
    invite = ("server", "invite", "server", "two.toml", "mary/mary.request.toml")
    told = command(*invite, "anne/anne.request.toml", "--yes", "--set", "data.classes=3", cwd=tmp_path)
    assert "client-0 has 3 classes (healthy, ill, unsure), client-1 has 3 classes (ill, healthy" in told.stderr
    told = command(*invite, "john/john.request.toml", "--yes", cwd=tmp_path)
    assert (
        'data.classes=10: the sites have 3 classes (healthy, ill, unsure); --set data.classes=["healthy"' in told.stderr
    )
    told = command(*invite, "john/john.request.toml", "--yes", "--set", "data.classes=3", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    invitation, _, experiment = federation.read_invitation(server / federation.INVITATION)
    assert tomllib.loads(invitation.experiment)["data"] == {"clients": 2, "classes": 3, "class_names": names}
    assert (experiment.data.classes, experiment.data.class_names) == (3, tuple(names))
    assert joined(tmp_path / "john", server / federation.INVITATION) == 1


def test_an_old_request(invited):
    *_, mary, _, path = invited
    (mary / "mary.request.toml").rename(mary / "request.toml")
    assert joined(mary, path) == 0


def test_an_expired_invitation_is_refused(invited):
    *_, mary, _, path = invited
    text = path.read_text()
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    path.write_text(re.sub(r"expires = \S+( \S+)?", f"expires = {past:%Y-%m-%dT%H:%M:%SZ}", text))
    with pytest.raises(InvalidInput, match="expired"):
        joined(mary, path)
    assert not (mary / federation.CA).exists()


def test_an_altered_invitation_is_refused(invited, tmp_path):
    *_, mary, _, path = invited
    told = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(path.read_text().replace("127.0.0.1:", "127.0.0.2:"))
    words = ["site", "join", mary, path, "--fingerprint", told, "--yes"]
    done = subprocess.run([sys.executable, "-m", "sightline", *map(str, words)], capture_output=True, text=True)
    assert done.returncode
    assert "another fingerprint" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (mary / federation.CA).exists()


def test_an_invitation_for_others_or_of_another_authority_is_refused(invited, tmp_path):
    _, mary, john, path = invited
    joined(mary, path)
    other = tmp_path / "other"
    federation.init_server(other, "127.0.0.1:8000", None, [])
    request = federation.read_section(federation.request_path(mary, "mary"), federation.SiteRequest, "")
    one = parse(EXPERIMENT | {"data": EXPERIMENT["data"] | {"clients": 1}})
    federation.write_invitation(other, one, federation.assign_numbers([], [request]))
    with pytest.raises(InvalidInput, match="another certificate authority"):
        joined(mary, other / federation.INVITATION)
    with pytest.raises(InvalidInput, match="not for the key"):
        joined(john, other / federation.INVITATION)


def test_secrets_that_others_can_read_stop_the_start(invited):
    server, mary, _, path = invited
    joined(mary, path)
    (mary / "node" / federation.NODE_KEY).chmod(0o644)
    with pytest.raises(InvalidInput, match="mode 644"):
        processes.site_programs(mary, federation.read_node(mary), 0)
    (server / "superlink" / "server.key").chmod(0o640)
    with pytest.raises(InvalidInput, match="mode 640"):
        processes.server_programs(server, federation.read_server(server), 0)


def test_a_port_in_use_stops_the_start(invited):
    server = invited[0]
    known = federation.read_server(server)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", known.port))
        taken.listen()
        with pytest.raises(InvalidInput, match="cannot listen there"):
            processes.server_programs(server, known, 0)


def test_a_changed_certificate_is_refused(invited, tmp_path):
    """A site that is pointed at a server of another authority ends, and does not wait."""
    import ssl
    import threading

    server, mary, _, path = invited
    joined(mary, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "superlink" / "server.pem", server / "superlink" / "server.key")
    other = federation.make_authority()[1]
    (tmp_path / "other.crt").write_bytes(other)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer():
            for _ in range(2):
                caller, _ = plain.accept()
                try:
                    context.wrap_socket(caller, server_side=True).close()
                except OSError:
                    caller.close()

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{plain.getsockname()[1]}"
        assert processes.check_server(address, mary / federation.CA)
        with pytest.raises(InvalidInput, match="not that of the invited server"):
            processes.check_server(address, tmp_path / "other.crt")
    assert not processes.check_server(address, mary / federation.CA)


def sightline(folder, *words, **more):
    line = [sys.executable, "-m", "sightline", *map(str, words)]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, **more)


def ask(port, page):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}") as answer:
        return answer.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("users", [("", ""), ("2001,2004", "2006,2003,2005")], ids=["one user", "separate users"])
def test_two_sites_from_empty_folders_to_a_finished_run(users):
    """Eight commands and no file written by hand; then status, health and metrics of both parties."""
    if users[0] and (os.geteuid() != 0 or not runs_for_others(Path(sys.executable))):
        pytest.skip(f"needs root, and an interpreter that other users can start, not {sys.executable}")
    with tempfile.TemporaryDirectory(prefix="sightline-") as folder:
        os.chmod(folder, 0o755)
        run_two_sites(Path(folder), *users)


def run_two_sites(tmp_path, server_users, site_users):
    started, ports = [], {name: free_port() for name in ("server", *SITES)}

    def run(*words):
        done = sightline(tmp_path, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(name, *words):
        with open(tmp_path / f"{name}.out", "wb") as log:
            line = [sys.executable, "-m", "sightline", *map(str, words), "--health-port", str(ports[name])]
            started.append(subprocess.Popen(line, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT))

    (tmp_path / "two.toml").write_text(to_toml(parse(EXPERIMENT)))
    generator = np.random.default_rng(0)
    for name in SITES:
        x, y = generator.random((45, 64), dtype=np.float32), np.arange(45) % 10
        np.savez(tmp_path / f"{name}.npz", train_x=x, train_y=y)
        run("site", "init", name, "--data", f"{name}.npz", "--classes", 10, "--epsilon", 8, "--unit", "client",
            "--users", site_users)  # fmt: skip
    run("server", "init", "server", "--address", f"127.0.0.1:{free_port()}", "--users", server_users)
    told = run("server", "invite", "server", "two.toml", *(f"{name}/{name}.request.toml" for name in SITES), "--yes")
    fingerprint = told.split("telephone: ")[-1].strip()
    try:
        start("server", "server", "start", "server")
        for name in SITES:
            join = ("site", "join", name, "server/invitation.toml", "--fingerprint", fingerprint, "--yes", "--start")
            start(name, *join)
        end = time.monotonic() + 60
        while not json.loads(run("server", "status", "server", "--json"))["up"]:
            assert time.monotonic() < end, (tmp_path / "server.out").read_text()
            time.sleep(1)
        assert "finished:" in run("server", "run", "server", "--wait", 120)
        time.sleep(5.1)  # pages are kept for five seconds
        status = json.loads(run("server", "status", "server", "--json"))
        assert status["runs"]["two"]["rounds_done"] == ROUNDS
        assert status["runs"]["two"]["finished"]
        assert f'sightline_run_rounds_done{{run="two"}} {ROUNDS}' in ask(ports["server"], "/metrics")
        for name in SITES:
            site = json.loads(run("site", "status", name, "--json"))
            assert site["approvals"][0]["answered"] == ROUNDS
            assert f'outcome="answered"}} {ROUNDS}\n' in ask(ports[name], "/metrics")
            lines = [json.loads(line) for line in (tmp_path / name / "logs" / "site.log").read_text().splitlines()]
            assert [line["round"] for line in lines if line.get("outcome") == "answered"] == [1, 2]
        assert (
            json.loads(ask(ports["server"], "/health")) == json.loads(ask(ports["mary"], "/health")) == {"status": "ok"}
        )
        answers = [
            json.loads(line) for line in (tmp_path / "server/apps/runs/two/answers.jsonl").read_text().splitlines()
        ]
        assert len(answers) == ROUNDS * len(SITES)
    finally:
        for process in started:
            os.kill(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(60)
