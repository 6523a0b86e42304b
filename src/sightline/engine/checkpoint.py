"""Checkpoints: tensors and a few words in safetensors, written whole or not at all, never pickle.

The last two are kept. The hash of each is in the run's journal before it takes the place of the one before it, so a
resumed run knows the bytes of whatever it finds.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.errors import SightlineError
from sightline.mechanisms import ClientState, Public
from sightline.randomness import sync_folder

CHECKPOINT = "checkpoint.safetensors"
EARLIER = "checkpoint-before.safetensors"
"""The checkpoint before the last, for when the last is damaged."""
OWNER_ONLY = 0o600
"""Checkpoints hold what clients keep to themselves; others may not read them."""


class CheckpointDamaged(SightlineError):
    """The checkpoint cannot be read or does not belong to the ledger beside it."""

    exit_code = 2


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
    memories: Mapping[str, ClientState] = field(default_factory=dict)
    """What the clients keep: private, and as much a part of the run as the model."""


def save_checkpoint(
    directory: Path, checkpoint: Checkpoint, vouch: Callable[[str], None] = lambda digest: None
) -> None:
    """Write the checkpoint of a round; the one before it is replaced only when the new one is safe on disk.

    `vouch` is told the SHA-256 of the new one before it takes its place.
    """
    words = {
        "round": checkpoint.round,
        "releases": checkpoint.releases,
        "head": checkpoint.head,
        "counts": dict(checkpoint.counts),
        "sources": {name: sorted(value.sources) for name, value in checkpoint.state.items()},
        "memories": {
            name: {"clients": sorted(state.values), "sources": sorted(state.sources)}
            for name, state in checkpoint.memories.items()
        },
    }
    kept = {
        _state_name(name, client): value
        for name, state in checkpoint.memories.items()
        for client, value in state.values.items()
    }
    tensors = {name: value.value for name, value in checkpoint.state.items()} | kept
    whole = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    path = directory / CHECKPOINT

    def settle(temporary: Path) -> None:
        vouch(file_digest(temporary))
        keep_earlier(path, directory / EARLIER)

    save_tensors(path, whole, {"sightline": json.dumps(words)}, mode=OWNER_ONLY, settle=settle)


def keep_earlier(path: Path, earlier: Path) -> None:
    """Give a file a second name, which it keeps when another takes its place; where links are unknown, go without."""
    temporary = earlier.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with suppress(FileNotFoundError, NotImplementedError, PermissionError):
        os.link(path, temporary)
        temporary.replace(earlier)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_name(memory: str, client: int) -> str:
    """The name of a client's memory among the tensors of a checkpoint."""
    return f"memory/{memory}/{client}"


def find_checkpoint(directory: Path, known: Collection[str]) -> tuple[Checkpoint | None, str]:
    """The newest whole checkpoint of a run, and in words what is wrong with a newer one.

    `known` are the hashes that the journal vouches for; where it knows none (a run from before there were journals)
    a checkpoint is taken when it can be read. None when there is no checkpoint at all.
    """
    wrong = []
    for name in (CHECKPOINT, EARLIER):
        try:
            found = load_checkpoint(directory, known, name=name)
        except CheckpointDamaged as error:
            wrong.append(str(error))
            continue
        if found is not None:
            return found, wrong[0] if wrong else "" if name == CHECKPOINT else f"checkpoint={CHECKPOINT}: not there"
    if wrong:
        way_out = "bring it back, or remove it and the rounds are done again from the first, to the same bits"
        raise CheckpointDamaged(f"{wrong[0]}, and no earlier one is whole; {way_out}")
    return None, f"checkpoint={CHECKPOINT}: not there" if known else ""


def check_length(directory: Path, releases: int) -> None:
    """Refuse a ledger that is shorter than the last checkpoint knows, damaged or not: going back would hide the cut."""
    try:
        found = load_checkpoint(directory)
    except CheckpointDamaged:
        return
    if found is not None and found.releases > releases:
        law = f"it remembers {found.releases} releases and the ledger holds {releases}; rows were cut"
        raise CheckpointDamaged(f"checkpoint={directory}: {law}, or an older database was put back")


def load_checkpoint(directory: Path, known: Collection[str] = (), *, name: str = CHECKPOINT) -> Checkpoint | None:
    """A checkpoint of a run, or None where there is none; one whose hash is not among those known is damaged."""
    path = directory / name
    try:
        if not path.exists():
            return None
        if known and file_digest(path) not in known:
            raise CheckpointDamaged(f"checkpoint={name}: damaged, its bytes are not those that the run wrote")
        with safe_open(path, framework="pt") as file:
            words = _check_words(json.loads(file.metadata()["sightline"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = {name: Public(tensors[name], frozenset(ids)) for name, ids in words["sources"].items()}
        memories = {
            name: ClientState({n: tensors[_state_name(name, n)] for n in found["clients"]}, frozenset(found["sources"]))
            for name, found in words["memories"].items()
        }
        return Checkpoint(words["round"], state, words["releases"], words["head"], words["counts"], memories)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"checkpoint={name}: cannot be read ({type(error).__name__}: {error})") from None


def _check_words(words: dict[str, Any]) -> dict[str, Any]:
    """The words of a checkpoint, when they are of the kinds that a run writes: no guess is made about others."""
    if any(type(words[name]) is not int or words[name] < 0 for name in ("round", "releases")):
        raise ValueError("round and releases are counts")
    if not isinstance(words["head"], str) or not all(isinstance(n, int | float) for n in words["counts"].values()):
        raise ValueError("head is a word, counts are numbers")
    known = [*words["sources"].values(), *(state["sources"] for state in words["memories"].values())]
    if any(type(id) is not int or not 0 <= id < words["releases"] for ids in known for id in ids):
        raise ValueError("sources are releases of the ledger")
    return words


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    *,
    mode: int = 0o644,
    settle: Callable[[Path], None] = lambda temporary: None,
) -> None:
    """Write tensors to a safetensors file, atomically and durably, readable as `mode` says from the first byte on.

    `settle` is called with the finished file before it takes its place.
    """
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, temporary, metadata)
    settle(temporary)
    replace_durably(temporary, path)


def replace_durably(temporary: Path, path: Path) -> None:
    """Move a finished file into place so that a crash leaves the old one or the new one, never a part."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
