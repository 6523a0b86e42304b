r"""Means of clipped updates whose noise is correlated over the rounds of a channel: what one round adds, others take.

Round t publishes (clipped sum + sigma S n_t) / m with n = C^-1 z, rows of z standard normal. All rounds of a stream are
one `Gaussian(sigma / sens)` (`accounting.strategies`), charged with the first of them; a part of them is
post-processing of the whole. n is made row by row and is a secret: it is never written down. z is a function of the
run's secret root and of the number of the release that it noises, so a run that goes on draws it again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
from sightline.mechanisms.clip_and_noise import FLOATS, clipped_sum, sum_sensitivity
from sightline.mechanisms.contract import NoiseRow, ReleaseContext, ReleaseValues
from sightline.mechanisms.gaussian_means import CentralMean, NoiseByTrust
from sightline.mechanisms.samplers import Cohorts, TurnsCohorts
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import Updates
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.training.dp_sgd_settings import NoiseWalk

Row = NDArray[np.float64]
AGAIN, GIVEN_UP = ", again from release ", ", given up at release "
"""How joint names of rounds go on that were seen, and made again."""


@dataclass(frozen=True)
class Stream:
    """How the noises of a channel's rounds belong together, and who takes part in them how often."""

    strategy: Strategy
    separation: int
    """b: between two uses of a client lie at least so many rounds."""
    uses: int
    """k: a client is used at most so often in a stream."""
    hidden: bool = False
    """Whether members of a group are drawn in secret: then every turn is charged by itself."""

    @property
    def length(self) -> int:
        """The rounds of a stream."""
        return self.strategy.steps

    @cached_property
    def unit(self) -> float:
        """Z of a whole stream with sigma = 1, rounded down."""
        return charge_stream(self.strategy, noise=1.0, separation=self.separation, uses=self.uses).noise_multiplier

    @cached_property
    def redone(self) -> float:
        """What a round costs that was seen and is made again, with sigma = 1, rounded down."""
        return round_down(1 / redo_multiplier(self.strategy, separation=self.separation, uses=self.uses))

    def drawn(self, sampler: TurnsCohorts) -> float:
        """The same of one turn whose members are drawn in secret."""
        event, _ = charge_turns(self.strategy, noise=1.0, groups=sampler.groups, rate=sampler.rate or 1.0)
        return event.event.noise_multiplier  # type: ignore[attr-defined,no-any-return]

    @cached_property
    def spread(self) -> Row:
        """The standard deviation of each round's noise, for sigma = 1: the norms of the rows of C^-1."""
        first = np.zeros(self.length)
        first[0] = 1.0
        return np.sqrt(np.cumsum(divide_by_strategy(self.strategy, first) ** 2))


Workload = Callable[[int], Sequence[float] | None]
"""Rounds -> what the noise should be least in: the first column of a Toeplitz matrix; None for sums over rounds."""


def sum_rounds(rounds: int) -> None:
    """Sums over rounds."""


