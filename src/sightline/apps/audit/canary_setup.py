"""The set-up of an audit: the file's own mechanism, samplers, algorithm and noise, with canaries as its data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from sightline import accounting, engine
from sightline.apps.audit.attack import Observer, Reading, watched_run
from sightline.apps.audit.canaries import (
    FAR,
    CanaryClients,
    CanaryInclusion,
    CanaryNet,
    CanaryShards,
    Relays,
    Where,
    canary_examples,
    hit_coordinates,
    part_probes,
    probe_places,
    relays_for,
    round_sign,
    silent_clients,
    small_experiment,
)
from sightline.config import Experiment, Model
from sightline.engine.build import BuiltExperiment
from sightline.errors import invalid, refuse
from sightline.events import Event, Unit
from sightline.ledger import Ledger
from sightline.ledger.release import suggest_name
from sightline.mechanisms import NoisedValue
from sightline.mechanisms.convex_solver import unit_features
from sightline.mechanisms.registry import feature_norm
from sightline.randomness import Streams
from sightline.topology import Line, client_name

STILL = 1e-3
"""Learning rate of audited steps divided by the clip norm: the model stays where canaries are loudest."""

Events = frozenset[tuple[Event, int]]


@dataclass(frozen=True)
class AttackedPair:
    """The attacked subject, the observer, and the claim about them."""

    subject: int
    observer: str
    upper: float
    delta: float
    events: Events = frozenset()
    """Events that the observer sees of the subject, from the ledger."""


@dataclass(frozen=True, eq=False)
class CanarySetup:
    """An experiment with canaries, and how to run it."""

    built: BuiltExperiment
    sight: AttackedPair
    rounds: int
    holders: Mapping[int, Sequence[int]]
    """Client -> the numbers of its canaries."""
    probes: Sequence[int]
    """What the attack on one canary reads: coordinates if clients are canaries, canaries if examples are."""
    shared: tuple[float, ...] = ()
    """How far the last probes stand out if they move together with whichever other one moves; see `MarkedValues`."""
    net: CanaryNet | None = None
    """Where canaries appear, if the network is the audit's own."""
    relays: Relays | None = None

    @property
    def examples(self) -> bool:
        """Return whether the canaries are examples, on which the real training code runs."""
        return self.built.unit is Unit.SAMPLE

    @property
    def parted(self) -> bool:
        """Return whether any of several numbers may move; otherwise the first does and the others show noise."""
        return self.built.splitter is not None

    @property
    def turning(self) -> bool:
        """Return whether canaries change sign every second round.

        Not where models add up, nor with real solvers, nor in correlated noise streams, where one direction is the
        worst.
        """
        solved = self.built.mechanism.facts.noised_value in (NoisedValue.MODEL, NoisedValue.PATH)
        return self.relays is None and not solved and self.built.experiment.privacy.noise != "correlated"

    def run(self, inside: Mapping[int, bool], secret: Streams, read: Reading) -> Observer:
        """Run once with some of the canaries in; return everything that the observer saw."""
        inclusion, built = CanaryInclusion(inside, self.built.adjacency), self.built
        watch = Observer(self.sight.observer, read, turning=self.turning)
        worker: Any
        if self.examples:
            features = built.model.input_shape[0]
            far = 0.0 if self.net is None else FAR
            loud = canary_examples(built.federation, features, self.holders, inclusion, far)
            norm = feature_norm(built.experiment)
            fit = loud if norm is None else unit_features(loud, norm)
            built = replace(built, federation=fit)
            worker = CanaryShards(built, secret, inclusion, self.holders, self.net)
        else:
            worker = self._clients(inclusion, secret)
        watched_run(built, watch, worker, rounds=self.rounds, secret=secret)
        return watch

    def _clients(self, inclusion: CanaryInclusion, secret: Streams) -> CanaryClients:
        built, net = self.built, self.net
        slots = {client: own[0] for client, own in self.holders.items()}
        sizes = built.federation.sizes.tolist()
        clip_norm = built.experiment.privacy.clip_norm
        where: Where = lambda splitter, assigned, slot: (  # noqa: E731
            probe_places(splitter, assigned) if net is None else hit_coordinates(splitter, assigned, net.columns, slot)
        )
        return CanaryClients(
            len(built.start), sizes, slots, inclusion, clip_norm, secret, where=where, relays=self.relays,
            turning=self.turning,
        )  # fmt: skip

    def reading(self, value: Tensor, slots: Sequence[int]) -> Tensor:
        """Return (canaries, numbers): a released vector at the coordinates or along the gradients of canaries."""
        if self.net is not None:
            return self.net.reading(value, slots) * (1 if self.examples else -1)
        where = torch.as_tensor(list(slots))
        if not self.examples:
            return value[where, None].double()
        features = self.built.model.input_shape[0]
        return ((value[features + where].double() - value[where].double()) / -(2**0.5))[:, None]

    def reading_of_one(self, source: str, value: Tensor, round: int) -> Tensor:
        """Return what the attack on one canary reads of a released vector."""
        if self.relays is not None:
            return value[[self.relays.coordinate(source)]].double()
        if self.net is not None and self.examples:
            return self.net.reading_of_one(value, round_sign(round))
        return self.reading(value, self.probes)[:, 0]


