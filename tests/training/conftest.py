import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_search(monkeypatch, tmp_path):
    """Search for compiled code again, with nothing shipped and an empty cache; restore the library afterwards."""
    from sightline.training.compiled import library

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "shipped_libraries", list)
    library.find_library.cache_clear()
    yield tmp_path / "cache" / "sightline" / "compiled"
    library.find_library.cache_clear()
