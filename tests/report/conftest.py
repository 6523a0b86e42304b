from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import quickstart

from sightline.apps.report import write_report


class Page(HTMLParser):
    """A page taken apart: its elements with their attributes, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._hidden = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._hidden = tag if tag in ("script", "style") else self._hidden

    def handle_endtag(self, tag: str) -> None:
        self._hidden = "" if tag == self._hidden else self._hidden

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @classmethod
    def of(cls, run_dir: Path) -> "Page":
        return cls(write_report(run_dir).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quickstart(tmp_path_factory.mktemp("report") / "quickstart")


@pytest.fixture(scope="session")
def page(run_dir: Path) -> Page:
    return Page.of(run_dir)


@pytest.fixture(scope="session")
def page_of() -> type[Page]:
    return Page
