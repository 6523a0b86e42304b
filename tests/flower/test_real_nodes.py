"""What rests on everybody's answer is not claimed of real nodes, and noise is calibrated without it."""

import pytest

from sightline import engine
from sightline.config import parse
from tests.flower.cases import H2FDP, ON_TREE, changed, privacy

POOLED = changed(**ON_TREE, algorithm=H2FDP, privacy=privacy("client", "edge", epsilon=20.0))


@pytest.mark.parametrize("real", [True, False])
def test_the_target_is_met_as_it_will_be_claimed(real):
    setting = engine.calibrate_noise(engine.build_experiment(parse(POOLED)), real_nodes=real)
    ledger = engine.plan_releases(setting, real_nodes=real)
    worst = max(ledger.worst_of(lines, 1e-3) for lines in setting.topology.lines.values())
    assert worst == pytest.approx(20.0, rel=1e-3)
    assert worst <= 20.0
    pooled = any("Pooled" in type(release.event).__name__ for release in ledger)
    assert pooled is not real
