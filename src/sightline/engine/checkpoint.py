"""Resume state of a run: checkpoints, recorded code paths, and a check that code, data and settings are the same."""

import hashlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.data import Federation
from sightline.engine.build import BuiltExperiment
from sightline.engine.metadata import package_versions
from sightline.engine.record import RunRecord
from sightline.engine.run_directory import CONFIG, DIGEST
from sightline.errors import InvalidInput, SightlineError, invalid, one_line
from sightline.ledger import EntryKind
from sightline.mechanisms import ClientState, Public
from sightline.models import code_digest, is_given_model
from sightline.randomness import new_salt, sync_folder, write_secret
from sightline.training.dispatch import describe_device
from sightline.training.local_work import BY_RULE, Paths, read_paths
from sightline.training.measure_paths import choose_paths, compiled_code, local_work, missing_paths

ChoosePaths = Callable[[BuiltExperiment], Paths]
"""Chooses the paths of a new run."""


def paths_by_rule(built: BuiltExperiment) -> Paths:
    """Return the paths by rule, for clients on other machines: every machine would measure something else."""
    return BY_RULE


def paths_by_measuring(built: BuiltExperiment) -> Paths:
    """Return the fastest paths on this machine; by rule if `local.paths` or `SIGHTLINE_PATHS` says so."""
    return choose_paths(built.experiment, built.model, built.federation.sizes.tolist())


def settle_paths(
    record: RunRecord, built: BuiltExperiment, choose: ChoosePaths, *, begun: bool, accept: bool
) -> BuiltExperiment:
    """Return the experiment with the paths of its run: chosen for a new run, read from the journal for a resumed one.

    Guarantees: later measurements, the cache and the environment do not affect a run that has begun. A recorded path
    that does not exist on this machine raises; with accepted changes the rule's path is used there, and the change is
    treated like other code: the interrupted round is repeated with other noise.
    """
    known = record.journal.last(EntryKind.START, EntryKind.RESUME)
    if not known:  # a new run, or one of a version that kept no journal and had the rule's paths
        return built if begun else replace(built, paths=choose(built))
    # Paths agree up to rounding only. A resumed run must repeat its bits, so it takes the recorded ones.
    paths = read_paths(known[0].body.get("paths"))
    missing = missing_paths(built.model, local_work(built.experiment), paths)
    if missing and not accept:
        lacking = ", ".join(f"{field} = {path}" for field, path in missing.items())
        reason = f"this machine does not have its training paths: {lacking}"
        invalid(
            "--resume",
            record.directory,
            reason,
            f"resume on the machine where it began, or choose the paths by rule with {ACCEPT}",
        )
    return replace(built, paths=replace(paths, **{field: getattr(BY_RULE, field) for field in missing}))


CHECKPOINT = "checkpoint.safetensors"
EARLIER = "checkpoint-before.safetensors"
"""The checkpoint before the last, in case the last is damaged."""
OWNER_ONLY = 0o600
"""Checkpoints hold clients' private state; other users must not read them."""


class CheckpointDamaged(SightlineError):
    """Raised if a checkpoint cannot be read or does not belong to the ledger beside it."""

    exit_code = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after a round, and the ledger to which it belongs."""

    round: int
    state: Mapping[str, Public]
    releases: int
    head: str
    """Hash of the last release, with the number of `releases`: a ledger that was cut or replaced does not match."""
    counts: Mapping[str, float]
    """Traffic and rejected updates of the round."""
    memories: Mapping[str, ClientState] = field(default_factory=dict)
    """The clients' private state, as much a part of the run as the model."""