def build_stream(experiment: Experiment, cohorts: Cohorts, workload: Workload = sum_rounds) -> Stream:
    """The stream that an experiment file asks for; what it leaves out follows from turns and rounds.

    The `workload` decides how well strategies that are optimised serve the algorithm, never what they cost.
    """
    settings, clients = experiment.privacy.correlated or Correlated(), experiment.sampling.clients
    groups = clients.groups or 1
    length = min(settings.restart or cohorts.count, cohorts.count)
    separation = settings.separation or groups
    needed = -(-length // groups)
    uses = settings.uses or needed
    if uses < needed:
        refuse("privacy.correlated.uses", uses, f"every group has {needed} turns in a stream", "leave it out")
    bands = settings.bands
    if clients.rate is not None:
        bands = min(bands or groups, length)
    participation = {"separation": separation, "uses": uses}
    column = None if settings.strategy == "bsr" else workload(length)
    strategy = make_strategy(settings.strategy, steps=length, bands=bands, workload=column, **participation)
    return Stream(strategy, **participation, hidden=clients.rate is not None)


@dataclass(frozen=True)
class CorrelatedMean(CentralMean):
    r"""(sum of clipped updates + sigma S n_t) / expected cohort, n = C^-1 z, below one trusted server.

    Guarantees: for every client all rounds of a stream together are `Gaussian(sigma / sens)` against everyone but the
    server, charged with the first; with hidden draws inside of groups every turn is `Poisson(rate, Gaussian(sigma /
    |c|))` for the group whose turn it is. Only whose turn it is may be in a cohort, and a round is released once. A
    round that nodes have seen and that is made again, with other noise, costs `Gaussian(sigma / r)` more.
    """

    stream: Stream = field(kw_only=True)

    def in_parts(self, splitter: Splitter) -> "CorrelatedMean":
        """Refused: hidden parts have no bound over the rounds of a stream."""
        law = "hidden parts of the model have no bound over the rounds of a stream"
        refuse("algorithm.split", "given", law, 'remove split, or use privacy.noise = "independent"')

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """The hand-over to the server, and the noisy mean that everybody sees; all of a stream under one name."""
        row = self.place_row(context)
        handed = context.handed_over(updates)
        more = (self._claim_redo(context, row),) if context.again and hides_draws(context) else ()
        published = context.make_release(
            source=context.channel.name,
            event=self._event(context),
            audience=context.channel.audience,
            what="mean of clipped updates with correlated noise",
            subjects=context.subjects if hides_draws(context) else context.channel.subjects,
            inputs=updates.sources,
            coins_known_to=frozenset({context.channel.name}),
            joint=row.name + (f"{AGAIN}{context.again}" if context.again else ""),
        )
        if hides_draws(context):
            _refuse_memory(updates)
        return handed, *more, published

    def _sigma(self, context: ReleaseContext) -> float:
        return self.noise_multiplier * context.channel.noise_factor

    def _event(self, context: ReleaseContext) -> Event:
        """What a release of the stream is charged: of a whole stream once, of a turn that is hidden by itself."""
        sampler, sigma = turns_of(context), self._sigma(context)
        if sampler.rate is not None:
            return sampler.hidden_event(Gaussian(sigma * self.stream.drawn(sampler)))
        return Gaussian(sigma * (self.stream.redone if context.again else self.stream.unit))

    def _claim_redo(self, context: ReleaseContext, row: NoiseRow) -> Release:
        """What the round that was given up tells of those whose earlier noise it held."""
        return context.make_release(
            source=context.channel.name,
            event=Gaussian(self._sigma(context) * self.stream.redone),
            audience=context.channel.audience,
            what="a round that was seen and is made again",
            subjects=context.channel.subjects,
            joint=f"{row.name}{GIVEN_UP}{context.again}",
        )

    def place_row(self, context: ReleaseContext) -> NoiseRow:
        """Which row of which stream a release gets; refused where nobody knows who is asked when."""
        sampler = turns_of(context)
        if sampler.groups < self.stream.separation:
            law = f"groups take turns every {sampler.groups} rounds, the noise is for {self.stream.separation}"
            refuse("sampling.clients.groups", sampler.groups, law, "use more groups")
        number, step = divmod(sampler.step(context.time), self.stream.length)
        more = context.again and hides_draws(context)
        name = f"{context.channel.name}, noise stream {number + 1}"
        return NoiseRow(
            name=name + (f", turn {step + 1}" if sampler.rate is not None else ""),
            stream=name,
            step=step,
            time=context.time,
            release=context.next_id + (2 if more else 1),
            line=context.line,
        )

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Clip, sum, add the stream's next row, divide by the expected cohort."""
        clip_norm, row = self.clip_norm * context.channel.clip_factor, self.place_row(context)
        total = clipped_sum(
            updates.collect_updates(context),
            dimension=updates.worker.dimension,
            clip_norm=clip_norm,
            adjacency=context.adjacency,
        )
        if context.correlated is None:
            raise Refused(f"release={row.release}: correlated noise is drawn by a run that remembers its streams")
        std = self._sigma(context) * sum_sensitivity(clip_norm, context.adjacency)
        noise = torch.from_numpy(context.correlated(row, self.stream.strategy, updates.worker.dimension) * std)
        expected = context.sampler.expected
        value = (noise + total.value).to(torch.float32) / expected
        return ReleaseValues({EVERYONE: value}, total.rejected, std * float(self.stream.spread[row.step]) / expected)

    def describe_stream(self) -> dict[str, Any]:
        """The stream of a channel."""
        own = self.stream
        participation: dict[str, Any] = {"separation": own.separation, "uses": own.uses, "hidden": own.hidden}
        return describe_strategy(own.strategy, **participation) | {"of": "rounds"}

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """What the noises of rounds have to do with each other, and since when they are counted."""
        stream, strategy = self.stream, self.stream.strategy
        gain = measure_gain(strategy, separation=stream.separation, uses=stream.uses, hidden=stream.hidden)
        return [
            f"The noise is correlated over rounds ({strategy.name}): what one round adds, later ones partly take away. "
            f"Sums over rounds have {gain:.3g} times less noise than with independent noise at the same epsilon, while "
            "the clip norm stays the same.",
            f"It is for groups that take turns at least {stream.separation} rounds apart: whose turn it is is public, "
            "and nobody is asked out of turn, whoever fails to answer.",
            f"Every turn of a stream of {stream.length} rounds is charged by itself."
            if stream.hidden
            else f"A stream of {stream.length} rounds is charged as a whole with its first round, so that a run that "
            "stops early has spent it.",
        ]


SHOWN_STEPS, SHOWN_COEFFICIENTS = 100, 50
"""How much of a strategy is told for pictures."""


def describe_strategy(strategy: Strategy, *, separation: int, uses: int, hidden: bool = False) -> dict[str, Any]:
    """A strategy in numbers: coefficients, and the root of the squared error of sums, with independent noise beside it.

    Errors are in units of the noise that independent noise would need for the same privacy.
    """
    gain, steps = measure_gain(strategy, separation=separation, uses=uses, hidden=hidden), strategy.steps
    places = np.unique(np.linspace(0, steps - 1, min(steps, SHOWN_STEPS)).round().astype(int))
    rows, plain = np.sqrt(error_rows(strategy)), np.sqrt(np.arange(1, steps + 1))
    scale = math.sqrt(float((plain**2).mean()) / float((rows**2).mean())) / gain
    return {
        "strategy": strategy.name, "steps": steps, "separation": separation, "uses": uses, "gain": gain,
        "coefficients": list(strategy.coefficients[:SHOWN_COEFFICIENTS]),
        "shown": (places + 1).tolist(),
        "errors": (scale * rows[places]).tolist(),
        "independent": plain[places].tolist(),
    }  # fmt: skip


def turns_of(context: ReleaseContext) -> TurnsCohorts:
    """The turns of a channel; refused where its members are asked in another way."""
    sampler = context.sampler
    if not isinstance(sampler, TurnsCohorts):
        law = f"{context.channel.name} asks its members by {type(sampler).__name__}, which keeps no distance"
        refuse("privacy.noise", "correlated", law, 'use sampling.clients = {scheme = "turns", groups = 10}')
    return sampler


def hides_draws(context: ReleaseContext) -> bool:
    """Whether members of the group whose turn it is are drawn in secret."""
    return turns_of(context).rate is not None


def _refuse_memory(updates: Updates) -> None:
    """Hidden draws in a stream, of members who train by what they kept of earlier turns: not proven."""
    if updates.recall is not None:
        law = f"clients keep {updates.recall.memory.name}, which has no bound with hidden draws in a stream"
        refuse("client_state", updates.recall.memory.name, law, "use turns without a rate")


@dataclass(frozen=True)
class CorrelatedByTrust(NoiseByTrust):
    """`CorrelatedMean` below every trusted edge of a tree, each with a stream of its own; all edges are trusted.

    Guarantees: those of `CorrelatedMean`. Streams are independent, so what reaches one observer from several adds up.
    """

    stream: Stream = field(kw_only=True)

    def at(self, context: ReleaseContext) -> CorrelatedMean:
        """The mechanism of a channel, with the noise that its own members need."""
        refuse_untrusted(context.channel.name, context.channel.trusted)
        noise = max(self.noise_multipliers(context.channel.members).values(), default=self.noise_multiplier)
        return CorrelatedMean(self.clip_norm, noise, FLOATS, stream=self.stream)

    def in_parts(self, splitter: Splitter) -> "CorrelatedByTrust":
        """Refused, as in every stream."""
        refuse("algorithm.split", "given", "hidden parts have no bound over the rounds of a stream", "remove split")

    def describe_stream(self) -> dict[str, Any]:
        """As every edge's."""
        return CorrelatedMean(self.clip_norm, self.noise_multiplier, FLOATS, stream=self.stream).describe_stream()

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """As every edge's."""
        mean = CorrelatedMean(self.clip_norm, self.noise_multiplier, FLOATS, stream=self.stream)
        return mean.explain_guarantee(rounds=rounds, delta=delta, curvature=curvature)


def refuse_untrusted(name: str, trusted: bool) -> None:
    """Correlated noise is added by who gathers, which must be trusted with it."""
    if not trusted:
        law = f"below {name}, which is not trusted, every device adds noise to all that it sends: there is no gain"
        refuse("privacy.noise", "correlated", law, 'use topology.trusted = 1.0, or privacy.noise = "independent"')


class NoiseStreams:
    """Every stream of a run at the step where it stands: in memory only, never logged, stored or handed on.

    Guarantees: a release's noise depends on the secret root, on the numbers of the stream's releases and on the
    strategy alone; asked again for the last one it is the same; where a run goes on, or a round is made again, the
    stream is drawn again from the releases that the ledger has of it. No z noises two releases.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._walks: dict[int, tuple[str, NoiseWalk]] = {}

    def draw_noise(self, row: NoiseRow, strategy: Strategy, dimension: int, releases: Iterable[Release]) -> Row:
        """n_t of a release, in units of its standard deviation sigma S; `releases`: the ledger."""
        name, walk = self._walks.get(row.line, ("", None))
        if walk is not None and name == row.stream and walk.strategy == strategy and len(walk.last) == dimension:
            if walk.releases[row.step :] == [row.release]:
                return walk.last
            if len(walk.releases) == row.step:
                return walk.advance(self._draw_fresh(row.line, row.time, row.release, dimension), row.release)
        walk = NoiseWalk(strategy, dimension)
        for time, release in find_history(row, releases):
            walk.advance(self._draw_fresh(row.line, time, release, dimension), release)
        self._walks[row.line] = (row.stream, walk)
        return walk.advance(self._draw_fresh(row.line, row.time, row.release, dimension), row.release)

    def _draw_fresh(self, line: int, time: int, release: int, dimension: int) -> Row:
        """The row of z that belongs to a release and to no other."""
        rng = self._streams.rng(Purpose.CORRELATED, round=time, participant=EVERYONE - line, use=release)
        return np.asarray(rng.standard_normal(dimension))


def find_history(row: NoiseRow, releases: Iterable[Release]) -> list[tuple[int, int]]:
    """(round, release) of every earlier step of a stream; of a round that was made again, the last.

    Refused where steps are missing: whatever noise came next would not be the stream's.
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
        raise Refused(f"stream={row.stream}: its releases are of one strategy and one noise; bring back what changed")
    if len(last) != row.step:
        law = f"its noise goes on from {row.step} earlier rounds, and the ledger has {len(last)}"
        raise Refused(f"stream={row.stream}: {law}; bring the ledger back, or start a new run")
    return sorted(last.items())


def build_correlated(
    experiment: Experiment, cohorts: Cohorts, edges: Mapping[str, bool], workload: Workload = sum_rounds
) -> CorrelatedMean | CorrelatedByTrust:
    """The mechanism of an experiment file, with unit noise; `edges`: whether each gathering server is trusted."""
    stream, clip_norm = build_stream(experiment, cohorts, workload), experiment.privacy.clip_norm
    if experiment.privacy.place != "edge":
        return CorrelatedMean(clip_norm, 1.0, FLOATS, stream=stream)
    for name, trusted in edges.items():
        refuse_untrusted(name, trusted)
    return CorrelatedByTrust(clip_norm, 1.0, FLOATS, stream=stream)
