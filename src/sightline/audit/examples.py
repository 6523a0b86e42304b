"""Clients whose examples are canaries: the simulator's own training, batches, clipping and noise on loud data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from sightline.audit.canaries import LOUD, Coins
from sightline.engine.setting import Setting
from sightline.mechanisms import Block, Occasion, Recall, Splitter
from sightline.mechanisms.worker import Nodes
from sightline.randomness import Streams
from sightline.runtimes import Simulator


class CanaryShards(Simulator):
    """The simulator on canary examples; free training ends where a canary wants it to, for it is never trusted."""

    nodes: Nodes | None = None  # type: ignore[assignment]

    def __init__(self, setting: Setting, secret: Streams, coins: Coins, holders: Mapping[int, Sequence[int]]) -> None:
        super().__init__(setting, secret, secret)
        self._coins, self._holders = coins, holders
        self._loud = LOUD * setting.experiment.privacy.clip_norm

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: Occasion, terms: Mapping[str, Any],
        recall: Recall | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Where the members' training ended: one example may have led it anywhere."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        features = self._model.input_shape[0]
        for place, member in enumerate(cohort):
            for slot in self._holders.get(member, ()):
                far = self._loud * (1.0 if self._coins.inside[slot] else -1.0)
                ends[place, slot] += far
                ends[place, features + slot] -= far
        yield list(cohort), ends
