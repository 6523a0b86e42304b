"""Checkpoints: tensors and a few words in safetensors, written whole or not at all, never pickle."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.errors import SightlineError
from sightline.mechanisms import Public

CHECKPOINT = "checkpoint.safetensors"


class CheckpointDamaged(SightlineError):
    """The checkpoint cannot be read or does not belong to the ledger beside it."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after a round, and which ledger it belongs to."""

    round: int
    state: Mapping[str, Public]
    releases: int
    head: str
    """How many releases had been made, and the hash of the last: a ledger that was cut or exchanged does not match."""
    counts: Mapping[str, float]
    """Traffic and rejected updates of the round."""


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a round; the one before it is replaced only when the new one is safe on disk."""
    words = {
        "round": checkpoint.round,
        "releases": checkpoint.releases,
        "head": checkpoint.head,
        "counts": dict(checkpoint.counts),
        "sources": {name: sorted(value.sources) for name, value in checkpoint.state.items()},
    }
    save_tensors(
        directory / CHECKPOINT,
        {name: value.value for name, value in checkpoint.state.items()},
        {"sightline": json.dumps(words)},
    )


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """The last checkpoint of a run, or None when no round was finished."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            words = json.loads(file.metadata()["sightline"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = {name: Public(tensors[name], frozenset(ids)) for name, ids in words["sources"].items()}
        return Checkpoint(words["round"], state, words["releases"], words["head"], words["counts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamaged(f"checkpoint={path.name}: cannot be read ({type(error).__name__}: {error})") from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, atomically and durably."""
    temporary = path.with_suffix(".tmp")
    whole = {name: tensor.detach().to(torch.float32).contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, temporary, metadata)
    replace_durably(temporary, path)


def replace_durably(temporary: Path, path: Path) -> None:
    """Move a finished file into place so that a crash leaves the old one or the new one, never a part."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
