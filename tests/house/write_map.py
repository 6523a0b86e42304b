"""`python -m tests.house.write_map`: write the table of modules into the map, from the first line of each module."""

import ast
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sightline"
MAP = SOURCE / "README.md"
BEGIN, END = "<!-- modules -->\n", "<!-- /modules -->"


@cache
def first_lines() -> dict[Path, str]:
    """Return the first line of every module's docstring, by its path inside the package."""
    paths = (path for path in sorted(SOURCE.rglob("*.py")) if path.name not in {"__init__.py", "__main__.py"})
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in paths}
    return {path.relative_to(SOURCE): text.partition("\n")[0] for path, text in docstrings.items()}


def format_modules() -> str:
    """Return one table per package."""
    tables = []
    for folder, rows in groupby(first_lines().items(), key=lambda row: row[0].parent.as_posix()):
        title = "### The root" if folder == "." else f"### `{folder}/`"
        lines = [title, "", "| module | what it is |", "|---|---|"]
        tables.append("\n".join([*lines, *(f"| `{path.name}` | {line} |" for path, line in rows)]))
    return "\n\n".join(tables) + "\n"


def with_modules(text: str) -> str:
    """Return the map with its table written again."""
    return text.split(BEGIN)[0] + BEGIN + format_modules() + END + text.split(END)[1]


if __name__ == "__main__":
    MAP.write_text(with_modules(MAP.read_text(encoding="utf-8")), encoding="utf-8")
