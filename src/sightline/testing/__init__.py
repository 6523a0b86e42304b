"""Checks for the tests of plugins: algorithms, mechanisms, topologies and samplers.

Each check raises `BrokenLaw` with the law and how it was broken; none needs pytest.
"""

from sightline.plugins import BrokenLaw
from sightline.testing.checks import check_algorithm, check_mechanism, check_sampler, check_topology
from sightline.testing.reaccount import confirm_ledger

__all__ = ["BrokenLaw", "check_algorithm", "check_mechanism", "check_sampler", "check_topology", "confirm_ledger"]
