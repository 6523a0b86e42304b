"""The report page: sections in order, rendered by templates into one file that loads nothing else."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.apps.report import clusters, curves, guarantee, matrix, sections
from sightline.apps.report.run_view import REPORT, Content, Frame, RunView, Section
from sightline.errors import invalid
from sightline.formatting import write_whole

SECTIONS: tuple[Section, ...] = (
    guarantee.SECTION,
    sections.GROUPS_SECTION,
    curves.DISTANCE_SECTION,
    curves.CURVES_SECTION,
    matrix.SECTION,
    clusters.SECTION,
    sections.CLIENTS_SECTION,
    sections.LOAD_SECTION,
    curves.TRAFFIC_SECTION,
    curves.COSTS_SECTION,
    curves.CONTROL_SECTION,
    curves.STREAM_SECTION,
    sections.SETTINGS_SECTION,
)
"""To add a section: a module with its `content`, a template of the same name, and a line here."""


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` into a run directory from its own records and return its path.

    Guarantees: the page loads nothing and says so in its Content-Security-Policy; names and texts of a run are shown as
    text; the file is replaced atomically.
    """
    return write_page(RunView.read(Path(run_dir)))


def write_page(run: RunView) -> Path:
    """Write the page of a run that was already read."""
    path = run.directory / REPORT
    try:
        write_whole(path, render_run(run))
    except OSError as error:
        invalid("report", path, f"cannot be written ({error.strerror})", "make the run directory writable")
    return path


def render_run(run: RunView, sections: Sequence[Section] = SECTIONS) -> str:
    """Return the page of a run as text."""
    return render_page(run.name, section_contents(run, sections), version=run.fact("sightline_version", ""))


def section_contents(run: RunView, sections: Sequence[Section] = SECTIONS) -> list[tuple[Section, Content]]:
    """Return the sections that apply to the run, with their content."""
    # Every section decides by itself whether it has anything to show for this kind of run.
    contents = [(section, section.content(run)) for section in sections]
    return [(section, content) for section, content in contents if content is not None]


def render_page(title: str, sections: Sequence[tuple[Frame, Content]], *, version: str = "") -> str:
    """Return a self-contained page."""
    style, script = read_asset("page.css"), read_asset("page.js")
    # A report is kept for years and mailed around: nothing may be loaded, and only this exact style and script may run,
    # even if escaping failed somewhere.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_content_hash(style)}; "
        f"script-src {_content_hash(script)}; base-uri 'none'"
    )
    return (
        template_environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=sections,
            # Our own files, without any user text.
            style=Markup(style),
            script=Markup(script),
            policy=policy,
            version=version,
        )
    )


@cache
def template_environment(*packages: str) -> Environment:
    """Return the templates of the report, preceded by those of other packages; all values are escaped."""
    # Cached: compiling the templates took longer than the rest of a page.
    made = Environment(
        loader=ChoiceLoader([PackageLoader("sightline", f"apps/{package}") for package in (*packages, "report")]),
        autoescape=True,
        # A misspelt name in a template is an error and not an empty place.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["parties"] = kept_whole
    made.filters["unbroken"] = unbroken
    return made


def kept_whole(names: str) -> Markup:
    """Return names between commas as markup that breaks lines between names first.

    >>> kept_whole("client-0..9, <b>")
    Markup('<span class="party">client-0..9,</span> <span class="party">&lt;b&gt;</span>')
    """
    parts = names.split(", ")
    words = [f"{name}," for name in parts[:-1]] + parts[-1:]
    return Markup(" ").join(Markup('<span class="party">{}</span>').format(word) for word in words)


def unbroken(words: str) -> str:
    """Return words for a page: numbers stay beside their signs, and exponents are powers of ten.

    >>> unbroken("at δ = 5e-05, 3.1e6 values") == "at δ\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}5·10⁻⁵, 3.1·10⁶ values"
    True
    """
    powers = EXPONENT.sub(lambda found: f"{found[1]}·10{str(int(found[2])).translate(RAISED)}", words)
    return powers.replace(" %", "\N{NO-BREAK SPACE}%").replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


EXPONENT = re.compile(r"\b(\d+(?:\.\d+)?)e([+-]?\d+)\b")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def read_asset(name: str) -> str:
    """Return a style sheet or script of the report."""
    return resources.files("sightline.apps.report").joinpath(name).read_text(encoding="utf-8")


def _content_hash(text: str) -> str:
    """Return the source expression that allows exactly this text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
