"""Public values, private updates, and the interface through which a mechanism asks clients to train."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import Refused
from sightline.ledger import Ledger
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.submodels import Splitter
from sightline.training.call import (
    AS_PLANNED,
    Block,
    CallId,
    CallKind,
    LocalTask,
    PrivateSteps,
    StateAccess,
    TrainingCall,
)

if TYPE_CHECKING:
    from sightline.mechanisms.contract import ReleaseContext
    from sightline.mechanisms.selection import ModelChoice


class _Absent:
    """Stands for a vector that the party at work does not hold; every look at it raises `Refused`."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(f"value.{name}: this party does not hold the value; let a party that holds it show it first")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise Refused(f"{getattr(function, '__name__', 'torch')}: this party does not hold the value")


ABSENT: Any = _Absent()
COUNTED: Any = _Absent()
"""The value of a `Public` that is never sent: `Round.show` records it, so that the ledger counts it as seen."""


@dataclass(frozen=True, eq=False)
class Public:
    """A vector computed from released values only; `sources` are the ids of those releases.

    Arithmetic joins the sources: the result of combining two public values comes from the releases of both. The
    `inputs` of the next release are therefore read off its starting points and never listed by hand.
    """

    value: Tensor
    sources: frozenset[int] = frozenset()
    held_by: frozenset[str] | None = None
    """The parties that hold it: those that all its releases were shown to; None for everyone. Follows from public
    facts, so it is the same in the simulator and at every party of a deployment.
    """

    def is_held_by(self, parties: frozenset[str]) -> bool:
        """Return whether all these parties hold the value."""
        return self.held_by is None or parties <= self.held_by

    def __add__(self, other: "Public") -> "Public":
        # The ledger's guarantee rests on `inputs`: a forgotten one would give an epsilon that is too small. Operators
        # that join sources make that impossible for algorithm code.
        return combine_public(lambda a, b: a + b, self, other)

    def __sub__(self, other: "Public") -> "Public":
        return combine_public(lambda a, b: a - b, self, other)

    def __mul__(self, factor: float) -> "Public":
        return combine_public(lambda a: a * factor, self)

    __rmul__ = __mul__


def combine_public(function: Callable[..., Tensor], *values: Public) -> Public:
    """Return any function of public values (post-processing).

    Its sources are those of all arguments, and it is held by the parties that hold all of them.
    """
    sources = frozenset().union(*(value.sources for value in values))
    held = [value.held_by for value in values if value.held_by is not None]
    absent = any(value.value is ABSENT for value in values)
    result = ABSENT if absent else function(*(value.value for value in values))
    return Public(result, sources, frozenset.intersection(*held) if held else None)


def trim_sources(state: Mapping[str, Public], ledger: Ledger) -> dict[str, Public]:
    """Return the values without the sources that later ones imply."""
    return {name: replace(value, sources=ledger.frontier(value.sources)) for name, value in state.items()}


def sum_weighted(values: Sequence[Public], weights: Sequence[float]) -> Public:
    """Return the weighted sum of public values, computed in double precision."""
    return combine_public(
        lambda *rows: sum((w * row.double() for w, row in zip(weights, rows, strict=True)), torch.zeros(())).float(),
        *values,
    )


class ClientOutput(NamedTuple):
    """What one member sends after its own part of a mechanism."""

    member: int
    value: Tensor
    rejected: bool = False
    """Whether its update was not finite and counts as zero."""


class ClientSideMechanism(Protocol):
    """A mechanism of which members do a part themselves: clip, or clip and noise, before anything leaves them."""

    def client_outputs(self, updates: "Updates", context: "ReleaseContext") -> Iterator[ClientOutput]:
        """Yield what each member sends."""


class RemoteNodes(Protocol):
    """Members on other machines, each with its own data and its own copy of the mechanism; they may not answer."""

    @property
    def steadfast(self) -> bool:
        """Whether every member that is asked answers. True in a simulation only."""

    def request_outputs(self, updates: "Updates", context: "ReleaseContext") -> Iterator[ClientOutput]:
        """Yield what the members send; members with no answer or an invalid one are left out."""

    def request_choices(self, ballot: "ModelChoice", context: "ReleaseContext") -> dict[int, int]:
        """Return client -> the model that it chose; members that do not answer are left out."""


