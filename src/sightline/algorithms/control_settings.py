"""`algorithm.control` of an experiment file, and what it needs of the rest of the file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sightline.algorithms.contract import Algorithm
from sightline.algorithms.control_search import Weights
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse

KEYS = ["energy", "delay", "accuracy", "tau_max", "smoothness"]
EXAMPLE = "e.g. control = {energy = 1, delay = 1, accuracy = 1, tau_max = 40}"


@dataclass(frozen=True)
class Control:
    """Adaptive control of Section 5: weights of the three aims, and limits."""

    weights: Weights
    tau_max: int
    smoothness: float | None = None
    """beta as given; None: the one for which the experiment's learning rate is the largest that Theorem 4.3 allows."""
    estimated: bool = False
    """Whether beta follows the estimates of the run, upwards only."""

    @classmethod
    def read(cls, given: Any) -> "Control":
        """From the experiment file."""
        if not isinstance(given, Mapping):
            invalid("algorithm.control", given, "is a table", EXAMPLE)
        for key, value in given.items():
            if key not in KEYS:
                invalid(f"algorithm.control.{key}", value, "no such key", did_you_mean(str(key), KEYS))
        weights = [_read_weight(key, given.get(key, 1.0)) for key in ("energy", "delay", "accuracy")]
        if not weights[2] > 0:
            law = "without a weight on accuracy the cheapest choice is to train hardly at all"
            invalid("algorithm.control.accuracy", weights[2], law, "give a positive weight")
        tau_max = given.get("tau_max", 40)
        if isinstance(tau_max, bool) or not isinstance(tau_max, int) or tau_max < 1:
            invalid("algorithm.control.tau_max", tau_max, "is a whole number from 1", EXAMPLE)
        beta = given.get("smoothness")
        if beta == "estimate":
            return cls(Weights(*weights), tau_max, estimated=True)
        if beta is not None and not _read_weight("smoothness", beta) > 0:
            invalid("algorithm.control.smoothness", beta, 'is a positive number, or "estimate"')
        return cls(Weights(*weights), tau_max, beta if beta is None else float(beta))


def _read_weight(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        invalid(f"algorithm.control.{key}", value, "is a number >= 0", EXAMPLE)
    return float(value)


def check_control(experiment: Experiment, algorithm: Algorithm, control: Control) -> None:
    """Refuse what control has no choice over, or no guarantee with."""
    name, scheme, steps = "algorithm.control", experiment.sampling.clients.scheme, experiment.local.steps
    if experiment.topology.kind != "tree":
        law = "control chooses between trusted and untrusted subnets"
        invalid(name, experiment.topology.kind, law, 'use topology.kind = "tree"')
    if experiment.resources is None:
        invalid(name, "no [resources]", "energy and delay need a model", 'add [resources] model = "wireless"')
    if algorithm.personal:
        invalid(name, algorithm.name, "control needs one model for all", "choose another algorithm")
    if steps is None:
        invalid(name, "local.epochs", "control chooses the number of local steps", "give local.steps")
    if control.tau_max < steps:
        law = f"is the largest interval, and local.steps={steps} is the first"
        invalid(f"{name}.tau_max", control.tau_max, law, "raise it, or lower local.steps")
    if experiment.privacy.unit == "none":
        law = (
            "the accuracy that control weighs is what the privacy noise takes; without noise nothing balances the costs"
        )
        refuse(name, 'unit = "none"', law, "remove control, or add privacy")
    if scheme not in ("full", "poisson"):
        law = f"a smaller {scheme} cohort is not dominated by the planned one"
        refuse(name, f'scheme = "{scheme}"', law, 'use sampling.clients.scheme = "full" or "poisson"')
