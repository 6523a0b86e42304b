"""Random streams, one per (purpose, round, participant), all derived from one root.

A stream depends on nothing else: not on the order in which clients are visited, not on how they are batched, not on how
many numbers another stream has drawn. That is why a resumed run, a vectorised run and a run on real nodes agree.
Streams from a seed are Philox, streams from the operating system are the keystream of a cipher.
"""

import ctypes
import hashlib
import os
import secrets
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, repeat
from math import prod
from operator import mul, rshift
from pathlib import Path
from struct import Struct
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InvalidInput

# The participant number of streams that belong to no single participant.
EVERYONE = -1


class Purpose(StrEnum):
    """What a stream is for. The values are hashed, so renaming one changes every run."""

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
    CORRELATED = "correlated noise"
    STRAGGLERS = "stragglers"
    RESOURCES = "resources"
    ASSIGNMENT = "assignment"
    SELECTION = "selection"
    AUDIT = "audit"
    TRUST = "trust"
    VERIFICATION = "verification"


# The generator of streams from the operating system, as runs record it. A run that was begun with another generator is
# refused: repeating a round would show a second noise on one value.
CIPHER = "aes-256-ctr"
# Prefix of the roots of such streams. Roots of versions that drew from Philox had another.
OS_ROOT = CIPHER.encode() + b":"
ROOT_BYTES = 32


@dataclass(frozen=True)
class Streams:
    """A root from which every stream is derived by hashing.

    Guarantees: equal (root, purpose, round, participant) gives equal numbers; different ones give streams that are
    independent for every practical purpose: from a seed, 128-bit keys from BLAKE2b into Philox; from the operating
    system, 256-bit keys into AES-256 in counter mode, so that an observer of some numbers of a stream, or of all of
    another one, learns nothing about the rest without breaking the cipher.

    >>> a = Streams.from_seed(0).rng(Purpose.COHORT, round=3)
    >>> b = Streams.from_seed(0).rng(Purpose.COHORT, round=3)
    >>> bool(a.random() == b.random())
    True
    """

    root: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: int) -> "Streams":
        """Return reproducible streams for simulation: the seed determines the noise, so it protects no one."""
        return cls(b"seed:" + str(int(seed)).encode())

    @classmethod
    def from_operating_system(cls, path: Path) -> "Streams":
        """Return streams whose root is 256 bits of the operating system's entropy, in a file only its owner can read.

        Raises `InvalidInput` if others may read the file.
        """
        # The root is kept so that a resumed run draws the same noise for a round that was already released: an observer
        # never sees two noisy versions of one value.
        if not path.exists():
            write_secret(path, secrets.token_bytes(ROOT_BYTES))
        if path.stat().st_mode & 0o077:
            raise InvalidInput(f"secret={path.name}: other users may read the noise root; run chmod 600 on it")
        root = path.read_bytes()
        if len(root) != ROOT_BYTES:
            reason = f"has {len(root)} bytes instead of {ROOT_BYTES}, and its noise might be predictable"
            raise InvalidInput(f"secret={path.name}: {reason}; restore the file from a backup")
        return cls(OS_ROOT + root)

    def fresh_streams(self, number: int) -> "Streams":
        """Return other streams from the same root, for repeating a round that observers have already seen."""
        return Streams(self.root + b"again:" + str(int(number)).encode())

    def keyed_by(self, *values: bytes) -> "Streams":
        """Return other streams from the same root, shared only by streams keyed by the same values.

        Noise keyed by the value it is added to is never added to another value, whatever else two programs with the
        same root have in common; equal values get equal noise, and releasing one twice tells nothing more.

        >>> a, b = (Streams.from_seed(0).keyed_by(value).key(Purpose.NOISE) for value in (b"a", b"b"))
        >>> a == b
        False
        """
        digest = hashlib.blake2b(digest_size=32, person=b"keyed streams")
        for value in values:
            digest.update(len(value).to_bytes(8, "little"))
            digest.update(value)
        return Streams(self.root + b"keyed:" + digest.digest())

    @property
    def fingerprint(self) -> str:
        """Return a name of the root that tells nothing about it, if the root has the entropy of a secret."""
        return hashlib.blake2b(self.root, digest_size=16, person=b"fingerprint").hexdigest()

    def key(self, purpose: Purpose, *, round: int = 0, participant: int = EVERYONE, use: int = 0) -> int:
        """Return the 128-bit key of a stream; `use` distinguishes several draws of one purpose in one round."""
        return int.from_bytes(self._derive_key(16, purpose, round, participant, use), "little")

    def _derive_key(self, size: int, purpose: Purpose, round: int, participant: int, use: int) -> bytes:
        name = repr((str(purpose), int(round), int(participant), int(use))).encode()
        key = hashlib.blake2b(self.root, digest_size=32).digest()
        return hashlib.blake2b(name, key=key, digest_size=size).digest()

    def rng(
        self, purpose: Purpose, *, round: int = 0, participant: int = EVERYONE, use: int = 0
    ) -> np.random.Generator:
        """Return the numpy generator of a stream."""
        if self.root.startswith(OS_ROOT):
            return KeystreamGenerator(self._derive_key(32, purpose, round, participant, use))
        key = self.key(purpose, round=round, participant=participant, use=use)
        return np.random.Generator(np.random.Philox(key=key))


