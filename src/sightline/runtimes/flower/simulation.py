"""`sightline run --runtime flower`: the engine's loop as a ServerApp on Flower's simulation engine."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline.engine import BuiltExperiment
from sightline.engine.loop import MakeWorker
from sightline.errors import invalid
from sightline.runtimes.remote.clients import RemoteClients


def simulate_nodes(
    setting: BuiltExperiment, directory: Path, loop: Callable[[MakeWorker], Any], *, workers: int
) -> None:
    """Run the loop with every client as a node of Flower's simulation engine, `workers` of them at a time.

    Guarantees: the same numbers as the simulator for the same seed; an error in the loop is raised here unchanged.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from sightline.runtimes.flower.apps import app as client_app
    from sightline.runtimes.flower.apps import simulated_worker

    logging.getLogger("flwr").setLevel(logging.ERROR)
    outcome: list[BaseException] = []

    def main(grid: Grid, context: Context) -> None:
        def worker(setting: BuiltExperiment, *streams: Any) -> RemoteClients:
            return simulated_worker(setting, directory, grid)

        try:
            loop(worker)
        except BaseException as error:
            # Keep the error and raise it after the simulation, so that the caller gets ours and not Flower's.
            outcome.append(error)

    server_app = ServerApp()
    server_app.main()(main)
    run_simulation(
        server_app,
        client_app,
        len(setting.clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "include_dashboard": False},
        },
    )
    if outcome:
        raise outcome[0]


def check_installed() -> None:
    """Raise InvalidInput with the install command if Flower or Ray is missing."""
    from importlib.util import find_spec

    missing = [name for name in ("flwr", "ray") if find_spec(name) is None]
    if missing:
        invalid("--runtime", "flower", f"{' and '.join(missing)} cannot be imported", "pip install 'sightline[flower]'")
