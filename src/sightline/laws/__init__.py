"""Checks for plugins: what they claim is compared with what they do before an experiment uses them.

Plugin algorithms are checked by `engine.algorithm_laws`, which runs their rounds.
"""

from sightline.laws.mechanism import check_mechanism_laws
from sightline.laws.plugins import (
    check_first_mechanism,
    check_first_sampler,
    check_plugin_laws,
    check_sampler_laws,
    check_shape,
)

__all__ = [
    "check_first_mechanism",
    "check_first_sampler",
    "check_mechanism_laws",
    "check_plugin_laws",
    "check_sampler_laws",
    "check_shape",
]
