"""Random streams, one per (purpose, round, participant), all derived from one root.

A stream depends on nothing else: not on the order in which clients are visited, not on how they are batched, not on how
many numbers another stream has drawn. That is why a resumed run, a vectorised run and a run on real nodes agree.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from sightline.errors import InvalidInput

EVERYONE = -1
"""The participant number of streams that belong to no single participant."""


class Purpose(StrEnum):
    """What a stream is for. The words are hashed, so renaming one changes every run."""

    PARTITION = "partition"
    SYNTHETIC = "synthetic"
    SUBSAMPLE = "subsample"
    SPLIT = "train/test split"
    INIT = "model initialisation"
    COHORT = "cohort"
    SCHEDULE = "schedule"
    BATCHES = "batches"
    VIEWS = "views"
    NOISE = "noise"
    STRAGGLERS = "stragglers"
    RESOURCES = "resources"
    ASSIGNMENT = "assignment"
    SELECTION = "selection"
    AUDIT = "audit"
    TRUST = "trust"


@dataclass(frozen=True)
class Streams:
    """A root from which every stream is derived by hashing.

    Guarantees: equal (root, purpose, round, participant) gives equal numbers; different ones give streams that are
    independent for every practical purpose (128-bit keys from BLAKE2b into Philox).

    >>> a = Streams.from_seed(0).rng(Purpose.COHORT, round=3)
    >>> b = Streams.from_seed(0).rng(Purpose.COHORT, round=3)
    >>> bool(a.random() == b.random())
    True
    """

    root: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: int) -> "Streams":
        """Reproducible streams for simulation: whoever knows the seed knows the noise."""
        return cls(b"seed:" + str(int(seed)).encode())

    @classmethod
    def from_operating_system(cls, path: Path) -> "Streams":
        """Streams whose root is 256 bits of the operating system's entropy, kept in a file only its owner can read.

        The file lets a resumed run draw the same noise for a round that was already released, so that a crash never
        shows an observer two noisy versions of one value.
        """
        if not path.exists():
            write_secret(path, secrets.token_bytes(32))
        if path.stat().st_mode & 0o077:
            raise InvalidInput(f"secret={path.name}: others may read the noise root; run chmod 600 on it")
        return cls(b"os:" + path.read_bytes())

    def fresh_streams(self, number: int) -> "Streams":
        """Other streams from the same root, for doing again what others have seen the first time of."""
        return Streams(self.root + b"again:" + str(int(number)).encode())

    @property
    def fingerprint(self) -> str:
        """A name of the root that tells nothing about it, as long as the root has the entropy of a secret."""
        return hashlib.blake2b(self.root, digest_size=16, person=b"fingerprint").hexdigest()

    def key(self, purpose: Purpose, *, round: int = 0, participant: int = EVERYONE, use: int = 0) -> int:
        """The 128-bit key of a stream; `use` tells apart several draws of one purpose in one round."""
        words = repr((str(purpose), int(round), int(participant), int(use))).encode()
        key = hashlib.blake2b(self.root, digest_size=32).digest()
        return int.from_bytes(hashlib.blake2b(words, key=key, digest_size=16).digest(), "little")

    def rng(
        self, purpose: Purpose, *, round: int = 0, participant: int = EVERYONE, use: int = 0
    ) -> np.random.Generator:
        """The numpy generator of a stream."""
        key = self.key(purpose, round=round, participant=participant, use=use)
        return np.random.Generator(np.random.Philox(key=key))


def new_salt() -> str:
    """128 bits of the operating system's entropy, written as text: a hash of a text with salt tells nothing of it."""
    return secrets.token_hex(16)


def write_secret(path: Path, content: bytes) -> None:
    """Write bytes so that they are never readable by others and never half written."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
