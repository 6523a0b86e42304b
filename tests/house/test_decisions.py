"""Every decision that is cited can be found, and every link to a section leads to one."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
CITED = re.compile(r"\b[Dd]ecisions?\s+(\d+(?:(?:,\s*|,?\s+and\s+|\s*-\s*)\d{4}\b)*)")
LINK = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")
ROW = re.compile(r"^\| (\d{4}) \| \[(.+)\]\((.+\.md)#(.+)\) \| .+ \|$", re.MULTILINE)


def anchor(title):
    """The anchor of a heading, as GitHub and the docs site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


@cache
def headings(page):
    """The headings of a page, outside of code."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def indexed():
    return {
        number: (title, page, mark) for number, title, page, mark in ROW.findall((DECISIONS / "index.md").read_text())
    }


def cited(text):
    """The numbers of decisions that a text cites, as they are written."""
    return [number for found in CITED.findall(text) for number in re.findall(r"\d+", found)]


def texts():
    """Every text file of the repository, by git's own list where there is one."""
    folders = ("src", "tests", "docs", "papers", "benchmarks", "examples")
    kinds = {".py", ".md", ".toml", ".html", ".js", ".c", ".ipynb", ".yml"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() or [
        str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*")
    ]
    paths = [ROOT / name for name in {*names, *(path.name for path in ROOT.glob("*.md"))}]
    return [path for path in paths if path.suffix in kinds and path.is_file() and path != Path(__file__)]


def pages():
    return sorted(path for path in texts() if path.suffix == ".md")


def test_the_index_lists_every_section_once_under_its_own_title():
    sections = [
        (number, (title, page.name, anchor(f"{number} {title}")))
        for page in DECISIONS.glob("*.md")
        for number, title in re.findall(r"^## (\d{4}) (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(sections) == len(dict(sections)), "two sections with one number"
    assert indexed() == dict(sections)
    numbers = [row[0] for row in ROW.findall((DECISIONS / "index.md").read_text())]
    assert numbers == sorted(set(numbers))


def test_every_page_of_decisions_is_named_on_the_index_and_in_the_navigation():
    names = {page.name for page in DECISIONS.glob("*.md")} - {"index.md"}
    assert names == set(re.findall(r"^- \[.+\]\((.+\.md)\)$", (DECISIONS / "index.md").read_text(), re.MULTILINE))
    assert names <= set(re.findall(r"- decisions/(.+\.md)", (ROOT / "mkdocs.yml").read_text()))


def test_every_decision_that_is_cited_is_in_the_index():
    known = indexed()
    lost = {
        f"{path.relative_to(ROOT)}: decision {number}"
        for path in texts()
        for number in cited(path.read_text(encoding="utf-8"))
        if number not in known
    }
    assert not lost


def test_a_link_that_is_named_by_a_number_leads_to_that_number():
    for page in pages():
        for words, mark in re.findall(r"\[([^\]]*)\]\([^)\s]*#(\d{4}-[^)\s]*)\)", page.read_text(encoding="utf-8")):
            for number in re.findall(r"\b\d{4}\b", words):
                assert mark.startswith(number), f"{page.relative_to(ROOT)}: [{words}](#{mark})"


def test_every_link_to_a_section_leads_to_a_heading():
    lost = []
    for page in pages():
        for link, mark in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in link:
                target = page.parent / link if link else page
                if mark not in {anchor(title) for title in headings(target)}:
                    lost.append(f"{page.relative_to(ROOT)} -> {link}#{mark}")
    assert not lost


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("(decision 0111)", ["0111"]),
        ("Decision 0050 says why", ["0050"]),
        ("(decisions 0070, 0072): a", ["0070", "0072"]),
        ("decisions 0020 and 0023,\n", ["0020", "0023"]),
        ("decision\n0006", ["0006"]),
        ("decision 75", ["75"]),
        ("public decisions, 3 of them", []),
    ],
)
def test_citations_are_read_as_they_are_written(text, numbers):
    assert cited(text) == numbers
