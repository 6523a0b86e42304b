"""What this package brings keeps Sightline's laws, and a run with all of it promises what it says."""

from pathlib import Path

import sightline
from sightline import testing
from sightline_example.availability import SAMPLER
from sightline_example.consortium import TOPOLOGY
from sightline_example.fedema import ALGORITHM
from sightline_example.median import MECHANISM

FILE = Path(__file__).parents[1] / "plugin.toml"


def test_the_algorithm_keeps_the_laws() -> None:
    """With whatever it is asked to protect."""
    testing.check_algorithm(ALGORITHM, decay=0.3)


def test_the_mechanism_keeps_the_laws() -> None:
    """Noise as claimed, and a median made of nothing but what was sent."""
    testing.check_mechanism(MECHANISM)


def test_the_topology_keeps_the_laws() -> None:
    """Nobody is forgotten who sees something."""
    testing.check_topology(TOPOLOGY)


def test_the_sampler_keeps_the_laws() -> None:
    """Nobody is drawn more often than it claims."""
    testing.check_sampler(SAMPLER, rates=[0.9, 0.5])


def test_the_names_work_once_the_package_is_installed(tmp_path: Path) -> None:
    """All four in one run."""
    run = sightline.run(FILE, out=tmp_path / "run")
    assert run.epsilon <= 20
    assert "public" not in run.ledger.participants
    assert "median of noisy updates" in {release.what for release in run.ledger}
