"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, Algorithm 1, option II)."""

from dataclasses import dataclass

from torch import Tensor

from sightline.algorithms.contract import (
    PRIVATE_SIZES,
    Algorithm,
    AlgorithmFacts,
    Round,
    State,
    global_model,
    keeps_state,
)
from sightline.config import Experiment
from sightline.errors import refuse
from sightline.mechanisms import LocalResult, Public, StateRule


@dataclass(frozen=True)
class Scaffold:
    """Settings of SCAFFOLD."""

    server_learning_rate: float = 1.0


def init_state(start: Public, clients: range, settings: Scaffold) -> State:
    """Line 1: return a model x and a control variate c = 0; a client's c_i is 0 until it takes part."""
    return {"model": start, "control": 0.0 * start}


def run_round(state: State, r: Round, settings: Scaffold) -> State:
    """Lines 3-17. Only one vector is sent up: the server computes its own control variate from the released mean.

    With D y_i = y_i - x, client i changes c_i by D c_i = -D y_i / (eta K) - k c, where K is the largest number of steps
    of any client and k K their public mean. For equal work that is the paper's option II. The mean of the D c_i is then
    a function of the released mean of the D y_i and of public numbers, and c stays the mean of the c_i.
    """
    control, cohort = state["control"], r.sample()  # lines 3-5
    work = r.work_stats(cohort)
    # Releasing D y_i and D c_i would cost privacy twice. Dividing by each client's own K_i would make the mean of the D
    # c_i no function of the released mean: c then drifts from the mean of the c_i (67 % against 80 % accuracy with
    # stragglers).
    rule = ControlVariate(control.value, work.learning_rate, work.steps, work.most_steps)
    updates = r.train(cohort, state["model"], memory=rule.memory(control.sources))  # lines 6-14
    step = r.release_mean(updates)  # line 16, mean of the D y_i
    change = -1.0 / (work.learning_rate * work.most_steps) * step - work.steps / work.most_steps * control
    return {
        "model": state["model"] + settings.server_learning_rate * step,  # line 17
        "control": control + work.share * change,  # line 17, |S| / N times the mean of the D c_i
    }


@dataclass(frozen=True, eq=False)
class ControlVariate:
    """The state that a client keeps: c_i, which turns its gradient g into g - c_i + c (line 10)."""

    control: Tensor
    learning_rate: float
    steps: float
    most_steps: float

    def linear(self, own: Tensor) -> Tensor:
        """Return c - c_i."""
        return self.control - own

    def update(self, moved: LocalResult) -> Tensor:
        """Line 12, option II: return c_i - c + (x - y_i) / (K eta)."""
        # K counts effective steps, so this is a mean of gradients under momentum too.
        gradient = (moved.start - moved.end) / (self.learning_rate * self.most_steps)
        return moved.old - self.steps / self.most_steps * self.control + gradient

    def memory(self, sources: frozenset[int] = frozenset()) -> StateRule:
        """Return the control variate as a state rule."""
        return StateRule("control", update=self.update, linear=self.linear, sources=sources, rule=self)


def check_experiment(experiment: Experiment) -> None:
    """Raise `Refused` for steps without a mean gradient, and for step counts that follow from private sizes."""
    keeps_state("scaffold")(experiment)
    if experiment.local.adaptive:
        reason = "a control variate is a mean of gradients, but Adam's steps are not gradients"
        refuse("local.optimizer", experiment.local.optimizer, reason, 'use optimizer = "sgd" or "momentum"')
    privacy = experiment.privacy
    if privacy.unit == "client" and privacy.adjacency == "replace" and experiment.local.steps is None:
        reason = (
            "scaffold's control variates are scaled by the steps of the largest and of the mean client: "
            + PRIVATE_SIZES
        )
        refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or give local.steps')


FACTS = AlgorithmFacts(
    says="Clients keep control variates to themselves; the server's is computed from released means.",
    check=check_experiment,
    remembers=True,
)
ALGORITHM = Algorithm("scaffold", Scaffold, init_state, run_round, global_model, FACTS)
