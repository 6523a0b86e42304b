"""Checkpoints: tensors and a few words in safetensors, written whole or not at all, never pickle."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.errors import SightlineError
from sightline.mechanisms import Public, Shelf

CHECKPOINT = "checkpoint.safetensors"
OWNER_ONLY = 0o600
"""Checkpoints hold what clients keep to themselves; others may not read them."""


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
    memories: Mapping[str, Shelf] = field(default_factory=dict)
    """What the clients keep: private, and as much a part of the run as the model."""


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a round; the one before it is replaced only when the new one is safe on disk."""
    words = {
        "round": checkpoint.round,
        "releases": checkpoint.releases,
        "head": checkpoint.head,
        "counts": dict(checkpoint.counts),
        "sources": {name: sorted(value.sources) for name, value in checkpoint.state.items()},
        "memories": {
            name: {"clients": sorted(shelf.values), "sources": sorted(shelf.sources)}
            for name, shelf in checkpoint.memories.items()
        },
    }
    kept = {
        _kept(name, client): value
        for name, shelf in checkpoint.memories.items()
        for client, value in shelf.values.items()
    }
    tensors = {name: value.value for name, value in checkpoint.state.items()} | kept
    whole = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    save_tensors(directory / CHECKPOINT, whole, {"sightline": json.dumps(words)}, mode=OWNER_ONLY)


def _kept(memory: str, client: int) -> str:
    """The name of a client's memory among the tensors of a checkpoint."""
    return f"memory/{memory}/{client}"


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """The last checkpoint of a run, or None when no round was finished."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            words = _checked(json.loads(file.metadata()["sightline"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = {name: Public(tensors[name], frozenset(ids)) for name, ids in words["sources"].items()}
        memories = {
            name: Shelf({n: tensors[_kept(name, n)] for n in found["clients"]}, frozenset(found["sources"]))
            for name, found in words["memories"].items()
        }
        return Checkpoint(words["round"], state, words["releases"], words["head"], words["counts"], memories)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"checkpoint={path.name}: cannot be read ({type(error).__name__}: {error})") from None


def _checked(words: dict[str, Any]) -> dict[str, Any]:
    """The words of a checkpoint, when they are of the kinds that a run writes: no guess is made about others."""
    if any(type(words[name]) is not int or words[name] < 0 for name in ("round", "releases")):
        raise ValueError("round and releases are counts")
    if not isinstance(words["head"], str) or not all(isinstance(n, int | float) for n in words["counts"].values()):
        raise ValueError("head is a word, counts are numbers")
    known = [*words["sources"].values(), *(shelf["sources"] for shelf in words["memories"].values())]
    if any(type(id) is not int or not 0 <= id < words["releases"] for ids in known for id in ids):
        raise ValueError("sources are releases of the ledger")
    return words


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None, *, mode: int = 0o644
) -> None:
    """Write tensors to a safetensors file, atomically and durably, readable as `mode` says from the first byte on."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
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
