"""One round of the quickstart stays a short walk, and goes against the order of packages through contracts only."""

from pathlib import Path

from tests.house.walk import walk_round

ROOT = Path(__file__).parents[2]
MOST_FILES = 40


def test_a_round_of_the_quickstart_is_a_short_walk():
    walk = walk_round(ROOT / "examples/quickstart.toml")
    assert not walk.against
    assert "engine/round.py" in walk.files, "the walk has eyes"
    assert any("fedavg.py run_round -> engine/round.py" in call for call in walk.by_contract)
    assert len(walk.files) <= MOST_FILES, sorted(walk.files)
