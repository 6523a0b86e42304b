"""Run every notebook in a real kernel, in its own folder (`make notebooks-test`), and check what its cells display."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PATIENCE = 900
"""Seconds that a cell may take."""


def executed(path: Path, place: Path) -> Any:
    """Return the notebook with its outputs. Raise if a cell fails."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    about = {"metadata": {"path": str(place)}}
    NotebookClient(book, timeout=PATIENCE, kernel_name="python3", resources=about).execute()
    return book


def cells(book: Any) -> list[Any]:
    """Return the code cells."""
    return [cell for cell in book.cells if cell.cell_type == "code"]


def html(cell: Any) -> list[str]:
    """Return what a cell shows as HTML."""
    return [one.data["text/html"] for one in cell.outputs if "text/html" in one.get("data", {})]


def check(book: Any) -> int:
    """A run shows its progress where it trains; a last line that is a name shows a table or a picture."""
    shown = 0
    for cell in cells(book):
        last = cell.source.splitlines()[-1]
        if "sightline.run(" in cell.source and "try:" not in cell.source:
            assert any("<progress" in text for text in html(cell)), cell.source
        if last.replace(".", "").isidentifier() and not cell.source.startswith("%%"):
            assert any("<table" in text or "<svg" in text for text in html(cell)), cell.source
            shown += 1
        said = [one.text for one in cell.outputs if one.output_type == "stream" and not cell.source.startswith("%%")]
        assert not any("\x1b" in text or "\r" in text for text in said), cell.source
    return shown


def main() -> None:
    """Execute and check them all."""
    shown = 0
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "examples").symlink_to(ROOT / "examples")
            begun = time.monotonic()
            shown += check(executed(path, Path(place)))
            print(f"{path.name}: {time.monotonic() - begun:.0f} s", flush=True)
    if not shown:
        sys.exit("no notebook shows a run, a ledger or a curve")


if __name__ == "__main__":
    main()