# 64-bit words enciphered at once if numpy asks for one at a time.
WORDS = 128


class KeystreamBits:
    """A bit generator for numpy: the keystream of AES-256 in counter mode, as little-endian 64-bit words.

    Guarantees: numpy gets keystream words and nothing else, each at most once, in an order that depends on the calls
    alone. No Python code runs between the cipher and numpy, only functions of C and Rust: an interrupt (Ctrl-C) cannot
    be raised there, where ctypes would swallow it and hand numpy a zero.
    """

    def __init__(self, key: bytes, *, counter: bytes = bytes(16)) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self.lock = threading.RLock()
        # AES and not ChaCha20: its counter has 128 bits, so no stream can come to its end.
        self._update = Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor().update
        # Iterators of C only (map, chain, repeat, partial): a Python function here could be interrupted, and ctypes
        # would return zero in place of noise.
        blocks = map(self._update, repeat(bytes(8 * WORDS)))
        words = chain.from_iterable(map(Struct(f"<{WORDS}Q").unpack, blocks))
        fractions = map(mul, map(rshift, words, repeat(11)), repeat(2.0**-53))
        self._functions = (
            _NEXT_64(partial(next, words)), _NEXT_32(partial(next, words)), _NEXT_DOUBLE(partial(next, fractions)),
            _NEXT_64(partial(next, words)),
        )  # fmt: skip
        self._table = _BitGenTable(None, *(ctypes.cast(function, ctypes.c_void_p) for function in self._functions))
        self.capsule = _new_capsule(ctypes.addressof(self._table), _CAPSULE, None)

    def random_raw(self, size: int | tuple[int, ...] | None = None, output: bool = True) -> Any:
        """Return words of 64 random bits: one, or an array that is enciphered at once."""
        shape = () if size is None else (size,) if isinstance(size, int | np.integer) else tuple(size)
        with self.lock:
            keystream = self._update(bytes(8 * prod(shape)))
        words = np.frombuffer(bytearray(keystream), "<u8").astype(np.uint64, copy=False)
        return None if not output else int(words[0]) if size is None else words.reshape(shape)

    def __reduce__(self) -> Any:
        raise TypeError("a secret stream cannot be copied: its numbers would be drawn twice")


class KeystreamGenerator(np.random.Generator):
    """numpy's generator on a keystream; uniform and normal arrays are made from many words at once."""

    def __init__(self, key: bytes) -> None:
        super().__init__(cast(np.random.BitGenerator, KeystreamBits(key)))

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return uniform numbers in [0, 1), multiples of 2^-53, as numpy does."""
        if size is None or out is not None or np.dtype(dtype) != np.float64:
            return super().random(size, dtype, out)
        return (self.bit_generator.random_raw(size) >> np.uint64(11)) * 2.0**-53

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return standard normal numbers: the quantile of a word's upper 63 bits, with its last bit as the sign.

        Guarantees: the tails reach 9.2 standard deviations.
        """
        if size is None or out is not None or np.dtype(dtype) != np.float64:
            return super().standard_normal(size, dtype, out)
        from scipy.special import ndtri

        words: NDArray[np.uint64] = self.bit_generator.random_raw(size)
        tail = ((words >> np.uint64(1)) + 0.5) * 2.0**-64
        return np.where(words & np.uint64(1), 1.0, -1.0) * ndtri(tail)


class _BitGenTable(ctypes.Structure):
    """`bitgen_t` of numpy/random/bitgen.h."""

    _fields_ = (
        ("state", ctypes.c_void_p), ("next_uint64", ctypes.c_void_p), ("next_uint32", ctypes.c_void_p),
        ("next_double", ctypes.c_void_p), ("next_raw", ctypes.c_void_p),
    )  # fmt: skip


_NEXT_64 = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
# ctypes truncates: numpy gets the lower half of a word.
_NEXT_32 = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_NEXT_DOUBLE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)
_CAPSULE = b"BitGenerator"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def new_salt() -> str:
    """Return 128 bits of the operating system's entropy as text; a salted hash of a text tells nothing about it."""
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
    # The rename is atomic and comes after the fsync: after a crash the file is whole or absent.
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
