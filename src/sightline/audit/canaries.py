"""The worst input there is: subjects whose contribution is as large as it may be, among others who send nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sightline.audit.relays import Relays
from sightline.data import Client, Federation, Kind, Shard
from sightline.events import Adjacency
from sightline.mechanisms import Block, CallId, Splitter, StateAccess
from sightline.mechanisms.worker import RemoteNodes
from sightline.randomness import Purpose, Streams

LOUD = 1000.0
"""How far beyond the clip norm a canary goes: whoever forgets to clip it will be heard."""


def round_sign(round: int) -> float:
    """+1, -1, +1, ...: a canary turns round every time, so that noise that was used before cancels and it does not."""
    return 1.0 if round % 2 else -1.0


@dataclass(frozen=True)
class CanaryCoins:
    """Which canaries are in; who is out sends nothing, or the opposite where the adjacency is replace-one."""

    inside: Mapping[int, bool]
    adjacency: Adjacency

    def factor(self, slot: int) -> float:
        """What the canary's contribution is multiplied with."""
        if self.inside[slot]:
            return 1.0
        return -1.0 if self.adjacency is Adjacency.REPLACE else 0.0


Where = Callable[[Splitter, Any, int], list[int]]
"""(splitter, assignment, canary) -> the coordinates that the canary moves."""


@dataclass(eq=False)
class CanaryClients:
    """Clients as a mechanism of the client unit meets them: their training may have ended anywhere, and did.

    Client n of `slots` sends `LOUD` clip norms along its own coordinate; all others send exactly nothing, or carry on
    what they are told.
    """

    dimension: int
    sizes: Sequence[int]
    slots: Mapping[int, int]
    """Client -> the number of its canary, which is its coordinate where the model is not split."""
    coins: CanaryCoins
    clip_norm: float
    secret: Streams = field(repr=False)
    where: Where | None = None
    """Of split models."""
    relays: Relays | None = None
    """To observers who see nothing of the subject's groups; canaries do not turn then, for models add up."""
    nodes: RemoteNodes | None = None

    def close(self) -> None:
        """Nothing to let go."""

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, terms: Mapping[str, Any],
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Where the members' training ended."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        for place, member in enumerate(cohort):
            start = starts if starts.dim() == 1 else starts[place]
            self._move(ends[place], start, member, at, splitter)
            if recall is not None:
                recall.keep_state(member, start, ends[place], 1.0)
        yield list(cohort), ends

    def _move(self, end: Tensor, start: Tensor, member: int, at: CallId, splitter: Splitter | None) -> None:
        loud = self.clip_norm * LOUD
        if member in self.slots:
            slot = self.slots[member]
            turned = round_sign(at.round) if self.relays is None else 1.0
            end[self._coordinates(slot, member, at, splitter)] += loud * turned * self.coins.factor(slot)
        elif self.relays is not None:
            coordinate, way = self.relays.says(member, start, at)
            end[coordinate] += loud * way

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """A canary finds the first model right on all its examples and the others on none."""
        for member in cohort:
            inside = member in self.slots and self.coins.inside[self.slots[member]]
            yield member, [self.sizes[member] if inside and not place else 0 for place in range(len(models))]

    def _coordinates(self, slot: int, member: int, at: CallId, splitter: Splitter | None) -> list[int]:
        """Its own; of a split model, those in the part that the member drew in secret."""
        if splitter is None or self.where is None:
            return [slot]
        rng = self.secret.rng(Purpose.ASSIGNMENT, round=at.round, participant=member, use=at.use)
        return self.where(splitter, splitter.splitting.draw(1, rng=rng)[0], slot)


def canary_examples(
    like: Federation, features: int, holders: Mapping[int, Sequence[int]], coins: CanaryCoins, far: float = 0.0
) -> Federation:
    """As many examples as each client has, of two classes and all zero, but for the canaries: each has a feature.

    `holders` says which canaries a client has. With softmax regression near zero a canary's gradient is
    (-1, +1) / 2 times its one feature, `LOUD`, and a replaced canary has the other label. Before the audit's own
    network, where the feature is `far`, canaries have the label that it finds impossible and are replaced by their
    opposites.
    """
    clients = []
    for client, real in enumerate(like.clients):
        x = np.zeros((len(real.train), features), dtype=np.float32)
        y = np.zeros(len(real.train), dtype=np.int64)
        for example, slot in enumerate(holders.get(client, ())):
            factor = coins.factor(slot)
            x[example, slot] = far * factor if far else LOUD * abs(factor)
            y[example] = int(factor != 0 if far else factor < 0)
        clients.append(Client(Shard(x, y), _zero_shard(features), real.cluster))
    return Federation("canaries", tuple(clients), _zero_shard(features), 2, Kind.VECTOR)


def silent_clients(clients: int) -> Federation:
    """So many clients with one example each, which is zero."""
    some = Client(_zero_shard(1), _zero_shard(1))
    return Federation("canaries", (some,) * clients, _zero_shard(1), 2, Kind.VECTOR)


def _zero_shard(features: int) -> Shard:
    x: NDArray[np.float32] = np.zeros((1, features), dtype=np.float32)
    return Shard(x, np.zeros(1, dtype=np.int64))
