"""One self-contained HTML page per run."""

from sightline.report.explain import explain
from sightline.report.page import REPORT, SECTIONS, render, write_page, write_report
from sightline.report.run import Run
from sightline.report.section import Section
from sightline.report.summary import summarised

__all__ = ["REPORT", "SECTIONS", "Run", "Section", "explain", "render", "summarised", "write_page", "write_report"]
