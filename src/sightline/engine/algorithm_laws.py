"""The law of an algorithm that somebody else brings: what it computes from releases remembers them.

An algorithm holds public values only, so that nothing it computes costs anything more. But the ledger must hear what a
value was made of: who makes a `Public` by hand forgets its releases, and an observer would be charged too little.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, DryExecution, allow_schedule
from sightline.engine.round import TrainingRound
from sightline.errors import BudgetExhausted
from sightline.ledger import Ledger
from sightline.mechanisms import ClientState, LocalSchedule, ModelChoice, Public, ReleaseContext, ReleaseValues, Updates
from sightline.plugins import ALGORITHM, BrokenLaw, refuse_plugin
from sightline.randomness import EVERYONE

DIMENSION = 4
ROUNDS = 3
MOST_CALLS = 12
"""So many release calls are changed, one after the other."""

_passed: set[tuple[str, ...]] = set()


@dataclass(frozen=True)
class NotedCall:
    """What one release call worked from."""

    first: int
    """The ledger number of its first release."""
    starts: torch.Tensor
    sources: frozenset[int]


class InventedValues(DryExecution):
    """A round of a run in which everybody takes part and every value is made up; that of one call can be another."""

    rehearsal = False

    def __init__(self, sizes: list[int], changed: int | None) -> None:
        super().__init__(sizes, dimension=DIMENSION)
        self._changed = changed
        self.calls: list[NotedCall] = []

    def allow_schedule(self, setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """As in a run."""
        return allow_schedule(setting, wanted, most_steps)

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Numbers that depend on the number of the call alone."""
        members = updates.cohort.members
        starts = torch.stack([updates.starts[n].value for n in members]) if members else torch.zeros(0)
        rng = self._note_call(NotedCall(context.next_id, starts, frozenset(updates.sources)))
        values = {n: torch.from_numpy(rng.standard_normal(DIMENSION)).float() for n in (EVERYONE, *members)}
        return ReleaseValues({n: value + self._shift for n, value in values.items()}, noise_std=1.0)

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """The first model, or the second."""
        starts = torch.stack([one.value for one in ballot.candidates])
        self._note_call(NotedCall(context.next_id, starts, frozenset().union(*(c.sources for c in ballot.candidates))))
        return dict.fromkeys(ballot.choosers.members, int(self._shift) % len(ballot.candidates))

    def _note_call(self, call: NotedCall) -> np.random.Generator:
        self.calls.append(call)
        return np.random.default_rng(len(self.calls))

    @property
    def _shift(self) -> float:
        return 1.0 if len(self.calls) - 1 == self._changed else 0.0


@dataclass(frozen=True)
class Rehearsed:
    """Some rounds of invented values."""

    ledger: Ledger
    calls: list[NotedCall]
    states: list[dict[str, Public]] = field(default_factory=list)

    def releases_of(self, call: int) -> set[int]:
        """The ledger numbers of a call's releases."""
        ends = [one.first for one in self.calls] + [len(self.ledger)]
        return set(range(ends[call], max(ends[call] + 1, ends[call + 1])))

    def remembers(self, sources: frozenset[int], call: int) -> bool:
        """Whether a release of the call is among the sources, or among what they were computed from."""
        wanted, waiting, seen = self.releases_of(call), list(sources), set[int]()
        while waiting:
            number = waiting.pop()
            if number in wanted:
                return True
            if number not in seen:
                seen.add(number)
                waiting += self.ledger[number].inputs
        return False


def check_first_algorithm(setting: BuiltExperiment) -> None:
    """Hold somebody else's algorithm to its law, once for each of its sources and experiments."""
    for plugin in setting.plugins:
        facts = (plugin.name, plugin.source_digest, setting.experiment.model_dump_json())
        if plugin.kind != ALGORITHM or facts in _passed:
            continue
        try:
            check_sources(setting)
        except Exception as error:
            refuse_plugin(ALGORITHM, plugin.name, error)
        _passed.add(facts)


def check_sources(setting: BuiltExperiment, *, rounds: int = ROUNDS) -> None:
    """Raise `BrokenLaw` unless whatever changes with a released value remembers the release.

    Guarantees: of the first rounds, with invented values: when one release has another value, every value of the state
    and every starting point that is then another has one of that call's releases behind it in the ledger.
    """
    rounds = min(rounds, setting.experiment.rounds)
    base, again = (_rehearse(setting, rounds, None) for _ in range(2))
    _check_same(base, again)
    for call in range(min(len(base.calls), MOST_CALLS)):
        other = _rehearse(setting, rounds, call)
        for before, after in zip(base.states, other.states, strict=False):
            for name in before.keys() & after.keys():
                _check_value(base, before[name].value, after[name].value, before[name].sources, call, f"state {name!r}")
        for place, (one, two) in enumerate(zip(base.calls, other.calls, strict=False)):
            _check_value(base, one.starts, two.starts, one.sources, call, f"the start of release call {place + 1}")


def _check_same(base: Rehearsed, again: Rehearsed) -> None:
    for before, after in zip(base.states, again.states, strict=True):
        if any(not torch.equal(before[name].value, after[name].value) for name in before):
            raise BrokenLaw("same releases, same state", "run again on the same releases, its state is another")


def _check_value(
    base: Rehearsed, here: torch.Tensor, there: torch.Tensor, sources: frozenset[int], call: int, what: str
) -> None:
    changed = here.shape != there.shape or not torch.equal(here, there)
    if changed and not base.remembers(sources, call):
        seen = f"{what} depends on release call {call + 1} and does not name it; use `Public`'s + - * or combine_public"
        raise BrokenLaw("what is computed from releases remembers them", seen)


def _rehearse(setting: BuiltExperiment, rounds: int, changed: int | None) -> Rehearsed:
    """The first rounds of the algorithm, as far as the budget goes."""
    ledger = Ledger(participants=setting.participants)
    execution = InventedValues(setting.federation.sizes.tolist(), changed)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(DIMENSION)).float()
    state: Any = setting.algorithm.init(Public(start), setting.clients, setting.settings)
    memories: dict[str, ClientState] = {}
    done = Rehearsed(ledger, execution.calls)
    for time in range(1, rounds + 1):
        r = TrainingRound(setting, ledger, execution, time, memories)
        try:
            state = setting.algorithm.round(_public_state(state), r, setting.settings)
        except BudgetExhausted:
            return done
        memories = r.memories
        state = {name: Public(one.value, ledger.frontier(one.sources)) for name, one in _public_state(state).items()}
        done.states.append(state)
    return done


def _public_state(state: Any) -> dict[str, Public]:
    """The state, when it is what a checkpoint can hold: public vectors by name."""
    if not isinstance(state, dict) or not all(isinstance(n, str) and isinstance(v, Public) for n, v in state.items()):
        raise BrokenLaw("a state is public values by name", f"it is a {type(state).__name__} of other things")
    return state
