"""Export of an experiment as a Flower app for `flwr run`, and of its data as one folder per site."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from sightline import engine
from sightline.config import Experiment, to_toml
from sightline.errors import invalid
from sightline.randomness import write_secret
from sightline.runtimes.site.policy import POLICY

PACKAGE = "sightline_app"

SERVER = '''"""The server: the experiment's own loop."""

from pathlib import Path

from sightline.api import flower_server_app

app = flower_server_app(Path(__file__).with_name("experiment.toml"))
'''
CLIENT = '''"""The client: answers by the site that its node names, or as a simulated client."""

from sightline.runtimes.flower.apps import app

__all__ = ["app"]
'''
README = """# {name}, as a Flower app

    flwr run .                    # Flower's simulation engine: the numbers of `sightline run experiment.toml`
    flwr run . mine --stream --run-config 'sites=true register="register.toml" out="runs/mine"'    # real sites

Sightline must be installed where the SuperLink and the SuperNodes run (`pip install "sightline[flower]"`); this app
holds the experiment and two files that import it. Settings of a run are in `pyproject.toml` under
`[tool.flwr.app.config]`.
"""
REGISTER = "register.toml"
REGISTER_HEAD = """# Whose key is whose: paste the line of every node's .pub file (docs/deployment.md).
"""


def export_app(experiment: Experiment, directory: Path) -> Path:
    """Write the app, writable by its owner only; raise InvalidInput unless the folder is new or empty."""
    # Build it first: an experiment that cannot run is not exported.
    experiment = engine.build_experiment(experiment).experiment
    _check_new(directory)
    package = directory / PACKAGE
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    package.mkdir(mode=0o755)
    files: Mapping[Path, str] = {
        directory / "pyproject.toml": tomli_w.dumps(_project_file(experiment)),
        directory / "README.md": README.format(name=experiment.name),
        package / "__init__.py": f'"""{experiment.name}, exported."""\n',
        package / "server_app.py": SERVER,
        package / "client_app.py": CLIENT,
        package / "experiment.toml": to_toml(experiment),
    }
    for path, text in files.items():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    return directory


def _project_file(experiment: Experiment) -> dict[str, object]:
    config = {"sites": False, "register": "", "timeout": 600.0, "wait": 300.0, "out": "", "resume": False,
              "accept-changes": False, "test": "", "set": ""}  # fmt: skip
    app = {
        "publisher": "sightline",
        "components": {"serverapp": f"{PACKAGE}.server_app:app", "clientapp": f"{PACKAGE}.client_app:app"},
        "config": config,
    }
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {"name": _project_name(experiment), "version": "1.0.0", "description": experiment.name,
                    "license": "Apache-2.0", "dependencies": []},
        "tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}},
    }  # fmt: skip


def _project_name(experiment: Experiment) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in experiment.name.lower()).split()) or "experiment"


def export_shards(experiment: Experiment, directory: Path, *, epsilon: float) -> list[Path]:
    """Write one folder per site with its examples and a policy, and the server's test set; return the folders.

    The server's register has the sizes and gets the keys of the sites' nodes later. Folders and files are readable by
    their owner only.
    """
    federation = engine.build_experiment(experiment).federation
    if federation.target_shape or federation.test.y.dtype.kind == "f":
        reason = "sites hold labels, one for each example, and this task predicts something else"
        invalid("model.task", experiment.model.target, reason, "use task = classification or binary with real sites")
    _check_new(directory)
    result = []
    for number, client in enumerate(federation.clients):
        folder = directory / f"site-{number}"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        train, test = client.train, client.test
        _save(folder / "data.npz", train_x=train.x, train_y=train.y, test_x=test.x, test_y=test.y)
        policy = {
            "client": number,
            "classes": federation.classes,
            "vocabulary": federation.vocabulary,
            "unit": "client" if experiment.privacy.unit == "none" else experiment.privacy.unit,
            "adjacency": experiment.privacy.adjacency,
            "epsilon": epsilon,
            "delta": experiment.privacy.delta,
            "trust_server": experiment.privacy.unit != "none" and experiment.privacy.place == "server",
        }
        if experiment.privacy.allow_large_delta:
            policy["allow_large_delta"] = True
        write_secret(folder / POLICY, tomli_w.dumps(policy).encode())
        result.append(folder)
    sizes = [{"client": n, "key": "", "examples": len(client.train)} for n, client in enumerate(federation.clients)]
    write_secret(directory / REGISTER, (REGISTER_HEAD + tomli_w.dumps({"site": sizes})).encode())
    _save(directory / "test.npz", test_x=federation.test.x, test_y=federation.test.y)
    return result


def _save(path: Path, **arrays: Any) -> None:
    """Write arrays to a file that is owner-only from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        np.savez(file, **arrays)


def _check_new(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        invalid("DIR", directory, "exists and is not empty", "choose another")
