"""The targets: each takes bytes and gives them to one reader. Fine, or one line, or it is a bug."""

import contextlib
import gzip
import io
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from sightline.apps.serve.guard import Guard
from sightline.config import read, to_toml
from sightline.data.formats import Field, read_arrays, read_csv, read_idx, read_npz
from sightline.engine import RunRecord, checkpoint
from sightline.engine.record import DATABASE
from sightline.errors import SightlineError
from sightline.ledger import GENESIS, SqliteStore, export_ledger, read_export
from sightline.ledger.store import chain_hash
from sightline.resources import read_table
from sightline.runtimes.remote.clients import ExpectedAnswer, why_misdirected
from sightline.runtimes.remote.message import (
    LARGEST_SITE_FIELDS,
    NodeTask,
    WireMessage,
    read_fields,
    read_npy,
    read_site_question,
)
from sightline.topology import read_memberships
from sightline.topology.tree import read_tree
from tests.serve.serve_asking import asking, site_of

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}


class Bug(Exception):
    """A reader said more than one line, or took what it should not."""


def target(function: Target) -> Target:
    """Register a target under its name; mistakes that are told in one line are what is wanted."""

    def guarded(content: bytes) -> None:
        try:
            function(content)
        except SightlineError as error:
            if "\n" in str(error) or len(str(error)) > 2000:
                raise Bug(f"not one line: {error!r}") from error

    TARGETS[function.__name__] = guarded
    return guarded


@cache
def place() -> Path:
    """A folder of this process; in memory where the machine has one there."""
    shm = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="sightline-fuzz-", dir=shm if shm.is_dir() else None))


def file(name: str, content: bytes) -> Path:
    """The content as a file."""
    path = place() / name
    path.write_bytes(content)
    return path


@target
def experiment(content: bytes) -> None:
    """An experiment survives being written and read again."""
    path = file("x.toml", content)
    found = read(path)
    path.write_text(to_toml(found), encoding="utf-8")
    if read(path) != found:
        raise Bug("written and read it is another")


@target
def exported(content: bytes) -> None:
    """An exported ledger survives being exported and read again."""
    path = file("ledger.json", content)
    ledger = read_export(path)
    path.write_text(json.dumps(export_ledger(ledger)), encoding="utf-8")
    if list(read_export(path)) != list(ledger):
        raise Bug("exported and read it is another")


@target
def rows(content: bytes) -> None:
    """Rows of a ledger whose hashes are right, whatever they hold."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        store, head = SqliteStore(connection), GENESIS
        for id, body in enumerate(content.decode("utf-8", "replace").split("\n")):
            head = chain_hash(head, body)
            connection.execute("INSERT INTO release VALUES (?, 1, ?, ?)", (id, body, head))
        store.read()


@target
def database(content: bytes) -> None:
    """A run's database as it lies on the disk."""
    file(DATABASE, content)
    with contextlib.closing(RunRecord.open_to_read(place())) as record:
        _ = record.facts, record.rounds(), record.last_round()
        with contextlib.suppress(sqlite3.Error, MemoryError):  # one line at the command line and on a page
            record.pages.rows(0, 10)
        list(record.store.stream_releases())


@target
def saved(content: bytes) -> None:
    """A checkpoint."""
    file(checkpoint.CHECKPOINT, content)
    found = checkpoint.load_checkpoint(place())
    if found is None or type(found.round) is not int:
        raise Bug("a checkpoint without a round")


@target
def letter(content: bytes) -> None:
    """A letter, as a question and as an answer; safetensors reads no other arrays, and what was read can be sent."""
    found = WireMessage.from_bytes(content)
    others = load(content)
    if set(others) != set(found.arrays) or any(others[n].tobytes() != a.tobytes() for n, a in found.arrays.items()):
        raise Bug("safetensors reads other arrays")
    WireMessage.from_bytes(found.reply(0, found.fields, found.arrays).to_bytes())
    asked = WireMessage({"question": "q", "client": 0, "round": 1})
    why_misdirected(found, asked)
    ExpectedAnswer(3).wrong_with(found, simulated=False)
    NodeTask.read(found, 0)


