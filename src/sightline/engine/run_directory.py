"""Run directories: creation, locking, ownership of files, and removal of starts that released nothing."""

import errno
import fcntl
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from sightline.config import Experiment, read, to_toml
from sightline.engine.record import DATABASE, WHOSE, RunRecord
from sightline.errors import InvalidInput, SightlineError, invalid
from sightline.ledger import GENESIS
from sightline.randomness import CIPHER, Streams, sync_folder, write_secret

CONFIG = "config.toml"
MODEL = "model.safetensors"
BEST = "best.safetensors"
"""The model of the best round, if `keep_best` asks for it."""
SECRET = "noise-root.secret"
LOCK = "run.lock"
RUN_ID = "run.id"
NODES_LOG = "nodes.log"
ANSWERS_LOG = "answers.jsonl"
"""The names of the file with the run's id for real sites, and of the logs of sites left out and of all answers."""
DIGEST = "data.digest"
"""The fingerprint of the private data, readable by the owner only: others could test guesses against it."""

MADE = "made by the run"
"""Content of the lock if the run also made its directory, which it may then remove."""
ENDED = ("finished", "stopped")
"""The states of a run that has no rounds left; only added rounds (`more_rounds`) continue it."""
OURS = {
    CONFIG,
    SECRET,
    DIGEST,
    RUN_ID,
    NODES_LOG,
    ANSWERS_LOG,
    DATABASE,
    *(f"{DATABASE}-{part}" for part in ("wal", "shm", "journal")),
}
OURS |= {Path(name).with_suffix(".tmp").name for name in (CONFIG, SECRET, DIGEST, RUN_ID)}
"""What a run writes before its first release, besides its lock, which comes first."""
TABLES = {"fact", "round", "release", "journal", "earlier"}

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_DISK = re.compile(r"disk|readonly database|os error (?:5|27|28|30|122)\b")


class DiskTrouble(SightlineError):
    """Raised if the disk did not accept a write."""


class RunBusy(SightlineError):
    """Raised if another process is working in the run directory."""


def new_directory(experiment: Experiment, out: Path | None, name: str = "") -> Path:
    """Make the directory of a new run: `out`, or the first free `runs/NAME`, `runs/NAME-2`, ..."""
    if out is None:
        return _first_free(Path("runs"), name or experiment.name)
    try:
        if out.exists() or out.is_symlink():
            check_free(out, experiment)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            _make(out)
    except OSError as error:
        invalid("--out", out, f"cannot be created ({error.strerror})")
    return out


