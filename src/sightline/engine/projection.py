"""Check that every party can run its part of an algorithm with the values that it holds.

In a deployment every party (cloud, edge, group master, client) runs the same program and holds only the values of its
line of sight. A value that a party uses and was never sent is a hidden transfer: the simulator would compute with it,
and the ledger would not know that the party has it. So the plan is walked once for each kind of party, without data.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, DryExecution
from sightline.engine.round import HELD, walk_rounds
from sightline.errors import Refused
from sightline.ledger import Ledger, Release
from sightline.mechanisms import ABSENT, ReleaseContext, ReleaseValues, Updates
from sightline.plugins import BrokenLaw
from sightline.topology import PUBLIC, Channel, client_name, has_one_server


class PartyPlan(DryExecution):
    """The plan as one party walks it: zeros for values that it holds, `ABSENT` for all others."""

    def __init__(self, party: str, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self._party = party

    @override
    def share_value(self, release: Release, holder: str, value: torch.Tensor) -> torch.Tensor:
        if holder == self._party and value is ABSENT:
            raise Refused(f"release={release.id} ({release.what}): {holder} shows a value that it does not hold")
        holds = self._party == holder or not release.audience.isdisjoint((self._party, PUBLIC))
        return torch.zeros(self.worker.dimension) if holds else ABSENT

    @override
    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        for member in updates.cohort.members:
            if client_name(member) == self._party and updates.starts[member].value is ABSENT:
                raise Refused(f"round={context.time}: {self._party} does not hold the model that it trains")
        return super().compute_values(updates, context, compute)


def check_projection(built: BuiltExperiment) -> None:
    """Raise `BrokenLaw` if a party would need a value that nobody has sent to it.

    The rounds that are walked include two exchanges between channels.
    """
    rounds = min(built.experiment.rounds, 2 * built.topology.period + 1)
    for party in list_kinds_of_parties(built, rounds):
        execution = PartyPlan(party, built.federation.sizes.tolist())
        try:
            walk_rounds(built, Ledger(participants=built.participants), execution, rounds)
        except BrokenLaw:
            raise
        # Torch and float() raise these for an absent value.
        except (Refused, TypeError) as error:
            raise BrokenLaw(HELD, f"{party}: {error}") from None


def list_kinds_of_parties(built: BuiltExperiment, rounds: int) -> list[str]:
    """Return one party of each kind: parties with equal places among channels have equal parts.

    Around one server only the server runs the program; clients answer its calls.
    """
    topology = built.topology
    every = [channel for time in range(1, rounds + 1) for channel in topology.channels_at(time)]
    servers = {channel.name: channel for channel in (*every, *topology.gathering_channels, topology.top)}
    if has_one_server(topology):
        return [topology.top.name]
    relays = [name for level in topology.uplinks for name in level if name not in servers]
    kinds: dict[object, str] = {("relay",): relays[0]} if relays else {}
    for name, channel in servers.items():
        kinds.setdefault(_kind_of(channel, every), name)
    places: dict[int, list[object]] = {}
    for channel in every:
        for member in channel.members:
            places.setdefault(member, []).append(_kind_of(channel, every))
    for member, seen in places.items():
        kinds.setdefault(("client", *seen), client_name(member))
    return list(dict.fromkeys(kinds.values()))


def _kind_of(channel: Channel, every: Sequence[Channel]) -> object:
    """Return what distinguishes a server: trust, its place in the tree, and how many others share a client with it."""
    members = set(channel.members)
    bridged = len({other.name for other in every if not members.isdisjoint(other.members)})
    return channel.trusted, len(channel.through), len(channel.above), len(channel.audience) > len(members) + 1, bridged
