"""Reports: one self-contained HTML page per run."""

from sightline.apps.report.ledger_rows import explain_event
from sightline.apps.report.officer import summarise_officer, write_officer
from sightline.apps.report.page import SECTIONS, render_run, write_page, write_report
from sightline.apps.report.run_view import REPORT, RunView, Section, summarise_run

__all__ = [
    "REPORT",
    "SECTIONS",
    "RunView",
    "Section",
    "explain_event",
    "render_run",
    "summarise_officer",
    "summarise_run",
    "write_officer",
    "write_page",
    "write_report",
]
