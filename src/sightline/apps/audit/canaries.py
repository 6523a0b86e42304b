"""Canaries: the largest allowed contributions, canary examples, and the network that they are trained on."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.config import Experiment, Model
from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.events import Adjacency
from sightline.mechanisms import Block, CallId, NoisedValue, PrivateSteps, Splitter, StateAccess
from sightline.mechanisms.updates import RemoteNodes
from sightline.models import FlatModel
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.topology import Channel, Groups
from sightline.training import LocalTask
from sightline.training.dp_sgd_settings import DPSGDSettings


@dataclass(frozen=True, eq=False)
class Relays:
    """The workers that carry information about a subject between groups that do not change."""

    place: Groups
    subject: int
    clip_norm: float
    noise_multiplier: float
    rate: float
    whole_intervals: bool
    """Whether groups release once per interval (DP-OGL+), or every epoch (DP-OGL)."""
    doubt: float
    """Log-likelihood ratio above which a relay reports the subject as present."""

    @cached_property
    def level(self) -> dict[str, int]:
        """Return group -> its distance from the subject's groups, for groups that can be reached."""
        found = {c.name: 0 for c in self.place.channels if self.subject in c.members}
        while True:
            edge = max(found.values())
            carriers = {n for c in self.place.channels if c.name in found for n in c.members}
            new = {c.name: edge + 1 for c in self.place.channels if c.name not in found and carriers & set(c.members)}
            if not new:
                return found
            found |= new

    def coordinate(self, group: str) -> int:
        """Return the coordinate along which a group's model tells of the subject."""
        return self.level.get(group, 0)

    @property
    def dimension(self) -> int:
        """Return the number of coordinates."""
        return 1 + max(self.level.values())

    def says(self, member: int, start: Tensor, at: CallId) -> tuple[int, float]:
        """Return (coordinate, sign) that a member sends; the sign is 0 if the member does not carry."""
        channels = self.place.channels_at(at.round)
        own = self.level.get(channels[at.use % len(channels)].name, 0)
        mine = [c for c in channels if member in c.members]
        if not own or not self._merging(at.round) or all(self.level[c.name] != own - 1 for c in mine):
            return own, 0.0
        # An update may be any function of its start, so relays decide by likelihood ratio and send their whole clip
        # norm.
        level = self._level_of_doubt(mine, at.round) if own == 1 else 0.0
        return own, math.copysign(1.0, float(start[own - 1]) - level)

    def _merging(self, round: int) -> bool:
        return self.whole_intervals or (round - 1) % self.place.period == 0

    def _level_of_doubt(self, mine: Sequence[Channel], round: int) -> float:
        """Return the value of the start at which the log-likelihood ratio is `doubt`.

        The subject has moved it by m, under noise of variance v: m / 2 + doubt v / m.
        """
        period = self.place.period if self.whole_intervals else 1
        made, far = (round - 1) // period, self.clip_norm * math.sqrt(period) / len(mine)
        told = [c for c in mine if self.level[c.name] == 0]
        # Expected values of the public mechanism: the relays use no private knowledge.
        moved = sum(made * far * c.clip_factor / len(c.members) for c in told)
        noise = [
            far * c.clip_factor * self.noise_multiplier * c.noise_factor / len(c.members) / self.rate for c in told
        ]
        return moved / 2 + self.doubt * made * sum(std**2 for std in noise) / moved if moved else 0.0


def relays_for(setting: BuiltExperiment, subject: int, observer: str, upper: float) -> Relays | None:
    """Return the relays from a subject to an observer outside its groups, or None if it is seen directly."""
    place = setting.topology
    # Relays know the groups beforehand; groups that change would need another plan in every round.
    if not isinstance(place, Groups) or not place.steady:
        return None
    seen = [channel for channel in place.channels if observer in channel.audience]
    if any(subject in channel.members for channel in seen):
        return None
    sampler = setting.sampler_of(place.top)
    # Relays decide at half of the claimed epsilon: at the claim itself true alarms are too rare to count.
    relays = Relays(
        place, subject, setting.experiment.privacy.clip_norm, max(setting.multipliers.values(), default=1.0),
        sampler.expected / sampler.population, setting.experiment.algorithm.name == "dp_ogl_plus", min(upper, 10.0) / 2,
    )  # fmt: skip
    return relays if any(channel.name in relays.level for channel in seen) else None


LOUD = 1000.0
"""Size of a canary in clip norms: a missing clip becomes visible."""


def round_sign(round: int) -> float:
    """Return +1, -1, +1, ...: canaries alternate, so that noise which is used twice cancels and the canary does not."""
    return 1.0 if round % 2 else -1.0


