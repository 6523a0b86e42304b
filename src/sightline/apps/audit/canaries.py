"""Canaries: the largest allowed contributions, canary examples, and the network that they are trained on."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.config import Experiment, Model
from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.events import Adjacency
from sightline.mechanisms import NoisedValue, Splitter
from sightline.mechanisms.updates import RemoteNodes
from sightline.models import FlatModel
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.runtimes.local_trainer import client_rngs
from sightline.topology import Channel, Groups
from sightline.training.call import Block, CallId, CallKind, TrainingCall
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.local_work import client_rows


@dataclass(frozen=True, eq=False)
class Relays:
    """The workers that carry information about a subject between groups that do not change."""

    topology: Groups
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
        distances = {c.name: 0 for c in self.topology.channels if self.subject in c.members}
        while True:
            edge = max(distances.values())
            carriers = {n for c in self.topology.channels if c.name in distances for n in c.members}
            new = {
                c.name: edge + 1
                for c in self.topology.channels
                if c.name not in distances and carriers & set(c.members)
            }
            if not new:
                return distances
            distances |= new

    def coordinate(self, group: str) -> int:
        """Return the coordinate along which a group's model tells of the subject."""
        return self.level.get(group, 0)

    @property
    def dimension(self) -> int:
        """Return the number of coordinates."""
        return 1 + max(self.level.values())

    def says(self, member: int, start: Tensor, at: CallId) -> tuple[int, float]:
        """Return (coordinate, sign) that a member sends; the sign is 0 if the member does not carry."""
        channels = self.topology.channels_at(at.round)
        own = self.level.get(channels[at.use % len(channels)].name, 0)
        mine = [c for c in channels if member in c.members]
        if not own or not self._merging(at.round) or all(self.level[c.name] != own - 1 for c in mine):
            return own, 0.0
        # An update may be any function of its start, so relays decide by likelihood ratio and send their whole clip
        # norm.
        level = self._level_of_doubt(mine, at.round) if own == 1 else 0.0
        return own, math.copysign(1.0, float(start[own - 1]) - level)

    def _merging(self, round: int) -> bool:
        return self.whole_intervals or (round - 1) % self.topology.period == 0

    def _level_of_doubt(self, mine: Sequence[Channel], round: int) -> float:
        """Return the value of the start at which the log-likelihood ratio is `doubt`.

        The subject has moved it by m, under noise of variance v: m / 2 + doubt v / m.
        """
        period = self.topology.period if self.whole_intervals else 1
        made, far = (round - 1) // period, self.clip_norm * math.sqrt(period) / len(mine)
        shown = [c for c in mine if self.level[c.name] == 0]
        # Expected values of the public mechanism: the relays use no private knowledge.
        moved = sum(made * far * c.clip_factor / len(c.members) for c in shown)
        noise = [
            far * c.clip_factor * self.noise_multiplier * c.noise_factor / len(c.members) / self.rate for c in shown
        ]
        return moved / 2 + self.doubt * made * sum(std**2 for std in noise) / moved if moved else 0.0


