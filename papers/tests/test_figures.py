"""A file for every figure and table, with a head that is true; every command exists; the one page is current."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from papers.commands import commands, listed, units
from papers.findings import count_verdicts
from papers.heads import takes
from papers.overview import write_overview
from papers.reproduce import HOMES, PAGES
from papers.systems import SYSTEMS, find_sentences, findings_of
from papers.times import measured
from sightline import engine
from sightline.apps.cli.info import experiments_command as command
from sightline.config import read
from sightline.config.experiment_file import Reproduction, read_reproductions
from sightline.errors import InvalidInput

ROOT = Path(__file__).parents[2]

PAPERS = {
    "groups": "figure2 figure3ab figure3cd figure3ef figure3gh figure4a figure4b figure4c figure4d figure4e figure4f "
    "figure4g figure4h figure5ad figure5e",
    "upcycled": "figure2 figure3 figure4 figure5 figure6 figure7 figure8 figure9 table1 table3 table4 table5",
    "clustered": "figure8 figure10 figure11 figure12 figure13 figure14",
    "hierarchy": "figure4 figure5 figure6 figure7 figure8 figure9 figure10",
    "partitioning": "figure1 figure2 figure3 figure4 figure5 figure6 figure7 figure8 table1 table2 section4.2",
}
"""Every numbered figure and table of the papers that shows a result; docs/design-notes.md says which do not."""

FILES = read_reproductions(ROOT / "papers")


def name_of(reproduction: Reproduction) -> str:
    return f"{reproduction.system}/{reproduction.file.stem}"


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_figure_of_a_paper_has_its_file(system: str):
    assert {e.file.stem for e in FILES if e.system == system} == set(PAPERS[system].split())


def test_every_system_has_figures_and_has_a_page():
    assert set(SYSTEMS) == set(PAPERS) == set(PAGES) == {reproduction.system for reproduction in FILES}
    for system in SYSTEMS:
        assert (ROOT / "papers" / "docs" / f"{system}.md").is_file()


def test_every_file_is_an_experiment_with_a_name_of_its_own():
    names = [read(reproduction.file).name for reproduction in FILES]
    assert names == [f"{reproduction.system}-{reproduction.file.stem}" for reproduction in FILES]


@pytest.mark.parametrize("reproduction", FILES, ids=name_of)
def test_a_head_names_its_figure_and_took_what_was_measured(reproduction: Reproduction):
    kind, number = re.match(r"(figure|table|section)([\d.]+)", reproduction.file.stem).groups()
    assert re.match(rf"{kind.title()} {re.escape(number)}\b", reproduction.reproduces)
    assert len(reproduction.expect) > 20
    assert reproduction.takes == takes(reproduction, measured()), "run: python -m papers --page-only"


QUICK = [reproduction for reproduction in FILES if read(reproduction.file).data.source in ("digits", "synthetic")]


@pytest.mark.parametrize("reproduction", QUICK, ids=name_of)
def test_files_whose_data_is_always_there_can_be_built(reproduction: Reproduction):
    assert engine.build_experiment(read(reproduction.file)).experiment.name


def known(experiment: Any) -> Any:
    """An experiment without what names it."""
    return experiment.model_copy(update={"name": ""})


def cells() -> Iterator[dict[str, Any]]:
    from papers.clustered.accuracy import jobs
    from papers.groups.cells import PARTS as groups
    from papers.hierarchy.figures import PARTS as hierarchy
    from papers.upcycled.parts import PARTS as upcycled

    yield from (job.plain for job in jobs())
    for parts in (groups, hierarchy, upcycled):
        yield from (cell.plain for part in parts.values() for cell in part())


OWN = {"clustered/figure8", "clustered/figure10", "clustered/figure13", "clustered/figure14"}
"""Round one alone, small; the whole works on sums that it keeps."""


def test_files_of_trained_figures_are_cells_of_the_whole():
    from sightline.config import parse

    whole = {repr(known(parse(plain))) for plain in cells()}
    for reproduction in FILES:
        trained = reproduction.system != "partitioning" and "figure4" not in " ".join(units(reproduction.whole))
        if trained and name_of(reproduction) not in OWN:
            assert repr(known(read(reproduction.file))) in whole, reproduction.file


POINTS = {"groups/figure2": 3.742, "partitioning/figure3": 2.805, "partitioning/figure8": 2.437}


@pytest.mark.parametrize("reproduction", [e for e in FILES if name_of(e) in POINTS], ids=name_of)
def test_a_file_that_costs_a_point_costs_what_its_head_says(reproduction: Reproduction, tmp_path: Path):
    import sightline

    run = sightline.run(read(reproduction.file), out=tmp_path / "run")
    assert run.summary["epsilon"] == pytest.approx(POINTS[name_of(reproduction)], abs=1e-3)
    assert f"{POINTS[name_of(reproduction)]:.3f}" in reproduction.expect


@pytest.mark.parametrize("line", [line for _, line in commands() if line.startswith("python")])
def test_every_command_is_a_module_of_ours(line: str):
    python, flag, module, *_ = shlex.split(line)
    assert (python, flag) == ("python", "-m")
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    assert module in HOMES


def test_parts_that_commands_name_exist():
    from papers.clustered.parts import PARTS as clustered
    from papers.groups.cells import PARTS as groups
    from papers.hierarchy.figures import PARTS as hierarchy
    from papers.upcycled.parts import PARTS as upcycled

    parts = {"groups": groups, "clustered": clustered, "hierarchy": hierarchy, "upcycled": upcycled}
    for system, known_parts in parts.items():
        named = {line.split()[3] for _, line in commands([system]) if f" papers.{system} " in line}
        assert named == set(known_parts) - {"quick"}


def test_a_file_without_a_head_is_named(tmp_path: Path):
    (tmp_path / "bare.toml").write_text("rounds = 1\n")
    with pytest.raises(InvalidInput, match="its first lines must be"):
        Reproduction.read(tmp_path / "bare.toml")


def test_the_list_and_its_json_agree():
    listed_ = CliRunner().invoke(command, ["groups", "--folder", str(ROOT / "papers")])
    found = json.loads(CliRunner().invoke(command, ["groups", "--folder", str(ROOT / "papers"), "--json"]).output)
    assert found["experiments"]
    for entry in found["experiments"]:
        assert Path(entry["file"]).name in listed_.output.replace("\n", "")


def test_the_order_of_the_gallery_leaves_no_file_out():
    assert sorted(e.file for e in listed()) == sorted(e.file for e in FILES)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_finding_has_a_command_that_shows_it_and_authors_get_three_sentences(system: str):
    for finding in findings_of(system):
        assert all(finding.cells)
        assert finding.command.split()[0] in ("python", "sightline")
    assert len(find_sentences(system)) == 3


def test_every_figure_has_a_picture_and_no_finding_is_without_verdict():
    for system in SYSTEMS:
        found = findings_of(system)
        assert sum(count_verdicts(found).values()) == len(found)
        page = (ROOT / "papers" / "docs" / f"{system}.md").read_text(encoding="utf-8")
        shown = set(re.findall(r"\]\(([\w.-]+\.svg)\)", page))
        assert shown
        assert all((ROOT / "papers" / "docs" / name).is_file() for name in shown)


def sections(page: Path) -> list[str]:
    return re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)


def test_the_page_is_current(tmp_path: Path):
    write_overview(tmp_path / "page.md")
    shown, fresh = sections(ROOT / "papers" / "docs" / "index.md"), sections(tmp_path / "page.md")
    assert len(shown) == len(fresh) == 2 + len(SYSTEMS)
    for old, new in zip(shown, fresh, strict=True):
        assert old == new, "run: python -m papers --page-only"