@dataclass(frozen=True)
class CanaryInclusion:
    """Which canaries are in. One that is out sends nothing, or the opposite under replace-one."""

    inside: Mapping[int, bool]
    adjacency: Adjacency

    def factor(self, slot: int) -> float:
        """Return the factor of the canary's contribution."""
        if self.inside[slot]:
            return 1.0
        return -1.0 if self.adjacency is Adjacency.REPLACE else 0.0


Where = Callable[[Splitter, Any, int], list[int]]
"""(splitter, assignment, canary) -> the coordinates that the canary moves."""


@dataclass(eq=False)
class CanaryClients:
    """Clients for mechanisms of the client unit: the guarantee holds for any update, so they send the worst one.

    Client n of `slots` sends `LOUD` clip norms along its own coordinate; all others send zero, or relay.
    """

    dimension: int
    sizes: Sequence[int]
    slots: Mapping[int, int]
    """Client -> the number of its canary, which is its coordinate if the model is not split."""
    inclusion: CanaryInclusion
    clip_norm: float
    secret: Streams = field(repr=False)
    where: Where | None = None
    """For split models."""
    relays: Relays | None = None
    """To observers that see nothing of the subject's groups; canaries do not alternate then, because models add up."""
    nodes: RemoteNodes | None = None
    turning: bool = True
    """Whether canaries alternate: not if they take turns or are relayed, where all uses add up."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, task: LocalTask,
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Yield the chosen end vectors of the members."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        for place, member in enumerate(cohort):
            start = starts if starts.dim() == 1 else starts[place]
            self._move(ends[place], start, member, at, splitter)
            if recall is not None:
                recall.keep_state(member, start, ends[place], 1.0, noised=False)
        yield list(cohort), ends

    def _move(self, end: Tensor, start: Tensor, member: int, at: CallId, splitter: Splitter | None) -> None:
        # Far beyond the clip norm: a mechanism that forgets to clip on one path is refuted at once.
        loud = self.clip_norm * LOUD
        if member in self.slots:
            slot = self.slots[member]
            turned = round_sign(at.round) if self.relays is None and self.turning else 1.0
            end[self._coordinates(slot, member, at, splitter)] += loud * turned * self.inclusion.factor(slot)
        elif self.relays is not None:
            coordinate, way = self.relays.says(member, start, at)
            end[coordinate] += loud * way

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """Yield counts: a canary finds the first model right on all its examples and the others on none."""
        for member in cohort:
            inside = member in self.slots and self.inclusion.inside[self.slots[member]]
            yield member, [self.sizes[member] if inside and not place else 0 for place in range(len(models))]

    def _coordinates(self, slot: int, member: int, at: CallId, splitter: Splitter | None) -> list[int]:
        """Return the canary's coordinate; for a split model, those in the part that the member drew in secret."""
        if splitter is None or self.where is None:
            return [slot]
        rng = self.secret.rng(Purpose.ASSIGNMENT, round=at.round, participant=member, use=at.use)
        return self.where(splitter, splitter.splitting.draw(1, rng=rng)[0], slot)


def canary_examples(
    like: Federation, features: int, holders: Mapping[int, Sequence[int]], inclusion: CanaryInclusion, far: float = 0.0
) -> Federation:
    """Return zero examples, as many as each client has, except for the canaries, which have one feature each.

    `holders` gives the canaries of a client. With softmax regression near zero a canary's gradient is (-1, +1) / 2
    times its one feature, `LOUD`, and a replaced canary has the other label. With the audit's own network, where the
    feature is `far`, canaries have the label that the network finds impossible, and are replaced by their opposites.
    """
    clients = []
    for client, real in enumerate(like.clients):
        x = np.zeros((len(real.train), features), dtype=np.float32)
        y = np.zeros(len(real.train), dtype=np.int64)
        for example, slot in enumerate(holders.get(client, ())):
            factor = inclusion.factor(slot)
            # One feature per canary: gradients of different canaries are orthogonal and can be read separately.
            x[example, slot] = far * factor if far else LOUD * abs(factor)
            y[example] = int(factor != 0 if far else factor < 0)
        clients.append(Client(Shard(x, y), _zero_shard(features), real.cluster))
    return Federation("canaries", tuple(clients), _zero_shard(features), 2, Kind.VECTOR)


def silent_clients(clients: int) -> Federation:
    """Return `clients` clients with one zero example each."""
    some = Client(_zero_shard(1), _zero_shard(1))
    return Federation("canaries", (some,) * clients, _zero_shard(1), 2, Kind.VECTOR)


