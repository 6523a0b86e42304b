"""Averaged models: those of all rounds, later ones weighing more (Polyak and Juditsky 1992, with forgetting)."""

from dataclasses import replace
from typing import Any

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.errors import invalid
from sightline.mechanisms import Public

AVERAGE = "average"
SAYS = "Averaged: the model that counts is a mean of the models of all rounds; it is made of what was released."


def read_decay(given: Any) -> float:
    """How much of the old mean is kept in a round."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        invalid("algorithm.average", given, "is a number in [0, 1)", "e.g. 0.99: about the last 100 rounds")
    return float(given)


def wrap_average(base: Algorithm, decay: float) -> Algorithm:
    r"""The algorithm, judged by a_t = sum_s b^(t-s) w_s / sum_s b^(t-s) in place of its last model w_t.

    Guarantees: nobody sends anything for it, and clients train on as before: it is post-processing of released models,
    carries all their releases, and no epsilon changes. With b = 0 it is the last model. Weights add up to 1 in every
    round, so that the start, which nobody trained, does not enter.
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
        share = (1 - decay) / (1 - decay**r.time)
        return dict(after) | {AVERAGE: (1 - share) * state[AVERAGE] + share * model}

    def models(state: State, clients: range) -> Public:
        return state[AVERAGE]

    return replace(base, init=init, round=round_, models=models, says=" ".join(filter(None, (base.says, SAYS))))