@dataclass(frozen=True)
class AskedPair:
    """The observer and the subject that the caller asks for, or neither."""

    observer: str | None = None
    subject: str | None = None


ANY = AskedPair()


def worst_sight(built: BuiltExperiment, ledger: Ledger, delta: float, pair: AskedPair) -> AttackedPair:
    """Return the subject and untrusted observer with the largest claimed epsilon, or the requested ones."""
    if built.unit is Unit.NONE:
        _nothing_claimed(built)
    pairs = [
        AttackedPair(
            int(subject.rsplit("-", 1)[1]), line.observer, _pair_epsilon(built, dict(events), delta), delta, events
        )
        for line in _asked_lines(built, pair)
        for events, subject in _asked_subjects(built, ledger, line, pair)
    ]
    # An infinite claim cannot be refuted.
    if not any(sight.upper < float("inf") for sight in pairs):
        _nothing_claimed(built)
    # Ties go to the smallest number, so that an audit is reproducible.
    worst = max(pairs, key=lambda sight: (sight.upper, -sight.subject))
    return worst if pair.subject is not None else _nearest_subject(built, ledger, worst)


def _nearest_subject(built: BuiltExperiment, ledger: Ledger, sight: AttackedPair) -> AttackedPair:
    """Return the same pair with a subject that has the same claim and that the observer meets in its own channel."""
    same = ledger.composition(client_name(sight.subject), sight.observer)
    own = [channel for channel in built.topology.channels if sight.observer in channel.audience]
    near = sorted({n for channel in own for n in channel.members if client_name(n) != sight.observer})
    if sight.subject in near:
        return sight
    subjects = (n for n in near if ledger.composition(client_name(n), sight.observer) == same)
    return replace(sight, subject=next(subjects, sight.subject))


def _nothing_claimed(built: BuiltExperiment) -> NoReturn:
    reason = "these rounds release nothing with a guarantee, so there is nothing to audit"
    refuse("privacy.unit", built.unit, reason, "protect a unit, audit more rounds, or name another pair")


def _asked_lines(built: BuiltExperiment, pair: AskedPair) -> list[Line]:
    """Return the lines of sight of the requested observer, or all."""
    known = [line for lines in built.topology.lines.values() for line in lines]
    names = {client_name(n) for n in built.clients} & {n for c in built.topology.channels for n in c.audience}
    lines = [line for line in known if pair.observer in (None, line.observer)]
    if not lines and pair.observer in names:
        return [Line(pair.observer, frozenset({pair.observer}))]
    if not lines:
        way_out = suggest_name(str(pair.observer), frozenset(line.observer for line in known) | names)
        reason = "no untrusted observer has that name; coalitions are not attacked"
        invalid("observer", pair.observer, reason, way_out)
    return lines


def _asked_subjects(
    built: BuiltExperiment, ledger: Ledger, line: Line, pair: AskedPair
) -> Iterable[tuple[Events, str]]:
    """Yield what the observer of a line sees of the requested subject, or of every subject that it sees differently."""
    if pair.subject is None:
        return ledger.view(line.observer).compositions(line.exempt | {line.observer}).items()
    names = [client_name(n) for n in built.clients if client_name(n) != pair.observer]
    if pair.subject not in names:
        invalid("subject", pair.subject, "no other client has that name", suggest_name(pair.subject, frozenset(names)))
    if pair.subject in line.exempt | {line.observer}:
        return ()
    seen = frozenset(ledger.composition(pair.subject, line.observer).items())
    return ((seen, pair.subject),) if seen else ()


def _pair_epsilon(built: BuiltExperiment, events: dict[Any, int], delta: float) -> float:
    return accounting.epsilon(events, delta, accountant=built.accountant)


def for_one(built: BuiltExperiment, *, rounds: int, delta: float, pair: AskedPair = ANY) -> CanarySetup:
    """Return the set-up with one canary, the subject that the file protects least."""
    sight = worst_sight(built, engine.plan_releases(built, rounds=rounds), delta, pair)
    splitter, holders = built.splitter, {sight.subject: (0,)}
    if built.unit is Unit.SAMPLE:
        small, net = with_examples(built, 2)
        return CanarySetup(small, sight, rounds, holders, (0, 1), net.shared if net else (), net)
    if splitter is not None:
        own, shared = part_probes(splitter, Streams.from_seed(0))
        # A guarantee holds for every public start, so the audit may start from zero.
        still = replace(built, start=torch.zeros(built.model.parameters))
        return CanarySetup(still, sight, rounds, holders, own + shared, (1 / splitter.unsplit_noise,) * len(shared))
    relays = relays_for(built, sight.subject, sight.observer, sight.upper)
    size = 2 if relays is None else max(2, relays.dimension)
    return CanarySetup(replace(built, start=torch.zeros(size)), sight, rounds, holders, (0, 1), relays=relays)


