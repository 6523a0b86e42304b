"""The ClientApp and ServerApp of an experiment: the engine's loop, and a site or simulated client at each node."""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sightline import engine
from sightline.config import Experiment, read
from sightline.data import Client, Federation, Kind, Shard
from sightline.data.formats import read_arrays
from sightline.engine import BuiltExperiment
from sightline.engine.run_directory import NODES_LOG, RUN_ID
from sightline.errors import SightlineError, invalid
from sightline.formatting import metric_words
from sightline.randomness import write_secret
from sightline.runtimes.flower.nodes import (
    GridTransport,
    NodeOf,
    NodeRegistry,
    Register,
    from_record,
    read_register,
    to_record,
    wait_for_nodes,
)
from sightline.runtimes.remote.clients import RemoteClients, refuse_a_known_seed, simulated_clients
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site import process
from sightline.runtimes.site.policy import blank_shard
from sightline.topology import client_name

KEPT = "sightline"
"""Record of a node's state that holds the state of simulated clients between rounds."""
SIMULATED = {"partition-id", "num-partitions"}


def answer_message(message: Message, context: Context) -> Message:
    """Answer one question within its time to live."""
    answer = answer_request(from_record(message.content), context, seconds=message.metadata.ttl)
    return Message(to_record(answer), reply_to=message)


def answer_request(message: WireMessage, context: Context, *, seconds: float | None = None) -> WireMessage:
    """Return the answer of the site behind this node: `site-socket` (its own process) or `site` (its folder)."""
    config: Mapping[str, Any] = context.node_config
    if "site-socket" in config:
        return process.ask_site(Path(str(config["site-socket"])), message, seconds=seconds)
    if "site" in config:
        from sightline.runtimes.site.site import answer_from

        return answer_from(Path(str(config["site"])), message)
    if set(config) <= SIMULATED:
        return simulated_answer(message, context)
    return WireMessage({"refused": "node-config: this node names no site; give site=FOLDER or site-socket=PATH"})


def simulated_answer(message: WireMessage, context: Context) -> WireMessage:
    """Return a simulated client's answer; its state goes into the node's state."""
    from sightline.runtimes.remote import client_executor
    from sightline.runtimes.remote.message import own_tensor

    record = context.state[KEPT] if KEPT in context.state else ArrayRecord()
    kept = {name: own_tensor(array.numpy()) for name, array in record.items()}
    answer = client_executor.answer_simulated(message, kept)
    context.state[KEPT] = ArrayRecord({name: Array(value.numpy()) for name, value in kept.items()})
    return answer


app = ClientApp()
app.train()(answer_message)


SIMULATED_TIMEOUT = 3600.0
"""A simulated node can be slow but is never gone."""

ANSWER_BYTES = 1 << 16
"""An answer is one vector and at most this many bytes of fields."""

WAITING_SECONDS = 5.0
"""The output names the missing sites at least this often."""
MOST_NAMES = 5

Say = Callable[[str], None]


def server_app(file: Path, finish: Callable[[Path], Any]) -> ServerApp:
    """Return the ServerApp of an experiment file; `finish` gets the run directory at the end, for its report."""

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        words = str(config.get("set", "")).split()
        finish(serve_experiment(read(file, words), grid, config, say=partial(print, flush=True)))

    app = ServerApp()
    app.main()(main)
    return app


def serve_experiment(experiment: Experiment, grid: Grid, config: Mapping[str, Any], *, say: Say) -> Path:
    """Run an experiment on the nodes of a grid and return its run directory.

    Keys of `config`: sites (real sites with their own data), register (the operator's file of keys), timeout (seconds
    that a round waits), wait (seconds for the sites to connect), out (the run directory), resume, accept-changes
    (resume even if code or packages changed), test (an .npz of test_x and test_y to evaluate the model on).
    """
    out = Path(str(config["out"])) if config.get("out") else None
    resume = bool(config.get("resume", False))
    directory = engine.directory_to_resume(experiment, out) if resume else None
    roll, federation = None, None
    if config.get("sites", False):
        # Checked before any node is asked: every site has the file with its seed.
        refuse_a_known_seed(experiment)
        register = read_register(str(config.get("register") or ""), experiment.data.clients)
        roll = NodeRegistry(grid, register, say)
        wait_for_sites(roll, experiment.data.clients, seconds=float(config.get("wait", 300.0)), say=say)
        federation = gathered_sites(experiment, roll, register, config)
    setting = engine.calibrate_noise(
        engine.build_experiment(experiment, federation=federation), real_nodes=roll is not None
    )
    directory = directory or engine.new_directory(experiment, out)

    def worker(setting: BuiltExperiment, *streams: Any) -> RemoteClients:
        if roll is None:
            return simulated_worker(setting, directory, grid)
        largest = ANSWER_BYTES + 16 * setting.model.parameters
        post = GridTransport(grid, roll, timeout=float(config.get("timeout", 600.0)), largest=largest)
        tell = partial(tell_left_out, directory / NODES_LOG, say)
        return RemoteClients(setting, post, words={"run": run_id(directory)}, simulated=False, tell=tell)

    engine.run_loop(
        setting,
        directory,
        worker,
        resume=resume,
        accept_changes=bool(config.get("accept-changes", False)),
        on_round=partial(round_said, say, experiment.rounds),
        on_note=say,
    )
    say(f"done: {directory.resolve()}")
    return directory


