from pathlib import Path

import pytest
from serve_asking import Ask, asking, site_of

from tests.report.report_runs import per_sample, quickstart, without_privacy


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several kinds; they are only read."""
    place = tmp_path_factory.mktemp("serve") / "runs"
    quickstart(place / "quick", rounds=12)
    quickstart(place / "sweep" / "name=a,seed=1", rounds=3, seed=1, algorithm="fedprox")
    without_privacy(place / "open", rounds=4)
    per_sample(place / "sample", rounds=5)
    return place


@pytest.fixture(scope="session")
def ask(folder: Path) -> Ask:
    return asking(site_of(folder))
