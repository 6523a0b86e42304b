"""Public values and private updates, and what a mechanism may ask of whoever holds the clients' data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting.strategies import Strategy
from sightline.errors import Refused
from sightline.mechanisms.client_state import StateAccess
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.schedule import Allotment
from sightline.mechanisms.submodels import Splitter
from sightline.plugins import BrokenLaw
from sightline.topology import Channel
from sightline.training import LocalTask
from sightline.training.local_work import AS_PLANNED

if TYPE_CHECKING:
    from sightline.mechanisms.contract import ReleaseContext
    from sightline.mechanisms.selection import ModelChoice


@dataclass(frozen=True, eq=False)
class Public:
    """A vector computed from released values only; `sources` are the ids of those releases.

    Arithmetic keeps the memory: the result of combining two public values comes from the releases of both. What is
    made from a `Public` therefore gets its `inputs` in the ledger without anybody writing them down.
    """

    value: Tensor
    sources: frozenset[int] = frozenset()

    def __add__(self, other: "Public") -> "Public":
        return combine_public(lambda a, b: a + b, self, other)

    def __sub__(self, other: "Public") -> "Public":
        return combine_public(lambda a, b: a - b, self, other)

    def __mul__(self, factor: float) -> "Public":
        return combine_public(lambda a: a * factor, self)

    __rmul__ = __mul__


def combine_public(function: Callable[..., Tensor], *values: Public) -> Public:
    """Post-processing: any function of public values is public and comes from all their releases."""
    sources = frozenset().union(*(value.sources for value in values))
    return Public(function(*(value.value for value in values)), sources)


def sum_weighted(values: Sequence[Public], weights: Sequence[float]) -> Public:
    """The sum of public values, each times its weight, in double precision."""
    return combine_public(
        lambda *rows: sum((w * row.double() for w, row in zip(weights, rows, strict=True)), torch.zeros(())).float(),
        *values,
    )


Block = tuple[Sequence[int], Tensor]
"""Some members of a cohort, and one row per member."""


@dataclass(frozen=True)
class PrivateSteps:
    """How one client runs DP-SGD in one round: the settings of its steps, from which the event follows."""

    clip_norm: float
    noise_multiplier: float
    rate: float
    steps: int
    expected_batch: float
    allotment: Allotment | None = None
    """Of a hidden schedule of examples over the steps of many rounds, in place of a draw at every step."""
    line: int = 0
    """Which of the client's schedules: it has one in every channel."""
    splitter: Splitter | None = None
    """How every example is sent to a part of the model, when it is."""
    groups: int = 0
    """Fixed groups of examples by index that take turns: a step draws from one of them. 0: from all at every step."""
    strategy: Strategy | None = None
    """Of noise that is correlated over the steps of a round, whose batches are the groups, each used whole."""

    def first_step(self, round: int) -> int:
        """How many steps the client has done before a round, having done all of them."""
        return (round - 1) * self.steps

    def epoch(self, round: int) -> int:
        """The epoch of the schedule that a round belongs to, from 0."""
        return 0 if self.allotment is None else self.first_step(round) // self.allotment.steps


@dataclass(frozen=True)
class CallId:
    """The round and the number of the training call in it: together they name the random streams of the call."""

    round: int
    use: int
    part: int = 0
    """Which part of a call that several channels release; 0 is the whole. Only noise of channels differs by it."""


class ClientOutput(NamedTuple):
    """What left one member by its own part of a mechanism."""

    member: int
    value: Tensor
    rejected: bool = False
    """Whether its update was not finite and counts as zero."""


class ClientSideMechanism(Protocol):
    """A mechanism whose members do a part themselves: clip, or clip and noise, before anything leaves them."""

    def client_outputs(self, updates: "Updates", context: "ReleaseContext") -> Iterator[ClientOutput]:
        """What each member lets go of."""


class RemoteNodes(Protocol):
    """Members that are elsewhere, each with its own data, its own copy of the mechanism and a will of its own."""

    @property
    def steadfast(self) -> bool:
        """Whether whoever is asked answers: so it is in a simulation, and nowhere else."""

    def request_outputs(self, updates: "Updates", context: "ReleaseContext") -> Iterator[ClientOutput]:
        """What the members let go of when asked; who does not answer, or answers nonsense, is left out."""

    def request_choices(self, ballot: "ModelChoice", context: "ReleaseContext") -> dict[int, int]:
        """Which of the ballot's models each member chose by itself; who does not answer is left out."""


