"""Test doubles for clients: their updates are given, so that checks can see what a mechanism does to them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sightline.events import Clear
from sightline.ledger import POST_PROCESSING, Release
from sightline.mechanisms.contract import ReleaseContext, ReleaseValues
from sightline.mechanisms.updates import Block, ClientOutput, ClientSideMechanism, RemoteNodes, Updates
from sightline.plugins import BrokenLaw
from sightline.randomness import EVERYONE
from sightline.topology import client_name


class KnownClients:
    """A client executor whose updates are given instead of trained."""

    def __init__(self, updates: Mapping[int, Tensor], nodes: RemoteNodes | None = None) -> None:
        self.updates, self.nodes = updates, nodes
        self.dimension = len(next(iter(updates.values())))
        self.sizes: Sequence[int] = [10] * len(updates)

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def train(self, cohort: Sequence[int], starts: Tensor, **_: Any) -> Iterator[Block]:
        """Yield each member's start plus its given update."""
        if cohort:
            yield list(cohort), starts + torch.stack([self.updates[member] for member in cohort])

    def dp_sgd(self, cohort: Sequence[int], starts: Tensor, **_: Any) -> Iterator[Block]:
        """Raise `BrokenLaw`: private steps are not clients' updates."""
        raise BrokenLaw("clients' updates are what is noised", "it asks for private steps")

    gradient_sums = minimise = dp_sgd

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """Raise `BrokenLaw`: nothing is evaluated."""
        raise BrokenLaw("clients' updates are what is noised", "it asks for evaluations")


class SilentClients(KnownClients):
    """Clients that raise `BrokenLaw` when their updates are asked for."""

    def __init__(self, updates: Mapping[int, Tensor], law: str, nodes: RemoteNodes | None = None) -> None:
        super().__init__(updates, nodes)
        self._law = law

    def train(self, cohort: Sequence[int], starts: Tensor, **_: Any) -> Iterator[Block]:
        """Raise `BrokenLaw` with the check's own name."""
        raise BrokenLaw(self._law, "it looks at updates")

    dp_sgd = gradient_sums = minimise = train


@dataclass(frozen=True)
class RepeatingNodes:
    """Nodes that send again what was sent before."""

    left: Mapping[int, Tensor]
    steadfast: bool = True

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield the recorded values."""
        yield from (ClientOutput(member, self.left[member]) for member in updates.cohort.members)

    def request_choices(self, ballot: Any, context: ReleaseContext) -> dict[int, int]:
        """Raise `BrokenLaw`: these nodes make no choices."""
        raise BrokenLaw("clients' updates are what is noised", "it asks for choices")


@dataclass(frozen=True, eq=False)
class NotedUpdates(Updates):
    """Updates that record what each member sends through `collect_outputs`."""

    left: dict[int, Tensor] = field(default_factory=dict)

    def collect_outputs(self, mechanism: ClientSideMechanism, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield each member's output and record it."""
        for one in super().collect_outputs(mechanism, context):
            self.left[one.member] = one.value
            yield one


World = Mapping[int, Tensor]
"""Client -> its update."""


@dataclass(frozen=True, eq=False)
class Released:
    """One release call: its claims, the members' messages and the released values."""

    claims: tuple[Release, ...]
    left: Mapping[int, Tensor]
    outcome: ReleaseValues
    channel: str

    @property
    def noisy(self) -> list[Release]:
        """The claims that carry noise."""
        return [one for one in self.claims if one.event not in (Clear(), POST_PROCESSING)]

    def value_of(self, release: Release) -> Tensor:
        """Return the value of a release. Raise `BrokenLaw` if it was claimed and never sent."""
        every = {client_name(n): v for n, v in {**self.outcome.values, **self.left}.items() if n != EVERYONE}
        if EVERYONE in self.outcome.values:
            every[self.channel] = self.outcome.values[EVERYONE]
        if release.source not in every:
            raise BrokenLaw("what is claimed is let go", f"{release.source} claims a release and lets nothing go")
        return every[release.source].double()
