"""Real processes on loopback: TLS, node authentication, three sites; one sends garbage, one comes late, one is killed."""

import re
import threading
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Listener

import numpy as np
import pytest
import tomli_w

from sightline.api import Run
from sightline.config import parse, to_toml
from sightline.runtimes.flower.export import export_app, export_shards
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.site import Site
from tests.flower.cases import changed, privacy, releases_of

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
from tests.flower.deployment import Deployment, node_key

pytestmark = pytest.mark.slow

TIMEOUT = 90
EXPERIMENT = changed(
    name="sites",
    rounds=8,
    data={"source": "digits", "clients": 3, "partition": "iid", "train_samples": 90},
    model={"name": "linear"},
    sampling={"clients": {"scheme": "full"}},
    privacy=privacy("client", "client", noise_multiplier=4.0),
)


class Rogue:
    """A site behind a socket that misbehaves: what it does depends on the round."""

    def __init__(self, folder, path):
        self.site, self.listener = Site(folder), Listener(str(path), family="AF_UNIX")
        self.acts = {}
        self.rounds = []
        self.closed = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while not self.closed:
            with suppress(EOFError, OSError), self.listener.accept() as caller:
                letter = WireMessage.from_bytes(caller.recv_bytes())
                caller.send_bytes(self.answer(letter).to_bytes())

    def answer(self, letter):
        honest = self.site.answer(letter)
        if letter.fields["call"] == "hello":
            return honest
        self.rounds.append(letter.fields["round"])
        return self.acts.get(letter.fields["round"], lambda answer: answer)(honest)

    def close(self):
        self.closed = True
        self.listener.close()


def sends(array):
    """Its own letter with another vector in it."""
    return lambda answer: WireMessage(answer.fields, {"value": array})


@pytest.fixture
def deployment(tmp_path):
    # a socket's path has at most about 100 characters, so the folder's name is kept short
    found = Deployment(tmp_path)
    yield found
    found.close()


@pytest.fixture
def rogue_at():
    """Sites that misbehave, until the test is over."""
    with ExitStack() as stack:
        yield lambda folder, path: stack.enter_context(closing(Rogue(folder, path)))


def test_three_sites_with_trouble(deployment, rogue_at):
    folder, experiment = deployment.folder, parse(EXPERIMENT)
    export_app(experiment, folder / "app")
    sites = export_shards(experiment, folder / "sites", epsilon=50.0)
    config = folder / "experiment.toml"
    config.write_text(to_toml(experiment))
    for site in sites:
        deployment.sightline("site", "approve", config, "--site", site, "--yes")

    deployment.superlink()
    keys = [deployment.register(f"site-{number}") for number in range(3)]
    rogue = rogue_at(sites[2], folder / "2")
    parameters = 64 * 10 + 10
    given_up = threading.Event()  # round 5 was over without it
    rogue.acts = {
        2: sends(np.zeros(7, np.float32)),
        3: sends(np.full(parameters, np.nan, np.float32)),
        4: sends(np.full(parameters, 1e20, np.float32)),
        5: lambda answer: (given_up.wait(), answer)[1],
        7: lambda answer: (back_again(), answer)[1],
    }

    def back_again():
        deployment.supernode("site-1", keys[1], f'site-socket="{folder / "1"}"')
        deployment.wait(lambda: deployment.flwr("supernode", "list").stdout.lower().count("online") == 4, "site 1")

    rogue_at(sites[1], folder / "1").acts = {6: lambda answer: (given_up.set(), deployment.kill("site-1"), answer)[-1]}
    deployment.start("door-0", "sightline", "site", "serve", sites[0], "--socket", folder / "0")
    deployment.wait((folder / "0").exists, "the site's own process")
    deployment.supernode("site-0", keys[0], f'site-socket="{folder / "0"}"')
    deployment.supernode("site-1", keys[1], f'site-socket="{folder / "1"}"')
    deployment.supernode("site-2", keys[2], f'site-socket="{folder / "2"}"')
    # a node that the SuperLink lets in, and that says what client 0 says: its key is not in the register
    deployment.supernode("impostor", deployment.register("impostor"), f'site-socket="{folder / "0"}"')

    register = deployment.write_register(keys, [len(Site(site).data.train) for site in sites])
    settings = {"sites": True, "register": str(register), "timeout": TIMEOUT, "out": str(folder / "run")}
    config = folder / "run.toml"
    config.write_text(tomli_w.dumps(settings | {"test": str(folder / "sites" / "test.npz")}))
    started = deployment.flwr("run", folder / "app", "mine", "--run-config", config)
    assert started.returncode == 0, started.stdout + started.stderr
    deployment.wait((folder / "run" / "report.html").exists, "the end of the run", 1500)

    run = Run(folder / "run")
    summary = run.summary
    assert summary["rounds_done"] == 8
    assert 0 <= summary["test_accuracy"] <= 1
    lines = (folder / "run" / "nodes.log").read_text()
    assert (folder / "run" / "nodes.log").stat().st_mode & 0o077 == 0
    for round, why in ((2, r"float32 \(7,\)"), (3, "not finite"), (4, "norm"), (5, "no answer within")):
        assert re.search(rf"round {round}: client-2 left out: .*{why}", lines), lines
    assert [int(n) for n in re.findall(r"round (\d): client-1 left out", lines)] == [6, 7], lines
    assert "client-0 left out" not in lines, lines

    number = re.search(r"\d{10,}", started.stdout)
    said = deployment.flwr("log", number[0], "mine", "--show").stdout
    assert re.search(r"node \d+: turned away, its key is not in the register", said), said

    # the server's ledger charges everybody for every round; a site's own holds what it answered
    charged = [sum(f"client-{n}" in release.subjects for release in run.ledger) for n in range(3)]
    assert charged == [8, 8, 8]
    own = [Site(site) for site in sites]
    assert [len(releases_of(own[n])) for n in (0, 2)] == [8, 8]
    assert run.epsilon <= own[2].spent() <= 50.0
    assert "budget for life: epsilon 50 at delta=0.001 per client" in deployment.sightline("site", "status", sites[0])
    # the run is over, and the approval with it
    other = WireMessage({"digest": own[0].approvals.all()[0].digest, "run": "another", "call": "leaving"})
    assert "every run needs its own approval" in own[0].answer(other).fields["refused"]
    assert to_toml(experiment) == (folder / "run" / "config.toml").read_text()


def test_a_node_without_a_registered_key_is_not_let_in(deployment):
    deployment.superlink()
    deployment.register("known")
    path = deployment.keys / "stranger"
    node_key(path)
    deployment.supernode("stranger", path, 'site="nowhere"')
    deployment.wait(lambda: deployment.processes["stranger"].poll() is not None, "the stranger's end")
    listed = deployment.flwr("supernode", "list")
    assert "online" not in listed.stdout.lower()