class ClientExecutor(Protocol):
    """Trains clients. Results are private until a mechanism has released them."""

    dimension: int
    sizes: Sequence[int]

    @property
    def nodes(self) -> RemoteNodes | None:
        """Where the members do their part of a mechanism themselves; None when all is done here."""

    def close(self) -> None:
        """Let go of processes and connections."""

    def train(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        at: CallId,
        task: LocalTask,
        recall: StateAccess | None = None,
        splitter: Splitter | None = None,
    ) -> Iterator[Block]:
        """End vectors of local training; what clients keep goes into `recall` and stays private.

        With a `splitter` every client trains the part that it draws in secret, and stands still elsewhere.
        """

    def dp_sgd(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        plans: Sequence[PrivateSteps],
        at: CallId,
        task: LocalTask,
        recall: StateAccess | None = None,
    ) -> Iterator[Block]:
        """End vectors of local training in which every step is clipped per example and noised by the client."""

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """Each client's sum of clipped per-example gradients over one drawn batch, not yet noised."""

    def minimise(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        task: LocalTask,
        linear: Mapping[int, NDArray[np.float64]],
        gradient_tolerance: float,
    ) -> Iterator[Block]:
        """Exact minimisers of the local objectives of a linear model, in double precision and in the unit space."""

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """(client, how many of its plain training examples each of the models (m, d) gets right)."""


@dataclass(frozen=True, eq=False)
class Updates:
    """What a cohort would send, computed only when a mechanism asks for it: never an algorithm's to look at."""

    cohort: Cohort
    starts: Mapping[int, Public]
    """The public model that each member starts from."""
    worker: ClientExecutor
    at: CallId
    task: LocalTask = AS_PLANNED
    """What the members are asked, where it is not as the experiment says."""
    recall: StateAccess | None = None
    """What the members keep, when the algorithm has them keep something."""
    splitter: Splitter | None = None
    """How every member is sent to a part of the model, when it is."""
    eligible: frozenset[int] = frozenset()
    """The releases behind the starting points of all who could have been drawn: they do not tell who was."""
    behind: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """The same by client, where everybody has a starting point of its own."""
    shared: "SharedTraining | None" = None
    """The training of a larger cohort, of which these members are a part."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The releases that the starting points of all who could have been drawn were computed from."""
        drawn = frozenset[int]().union(*(start.sources for start in self.starts.values()))
        return tuple(sorted(self.eligible or drawn))

    def sizes(self) -> dict[int, int]:
        """Training examples of each member (public)."""
        return {member: self.worker.sizes[member] for member in self.cohort.members}

    def start_rows(self) -> Tensor:
        """One shared start as (d,), or one row per member as (n, d)."""
        values = [self.starts[member].value for member in self.cohort.members]
        if all(value is values[0] for value in values):
            return values[0] if values else torch.zeros(self.worker.dimension)
        return torch.stack(values)

    def collect_outputs(self, mechanism: ClientSideMechanism, context: "ReleaseContext") -> Iterator[ClientOutput]:
        """What leaves each member by its own part of the mechanism: computed here, or by nodes that hold the data."""
        nodes = self.worker.nodes
        return mechanism.client_outputs(self, context) if nodes is None else nodes.request_outputs(self, context)

    def collect_updates(self, context: "ReleaseContext") -> Iterator[Tensor]:
        """The updates for a trusted party to clip: as they are here, or as nodes let go of them; NaN where rejected."""
        nodes = self.worker.nodes
        if nodes is None:
            yield from (update for _, update in self.train_members())
            return
        for _, value, rejected in nodes.request_outputs(self, context):
            yield torch.full_like(value, torch.nan) if rejected else value

    def train_members(self) -> Iterator[tuple[int, Tensor]]:
        """(client, end - start) by ordinary local training."""
        yield from self._subtract_starts(self._share_blocks(Updates._train_blocks))

    def train_privately(self, plans: Sequence[PrivateSteps]) -> Iterator[tuple[int, Tensor]]:
        """(client, end - start) by DP-SGD at the client."""
        yield from self._subtract_starts(self._private_blocks(plans))

    def train_segments(self, plan_steps: "Callable[[Updates], Sequence[PrivateSteps]]") -> Iterator[tuple[int, Tensor]]:
        """The same by plans that depend on the members and their task only: shared with the other channels' members."""
        yield from self._subtract_starts(self._share_blocks(lambda some: some._private_blocks(plan_steps(some))))

    def _share_blocks(self, train: "Callable[[Updates], Iterator[Block]]") -> Iterator[Block]:
        return train(self) if self.shared is None else self.shared.take_rows(self.cohort.members, train)

    def _train_blocks(self) -> Iterator[Block]:
        how: dict[str, Any] = {"at": self.at, "task": self.task, "recall": self.recall}
        if self.splitter is not None:
            how["splitter"] = self.splitter
        return self.worker.train(self.cohort.members, self.start_rows(), **how)

    def _private_blocks(self, plans: Sequence[PrivateSteps]) -> Iterator[Block]:
        return self.worker.dp_sgd(
            self.cohort.members, self.start_rows(), plans=plans, at=self.at, task=self.task, recall=self.recall
        )

    def gradient_sums(self, plans: Sequence[PrivateSteps]) -> Iterator[Tensor]:
        """Each member's un-noised sum of clipped gradients."""
        rows = self.start_rows()
        for _, sums in self.worker.gradient_sums(self.cohort.members, rows, plans=plans, at=self.at):
            yield from sums

    def minimise_objectives(
        self, *, linear: Mapping[int, NDArray[np.float64]], gradient_tolerance: float
    ) -> Iterator[tuple[int, Tensor]]:
        """(client, minimiser of its objective with its own linear term), in the unit space of `convex_solver`."""
        blocks = self.worker.minimise(
            self.cohort.members,
            self.start_rows(),
            task=self.task,
            linear=linear,
            gradient_tolerance=gradient_tolerance,
        )
        for members, ends in blocks:
            yield from zip(members, ends, strict=True)

    def _subtract_starts(self, blocks: Iterator[Block]) -> Iterator[tuple[int, Tensor]]:
        for members, ends in blocks:
            for member, end in zip(members, ends, strict=True):
                yield member, end - self.starts[member].value


