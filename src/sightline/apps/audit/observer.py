"""Observed rounds: the engine's own rounds, and what an observer sees along the canaries' coordinates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.apps.audit.canaries import round_sign
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, LiveExecution
from sightline.engine.round import TrainingRound
from sightline.ledger import Ledger, Parties, Release
from sightline.mechanisms import (
    COUNTED,
    ModelChoice,
    NoisedBy,
    Public,
    ReleaseContext,
    ReleaseValues,
    Schedules,
    Updates,
    active_places,
    trim_sources,
)
from sightline.mechanisms.correlated_noise import build_stream
from sightline.mechanisms.updates import ClientOutput
from sightline.randomness import EVERYONE, Streams
from sightline.topology import Channel, client_name

Matrix = NDArray[np.float64]
Seen = tuple[int, str]
"""(round, publisher)."""


def take_turns(built: BuiltExperiment) -> bool:
    """Return whether clients take turns, so that each is in publicly known rounds only."""
    return any(active_places(sampler, 1) is not None for sampler in built.samplers.values())


def gram_matrix(built: BuiltExperiment, rounds: int) -> Matrix:
    """Return C^T C over `rounds` rounds; consecutive noise streams are independent of each other."""
    if built.experiment.privacy.noise != "correlated":
        return np.eye(rounds)
    cohorts, workload = (
        built.algorithm.facts.cohorts(built.experiment),
        partial(built.algorithm.facts.workload, built.settings),
    )
    strategy = build_stream(built.experiment, cohorts, workload).strategy
    column = np.zeros(max(rounds, strategy.steps))
    column[: len(strategy.coefficients)] = strategy.coefficients
    gram = np.zeros((rounds, rounds))
    for first in range(0, rounds, strategy.steps):
        size = min(strategy.steps, rounds - first)
        lags = np.subtract.outer(np.arange(size), np.arange(size))
        matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
        gram[first : first + size, first : first + size] = matrix.T @ matrix
    return gram


def turn_weights(built: BuiltExperiment, client: int, seen: Sequence[Seen]) -> Matrix:
    """Return (turns, values): one row per turn of the client, with the weight of every value in it."""
    rows = []
    for who in dict.fromkeys(source for _, source in seen):
        channel = gathering_channel(built, client, who)
        if channel is None:
            continue
        places = [index for index, (_, source) in enumerate(seen) if source == who]
        places.sort(key=lambda index: seen[index][0])
        gram, member = gram_matrix(built, len(places)), channel.members.index(client)
        for step, index in enumerate(places):
            active = active_places(built.sampler_of(channel), seen[index][0])
            if active is None or member in active:
                row = np.zeros(len(seen))
                row[places] = gram[step]
                rows.append(row)
    return np.array(rows).reshape(len(rows), len(seen))


def gathering_channel(built: BuiltExperiment, client: int, who: str) -> Channel | None:
    """Return the channel through which a client enters what `who` publishes, or None."""
    topology = built.topology
    if who == topology.top.name:
        return next((channel for channel in topology.gathering_channels if client in channel.members), None)
    own = (channel for channel in (*topology.channels, *topology.gathering_channels) if channel.name == who)
    return next((channel for channel in own if client in channel.members), None)


Key = tuple[int, int, int, str]
"""Round, number of the training call, part of it, publisher."""

SHOWN = 1 << 20
"""Number that stands for the training call of shown values: after all calls of the round."""

Reading = Callable[[str, Tensor, int], Tensor | None]
"""(publisher, value, round) -> the numbers that the attack reads; None for values that it ignores."""


@dataclass(eq=False)
class Observer:
    """The values that one observer sees in one run."""

    observer: str
    read: Reading
    turning: bool = True
    """Whether canaries change sign every round."""
    seen: dict[Key, Tensor] = field(default_factory=dict)
    _open: dict[str, bool] = field(default_factory=dict)
    _known: tuple[int, int] = (0, 0)

    def note(self, ledger: Ledger, context: ReleaseContext, part: int, source: str, value: Tensor) -> None:
        """Record a value if the observer is in the audience of the release by which its source sent it."""
        reading = self.read(source, value, context.time)
        if reading is not None and self._sees(ledger, context.next_id, source):
            turned = round_sign(context.time) if self.turning else 1.0
            # The sign of the round is taken out again: over all rounds a canary adds up, and reused noise cancels.
            self.seen[context.time, context.use, part, source] = turned * reading

    def note_shown(self, time: int, number: int, source: str, audience: Parties, value: Tensor) -> None:
        """Record a value that was computed from releases and shown to `audience`."""
        reading = self.read(source, value, time) if self.observer in audience else None
        if reading is not None:
            self.seen[time, SHOWN, number, source] = (round_sign(time) if self.turning else 1.0) * reading

    def _sees(self, ledger: Ledger, first: int, source: str) -> bool:
        """Return whether the observer is in the audience of the source's first release of this context."""
        # Judge each release by its own audience: an edge may speak to its devices and to the cloud in one round.
        if self._known != (first, len(ledger)):
            self._known, self._open = (first, len(ledger)), {}
            sent: dict[str, int] = {}
            for index in range(first, len(ledger)):
                release = ledger[index]
                # A node of a graph gathers its own message and passes it on to its neighbours.
                if sent.setdefault(release.source, index) == index or sent[release.source] in release.inputs:
                    self._open[release.source] = (
                        self._open.get(release.source, False) or self.observer in release.audience
                    )
        return self._open.get(source, False)


