"""FedDyn: dynamic regularisation aligns the clients' optima with the global one (Acar et al. 2021, Algorithm 1)."""

from dataclasses import dataclass

from torch import Tensor

from sightline.algorithms.contract import Algorithm, AlgorithmFacts, Round, State, global_model, keeps_state
from sightline.errors import invalid
from sightline.mechanisms import LocalResult, Public, StateRule


@dataclass(frozen=True)
class FedDyn:
    """Settings of FedDyn."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            invalid("algorithm.alpha", self.alpha, "must be positive", "e.g. 0.01")


def init_state(start: Public, clients: range, settings: FedDyn) -> State:
    """Return one global model and h = 0; a client's gradient memory is 0 until it takes part."""
    return {"model": start, "drift": 0.0 * start}


def run_round(state: State, r: Round, settings: FedDyn) -> State:
    """Client k minimises L_k(w) - <g_k, w> + alpha / 2 |w - w_t|^2 and keeps g_k <- g_k - alpha (w_k - w_t).

    The server: h <- h - alpha / m sum_{k in P} (w_k - w_t);  w <- mean_{k in P} w_k - h / alpha. Both sums are the
    released mean update times a public number, the cohort's share of all clients, by data size if the mean is.
    """
    alpha = float(settings.alpha)
    cohort = r.sample()
    updates = r.train(cohort, state["model"], memory=GradientMemory(alpha).memory(), proximal=alpha)
    step = r.release_mean(updates)
    # The share needs no counts of steps, so FedDyn also runs under replace-one, where sizes are not public.
    drift = state["drift"] - (alpha * r.work_stats(cohort).share) * step
    return {"model": state["model"] + step - (1 / alpha) * drift, "drift": drift}


@dataclass(frozen=True)
class GradientMemory:
    """The state that a client keeps: its gradient at its last model, by the first-order condition."""

    alpha: float

    def linear(self, own: Tensor) -> Tensor:
        """Return -g_k."""
        return -own

    def update(self, moved: LocalResult) -> Tensor:
        """Return g_k - alpha (w_k - w_t)."""
        return moved.old - self.alpha * (moved.end - moved.start)

    def memory(self, sources: frozenset[int] = frozenset()) -> StateRule:
        """Return the gradient as a state rule."""
        return StateRule("gradient", update=self.update, linear=self.linear, sources=sources, rule=self)


FACTS = AlgorithmFacts(
    says="Clients keep their gradient memories to themselves; the server's drift is computed from released means.",
    check=keeps_state("feddyn"),
    remembers=True,
)
ALGORITHM = Algorithm("feddyn", FedDyn, init_state, run_round, global_model, FACTS)
