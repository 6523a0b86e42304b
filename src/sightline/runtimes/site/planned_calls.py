"""The plan of all calls that an experiment makes to one site, recorded by a dry run before any message arrives."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from sightline.algorithms import RULES
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import AbsentClients, Compute, DryExecution, eligible_members
from sightline.engine.round import walk_rounds
from sightline.errors import invalid, refuse
from sightline.ledger import Ledger
from sightline.mechanisms import (
    CohortSampler,
    ModelChoice,
    ReleaseContext,
    ReleaseValues,
    Updates,
)
from sightline.mechanisms.convex_solver import most_iterations
from sightline.mechanisms.registry import solves_exactly
from sightline.runtimes.remote.message import CHANNEL, CHOOSE, LEAVING, PLAN, Arrays, NodeTask, call_kind, own_tensor
from sightline.topology import Channel
from sightline.training.call import (
    Block,
    CallId,
    CallKind,
    LocalTask,
    PrivateSteps,
    StateRule,
    TrainingCall,
)

FEWEST = 1e-10
"""Below this gradient norm rounding decides whether a solver stops, so experiments at sites may not ask for less."""
LARGEST_NUMBER = 1e6
"""Upper limit for the public numbers of a rule."""


@dataclass(frozen=True)
class PlannedCall:
    """One planned question of an approved experiment, without the public vectors, which arrive with the message."""

    round: int
    use: int
    part: int
    kind: str
    channel: Mapping[str, Any]
    line: int
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the local task."""
    term_vectors: Sequence[str] = ()
    rule: str | None = None
    """Name of the rule for the client state."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule_vectors: Sequence[str] = ()
    rule_numbers: Sequence[str] = ()
    """Numbers of the rule that follow from the sizes of all sites: they arrive with the message, as public numbers."""
    plan: Mapping[str, Any] | None = None
    candidates: int = 0
    epsilon: float | None = None
    steps: int = 0
    """Most local steps that this site makes to answer."""

    @property
    def position(self) -> tuple[int, int]:
        """Return the position in the order of calls; a site is asked once per training call, for one part of it."""
        return self.round, self.use

    def vectors_of(self, arrays: Arrays, *, dimension: int, largest: float) -> dict[str, Tensor]:
        """Return the public vectors that this call needs, by name; nothing else of the message is read.

        Guarantees: each has the model's size and type, is finite and lies in the public ball of radius `largest`.
        """
        rows: dict[str, tuple[int, ...]] = {"start": (dimension,)}
        if self.kind == CHOOSE:
            rows = {"candidates": (self.candidates, dimension)}
        rows |= {f"terms/{name}": (dimension,) for name in self.term_vectors}
        rows |= {f"rule/{name}": (dimension,) for name in self.rule_vectors}
        rows |= {f"rule/{name}": () for name in self.rule_numbers}
        return {name: _checked_vector(name, arrays.get(name), shape, largest) for name, shape in rows.items()}

    def task_of(self, vectors: Mapping[str, Tensor], client: int) -> NodeTask:
        """Return the task, built from the site's own copy of the plan and the public vectors of the message."""
        terms = {name: vectors[f"terms/{name}"] for name in self.term_vectors}
        memory = None
        if self.rule is not None:
            rule: dict[str, Any] = {name: vectors[f"rule/{name}"] for name in self.rule_vectors}
            rule |= {name: float(vectors[f"rule/{name}"]) for name in self.rule_numbers}
            memory = RULES[self.rule](**{**self.settings, **rule}).memory()
        call = TrainingCall(
            call_kind(self.kind),
            (client,),
            vectors["start"] if "start" in vectors else vectors["candidates"][0],
            CallId(self.round, self.use, self.part),
            LocalTask(**{**self.terms, **terms}),
            candidates=vectors.get("candidates"),
        )
        channel = Channel(members=(client,), audience=frozenset({"public"}), **self.channel)
        return NodeTask(self.kind, call, channel, memory, plan=self.plan, epsilon=self.epsilon or 0.0, line=self.line)

    def blank_vectors(self, dimension: int) -> dict[str, Tensor]:
        """Return zero vectors in place of those that will arrive: the cost of a call does not depend on them."""
        names = [f"terms/{name}" for name in self.term_vectors] + [f"rule/{name}" for name in self.rule_vectors]
        result = {name: torch.zeros(dimension) for name in ("start", *names)}
        result |= {f"rule/{name}": torch.ones(()) for name in self.rule_numbers}
        return result | {"candidates": torch.zeros(max(1, self.candidates), dimension)}


