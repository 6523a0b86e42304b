"""One self-contained HTML page per run."""

from sightline.report.explain import explain
from sightline.report.page import SECTIONS, render, write_page, write_report
from sightline.report.run import Run
from sightline.report.section import Section

__all__ = ["SECTIONS", "Run", "Section", "explain", "render", "write_page", "write_report"]