class ObservedNodes:
    """Members that do their part of the mechanism themselves and are observed when they send.

    To a trusted server they send their value without clipping: clipping there is the server's promise, and it is
    attacked.
    """

    steadfast = True

    def __init__(self, built: BuiltExperiment, ledger: Ledger, watch: Observer) -> None:
        self._mechanism = built.mechanism
        self._ledger, self._watch = ledger, watch

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield what the members send, and record it."""
        mechanism = self._mechanism.at(context.channel)
        # Clipping there is the server's part, and skipping it at the client shows whether the server does it.
        if mechanism.noised_by is NoisedBy.SERVER:
            yield from (ClientOutput(member, update) for member, update in updates.train_members())
            return
        for left in mechanism.client_outputs(updates, context):
            self._watch.note(self._ledger, context, updates.at.part, client_name(left.member), left.value)
            yield left

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return no choices: choices are made where the data are."""
        return {}


class ObservedExecution(LiveExecution):
    """The execution of a real run, observed."""

    def __init__(self, watch: Observer, ledger: Ledger, worker: Any, secret: Streams, schedules: Schedules) -> None:
        super().__init__(worker, secret, schedules)
        self._watch, self._ledger = watch, ledger

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Compute as in every live round and record the values that the observer may see."""
        outcome = super().compute_values(updates, context, compute)
        for member, value in outcome.values.items():
            source = context.channel.name if member == EVERYONE else client_name(member)
            self._watch.note(self._ledger, context, updates.at.part, source, value)
        return outcome

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Collect choices as in every live round and record them."""
        worker: Any = self.worker
        # Without nodes the engine draws the choices itself, by the file's own mechanism.
        witness, worker.nodes = worker.nodes, None
        choices = super().collect_choices(ballot, context)
        worker.nodes = witness
        for member, choice in choices.items():
            told = torch.full((worker.dimension,), float(choice == 0))
            self._watch.note(self._ledger, context, 0, client_name(member), told)
        return choices


class ObservedRound(TrainingRound):
    """A round that also records values which are shown again."""

    def __init__(self, watch: Observer, *where: Any) -> None:
        super().__init__(*where)
        self._watch, self._shown = watch, 0

    def _record_shown(self, shown: Sequence[tuple[Public, Channel, Parties, str]]) -> Sequence[Release]:
        """Record values as every round does and note those for the observer."""
        made = super()._record_shown(shown)
        for value, channel, audience, _ in shown:
            if value.value is COUNTED:  # never sent
                continue
            self._watch.note_shown(self.time, self._shown, channel.name, audience, value.value)
            self._shown += 1
        return made


def watched_run(built: BuiltExperiment, watch: Observer, worker: Any, *, rounds: int, secret: Streams) -> None:
    """Run `rounds` rounds of the engine with the mechanism, samplers and algorithm of the experiment."""
    ledger, schedules = Ledger(participants=built.participants), Schedules(secret)
    worker.nodes = ObservedNodes(built, ledger, watch)
    execution = ObservedExecution(watch, ledger, worker, secret, schedules)
    state: Any = built.algorithm.init(Public(built.start), built.clients, built.settings)
    memories: Any = {}
    for time in range(1, rounds + 1):
        if built.algorithm.facts.finished(state):
            break
        built = built.as_found(state)
        r = ObservedRound(watch, built, ledger, execution, time, memories)
        after = built.algorithm.round(state, r, built.settings)
        # As in the engine's loop: sources are reduced to their frontier after every round.
        state = trim_sources(after, ledger)
        memories = r.memories
    worker.close()