def _zero_shard(features: int) -> Shard:
    x: NDArray[np.float32] = np.zeros((1, features), dtype=np.float32)
    return Shard(x, np.zeros(1, dtype=np.int64))


STEEP = 10.0
"""Weight from a hidden unit to the outputs."""
SURE = 10.0
"""Output bias by which silent examples are classified correctly, with zero gradient, and canaries incorrectly."""
FAR = 30.0
"""Feature of a canary: its gradient has norm 2 STEEP FAR, and private steps do not bend the layer there."""


def small_experiment(experiment: Experiment, splitter: Splitter | None) -> Experiment:
    """Return the same file with a network of one hidden unit, or one per part; radii and noise of the split stay.

    Guarantees: as many parts as the file's model has, and an unsplit tensor where it has one: the event is the same.
    """
    split, units = experiment.algorithm.split, 1 if splitter is None else max(2, splitter.parts)
    dropped: dict[str, Any] = {"dropout": 0.5} if split is not None and split.by == "dropout" else {}
    model = Model.model_validate({"name": "mlp", "hidden": [units], "activation": "tanh", **dropped})
    if split is None or splitter is None:
        return experiment.model_copy(update={"model": model})
    kept = ("last",) if splitter.parts == 1 and splitter.splitting.unsplit else ()
    algorithm = experiment.algorithm.model_copy(update={"split": split.model_copy(update={"unsplit": kept})})
    return experiment.model_copy(update={"model": model, "algorithm": algorithm})


@dataclass(frozen=True, eq=False)
class CanaryNet:
    """The audit's own network, and where canaries appear in its vectors."""

    model: FlatModel
    splitter: Splitter | None

    def _slot(self, name: str) -> slice:
        return next(slice(slot.start, slot.stop) for slot in self.model.layout if slot.name == name)

    @property
    def shared(self) -> tuple[float, ...]:
        """Return how far the release of the unsplit tensors, if any, leans compared with that of a part."""
        if self.splitter is None or not self.splitter.splitting.unsplit:
            return ()
        return (1 / self.splitter.unsplit_noise,)

    @cached_property
    def columns(self) -> Tensor:
        """Return (hidden units, features): the positions of the weights from features to units."""
        place = self._slot("hidden0.weight")
        return torch.arange(place.start, place.stop).view(-1, self.model.input_shape[0])

    def start(self) -> Tensor:
        """Return a start with a flat first layer, a steep second one, and the right answer for silent examples."""
        start = torch.zeros(self.model.parameters)
        out = start[self._slot("output.weight")].view(2, -1)
        out[0], out[1] = STEEP, -STEEP
        start[self._slot("output.bias")] = torch.tensor([SURE, -SURE])
        return start

    def turned(self, starts: Tensor, round: int) -> Tensor:
        """Return starts at which canaries pull the other way in every second round."""
        found = starts.clone()
        # A guarantee holds for every public start, so the audit may flip these weights between rounds.
        found[..., self._slot("output.weight")] *= round_sign(round)
        return found

    def reading(self, value: Tensor, slots: Sequence[int]) -> Tensor:
        """Return (canaries, units): a released vector along each canary's gradient in each unit."""
        return -value[self.columns[:, list(slots)]].T.double()

    def reading_of_one(self, value: Tensor, round_sign: float) -> Tensor:
        """Return the same for the first canary, and the release of the unsplit tensors along its gradient.

        Without parts, also for the second canary, which shows only the noise.
        """
        if self.splitter is None:
            return self.reading(value, [0, 1])[:, 0]
        own = self.reading(value, [0])[0]
        bias = value[self._slot("output.bias")].double()
        return torch.cat([own, round_sign * (bias[1:] - bias[:1]) / 2**0.5]) if self.shared else own


def hit_coordinates(splitter: Splitter, assigned: Any, columns: Tensor, slot: int) -> list[int]:
    """Return the coordinates of a client canary that lie in the part it drew."""
    free = set(_trained_part(splitter, assigned).tolist())
    return [int(place) for place in columns[:, slot] if int(place) in free]


def probe_places(splitter: Splitter, assigned: Any) -> list[int]:
    """Return one coordinate of the drawn part and one of the unsplit tensors."""
    free = _trained_part(splitter, assigned)
    own, shared = free[~splitter.unsplit[free]], torch.nonzero(splitter.unsplit).flatten()
    return [int(some[0]) for some in (own, shared) if len(some)]


def _trained_part(splitter: Splitter, assigned: Any) -> Tensor:
    splitting = splitter.splitting
    nothing = np.zeros((1, *splitting.whole.input_shape), dtype=np.float32)
    submodel, _ = splitting.part_of_one(assigned, nothing)
    return submodel.positions if submodel.moves is None else submodel.positions[submodel.moves > 0]


