"""Run directories: where they are, that they are new, and that only one process works in one."""

import errno
import fcntl
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from sightline.config import Experiment, to_toml
from sightline.data import Federation
from sightline.engine.record import DATABASE, RunRecord
from sightline.errors import InvalidInput, SightlineError, invalid
from sightline.ledger import GENESIS
from sightline.randomness import Streams, write_secret

CONFIG = "config.toml"
MODEL = "model.safetensors"
SECRET = "noise-root.secret"
LOCK = "run.lock"
RUN_ID = "run.id"
NODES_LOG = "nodes.log"
"""The name by which real sites know a run, and why they were left out of rounds."""
DIGEST = "data.digest"
"""The fingerprint of the private data, for its owner only: others could check their guesses against it."""

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_DISK = re.compile(r"disk|readonly database|os error (?:5|27|28|30|122)\b")


class DiskTrouble(SightlineError):
    """The disk did not take what had to be written."""


class RunBusy(SightlineError):
    """Another process is working in the run directory."""


def new_directory(experiment: Experiment, out: Path | None) -> Path:
    """Make the directory of a new run: `out`, or the first free `runs/NAME`, `runs/NAME-2`, ..."""
    if out is None:
        return _first_free(Path("runs"), experiment.name)
    try:
        if out.exists() and not _false_start(out):
            invalid("--out", out, "is there already and not empty", "choose another, or --resume it")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        invalid("--out", out, f"cannot be made ({error.strerror})")
    return out


def _false_start(out: Path) -> bool:
    """Whether a directory is empty or holds only what a run leaves that was killed before its first release."""
    ours = {CONFIG, LOCK, SECRET, DIGEST, RUN_ID, NODES_LOG, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"}
    return out.is_dir() and {path.name for path in out.iterdir()} <= ours and not _has_releases(out / DATABASE)


def _first_free(folder: Path, name: str) -> Path:
    for number in range(1, 10**6):
        path = folder / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            invalid("--out", path, f"cannot be made ({error.strerror})", "give --out DIR")
    raise InvalidInput(f"--out={folder}/{name}: a million runs of that name; give --out DIR")


def directory_to_resume(experiment: Experiment, out: Path | None) -> Path:
    """The directory of a run to go on with: `out`, or the newest `runs/NAME*`; its settings must be the same."""
    path = out or _newest(Path("runs"), experiment.name)
    if not (path / DATABASE).is_file():
        invalid("--resume", path, "holds no run", "start it without --resume")
    if (path / CONFIG).read_text(encoding="utf-8") != to_toml(experiment):
        invalid("--resume", path, f"was started with other settings than {experiment.name}", f"see its {CONFIG}")
    return path


def _newest(folder: Path, name: str) -> Path:
    def number(path: Path) -> int:
        rest = path.name.removeprefix(name)
        return 1 if not rest else int(rest[1:]) if rest[:1] == "-" and rest[1:].isdigit() else 0

    found = [path for path in folder.glob(f"{name}*") if path.is_dir() and number(path)]
    if not found:
        invalid("--resume", f"{folder}/{name}", "no such run", "start it without --resume")
    return max(found, key=number)


def remember_data(directory: Path, federation: Federation) -> None:
    """Keep the fingerprint of the data that the run begins with."""
    write_secret(directory / DIGEST, federation.digest().encode())


def same_data(directory: Path, federation: Federation) -> None:
    """Refuse to go on with other data: a round done again would put the same noise on another value."""
    path = directory / DIGEST
    if not path.is_file():
        invalid("--resume", directory, f"its {DIGEST} is gone, so nobody knows whether the data are the same")
    if path.read_bytes() != federation.digest().encode():
        law = "the data are not those that the run began with, and the same noise on two values cancels"
        invalid("--resume", directory, law, "bring the data back, or start a new run")


def own_streams(directory: Path, record: RunRecord) -> Streams:
    """The secret streams of a run; when it goes on, the ones that it began with.

    With another root a schedule would begin anew in its middle and use members more often than it claims, and a round
    done again would show a second noise on the same value for the price of one.
    """
    path, facts = directory / SECRET, record.facts
    goes_on = record.store.head() != GENESIS and facts.get("status") != "finished"
    if goes_on and not path.exists():
        _other_root(directory, "is gone")
    streams = Streams.from_operating_system(path)
    if goes_on and facts.get("noise_root", streams.fingerprint) != streams.fingerprint:
        _other_root(directory, "is not the one that the run began with")
    if not goes_on:
        record.remember({"noise_root": streams.fingerprint})
    return streams


def _other_root(directory: Path, what: str) -> NoReturn:
    law = f"its {SECRET} {what}, and with other coins its releases are not what they claim to be"
    invalid("--resume", directory, law, "bring the file back, or start a new run")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the run directory; a second process is refused, and a dead one's hold is gone with it."""
    with open(directory / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(f"run={directory}: another process is working in it; wait for it or stop it") from None
        yield


@contextmanager
def disk_told(directory: Path) -> Iterator[None]:
    """Say in one line that the disk is full or broken; what was released before is in the ledger and stays counted."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, SafetensorError) as error:
        known = error.errno in OF_THE_DISK if isinstance(error, OSError) else _DISK.search(str(error)) is not None
        if not known:
            raise
        why = f"the disk did not take a write ({error}); make room, then go on with --resume"
        raise DiskTrouble(f"run={directory}: {why}") from None


@contextmanager
def removed_if_nothing_was_released(directory: Path) -> Iterator[None]:
    """Leave no half-written run: one that fails before its first release takes its directory with it."""
    try:
        yield
    except BaseException:
        if not _has_releases(directory / DATABASE):
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _has_releases(database: Path) -> bool:
    """Whether releases were made, as far as can be known: what cannot be read may hold some."""
    if not database.exists():
        return False
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute("SELECT 1 FROM release LIMIT 1").fetchone() is not None
        except sqlite3.DatabaseError as error:
            return "no such table" not in str(error)
