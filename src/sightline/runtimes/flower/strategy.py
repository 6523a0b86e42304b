"""Client-level privacy for existing Flower apps: their strategy with Sightline's clipping, noise and ledger."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting import refuse_large_delta
from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Unit
from sightline.ledger import StepKind, StepLedger
from sightline.mechanisms.clip_and_noise import FloatSum
from sightline.private_loop import SteppedLedger, check_count, choose_event, digest_of, streams_of
from sightline.randomness import Purpose
from sightline.training.dp_sgd_settings import check_clip_norm

ROUNDS = StepKind("clients", Unit.CLIENT, "server", "noisy mean of clipped updates", handed_over=True)


@dataclass(frozen=True)
class OpenRound:
    """A round that waits for replies: the model that was sent, to whom, and the public denominator."""

    arrays: Mapping[str, NDArray[Any]]
    nodes: frozenset[int]
    expected: float

    def updates(self, replies: Iterable[Message]) -> Iterator[Tensor]:
        """Yield the update of every node that was asked, as one vector: first and well-formed replies only."""
        waiting = set(self.nodes)
        # In the order of the nodes, so that the sum does not depend on who answered first.
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            if node in waiting and not reply.has_error():
                waiting.remove(node)
                update = self._read_update(reply)
                if update is not None:
                    yield update

    def _read_update(self, reply: Message) -> Tensor | None:
        """Return the update in a reply, or None if it is not a model of this shape."""
        try:
            (record,) = reply.content.array_records.values()
            parts = [record[name].numpy().astype(np.float64) - array for name, array in self._noised()]
            fits = all(part.shape == array.shape for part, (_, array) in zip(parts, self._noised(), strict=True))
            return torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts])) if fits else None
        # A malformed reply counts as absent: a client can only exclude itself, never stop the round for others.
        except Exception:
            return None

    def _noised(self) -> list[tuple[str, NDArray[Any]]]:
        """Return the arrays of real numbers; counters and the like stay as the server has them."""
        return [(name, array) for name, array in self.arrays.items() if array.dtype.kind == "f"]

    @property
    def dimension(self) -> int:
        """Return the length of an update."""
        return sum(array.size for _, array in self._noised())

    def moved_by(self, step: Tensor) -> ArrayRecord:
        """Return the model after a step, under its own names."""
        moved, start, flat = dict(self.arrays), 0, step.numpy()
        for name, array in self._noised():
            moved[name] = (array + flat[start : start + array.size].reshape(array.shape)).astype(array.dtype)
            start += array.size
        return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in moved.items()})


class PrivateStrategy(SteppedLedger, Strategy):  # type: ignore[misc]
    r"""A Flower strategy made private: each round releases W + (sum_i clip(W_i - W, C) + N(0, (z C)^2)) / m.

    W is the model that was sent and W_i what client i returns; its claimed number of examples is ignored. The wrapped
    strategy decides what is sent, and receives the noisy mean as if it were the only reply of the round, so server
    optimisers work as usual. m is the expected cohort.

    With `rate`, every client that the strategy asks is kept with that probability, by an independent draw, and
    amplification is claimed. Without it the strategy's own cohort is used and no amplification is claimed. Give
    `epsilon` with `rounds`, or `noise_multiplier`. Once the budget is used up, the remaining rounds change nothing.
    Noise and cohorts come from the operating system; `seed` is for simulations and raises a `UserWarning`: noise from a
    known seed gives no protection.

    Guarantees: what the app learns from `start` is (epsilon, delta)-private for each client, a client being a node; a
    round is in the ledger before its noise is drawn; replies of other nodes, second replies and malformed ones count as
    zero; metrics that clients report are dropped and evaluation at clients is refused, since these are private values
    too. The server itself sees every reply: against it epsilon is infinite, and the ledger says so.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip_norm: float,
        delta: float,
        epsilon: float | None = None,
        rounds: int | None = None,
        noise_multiplier: float | None = None,
        rate: float | None = None,
        ledger: Path | str | None = None,
        seed: int | None = None,
    ) -> None:
        check_clip_norm(clip_norm)
        if rate is not None and not 0 < rate <= 1:
            invalid("rate", rate, "must be a probability in (0, 1]")
        if getattr(strategy, "fraction_evaluate", 0.0) > 0:
            reason = "the clients' evaluation results would be published without noise"
            refuse("fraction_evaluate", strategy.fraction_evaluate, reason, "set it to 0.0; use evaluate_fn instead")
        self.strategy, self.clip_norm, self.rate = strategy, clip_norm, rate
        self.streams = streams_of(seed, calls=2)
        self.steps = StepLedger(ledger, ROUNDS, delta=delta, budget=epsilon)
        try:
            planned = 0 if rounds is None else check_count("rounds", rounds)
            event = choose_event(rate or 1.0, self.steps, epsilon, noise_multiplier, planned, length="rounds")
            self.steps.begin(event, planned=planned)
        except BaseException:
            self.steps.close()
            raise
        self._open: OpenRound | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages to the drawn cohort, or none once the budget is used up."""
        self._open = None
        if not self.steps.fits_another():
            log(WARNING, "privacy budget used up: round %s does not take place", server_round)
            return []
        asked = list(self.strategy.configure_train(server_round, arrays, config, grid))
        nodes = [message.metadata.dst_node_id for message in asked]
        if len(set(nodes)) != len(nodes):
            refuse("strategy", type(self.strategy).__name__, "it asks a client twice in a round, and each would be in "
                   "the sum twice", "ask every client once")  # fmt: skip
        everybody = len(set(grid.get_node_ids()) | set(nodes))
        refuse_large_delta("delta", self.steps.delta, everybody, "clients", otherwise="")
        before = {name: array.numpy() for name, array in arrays.items()}
        kept = self._draw_cohort(nodes, before)
        self._open = OpenRound(before, frozenset(kept), len(nodes) * (1.0 if self.rate is None else self.rate))
        return [message for message in asked if message.metadata.dst_node_id in kept]

    def _draw_cohort(self, nodes: list[int], model: Mapping[str, NDArray[Any]]) -> set[int]:
        """Keep every node that was asked independently with probability `rate`; keep all without one.

        The strategy's own choice of nodes is not claimed to hide anyone, and it uses public values only.
        """
        # Keyed by the model, the settings and the number of nodes: two servers with one seed share no draw.
        named = repr((self.clip_norm, self.steps.event, self.steps.delta, self.steps.budget, len(nodes))).encode()
        weights = (digest_of(torch.from_numpy(np.array(array))) for array in model.values())
        rng = self.streams.keyed_by(named, *weights).rng(Purpose.COHORT, round=self.steps.steps + 1)
        rate = 1.0 if self.rate is None else self.rate
        return {node for node, draw in zip(sorted(nodes), rng.random(len(nodes)), strict=True) if draw < rate}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum and noise the updates, and give the noisy mean to the strategy; no replies means noise only."""
        round, self._open = self._open, None
        if round is None:
            return None, None
        # Charge first: the round is in the ledger before its noise is drawn.
        time = self.steps.charge()
        total = FloatSum(round.dimension)
        for update in round.updates(replies):
            total.add(update, clip_norm=self.clip_norm)
        scale = repr((self.noise_multiplier, self.clip_norm)).encode()
        # Keyed by the sum itself, so that the same noise is never added to another sum.
        own_noise = self.streams.keyed_by(scale, digest_of(total.total))
        noisy = total.noisy_sum(
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            adjacency=Adjacency.ADD_REMOVE,
            rng=own_noise.rng(Purpose.NOISE, round=time),
        )
        mean = round.moved_by(noisy / round.expected)
        arrays, metrics = self.strategy.aggregate_train(server_round, [self._as_reply(mean)])
        log(INFO, "privacy spent: epsilon=%.4f at delta=%g", self.epsilon(), self.steps.delta)
        return arrays, metrics

    def _as_reply(self, arrays: ArrayRecord) -> Message:
        """Return the noisy mean as the only reply of a round."""
        weight = MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1.0})
        content = RecordDict({getattr(self.strategy, "arrayrecord_key", "arrays"): arrays, "metrics": weight})
        return Message(content, 0, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: evaluation at clients would publish private values without noise."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None."""
        return None

    def summary(self) -> None:
        """Log the privacy settings, then the summary of the wrapped strategy."""
        sampled = "the strategy's own cohorts" if self.rate is None else f"Poisson cohorts of rate {self.rate:g}"
        limit = "no limit" if self.steps.budget is None else f"epsilon <= {self.steps.budget:g}"
        log(INFO, "\t├──> Privacy of each client: %s at delta=%g", limit, self.steps.delta)
        log(INFO, "\t│\t└── clip norm %g, noise multiplier %.4g, %s", self.clip_norm, self.noise_multiplier, sampled)
        self.strategy.summary()