def simulated_worker(setting: BuiltExperiment, directory: Path, grid: Grid) -> RemoteClients:
    """Return an executor whose clients run on the nodes of a simulation, however many there are."""
    nodes = wait_for_nodes(grid, 1, timeout=SIMULATED_TIMEOUT)
    node_of = {client: nodes[client % len(nodes)] for client in setting.clients}
    post = GridTransport(grid, lambda: node_of, timeout=SIMULATED_TIMEOUT, simulated=True)
    return simulated_clients(setting, directory, post)


def wait_for_sites(roll: NodeOf, clients: int, *, seconds: float, say: Say) -> None:
    """Return when every site has joined; report the missing ones, and raise after `seconds`."""
    begun, told, told_at = time.monotonic(), "", -math.inf
    while missing := sorted(set(range(clients)) - set(roll())):
        waited = time.monotonic() - begun
        names = ", ".join(client_name(client) for client in missing[:MOST_NAMES])
        names += f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
        if waited > seconds:
            raise SightlineError(f"sites={clients - len(missing)} of {clients}: {names} did not join in {seconds:g} s")
        if names != told or waited - told_at >= WAITING_SECONDS:
            joined = f"{clients - len(missing)} of {clients} sites joined"
            say(f"waiting for {names}: {joined} ({waited:.0f} of {seconds:g} s)")
            told, told_at = names, waited
        time.sleep(1.0)
    say(f"all {clients} sites joined")


def gathered_sites(
    experiment: Experiment, roll: NodeRegistry, register: Register, config: Mapping[str, Any]
) -> Federation:
    """Build the federation as the server may know it once all sites have joined: sizes and shapes, no examples."""
    clients = experiment.data.clients
    first = roll.facts[0]
    like = Shard(
        np.empty((0, *first["shape"]), np.int64 if first["kind"] == Kind.TEXT else np.float32), np.empty(0, int)
    )
    # Sizes come from the register, not from the sites: an inflated size would dominate a weighted mean.
    known = tuple(Client(blank_shard(like, register.examples[client]), like) for client in range(clients))
    test = read_test(str(config.get("test") or ""), like)
    notes = ("the sites keep their data; the server knows how many examples each has",)
    return Federation(
        "sites", known, test, int(first["classes"]), Kind(first["kind"]), int(first["vocabulary"]), notes, True
    )


def read_test(path: str, otherwise: Shard) -> Shard:
    """Return the server's own test set, or `otherwise` if it has none."""
    if not path:
        return otherwise
    arrays = read_arrays(Path(path), ("test_x", "test_y"))
    x: Any = arrays["test_x"].astype(otherwise.x.dtype)
    y = arrays["test_y"].astype(np.int64)
    if x.shape[1:] != otherwise.x.shape[1:] or y.shape != x.shape[:1]:
        invalid("test", path, f"test_x {x.shape} and test_y {y.shape} do not fit the sites' {otherwise.x.shape[1:]}")
    return Shard(x, y)


def run_id(directory: Path) -> str:
    """Return the id by which sites know a run; a resumed run keeps it."""
    path = directory / RUN_ID
    if not path.exists():
        write_secret(path, secrets.token_hex(16).encode())
    return path.read_text(encoding="utf-8")


def tell_left_out(log: Path, say: Say, round: int, client: int, why: str) -> None:
    """Tell the operator why a client was left out."""
    # Who was asked is secret where sampling is claimed to hide it: owner-only file and the operator's output, no
    # report.
    line = f"round {round}: {client_name(client)} left out: {why}"
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    say(line)


def round_said(say: Say, rounds: int, row: Mapping[str, Any]) -> None:
    """Print one line per round."""
    title, reached = metric_words(row)
    say(f"round {row['round']}/{rounds}  {title} {reached or '-'}  epsilon {_spent_epsilon(row)}")


def _spent_epsilon(row: Mapping[str, Any]) -> str:
    if "epsilon" not in row:
        return "-"
    epsilon = max(row["epsilon"].values(), default=math.inf)
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}" if math.isfinite(epsilon) else "infinite"
