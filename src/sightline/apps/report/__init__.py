"""Reports: one self-contained HTML page per run."""

from sightline.apps.report.elements import Section
from sightline.apps.report.guarantee import explain_event
from sightline.apps.report.page import REPORT, SECTIONS, render_run, write_page, write_report
from sightline.apps.report.run_view import RunView
from sightline.apps.report.summary import summarise_run

__all__ = [
    "REPORT",
    "SECTIONS",
    "RunView",
    "Section",
    "explain_event",
    "render_run",
    "summarise_run",
    "write_page",
    "write_report",
]
