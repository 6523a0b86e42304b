"""The simulator: every client on this machine, trained block by block."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.data import Shard
from sightline.engine.setting import Setting
from sightline.mechanisms import Block, Occasion, PrivateSteps
from sightline.randomness import Purpose, Streams
from sightline.training import LocalTerms, LocalWork, clipped_gradient_sum, dp_sgd, train
from sightline.training.work import rows


class Simulator:
    """Trains clients with the streams of their own numbers, so that neither order nor batching matters."""

    def __init__(self, setting: Setting, public: Streams, secret: Streams) -> None:
        torch.set_num_threads(1)
        local = setting.experiment.local
        self.dimension = setting.model.parameters
        self.sizes = setting.federation.sizes.tolist()
        self._model = setting.model
        self._shards = [client.train for client in setting.federation.clients]
        self._public, self._secret = public, secret
        self._stragglers = local.stragglers
        full = setting.experiment.samples_scheme == "full"
        self._work = LocalWork(
            learning_rate=local.learning_rate,
            momentum=local.momentum,
            batch_size=None if full else local.batch_size,
            epochs=local.epochs,
            steps=local.steps,
            weight_decay=local.weight_decay,
        )

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: Occasion, terms: Mapping[str, Any]
    ) -> Iterator[Block]:
        """Local SGD of the cohort."""
        if not cohort:
            return
        rngs = self._rngs(self._public, Purpose.BATCHES, cohort, at)
        found = train(
            self._model,
            starts,
            self._of(cohort),
            self._work,
            rngs=rngs,
            terms=LocalTerms(**terms),
            epochs_of=self._epochs(cohort, at),
        )
        for places, ends in found:
            yield [cohort[place] for place in places], ends

    def dp_sgd(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        plans: Sequence[PrivateSteps],
        at: Occasion,
        terms: Mapping[str, Any],
    ) -> Iterator[Block]:
        """DP-SGD of the cohort, each member with its own noise and coins."""
        if not cohort:
            return
        found = dp_sgd(
            self._model,
            starts,
            self._of(cohort),
            self._work,
            clip_norm=plans[0].clip_norm,
            noise_std=[plan.noise_multiplier * plan.clip_norm for plan in plans],
            sample_rates=[plan.rate for plan in plans],
            steps=[plan.steps for plan in plans],
            divisors=[plan.expected_batch for plan in plans],
            coin_rngs=self._rngs(self._secret, Purpose.BATCHES, cohort, at),
            noise_rngs=self._rngs(self._secret, Purpose.NOISE, cohort, at),
            terms=LocalTerms(**terms),
        )
        for places, ends in found:
            yield [cohort[place] for place in places], ends

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: Occasion
    ) -> Iterator[Block]:
        """One drawn batch per member, its clipped gradients summed."""
        rngs = self._rngs(self._secret, Purpose.BATCHES, cohort, at)
        for place, (client, plan, rng) in enumerate(zip(cohort, plans, rngs, strict=True)):
            shard = self._shards[client]
            drawn = np.flatnonzero(rng.random(len(shard)) < plan.rate)
            start = rows(starts, place)
            total = clipped_gradient_sum(self._model, start, shard.x[drawn], shard.y[drawn], clip_norm=plan.clip_norm)
            yield [client], total[None]

    def _of(self, cohort: Sequence[int]) -> list[Shard]:
        return [self._shards[client] for client in cohort]

    def _rngs(
        self, streams: Streams, purpose: Purpose, cohort: Sequence[int], at: Occasion
    ) -> list[np.random.Generator]:
        return [streams.rng(purpose, round=at.round, participant=client, use=at.use) for client in cohort]

    def _epochs(self, cohort: Sequence[int], at: Occasion) -> list[float] | None:
        """With probability `stragglers` a client does a uniform 1..E-1 of its E epochs; its partial work is kept."""
        epochs = self._work.epochs
        if not self._stragglers or epochs is None or epochs < 2:
            return None
        rngs = self._rngs(self._public, Purpose.STRAGGLERS, cohort, at)
        return [float(rng.integers(1, epochs)) if rng.random() < self._stragglers else float(epochs) for rng in rngs]