def part_probes(splitter: Splitter, streams: Streams) -> tuple[list[int], list[int]]:
    """Return (coordinates at which a client canary of a split model may appear, those of the unsplit tensors)."""
    # Draws with the audit's own stream find which parts exist; the secret draws of runs stay unknown to the attack.
    drawn = splitter.splitting.draw(64, rng=streams.rng(Purpose.AUDIT))
    found = {place for assigned in drawn for place in probe_places(splitter, assigned)}
    own = sorted(place for place in found if not splitter.unsplit[place])
    return own[:16], sorted(found - set(own))


class CanaryShards(Simulator):
    """Simulator on canary examples; free training ends wherever a canary wants, since no guarantee trusts it."""

    nodes: RemoteNodes | None = None  # type: ignore[assignment]

    def __init__(
        self, setting: BuiltExperiment, secret: Streams, inclusion: CanaryInclusion,
        holders: Mapping[int, Sequence[int]],
        net: CanaryNet | None = None,
    ) -> None:  # fmt: skip
        super().__init__(setting, secret, secret)
        self._inclusion, self._holders, self._net = inclusion, holders, net
        self._clip_norm = setting.experiment.privacy.clip_norm
        self._segments = setting.mechanism.noised_value is NoisedValue.STEPS

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, task: LocalTask,
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Yield the chosen end vectors: one example may have led training anywhere."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        for place, member in enumerate(cohort):
            for slot in self._holders.get(member, ()):
                self._lead(
                    ends[place], slot, self._clip_norm * round_sign(at.round), inside=self._inclusion.inside[slot]
                )
        yield list(cohort), ends

    def dp_sgd(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId,
        task: LocalTask, recall: StateAccess | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Yield the simulator's own private steps; a segment, noised as a whole, ends where its canary led it."""
        if self._segments:
            yield from self._bent(cohort, starts, plans, at, float(task.learning_rate or 1.0))
            return
        turned = starts if self._net is None else self._net.turned(starts, at.round)
        where = {member: place for place, member in enumerate(cohort)}
        for members, ends in super().dp_sgd(cohort, turned, plans=plans, at=at, task=task, recall=recall):
            rows = [where[member] for member in members]
            # Only the steps are kept: the public difference between the flipped and the real start is taken out again.
            moved = starts - turned if starts.dim() == 1 else (starts - turned)[rows]
            yield members, ends + moved

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """Yield the simulator's own sums at starts where canaries alternate."""
        turned = starts if self._net is None else self._net.turned(starts, at.round)
        return super().gradient_sums(cohort, turned, plans=plans, at=at)

    def _bent(
        self, cohort: Sequence[int], starts: Tensor, plans: Sequence[PrivateSteps], at: CallId, eta: float
    ) -> Iterator[Block]:
        """Yield segments in which a canary reverses its device's path from the first batch that drew it.

        The first draw moves its step by what clipping leaves of one example, all later steps from one end of the ball
        to the other. The straight path is much too long: only clipping the sum brings it back.
        """
        ends = starts.expand(len(cohort), -1).clone()
        rngs = self._client_rngs(self._secret, Purpose.BATCHES, cohort, at)
        for place, (member, plan, rng) in enumerate(zip(cohort, plans, rngs, strict=True)):
            # Real batches with the file's own sampling: amplification is attacked, not assumed.
            how = DPSGDSettings(plan.clip_norm, [0.0], [plan.rate], [plan.steps], [1.0], [rng], [rng])
            batches = list(how.batches_of(0, self.sizes[member]))
            for example, slot in enumerate(self._holders.get(member, ())[:1]):
                drawn = [batch is None or example in batch for batch in batches]
                length = eta * plan.clip_norm
                far = -LOUD * plan.steps * length
                if any(drawn) and self._inclusion.inside[slot]:
                    left = plan.steps - 1 - drawn.index(True)
                    far = length * (2 * left + min(2.0, 1 / plan.expected_batch) - plan.steps)
                self._turn(ends[place], slot, far * round_sign(at.round) / math.sqrt(2))
        if cohort:
            yield list(cohort), ends

    def _lead(self, end: Tensor, slot: int, far: float, *, inside: bool) -> None:
        self._turn(end, slot, LOUD * far * (1.0 if inside else -1.0))

    def _turn(self, end: Tensor, slot: int, far: float) -> None:
        """Move a canary's two coordinates apart."""
        end[slot] += far
        end[self._model.input_shape[0] + slot] -= far
