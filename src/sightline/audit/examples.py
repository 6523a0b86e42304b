"""Clients whose examples are canaries: the simulator's own training, batches, clipping and noise on loud data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from sightline.audit.canaries import LOUD, CanaryCoins, round_sign
from sightline.audit.net import CanaryNet
from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import Block, CallId, PrivateSteps, SegmentSums, Splitter, StateAccess
from sightline.mechanisms.worker import RemoteNodes
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.training.privately import DPSGDSettings


class CanaryShards(Simulator):
    """The simulator on canary examples; free training ends where a canary wants it to, for it is never trusted."""

    nodes: RemoteNodes | None = None  # type: ignore[assignment]

    def __init__(
        self, setting: BuiltExperiment, secret: Streams, coins: CanaryCoins, holders: Mapping[int, Sequence[int]],
        net: CanaryNet | None = None,
    ) -> None:  # fmt: skip
        super().__init__(setting, secret, secret)
        self._coins, self._holders, self._net = coins, holders, net
        self._clip_norm = setting.experiment.privacy.clip_norm
        self._segments = isinstance(setting.mechanism, SegmentSums)

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, terms: Mapping[str, Any],
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Where the members' training ended: one example may have led it anywhere."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        for place, member in enumerate(cohort):
            for slot in self._holders.get(member, ()):
                self._lead(ends[place], slot, self._clip_norm * round_sign(at.round), inside=self._coins.inside[slot])
        yield list(cohort), ends

    def dp_sgd(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId,
        terms: Mapping[str, Any], recall: StateAccess | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """The simulator's own private steps; a segment, which is noised whole, ends where its canary led it."""
        if self._segments:
            yield from self._bent(cohort, starts, plans, at, float(terms["learning_rate"]))
            return
        turned = starts if self._net is None else self._net.turned(starts, at.round)
        where = {member: place for place, member in enumerate(cohort)}
        for members, ends in super().dp_sgd(cohort, turned, plans=plans, at=at, terms=terms, recall=recall):
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
        """A canary that one of the real batches drew turns its device's whole path round; else it goes the other way.

        No gradient in the segment is trusted: the sum is clipped again before it is noised, and only that counts.
        """
        ends = starts.expand(len(cohort), -1).clone()
        coins = self._client_rngs(self._secret, Purpose.BATCHES, cohort, at)
        for place, (member, plan, rng) in enumerate(zip(cohort, plans, coins, strict=True)):
            how = DPSGDSettings(plan.clip_norm, [0.0], [plan.rate], [plan.steps], [1.0], [rng], [rng])
            batches = list(how.batches_of(0, self.sizes[member]))
            for example, slot in enumerate(self._holders.get(member, ())):
                drawn = any(batch is None or example in batch for batch in batches)
                far = eta * plan.steps * plan.clip_norm * round_sign(at.round)
                self._lead(ends[place], slot, far, inside=drawn and self._coins.inside[slot])
        if cohort:
            yield list(cohort), ends

    def _lead(self, end: Tensor, slot: int, far: float, *, inside: bool) -> None:
        far = LOUD * far * (1.0 if inside else -1.0)
        end[slot] += far
        end[self._model.input_shape[0] + slot] -= far
