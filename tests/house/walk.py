"""Trace one round: the files it passes through, and its calls against the order of packages.

    python -m tests.house.walk examples/quickstart.toml [examples/hierarchy.toml ...]

A call goes against the order when it enters a package that comes later. Those through a contract (a `Protocol` of the
caller's package or of an earlier one, or a function that was handed in) are how the order is kept; others break it.
"""

import ast
import inspect
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import sightline
from sightline.engine.loop import TrainingLoop
from tests.house.test_packages import FILES, PACKAGES, package_of

ROOT = Path(sightline.__file__).parent
ROUND = 2
"""The round that is walked: the first one also fills caches."""


def find_contracts() -> dict[str, set[str]]:
    """Return package -> the names of methods and attributes in its protocols."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                names |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}  # type: ignore[union-attr]
                found.setdefault(package_of(path), set()).update(names)
    return found


@dataclass
class Walk:
    """The files and calls of one round."""

    files: set[str] = field(default_factory=set)
    depth: int = 0
    """The deepest nesting of the package's functions."""
    by_contract: Counter[str] = field(default_factory=Counter)
    against: Counter[str] = field(default_factory=Counter)
    _names: dict[str, Path | None] = field(default_factory=dict)
    _contracts: dict[str, set[str]] = field(default_factory=find_contracts)

    def look(self, frame: FrameType, event: str, _: Any) -> None:
        """Record one event of the interpreter."""
        here = self._file_of(frame)
        if event != "call" or here is None or frame.f_code.co_name.startswith("<"):
            return
        self.files.add(str(here.relative_to(ROOT)))
        self.depth = max(self.depth, self._depth_of(frame))
        outer = frame.f_back
        while outer is not None and self._file_of(outer) is None:
            outer = outer.f_back
        if outer is not None:
            self._judge(self._file_of(outer), outer, here, frame)

    def _depth_of(self, frame: FrameType | None) -> int:
        """Count the package's functions from the round down to this frame."""
        depth = 0
        while frame is not None and frame.f_code.co_name != "_run_round":
            depth += self._file_of(frame) is not None and not frame.f_code.co_name.startswith("<")
            frame = frame.f_back
        return depth

    def _judge(self, caller: Path | None, outer: FrameType, here: Path, frame: FrameType) -> None:
        packages = [package_of(path) for path in (caller, here) if path is not None]
        if not set(packages) <= set(PACKAGES):
            return
        first, then = map(PACKAGES.index, packages)
        if then <= first:
            return
        name = frame.f_code.co_name
        handed_in = frame.f_code.co_flags & inspect.CO_NESTED
        known = any(name in self._contracts.get(package, ()) for package in PACKAGES[: first + 1])
        which = self.by_contract if known or handed_in else self.against
        which[f"{caller.relative_to(ROOT)} {outer.f_code.co_name} -> {here.relative_to(ROOT)} {name}"] += 1

    def _file_of(self, frame: FrameType) -> Path | None:
        path = frame.f_code.co_filename
        if path not in self._names:
            inside = path.startswith(str(ROOT)) and path.endswith(".py")
            self._names[path] = Path(path) if inside else None
        return self._names[path]


def walk_round(experiment: Path, number: int = ROUND) -> Walk:
    """Run an experiment and trace one of its rounds."""
    walk, whole = Walk(), TrainingLoop._run_round

    def watched(self: TrainingLoop, state: Any, at: int) -> Any:
        if at != number:
            return whole(self, state, at)
        sys.setprofile(walk.look)
        try:
            return whole(self, state, at)
        finally:
            sys.setprofile(None)

    TrainingLoop._run_round = watched  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            sightline.run(experiment, overrides=(f"rounds={number}",), out=Path(folder) / "run", progress=False)
    finally:
        TrainingLoop._run_round = whole  # type: ignore[method-assign]
    return walk


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = walk_round(Path(name))
        print(f"{name}: {len(found.files)} files, depth {found.depth}, {len(found.against)} kinds of calls against the order of packages, "
              f"{len(found.by_contract)} through contracts")  # fmt: skip
        for call, times in (*found.against.most_common(), *found.by_contract.most_common()):
            print(f"  {times:6} {call}")
