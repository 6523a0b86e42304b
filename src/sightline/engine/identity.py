"""What a run is made of (settings, data, model code, packages), and what of it has changed when the run goes on."""

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from sightline.data import Federation
from sightline.engine.build import BuiltExperiment
from sightline.engine.checkpoint import file_digest
from sightline.engine.metadata import package_versions
from sightline.engine.record import RunRecord
from sightline.engine.run_directory import CONFIG, DIGEST
from sightline.errors import InvalidInput, invalid, one_line
from sightline.ledger import EntryKind
from sightline.randomness import new_salt, write_secret

ACCEPT = "--accept-changes"
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def remember_data(directory: Path, federation: Federation) -> None:
    """Keep the fingerprint of the data that the run begins with, with salt: the journal's hash of it tells nothing."""
    write_secret(directory / DIGEST, f"{federation.digest()} {new_salt()}".encode())


def check_data(directory: Path, federation: Federation) -> None:
    """Refuse to go on with other data: a round done again would put the same noise on another value."""
    path = directory / DIGEST
    if not path.is_file():
        invalid("--resume", directory, f"its {DIGEST} is gone, so nobody knows whether the data are the same")
    if path.read_bytes().split()[:1] != [federation.digest().encode()]:
        law = "the data are not those that the run began with, and the same noise on two values cancels"
        invalid("--resume", directory, law, "bring the data back, or start a new run")


@dataclass(frozen=True)
class Change:
    """The last change that was accepted: rounds up to `round` and releases before number `since` are from before it."""

    round: int = 0
    since: int = 0


def describe_identity(setting: BuiltExperiment, directory: Path) -> dict[str, Any]:
    """The hashes of everything that a run is made of, by name; packages by their version."""
    return {
        "config": file_digest(directory / CONFIG),
        "data": file_digest(directory / DIGEST),
        "start": hashlib.sha256(setting.start.detach().contiguous().numpy().tobytes()).hexdigest(),
        "code": dict(sorted(own_code(setting))),
        "versions": package_versions(),
    }


def own_code(setting: BuiltExperiment) -> Iterator[tuple[str, str]]:
    """(module, hash of its file) of the user's own model: the file it is named in, and what that file imports.

    Followed are modules at the top of each file, as long as they are the user's: the standard library, installed
    packages and Sightline are known by their versions. Imports inside of functions are not seen.
    """
    name = setting.experiment.model.name
    if ":" not in name:
        return
    place, _, attribute = name.partition(":")
    factory = getattr(import_module(place), attribute)
    waiting = [place, str(getattr(factory, "__module__", place))]
    waiting += [type(module).__module__ for module in setting.model.module().modules()]
    seen: set[str] = set()
    while waiting:
        module = sys.modules.get(waiting.pop())
        if module is None or module.__name__ in seen or (module.__name__ != place and not is_own(module)):
            continue
        seen.add(module.__name__)
        yield module.__name__, _source_digest(module, factory)
        if is_own(module):
            waiting += _imports(module)


def is_own(module: ModuleType) -> bool:
    """Whether a module is the user's: not of Python, not installed, not Sightline's."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ == "__main__"
    path, ours = Path(file).resolve(), Path(__file__).resolve().parents[1]
    return not any(path.is_relative_to(place) for place in (*_INSTALLED, ours))


def _imports(module: ModuleType) -> Iterator[str]:
    """The names of the modules that a module's own names come from."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _source_digest(module: ModuleType, factory: Any) -> str:
    """The hash of a module's file; of a notebook's model, which has none, that of its own source."""
    try:
        return file_digest(Path(str(module.__file__)))
    except (AttributeError, OSError):
        pass
    try:
        return hashlib.sha256(inspect.getsource(factory).encode()).hexdigest()
    except (OSError, TypeError):
        return "unknown"


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of code, packages and first weights is not as it was, in words.

    >>> list_changes({"versions": {"torch": "2.12"}, "code": {"net": "a"}}, {"versions": {"torch": "2.13"}, "code": {}})
    ['torch 2.12 -> 2.13', 'code of net']
    """
    was, are = before.get("versions", {}), now.get("versions", {})
    found = [
        f"{name} {was.get(name, 'none')} -> {are.get(name, 'none')}"
        for name in sorted({*was, *are})
        if was.get(name) != are.get(name)
    ]
    was, are = before.get("code", {}), now.get("code", {})
    found += [f"code of {name}" for name in sorted({*was, *are}) if was.get(name) != are.get(name)]
    return found + (["weights that training starts from"] if before.get("start") != now.get("start") else [])


def begin_identity(record: RunRecord, setting: BuiltExperiment) -> None:
    """Write what a new run is made of as the first entry of its journal."""
    record.note(EntryKind.START, describe_identity(setting, record.directory))


def check_identity(record: RunRecord, setting: BuiltExperiment, *, accept: bool) -> tuple[dict[str, Any], list[str]]:
    """What the run is made of now, and what of it has changed; refused where nobody accepted the change.

    Settings and data are never other ones. Code and packages may be, when whoever resumes says so.
    """
    now = describe_identity(setting, record.directory)
    known = record.journal.last(EntryKind.START, EntryKind.RESUME)
    if not known:
        return now, []
    before = known[0].body
    for name, file in (("config", CONFIG), ("data", DIGEST)):
        if before.get(name, now[name]) != now[name]:
            invalid("--resume", record.directory, f"its {file} was changed since the run began", "bring it back")
    changes = list_changes(before, now)
    if changes and not accept:
        law = "changed since the run was last at work: " + ", ".join(changes)
        raise InvalidInput(one_line("--resume", record.directory, law, f"bring it back, or go on with {ACCEPT}"))
    return now, changes


def last_change(record: RunRecord) -> Change:
    """Where the code that is at work now took over."""
    known = record.journal.last(EntryKind.RESUME)
    return Change(int(known[0].body["round"]), int(known[0].body["since"])) if known else Change()