def relays_for(built: BuiltExperiment, subject: int, observer: str, upper: float) -> Relays | None:
    """Return the relays from a subject to an observer outside its groups, or None if it is seen directly."""
    topology = built.topology
    # Relays know the groups beforehand; groups that change would need another plan in every round.
    if not isinstance(topology, Groups) or not topology.steady:
        return None
    seen = [channel for channel in topology.channels if observer in channel.audience]
    if any(subject in channel.members for channel in seen):
        return None
    sampler = built.sampler_of(topology.top)
    # Relays decide at half of the claimed epsilon: at the claim itself true alarms are too rare to count.
    relays = Relays(
        topology, subject, built.experiment.privacy.clip_norm, max(built.multipliers.values(), default=1.0),
        sampler.expected / sampler.population, built.experiment.algorithm.name == "dp_ogl_plus", min(upper, 10.0) / 2,
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

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the chosen end vectors of the members, or their counts of right answers."""
        if call.candidates is not None:
            yield from (([member], self._right_answers(member, call.candidates)) for member in call.cohort)
        elif call.cohort:
            ends = call.starts.expand(len(call.cohort), -1).clone()
            for index, member in enumerate(call.cohort):
                start = client_rows(call.starts, index)
                self._move(ends[index], start, member, call.at, cast(Splitter | None, call.parts))
                if call.state is not None:
                    call.state.keep_state(member, start, ends[index], 1.0, noised=False)
            yield call.cohort, ends

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

    def _right_answers(self, member: int, models: Tensor) -> Tensor:
        """Return counts: a canary finds the first model right on all its examples and the others on none."""
        counts = torch.zeros(1, len(models))
        if member in self.slots and self.inclusion.inside[self.slots[member]]:
            counts[0, 0] = self.sizes[member]
        return counts

    def _coordinates(self, slot: int, member: int, at: CallId, splitter: Splitter | None) -> list[int]:
        """Return the canary's coordinate; for a split model, those in the part that the member drew in secret."""
        if splitter is None or self.where is None:
            return [slot]
        rng = self.secret.rng(Purpose.ASSIGNMENT, round=at.round, participant=member, use=at.use)
        return self.where(splitter, splitter.splitting.in_round(at.round).draw(1, rng=rng)[0], slot)


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
    split = experiment.algorithm.split
    parts = 1 if splitter is None or split is None else len(split.part_weights) or splitter.parts
    units = 1 if splitter is None else max(2, parts)
    dropped: dict[str, Any] = {"dropout": 0.5} if split is not None and split.by == "dropout" else {}
    model = Model.model_validate({"name": "mlp", "hidden": [units], "activation": "tanh", **dropped})
    if split is None or splitter is None:
        return experiment.model_copy(update={"model": model})
    kept = ("last",) if splitter.parts == 1 and splitter.splitting.unsplit else ()
    plain = {"partitions": 1, "partition_weights": (), "cycle": False} if not isinstance(split.parts, int) else {}
    small = split.model_copy(update={"unsplit": kept, "parts": parts, **plain})
    algorithm = experiment.algorithm.model_copy(update={"split": small})
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
        weights = self._slot("hidden0.weight")
        return torch.arange(weights.start, weights.stop).view(-1, self.model.input_shape[0])

    def start(self) -> Tensor:
        """Return a start with a flat first layer, a steep second one, and the right answer for silent examples."""
        start = torch.zeros(self.model.parameters)
        out = start[self._slot("output.weight")].view(2, -1)
        out[0], out[1] = STEEP, -STEEP
        start[self._slot("output.bias")] = torch.tensor([SURE, -SURE])
        return start

    def turned(self, starts: Tensor, round: int) -> Tensor:
        """Return starts at which canaries pull the other way in every second round."""
        ends = starts.clone()
        # A guarantee holds for every public start, so the audit may flip these weights between rounds.
        ends[..., self._slot("output.weight")] *= round_sign(round)
        return ends

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
    return [int(column) for column in columns[:, slot] if int(column) in free]


def probe_places(splitter: Splitter, assigned: Any) -> list[int]:
    """Return one coordinate of the drawn part and one of the unsplit tensors."""
    free = _trained_part(splitter, assigned)
    own, shared = free[~splitter.unsplit[free]], torch.nonzero(splitter.unsplit).flatten()
    return [int(some[0]) for some in (own, shared) if len(some)]


def _trained_part(splitter: Splitter, assigned: Any) -> Tensor:
    splitting = splitter.splitting
    nothing = np.zeros((1, *splitting.whole.input_shape), dtype=np.float32)
    submodel, _ = splitting.part_of_one(assigned, nothing)
    return submodel.trained


def part_probes(splitter: Splitter, streams: Streams) -> tuple[list[int], list[int]]:
    """Return (coordinates at which a client canary of a split model may appear, those of the unsplit tensors)."""
    # Draws with the audit's own stream find which parts exist; the secret draws of runs stay unknown to the attack.
    drawn = splitter.splitting.draw(64, rng=streams.rng(Purpose.AUDIT))
    coordinates = {index for assigned in drawn for index in probe_places(splitter, assigned)}
    own = sorted(index for index in coordinates if not splitter.unsplit[index])
    return own[:16], sorted(coordinates - set(own))


class CanaryShards(Simulator):
    """Simulator on canary examples; free training ends wherever a canary wants, since no guarantee trusts it."""

    nodes: RemoteNodes | None = None  # type: ignore[assignment]

    def __init__(
        self, built: BuiltExperiment, secret: Streams, inclusion: CanaryInclusion,
        holders: Mapping[int, Sequence[int]],
        net: CanaryNet | None = None,
    ) -> None:  # fmt: skip
        super().__init__(built, secret, secret)
        self._inclusion, self._holders, self._net = inclusion, holders, net
        self._clip_norm = built.experiment.privacy.clip_norm
        self._segments = built.mechanism.facts.noised_value is NoisedValue.STEPS

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the simulator's own private steps and sums, at starts where canaries alternate.

        Free training ends where a canary led it, and so does a segment, which is noised as a whole.
        """
        if call.kind is CallKind.TRAIN:
            return self._lead_freely(call)
        if call.kind is CallKind.DP_SGD and self._segments:
            return self._bend_segments(call)
        if self._net is None or call.kind not in (CallKind.DP_SGD, CallKind.GRADIENT_SUMS):
            return super().run(call)
        turned = self._net.turned(call.starts, call.at.round)
        blocks = super().run(replace(call, starts=turned))
        if call.kind is CallKind.GRADIENT_SUMS:
            return blocks
        # Only the steps are kept: the public difference between the flipped and the real start is taken out again.
        rows, moved = {member: index for index, member in enumerate(call.cohort)}, call.starts - turned
        return ((members, ends + client_rows(moved, [rows[member] for member in members])) for members, ends in blocks)

    def _lead_freely(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the chosen end vectors: one example may have led training anywhere."""
        if not call.cohort:
            return
        ends = call.starts.expand(len(call.cohort), -1).clone()
        for index, member in enumerate(call.cohort):
            for slot in self._holders.get(member, ()):
                far = self._clip_norm * round_sign(call.at.round)
                self._lead(ends[index], slot, far, inside=self._inclusion.inside[slot])
        yield call.cohort, ends

    def _bend_segments(self, call: TrainingCall) -> Iterator[Block]:
        """Yield segments in which a canary reverses its device's path from the first batch that drew it.

        The first draw moves its step by what clipping leaves of one example, all later steps from one end of the ball
        to the other. The straight path is much too long: only clipping the sum brings it back.
        """
        ends, eta = call.starts.expand(len(call.cohort), -1).clone(), float(call.task.learning_rate or 1.0)
        rngs = client_rngs(self.clients.secret, Purpose.BATCHES, call)
        for index, (member, plan, rng) in enumerate(zip(call.cohort, call.plans, rngs, strict=True)):
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
                self._turn(ends[index], slot, far * round_sign(call.at.round) / math.sqrt(2))
        if call.cohort:
            yield call.cohort, ends

    def _lead(self, end: Tensor, slot: int, far: float, *, inside: bool) -> None:
        self._turn(end, slot, LOUD * far * (1.0 if inside else -1.0))

    def _turn(self, end: Tensor, slot: int, far: float) -> None:
        """Move a canary's two coordinates apart."""
        end[slot] += far
        end[self.clients.model.input_shape[0] + slot] -= far