@target
def question(content: bytes) -> None:
    """The words of a question to a site: whatever it reads it can send back, on one line."""
    try:
        words = read_fields(content.decode())
    except (ValueError, RecursionError):
        return  # from_bytes and from_record refuse it
    found = read_site_question(WireMessage(words))
    WireMessage.from_bytes(found.reply(0, {}).to_bytes(), largest_fields=LARGEST_SITE_FIELDS)
    if not all(isinstance(word, int) or (word.isprintable() and len(word) <= 64) for word in found.fields.values()):
        raise Bug("a word that is long, or not printable")


@target
def npy(content: bytes) -> None:
    """An array of a reply: what is read is what NumPy reads."""
    try:
        found = read_npy(content)
    except ValueError:
        return  # from_record refuses it
    other = np.load(io.BytesIO(content), allow_pickle=False)
    if (other.dtype, other.shape, other.tobytes()) != (found.dtype, found.shape, found.tobytes()):
        raise Bug("NumPy reads another array")


def packed(content: bytes) -> bytes:
    """As it is, or in a whole gzip: the first byte says which."""
    return gzip.compress(content[1:], compresslevel=0, mtime=0) if content[:1] == b"z" else content


@target
def idx(content: bytes) -> None:
    """Images and labels of MNIST."""
    path = file("x.gz", packed(content))
    with contextlib.suppress(SightlineError):
        read_idx(path, item=())
    read_idx(path, item=(2, 2))


@target
def table(content: bytes) -> None:
    """A gzipped CSV."""
    read_csv(file("x.csv.gz", packed(content)), ["text", "label"])


def zipped(content: bytes) -> bytes:
    """As it is, or as a member of a whole archive."""
    if content[:1] != b"z":
        return content
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("x.npy", content[1:])
    return made.getvalue()


@target
def npz(content: bytes) -> None:
    """NumPy archives, of others and of one's own."""
    path = file("x.npz", zipped(content))
    with contextlib.suppress(SightlineError):
        read_npz(path, {"x": Field("uint8", (None, 2))})
    for array in read_arrays(path, ["x"]).values():
        if array.dtype.hasobject or not isinstance(array, np.ndarray):
            raise Bug("an object came out of a file")


@target
def places(content: bytes) -> None:
    """Memberships, trees and tables of costs."""
    path = file("x.json", content)
    for reader in (read_memberships, read_tree, lambda given: read_table({"file": str(given)}, clients=3)):
        with contextlib.suppress(SightlineError):
            reader(path)
    read_table({"file": str(file("x.csv", content))}, clients=3)


@cache
def site() -> Guard:
    """Pages over a folder with nothing in it."""
    folder = place() / "runs"
    folder.mkdir(exist_ok=True)
    return site_of(folder)


@target
def request(content: bytes) -> None:
    """A request to the local page, with the token: path and query, then headers line by line."""
    first, *others = content.decode("latin-1").split("\n")
    headers = dict(line.partition(":")[::2] for line in others)
    if not all("!" <= letter <= "~" for letter in first):
        return  # h11 answers 400
    with contextlib.redirect_stderr(io.StringIO()) as said:
        answer = asking(site())(first, **headers)
    if answer.status >= 500:
        raise Bug(said.getvalue())
    json.dumps(dict(answer.headers))
    for value in answer.headers.values():
        value.encode("latin-1")
        if "\n" in value or "\r" in value:
            raise Bug("a header of two lines")


def seeds(name: str) -> Iterator[bytes]:
    """The seeds of a target, and what once broke it."""
    for path in sorted((Path(__file__).parent / "corpus" / name).iterdir()):
        yield path.read_bytes()