class SharedTraining:
    """Trains a whole cohort when the first of its parts asks, and hands every part its rows."""

    def __init__(self, whole: Updates) -> None:
        self._whole = whole
        self._ends: dict[int, Tensor] | None = None

    def take_rows(self, members: Sequence[int], train: Callable[[Updates], Iterator[Block]]) -> Iterator[Block]:
        """The end vectors of a part's members; nobody's are handed out twice."""
        if not members:
            return
        if self._ends is None:
            self._ends = {
                n: end.clone() for some, ends in train(self._whole) for n, end in zip(some, ends, strict=True)
            }
        yield list(members), torch.stack([self._ends.pop(member) for member in members])


def refuse_look(*_: Any) -> NoReturn:
    """Refuse a look at a hidden cohort, with one line that does not depend on it."""
    seen = (
        "who takes part cannot be read, nor how many, because epsilon counts on sampling to hide it; hand the cohort "
        'to r.train and the updates to r.release_mean as they are, or use sampling.clients.scheme = "full"'
    )
    raise BrokenLaw("a drawn cohort stays hidden", seen)


class Sealed:
    """What an algorithm of another package gets in place of something that tells who was drawn.

    Guarantees: every attribute, comparison, iteration and printed form is refused, always with the same line. The
    round opens it. Python cannot keep malicious code from doing the same.
    """

    def __init__(self, inside: Any, possible: frozenset[int], draws: Sequence[Any]) -> None:
        object.__setattr__(self, "_inside", inside)
        object.__setattr__(self, "_possible", possible)  # all who could have been drawn
        object.__setattr__(self, "_draws", tuple(draws))

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("_") else refuse_look()

    def __bool__(self) -> bool:
        return True

    __len__ = __iter__ = __contains__ = __getitem__ = __repr__ = __eq__ = __hash__ = __reduce__ = refuse_look


class SealedCohort(Sealed, Cohort):
    """A cohort whose members only the round may know."""


class SealedUpdates(Sealed, Updates):
    """The updates of such a cohort."""


def open_sealed(sealed: Sealed) -> tuple[Any, frozenset[int], tuple[Any, ...]]:
    """What is inside, all who could have been drawn, and the draws: for the round only."""
    return sealed._inside, sealed._possible, sealed._draws


TOGETHER_FLOATS = 1 << 27
"""Beyond so many numbers the end vectors of a whole cohort are not kept at once, and parts are trained one by one."""


def share_training(updates: Updates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """The updates of each channel's members, as if each had been trained by itself: same streams, same bits.

    Guarantees: nobody's update is in two parts, so that nobody's noise is used twice; every part has noise of its own.
    """
    if isinstance(updates, SealedUpdates):
        return _share_sealed(updates, channels)
    _check_apart(channels, updates.cohort.members)
    together = updates.worker.nodes is None and len(updates.cohort.members) * updates.worker.dimension
    shared = SharedTraining(updates) if together and together <= TOGETHER_FLOATS else None
    return [(_channel_part(updates, shared, channel, place + 1), channel) for place, channel in enumerate(channels)]


def _share_sealed(updates: SealedUpdates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """The same, sealed; a refusal does not depend on who was drawn."""
    inside, possible, draws = open_sealed(updates)
    _check_apart(channels, possible)
    parts = share_training(inside, channels)
    return [(SealedUpdates(part, possible & set(channel.members), draws), channel) for part, channel in parts]


def _check_apart(channels: Sequence[Channel], members: Iterable[int]) -> None:
    taken: set[int] = set()
    for channel in channels:
        if taken & set(channel.members):
            raise Refused(f"channel={channel.name}: shares a member with another; train for each of them by itself")
        taken |= set(channel.members)
    if set(members) - taken:
        raise Refused("cohort: has members that are in none of the channels; name a channel for each of them")


def _channel_part(updates: Updates, shared: SharedTraining | None, channel: Channel, number: int) -> Updates:
    own = frozenset(channel.members)
    members = tuple(member for member in updates.cohort.members if member in own)
    starts = {member: updates.starts[member] for member in members}
    places = [place for place, member in enumerate(updates.cohort.members) if member in own]
    task = updates.task.select_clients(places)
    at = replace(updates.at, part=number)
    eligible = frozenset[int]().union(*(updates.behind.get(n, updates.eligible) for n in channel.members))
    return replace(updates, cohort=Cohort(members), starts=starts, shared=shared, task=task, at=at, eligible=eligible)
