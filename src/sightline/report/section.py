"""A section of the page: a title, a template of its name, and a function that says what the template shows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sightline.report.run import RunView

Content = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """A titled part of a page, drawn by the template of its name."""

    name: str
    title: str

    @property
    def template(self) -> str:
        """The file that draws it."""
        return f"{self.name}.html"


@dataclass(frozen=True)
class Section(Frame):
    """`content` answers None when the run has nothing to say here; the section is then left out."""

    content: Callable[[RunView], Content | None]
