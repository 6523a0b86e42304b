"""Calls whose order released values decide: a site approves how many of each kind, priced as the whole list.

The proof is in docs/accounting-proofs.md, "The order may adapt".
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sightline.algorithms.clustered.mixture import candidate_counts
from sightline.config import Experiment
from sightline.errors import InvalidInput, invalid, refuse
from sightline.events import Event, Gaussian, Poisson, Repeat, inner_events
from sightline.ledger import Release
from sightline.runtimes.remote.message import CHOOSE, TERMS, WireMessage, comes_in_any_order
from sightline.runtimes.site.planned_calls import PlannedCall
from sightline.topology import cluster_count, read_candidates


@dataclass(frozen=True)
class CallsOfKind:
    """At most `times` calls of one kind, whose order released values decide.

    Guarantees: the calls of a kind have the same events, whatever their public vectors and the numbers in `most`.
    """

    call: PlannedCall
    """The call at its limits; its round and use mean nothing."""
    times: int
    most: Mapping[str, float]
    """Numbers that a message may lower: `candidates`, `learning_rate`, `steps`. All others are as in `call`."""

    def read_call(self, round: int, use: int, terms: Mapping[str, Any], candidates: int) -> PlannedCall:
        """Return the call that a message asks for; raise InvalidInput if it is not of this kind."""
        if self.call.kind == CHOOSE and not 0 < candidates <= self.most["candidates"]:
            invalid("candidates", candidates, f"approved is at most {self.most['candidates']:g}")
        planned = self.call.terms
        for name in sorted({*planned, *terms}):
            # No default stands for a term that is missing, and none is null: both would leave the approved list.
            value, limit = terms.get(name), self.most.get(name) if name != "candidates" else None
            if limit is None:
                fits = name in planned and (type(value), value) == (type(planned[name]), planned[name])
            else:
                fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= limit
            if not fits:
                approved = planned.get(name, "no such term") if limit is None else f"at most {limit:g}"
                invalid(name, value, f"approved is {approved}")
        return replace(self.call, round=round, use=use, terms=dict(terms), candidates=candidates)

    def describe(self) -> str:
        """Return the number of calls and their limits in words."""
        s = "" if self.times == 1 else "s"
        if self.call.kind == CHOOSE:
            return f"{self.times} private choice{s} among at most {self.most['candidates']:g} models"
        what = " on all examples at once" if self.call.terms.get("whole_batch") else ""
        rate = f", learning rate at most {self.most['learning_rate']:g}" if "learning_rate" in self.most else ""
        return f"{self.times} training{s}{what}, noised here, at most {self.call.steps} local steps each{rate}"


def find_kind(
    kinds: Sequence[CallsOfKind], message: WireMessage, name: Any, at: tuple[int, int, int]
) -> tuple[PlannedCall, int]:
    """Return the call that a message asks for and the number of its kind; raise InvalidInput if it is of none."""
    reason, array = "no such call is approved", message.arrays.get("candidates")
    candidates = len(array) if name == CHOOSE and array is not None and array.ndim else 0
    for number, kind in enumerate(kinds):
        if (kind.call.kind, kind.call.part) == (name, at[2]):
            try:
                return kind.read_call(*at[:2], message.fields.get(TERMS, {}), candidates), number
            except InvalidInput as error:
                reason = str(error)
    invalid("call", name, f"is not in the plan of the approved experiment: {reason}")


ORDER = "released values decide on the order of the calls"
ANY_ORDER = {"gaussian", "poisson", "fixed_cohort", "without_replacement", "segment", "replaced_segment"}
ANY_ORDER |= {"exponential", "split", "repeat", "product"}
"""Kinds of events with fresh noise and draws in every call: their bound holds in any order and with some left out."""


def _refuse_fixed_order(experiment: Experiment, call: PlannedCall, claims: Sequence[Release]) -> None:
    """Raise Refused for a call whose bound does not hold if released values decide which call comes next."""
    if call.rule is not None:
        refuse("algorithm", experiment.algorithm.name, f"{ORDER}, and its clients keep state", "choose another")
    if experiment.privacy.noise == "correlated" or any(release.joint for release in claims):
        reason = f"{ORDER}, and correlated or scheduled releases have a bound in a fixed order only"
        refuse("privacy.noise", experiment.privacy.noise, reason, 'use noise = "independent"')
    for release in claims:
        _refuse_event(release.event)


def _refuse_event(event: Event) -> None:
    if event.kind not in ANY_ORDER:
        reason = f"{ORDER}, and no bound is known for it then"
        refuse("event", event.kind, reason, 'use where = "client" with mechanism = "gaussian"')
    for inner in inner_events(event):
        _refuse_event(inner)


def gather_kinds(
    calls: Sequence[PlannedCall], claims: Sequence[Sequence[Release]], experiment: Experiment
) -> list[CallsOfKind]:
    """Return the planned calls as kinds with their numbers of calls, [] if their order is fixed.

    Guarantees: calls of one kind have equal events. Raise Refused for calls whose bound holds in a fixed order only.
    """
    kinds: dict[str, list[tuple[PlannedCall, dict[str, float]]]] = {}
    for call, some in zip(calls, claims, strict=True) if comes_in_any_order(experiment) else ():
        _refuse_fixed_order(experiment, call, some)
        events = tuple(release.event for release in some)
        most = _free_numbers(call, events, experiment)
        fixed = {name: value for name, value in call.terms.items() if name not in most}
        key = repr((dataclasses.astuple(replace(call, round=0, use=0, steps=0, terms=fixed)), events))
        kinds.setdefault(key, []).append((call, most))
    result = []
    for same in kinds.values():
        (call, first), most = same[0], {name: max(most[name] for _, most in same) for name in same[0][1]}
        # A call that does not name its learning rate has the experiment's.
        always = {name: most[name] for name in first if all(name in call.terms for call, _ in same)}
        terms = {name: value for name, value in call.terms.items() if name not in most} | always
        candidates = int(most.get("candidates", 0))
        steps = max(candidates, *(call.steps for call, _ in same))
        call = replace(call, round=0, use=0, terms=terms, candidates=candidates, steps=steps)
        result.append(CallsOfKind(call, len(same), most))
    return result


def _free_numbers(call: PlannedCall, events: tuple[Event, ...], experiment: Experiment) -> dict[str, float]:
    """Return the numbers that a message may lower without another event, with their limits."""
    if call.kind == CHOOSE:
        # Found clusters may be more than the plan's; the law of a choice depends on its epsilon only.
        settings, clients = experiment.topology.settings, experiment.data.clients
        found = max(read_candidates(settings, clients) or candidate_counts(clients))
        return {"candidates": max(call.candidates, cluster_count(settings, clients) or found)}
    result: dict[str, float] = {}
    # The noise of clipped updates and clipped gradients does not depend on the step size; that of segments does.
    clipped = (experiment.privacy.mechanism, experiment.privacy.sensitivity) == ("gaussian", None)
    if clipped and all(_is_clipped_sum(event) for event in events):
        result["learning_rate"] = call.terms.get("learning_rate", experiment.local.learning_rate)
        # An update is clipped as a whole, after any number of steps; private steps are charged one by one.
        if "steps" in call.terms and all(isinstance(event, Gaussian) for event in events):
            result["steps"] = call.terms["steps"]
    return result


def _is_clipped_sum(event: Event) -> bool:
    return isinstance(event, Gaussian | Poisson | Repeat) and all(map(_is_clipped_sum, inner_events(event)))
