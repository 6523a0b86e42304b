"""docs/api: every example runs and prints what its page shows, and every call exists with the named parameters."""

import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands import printed, shell

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
SUBJECTS = ["accounting", "ledger", "own-algorithms", "own-models", "run", "sites"]
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
CALL = re.compile(r"`(sightline(?:\.\w+)+)(\([^`]*\))?`")
"""A name in a page, with its parameters where it is a call."""
POINTS = 6
"""By how many points a percentage may differ: training depends on the processor, and at real sites on their own noise."""


def blocks(page: Path, kind: str) -> list[tuple[str, str]]:
    """Return (title, body) of the blocks of a kind, in their order."""
    return [(title, body) for found, title, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page names."""
    for title, body in blocks(page, "python"):
        if title:
            (folder / title).write_text(body, encoding="utf-8")


def run_page(page: Path, folder: Path) -> str:
    """Return what the Python of a page prints."""
    return printed("\n".join(body for title, body in blocks(page, "python") if not title), folder)


MEASURED = {"own-models"}
"""Pages whose commands time themselves: they take seconds."""
WITH_SHELL = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in MEASURED))
    for page in PAGES
    if blocks(page, "bash")
]


def differences(shown: str, found: str) -> list[str]:
    """Return lines that differ by more than a few points in a percentage.

    >>> differences("91% right, epsilon 2.000", "89% right, epsilon 2.000")
    []
    """
    told = []
    pairs = list(zip(shown.splitlines(), found.splitlines(), strict=False))
    for one, other in pairs:
        percents = zip(re.findall(r"(\d+)%", one), re.findall(r"(\d+)%", other), strict=False)
        near = all(abs(int(a) - int(b)) <= POINTS for a, b in percents)
        if not near or re.sub(r"\d+%", "%", one) != re.sub(r"\d+%", "%", other):
            told.append(f"{one!r} is shown, and {other!r} printed")
    more = len(shown.splitlines()) - len(found.splitlines())
    return told + ([f"{more:+} lines are shown"] if more else [])


def shown_output(page: Path) -> str:
    """Return the output that a page shows for its Python."""
    text = page.read_text(encoding="utf-8")
    return "".join(
        re.findall(r"^```python\n.*?^```\n\n(?:prints\n\n)?```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )


@pytest.mark.filterwarnings("ignore:seed=")  # on the page as a comment
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_example_prints_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    assert shown_output(page)
    assert differences(shown_output(page), run_page(page, tmp_path)) == []


@pytest.mark.parametrize("page", WITH_SHELL)
def test_its_shell_lines_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_files(page, tmp_path)
    for _, body in blocks(page, "bash"):
        shell(body, tmp_path)


def test_another_number_or_another_line_is_a_difference() -> None:
    assert differences("90% right, epsilon 2.000\n", "90% right, epsilon 2.001\n")
    assert differences("90% right\n", "80% right\n")
    assert differences("one\n", "one\ntwo\n")


def find_object(name: str) -> Any:
    """Return the object of a dotted name; properties and class fields are returned unevaluated."""
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:cut]))
        except ImportError:
            continue
        for word in words[cut:]:
            fields = getattr(found, "__annotations__", {})
            found = fields[word] if word in fields and not hasattr(found, word) else getattr(found, word)
        return found
    raise AssertionError(f"{name}: no such module")


def written_parameters(call: Any) -> list[str]:
    """Return the parameters of a call as the pages write them: no types, no `self`, functions as `...`."""
    made = call.__init__ if dataclasses.is_dataclass(call) else call  # a `__new__` only checks
    own = [p for p in inspect.signature(made).parameters.values() if p.name not in ("self", "cls")]
    words, named_only = [], False
    for one in own:
        named_only = named_only or one.kind is one.VAR_POSITIONAL
        if one.kind is one.KEYWORD_ONLY and not named_only:
            words.append("*")
            named_only = True
        words.append(_written(one))
    return words


def _written(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    if one.default is one.empty:
        return stars + one.name
    value = one.default
    word = "..." if inspect.isfunction(value) else repr(str(value) if isinstance(value, enum.Enum) else value)
    return f"{one.name}={word}"


def wrong_call(name: str, given: str) -> str:
    """Return how a call on a page differs from the code, or nothing. A final `...` stands for the remaining parameters."""
    real, shown = ", ".join(written_parameters(find_object(name))), given[1:-1]
    same = real.startswith(shown[:-3]) if re.search(r"(^|, )\.\.\.$", shown) else real == shown
    return "" if same else f"{name}({real}) is written {given}"


CALLS = sorted({call for page in PAGES for call in CALL.findall(page.read_text(encoding="utf-8"))})


def test_every_name_is_there_with_its_parameters() -> None:
    assert len(CALLS) > 80
    for name, given in CALLS:
        assert find_object(name) is not None, name
        assert not given or wrong_call(name, given) == ""


def test_a_parameter_that_moved_is_found() -> None:
    assert wrong_call("sightline.accounting.poisson", "(*, noise, steps, rate)")
    assert wrong_call("sightline.accounting.poisson", "(noise, rate, steps)")
    assert wrong_call("sightline.accounting.epsilon", "(events, delta, *, accountant='rdp')")
    assert wrong_call("sightline.accounting.poisson", "(*, rate, ...)")
    assert wrong_call("sightline.accounting.poisson", "(*, noise, ...)") == ""
    with pytest.raises(AttributeError):
        find_object("sightline.Run.epsilons")


def test_there_is_a_page_for_every_subject_and_the_start_page_names_it() -> None:
    assert [page.stem for page in PAGES] == SUBJECTS
    for place in ("docs/index.md", "mkdocs.yml"):
        text = (ROOT / place).read_text(encoding="utf-8")
        assert all(f"api/{subject}.md" in text for subject in SUBJECTS), place


@pytest.mark.slow
def test_the_algorithm_of_the_page_keeps_our_laws(tmp_path: Path) -> None:
    page = ROOT / "docs" / "api" / "own-algorithms.md"
    code = dict(blocks(page, "python"))["nesterov.py"]
    (tmp_path / "nesterov.py").write_text(code, encoding="utf-8")
    laws = "from nesterov import ALGORITHM\nfrom sightline import testing\ntesting.check_algorithm(ALGORITHM, momentum=0.3)"
    assert printed(laws, tmp_path) == ""


@pytest.mark.slow
def test_the_first_model_prints_what_its_page_shows(tmp_path: Path) -> None:
    """The page of own models makes the same call in the fast tests."""
    page = ROOT / "docs" / "own-models.md"
    code = dict(blocks(page, "python"))["mine.py"]
    (shown,) = [body for _, body in blocks(page, "text") if " right, epsilon " in body]
    assert differences(shown, printed(code, tmp_path)) == []
