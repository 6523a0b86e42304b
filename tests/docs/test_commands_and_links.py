"""The docs name commands and options that exist, the page of commands names them all, and links reach their headings."""

import re
import shlex
import unicodedata
from pathlib import Path

from sightline.apps.cli.main import COMMANDS
from tests.cli.test_help import ALL

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("src/**/*.md")),
]
FOLDERS = ("src", "tests", "docs", "papers", "benchmarks", "examples")
SAID = re.compile(r"`(sightline [^`\n]+)`|^(?:\$ |    )?(sightline [a-z][^\n]*)$", re.MULTILINE)
GENERIC = ("...", "COMMAND", "sightline experiment ", "sightline --help")
"""Not command lines: left-out words, a placeholder, the head of a digest, the program by itself."""


def command_lines(page: Path) -> list[str]:
    """Return the lines of a page that a shell could run, up to a pipe or a remark."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ").replace("\\|", "|")
    lines = [inline or block for inline, block in SAID.findall(text)]
    return [re.split(r" \| | > | {3,}", line)[0] for line in lines if not any(word in line for word in GENERIC)]


def unknown_words(line: str) -> list[str]:
    """Return the command, or the options, that do not exist.

    >>> unknown_words("sightline run examples/quickstart.toml --sett rounds=3"), unknown_words("sightline runs")
    (['--sett'], ['runs'])
    """
    words = shlex.split(line, comments=True)[1:]
    path = max((known for known in ALL if tuple(words[: len(known)]) == known), key=len)
    if not path:
        return words[:1]
    commands = [ALL[path[:depth]] for depth in range(len(path) + 1)]
    known = {
        option for one in commands for parameter in one.params for option in parameter.opts + parameter.secondary_opts
    }
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in {*known, "--help"}]


def test_every_command_line_of_the_docs_names_what_exists() -> None:
    found = {(page.name, line): unknown_words(line) for page in PAGES for line in command_lines(page)}
    assert len(found) > 100
    assert {place: words for place, words in found.items() if words} == {}


def test_an_option_that_does_not_exist_is_found() -> None:
    assert unknown_words("sightline account poisson --noise 1 --speed 2") == ["--speed"]
    assert unknown_words("sightline acount") == ["acount"]


def test_the_page_of_commands_names_every_command_and_their_own_options() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| (.*) \|$", page, re.MULTILINE)
    named = [name for head, _ in rows for name in re.findall(r"`([\w-]+)`", head)]
    assert sorted([*named, "completion"]) == sorted(COMMANDS)
    assert "`sightline completion bash`" in page
    for head, text in rows:
        for option in re.findall(r"`(--[\w-]+)", text):
            own = [ALL[(name,)] for name in re.findall(r"`([\w-]+)`", head)]
            assert any(option in parameter.opts for one in own for parameter in one.params), option


MARKDOWN = sorted({*PAGES, *ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))})
LINK = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the docs site and GitHub create them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def slug(title: str) -> str:
    """A heading as an anchor.

    >>> slug("Cohorts of a `fixed` size")
    'cohorts-of-a-fixed-size'
    """
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def broken_links(page: Path) -> list[str]:
    """Return links of a page to missing headings; tests/house/test_words.py checks the files."""
    found = [(page.parent / file if file else page, anchor) for file, anchor in LINK.findall(page.read_text("utf-8"))]
    return [
        f"{target.name}#{anchor}"
        for target, anchor in found
        if target.suffix == ".md" and anchor not in anchors(target)
    ]


def test_every_link_reaches_its_heading() -> None:
    assert sum(len(LINK.findall(page.read_text("utf-8"))) for page in MARKDOWN) > 50
    assert {page.name: broken_links(page) for page in MARKDOWN if broken_links(page)} == {}


def test_a_link_to_no_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One `two`, three\n\n```\n# not this\n```\n", encoding="utf-8")
    (tmp_path / "b.md").write_text("[here](a.md#one-two-three), [there](a.md#not-this), [own](#none)", encoding="utf-8")
    assert anchors(tmp_path / "a.md") == {"one-two-three"}
    assert broken_links(tmp_path / "b.md") == ["a.md#not-this", "b.md#none"]


def named_files(page: Path) -> set[str]:
    """Return the source files that a page names with their folder, outside its code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|toml|c))`", text))


def test_every_source_file_that_the_docs_name_exists() -> None:
    roots = (ROOT, ROOT / "src", ROOT / "src" / "sightline")
    pages = {page: named_files(page) for page in PAGES if page.name != "extend.md"}  # it adds the files that it names
    assert sum(map(len, pages.values())) > 40
    gone = {
        (page.name, name)
        for page, names in pages.items()
        for name in names
        if not any((r / name).exists() for r in roots)
    }
    assert gone == set()
