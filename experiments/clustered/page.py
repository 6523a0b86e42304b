"""docs/reproduction/clustered.md from the results."""

from pathlib import Path
from typing import Any


def write_page(rows: list[dict[str, Any]], path: Path) -> None:
    """Say what is there; the tables follow."""
    print(f"{len(rows)} results, no page yet")
