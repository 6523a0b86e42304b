"""The example plugin on the path, as if it were installed, or not."""

from pathlib import Path

import pytest

from sightline import plugins

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture
def example(monkeypatch):
    """The example's modules can be imported; its names are not offered."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    return EXAMPLE


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Installs a package that has nothing but metadata: group -> {name: object}."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def install(package, **groups):
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [
            line
            for group, names in groups.items()
            for line in (f"[sightline.{group}]", *(f"{name} = {place}" for name, place in names.items()), "")
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        plugins.forget_offers()

    yield install
    plugins.forget_offers()


@pytest.fixture
def installed(example, offer):
    """The example as if it were installed: its names, from its own pyproject."""
    import tomllib

    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    offer("sightline-example", **{group.removeprefix("sightline."): names for group, names in points.items()})
    return EXAMPLE
