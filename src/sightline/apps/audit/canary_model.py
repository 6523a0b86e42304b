"""Canary examples: the network they are put before, and clients whose shards are made of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.apps.audit.canaries import LOUD, CanaryInclusion, round_sign
from sightline.config import Experiment, Model
from sightline.engine.build import BuiltExperiment
from sightline.mechanisms import Block, CallId, NoisedValue, PrivateSteps, Splitter, StateAccess
from sightline.mechanisms.updates import RemoteNodes
from sightline.models import FlatModel
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.training import LocalTask
from sightline.training.dp_sgd_settings import DPSGDSettings

STEEP = 10.0
"""The weight from a hidden unit to the outputs."""
SURE = 10.0
"""The bias by which silent examples are classified rightly, with a gradient of nothing, and canaries wrongly."""
FAR = 30.0
"""A canary's feature: its gradient has a norm of 2 STEEP FAR, and private steps do not bend the layer there."""


def small_experiment(experiment: Experiment, splitter: Splitter | None) -> Experiment:
    """The same file with a network of one hidden unit, or one in each part; radii and noises of the split stay.

    Guarantees: as many parts as the file's model has, and an unsplit tensor where it has one: the same event.
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
    """Where canaries are found in a vector of the network."""

    model: FlatModel
    splitter: Splitter | None

    def _slot(self, name: str) -> slice:
        return next(slice(slot.start, slot.stop) for slot in self.model.layout if slot.name == name)

    @property
    def shared(self) -> tuple[float, ...]:
        """How far the release of the unsplit tensors, where there is one, leans over that of a part."""
        if self.splitter is None or not self.splitter.splitting.unsplit:
            return ()
        return (1 / self.splitter.unsplit_noise,)

    @cached_property
    def columns(self) -> Tensor:
        """(hidden units, features): the positions of the weights from features to units."""
        place = self._slot("hidden0.weight")
        return torch.arange(place.start, place.stop).view(-1, self.model.input_shape[0])

    def start(self) -> Tensor:
        """A flat first layer, a steep second one, and the right answer for silent examples."""
        start = torch.zeros(self.model.parameters)
        out = start[self._slot("output.weight")].view(2, -1)
        out[0], out[1] = STEEP, -STEEP
        start[self._slot("output.bias")] = torch.tensor([SURE, -SURE])
        return start

    def turned(self, starts: Tensor, round: int) -> Tensor:
        """Starting points at which canaries pull the other way in every second round."""
        found = starts.clone()
        found[..., self._slot("output.weight")] *= round_sign(round)
        return found

    def reading(self, value: Tensor, slots: Sequence[int]) -> Tensor:
        """(canaries, units): a released vector along the part of each canary's gradient that lies in each unit."""
        return -value[self.columns[:, list(slots)]].T.double()

    def reading_of_one(self, value: Tensor, round_sign: float) -> Tensor:
        """The same of the first canary, and the release of the unsplit tensors along its gradient, which never turns.

        Without parts, of the second one too, which shows the noise.
        """
        if self.splitter is None:
            return self.reading(value, [0, 1])[:, 0]
        own = self.reading(value, [0])[0]
        bias = value[self._slot("output.bias")].double()
        return torch.cat([own, round_sign * (bias[1:] - bias[:1]) / 2**0.5]) if self.shared else own


def hit_coordinates(splitter: Splitter, assigned: Any, columns: Tensor, slot: int) -> list[int]:
    """The coordinates of a client canary that lie in the part it drew."""
    free = set(_trained_part(splitter, assigned).tolist())
    return [int(place) for place in columns[:, slot] if int(place) in free]


def probe_places(splitter: Splitter, assigned: Any) -> list[int]:
    """One coordinate of the part that was drawn, and one of the unsplit tensors."""
    free = _trained_part(splitter, assigned)
    own, shared = free[~splitter.unsplit[free]], torch.nonzero(splitter.unsplit).flatten()
    return [int(some[0]) for some in (own, shared) if len(some)]


def _trained_part(splitter: Splitter, assigned: Any) -> Tensor:
    splitting = splitter.splitting
    nothing = np.zeros((1, *splitting.whole.input_shape), dtype=np.float32)
    submodel, _ = splitting.part_of_one(assigned, nothing)
    return submodel.positions if submodel.moves is None else submodel.positions[submodel.moves > 0]


def part_probes(splitter: Splitter, streams: Streams) -> tuple[list[int], list[int]]:
    """(coordinates at which a client canary of a split model may be found, those of the unsplit tensors)."""
    drawn = splitter.splitting.draw(64, rng=streams.rng(Purpose.AUDIT))
    found = {place for assigned in drawn for place in probe_places(splitter, assigned)}
    own = sorted(place for place in found if not splitter.unsplit[place])
    return own[:16], sorted(found - set(own))


class CanaryShards(Simulator):
    """The simulator on canary examples; free training ends where a canary wants it to, for it is never trusted."""

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
        """Where the members' training ended: one example may have led it anywhere."""
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
        """The simulator's own private steps; a segment, which is noised whole, ends where its canary led it."""
        if self._segments:
            yield from self._bent(cohort, starts, plans, at, float(task.learning_rate or 1.0))
            return
        turned = starts if self._net is None else self._net.turned(starts, at.round)
        where = {member: place for place, member in enumerate(cohort)}
        for members, ends in super().dp_sgd(cohort, turned, plans=plans, at=at, task=task, recall=recall):
            rows = [where[member] for member in members]
            moved = starts - turned if starts.dim() == 1 else (starts - turned)[rows]
            yield members, ends + moved

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """The simulator's own sums, where canaries turn round."""
        turned = starts if self._net is None else self._net.turned(starts, at.round)
        return super().gradient_sums(cohort, turned, plans=plans, at=at)

    def _bent(
        self, cohort: Sequence[int], starts: Tensor, plans: Sequence[PrivateSteps], at: CallId, eta: float
    ) -> Iterator[Block]:
        """From the first real batch that drew it a canary turns its device's path round; else that goes straight.

        A first draw moves its step by what clipping leaves of one example, all later steps from one end of the ball to
        the other. The straight path is too long by far: only clipping the sum brings it back.
        """
        ends = starts.expand(len(cohort), -1).clone()
        rngs = self._client_rngs(self._secret, Purpose.BATCHES, cohort, at)
        for place, (member, plan, rng) in enumerate(zip(cohort, plans, rngs, strict=True)):
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
