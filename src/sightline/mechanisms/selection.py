"""Private choice of one of several public models, by the exponential mechanism with a Gumbel maximum.

A client's score of model m is k_m, the number of its own training examples that the model classifies correctly. The
choice is argmax_m (a k_m + Gumbel), that is P(m) proportional to exp(a k_m), with

    unit sample, add/remove:   a = epsilon          one example raises every k_m by 0 or 1, none is lowered
    unit sample, replace:      a = epsilon / 2      one example raises some k_m by 1 and lowers others by 1
    unit client, both:         a = epsilon / N      a client's absence makes every k_m zero, which is at most N; a
                                                    replacement moves k_m by -N .. N: epsilon / (2 N)

Proof. With k and k' = k + b on neighbours, log P(m)/P'(m) = -a b_m + log(sum_j exp(a (k_j + b_j)) / sum_j exp(a k_j)).
The second term is a log of a mean of exp(a b_j): a constant c between a min b and a max b. So the ratio lies in an
interval of width a (max b - min b) that contains zero: width epsilon in every row. That is epsilon-DP, and as the range
is bounded by epsilon, (epsilon^2 / 8)-zCDP: the event `Exponential(epsilon)`. (Accuracy with sensitivity 1/(N-1) and
the factor 2 of the general case would give a = epsilon (N-1) / (2 N).)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sightline.errors import invalid
from sightline.events import Adjacency, Clear, Event, Exponential, Unit
from sightline.ledger import Release
from sightline.mechanisms.contract import ReleaseContext, only_client
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.updates import ClientExecutor, Public
from sightline.topology import client_name
from sightline.training.call import CallId, CallKind, TrainingCall


def choice_sharpness(epsilon: float, *, unit: Unit, adjacency: Adjacency, examples: int) -> float:
    """Return the weight a of one correct answer in the exponent, by the table above."""
    if not epsilon > 0:
        invalid("selection_epsilon", epsilon, "must be positive: a private choice has a cost")
    largest = examples if unit is Unit.CLIENT else 1
    return epsilon / (largest * (2 if adjacency is Adjacency.REPLACE else 1))


def draw_choice(right: Sequence[float], *, sharpness: float, rng: np.random.Generator) -> int:
    """Return argmax of sharpness x correct answers + Gumbel noise: P(m) proportional to exp(sharpness right_m)."""
    # The Gumbel maximum needs no normalising sum, so large scores do not overflow.
    scores = sharpness * np.asarray(right, dtype=np.float64)
    return int(np.argmax(scores + rng.gumbel(size=len(scores))))


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """Clients that each choose one of several public models by their own training data.

    Guarantees: every choice is `Exponential(epsilon)` for its chooser, told to the channel's owner; without privacy
    (unit none) it is the model with the most correct answers, without noise.
    """

    choosers: Cohort
    candidates: tuple[Public, ...]
    epsilon: float

    def claim_choices(self, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per chooser, in order, computed from every candidate."""
        event: Event = Clear() if context.unit is Unit.NONE else Exponential(self.epsilon)
        inputs = tuple(sorted(frozenset[int]().union(*(model.sources for model in self.candidates))))
        return tuple(
            context.make_release(
                source=client_name(chooser),
                event=event,
                audience=frozenset({context.channel.name}),
                what=f"choice of one of {len(self.candidates)} models by right answers",
                subjects=only_client(chooser),
                inputs=inputs,
            )
            for chooser in self.choosers.members
        )

    def make_call(self, at: CallId) -> TrainingCall:
        """Return the call that counts the right answers of every candidate."""
        models = torch.stack([model.value for model in self.candidates])
        return TrainingCall(CallKind.RIGHT_ANSWERS, self.choosers.members, models[0], at, candidates=models)

    def draw_choices(self, worker: ClientExecutor, context: ReleaseContext) -> dict[int, int]:
        """Return client -> the index of its chosen model; remote clients that do not answer are missing."""
        if worker.nodes is not None:
            return worker.nodes.request_choices(self, context)
        result = {}
        for (chooser,), (right,) in worker.run(self.make_call(CallId(context.time, context.use))):
            if context.unit is Unit.NONE:
                result[chooser] = int(np.argmax(right.tolist()))
                continue
            sharp = choice_sharpness(
                self.epsilon, unit=context.unit, adjacency=context.adjacency, examples=worker.sizes[chooser]
            )
            result[chooser] = draw_choice(right.tolist(), sharpness=sharp, rng=context.noise(chooser))
        return result
