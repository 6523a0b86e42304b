"""Public values, private updates, and the interface through which a mechanism asks clients to train."""

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

    Arithmetic joins the sources: the result of combining two public values comes from the releases of both. The
    `inputs` of the next release are therefore read off its starting points and never listed by hand.
    """

    value: Tensor
    sources: frozenset[int] = frozenset()

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
    """Return any function of public values as a `Public` whose sources are those of all arguments (post-processing)."""
    sources = frozenset().union(*(value.sources for value in values))
    return Public(function(*(value.value for value in values)), sources)


def sum_weighted(values: Sequence[Public], weights: Sequence[float]) -> Public:
    """Return the weighted sum of public values, computed in double precision."""
    return combine_public(
        lambda *rows: sum((w * row.double() for w, row in zip(weights, rows, strict=True)), torch.zeros(())).float(),
        *values,
    )


Block = tuple[Sequence[int], Tensor]
"""Members of a cohort, and one row per member."""


@dataclass(frozen=True)
class PrivateSteps:
    """How one client runs DP-SGD in one round; its event follows from these settings."""

    clip_norm: float
    noise_multiplier: float
    rate: float
    steps: int
    expected_batch: float
    allotment: Allotment | None = None
    """A hidden schedule of examples over the steps of many rounds, instead of a draw at every step."""
    line: int = 0
    """The number of the client's schedule: it has one per channel."""
    splitter: Splitter | None = None
    """Assigns every example to a part of the model; None for whole models."""
    groups: int = 0
    """Number of fixed groups of examples, by index, that take turns: a step draws from one group. 0: from all examples.
    """
    strategy: Strategy | None = None
    """The strategy of noise correlated over the steps of a round; its batches are the groups, each used whole."""

    def first_step(self, round: int) -> int:
        """Return the number of steps that the client has done before a round, given that it took part in all."""
        return (round - 1) * self.steps

    def epoch(self, round: int) -> int:
        """Return the epoch of the schedule that a round belongs to, from 0."""
        return 0 if self.allotment is None else self.first_step(round) // self.allotment.steps


@dataclass(frozen=True)
class CallId:
    """The round and the number of the training call in it; together they name the random streams of the call."""

    round: int
    use: int
    # Training streams must not depend on `part`: clients trained together and trained channel by channel get the same
    # bits.
    part: int = 0
    """Which part of a call that several channels release; 0 is the whole. It only selects the channels' noise streams.
    """


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
    """Trains clients. Results are private until a mechanism has released them."""

    dimension: int
    sizes: Sequence[int]

    @property
    def nodes(self) -> RemoteNodes | None:
        """The remote members, which do their own part of the mechanism; None if everything runs here."""

    def close(self) -> None:
        """Release processes and connections."""

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
        """Yield end vectors of local training; what clients keep goes into `recall` and stays private.

        With a `splitter` every client trains the part that it draws in secret; all other parameters stay at the start.
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
        """Yield end vectors of local training whose every step is clipped per example and noised by the client."""

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """Yield each client's sum of clipped per-example gradients over one drawn batch, before noise."""

    def minimise(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        task: LocalTask,
        linear: Mapping[int, NDArray[np.float64]],
        gradient_tolerance: float,
    ) -> Iterator[Block]:
        """Yield exact minimisers of the local objectives of a linear model, in float64 and in the unit space."""

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """Yield (client, how many of its training examples each of the models (m, d) classifies correctly)."""


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

    def collect_updates(self, context: "ReleaseContext") -> Iterator[Tensor]:
        """Yield updates for a trusted party to clip: computed here, or received from nodes; NaN where rejected."""
        nodes = self.worker.nodes
        if nodes is None:
            yield from (update for _, update in self.train_members())
            return
        # NaN makes the trusted party reject the update itself, so that it is counted exactly once.
        for _, value, rejected in nodes.request_outputs(self, context):
            yield torch.full_like(value, torch.nan) if rejected else value

    def train_members(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (client, end - start) by ordinary local training."""
        yield from self._subtract_starts(self._share_blocks(Updates._train_blocks))

    def train_privately(self, plans: Sequence[PrivateSteps]) -> Iterator[tuple[int, Tensor]]:
        """Yield (client, end - start) by DP-SGD at the client."""
        yield from self._subtract_starts(self._private_blocks(plans))

    def train_segments(self, plan_steps: "Callable[[Updates], Sequence[PrivateSteps]]") -> Iterator[tuple[int, Tensor]]:
        """Yield (client, end - start) by plans that depend on members and task only; training is shared between
        channels.
        """
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
        """Yield each member's sum of clipped gradients, before noise."""
        rows = self.start_rows()
        for _, sums in self.worker.gradient_sums(self.cohort.members, rows, plans=plans, at=self.at):
            yield from sums

    def minimise_objectives(
        self, *, linear: Mapping[int, NDArray[np.float64]], gradient_tolerance: float
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (client, minimiser of its objective with its own linear term), in the unit space of `convex_solver`."""
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
    """Trains a whole cohort at the first request, and returns each part its rows."""

    def __init__(self, whole: Updates) -> None:
        self._whole = whole
        self._ends: dict[int, Tensor] | None = None

    def take_rows(self, members: Sequence[int], train: Callable[[Updates], Iterator[Block]]) -> Iterator[Block]:
        """Yield the end vectors of a part's members. Every row is returned once."""
        if not members:
            return
        if self._ends is None:
            self._ends = {
                n: end.clone() for some, ends in train(self._whole) for n, end in zip(some, ends, strict=True)
            }
        # `pop`: a row that is released twice under two noises could be averaged; a second request raises KeyError
        # instead.
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
    """Return the content, all clients that could have been drawn, and the draws. Only the round may call this."""
    return sealed._inside, sealed._possible, sealed._draws


TOGETHER_FLOATS = 1 << 27
"""Above this many numbers (512 MB) the end vectors of a whole cohort are not kept; parts are trained one by one."""


def share_training(updates: Updates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """Return the updates of each channel's members, bit for bit as if each channel had been trained by itself.

    Guarantees: no client's update is in two parts, so no noise is used twice; every part has its own noise.
    """
    if isinstance(updates, SealedUpdates):
        return _share_sealed(updates, channels)
    _check_apart(channels, updates.cohort.members)
    together = updates.worker.nodes is None and len(updates.cohort.members) * updates.worker.dimension
    shared = SharedTraining(updates) if together and together <= TOGETHER_FLOATS else None
    return [(_channel_part(updates, shared, channel, place + 1), channel) for place, channel in enumerate(channels)]


def _share_sealed(updates: SealedUpdates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """Share sealed updates between channels; a refusal does not depend on who was drawn."""
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
