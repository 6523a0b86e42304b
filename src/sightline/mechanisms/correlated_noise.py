"""Means of clipped updates whose noise is correlated over rounds, so that later rounds partly cancel earlier noise.

Round t publishes (clipped sum + sigma S n_t) / m with n = C^-1 z, rows of z standard normal. All rounds of a stream are
one `Gaussian(sigma / sens)` (`accounting.strategies`), charged with the first of them; a part of them is
post-processing of the whole. n is computed row by row; it is secret and never stored. z is a function of the run's
secret root and of the number of the release that it noises, so a resumed run draws it again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from sightline.accounting.strategies import (
    Strategy,
    charge_stream,
    charge_turns,
    divide_by_strategy,
    error_rows,
    make_strategy,
    measure_gain,
    redo_multiplier,
    round_down,
)
from sightline.config import Correlated, Experiment
from sightline.errors import Refused, refuse
from sightline.events import Event, Gaussian
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import FloatSum, clipped_sum, sum_sensitivity
from sightline.mechanisms.contract import MechanismFacts, NoiseRow, ReleaseContext, ReleaseValues
from sightline.mechanisms.gaussian_means import CentralMean, NoiseByTrust
from sightline.mechanisms.samplers import Cohorts, TurnsCohorts
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import Updates
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import Channel
from sightline.training.dp_sgd_settings import NoiseWalk

Row = NDArray[np.float64]
AGAIN, GIVEN_UP = ", again from release ", ", given up at release "
"""Suffixes of the joint names of rounds that were seen and repeated."""


@dataclass(frozen=True)
class Stream:
    """How the noises of a channel's rounds are correlated, and how often each client takes part."""

    strategy: Strategy
    separation: int
    """b: minimum number of rounds between two uses of a client."""
    uses: int
    """k: maximum number of uses of a client in a stream."""
    hidden: bool = False
    """Whether members of a group are drawn in secret; then every turn is charged by itself."""

    @property
    def length(self) -> int:
        """The number of rounds in a stream."""
        return self.strategy.steps

    @cached_property
    def unit(self) -> float:
        """The noise multiplier of a whole stream with sigma = 1, rounded down."""
        return charge_stream(self.strategy, noise=1.0, separation=self.separation, uses=self.uses).noise_multiplier

    @cached_property
    def redone(self) -> float:
        """The noise multiplier of a round that was seen and is repeated, with sigma = 1, rounded down."""
        # Rounding goes towards less noise claimed: a claim must never promise more than was added.
        return round_down(1 / redo_multiplier(self.strategy, separation=self.separation, uses=self.uses))

    def drawn(self, sampler: TurnsCohorts) -> float:
        """Return the noise multiplier of one turn whose members are drawn in secret, with sigma = 1."""
        event, _ = charge_turns(self.strategy, noise=1.0, groups=sampler.groups, rate=sampler.rate or 1.0)
        return event.event.noise_multiplier  # type: ignore[attr-defined,no-any-return]

    def describe(self) -> dict[str, Any]:
        """Return the strategy and its errors for the report."""
        participation: dict[str, Any] = {"separation": self.separation, "uses": self.uses, "hidden": self.hidden}
        return describe_strategy(self.strategy, **participation) | {"of": "rounds"}

    def explain(self, curvature: float) -> list[str]:
        """Return sentences on how the noise is correlated and when it is charged."""
        gain = measure_gain(self.strategy, separation=self.separation, uses=self.uses, hidden=self.hidden)
        return [
            f"The noise is correlated over rounds ({self.strategy.name}): what one round adds, later ones partly take "
            f"away. Sums over rounds have {gain:.3g} times less noise than with independent noise at the same epsilon, "
            "while the clip norm stays the same.",
            f"It is for groups that take turns at least {self.separation} rounds apart: whose turn it is is public, "
            "and no client is asked out of turn, also when others do not answer.",
            f"Every turn of a stream of {self.length} rounds is charged by itself."
            if self.hidden
            else f"A stream of {self.length} rounds is charged as a whole with its first round, so that a run that "
            "stops early has spent it.",
        ]

    @cached_property
    def spread(self) -> Row:
        """The standard deviation of each round's noise for sigma = 1: the norms of the rows of C^-1."""
        # C is lower triangular Toeplitz, and so is C^-1: its first column holds every row's entries.
        first = np.zeros(self.length)
        first[0] = 1.0
        return np.sqrt(np.cumsum(divide_by_strategy(self.strategy, first) ** 2))


