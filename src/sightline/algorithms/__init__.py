"""Registry of algorithms by name; each algorithm is one file with settings, init, round and models."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sightline.algorithms import dp_ogl, dsgd, fedavg, fedavgm, feddyn, fedopt, fedprox, local, mrmtl, pfedme, scaffold
from sightline.algorithms.clustered import ifca, rdpcfl
from sightline.algorithms.contract import DERIVED, Algorithm, AlgorithmFacts, Round, RoundControl, State, with_facts
from sightline.algorithms.hierarchy import h2fdp
from sightline.algorithms.hierarchy.control import wrap_control
from sightline.algorithms.hierarchy.control_search import Control
from sightline.algorithms.wrappers import Upcycle, read_decay, wrap_average, wrap_released, wrap_upcycle
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid
from sightline.mechanisms import StateUpdate
from sightline.plugins import ALGORITHM, locate_plugin

REGISTRY: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        fedavg.ALGORITHM,
        fedavgm.ALGORITHM,
        fedprox.ALGORITHM,
        scaffold.ALGORITHM,
        feddyn.ALGORITHM,
        pfedme.ALGORITHM,
        fedopt.ADAGRAD,
        fedopt.ADAM,
        fedopt.YOGI,
        local.ALGORITHM,
        mrmtl.ALGORITHM,
        dp_ogl.ALGORITHM,
        dp_ogl.PLUS,
        dsgd.ALGORITHM,
        h2fdp.ALGORITHM,
        ifca.ALGORITHM,
        ifca.ORACLE,
        rdpcfl.ALGORITHM,
        *h2fdp.BASELINES,
    )
}

BUILT_IN = frozenset(REGISTRY)
"""Algorithms whose claims do not depend on released values; each was reviewed for this."""

RULES: dict[str, type[StateUpdate]] = {
    rule.__name__: rule for rule in (scaffold.ControlVariate, feddyn.GradientMemory, pfedme.Moreau)
}
"""State rules that clients may be told to follow, by name; real nodes accept no others."""


def build_algorithm(experiment: Experiment) -> tuple[Algorithm, Any]:
    """Return the algorithm of an experiment, with upcycling, control and averaging if set, and its settings."""
    algorithm, given = find_algorithm(experiment.algorithm.name), experiment.algorithm.settings
    rule, control, decay = (given.pop(key, None) for key in ("upcycle", "control", "average"))
    settings = settings_of(algorithm, given)
    algorithm.facts.check(experiment)
    settings = algorithm.facts.complete(settings, experiment)
    # The order matters: control sets the schedule of the upcycled round, and averaging must see the final model of the
    # round.
    if rule is not None:
        algorithm = wrap_upcycle(algorithm, Upcycle.read(rule))
    if control is not None:
        algorithm = wrap_control(algorithm, Control.read(control), experiment)
    if decay is not None:
        algorithm = wrap_average(algorithm, read_decay(decay))
    return algorithm, settings


def find_algorithm(name: str) -> Algorithm:
    """Return the algorithm of that name, built-in or from a plugin; reports use the given name."""
    plugin = locate_plugin(ALGORITHM, name, REGISTRY)
    if plugin is None:
        return REGISTRY[name]
    result = plugin.load_object()
    if not isinstance(result, Algorithm):
        plugin.refuse_type(result, "an `Algorithm` of sightline.algorithms")
    return dataclasses.replace(result, name=name)


def settings_of(algorithm: Algorithm, given: Mapping[str, Any]) -> Any:
    """Return the algorithm's settings. Raise for unknown keys and for numbers that are not finite."""
    own = [field for field in dataclasses.fields(algorithm.settings) if not field.metadata.get(DERIVED)]
    fields = {field.name: field for field in own}
    for key, value in given.items():
        if key not in fields:
            way_out = did_you_mean(key, sorted(fields)) if fields else "remove it"
            invalid(f"algorithm.{key}", value, f"{algorithm.name} has no such setting", way_out)
        default = fields[key].default
        if isinstance(default, float) and not (_is_number(value) and math.isfinite(value)):
            invalid(f"algorithm.{key}", value, "a finite number is needed", f"e.g. {default}")
    return algorithm.settings(**given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


__all__ = [
    "BUILT_IN",
    "REGISTRY",
    "RULES",
    "Algorithm",
    "AlgorithmFacts",
    "Round",
    "RoundControl",
    "State",
    "build_algorithm",
    "find_algorithm",
    "settings_of",
    "with_facts",
    "wrap_released",
]
