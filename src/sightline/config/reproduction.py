"""Experiment files that reproduce something: their first lines say what, what to expect and how long it takes."""

from dataclasses import dataclass
from pathlib import Path

from sightline.errors import invalid

HEAD = ("Reproduces", "Expect", "Takes", "Whole")


@dataclass(frozen=True)
class Reproduction:
    """One experiment file that reproduces a figure or a table."""

    file: Path
    reproduces: str
    expect: str
    takes: str
    whole: str
    """The command that makes the whole figure or table; the file itself is one cell of it."""

    @classmethod
    def read(cls, file: Path) -> "Reproduction":
        """The head of an experiment file."""
        lines = file.read_text(encoding="utf-8").splitlines()[: len(HEAD)]
        words = [line.removeprefix(f"# {name}: ") for line, name in zip(lines, HEAD, strict=False)]
        if len(words) < len(HEAD) or words == lines:
            invalid("file", file, f"its first lines are not # {': ..., # '.join(HEAD)}: ...")
        return cls(file, *words)

    @property
    def system(self) -> str:
        """The folder that it stands in."""
        return self.file.parent.name


def read_reproductions(folder: Path) -> list[Reproduction]:
    """All such files in a folder, by system and name."""
    found = [Reproduction.read(file) for file in sorted(folder.glob("*/*.toml"))]
    if not found:
        invalid(
            "folder",
            folder,
            "holds no experiment files of figures and tables",
            "run it in a clone, or name its experiments",
        )
    return found
