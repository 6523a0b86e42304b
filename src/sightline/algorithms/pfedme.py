"""pFedMe: personal models by Moreau envelopes, an inner solve per mini-batch (Dinh et al. 2020, Algorithm 1)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State, global_model
from sightline.config import Experiment
from sightline.data import Shard
from sightline.errors import invalid, refuse
from sightline.mechanisms import Public, StateRule
from sightline.models import FlatModel
from sightline.training import LocalWork
from sightline.training.dispatch import worker_for
from sightline.training.local_work import shuffled_batches


@dataclass(frozen=True)
class Moreau:
    """Local solver: theta ~ argmin f_B(theta) + lambda / 2 |theta - w|^2 by K steps, w <- w - eta lambda (w - theta).

    Done for every mini-batch B. Reference: T. Dinh et al. 2020, Algorithm 1, lines 4-8. theta continues from the
    previous mini-batch.
    """

    penalty: float
    inner_steps: int
    learning_rate: float

    def memory(self, sources: frozenset[int] = frozenset()) -> StateRule:
        """Return the personal model as a state rule."""
        return StateRule("personal", solver=self, sources=sources, rule=self)

    def __call__(
        self, model: FlatModel, start: Tensor, shard: Shard, work: LocalWork, *, steps: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return (the client's copy of the global model, its personal model)."""
        worker = worker_for(model, precision=work.precision)
        worker.weights.copy_(start)
        copy = worker.weights.clone()
        x, y = worker.inputs(shard.x), worker.place_tensor(torch.from_numpy(shard.y))
        for batch in shuffled_batches(len(shard), work, steps, rng):
            some = slice(None) if batch is None else worker.place_tensor(torch.from_numpy(batch))
            some_x, some_y = x[some], y[some]
            for _ in range(self.inner_steps):
                worker.mean_gradient(some_x, some_y)
                worker.gradient.add_(worker.weights - copy, alpha=self.penalty)
                worker.weights.add_(worker.gradient, alpha=-self.learning_rate)
            copy -= work.learning_rate * self.penalty * (copy - worker.weights)
        return worker.hand_back(copy), worker.hand_back(worker.weights.clone())


@dataclass(frozen=True)
class PFedMe:
    """Settings of pFedMe; `penalty` is the paper's lambda, `inner_steps` its K, `mixing` its beta."""

    penalty: float = 15.0
    inner_steps: int = 5
    personal_learning_rate: float = 0.05
    mixing: float = 1.0

    def __post_init__(self) -> None:
        for name in ("penalty", "personal_learning_rate", "mixing"):
            if not getattr(self, name) > 0:
                invalid(f"algorithm.{name}", getattr(self, name), "must be positive")
        if isinstance(self.inner_steps, bool) or not isinstance(self.inner_steps, int) or self.inner_steps < 1:
            invalid("algorithm.inner_steps", self.inner_steps, "must be a whole number >= 1", "e.g. 5")


def init_state(start: Public, clients: range, settings: PFedMe) -> State:
    """Return one global model; a client's personal model is the global one until it takes part."""
    return {"model": start}


def run_round(state: State, r: Round, settings: PFedMe) -> State:
    """Lines 2-10: clients move copies of w towards their personal models; the server averages the copies."""
    solver = Moreau(settings.penalty, settings.inner_steps, settings.personal_learning_rate)  # lines 4-8
    # Personal models never enter training, so they do not reveal past draws: cohorts stay hidden.
    updates = r.train(r.sample(), state["model"], memory=solver.memory())  # line 9: a subset sends
    return {"model": state["model"] + settings.mixing * r.release_mean(updates)}  # line 10


def check_experiment(experiment: Experiment) -> None:
    """Raise `Refused` for DP-SGD, and for optimizers other than SGD: the inner solver takes neither's steps."""
    if experiment.privacy.unit == "sample" and experiment.privacy.mechanism == "gaussian":
        reason = "pfedme's inner solver does not take private steps"
        refuse("privacy.unit", "sample", reason, 'use unit = "client", or mechanism = "output"')
    if experiment.local.optimizer not in (None, "sgd"):
        reason = "pfedme's inner solver takes plain gradient steps"
        refuse("local.optimizer", experiment.local.optimizer, reason, 'use optimizer = "sgd"')


FACTS = AlgorithmFacts(
    says="Clients are judged by personal models that they keep to themselves; the global model is what epsilon is for.",
    check=check_experiment,
    kept="personal",
)
ALGORITHM = Algorithm("pfedme", PFedMe, init_state, run_round, global_model, FACTS)
