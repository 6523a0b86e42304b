"""The commands of the gallery: each file's own run, and those that make its figure or table whole."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from sightline.config.exhibit import Exhibit, read_exhibits

HERE = Path(__file__).parent
ORDER = ("groups", "hierarchy", "partitioning", "clustered", "upcycled")
"""The systems, the quick ones first."""
MORE = {"groups": ("python -m experiments.groups.bottleneck",)}
"""What a page shows beside the paper's exhibits."""


def listed(systems: Iterable[str] = ORDER) -> list[Exhibit]:
    """The exhibits of some systems, in the order in which they are run."""
    wanted = set(systems)
    return sorted((e for e in read_exhibits(HERE) if e.system in wanted), key=lambda e: ORDER.index(e.system))


def file_command(exhibit: Exhibit) -> str:
    """What runs the file itself."""
    return f"sightline run experiments/{exhibit.system}/{exhibit.file.name}"


def units(whole: str) -> list[str]:
    """A whole command as one command for each part that it names: parts are shared, and are timed once."""
    python, flag, module, *parts = shlex.split(whole)
    return [f"{python} {flag} {module} {part}".strip() for part in parts or [""]]


def commands(systems: Iterable[str] = ORDER) -> list[tuple[str, str]]:
    """(system, command), each once, system by system: its files first, then what makes them whole."""
    found, pairs = listed(systems), []
    for system in dict.fromkeys(exhibit.system for exhibit in found):
        own = [exhibit for exhibit in found if exhibit.system == system]
        pairs += [(system, file_command(exhibit)) for exhibit in own]
        pairs += [(system, unit) for exhibit in own for unit in units(exhibit.whole)]
        pairs += [(system, command) for command in MORE.get(system, ())]
    return list(dict.fromkeys(pairs))
