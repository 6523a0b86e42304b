"""What a site puts away after every answer: the answer itself, and what its client keeps. One file, owner-only."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sightline.ledger import GENESIS
from sightline.mechanisms import CallId
from sightline.randomness import write_secret
from sightline.runtimes.remote.message import WireMessage, own_tensor

SITE_STORE = "shelf.secret"
RUNS = 8
"""Of so many runs the site remembers the last answer and what its client keeps."""


class SiteStore:
    """The last answer of every run, and per run and memory what was kept before and after the round it belongs to.

    Guarantees: the file is replaced whole, so that after a crash it holds the state before the answer or after it; a
    round that is asked again begins from what was kept before it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_STORE

    def answer_to(self, asked: bytes, run: str) -> WireMessage | None:
        """The answer that was given to this very question, when it was the run's last one."""
        found, place = self._read_file(), _answer_name(run)
        last = found.words.get("answers", {}).get(place)
        if last is None or last["asked"] != asked.hex():
            return None
        start = f"answer/{place}/"
        arrays = {name.removeprefix(start): a for name, a in found.arrays.items() if name.startswith(start)}
        return WireMessage(last["words"], arrays)

    def kept(self, run: str, memory: str, at: CallId) -> Tensor | None:
        """What the client kept when the round began; None before its first."""
        found = self._read_file()
        mark = found.words.get("marks", {}).get(f"{run}/{memory}")
        if mark is None:
            return None
        again = [at.round, at.use] == mark
        array = found.arrays.get(f"{'before' if again else 'after'}/{run}/{memory}")
        return None if array is None else own_tensor(array)

    def fingerprint(self) -> bytes:
        """Changes whenever anything in the store does."""
        return hashlib.sha256(self._path.read_bytes() if self._path.exists() else b"").digest()

    def charged_releases(self) -> tuple[int, str]:
        """How many releases the site's ledger held when it last answered, and the hash of the last one."""
        releases, head = self._read_file().words.get("charged", (0, GENESIS))
        return int(releases), str(head)

    def put_answer(
        self, asked: bytes, answer: WireMessage, *, run: str, memory: str, at: CallId, kept: Tensor | None,
        charged: tuple[int, str],
    ) -> None:  # fmt: skip
        """Put away an answer, what the client keeps from now on, and what the ledger must hold from now on."""
        found, key, place = self._read_file(), f"{run}/{memory}", _answer_name(run)
        answers = {name: one for name, one in found.words.get("answers", {}).items() if name != place}
        answers = dict([*answers.items()][1 - RUNS :]) | {place: {"asked": asked.hex(), "words": dict(answer.words)}}
        arrays = {name: array for name, array in found.arrays.items() if _is_kept(name, answers, place)}
        marks = dict(found.words.get("marks", {}))
        if kept is not None:
            before = self.kept(run, memory, at)
            arrays.pop(f"before/{key}", None)
            if before is not None:
                arrays[f"before/{key}"] = before.numpy()
            arrays[f"after/{key}"] = kept.numpy()
            marks.pop(key, None)
            marks[key] = [at.round, at.use]
        for old in list(marks)[:-RUNS]:
            del marks[old]
            arrays = {name: array for name, array in arrays.items() if name.partition("/")[2] != old}
        arrays |= {f"answer/{place}/{name}": array for name, array in answer.arrays.items()}
        write_secret(
            self._path, WireMessage({"answers": answers, "marks": marks, "charged": charged}, arrays).to_bytes()
        )

    def _read_file(self) -> WireMessage:
        return WireMessage.from_bytes(self._path.read_bytes()) if self._path.exists() else WireMessage()


def _answer_name(run: str) -> str:
    """Where a run's last answer lies: a name that no run can choose."""
    return hashlib.sha256(run.encode()).hexdigest()[:32]


def _is_kept(name: str, answers: Mapping[str, object], replaced: str) -> bool:
    """Whether an array stays when the answer at a place is replaced: what is kept does, and other runs' answers."""
    kind, _, rest = name.partition("/")
    place = rest.partition("/")[0]
    return kind != "answer" or (place in answers and place != replaced)
