"""Checks for plugin algorithms: values keep their sources, and claims do not depend on released values.

An algorithm holds public values only, so its computations cost nothing more. But the ledger must know what a value was
computed from: an algorithm that makes a `Public` by hand loses its releases, and an observer would be charged too
little. And a bound holds for a list of events that is fixed in advance: an algorithm that releases more or less, about
other subjects or with other noise, depending on earlier releases, has no such list.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, DryExecution, allow_schedule
from sightline.engine.projection import check_projection
from sightline.engine.release_gate import FollowedPlan, LeftPlan, StoppedByGate, facts_of
from sightline.engine.round import TrainingRound
from sightline.errors import BudgetExhausted
from sightline.ledger import Ledger
from sightline.mechanisms import (
    ClientState,
    LocalSchedule,
    ModelChoice,
    Public,
    ReleaseContext,
    ReleaseValues,
    Updates,
    trim_sources,
)
from sightline.plugins import ALGORITHM, BrokenLaw, refuse_plugin
from sightline.randomness import EVERYONE

DIMENSION = 4
ROUNDS = 3
MOST_CALLS = 12
"""Number of release calls whose value is changed, one at a time."""
# Zero, negative, tiny and huge values: thresholds on released values are likely to lie between two of them.
SCALES = (0.0, -1.0, 1e-3, 1e3)
"""Factors by which all invented values are multiplied as well."""

_passed: set[tuple[str, ...]] = set()


@dataclass(frozen=True)
class NotedCall:
    """The inputs of one release call."""

    first: int
    """The ledger number of its first release."""
    starts: torch.Tensor
    sources: frozenset[int]


class InventedValues(DryExecution):
    """An execution with full participation and invented values; the value of one call can be changed."""

    rehearsal = False

    def __init__(self, sizes: list[int], changed: int | None, scale: float = 1.0) -> None:
        super().__init__(sizes, dimension=DIMENSION)
        self._changed, self._scale = changed, scale
        self.calls: list[NotedCall] = []

    @override
    def allow_schedule(self, built: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        return allow_schedule(built, wanted, most_steps)

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Return numbers that depend on the number of the call alone."""
        members = updates.cohort.members
        starts = torch.stack([updates.starts[n].value for n in members]) if members else torch.zeros(0)
        rng = self._note_call(NotedCall(context.next_id, starts, frozenset(updates.sources)))
        values = {n: torch.from_numpy(rng.standard_normal(DIMENSION)).float() for n in (EVERYONE, *members)}
        return ReleaseValues({n: self._scale * value + self._shift for n, value in values.items()}, noise_std=1.0)

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return the first model, or the second one if values are changed."""
        starts = torch.stack([model.value for model in ballot.candidates])
        self._note_call(NotedCall(context.next_id, starts, frozenset().union(*(c.sources for c in ballot.candidates))))
        other = int(self._shift) + int(self._scale != 1.0)
        return dict.fromkeys(ballot.choosers.members, other % len(ballot.candidates))

    def _note_call(self, call: NotedCall) -> np.random.Generator:
        self.calls.append(call)
        return np.random.default_rng(len(self.calls))

    @property
    def _shift(self) -> float:
        return 1.0 if len(self.calls) - 1 == self._changed else 0.0


@dataclass(frozen=True)
class Rehearsed:
    """Some rounds with invented values."""

    ledger: Ledger
    calls: list[NotedCall]
    states: list[dict[str, Public]] = field(default_factory=list)

    def releases_of(self, call: int) -> set[int]:
        """Return the ledger numbers of a call's releases."""
        ends = [call.first for call in self.calls] + [len(self.ledger)]
        return set(range(ends[call], max(ends[call] + 1, ends[call + 1])))

    def remembers(self, sources: frozenset[int], call: int) -> bool:
        """Return whether a release of the call is among the sources or their ancestors."""
        wanted, waiting, seen = self.releases_of(call), list(sources), set[int]()
        while waiting:
            number = waiting.pop()
            if number in wanted:
                return True
            if number not in seen:
                seen.add(number)
                waiting += self.ledger[number].inputs
        return False


def check_first_algorithm(built: BuiltExperiment, make_plan: Callable[[], FollowedPlan]) -> None:
    """Check a plugin algorithm once for each of its sources and experiments. Raise `Refused` if it fails.

    Code without a file has no digest that would show a change, so it is checked every time.
    """
    for plugin in built.plugins:
        facts = (plugin.name, plugin.source_digest, built.experiment.model_dump_json())
        if plugin.kind != ALGORITHM or facts in _passed:
            continue
        try:
            check_sources(built, make_plan())
            check_projection(built)
        except Exception as error:
            refuse_plugin(ALGORITHM, plugin.name, error)
        if plugin.source_digest != "unknown":
            _passed.add(facts)