def _checked_vector(name: str, array: Any, shape: tuple[int, ...], largest: float) -> Tensor:
    if array is None or array.shape != shape or array.dtype not in (np.float32, np.float64):
        looks = "missing" if array is None else f"{array.dtype} {array.shape}"
        invalid(name, looks, f"{shape} numbers are needed here")
    if not shape:
        if not 0 < float(array) <= LARGEST_NUMBER:
            invalid(name, float(array), f"is a positive number of at most {LARGEST_NUMBER:g}")
        return own_tensor(array)
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)  # what models compute in: another type would fail in the middle
    norm = float(np.sqrt(np.max(np.sum(np.square(array, dtype=np.float64), axis=-1))))
    if not (math.isfinite(norm) and norm <= largest):
        invalid(name, f"norm {norm:.3g}", f"this site accepts public vectors of norm at most {largest:g}")
    if name == "terms/mask" and not np.isin(array, (0, 1)).all():
        invalid(name, "other numbers", "a mask holds only zeros and ones")
    return own_tensor(array)


class _Asked(Exception):
    """Raised when the mechanism has asked its clients: a plan needs to know nothing more."""

    def __init__(self, kind: str, plans: Sequence[PrivateSteps] = ()) -> None:
        self.kind, self.plans = kind, plans


class ListeningClients(AbsentClients):
    """Clients that record what they are asked and never answer."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes, real_nodes=True)
        self.nodes = ListeningNodes()

    @override
    def run(self, call: TrainingCall) -> Iterator[Block]:
        # Training that is handed over without noise; nothing else is asked of a site.
        if call.kind in (CallKind.TRAIN, CallKind.DP_SGD, CallKind.GRADIENT_SUMS):
            raise _Asked(call.kind.value, call.plans)
        return super().run(call)


class ListeningNodes:
    """Nodes that record what members are asked to do by themselves."""

    steadfast = False

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> NoReturn:
        """Record the members' own part of the mechanism."""
        raise _Asked(LEAVING)

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> NoReturn:
        """Record a private choice."""
        raise _Asked(CHOOSE)


class ListeningExecution(DryExecution):
    """Dry run in which every member is always drawn, and which records every call that reaches one client."""

    def __init__(self, sizes: Sequence[int], client: int) -> None:
        super().__init__(sizes, real_nodes=True)
        self.worker = ListeningClients(sizes)
        self.client, self.calls = client, list[PlannedCall]()

    @override
    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        # A site may be drawn in any round in which it is eligible.
        return eligible_members(sampler, channel, time)

    @override
    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        if self.client in updates.cohort.members:
            try:
                compute(updates, context)
            except _Asked as asked:
                self._note_training(asked, updates, context)
        return super().compute_values(updates, context, compute)

    @override
    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        if self.client in ballot.choosers.members:
            at = CallId(context.time, context.use)
            where = (at.round, at.use, at.part, CHOOSE, _facts_of(context), context.line)
            candidates, epsilon = len(ballot.candidates), float(ballot.epsilon)
            self.calls.append(PlannedCall(*where, candidates=candidates, epsilon=epsilon))
        return super().collect_choices(ballot, context)

    def _note_training(self, asked: _Asked, updates: Updates, context: ReleaseContext) -> None:
        index = updates.cohort.members.index(self.client)
        terms, vectors = _numbers_apart(updates.task.select_clients(index).named_fields())
        rule, settings, rule_vectors = _rule_of(None if updates.recall is None else updates.recall.memory)
        plan = {name: _plain(getattr(asked.plans[index], name)) for name in PLAN} if asked.plans else None
        where = (updates.at.round, updates.at.use, updates.at.part, asked.kind, _facts_of(context), context.line)
        self.calls.append(PlannedCall(*where, terms, vectors, rule, settings, rule_vectors, plan=plan))


def _facts_of(context: ReleaseContext) -> dict[str, Any]:
    return {name: _plain(getattr(context.channel, name)) for name in CHANNEL}


def _rule_of(memory: StateRule | None) -> tuple[str | None, dict[str, Any], tuple[str, ...]]:
    if memory is None:
        return None, {}, ()
    rule: Any = memory.rule
    if rule is None or type(rule).__name__ not in RULES:
        reason = "sites do not know the rule for the state that its clients keep"
        refuse("algorithm", memory.name, reason, "choose another algorithm")
    fields = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return type(rule).__name__, *_numbers_apart(fields)


