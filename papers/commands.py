"""The commands behind figures and tables: the run of each file, and those that complete its figure or table."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from sightline.config.experiment_file import Reproduction, read_reproductions

HERE = Path(__file__).parent
ORDER = ("groups", "hierarchy", "partitioning", "clustered", "upcycled")
"""The systems, the quick ones first."""
MORE = {"groups": ("python -m papers.groups.bottleneck",)}
"""What a page shows beside the paper's figures and tables."""


def listed(systems: Iterable[str] = ORDER) -> list[Reproduction]:
    """Return the figures and tables of some systems, in the order in which they are run."""
    wanted = set(systems)
    return sorted((e for e in read_reproductions(HERE) if e.system in wanted), key=lambda e: ORDER.index(e.system))


def file_command(reproduction: Reproduction) -> str:
    """Return the command that runs the file itself."""
    return f"sightline run papers/{reproduction.system}/{reproduction.file.name}"


def units(whole: str) -> list[str]:
    """Split a command into one per named part, because parts are shared and timed once."""
    python, flag, module, *parts = shlex.split(whole)
    return [f"{python} {flag} {module} {part}".strip() for part in parts or [""]]


def commands(systems: Iterable[str] = ORDER) -> list[tuple[str, str]]:
    """Return (system, command), each once, by system: its files first, then the commands that complete them."""
    found, pairs = listed(systems), []
    for system in dict.fromkeys(reproduction.system for reproduction in found):
        own = [reproduction for reproduction in found if reproduction.system == system]
        pairs += [(system, file_command(reproduction)) for reproduction in own]
        pairs += [(system, unit) for reproduction in own for unit in units(reproduction.whole)]
        pairs += [(system, command) for command in MORE.get(system, ())]
    return list(dict.fromkeys(pairs))
