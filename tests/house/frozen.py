"""Record what a clean-up must not change: the bits of every example and all names that users type or that are hashed or stored.

    python -m tests.house.frozen            compare with tests/golden/frozen.json; runs every example (minutes)
    python -m tests.house.frozen --write    record the names and this machine's digests
    python -m tests.house.frozen --names    record the names only, after a setting or a command was added

Model and ledger digests hold for one kind of machine only (docs/reproducibility.md), so each set is stored under the
machine that made it. Names are the same on every machine.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from pydantic import BaseModel
from threadpoolctl import threadpool_info

import sightline
from sightline.algorithms import DERIVED, REGISTRY, find_algorithm
from sightline.apps.cli.main import sightline as command_line
from sightline.config import Experiment
from sightline.events import Event
from sightline.ledger import export_ledger
from sightline.randomness import Purpose
from sightline.training import machine

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "frozen.json"
OLD_RUNS = ROOT / "tests" / "golden" / "runs"
"""Interrupted runs of earlier versions, which must still resume."""
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.toml"))
QUICK = ("quickstart", "hierarchy", "overlapping-groups", "clustered", "sample-level")
"""Examples that the fast tests run, each for `SHORT` rounds."""
SHORT = 2


def describe_machine() -> str:
    """Return the facts that determine the bits: processor, instructions, versions of torch and numpy, OpenBLAS kernels."""
    name, _ = machine.read_processor()
    capability = torch.backends.cpu.get_cpu_capability()
    # Processors of one name and instruction set may still get other kernels, which round other last bits of the noise.
    kernels = "+".join(
        sorted({pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"})
    )
    versions = f"torch {torch.__version__} numpy {np.__version__} OpenBLAS {kernels}"
    return f"{platform.machine()} {name} {capability} {versions}"


def digest_run(example: str, rounds: int | None = None) -> dict[str, str]:
    """Run an example at its seed and return the SHA-256 of its exported ledger and of its tensors."""
    overrides = () if rounds is None else (f"rounds={rounds}",)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, SIGHTLINE_PATHS="rule"):
        run = sightline.run(
            ROOT / "examples" / f"{example}.toml", out=Path(folder) / "run", progress=False, overrides=overrides
        )
        plain = json.dumps(export_ledger(run.ledger), sort_keys=True)
        return {"ledger": hashlib.sha256(plain.encode()).hexdigest(), "model": digest_tensors(Path(folder) / "run")}


def digest_tensors(run: Path) -> str:
    """Return one SHA-256 over the names and values of all tensors that a run wrote."""
    from safetensors.torch import load_file

    digest = hashlib.sha256()
    for path in sorted(run.glob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{path.name} {name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_names() -> dict[str, list[str]]:
    """Return every name that files, commands, ledgers and random streams depend on."""
    return {
        "experiment keys": sorted(_experiment_keys(Experiment)),
        "algorithm settings": sorted(_algorithm_settings()),
        "commands": sorted(_commands(command_line)),
        "event kinds": sorted(Event.registry),
        "random purposes": sorted(str(purpose) for purpose in Purpose),
        "python names": sorted(sightline.__all__),
    }


def _experiment_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        sections = [kind for kind in _types_in(field.annotation) if issubclass(kind, BaseModel)]
        for section in sections:
            yield from _experiment_keys(section, f"{prefix}{name}.")


def _algorithm_settings() -> Iterator[str]:
    for name in REGISTRY:
        own = dataclasses.fields(find_algorithm(name).settings)
        yield from (f"{name}.{field.name}" for field in own if not field.metadata.get(DERIVED))


def _types_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _types_in(inner)


def _commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{prefix}{name}"
        for parameter in command.params:
            yield from (f"{prefix}{name} {option}" for option in parameter.opts)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name} ")


def read_golden() -> dict[str, Any]:
    """Return the recorded names and digests."""
    return json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.is_file() else {"names": {}, "digests": {}}


def record(*, digests: bool) -> None:
    """Write the names, and this machine's digests if asked."""
    golden = read_golden()
    golden["names"] = read_names()
    if digests:
        short = {name: digest_run(name, SHORT) for name in QUICK}
        whole = {name: digest_run(name) for name in EXAMPLES}
        golden["digests"][describe_machine()] = {"short": short, "whole": whole}
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def compare() -> list[str]:
    """Return one line per name or digest that differs from what is recorded."""
    golden = read_golden()
    lines = [f"names: {key}" for key, names in read_names().items() if names != golden["names"].get(key)]
    recorded = golden["digests"].get(describe_machine())
    if recorded is None:
        return [*lines, f"no digests of this machine: {describe_machine()}"]
    for name, wanted in recorded["whole"].items():
        made = digest_run(name)
        lines += [f"{name}: {part} differs" for part in wanted if made[part] != wanted[part]]
        print(f"{name}: {'same' if made == wanted else 'DIFFERS'}", flush=True)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--names", action="store_true")
    given = parser.parse_args()
    if given.write or given.names:
        record(digests=given.write)
        sys.exit(0)
    problems = compare()
    print("\n".join(problems) or "nothing differs")
    sys.exit(bool(problems))