def _numbers_apart(fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    numbers = {name: _plain(value) for name, value in fields.items() if not isinstance(value, Tensor)}
    return numbers, tuple(name for name, value in fields.items() if isinstance(value, Tensor))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def record_calls(built: BuiltExperiment, client: int) -> list[PlannedCall]:
    """Return every call that reaches the client if it is drawn every time, in order.

    Numbers of a state rule may follow from the sizes of other sites, which this site does not know: they arrive with
    the messages. If anything else depends on those sizes, raise Refused, since there is no fixed plan.
    """
    # Plan twice with different sizes elsewhere: whatever differs follows from the sizes of other sites.
    own, other = (_listen(built, client, sizes) for sizes in _sizes_two_ways(built, client))
    if [replace(call, settings={}) for call in own] != [replace(call, settings={}) for call in other]:
        reason = "what it asks of this site depends on how much data other sites have"
        refuse("algorithm", built.experiment.algorithm.name, reason, "give local.steps in place of epochs")
    result = []
    for call, also in zip(own, other, strict=True):
        free = tuple(name for name, value in call.settings.items() if value != also.settings[name])
        settings = {name: value for name, value in call.settings.items() if name not in free}
        call = replace(call, settings=settings, rule_numbers=free)
        result.append(replace(call, steps=_steps_of(built, call, client)))
    return _in_order(result, built)


def _sizes_two_ways(built: BuiltExperiment, client: int) -> tuple[list[int], list[int]]:
    """Return the sizes as they are here, and the same with other sizes elsewhere."""
    sizes = built.federation.sizes.tolist()
    return sizes, [size if n == client else 3 * size + 1000 for n, size in enumerate(sizes)]


def _listen(built: BuiltExperiment, client: int, sizes: list[int]) -> list[PlannedCall]:
    ledger = Ledger(participants=built.participants)
    execution = ListeningExecution(sizes, client)
    sized = replace(built, federation=_SizedFederation(built.federation, sizes))  # type: ignore[arg-type]
    walk_rounds(sized, ledger, execution, built.experiment.rounds)
    return execution.calls


class _SizedFederation:
    """A federation that reports other public sizes."""

    def __init__(self, federation: Any, sizes: list[int]) -> None:
        self._federation, self.sizes = federation, np.array(sizes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)


def _in_order(calls: list[PlannedCall], built: BuiltExperiment) -> list[PlannedCall]:
    places = [call.position for call in calls]
    if len(set(places)) < len(places):
        reason = "asks a site twice in one training call"
        refuse("algorithm", built.experiment.algorithm.name, reason, "choose another for real sites")
    return sorted(calls, key=lambda call: call.position)


def _steps_of(built: BuiltExperiment, call: PlannedCall, client: int) -> int:
    """Return the most local steps of a call: of plain training, of private steps, or of a solver."""
    if call.kind == CHOOSE:
        return call.candidates
    local, size = built.experiment.local, int(built.federation.sizes[client])
    whole = built.experiment.samples_scheme == "full" or call.terms.get("whole_batch", False)
    batch = call.terms.get("batch_size") or local.batch_size
    per_epoch = 1 if whole or batch is None else math.ceil(size / batch)
    steps = call.terms.get("steps") or local.steps or (local.epochs or 1) * per_epoch
    private = built.mechanism.facts.private_steps.get(client)
    most = max(steps, call.plan["steps"] if call.plan else 0, private.steps if private and not call.plan else 0)
    most *= call.terms.get("repeat", 1) * call.settings.get("inner_steps", 1)
    if solves_exactly(built.experiment):
        most = max(most, _solver_steps(built, call))
    return int(most)


def _solver_steps(built: BuiltExperiment, call: PlannedCall) -> int:
    """Return the iterations that the theory of the solver guarantees.

    Without a guarantee the answer could be "it did not converge", which tells something about the data.
    """
    tolerance = built.experiment.privacy.gradient_tolerance
    if tolerance < FEWEST:
        reason = f"rounding decides below {FEWEST:g} whether a solver stops, and that would depend on the data"
        refuse("privacy.gradient_tolerance", tolerance, reason, "give 1e-9")
    curvature = built.experiment.local.weight_decay + call.terms.get("proximal", 0.0)
    return most_iterations(curvature, gradient_tolerance=tolerance)