def check_sources(built: BuiltExperiment, plan: FollowedPlan | None = None, *, rounds: int = ROUNDS) -> None:
    """Raise `BrokenLaw` unless every value that changes with a release names it, and no claim changes.

    Guarantees, for the first rounds with invented values: if one release has another value, every state value and
    starting point that changes has one of that call's releases behind it in the ledger. Then, and if all values are
    larger, smaller, negative or zero, the same events are claimed about the same subjects for the same audience in
    every round, and none that the `plan` does not have.
    """
    rounds = min(rounds, built.experiment.rounds)
    base, again = (_rehearse(built, rounds, None, plan=plan) for _ in range(2))
    # Own randomness or hidden state would make the comparisons below meaningless.
    _check_same(base, again)
    for scale in SCALES:
        _check_claims(base, _rehearse(built, rounds, None, scale=scale), f"all released values are {scale:g} times")
    for call in range(min(len(base.calls), MOST_CALLS)):
        other = _rehearse(built, rounds, call)
        _check_claims(base, other, f"release call {call + 1} has another value than")
        for before, after in zip(base.states, other.states, strict=False):
            for name in before.keys() & after.keys():
                _check_value(base, before[name].value, after[name].value, before[name].sources, call, f"state {name!r}")
        for index, (here, there) in enumerate(zip(base.calls, other.calls, strict=False)):
            what = f"the start of release call {index + 1}"
            _check_value(base, here.starts, there.starts, here.sources, call, what)


def _check_same(base: Rehearsed, again: Rehearsed) -> None:
    for before, after in zip(base.states, again.states, strict=True):
        if any(not torch.equal(before[name].value, after[name].value) for name in before):
            raise BrokenLaw(
                "the same releases give the same state", "a second run on the same releases gives another state"
            )


def _check_claims(base: Rehearsed, other: Rehearsed, what: str) -> None:
    upto = min(len(base.states), len(other.states))
    for time in range(1, upto + 1):
        here, there = (_claims_at(run.ledger, time) for run in (base, other))
        if here != there:
            claim = next(iter((here - there) or (there - here)))
            seen = f"round {time} claims {claim[3]} {here[claim]} times, but {there[claim]} times when {what} before"
            raise BrokenLaw("claims do not follow released values", seen)


def _claims_at(ledger: Ledger, time: int) -> Counter[tuple[Any, ...]]:
    """Return the claims of a round: how often each subject is charged with what."""
    rows = [release for release in ledger if release.time == time]
    return Counter((subject, *facts_of(release)) for release in rows for subject in release.subjects)


def _check_value(
    base: Rehearsed, here: torch.Tensor, there: torch.Tensor, sources: frozenset[int], call: int, what: str
) -> None:
    changed = here.shape != there.shape or not torch.equal(here, there)
    if changed and not base.remembers(sources, call):
        seen = f"{what} depends on release call {call + 1} and does not name it; use `Public`'s + - * or combine_public"
        raise BrokenLaw("values computed from releases keep their sources", seen)


def _rehearse(
    built: BuiltExperiment, rounds: int, changed: int | None, *, scale: float = 1.0, plan: FollowedPlan | None = None
) -> Rehearsed:
    """Run the first rounds of the algorithm, as far as the budget goes."""
    ledger = Ledger(participants=built.participants)
    execution = InventedValues(built.federation.sizes.tolist(), changed, scale)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(DIMENSION)).float()
    state: Any = built.algorithm.init(Public(start), built.clients, built.settings)
    memories: dict[str, ClientState] = {}
    done = Rehearsed(ledger, execution.calls)
    for time in range(1, rounds + 1):
        try:
            r = TrainingRound(built, ledger, execution, time, memories, plan=plan)
            state = built.algorithm.round(_public_state(state), r, built.settings)
        except StoppedByGate:
            return done
        except BudgetExhausted as error:
            seen = f"it is raised in round {time} ({error}); end a run with `finished`, which charges the whole plan"
            raise BrokenLaw("only the budget raises BudgetExhausted", seen) from None
        except LeftPlan as error:
            raise BrokenLaw("a run claims only what its plan claims", str(error)) from None
        memories = r.memories
        state = trim_sources(_public_state(state), ledger)
        done.states.append(state)
    return done


def _public_state(state: Any) -> dict[str, Public]:
    """Return the state. Raise `BrokenLaw` unless it is public vectors by name, which a checkpoint can hold."""
    if not isinstance(state, dict) or not all(isinstance(n, str) and isinstance(v, Public) for n, v in state.items()):
        raise BrokenLaw(
            "a state maps names to public values",
            f"it is a {type(state).__name__} with other contents; return a dict of name -> Public",
        )
    return state
