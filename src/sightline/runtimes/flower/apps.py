"""The ClientApp and ServerApp of an experiment: the engine's loop, and a site or simulated client at each node."""

import json
import logging
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
from sightline.engine.loop import MakeWorker
from sightline.engine.run_directory import ANSWERS_LOG, NODES_LOG, RUN_ID
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
        fields = str(config.get("set", "")).split()
        finish(serve_experiment(read(file, fields), grid, config, say=partial(print, flush=True)))

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
        seconds = float(config.get("wait", 300.0))
        wait_for_sites(roll, experiment.data.clients, seconds=seconds, say=say, label=register.label)
        federation = gathered_sites(experiment, roll, register, config)
    built = engine.calibrate_noise(
        engine.build_experiment(experiment, federation=federation), real_nodes=roll is not None
    )
    directory = directory or engine.new_directory(experiment, out)

    def worker(built: BuiltExperiment, *streams: Any) -> RemoteClients:
        if roll is None:
            return simulated_worker(built, directory, grid)
        largest = ANSWER_BYTES + 16 * built.model.parameters
        post = GridTransport(grid, roll, timeout=float(config.get("timeout", 600.0)), largest=largest)
        tell, answered = partial(tell_left_out, directory, say), partial(log_answer, directory)
        fields = {"run": run_id(directory)}
        return RemoteClients(built, post, fields=fields, simulated=False, tell=tell, tell_answer=answered)

    engine.run_loop(
        built,
        directory,
        worker,
        resume=resume,
        accept_changes=bool(config.get("accept-changes", False)),
        on_round=partial(round_said, say, experiment.rounds),
        on_note=say,
    )
    say(f"done: {directory.resolve()}")
    return directory


def simulate_nodes(built: BuiltExperiment, directory: Path, loop: Callable[[MakeWorker], Any], *, workers: int) -> None:
    """Run the loop with every client as a node of Flower's simulation engine, `workers` of them at a time.

    Guarantees: the same numbers as the simulator for the same seed; an error in the loop is raised here unchanged.
    """
    # Only a simulation needs Ray, so a SuperNode never imports this.
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    outcome: list[BaseException] = []

    def main(grid: Grid, context: Context) -> None:
        def worker(built: BuiltExperiment, *streams: Any) -> RemoteClients:
            return simulated_worker(built, directory, grid)

        try:
            loop(worker)
        except BaseException as error:
            # Keep the error and raise it after the simulation, so that the caller gets ours and not Flower's.
            outcome.append(error)

    server = ServerApp()
    server.main()(main)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    ray = {"num_cpus": workers, "include_dashboard": False}
    backend = {"client_resources": resources, "init_args": ray}
    run_simulation(server, app, len(built.clients), backend_config=backend)
    if outcome:
        raise outcome[0]


def simulated_worker(built: BuiltExperiment, directory: Path, grid: Grid) -> RemoteClients:
    """Return an executor whose clients run on the nodes of a simulation, however many there are."""
    nodes = wait_for_nodes(grid, 1, timeout=SIMULATED_TIMEOUT)
    node_of = {client: nodes[client % len(nodes)] for client in built.clients}
    post = GridTransport(grid, lambda: node_of, timeout=SIMULATED_TIMEOUT, simulated=True)
    return simulated_clients(built, directory, post)


def wait_for_sites(
    roll: NodeOf, clients: int, *, seconds: float, say: Say, label: Callable[[int], str] = client_name
) -> None:
    """Return when every site has joined; report the missing ones, and raise after `seconds`."""
    begun, missing_names, reported_at = time.monotonic(), "", -math.inf
    while missing := sorted(set(range(clients)) - set(roll())):
        waited = time.monotonic() - begun
        names = ", ".join(label(client) for client in missing[:MOST_NAMES])
        names += f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
        if waited > seconds:
            raise SightlineError(f"sites={clients - len(missing)} of {clients}: {names} did not join in {seconds:g} s")
        if names != missing_names or waited - reported_at >= WAITING_SECONDS:
            joined = f"{clients - len(missing)} of {clients} sites joined"
            say(f"waiting for {names}: {joined} ({waited:.0f} of {seconds:g} s)")
            missing_names, reported_at = names, waited
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


def tell_left_out(directory: Path, say: Say, round: int, client: int, why: str) -> None:
    """Tell the operator why a client was left out."""
    line = f"round {round}: {client_name(client)} left out: {why}"
    _append(directory / NODES_LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")
    log_answer(directory, round, client, why)
    say(line)


def log_answer(directory: Path, round: int, client: int, why: str = "") -> None:
    """Write one JSON line about a client's answer; `why` if it was left out."""
    outcome = {"outcome": "left out", "why": why} if why else {"outcome": "answered"}
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"time": moment, "event": "answer", "round": round, "client": client_name(client)} | outcome
    _append(directory / ANSWERS_LOG, json.dumps(line))


def _append(log: Path, line: str) -> None:
    # Who was asked is secret where sampling is claimed to hide it: owner-only file and the operator's output, no
    # report.
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def round_said(say: Say, rounds: int, row: Mapping[str, Any]) -> None:
    """Print one line per round."""
    title, reached = metric_words(row)
    say(f"round {row['round']}/{rounds}  {title} {reached or '-'}  epsilon {_spent_epsilon(row)}")


def _spent_epsilon(row: Mapping[str, Any]) -> str:
    if "epsilon" not in row:
        return "-"
    epsilon = max(row["epsilon"].values(), default=math.inf)
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}" if math.isfinite(epsilon) else "infinite"
