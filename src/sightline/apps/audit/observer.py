"""The engine's own rounds under observation: what the observer sees along the canaries' coordinates."""

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
    ModelChoice,
    NoisedBy,
    Public,
    ReleaseContext,
    ReleaseValues,
    Schedules,
    Updates,
    active_places,
)
from sightline.mechanisms.correlated_noise import build_stream
from sightline.mechanisms.updates import ClientOutput
from sightline.randomness import EVERYONE, Streams
from sightline.topology import Channel, client_name

Matrix = NDArray[np.float64]
Seen = tuple[int, str]
"""(round, who published)."""


def take_turns(setting: BuiltExperiment) -> bool:
    """Whether clients take turns, so that a client is in some rounds only, and everybody knows in which."""
    return any(active_places(sampler, 1) is not None for sampler in setting.samplers.values())


def gram_matrix(setting: BuiltExperiment, rounds: int) -> Matrix:
    """C^T C of so many rounds; several streams one after the other know nothing of each other."""
    if setting.experiment.privacy.noise != "correlated":
        return np.eye(rounds)
    cohorts, workload = (
        setting.algorithm.cohorts(setting.experiment),
        partial(setting.algorithm.workload, setting.settings),
    )
    strategy = build_stream(setting.experiment, cohorts, workload).strategy
    column = np.zeros(max(rounds, strategy.steps))
    column[: len(strategy.coefficients)] = strategy.coefficients
    found = np.zeros((rounds, rounds))
    for first in range(0, rounds, strategy.steps):
        size = min(strategy.steps, rounds - first)
        lags = np.subtract.outer(np.arange(size), np.arange(size))
        matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
        found[first : first + size, first : first + size] = matrix.T @ matrix
    return found


def turn_weights(setting: BuiltExperiment, client: int, seen: Sequence[Seen]) -> Matrix:
    """(turns, values): a row for every turn of the client, which says how much of every value is in its q."""
    rows = []
    for who in dict.fromkeys(source for _, source in seen):
        channel = gathering_channel(setting, client, who)
        if channel is None:
            continue
        places = [place for place, (_, source) in enumerate(seen) if source == who]
        places.sort(key=lambda place: seen[place][0])
        gram, member = gram_matrix(setting, len(places)), channel.members.index(client)
        for step, place in enumerate(places):
            active = active_places(setting.sampler_of(channel), seen[place][0])
            if active is None or member in active:
                row = np.zeros(len(seen))
                row[places] = gram[step]
                rows.append(row)
    return np.array(rows).reshape(len(rows), len(seen))


def gathering_channel(setting: BuiltExperiment, client: int, who: str) -> Channel | None:
    """The channel by which a client is in what somebody publishes: its own, or one that gathers for the top."""
    place = setting.topology
    if who == place.top.name:
        return next((channel for channel in place.gathers if client in channel.members), None)
    own = (channel for channel in (*place.channels, *place.gathers) if channel.name == who)
    return next((channel for channel in own if client in channel.members), None)


Key = tuple[int, int, int, str]
"""Round, number of the training call, part of it, who published the value."""

SHOWN = 1 << 20
"""Stands for the number of the training call where a value is shown: after all calls of its round."""

Reading = Callable[[str, Tensor, int], Tensor | None]
"""(who published, value, round) -> the numbers that the attack will look at; None when it will not."""


