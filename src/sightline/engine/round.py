"""The `Round` that algorithms see: it samples, trains lazily, and releases through the ledger."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sightline.engine.setting import Setting
from sightline.errors import BudgetExhausted
from sightline.ledger import Ledger, LedgerDamaged, Release
from sightline.mechanisms import Cohort, Occasion, Outcome, Public, Scene, Updates, Worker
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import Channel


class LiveRound:
    """One round of a real run.

    Guarantees: a release is durable in the ledger before its value is handed to the algorithm; the budget is checked
    before the ledger is written and before any data is touched; every release call has noise of its own.
    """

    def __init__(self, setting: Setting, ledger: Ledger, worker: Worker, secret: Streams, time: int) -> None:
        self.time = time
        self.clients = setting.clients
        self.counts = {"rejected": 0.0, "uplink_floats": 0.0, "downlink_floats": 0.0}
        self._setting = setting
        self._ledger = ledger
        self._worker = worker
        self._secret = secret
        self._draws = 0
        self._uses = 0
        self._made_before = _tail_of(ledger, time)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels of the topology."""
        return self._setting.topology.channels

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Draw who of the channel's members takes part."""
        channel = channel or self.channels[0]
        rng = self._secret.rng(Purpose.COHORT, round=self.time, use=self._draws)
        self._draws += 1
        drawn = self._setting.samplers[channel.name].draw(rng=rng)
        return Cohort(tuple(channel.members[place] for place in drawn))

    def everyone(self) -> Cohort:
        """All clients, openly."""
        return Cohort(tuple(self.clients))

    def train(self, cohort: Cohort, start: Public | Mapping[int, Public], **terms: Any) -> Updates:
        """Nothing is computed yet: a mechanism will ask for it."""
        starts = dict.fromkeys(cohort.members, start) if isinstance(start, Public) else start
        at = Occasion(self.time, self._uses)
        self._uses += 1
        return Updates(cohort, {member: starts[member] for member in cohort.members}, self._worker, at, terms)

    def release_mean(self, updates: Updates, channel: Channel | None = None) -> Public:
        """Claim, record, compute, hand over."""
        mechanism = self._setting.mechanism
        made, outcome = self._release(updates, channel, mechanism.claims, mechanism.mean)
        return Public(outcome.values[EVERYONE], frozenset({made[-1].id}))

    def release_each(self, updates: Updates, channel: Channel | None = None) -> dict[int, Public]:
        """Claim, record, compute, hand over: one release per member."""
        mechanism = self._setting.mechanism
        made, outcome = self._release(updates, channel, mechanism.claims_each, mechanism.each)
        ids = {member: release.id for member, release in zip(updates.cohort.members, made, strict=True)}
        return {member: Public(value, frozenset({ids[member]})) for member, value in outcome.values.items()}

    def _release(
        self,
        updates: Updates,
        channel: Channel | None,
        claim: Callable[[Updates, Scene], tuple[Release, ...]],
        compute: Callable[[Updates, Scene], Outcome],
    ) -> tuple[Sequence[Release], Outcome]:
        scene = self._scene(updates, channel or self.channels[0])
        made = self._record(claim(updates, scene))
        outcome = self._computed(updates, scene, compute)
        self._count(outcome.rejected, self._setting.mechanism.senders(updates.cohort, scene))
        return made, outcome

    def _count(self, rejected: int, senders: float) -> None:
        floats = senders * self._setting.model.parameters
        self.counts["rejected"] += rejected
        self.counts["uplink_floats"] += floats
        self.counts["downlink_floats"] += floats

    def _computed(self, updates: Updates, scene: Scene, compute: Callable[[Updates, Scene], Outcome]) -> Outcome:
        return compute(updates, scene)

    def _scene(self, updates: Updates, channel: Channel) -> Scene:
        at = updates.at
        return Scene(
            time=self.time,
            unit=self._setting.unit,
            adjacency=self._setting.adjacency,
            channel=channel,
            sampler=self._setting.samplers[channel.name],
            next_id=self._made_before[0].id if self._made_before else len(self._ledger),
            noise=lambda participant: self._secret.rng(
                Purpose.NOISE, round=at.round, participant=participant, use=at.use
            ),
        )

    def _record(self, claims: Sequence[Release]) -> Sequence[Release]:
        if self._made_before:
            return self._found_again(claims)
        self._check_budget(claims)
        return self._ledger.append(claims)

    def _found_again(self, claims: Sequence[Release]) -> Sequence[Release]:
        """A round that was interrupted after its releases were recorded: the same streams make the same releases."""
        found, self._made_before = self._made_before[: len(claims)], self._made_before[len(claims) :]
        if [release.body() for release in found] != [release.body() for release in claims]:
            raise LedgerDamaged(f"round={self.time}: the ledger holds other releases than the ones this run makes")
        return found

    def _check_budget(self, claims: Sequence[Release]) -> None:
        privacy = self._setting.experiment.privacy
        if privacy.stop_at_epsilon is None:
            return
        for kind, observer in self._setting.topology.observers.items():
            epsilon = self._ledger.worst_epsilon(
                observer, privacy.delta, accountant=self._setting.accountant, planned=claims
            )
            if not epsilon <= privacy.stop_at_epsilon:
                raise BudgetExhausted(
                    f"stop_at_epsilon={privacy.stop_at_epsilon:g}: round {self.time} would cost {epsilon:.4g} "
                    f"against {kind}; stopped before it"
                )


class PlannedRound(LiveRound):
    """A round of the plan: everybody takes part, nothing is computed, the ledger lies in memory."""

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Everybody: calibration must hold for the busiest client."""
        return Cohort((channel or self.channels[0]).members)

    def _computed(self, updates: Updates, scene: Scene, compute: Callable[[Updates, Scene], Outcome]) -> Outcome:
        nothing = torch.zeros(1)
        return Outcome(dict.fromkeys((EVERYONE, *updates.cohort.members), nothing))

    def _check_budget(self, claims: Sequence[Release]) -> None:
        return


def _tail_of(ledger: Ledger, time: int) -> list[Release]:
    found: list[Release] = []
    for place in range(len(ledger) - 1, -1, -1):
        if ledger[place].time < time:
            break
        found.append(ledger[place])
    return found[::-1]
