"""Reasons are found by their heading: every link to a section leads to one, and no decision is cited by a number."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERED = re.compile(r"\b[Dd]ecisions?\s+\d{4}\b|docs/decisions/|\]\([^)\s]*#\d{4}-")
LINK = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")
SUFFIXES = {".py", ".md", ".toml", ".html", ".js", ".c", ".ipynb", ".yml"}


def anchor(title):
    """Return the anchor of a heading, as GitHub and the docs site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


@cache
def anchors(page):
    """Return the anchors of a page's headings, outside of code blocks."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [anchor(title) for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]


def texts():
    """Return every text file of the repository, from git's list where there is one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    folders = ("src", "tests", "docs", "papers", "benchmarks", "examples")
    paths = [ROOT / name for name in listed] or [
        *ROOT.glob("*.md"),
        *(path for folder in folders for path in (ROOT / folder).rglob("*")),
    ]
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)]


def test_no_decision_is_cited_by_a_number():
    cited = {str(path.relative_to(ROOT)): NUMBERED.findall(path.read_text(encoding="utf-8")) for path in texts()}
    assert {path: found for path, found in cited.items() if found} == {}
    assert NUMBERED.search("(decisions 0070, 0072)")


def test_every_link_to_a_section_leads_to_a_heading():
    lost = []
    for page in (path for path in texts() if path.suffix == ".md"):
        for link, mark in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in link and mark not in anchors(page.parent / link if link else page):
                lost.append(f"{page.relative_to(ROOT)} -> {link}#{mark}")
    assert not lost


def test_every_note_has_its_own_title():
    for name in ("design-notes.md", "accounting-proofs.md"):
        titles = anchors(ROOT / "docs" / name)
        assert len(titles) == len(set(titles)), name
