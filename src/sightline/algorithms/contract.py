"""What an algorithm is, and the one object through which it touches the world."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sightline.mechanisms import Cohort, Public, Updates
from sightline.topology import Channel

State = Mapping[str, Public]
"""Everything an algorithm remembers between rounds: named public vectors, checkpointed as they are."""


class Round(Protocol):
    """One round. Whatever depends on private data comes out of it only by `release_mean` or `release_each`."""

    time: int
    clients: range

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Who gathers updates: a star's server, a tree's edges, the groups' masters."""

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Draw who of a channel's members takes part, as the experiment's sampler says; by default of the first."""

    def everyone(self) -> Cohort:
        """All clients, openly."""

    def train(self, cohort: Cohort, start: Public | Mapping[int, Public], **terms: Any) -> Updates:
        """Local training of the cohort from one model or from one model each; private until released."""

    def release_mean(self, updates: Updates, channel: Channel | None = None) -> Public:
        """The cohort's mean update, made public to the channel's audience by the experiment's mechanism."""

    def release_each(self, updates: Updates, channel: Channel | None = None) -> dict[int, Public]:
        """Each member's own update, made public to the channel's audience by the experiment's mechanism."""


class InitFunction(Protocol):
    """The state before the first round."""

    def __call__(self, start: Public, clients: range, settings: Any) -> State:
        """From a freshly initialised model."""


class RoundFunction(Protocol):
    """One round of the algorithm."""

    def __call__(self, state: State, r: Round, settings: Any) -> State:
        """The state after the round."""


class ModelsFunction(Protocol):
    """The models that the algorithm is judged by."""

    def __call__(self, state: State, clients: range) -> Public | dict[int, Public]:
        """One model for all, or one per client."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: its settings and three pure functions."""

    name: str
    settings: type
    init: InitFunction
    round: RoundFunction
    models: ModelsFunction
    personal: bool = False
    """Whether every client ends with a model of its own."""
    says: str = ""
    """A sentence for the report, where the guarantee needs one."""
