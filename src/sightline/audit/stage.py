"""The stage of an audit: the file's own mechanism, samplers, algorithm and noise, with canaries as its data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sightline import accounting, engine
from sightline.audit.canaries import CanaryClients, Coins, canary_examples, crowd, part_probes
from sightline.audit.examples import CanaryShards
from sightline.audit.watch import Reading, Watch, watched_run
from sightline.config import Model
from sightline.engine.setting import Setting
from sightline.errors import did_you_mean, invalid, refuse
from sightline.events import Unit
from sightline.ledger import Ledger
from sightline.mechanisms import SampleAtClient, SampleAtServer, SegmentSums
from sightline.mechanisms.choose import needs_unit_features
from sightline.mechanisms.objective_features import unit_features
from sightline.randomness import Streams
from sightline.topology import client_name

STILL = 1e-6
"""The learning rate of audited steps: releases scale with it, and the model stays where canaries are loudest."""

DROWNED = 0.03
"""canaries x delta beyond which a bound of one run at 95% says nothing."""


@dataclass(frozen=True)
class Sight:
    """Whom the audit attacks, from where, and what is claimed of it."""

    subject: int
    observer: str
    upper: float
    delta: float


@dataclass(frozen=True, eq=False)
class Stage:
    """A setting, its canaries, and how to run it."""

    setting: Setting
    sight: Sight
    rounds: int
    holders: Mapping[int, Sequence[int]]
    """Client -> the numbers of its canaries."""
    probes: Sequence[int]
    """What the attack looks at: coordinates where clients are canaries, canaries where examples are."""

    @property
    def examples(self) -> bool:
        """Whether the canaries are examples that the real training code works on."""
        return self.setting.unit is Unit.SAMPLE

    def run(self, inside: Mapping[int, bool], secret: Streams, read: Reading) -> Watch:
        """One run with some of the canaries in, and all that the observer saw of it."""
        coins, setting = Coins(inside, self.setting.adjacency), self.setting
        watch = Watch(self.sight.observer, read, turning=not self.examples)
        worker: Any
        if self.examples:
            loud = canary_examples(setting.federation, setting.model.input_shape[0], self.holders, coins)
            fit = unit_features(loud) if needs_unit_features(setting.experiment) else loud
            setting = replace(setting, federation=fit)
            worker = CanaryShards(setting, secret, coins, self.holders)
        else:
            slots = {client: own[0] for client, own in self.holders.items()}
            sizes = setting.federation.sizes.tolist()
            clip_norm = setting.experiment.privacy.clip_norm
            worker = CanaryClients(len(setting.start), sizes, slots, coins, clip_norm, secret)
        watched_run(setting, watch, worker, rounds=self.rounds, secret=secret)
        return watch

    def reading(self, value: Tensor, slots: Sequence[int]) -> Tensor:
        """A released vector at the coordinates, or along the gradients, of the given canaries."""
        where = torch.as_tensor(list(slots))
        if not self.examples:
            return value[where].double()
        features = self.setting.model.input_shape[0]
        return (value[features + where].double() - value[where].double()) / -(2**0.5)


def worst_sight(setting: Setting, ledger: Ledger, delta: float, observer: str | None) -> Sight:
    """The subject and the untrusted observer with the largest claimed epsilon; or of the observer that is named."""
    known = [line for lines in setting.topology.lines.values() for line in lines]
    lines = [line for line in known if observer in (None, line.observer)]
    if not lines:
        names = sorted({line.observer for line in known})
        invalid("observer", observer, "nobody untrusted has that name", did_you_mean(str(observer), names))
    found = [
        Sight(int(subject.rsplit("-", 1)[1]), line.observer, _epsilon(setting, dict(events), delta), delta)
        for line in lines
        for events, subject in ledger.view(line.observer).compositions(line.exempt | {line.observer}).items()
    ]
    claimed = [sight for sight in found if sight.upper < float("inf")]
    if setting.unit is Unit.NONE or not claimed:
        law = "nothing is claimed of what these rounds release, so there is nothing to audit"
        refuse("privacy.unit", setting.unit, law, "protect a unit, or audit more rounds")
    return max(found, key=lambda sight: sight.upper)


def _epsilon(setting: Setting, events: dict[Any, int], delta: float) -> float:
    return accounting.epsilon(events, delta, accountant=setting.accountant)


def for_one(setting: Setting, *, rounds: int, delta: float, observer: str | None = None) -> Stage:
    """The stage with one canary, the subject that the file protects least."""
    sight = worst_sight(setting, engine.plan(setting, rounds=rounds), delta, observer)
    splitter = setting.splitter
    if setting.unit is Unit.SAMPLE:
        return Stage(with_examples(setting, 2), sight, rounds, {sight.subject: (0,)}, (0, 1))
    if splitter is not None:
        probes = part_probes(splitter, Streams.from_seed(0))
        still = replace(setting, start=torch.zeros(setting.model.parameters))
        return Stage(still, sight, rounds, {sight.subject: (0,)}, probes)
    return Stage(replace(setting, start=torch.zeros(2)), sight, rounds, {sight.subject: (0,)}, (0, 1))


def for_many(
    setting: Setting, *, canaries: int, rounds: int, delta: float, observer: str | None = None
) -> Stage | None:
    """The stage with many canaries, all of whom the observer sees as it sees the subject; None for split models.

    The bound of one run pays for every canary with delta, so it is stated at a smaller one where that would drown it.
    """
    if setting.splitter is not None:
        return None
    delta = min(delta, DROWNED / canaries)
    if setting.unit is Unit.CLIENT and setting.experiment.topology.kind == "star":
        setting = _enlarged(setting, canaries)
    ledger = engine.plan(setting, rounds=rounds)
    sight = worst_sight(setting, ledger, delta, observer)
    same = ledger.composition(client_name(sight.subject), sight.observer)
    alike = [
        n
        for n in setting.clients
        if client_name(n) != sight.observer and ledger.composition(client_name(n), sight.observer) == same
    ]
    if setting.unit is Unit.CLIENT:
        holders = {client: (slot,) for slot, client in enumerate(alike[:canaries])}
        still = replace(setting, start=torch.zeros(len(holders)))
        return Stage(still, sight, rounds, holders, range(len(holders)))
    each = max(1, min(canaries // len(alike), min(int(setting.federation.sizes[n]) for n in alike)))
    spread = {n: range(place * each, (place + 1) * each) for place, n in enumerate(alike)}
    return Stage(with_examples(setting, each * len(alike)), sight, rounds, spread, range(each * len(alike)))


def _enlarged(setting: Setting, clients: int) -> Setting:
    """The same star with so many clients, the same samplers' rates and the same noise."""
    experiment = setting.experiment
    more = experiment.model_copy(
        update={"data": experiment.data.model_copy(update={"clients": clients}), "model": Model(name="linear")}
    )
    built = engine.build(more, federation=crowd(clients))
    return built.with_noise(dict.fromkeys(range(clients), max(setting.multipliers.values())))


def with_examples(setting: Setting, features: int) -> Setting:
    """Softmax regression on so many features, in place of the file's model and data; sizes and noise are the file's."""
    if setting.splitter is not None:
        law = "examples of split models have no canaries yet"
        refuse("algorithm.split", "given", law, 'audit with privacy.unit = "client", or without split')
    experiment = setting.experiment
    change: dict[str, Any] = {"augment": None}
    if isinstance(setting.mechanism, SampleAtClient | SampleAtServer | SegmentSums):
        change["learning_rate"] = STILL
    small = experiment.model_copy(
        update={"model": Model(name="linear"), "local": experiment.local.model_copy(update=change)}
    )
    nothing = canary_examples(setting.federation, features, {}, Coins({}, setting.adjacency))
    built = engine.build(small, federation=nothing)
    if setting.multipliers:
        built = built.with_noise(setting.multipliers)
    start = torch.zeros(built.model.parameters)
    return replace(built, topology=setting.topology, samplers=setting.samplers, start=start)


Progress = Callable[[int, int], None]
"""(runs done, runs in all)."""
