"""Whatever mechanism is registered: without a subject its values are the same, or no further away than is claimed."""

import pytest

from sightline.apps.audit.audit import compare_worlds
from sightline.mechanisms import NoisedValue
from tests.laws.noise import CASES


@pytest.mark.parametrize("name", CASES)
def test_values_without_a_subject_are_within_the_claim(name):
    setting = CASES[name].setting()
    found = compare_worlds(setting, seed=0)
    assert not found["twin_worlds_refuted"], found["twin_worlds"]
    solved = setting.mechanism.facts.noised_value in (NoisedValue.MODEL, NoisedValue.PATH)
    nothing = found["twin_worlds"].startswith("Twin worlds: 0 values")
    assert nothing is solved or name == "central, groups of their own"  # whose subjects are in other groups by chance
