"""A post that is no network: letters become bytes and come back from nodes in this process."""

import pytest

from sightline import engine
from sightline.api import Run
from sightline.apps import report
from sightline.config import parse
from sightline.runtimes.remote import client_executor
from sightline.runtimes.remote.clients import RemoteClients
from sightline.runtimes.remote.message import WireMessage


class Loopback:
    """Every client has a node with a memory of its own; answers come in reverse order, as they well may."""

    def __init__(self):
        self.kept = {}
        self.asked = []

    def ask(self, letters, group):
        self.asked.append((group, {client: letter.fields for client, letter in letters.items()}))
        found = {}
        for client, letter in reversed(letters.items()):
            arrived = WireMessage.from_bytes(letter.to_bytes())
            answer = client_executor.answer_simulated(arrived, self.kept.setdefault(client, {}))
            found[client] = WireMessage.from_bytes(answer.to_bytes())
        return found

    def close(self):
        pass


@pytest.fixture
def loopback():
    return Loopback()


@pytest.fixture
def run_remotely(tmp_path, loopback):
    """Run an experiment on nodes behind a post."""

    def run(plain, *, post=None, out="remote", resume=False, tell=None, on_round=lambda row: None):
        setting = engine.calibrate_noise(engine.build_experiment(parse(plain)))
        directory = tmp_path / out
        directory.mkdir(exist_ok=resume)

        def worker(setting, public, secret):
            words = {"folder": str(directory)}
            remote = RemoteClients(setting, post or loopback, fields=words, simulated=tell is None, tell=tell)
            remote._sends_tasks = True  # the nodes of this post are played, and have no copy of the experiment
            return remote

        engine.run_loop(setting, directory, worker, resume=resume, on_round=on_round)
        report.write_report(directory)
        return Run(directory)

    return run