Workload = Callable[[int], Sequence[float] | None]
"""Rounds -> the first column of the Toeplitz workload whose error the strategy minimises; None for sums over rounds."""


def sum_rounds(rounds: int) -> None:
    """Return None: the workload is sums over rounds."""


def build_stream(experiment: Experiment, cohorts: Cohorts, workload: Workload = sum_rounds) -> Stream:
    """Return the stream of an experiment file; omitted settings follow from turns and rounds.

    The `workload` decides how well optimised strategies serve the algorithm, never what they cost.
    """
    settings, clients = experiment.privacy.correlated or Correlated(), experiment.sampling.clients
    groups = clients.groups or 1
    length = min(settings.restart or cohorts.count, cohorts.count)
    separation = settings.separation or groups
    needed = -(-length // groups)
    uses = settings.uses or needed
    if uses < needed:
        refuse("privacy.correlated.uses", uses, f"every group has {needed} turns in a stream", "omit it")
    bands = settings.bands
    # With hidden draws a turn is charged by itself only if no band reaches the group's next turn: at most `groups`
    # bands.
    if clients.rate is not None:
        bands = min(bands or groups, length)
    participation = {"separation": separation, "uses": uses}
    column = None if settings.strategy == "bsr" else workload(length)
    strategy = make_strategy(settings.strategy, steps=length, bands=bands, workload=column, **participation)
    return Stream(strategy, **participation, hidden=clients.rate is not None)


@dataclass(frozen=True)
class CorrelatedMean(CentralMean):
    """(sum of clipped updates + sigma S n_t) / expected cohort, n = C^-1 z, below one trusted server.

    Guarantees: for every client all rounds of a stream together are `Gaussian(sigma / sens)` against everyone but the
    server, charged with the first; with hidden draws inside groups every turn is `Poisson(rate, Gaussian(sigma / |c|))`
    for the group whose turn it is. A cohort contains only members whose turn it is, and a round is released once. A
    round that nodes have seen and that is repeated with other noise costs an additional `Gaussian(sigma / r)`.
    """

    stream: Stream = field(kw_only=True)

    @property
    @override
    def facts(self) -> MechanismFacts:
        return replace(super().facts, explain=self.stream.explain, describe_stream=self.stream.describe)

    def in_parts(self, splitter: Splitter) -> NoReturn:
        """Raise `Refused`: hidden parts have no bound over the rounds of a stream."""
        refuse_split()

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim the hand-over to the server and the noisy mean for everyone, under the stream's joint name."""
        row = self.place_row(context)
        handed = context.handed_over(updates)
        more = (self._claim_redo(context, row),) if context.again and hides_draws(context) else ()
        published = context.make_release(
            source=context.channel.name,
            event=self._event(context),
            audience=context.channel.audience,
            what="mean of clipped updates with correlated noise",
            # A stream is charged once, with its first release. All members are its subjects then, also those whose turn
            # comes later; otherwise their rounds would be free.
            subjects=context.subjects if hides_draws(context) else context.channel.subjects,
            inputs=updates.sources,
            coins_known_to=frozenset({context.channel.name}),
            joint=row.name + (f"{AGAIN}{context.again}" if context.again else ""),
        )
        if hides_draws(context):
            _refuse_memory(updates)
        return handed, *more, published

    def _event(self, context: ReleaseContext) -> Event:
        """Return the event of a release: that of the whole stream, or of a single turn if draws are hidden."""
        sampler, sigma = turns_of(context), self._noise(context)
        if sampler.rate is not None:
            return sampler.hidden_event(Gaussian(sigma * self.stream.drawn(sampler)))
        return Gaussian(sigma * (self.stream.redone if context.again else self.stream.unit))

    def _claim_redo(self, context: ReleaseContext, row: NoiseRow) -> Release:
        """Claim what an abandoned attempt reveals about clients whose earlier noise it contained."""
        return context.make_release(
            source=context.channel.name,
            event=Gaussian(self._noise(context) * self.stream.redone),
            audience=context.channel.audience,
            what="a round that was seen and is made again",
            subjects=context.channel.subjects,
            joint=f"{row.name}{GIVEN_UP}{context.again}",
        )

    def place_row(self, context: ReleaseContext) -> NoiseRow:
        """Return the noise row of a release. Raise `Refused` unless members take turns far enough apart."""
        sampler = turns_of(context)
        if sampler.groups < self.stream.separation:
            reason = f"groups take turns every {sampler.groups} rounds, but the noise needs {self.stream.separation}"
            refuse("sampling.clients.groups", sampler.groups, reason, "use more groups")
        number, step = divmod(sampler.step(context.time), self.stream.length)
        more = context.again and hides_draws(context)
        name = f"{context.channel.name}, noise stream {number + 1}"
        # The published mean is the second claim of the call (the third with a redo claim): its ledger number names its
        # z.
        return NoiseRow(
            name=name + (f", turn {step + 1}" if sampler.rate is not None else ""),
            stream=name,
            step=step,
            time=context.time,
            release=context.next_id + (2 if more else 1),
            line=context.line,
        )

    @override
    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        clip_norm, row = self.clip_norm * context.channel.clip_factor, self.place_row(context)
        total = clipped_sum(
            updates.collect_updates(context),
            dimension=updates.worker.dimension,
            clip_norm=clip_norm,
            adjacency=context.adjacency,
        )
        # No fallback to fresh independent noise: the claim is for the stream's row, and fresh noise would cost more.
        if context.correlated is None:
            raise Refused(f"release={row.release}: correlated noise needs the streams of a run")
        std = self._noise(context) * sum_sensitivity(clip_norm, context.adjacency)
        noise = torch.from_numpy(context.correlated(row, self.stream.strategy, updates.worker.dimension) * std)
        expected = context.sampler.expected
        value = (noise + total.value).to(torch.float32) / expected
        return ReleaseValues({EVERYONE: value}, total.rejected, std * float(self.stream.spread[row.step]) / expected)


SHOWN_STEPS, SHOWN_COEFFICIENTS = 100, 50
"""How many points and coefficients of a strategy the report shows."""


def describe_strategy(strategy: Strategy, *, separation: int, uses: int, hidden: bool = False) -> dict[str, Any]:
    """Return a strategy's coefficients and the root mean squared error of its sums, next to independent noise.

    Errors are in units of the noise that independent noise would need for the same privacy.
    """
    gain, steps = measure_gain(strategy, separation=separation, uses=uses, hidden=hidden), strategy.steps
    indices = np.unique(np.linspace(0, steps - 1, min(steps, SHOWN_STEPS)).round().astype(int))
    rows, plain = np.sqrt(error_rows(strategy)), np.sqrt(np.arange(1, steps + 1))
    scale = math.sqrt(float((plain**2).mean()) / float((rows**2).mean())) / gain
    return {
        "strategy": strategy.name, "steps": steps, "separation": separation, "uses": uses, "gain": gain,
        "coefficients": list(strategy.coefficients[:SHOWN_COEFFICIENTS]),
        "shown": (indices + 1).tolist(),
        "errors": (scale * rows[indices]).tolist(),
        "independent": plain[indices].tolist(),
    }  # fmt: skip


def turns_of(context: ReleaseContext) -> TurnsCohorts:
    """Return the channel's turns. Raise `Refused` if its members are sampled in another way."""
    sampler = context.sampler
    if not isinstance(sampler, TurnsCohorts):
        reason = f"{context.channel.name} samples with {type(sampler).__name__}, which guarantees no minimum separation"
        refuse("privacy.noise", "correlated", reason, 'use sampling.clients = {scheme = "turns", groups = 10}')
    return sampler


def hides_draws(context: ReleaseContext) -> bool:
    """Return whether members of the group whose turn it is are drawn in secret."""
    return turns_of(context).rate is not None


def _refuse_memory(updates: Updates) -> None:
    """Raise `Refused` for client state together with hidden draws in a stream: there is no proof for it."""
    if updates.recall is not None:
        reason = (
            f"clients keep {updates.recall.memory.name}, and no bound is known for state with hidden draws in a stream"
        )
        refuse("client_state", updates.recall.memory.name, reason, "use turns without a rate")


@dataclass(frozen=True)
class CorrelatedByTrust(NoiseByTrust):
    """`CorrelatedMean` below every trusted edge of a tree, each with its own stream; all edges must be trusted.

    Guarantees: those of `CorrelatedMean`. Streams are independent, so their costs add up for an observer of several.
    """

    stream: Stream = field(kw_only=True)

    @property
    @override
    def facts(self) -> MechanismFacts:
        return replace(super().facts, explain=self.stream.explain, describe_stream=self.stream.describe)

    @override
    def at(self, channel: Channel) -> CorrelatedMean:
        refuse_untrusted(channel.name, channel.trusted)
        noise = max(self.noise_multipliers(channel.members).values(), default=self.noise_multiplier)
        return CorrelatedMean(self.clip_norm, noise, FloatSum, stream=self.stream)

    def in_parts(self, splitter: Splitter) -> NoReturn:
        """Raise `Refused`: hidden parts have no bound over the rounds of a stream."""
        refuse_split()


def refuse_split() -> NoReturn:
    """Raise `Refused` for split models."""
    reason = "no bound is known for hidden parts of the model over the rounds of a stream"
    refuse("algorithm.split", "given", reason, 'remove split, or use privacy.noise = "independent"')


def refuse_untrusted(name: str, trusted: bool) -> None:
    """Raise `Refused` for an untrusted gathering server: the party that gathers adds the correlated noise."""
    if not trusted:
        reason = f"{name} is not trusted, so every device adds noise to all its messages and correlation gains nothing"
        refuse("privacy.noise", "correlated", reason, 'use topology.trusted = 1.0, or privacy.noise = "independent"')


class NoiseStreams:
    """The correlated noise streams of a run at their current step: in memory only, never logged or stored.

    Guarantees: a release's noise depends on the secret root, on the numbers of the stream's releases and on the
    strategy alone; asked again for the last row it is the same; when a run is resumed or a round repeated, the stream
    is drawn again from the ledger's releases. No row of z noises two releases.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._walks: dict[int, tuple[str, NoiseWalk]] = {}

    def draw_noise(self, row: NoiseRow, strategy: Strategy, dimension: int, releases: Iterable[Release]) -> Row:
        """Return n_t of a release in units of sigma S; `releases` is the ledger."""
        name, walk = self._walks.get(row.line, ("", None))
        if walk is not None and name == row.stream and walk.strategy == strategy and len(walk.last) == dimension:
            # The last row is asked for again by a round that was recorded before a crash: it must get the same noise.
            if walk.releases[row.step :] == [row.release]:
                return walk.last
            if len(walk.releases) == row.step:
                return walk.advance(self._draw_fresh(row.line, row.time, row.release, dimension), row.release)
        # Otherwise rebuild the stream from the ledger. The ledger, not memory, says which rows were released.
        walk = NoiseWalk(strategy, dimension)
        for time, release in find_history(row, releases):
            walk.advance(self._draw_fresh(row.line, time, release, dimension), release)
        self._walks[row.line] = (row.stream, walk)
        return walk.advance(self._draw_fresh(row.line, row.time, row.release, dimension), row.release)

    def _draw_fresh(self, line: int, time: int, release: int, dimension: int) -> Row:
        """Return the row of z that belongs to this release and to no other."""
        # Keyed by channel and release number: a repeated round has a new release number and hence new noise.
        rng = self._streams.rng(Purpose.CORRELATED, round=time, participant=EVERYONE - line, use=release)
        return np.asarray(rng.standard_normal(dimension))


def find_history(row: NoiseRow, releases: Iterable[Release]) -> list[tuple[int, int]]:
    """Return (round, release) of every earlier step of a stream; for a repeated round, its last attempt.

    Raise `Refused` if steps are missing: no noise drawn next would continue the stream.
    """
    if row.step == 0:
        return []
    last: dict[int, int] = {}
    events: set[Event] = set()
    for release in releases:
        mine = release.joint == row.stream or release.joint.startswith(f"{row.stream},")
        if not mine or GIVEN_UP in release.joint:
            continue
        if AGAIN not in release.joint:
            events.add(release.event)
        if release.time < row.time:
            last[release.time] = release.id
    if len(events) > 1:
        raise Refused(f"stream={row.stream}: the strategy or the noise changed within a stream; undo the change")
    if len(last) != row.step:
        reason = f"its noise continues {row.step} earlier rounds, but the ledger has {len(last)}"
        raise Refused(f"stream={row.stream}: {reason}; restore the ledger from a backup, or start a new run")
    return sorted(last.items())


def build_correlated(
    experiment: Experiment, cohorts: Cohorts, edges: Mapping[str, bool], workload: Workload = sum_rounds
) -> CorrelatedMean | CorrelatedByTrust:
    """Return the mechanism of an experiment file with unit noise; `edges`: server name -> whether it is trusted."""
    stream, clip_norm = build_stream(experiment, cohorts, workload), experiment.privacy.clip_norm
    if experiment.privacy.place != "edge":
        return CorrelatedMean(clip_norm, 1.0, FloatSum, stream=stream)
    for name, trusted in edges.items():
        refuse_untrusted(name, trusted)
    return CorrelatedByTrust(clip_norm, 1.0, FloatSum, stream=stream)
