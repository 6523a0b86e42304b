"""Wrappers around any algorithm: averaged models, released numbers, Upcycled-FL's free step (Yin et al. 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.algorithms.contract import Algorithm, Round, State, with_facts
from sightline.errors import did_you_mean, invalid
from sightline.mechanisms import Public

AVERAGE = "average"
SAYS_AVERAGE = "Averaged: the model that counts is a mean of the models of all rounds; it is made of what was released."


def read_decay(given: Any) -> float:
    """Return the weight b of the old mean. Raise for a value outside [0, 1)."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        invalid("algorithm.average", given, "must be a number in [0, 1)", "e.g. 0.99: about the last 100 rounds")
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
            reason = f"{base.name} has many models, but only a single model can be averaged"
            invalid("algorithm.average", decay, reason, "remove average")
        return dict(state) | {AVERAGE: start}

    def round_(state: State, r: Round, settings: Any) -> State:
        after = base.round({name: value for name, value in state.items() if name != AVERAGE}, r, settings)
        model = base.models(after, r.clients)
        if not isinstance(model, Public):
            invalid(
                "algorithm.average",
                decay,
                f"{base.name} has many models, but only a single model can be averaged",
                "remove average",
            )
        # Bias correction as in Adam: in round one the share is 1, so the start gets weight 0.
        share = (1 - decay) / (1 - decay**r.time)
        return dict(after) | {AVERAGE: (1 - share) * state[AVERAGE] + share * model}

    def models(state: State, clients: range) -> Public:
        return state[AVERAGE]

    told = " ".join(filter(None, (base.facts.says, SAYS_AVERAGE)))
    return with_facts(replace(base, init=init, round=round_, models=models), says=told)


RELEASED = "released/"


def wrap_released(base: Algorithm) -> Algorithm:
    """Return the algorithm with the mechanism's released numbers in its state, so that a checkpoint keeps them.

    Guarantees: the numbers are public, and what they enter names their releases. Training does not change.
    """

    def own(state: State) -> State:
        return {name: value for name, value in state.items() if not name.startswith(RELEASED)}

    def round_(state: State, r: Round, settings: Any) -> State:
        r.control.released = {n.removeprefix(RELEASED): v for n, v in state.items() if n.startswith(RELEASED)}
        after = base.round(own(state), r, settings)
        return dict(after) | {f"{RELEASED}{channel}": value for channel, value in r.control.released.items()}

    facts = base.facts
    wrapped = replace(base, round=round_, models=lambda state, clients: base.models(own(state), clients))
    return with_facts(
        wrapped, clusters=lambda state: facts.clusters(own(state)), finished=lambda state: facts.finished(own(state))
    )


KEYS = ("mu", "lambda", "growth")
SAYS_UPCYCLE = (
    "Upcycled: after each round the server moves the model on by itself, w + u (w - w_before); "
    "no client sends anything for it, and it costs no privacy."
)


@dataclass(frozen=True)
class Upcycle:
    """u_m of the m-th free step: given, or mu / (mu + lambda_m); lambda_m is a list, or lambda m^growth.

    `growth = 0.5` gives the u_m = O(1 / sqrt(m)) under which Corollary 5.8 converges. The last value of a list holds
    for all later steps.

    >>> Upcycle.read(0.5).u(3), Upcycle.read({"mu": 1, "lambda": 1, "growth": 0.5}).u(4)
    (0.5, 0.3333333333333333)
    >>> Upcycle.read([0.5, 0.25]).u(9), Upcycle.read({"mu": 1, "lambda": [1, 3]}).u(2)
    (0.25, 0.25)
    """

    given: tuple[float, ...] = ()
    mu: float = 0.0
    weights: tuple[float, ...] = ()
    growth: float = 0.0

    @classmethod
    def read(cls, given: Any) -> "Upcycle":
        """Read numbers u_m, or a table of mu, lambda and optionally growth, from the experiment file."""
        if not isinstance(given, Mapping):
            return cls(given=_finite_numbers("algorithm.upcycle", given))
        for key, value in given.items():
            if key not in KEYS:
                invalid(f"algorithm.upcycle.{key}", value, "no such key", did_you_mean(str(key), list(KEYS)))
        mu, growth = (_finite_number(f"algorithm.upcycle.{key}", given.get(key, 0.0)) for key in ("mu", "growth"))
        for key in ("mu", "lambda"):
            if key not in given:
                invalid(f"algorithm.upcycle.{key}", "missing", "u = mu / (mu + lambda)", "or give upcycle = 0.5")
        if not mu > 0:
            invalid("algorithm.upcycle.mu", given["mu"], "must be positive", "or give upcycle = 0 for none")
        weights = _finite_numbers("algorithm.upcycle.lambda", given["lambda"])
        if growth and len(weights) > 1:
            invalid(
                "algorithm.upcycle.growth",
                growth,
                "growth extends a single lambda, but lambda is a list",
                "omit growth",
            )
        return cls((), mu, weights, growth)

    def u(self, time: int) -> float:
        """Return the length of the free step after round `time`, in units of the round's own move."""
        numbers = self.given or self.weights
        number = numbers[min(time, len(numbers)) - 1]
        return number if self.given else self.mu / (self.mu + number * math.pow(time, self.growth))


def _finite_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        invalid(name, value, "must be a number >= 0", "e.g. upcycle = 0.5, or {mu = 0.5, lambda = 0.5}")
    return float(value)


def _finite_numbers(name: str, value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, list | tuple) and value else [value]
    return tuple(_finite_number(name, number) for number in values)


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

    told = " ".join(filter(None, (base.facts.says, SAYS_UPCYCLE)))
    return with_facts(replace(base, init=init, round=round_), says=told)


def _model_before(state: State, name: str) -> Public:
    """Return a model before the round; a model created by the round (a group's first) came from the common start."""
    return state[name] if name in state else state["start"]


def _model_names(base: Algorithm, state: State, clients: range) -> list[str]:
    """Return the names under which the state holds the algorithm's models. Raise if there are none."""
    result = base.models(state, clients)
    judged = [result] if isinstance(result, Public) else list(result.values())
    # Compared by identity: only vectors that the state itself holds can be moved; a computed mean cannot.
    names = [name for name, value in state.items() if any(value is model for model in judged)]
    if not names:
        reason = f"{base.name} has no single model to update"
        invalid("algorithm.upcycle", base.name, reason, "remove upcycle")
    return names
