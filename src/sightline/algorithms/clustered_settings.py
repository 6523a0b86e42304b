"""Settings of algorithms whose clients choose clusters: how often, at which epsilon, and what they refuse."""

from dataclasses import dataclass, field, replace
from typing import Any

from sightline.algorithms.contract import DERIVED
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.topology import cluster_count

SHARE = 0.03
"""Of the total epsilon, for one choice."""
SELECTING = 10
"""One round in so many has choices."""


@dataclass(frozen=True)
class Selecting:
    """Choices of clusters; `selection_epsilon` is what one of them costs (0.03 of `privacy.epsilon` by default)."""

    selection_epsilon: float | None = None
    selection_rounds: int | None = None
    count: int | None = field(default=None, metadata={DERIVED: True})
    rounds: int = field(default=0, metadata={DERIVED: True})

    def __post_init__(self) -> None:
        epsilon, rounds = self.selection_epsilon, self.selection_rounds
        number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
        if epsilon is not None and not (number and 0 < epsilon < float("inf")):
            invalid("algorithm.selection_epsilon", epsilon, "is a positive number", "e.g. 0.1")
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0):
            invalid("algorithm.selection_rounds", rounds, "is a whole number from 0")

    def epsilon(self) -> float:
        """What one choice costs; without privacy it is not looked at."""
        return self.selection_epsilon or 0.0


def complete_settings(settings: Any, experiment: Experiment) -> Any:
    """The settings with the experiment's rounds, clusters and share of epsilon filled in."""
    epsilon = settings.selection_epsilon
    privacy = experiment.privacy
    if epsilon is None and privacy.unit != "none":
        if privacy.epsilon is None:
            law = f"its default is {SHARE:g} of privacy.epsilon, which is not given"
            invalid("algorithm.selection_epsilon", "missing", law, "e.g. selection_epsilon = 0.1")
        epsilon = SHARE * privacy.epsilon
    rounds = settings.selection_rounds
    return replace(
        settings,
        selection_epsilon=epsilon,
        selection_rounds=experiment.rounds // SELECTING if rounds is None else rounds,
        count=cluster_count(experiment.topology.settings, experiment.data.clients),
        rounds=experiment.rounds,
    )


def refuse_trusted_server(algorithm: str, experiment: Experiment) -> None:
    """Clients add their own noise here: the server works on what each of them sends."""
    privacy = experiment.privacy
    if privacy.unit != "none" and privacy.place != "client":
        law = f"{algorithm}'s server sorts clients by what each of them releases by itself"
        refuse("privacy.where", privacy.place, law, 'use where = "client"')
