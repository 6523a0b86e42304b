"""Wrappers around any algorithm: averaged models, and Upcycled-FL's free step (Yin et al. 2024, Algorithm 1)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.errors import did_you_mean, invalid
from sightline.mechanisms import Public

AVERAGE = "average"
SAYS_AVERAGE = "Averaged: the model that counts is a mean of the models of all rounds; it is made of what was released."


def read_decay(given: Any) -> float:
    """Return the weight b of the old mean. Raise for a value outside [0, 1)."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        invalid("algorithm.average", given, "is a number in [0, 1)", "e.g. 0.99: about the last 100 rounds")
    return float(given)


def wrap_average(base: Algorithm, decay: float) -> Algorithm:
    """Return the algorithm evaluated by a_t = sum_s b^(t-s) w_s / sum_s b^(t-s) instead of its last model w_t.

    Guarantees: nothing is sent for it, and clients train as before: it is post-processing of released models, carries
    all their releases, and no epsilon changes. With b = 0 it is the last model. Weights add up to 1 in every round, so
    the untrained start does not enter.
    """

    def init(start: Public, clients: range, settings: Any) -> State:
        state = base.init(start, clients, settings)
        if not isinstance(base.models(state, clients), Public):
            law = f"{base.name} has many models, and one is averaged"
            invalid("algorithm.average", decay, law, "remove average")
        return dict(state) | {AVERAGE: start}

    def round_(state: State, r: Round, settings: Any) -> State:
        after = base.round({name: value for name, value in state.items() if name != AVERAGE}, r, settings)
        model = base.models(after, r.clients)
        if not isinstance(model, Public):
            invalid("algorithm.average", decay, f"{base.name} has many models", "remove average")
        # Bias correction as in Adam: in round one the share is 1, so the start gets weight 0.
        share = (1 - decay) / (1 - decay**r.time)
        return dict(after) | {AVERAGE: (1 - share) * state[AVERAGE] + share * model}

    def models(state: State, clients: range) -> Public:
        return state[AVERAGE]

    return replace(base, init=init, round=round_, models=models, says=" ".join(filter(None, (base.says, SAYS_AVERAGE))))


KEYS = ("mu", "lambda", "growth")
SAYS_UPCYCLE = (
    "Upcycled: after each round the server moves the model on by itself, w + u (w - w_before); "
    "nobody sends anything for it and it costs no privacy."
)


@dataclass(frozen=True)
class Upcycle:
    """u_m of the m-th free step: constant, or mu / (mu + lambda m^growth).

    `growth = 0.5` gives the u_m = O(1 / sqrt(m)) under which Corollary 5.8 converges.

    >>> Upcycle.read(0.5).u(3), Upcycle.read({"mu": 1, "lambda": 1, "growth": 0.5}).u(4)
    (0.5, 0.3333333333333333)
    """

    constant: float | None = None
    mu: float = 0.0
    weight: float = 0.0
    growth: float = 0.0

    @classmethod
    def read(cls, given: Any) -> "Upcycle":
        """Read a number, or a table of mu, lambda and optionally growth, from the experiment file."""
        if not isinstance(given, Mapping):
            return cls(constant=_finite_number("algorithm.upcycle", given))
        for key, value in given.items():
            if key not in KEYS:
                invalid(f"algorithm.upcycle.{key}", value, "no such key", did_you_mean(str(key), list(KEYS)))
            _finite_number(f"algorithm.upcycle.{key}", value)
        for key in ("mu", "lambda"):
            if key not in given:
                invalid(f"algorithm.upcycle.{key}", "missing", "u = mu / (mu + lambda)", "or give upcycle = 0.5")
        if not given["mu"] > 0:
            invalid("algorithm.upcycle.mu", given["mu"], "is positive", "or give upcycle = 0 for none")
        return cls(None, float(given["mu"]), float(given["lambda"]), float(given.get("growth", 0.0)))

    def u(self, time: int) -> float:
        """Return the length of the free step after round `time`, in units of the round's own move."""
        if self.constant is not None:
            return self.constant
        return self.mu / (self.mu + self.weight * math.pow(time, self.growth))


def _finite_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        invalid(name, value, "is a number >= 0", "e.g. upcycle = 0.5, or {mu = 0.5, lambda = 0.5}")
    return float(value)


def wrap_upcycle(base: Algorithm, rule: Upcycle) -> Algorithm:
    """Return the algorithm with a free step after each of its rounds.

    w_2m = w_2m-1 + u_m (w_2m-1 - w_2m-2), on every model by which the algorithm is evaluated.

    Guarantees: nothing is sampled, trained or released by the free step; with u = 0 it is the algorithm itself, bit for
    bit.
    """

    def init(start: Public, clients: range, settings: Any) -> State:
        state = base.init(start, clients, settings)
        _model_names(base, state, clients)  # refused before anything is released
        return state

    def round_(state: State, r: Round, settings: Any) -> State:
        after = base.round(state, r, settings)
        u = rule.u(r.time)
        # Skip the arithmetic: it could change bits (0 times infinity), and it would add the sources of the model
        # before.
        if u == 0:
            return after
        return dict(after) | {
            name: after[name] + u * (after[name] - _model_before(state, name))
            for name in _model_names(base, after, r.clients)
        }

    return replace(base, init=init, round=round_, says=" ".join(filter(None, (base.says, SAYS_UPCYCLE))))


def _model_before(state: State, name: str) -> Public:
    """Return a model before the round; a model created by the round (a group's first) came from the common start."""
    return state[name] if name in state else state["start"]


def _model_names(base: Algorithm, state: State, clients: range) -> list[str]:
    """Return the names under which the state holds the algorithm's models. Raise if there are none."""
    found = base.models(state, clients)
    judged = [found] if isinstance(found, Public) else list(found.values())
    # Compared by identity: only vectors that the state itself holds can be moved; a computed mean cannot.
    names = [name for name, value in state.items() if any(value is model for model in judged)]
    if not names:
        law = f"{base.name} has no model of its own to move on"
        invalid("algorithm.upcycle", base.name, law, "remove upcycle")
    return names