@dataclass(eq=False)
class Observer:
    """What one observer sees in one run."""

    observer: str
    read: Reading
    turning: bool = True
    """Whether canaries turn round every round."""
    seen: dict[Key, Tensor] = field(default_factory=dict)
    _open: dict[str, bool] = field(default_factory=dict)
    _known: tuple[int, int] = (0, 0)

    def note(self, ledger: Ledger, context: ReleaseContext, part: int, source: str, value: Tensor) -> None:
        """Take in a value, when the release by which its source let it go is the observer's to see."""
        reading = self.read(source, value, context.time)
        if reading is not None and self._sees(ledger, context.next_id, source):
            turned = round_sign(context.time) if self.turning else 1.0
            self.seen[context.time, context.use, part, source] = turned * reading

    def note_shown(self, time: int, number: int, source: str, audience: Parties, value: Tensor) -> None:
        """Take in a value that was worked out of releases and shown to some."""
        reading = self.read(source, value, time) if self.observer in audience else None
        if reading is not None:
            self.seen[time, SHOWN, number, source] = (round_sign(time) if self.turning else 1.0) * reading

    def _sees(self, ledger: Ledger, first: int, source: str) -> bool:
        """Whether the source's first release from the context's own on has the observer in its audience."""
        if self._known != (first, len(ledger)):
            self._known, self._open = (first, len(ledger)), {}
            for place in range(first, len(ledger)):
                self._open.setdefault(ledger[place].source, self.observer in ledger[place].audience)
        return self._open.get(source, False)


class ObservedNodes:
    """Members that do their part of the mechanism themselves, each seen by the watch when it sends.

    To a trusted server they send what they have, and do not clip it: clipping there is the server's promise.
    """

    steadfast = True

    def __init__(self, setting: BuiltExperiment, ledger: Ledger, watch: Observer) -> None:
        self._mechanism = setting.mechanism
        self._ledger, self._watch = ledger, watch

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """What the members send."""
        mechanism = self._mechanism.at(context)
        if mechanism.noised_by(context) is NoisedBy.SERVER:
            yield from (ClientOutput(member, update) for member, update in updates.train_members())
            return
        for left in mechanism.client_outputs(updates, context):
            self._watch.note(self._ledger, context, updates.at.part, client_name(left.member), left.value)
            yield left

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Nobody: choices are made where the data are."""
        return {}


class ObservedExecution(LiveExecution):
    """The execution of a real run, watched."""

    def __init__(self, watch: Observer, ledger: Ledger, worker: Any, secret: Streams, schedules: Schedules) -> None:
        super().__init__(worker, secret, schedules)
        self._watch, self._ledger = watch, ledger

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """As in every live round; the watch sees the values that are for it to see."""
        outcome = super().compute_values(updates, context, compute)
        for member, value in outcome.values.items():
            source = context.channel.name if member == EVERYONE else client_name(member)
            self._watch.note(self._ledger, context, updates.at.part, source, value)
        return outcome

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """As in every live round; the watch sees the choices."""
        worker: Any = self.worker
        witness, worker.nodes = worker.nodes, None
        choices = super().collect_choices(ballot, context)
        worker.nodes = witness
        for member, choice in choices.items():
            told = torch.full((worker.dimension,), float(choice == 0))
            self._watch.note(self._ledger, context, 0, client_name(member), told)
        return choices


class ObservedRound(TrainingRound):
    """A round in which the watch also sees what is shown a second time."""

    def __init__(self, watch: Observer, *where: Any) -> None:
        super().__init__(*where)
        self._watch, self._shown = watch, 0

    def show_values(self, shown: Sequence[tuple[Public, Channel, Parties, str]]) -> Sequence[Release]:
        """As every round does; the watch sees what is for it to see."""
        made = super().show_values(shown)
        for value, channel, audience, _ in shown:
            self._watch.note_shown(self.time, self._shown, channel.name, audience, value.value)
            self._shown += 1
        return made


def watched_run(setting: BuiltExperiment, watch: Observer, worker: Any, *, rounds: int, secret: Streams) -> None:
    """Rounds of the engine from the first on, with the mechanism, samplers and algorithm of the setting."""
    ledger, schedules = Ledger(participants=setting.participants), Schedules(secret)
    worker.nodes = ObservedNodes(setting, ledger, watch)
    execution = ObservedExecution(watch, ledger, worker, secret, schedules)
    state: Any = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
    memories: Any = {}
    for time in range(1, rounds + 1):
        if setting.algorithm.finished(state):
            break
        setting = setting.as_found(state)
        r = ObservedRound(watch, setting, ledger, execution, time, memories)
        after = setting.algorithm.round(state, r, setting.settings)
        state = {name: Public(value.value, ledger.frontier(value.sources)) for name, value in after.items()}
        memories = r.memories
    worker.close()
