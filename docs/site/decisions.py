"""Lists the decisions on their index page, so that a new one never has to be added by hand."""

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The index page with one line for each decision, under the title that it gives itself."""
    if page.file.src_uri != "decisions/index.md":
        return markdown
    folder = Path(config["docs_dir"]) / "decisions"
    lines = [f"- [{_title(path)}]({path.name})" for path in sorted(folder.glob("0*.md"))]
    return markdown + "\n\n" + "\n".join(lines) + "\n"


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
