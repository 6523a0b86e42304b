"""One round as data walks it: the files it passes through, and the calls that go against the order of packages.

python -m tests.house.walk examples/quickstart.toml [examples/hierarchy.toml ...]
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import sightline
from sightline.engine import loop
from tests.house.test_packages import PACKAGES, package_of

ROOT = Path(sightline.__file__).parent
ROUND = 2
"""The round that is walked: the first one also fills caches."""


def walk_round(experiment: Path, number: int = ROUND) -> tuple[set[str], Counter[str]]:
    """(the files of the source in which something was called, calls to a package that comes later in the order)."""
    files: set[str] = set()
    against: Counter[str] = Counter()
    names: dict[str, str | None] = {}

    def name_of(frame: FrameType | None) -> str | None:
        if frame is None:
            return None
        path = frame.f_code.co_filename
        if path not in names:
            inside = path.startswith(str(ROOT)) and Path(path).suffix == ".py"
            names[path] = str(Path(path).relative_to(ROOT)) if inside else None
        return names[path]

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name.startswith("<"):
            return
        here = name_of(frame)
        if here is None:
            return
        files.add(here)
        outer = frame.f_back
        while outer is not None and name_of(outer) is None:
            outer = outer.f_back
        caller = name_of(outer)
        if caller is None:
            return
        above, below = package_of(ROOT / caller), package_of(ROOT / here)
        if above in PACKAGES and below in PACKAGES and PACKAGES.index(below) > PACKAGES.index(above):
            against[f"{caller} {outer.f_code.co_name} -> {here} {frame.f_code.co_name}"] += 1

    owner = next(value for value in vars(loop).values() if isinstance(value, type) and hasattr(value, "_run_round"))
    whole = owner._run_round

    def watched(self: Any, state: Any, at: int) -> Any:
        if at != number:
            return whole(self, state, at)
        sys.setprofile(look)
        try:
            return whole(self, state, at)
        finally:
            sys.setprofile(None)

    owner._run_round = watched
    try:
        with tempfile.TemporaryDirectory() as folder:
            sightline.run(experiment, out=Path(folder) / "run")
    finally:
        owner._run_round = whole
    return files, against


if __name__ == "__main__":
    for name in sys.argv[1:]:
        files, against = walk_round(Path(name))
        print(f"{name}: {len(files)} files, {len(against)} kinds of calls against the order of packages")
        for call, times in against.most_common():
            print(f"  {times:6} {call}")
        if "-v" in sys.argv:
            print(*sorted(files), sep="\n")