def _make(path: Path) -> None:
    """Make a directory for its owner only, and record in its lock that a run did."""
    path.mkdir(mode=0o700)
    with os.fdopen(os.open(path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(MADE)


def check_free(out: Path, experiment: Experiment) -> None:
    """Raise if a directory holds anything but the remains of a run killed before its first release.

    Guarantees: no file that a run has not written is ever overwritten. A run's lock is written before any other file,
    and a `config.toml` counts as a run's own only if it says what this run would write.
    """
    result = {path.name for path in out.iterdir()} if out.is_dir() else {""}
    config = out / CONFIG
    if result and (LOCK not in result or not result <= {LOCK, *OURS} or _holds_more(out / DATABASE)):
        invalid("--out", out, "already exists and is not empty", "choose another, or --resume it")
    if config.name in result and config.read_text(encoding="utf-8", errors="replace") not in ("", to_toml(experiment)):
        invalid("--out", out, f"its {CONFIG} has other settings", f"choose another, or remove {CONFIG}")


def _holds_more(database: Path) -> bool:
    """Return whether a database holds releases or is not a run's; True if it cannot be read."""
    if not database.exists() or not database.stat().st_size:
        return False
    with closing(sqlite3.connect(database)) as connection:
        try:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            begun = "release" in tables and connection.execute("SELECT 1 FROM release LIMIT 1").fetchone() is not None
            return begun or not tables <= TABLES
        # Keep what cannot be read: it may hold releases, and they must stay counted.
        except sqlite3.DatabaseError:
            return True


def _first_free(folder: Path, name: str) -> Path:
    for number in range(1, 10**6):
        path = folder / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _make(path)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            invalid("--out", path, f"cannot be created ({error.strerror})", "give --out DIR")
    raise InvalidInput(f"--out={folder}/{name}: a million runs have that name; give --out DIR")


def read_settings(directory: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Return the settings that a run recorded, with `--set` overrides applied."""
    try:
        if not (directory / DATABASE).is_file():
            invalid("--resume", directory, "no run in this directory", "start it without --resume")
        if not (directory / CONFIG).is_file():
            reason = f"{CONFIG} is missing, and a run cannot be resumed without its settings"
            invalid("--resume", directory, reason, "restore it from a backup, or start a new run")
        if not os.access(directory / CONFIG, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        invalid("--resume", directory, f"cannot be read ({error.strerror})", WHOSE)
    return read(directory / CONFIG, overrides)


def directory_to_resume(experiment: Experiment, out: Path | None, name: str = "") -> Path:
    """Return the directory to resume: `out`, or the newest `runs/NAME*`. Raise if its settings differ."""
    path = out or _newest_run(Path("runs"), name or experiment.name)
    if read_settings(path) != experiment:
        with closing(RunRecord.open_to_read(path)) as record:
            ended = record.facts.get("status") in ENDED
        if ended:
            reason = "the run has ended and cannot be continued with other settings"
            invalid("--resume", path, reason, "start a new run")
        invalid(
            "--resume",
            path,
            f"the run was started with settings other than those of {experiment.name}",
            f"see its {CONFIG}",
        )
    return path


def _newest_run(folder: Path, name: str) -> Path:
    def number(path: Path) -> int:
        rest = path.name.removeprefix(name)
        return 1 if not rest else int(rest[1:]) if rest[:1] == "-" and rest[1:].isdigit() else 0

    result = [path for path in folder.glob(f"{name}*") if path.is_dir() and number(path)]
    if not result:
        invalid("--resume", f"{folder}/{name}", "no such run", "start it without --resume")
    return max(result, key=number)


def own_streams(directory: Path, record: RunRecord) -> Streams:
    """Return the secret streams of a run; for a resumed run, the ones with which it began.

    Raise if the noise root is gone or another one, or if the generator differs.
    """
    path, facts = directory / SECRET, record.facts
    goes_on = record.store.head() != GENESIS
    # With another root a schedule would begin again in its middle and use members more often than it claims, and a
    # repeated round would show a second noise on the same value for the price of one.
    if goes_on and not path.exists():
        _other_root(directory, "is gone")
    if goes_on and facts.get("noise_generator") != CIPHER:
        reason = f"its noise comes from another version's generator, not from {CIPHER}"
        invalid("--resume", directory, reason, "finish it with that version, or start a new run")
    streams = Streams.from_operating_system(path)
    if goes_on and facts.get("noise_root") != streams.fingerprint:
        _other_root(directory, "is not the one that the run began with")
    if not goes_on:
        record.remember_metadata({"noise_root": streams.fingerprint, "noise_generator": CIPHER})
    return streams


def remove_secret(directory: Path) -> None:
    """Delete the noise root of a run that has ended: a finder could otherwise subtract the noise."""
    (directory / SECRET).unlink(missing_ok=True)
    (directory / SECRET).with_suffix(".tmp").unlink(missing_ok=True)
    sync_folder(directory)


def _other_root(directory: Path, what: str) -> NoReturn:
    reason = f"its {SECRET} {what}, and with other random draws the claims of its releases would be wrong"
    invalid("--resume", directory, reason, "restore the file from a backup, or start a new run")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold the run directory. Raise `RunBusy` for a second process; the lock of a dead process is gone with it."""
    path = directory / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        invalid(
            "run", directory, f"its {LOCK} cannot be opened ({error.strerror})", "ask the owner of the run for access"
        )
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(f"run={directory}: another process is using it; wait for it or stop it") from None
        # The other process may have removed the directory between our open and our lock; then we hold a deleted file.
        if not path.exists() or path.stat().st_ino != os.fstat(handle).st_ino:
            raise RunBusy(f"run={directory}: another process used it and removed it; try again")
        yield
    finally:
        os.close(handle)


@contextmanager
def report_disk_errors(directory: Path) -> Iterator[None]:
    """Turn a full or broken disk into one line of error; releases made before stay in the ledger and count."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, SafetensorError) as error:
        known = error.errno in OF_THE_DISK if isinstance(error, OSError) else _DISK.search(str(error)) is not None
        if not known:
            raise
        why = f"a write to the disk failed ({error}); free some space, then continue with --resume"
        raise DiskTrouble(f"run={directory}: {why}") from None


@contextmanager
def removed_if_nothing_was_released(directory: Path) -> Iterator[None]:
    """Remove what a run wrote if it fails before its first release, and nothing else."""
    # Files that were here before are not ours to remove, whatever their names.
    before = {path.name for path in directory.iterdir()} - {LOCK}
    try:
        yield
    except BaseException:
        if not _has_releases(directory / DATABASE):
            _remove(directory, OURS - before)
        raise


def _remove(directory: Path, names: Iterable[str]) -> None:
    """Remove files of a run, its lock last, and then the directory if the run made it."""
    with suppress(OSError):
        for name in names:
            (directory / name).unlink(missing_ok=True)
        made = (directory / LOCK).read_text(encoding="utf-8") == MADE
        if {path.name for path in directory.iterdir()} <= {LOCK}:
            (directory / LOCK).unlink()
        if made:
            # Fails, and is left alone, if another program has put something into it.
            directory.rmdir()


def _has_releases(database: Path) -> bool:
    """Return whether releases were made; True if the database cannot be read, because it may hold some."""
    if not database.exists():
        return False
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute("SELECT 1 FROM release LIMIT 1").fetchone() is not None
        except sqlite3.DatabaseError as error:
            return "no such table" not in str(error)


def write_settings(directory: Path, experiment: Experiment) -> None:
    """Write the resolved settings for the owner only, because they hold the seed."""
    write_secret(directory / CONFIG, to_toml(experiment).encode())


def remove_false_start(directory: Path) -> None:
    """Remove the database and secrets of a start that was killed before its first release."""
    # A new start draws a new noise root. The run id and the log of nodes stay: real sites know the run by them.
    for name in OURS - {CONFIG, RUN_ID, NODES_LOG, ANSWERS_LOG}:
        (directory / name).unlink(missing_ok=True)


def close_to_others(directory: Path) -> None:
    """Remove other users' permissions from files that a run of an earlier version left open."""
    for name in (CONFIG, DATABASE, LOCK, RUN_ID):
        path = directory / name
        with suppress(FileNotFoundError):
            if path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o077:
                path.chmod(0o600)
