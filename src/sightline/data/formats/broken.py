"""The one line for a file that is not what its name says."""

from pathlib import Path
from typing import NoReturn

from sightline.errors import invalid


def raise_broken(path: Path, law: str) -> NoReturn:
    """Raise the error for a damaged or foreign file."""
    invalid("file", f"{path.parent.name}/{path.name}", law, "replace it; `sightline datasets` says which file it is")
