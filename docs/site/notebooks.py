"""`python docs/site/notebooks.py`: the tutorials as notebooks. The pages are the source."""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
OWN_PAGE = re.compile(r"\]\(([\w-]+)\.md(#[\w-]+)?\)")
START = """\
# in a fresh folder with the folders of the clone, so that it runs again, and with the sightline of this kernel
import os
import sys
import tempfile

while not os.path.isdir("examples") and os.getcwd() != os.path.dirname(os.getcwd()):
    os.chdir("..")
clone = os.path.dirname(os.path.realpath("examples"))
os.chdir(tempfile.mkdtemp(prefix="sightline-"))
for entry in os.scandir(clone):
    if entry.is_dir() and entry.name != "runs":
        os.symlink(entry.path, entry.name)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]"""


def notebook(page: str) -> str:
    """A page of Markdown as the text of a notebook: its Python and shell blocks are cells, the rest is read."""
    pieces = BLOCK.split(page)
    cells = [_markdown(pieces[0]), _code(START)]
    for kind, body, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        cells.append(_code(body.rstrip("\n") if kind == "python" else "%%bash\n" + body.rstrip("\n")))
        if text.strip():
            cells.append(_markdown(text))
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, Any]:
    source = OWN_PAGE.sub(r"](\1.ipynb)", text.strip("\n"))
    return {"cell_type": "markdown", "metadata": {}, "source": source.splitlines(keepends=True)}


def _code(text: str) -> dict[str, Any]:
    source = text.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def main() -> None:
    """Write every tutorial's notebook."""
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        path = DOCS / "notebooks" / f"{page.stem}.ipynb"
        path.write_text(notebook(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
