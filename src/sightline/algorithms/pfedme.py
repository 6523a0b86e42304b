"""pFedMe: personal models by Moreau envelopes (T. Dinh et al. 2020, Algorithm 1)."""

from dataclasses import dataclass

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.algorithms.pfedme_local import Moreau
from sightline.config import Experiment
from sightline.errors import invalid, refuse
from sightline.mechanisms import Public


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
                invalid(f"algorithm.{name}", getattr(self, name), "is a positive number")
        if isinstance(self.inner_steps, bool) or not isinstance(self.inner_steps, int) or self.inner_steps < 1:
            invalid("algorithm.inner_steps", self.inner_steps, "is a whole number >= 1", "e.g. 5")


def init_state(start: Public, clients: range, settings: PFedMe) -> State:
    """One global model; a client's personal model is the global one until it takes part."""
    return {"model": start}


def run_round(state: State, r: Round, settings: PFedMe) -> State:
    """Lines 2-10: clients move their copies of w towards their personal models; the server averages the copies."""
    solver = Moreau(settings.penalty, settings.inner_steps, settings.personal_learning_rate)  # lines 4-8
    updates = r.train(r.sample(), state["model"], memory=solver.memory())  # line 9: a subset sends
    return {"model": state["model"] + settings.mixing * r.release_mean(updates)}  # line 10


def current_models(state: State, clients: range) -> Public:
    """The global model: the only one that is published."""
    return state["model"]


def check_experiment(experiment: Experiment) -> None:
    """Refuse DP-SGD: the inner solver is not a sequence of clipped and noised steps."""
    if experiment.privacy.unit == "sample" and experiment.privacy.mechanism == "gaussian":
        law = "pfedme's inner solver is not a sequence of private steps"
        refuse("privacy.unit", "sample", law, 'use unit = "client", or mechanism = "output"')


SAYS = "Clients are judged by personal models that they keep to themselves; the global model is what epsilon is for."

ALGORITHM = Algorithm(
    "pfedme", PFedMe, init_state, run_round, current_models, says=SAYS, check=check_experiment, kept="personal"
)