def save_checkpoint(
    directory: Path, checkpoint: Checkpoint, vouch: Callable[[str], None] = lambda digest: None
) -> None:
    """Write the checkpoint of a round; the previous one is replaced only after the new one is safe on disk.

    `vouch` gets the SHA-256 of the new file before it takes its place.
    """
    metadata = {
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
    held = {name: sorted(value.held_by) for name, value in checkpoint.state.items() if value.held_by is not None}
    metadata |= {"held_by": held} if held else {}
    kept = {
        _state_name(name, client): value
        for name, state in checkpoint.memories.items()
        for client, value in state.values.items()
    }
    tensors = {name: value.value for name, value in checkpoint.state.items()} | kept
    whole = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    path = directory / CHECKPOINT

    def settle(temporary: Path) -> None:
        # First the hash in the journal, then the file in its place: a checkpoint that the journal does not know is
        # damaged.
        vouch(file_digest(temporary))
        keep_earlier(path, directory / EARLIER)

    save_tensors(path, whole, {"sightline": json.dumps(metadata)}, mode=OWNER_ONLY, settle=settle)


def keep_earlier(path: Path, earlier: Path) -> None:
    """Keep a second name for a file that is about to be replaced; skip it on file systems without hard links."""
    temporary = earlier.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with suppress(FileNotFoundError, NotImplementedError, PermissionError):
        os.link(path, temporary)
        temporary.replace(earlier)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_name(memory: str, client: int) -> str:
    """Return the name of a client's state among the tensors of a checkpoint."""
    return f"memory/{memory}/{client}"


def find_checkpoint(directory: Path, known: Collection[str]) -> tuple[Checkpoint | None, str]:
    """Return the newest intact checkpoint of a run, and what is wrong with a newer one.

    `known` are the hashes in the journal; if it has none (a run from before journals) any readable checkpoint is
    accepted. Return None without any checkpoint; raise `CheckpointDamaged` if none is intact.
    """
    wrong = []
    # The earlier one leads to the same bits: the rounds after it are repeated from the same streams.
    for name in (CHECKPOINT, EARLIER):
        try:
            result = load_checkpoint(directory, known, name=name)
        except CheckpointDamaged as error:
            wrong.append(str(error))
            continue
        if result is not None:
            return result, wrong[0] if wrong else "" if name == CHECKPOINT else f"checkpoint={CHECKPOINT}: not there"
    if wrong:
        way_out = "restore it from a backup, or remove it to repeat all rounds with the same result"
        raise CheckpointDamaged(f"{wrong[0]}, and every earlier one is damaged too; {way_out}")
    return None, f"checkpoint={CHECKPOINT}: not there" if known else ""


def check_length(directory: Path, releases: int) -> None:
    """Raise `CheckpointDamaged` if the ledger is shorter than the last checkpoint knows."""
    try:
        result = load_checkpoint(directory)
    except CheckpointDamaged:
        return
    if result is not None and result.releases > releases:
        reason = f"it lists {result.releases} releases but the ledger has {releases}; rows were deleted"
        raise CheckpointDamaged(f"checkpoint={directory}: {reason}, or an older database was restored")


def load_checkpoint(directory: Path, known: Collection[str] = (), *, name: str = CHECKPOINT) -> Checkpoint | None:
    """Return a checkpoint, or None if there is none. Raise `CheckpointDamaged` for an unknown hash or bad content."""
    path = directory / name
    try:
        if not path.exists():
            return None
        if known and file_digest(path) not in known:
            raise CheckpointDamaged(f"checkpoint={name}: damaged: its bytes differ from what the run wrote")
        with safe_open(path, framework="pt") as file:
            metadata = _check_metadata(json.loads(file.metadata()["sightline"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        held = {name: frozenset(parties) for name, parties in metadata.get("held_by", {}).items()}
        sources = metadata["sources"].items()
        state = {name: Public(tensors[name], frozenset(ids), held.get(name)) for name, ids in sources}
        memories = {
            name: ClientState(
                {n: tensors[_state_name(name, n)] for n in result["clients"]}, frozenset(result["sources"])
            )
            for name, result in metadata["memories"].items()
        }
        return Checkpoint(
            metadata["round"], state, metadata["releases"], metadata["head"], metadata["counts"], memories
        )
    # Whatever cannot be read is damage; nothing is guessed about its content.
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"checkpoint={name}: cannot be read ({type(error).__name__}: {error})") from None


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a checkpoint. Raise ValueError for types that no run writes."""
    if any(type(metadata[name]) is not int or metadata[name] < 0 for name in ("round", "releases")):
        raise ValueError("round and releases must be counts")
    if not isinstance(metadata["head"], str) or not all(
        isinstance(n, int | float) for n in metadata["counts"].values()
    ):
        raise ValueError("head must be a string, and counts must be numbers")
    if not all(isinstance(name, str) for parties in metadata.get("held_by", {}).values() for name in parties):
        raise ValueError("held_by must be names of parties")
    # A source that the ledger does not have would be a value of unknown origin: its releases could not be charged.
    known = [*metadata["sources"].values(), *(state["sources"] for state in metadata["memories"].values())]
    if any(type(id) is not int or not 0 <= id < metadata["releases"] for ids in known for id in ids):
        raise ValueError("sources must be releases of the ledger")
    return metadata


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    *,
    mode: int = 0o644,
    settle: Callable[[Path], None] = lambda temporary: None,
) -> None:
    """Write tensors to a safetensors file, atomically and durably, with `mode` from the first byte on.

    `settle` is called with the finished file before it takes its place.
    """
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    # Create the file with its final mode: a later chmod would leave a moment in which other users can read it.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, temporary, metadata)
    settle(temporary)
    replace_durably(temporary, path)


def replace_durably(temporary: Path, path: Path) -> None:
    """Move a finished file into place so that a crash leaves the old one or the new one, never a part."""
    # fsync the file before the rename and the folder after it; otherwise a power loss can leave an empty file.
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


ACCEPT = "--accept-changes"
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def remember_data(directory: Path, federation: Federation) -> None:
    """Store the salted fingerprint of the data; the journal's hash of it then reveals nothing about the data."""
    write_secret(directory / DIGEST, f"{federation.digest()} {new_salt()}".encode())


def check_data(directory: Path, federation: Federation) -> None:
    """Raise if the data are not those that the run began with."""
    # An interrupted round is repeated with the same noise. On other data the difference of both values would be
    # noise-free.
    path = directory / DIGEST
    if not path.is_file():
        invalid("--resume", directory, f"{DIGEST} is missing, so Sightline cannot check that the data are unchanged")
    if path.read_bytes().split()[:1] != [federation.digest().encode()]:
        reason = "the data changed since the run began, and the same noise on two values cancels out"
        invalid("--resume", directory, reason, "restore the data, or start a new run")


@dataclass(frozen=True)
class Change:
    """The last accepted change: rounds up to `round` and releases before number `since` precede it."""

    round: int = 0
    since: int = 0


def describe_identity(built: BuiltExperiment, directory: Path) -> dict[str, Any]:
    """Return the hashes of everything a run is made of, by name; packages by their version."""
    start, constants = built.start.detach().contiguous(), built.model.constants
    frozen = [f"{name} {tensor_digest(constants[name])}" for name in sorted(constants)]
    return (
        {
            "config": file_digest(directory / CONFIG),
            "data": file_digest(directory / DIGEST),
            "start": hashlib.sha256(start.numpy().tobytes()).hexdigest(),
            "code": dict(sorted(own_code(built))),
            "versions": package_versions(),
        }
        | _other_device(built)
        | _other_paths(built)
        | ({"frozen": hashlib.sha256("\n".join(frozen).encode()).hexdigest()} if frozen else {})
    )


def _other_device(built: BuiltExperiment) -> dict[str, str]:
    """Return the training device if it is not the CPU: another device rounds differently."""
    device = built.model.device
    return {} if device.type == "cpu" else {"device": describe_device(device)}


def _other_paths(built: BuiltExperiment) -> dict[str, Any]:
    """Return the paths of local training if they are not the rule's, and the compiled code among them."""
    taken = built.paths
    return {} if taken == BY_RULE else {"paths": taken.describe(), "compiled": compiled_code(taken)}


def tensor_digest(tensor: Tensor) -> str:
    """Return the hash of a tensor's bytes, for any dtype."""
    numbers = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(numbers.view(torch.uint8).numpy().tobytes()).hexdigest()


def own_code(built: BuiltExperiment) -> Iterator[tuple[str, str]]:
    """Yield (module, hash of its file) of own models, losses and plugins, and of what these files import.

    Only imports at the top of each file are followed, and only modules of the user or of a plugin's own package: the
    standard library, other installed packages and Sightline are known by their versions. Imports inside functions are
    not seen.

    For a model that a program passed in, the program's own file does not count, because it may change around the model;
    the code that the model reaches is hashed instead.
    """
    named, name = dict(_named_objects(built)), built.experiment.model.name
    waiting = [*named, *(str(getattr(thing, "__module__", module)) for module, thing in named.items())]
    if ":" in name:
        waiting += [type(module).__module__ for module in built.model.module().modules()]
    tops = {plugin.module.partition(".")[0] for plugin in built.plugins} - {"sightline"}
    seen: set[str] = set()
    # The program is the file that one edits to write `resume=True`, so its own hash would refuse every resume.
    if is_given_model(name):
        seen.add("__main__")
        waiting.append(str(getattr(getattr(built.model.factory, "func", None), "__module__", "")))
        yield name, code_digest(built.model)
    while waiting:
        module = sys.modules.get(waiting.pop())
        if module is None or module.__name__ in seen:
            continue
        followed = is_own(module) or module.__name__.partition(".")[0] in tops
        if not followed and module.__name__ not in named:
            continue
        seen.add(module.__name__)
        yield module.__name__, _source_digest(module, named.get(module.__name__))
        if followed:
            waiting += _imports(module)


def _named_objects(built: BuiltExperiment) -> Iterator[tuple[str, Any]]:
    """Yield (module, object) of everything that the experiment file names by its location."""
    model = built.experiment.model
    for name in (model.name, model.loss or ""):
        module, colon, attribute = name.partition(":")
        if colon and not is_given_model(name):
            yield module, getattr(import_module(module), attribute)
    for plugin in built.plugins:
        yield plugin.module, plugin.load_object()


def is_own(module: ModuleType) -> bool:
    """Return whether a module is the user's: not Python's, not installed, not Sightline's."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ == "__main__"
    path, ours = Path(file).resolve(), Path(__file__).resolve().parents[1]
    installed = {"site-packages", "dist-packages"} & set(path.parts)  # also those of another environment below this one
    return not installed and not any(path.is_relative_to(folder) for folder in (*_INSTALLED, ours))


def _imports(module: ModuleType) -> Iterator[str]:
    """Yield the modules from which a module's own names come."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _source_digest(module: ModuleType, factory: Any) -> str:
    """Return the hash of a module's file; for a notebook's model, which has none, that of its source."""
    try:
        return file_digest(Path(str(module.__file__)))
    except (AttributeError, OSError):
        pass
    try:
        return hashlib.sha256(inspect.getsource(factory).encode()).hexdigest()
    except (OSError, TypeError):
        return "unknown"


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return descriptions of changed code, packages and initial weights.

    >>> list_changes({"versions": {"torch": "2.12"}, "code": {"net": "a"}}, {"versions": {"torch": "2.13"}, "code": {}})
    ['torch 2.12 -> 2.13', 'code of net']
    """
    was, are = before.get("versions", {}), now.get("versions", {})
    result = [
        f"{name} {was.get(name, 'none')} -> {are.get(name, 'none')}"
        for name in sorted({*was, *are})
        if was.get(name) != are.get(name)
    ]
    was, are = before.get("code", {}), now.get("code", {})
    result += [f"code of {name}" for name in sorted({*was, *are}) if was.get(name) != are.get(name)]
    was, are = before.get("device", "cpu"), now.get("device", "cpu")
    result += [f"device {was} -> {are}"] if was != are else []
    was, are = (BY_RULE.describe() | one.get("paths", {}) for one in (before, now))
    moved = [f"path {name} {was[name]} -> {are[name]}" for name in are if was.get(name) != are[name]]
    result += moved or (["compiled code"] if before.get("compiled") != now.get("compiled") else [])
    if "frozen" in before and before["frozen"] != now.get("frozen"):
        result.append("frozen tensors and buffers")
    return result + (["weights that training starts from"] if before.get("start") != now.get("start") else [])


def begin_identity(record: RunRecord, built: BuiltExperiment) -> None:
    """Write what a new run is made of as the first entry of its journal."""
    record.note(EntryKind.START, describe_identity(built, record.directory))


def check_identity(record: RunRecord, built: BuiltExperiment, *, accept: bool) -> tuple[dict[str, Any], list[str]]:
    """Return what the run is made of now and what has changed. Raise unless the changes are accepted.

    Settings and data may never change. Code and packages may, if the user accepts it.
    """
    now = describe_identity(built, record.directory)
    known = record.journal.last(EntryKind.START, EntryKind.RESUME)
    if not known:
        return now, []
    before = known[0].body
    for name, file in (("config", CONFIG), ("data", DIGEST)):
        if before.get(name, now[name]) != now[name]:
            invalid("--resume", record.directory, f"{file} changed since the run began", "restore it from a backup")
    changes = list_changes(before, now)
    if changes and not accept:
        reason = "changed since the run last worked: " + ", ".join(changes)
        raise InvalidInput(one_line("--resume", record.directory, reason, f"restore it, or resume with {ACCEPT}"))
    return now, changes


def last_change(record: RunRecord) -> Change:
    """Return the point at which the current code took over."""
    known = record.journal.last(EntryKind.RESUME)
    return Change(int(known[0].body["round"]), int(known[0].body["since"])) if known else Change()
