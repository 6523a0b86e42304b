"""Stops the build when a public name of the package has no entry in the reference."""

import ast
import re
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "src" / "sightline" / "__init__.py"
ENTRY = re.compile(r'id="sightline\.([\w.]+)"')

_found: set[str] = set()


def public(source: str) -> list[str]:
    """The names in `__all__`."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def missing(names: list[str], entries: set[str]) -> list[str]:
    """Names without an entry of their own; a package has one when something in it has."""
    known = {part for entry in entries for part in (entry.split(".")[0], entry.split(".")[-1])}
    return [name for name in names if name not in known]


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take in the entries of a page."""
    _found.update(ENTRY.findall(output))
    return output


def on_post_build(config: Any) -> None:
    """Every public name has an entry."""
    left = missing(public(PACKAGE.read_text(encoding="utf-8")), _found)
    if left:
        raise ValueError(f"reference={left}: public names without an entry; add them to docs/reference/")
