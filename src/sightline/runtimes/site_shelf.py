"""What a site puts away after every answer: the answer itself, and what its client keeps. One file, owner-only."""

import hashlib
from pathlib import Path

from torch import Tensor

from sightline.mechanisms import Occasion
from sightline.randomness import write_secret
from sightline.runtimes.letter import Letter
from sightline.runtimes.packing import tensor

SHELF = "shelf.secret"
RUNS = 8
"""Of so many runs the site remembers what its client keeps."""


class SiteShelf:
    """The last answer, and per run and memory what was kept before and after the round it belongs to.

    Guarantees: the file is replaced whole, so that after a crash it holds the state before the answer or after it; a
    round that is asked again begins from what was kept before it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SHELF

    def answer_to(self, asked: bytes) -> Letter | None:
        """The answer that was given to this very question, when it was the last one."""
        found = self._read()
        if found.words.get("asked") != asked.hex():
            return None
        arrays = {name.removeprefix("answer/"): a for name, a in found.arrays.items() if name.startswith("answer/")}
        return Letter(found.words["answer"], arrays)

    def kept(self, run: str, memory: str, at: Occasion) -> Tensor | None:
        """What the client kept when the round began; None before its first."""
        found = self._read()
        mark = found.words.get("marks", {}).get(f"{run}/{memory}")
        if mark is None:
            return None
        again = [at.round, at.use] == mark
        array = found.arrays.get(f"{'before' if again else 'after'}/{run}/{memory}")
        return None if array is None else tensor(array)

    def fingerprint(self) -> bytes:
        """Changes whenever anything on the shelf does."""
        return hashlib.sha256(self._path.read_bytes() if self._path.exists() else b"").digest()

    def put(self, asked: bytes, answer: Letter, *, run: str, memory: str, at: Occasion, kept: Tensor | None) -> None:
        """Put away an answer, and what the client keeps from now on."""
        found, key = self._read(), f"{run}/{memory}"
        arrays = {name: array for name, array in found.arrays.items() if not name.startswith("answer/")}
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
        arrays |= {f"answer/{name}": array for name, array in answer.arrays.items()}
        words = {"asked": asked.hex(), "answer": dict(answer.words), "marks": marks}
        write_secret(self._path, Letter(words, arrays).to_bytes())

    def _read(self) -> Letter:
        return Letter.from_bytes(self._path.read_bytes()) if self._path.exists() else Letter()