def for_many(built: BuiltExperiment, *, canaries: int, rounds: int, delta: float, pair: AskedPair = ANY) -> CanarySetup:
    """Return the set-up with many canaries, all of which the observer sees as it sees the subject."""
    if built.unit is Unit.CLIENT and built.experiment.topology.kind == "star":
        built = _enlarge_star(built, canaries)
    ledger = engine.plan_releases(built, rounds=rounds)
    sight = worst_sight(built, ledger, delta, pair)
    same = ledger.composition(client_name(sight.subject), sight.observer)
    alike = [
        n
        for n in built.clients
        if client_name(n) != sight.observer and ledger.composition(client_name(n), sight.observer) == same
    ]
    if built.unit is Unit.CLIENT:
        return _many_clients(built, sight, rounds, alike[:canaries])
    least = min(int(built.federation.sizes[n]) for n in alike)
    # A segment is noised as a whole, so a device holds one canary.
    each = 1 if built.mechanism.facts.noised_value is NoisedValue.STEPS else max(1, min(canaries // len(alike), least))
    spread = {n: range(index * each, (index + 1) * each) for index, n in enumerate(alike)}
    small, net = with_examples(built, each * len(alike))
    return CanarySetup(small, sight, rounds, spread, range(each * len(alike)), net=net)


def _many_clients(built: BuiltExperiment, sight: AttackedPair, rounds: int, alike: Sequence[int]) -> CanarySetup:
    """Return the set-up with client canaries, each with its own coordinate, or one in every part of a split model."""
    holders = {client: (slot,) for slot, client in enumerate(alike)}
    probes = range(len(holders))
    if built.splitter is None:
        return CanarySetup(replace(built, start=torch.zeros(len(holders))), sight, rounds, holders, probes)
    small, net = with_examples(built, len(holders))
    still = replace(small, start=torch.zeros(small.model.parameters))
    return CanarySetup(still, sight, rounds, holders, probes, net=net)


PLAIN_STEPS: dict[str, Any] = dict.fromkeys(
    ("optimizer", "betas", "adam_eps", "schedule", "warmup", "decay_every", "decay")
)
"""An audit reads gradients and updates off the steps made of them: those of SGD at one learning rate. Another
optimiser is post-processing of the same noised gradients and tells no more."""


def _enlarge_star(built: BuiltExperiment, clients: int) -> BuiltExperiment:
    """Return the same star with `clients` clients, the same sampling rates and the same noise."""
    experiment = built.experiment
    few = small_experiment(experiment, built.splitter) if built.splitter else _is_linear(experiment)
    more = few.model_copy(update={"data": experiment.data.model_copy(update={"clients": clients})})
    enlarged = engine.build_experiment(more, federation=silent_clients(clients))
    # One noise multiplier for all clients of the enlarged star: the largest in the file.
    return enlarged.with_noise(dict.fromkeys(range(clients), max(built.multipliers.values())))


def _is_linear(experiment: Experiment) -> Experiment:
    return experiment.model_copy(update={"model": Model(name="linear")})


def with_examples(built: BuiltExperiment, features: int) -> tuple[BuiltExperiment, CanaryNet | None]:
    """Replace the file's model and data by a small network on `features` features; sizes, samplers and noise stay.

    The model is softmax regression where no gradients are released.
    """
    experiment, splitter = built.experiment, built.splitter
    change: dict[str, Any] = {"augment": None} | PLAIN_STEPS
    steps = built.mechanism.facts.noised_value is NoisedValue.GRADIENT
    if steps:
        # Small steps keep the network where canaries are loudest; the ratio of signal to noise does not depend on it.
        change["learning_rate"] = STILL / experiment.privacy.clip_norm
    few = small_experiment(experiment, splitter) if steps or splitter is not None else _is_linear(experiment)
    few = few.model_copy(update={"local": experiment.local.model_copy(update=change)})
    nothing = canary_examples(built.federation, features, {}, CanaryInclusion({}, built.adjacency))
    small = engine.build_experiment(few, federation=nothing)
    if built.multipliers:
        small = small.with_noise(built.multipliers)
    net = CanaryNet(small.model, splitter) if steps or splitter is not None else None
    start = torch.zeros(small.model.parameters) if net is None else net.start()
    return replace(small, topology=built.topology, samplers=built.samplers, start=start), net


Progress = Callable[[int, int], None]
"""(runs done, runs in all)."""
