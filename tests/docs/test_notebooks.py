"""The notebooks are the tutorials: written from them, current, and Python that compiles."""

import importlib.util
import json
from pathlib import Path

from tests.loops import for_every

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "site" / "notebooks.py")
GENERATOR = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(GENERATOR)
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@for_every(TUTORIALS)
def test_it_is_current(page: Path):
    written = (ROOT / "docs" / "notebooks" / f"{page.stem}.ipynb").read_text()
    assert written == GENERATOR.notebook(page.read_text()), "run: make notebooks"


@for_every(TUTORIALS)
def test_every_block_is_a_cell_and_every_cell_is_a_program(page: Path):
    cells = json.loads(GENERATOR.notebook(page.read_text()))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 1 + page.read_text().count("```python\n") + page.read_text().count("```bash\n")
    for text in code:
        if not text.startswith("%%bash"):
            compile(text, page.name, "exec")
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_a_notebook_starts_in_a_fresh_folder_every_time(tmp_path, monkeypatch):
    """Its commands write `runs/first` and `mine.toml`, which must not be there from the last time."""
    clone, temporary = tmp_path / "clone", tmp_path / "temporary"
    for folder in (clone / "examples", clone / "runs", clone / "docs" / "notebooks", temporary):
        folder.mkdir(parents=True)
    (clone / "examples" / "quickstart.toml").write_text("")
    monkeypatch.chdir(clone / "docs" / "notebooks")
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    places = []
    for _ in range(2):
        exec(compile(GENERATOR.START, "start", "exec"), {})
        places.append(Path.cwd())
        assert Path("examples/quickstart.toml").is_file()
        assert sorted(path.name for path in Path().iterdir()) == ["docs", "examples"]
        Path("runs").mkdir()
        Path("mine.toml").write_text("")
    assert len(set(places)) == 2
    assert not list((clone / "runs").iterdir())


def test_links_between_tutorials_stay_between_notebooks():
    made = GENERATOR.notebook("# A\n\n[b](b.md) and [data](../data.md)\n\n```python\n1\n```\n")
    assert "](b.ipynb)" in made
    assert "](../data.md)" in made