class ClientExecutor(Protocol):
    """Runs training calls. Results are private until a mechanism has released them."""

    dimension: int
    sizes: Sequence[int]

    @property
    def nodes(self) -> RemoteNodes | None:
        """The remote members, which do their own part of the mechanism; None if everything runs here."""

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield (clients, one row for each) in the order of the cohort; see `CallKind`."""

    def close(self) -> None:
        """Release processes and connections."""


@dataclass(frozen=True, eq=False)
class Updates:
    """The updates of a cohort, computed when a mechanism asks for them. An algorithm never sees their values."""

    cohort: Cohort
    starts: Mapping[int, Public]
    """Member -> the public model from which it starts."""
    worker: ClientExecutor
    at: CallId
    task: LocalTask = AS_PLANNED
    """What the members are asked to do, if it differs from the experiment."""
    recall: StateAccess | None = None
    """The members' stored state, if the algorithm uses any."""
    splitter: Splitter | None = None
    """Assigns every member to a part of the model; None for whole models."""
    eligible: frozenset[int] = frozenset()
    """The releases behind the starting points of all members that could have been drawn; independent of the draw."""
    behind: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Client -> the same, if every client has its own starting point."""
    shared: "SharedTraining | None" = None
    """The training of a larger cohort that includes these members."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The releases behind the starting points of all members that could have been drawn."""
        # If inputs listed the realised cohort only, the ledger would reveal who was drawn, and epsilon would depend on
        # luck: a number that is smaller because of one draw is not a guarantee of the mechanism.
        drawn = frozenset[int]().union(*(start.sources for start in self.starts.values()))
        return tuple(sorted(self.eligible or drawn))

    def sizes(self) -> dict[int, int]:
        """Return member -> its number of training examples (public)."""
        return {member: self.worker.sizes[member] for member in self.cohort.members}

    def start_rows(self) -> Tensor:
        """Return one shared start as (d,), or one row per member as (n, d)."""
        values = [self.starts[member].value for member in self.cohort.members]
        if all(value is values[0] for value in values):
            return values[0] if values else torch.zeros(self.worker.dimension)
        return torch.stack(values)

    def collect_outputs(self, mechanism: ClientSideMechanism, context: "ReleaseContext") -> Iterator[ClientOutput]:
        """Yield what leaves each member after its part of the mechanism, computed here or by remote nodes."""
        nodes = self.worker.nodes
        return mechanism.client_outputs(self, context) if nodes is None else nodes.request_outputs(self, context)

    def collect_updates(self, context: "ReleaseContext") -> Iterator[tuple[int, Tensor]]:
        """Return (client, update) for a trusted party to clip: computed here, or by nodes; NaN where rejected."""
        nodes = self.worker.nodes
        if nodes is None:
            return self.train_members()
        # NaN makes the trusted party reject the update itself, so that it is counted exactly once.
        outputs = nodes.request_outputs(self, context)
        return ((out.member, torch.full_like(out.value, torch.nan) if out.rejected else out.value) for out in outputs)

    def train_members(self) -> Iterator[tuple[int, Tensor]]:
        """Return (client, end - start) of every member by ordinary local training, computed one by one on demand."""
        return self._updates_of(self._run(lambda updates: updates.make_call(CallKind.TRAIN)))

    def train_privately(self, plans: Sequence[PrivateSteps]) -> Iterator[tuple[int, Tensor]]:
        """Return (client, end - start) of every member by DP-SGD at the client."""
        return self._updates_of(self.worker.run(self.make_call(CallKind.DP_SGD, plans)))

    def train_segments(self, plan_steps: "Callable[[Updates], Sequence[PrivateSteps]]") -> Iterator[tuple[int, Tensor]]:
        """Return (client, end - start) by plans that depend on members and task only; channels share the training."""
        return self._updates_of(self._run(lambda updates: updates.make_call(CallKind.DP_SGD, plan_steps(updates))))

    def gradient_sums(self, plans: Sequence[PrivateSteps]) -> Iterator[Tensor]:
        """Return each member's sum of clipped gradients, before noise."""
        blocks = self.worker.run(self.make_call(CallKind.GRADIENT_SUMS, plans))
        return (total for _, sums in blocks for total in sums)

    def minimise_objectives(
        self, *, linear: Mapping[int, NDArray[np.float64]], gradient_tolerance: float
    ) -> Iterator[tuple[int, Tensor]]:
        """Return (client, minimiser of its objective with its own linear term), in the unit space."""
        call = replace(self.make_call(CallKind.MINIMISE), linear=linear, gradient_tolerance=gradient_tolerance)
        return (pair for members, ends in self.worker.run(call) for pair in zip(members, ends, strict=True))

    def make_call(self, kind: CallKind, plans: Sequence[PrivateSteps] = ()) -> TrainingCall:
        """Return the training call of these members."""
        parts = plans[0].splitter if plans else self.splitter
        members, starts = self.cohort.members, self.start_rows()
        return TrainingCall(kind, members, starts, self.at, self.task, plans, self.recall, parts)

    def _run(self, make_call: "Callable[[Updates], TrainingCall]") -> Iterator[Block]:
        if self.shared is None:
            return self.worker.run(make_call(self))
        return self.shared.take_rows(self.cohort.members, make_call)

    def _updates_of(self, blocks: Iterator[Block]) -> Iterator[tuple[int, Tensor]]:
        for members, ends in blocks:
            for member, end in zip(members, ends, strict=True):
                yield member, end - self.starts[member].value


class SharedTraining:
    """Trains a whole cohort at the first request, and returns each part its rows."""

    def __init__(self, whole: Updates) -> None:
        self._whole = whole
        self._ends: dict[int, Tensor] | None = None

    def take_rows(self, members: Sequence[int], make_call: Callable[[Updates], TrainingCall]) -> Iterator[Block]:
        """Yield the end vectors of a part's members. Every row is returned once."""
        if not members:
            return
        if self._ends is None:
            blocks = self._whole.worker.run(make_call(self._whole))
            self._ends = {n: end.clone() for some, ends in blocks for n, end in zip(some, ends, strict=True)}
        # `pop`: a row that is released twice under two noises could be averaged; a second request raises KeyError
        # instead.
        yield list(members), torch.stack([self._ends.pop(member) for member in members])
