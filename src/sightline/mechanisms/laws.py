"""Checks for mechanisms that noise clients' updates: compare what is claimed with what happens to known updates.

Only the contract of the mechanism is used. The noise is the difference between two random streams in one world; the
effect of one client is the difference between two neighbouring worlds under the same streams. Both are compared with
the claim. Only a few worlds, built to be hard, are tried: a violation that shows elsewhere only is not found, and
neither is malice.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline import accounting
from sightline.errors import Refused
from sightline.events import (
    Adjacency,
    Allocation,
    Clear,
    Event,
    Gaussian,
    Poisson,
    Pooled,
    Split,
    Unit,
    WithoutReplacement,
)
from sightline.ledger import POST_PROCESSING, Release
from sightline.mechanisms.contract import Mechanism, NoisedBy, NoisedValue, ReleaseContext, ReleaseValues
from sightline.mechanisms.known_clients import (
    KnownClients,
    NotedUpdates,
    Released,
    RepeatingNodes,
    SilentClients,
    World,
)
from sightline.mechanisms.samplers import Cohort, CohortSampler, Full, PoissonCohorts
from sightline.mechanisms.updates import CallId, Public, Updates
from sightline.plugins import BrokenLaw
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import SERVER, Channel, Star, client_name

CLIENTS = 6
# Large enough that the standard deviation of the noise is known to about 1 %, and that two noises that are secretly
# equal correlate far beyond chance.
DIMENSION = 3000
FAR = 100.0
"""Length, in clip norms, of an update that is far outside the ball."""
NEEDED = {n: 1.1 + 0.2 * n for n in range(CLIENTS)}
"""Client -> noise multiplier. No two are equal, so that a mix-up of clients shows."""
# A false alarm would refuse a correct plugin, so every test has odds of about 1e-9: p-values below NEVER, or deviations
# beyond SIGMAS.
NEVER = 1e-9
SIGMAS = 6.5
DRAWS = 800
"""Number of draws of the sampling test, for claims other than Gaussian noise."""
RATE = 0.5
FIRST, START = 3, 1
"""The ledger number of a call's first release, and the release behind all starting points."""
HIDING = {Poisson, WithoutReplacement, Split, Allocation, Pooled}
"""Events that hide something: who takes part, which part of the model, whose noise."""


@dataclass(frozen=True)
class MechanismLaws:
    """A mechanism below one channel, with the checks that it must pass."""

    mechanism: Mechanism
    clip_norm: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    channel: Channel = field(default_factory=lambda: Star(CLIENTS, True).top)
    each: bool = False
    """Whether every member's own value is released instead of the mean."""
    draws: int = DRAWS

    def check_all(self) -> None:
        """Raise `BrokenLaw` for the first check that fails."""
        self.check_claims()
        self.check_needed_noise()
        gaussian = all(isinstance(one.event, Gaussian) for one in self.release(self.worlds["spread"]).noisy)
        if gaussian:
            self.check_noise()
            self.check_sensitivity()
        elif not self.each or self.draws > DRAWS:
            self.check_by_drawing()
        self.check_post_processing()
        self.check_hidden_cohort()
        self.check_broken_update()

    @cached_property
    def worlds(self) -> dict[str, World]:
        """The test worlds: updates inside and outside the clip norm; all parallel and far too long; one against all
        others.
        """
        rng = np.random.default_rng(7)
        rows = torch.from_numpy(rng.standard_normal((CLIENTS, DIMENSION)))
        rows /= rows.norm(dim=1, keepdim=True)
        line = rows[0] * FAR * self.clip_norm
        spread = {n: rows[n] * self.clip_norm * (3.0 if n % 2 else 0.1) for n in range(CLIENTS)}
        found = {
            "spread": spread,
            "along one line": dict.fromkeys(range(CLIENTS), line),
            "one against all": {n: -line if n == 1 else line for n in range(CLIENTS)},
        }
        return {name: {n: row.float() for n, row in world.items()} for name, world in found.items()}

    def twins(self, world: World, subject: int) -> Iterator[World]:
        """Yield neighbouring worlds: the subject's update zeroed, and negated as well under replace-one."""
        zero = torch.zeros_like(world[subject])
        yield {**world, subject: zero}
        # Long opposite updates are clipped to opposite points of the ball: the largest distance that replace-one
        # allows.
        if self.adjacency is Adjacency.REPLACE:
            yield {**world, subject: -world[subject]}

    def release(
        self, world: World, *, seed: int = 1, time: int = 1, members: Sequence[int] | None = None,
        sampler: CohortSampler | None = None, worker: KnownClients | None = None, mechanism: Mechanism | None = None,
    ) -> Released:  # fmt: skip
        """Run one release call in `world` with the random streams of `seed` and return its claims and values."""
        context = self._context(sampler or Full(CLIENTS), seed, time)
        cohort = Cohort(tuple(self.channel.members if members is None else members))
        start = Public(torch.zeros(len(world[0])), frozenset({START}))
        starts = dict.fromkeys(cohort.members, start)
        updates = NotedUpdates(
            cohort, starts, worker or KnownClients(world), CallId(time, 0), eligible=frozenset({START})
        )
        used = mechanism or self.mechanism.with_noise(NEEDED)
        claim, compute = (used.claim_each, used.compute_each) if self.each else (used.claim_mean, used.mean)
        claims = claim(updates, context)
        outcome = compute(updates, context)
        return Released(claims, updates.left, outcome, self.channel.name)

    def claims_of(self, mechanism: Mechanism, world: World, **how: Any) -> tuple[Release, ...]:
        """Return the claims alone; raise `BrokenLaw` if the mechanism looks at an update to make them."""
        silent = SilentClients(world, "claims before values")
        return self._claims(mechanism, silent, **how)

    def _claims(self, mechanism: Mechanism, worker: KnownClients, **how: Any) -> tuple[Release, ...]:
        # Values are never computed here, so any call of the worker comes from making claims.
        only = replace(self, mechanism=_ClaimsOnly(mechanism))  # type: ignore[arg-type]
        return only.release(worker.updates, worker=worker, mechanism=only.mechanism, **how).claims

    def check_claims(self) -> None:
        """Check that claims are made without data, are the same every time, and name the party that adds the noise."""
        used, world = self.mechanism.with_noise(NEEDED), self.worlds["spread"]
        claims = self.claims_of(used, world)
        here = self.claims_of(used.at(self._context(Full(CLIENTS), 1, 1)), world)
        if self.claims_of(used, world) != claims or self.release(world).claims != claims or here != claims:
            raise BrokenLaw("claims are facts", "claimed again, beside values or below its channel, they are others")
        if not claims:
            raise BrokenLaw("what is released is claimed", "it claims nothing")
        if used.noised_value is not NoisedValue.UPDATE or used.steps_of(0) is not None or used.keeps_noised:
            raise BrokenLaw("clients' updates are what is noised", "it says that something else is")
        for one in claims:
            self._check_claim(one)
        if not claims[-1].audience >= self.channel.audience:
            raise BrokenLaw(
                "who sees a value is its audience", "the last claim leaves out some of the channel's audience"
            )
        self._check_noised_by(used.noised_by(self._context(Full(CLIENTS), 1, 1)), claims)

    def _check_claim(self, one: Release) -> None:
        """Check the fields of a single claim."""
        facts = (one.time, one.unit, one.adjacency) == (1, Unit.CLIENT, self.adjacency)
        if not facts or not set(one.inputs) & {START, *range(FIRST, FIRST + CLIENTS + 2)}:
            raise BrokenLaw(
                "a claim says where a value comes from", f"{one.what or one.source} has other facts or inputs"
            )
        inner = kinds_in(one.event)
        # All clients take part here (`Full`), so nothing is hidden and only noise can protect. An amplified event would
        # understate the cost.
        if inner & HIDING:
            raise BrokenLaw("a claim of everybody rests on noise", f"{one.source} claims {one.event}")
        if one.event not in (Clear(), POST_PROCESSING) and self.channel.name not in one.audience | {one.source}:
            raise BrokenLaw("who sees a value is its audience", f"{self.channel.name} sees what {one.source} sends")

    def _check_noised_by(self, said: NoisedBy, claims: tuple[Release, ...]) -> None:
        """Check that the party that adds the noise claims it, and that what it receives without noise is claimed."""
        sources = {one.source for one in claims if one.event not in (Clear(), POST_PROCESSING)}
        expected = {
            NoisedBy.SERVER: {self.channel.name},
            NoisedBy.CLIENT: self.channel.subjects,
            NoisedBy.NOBODY: set(),
        }
        if not sources or sources != set(expected[said]):
            raise BrokenLaw(
                "who adds the noise claims it", f"said is the {said}, and {sorted(sources)[:3]} claim noise"
            )
        handed = [one for one in claims if one.event == Clear() and self.channel.name in one.audience]
        if said is NoisedBy.SERVER and not any(one.subjects >= self.channel.subjects for one in handed):
            raise BrokenLaw("what is handed over is in the ledger", f"{self.channel.name} gets updates without a claim")

    def _context(self, sampler: CohortSampler, seed: int, time: int) -> ReleaseContext:
        streams = Streams.from_seed(seed)
        return ReleaseContext(
            time=time, unit=Unit.CLIENT, adjacency=self.adjacency, channel=self.channel, sampler=sampler, next_id=FIRST,
            noise=lambda who: streams.rng(Purpose.NOISE, round=time, participant=who),
        )  # fmt: skip

    def check_needed_noise(self) -> None:
        """Check that every client gets the noise it needs, and that calibration's scaled events match the claims."""
        world = self.worlds["spread"]
        for factor in (1.0, 2.0):
            needed = {n: factor * z for n, z in NEEDED.items()}
            for one in self.claims_of(self.mechanism.with_noise(needed), world):
                got = one.event.noise_multiplier if isinstance(one.event, Gaussian) else math.inf
                for client in (n for n in NEEDED if client_name(n) in one.subjects):
                    if got < needed[client] * self.channel.noise_factor * (1 - 1e-9):
                        seen = f"{client_name(client)} needs {needed[client]:.4g} and gets {got:.4g}"
                        raise BrokenLaw("nobody gets less noise than it needs", seen)
        # Calibration scales the events of a plan with unit noise. If the claims at twice the noise cost more than the
        # scaled events, a calibrated run would exceed its epsilon.
        unit, twice = (
            self.claims_of(self.mechanism.with_noise(dict.fromkeys(NEEDED, factor)), world) for factor in (1.0, 2.0)
        )
        for one, two in zip(unit, twice, strict=True):
            if one.event not in (Clear(), POST_PROCESSING):
                _check_scaled(self.mechanism.scaled(one.event, 2.0), two.event)

    def noise_of(self, world: World, *, time: int = 1, **how: Any) -> list[tuple[Release, Tensor]]:
        """Return (release, noise) pairs: the difference of two streams, divided by sqrt 2 so that it has one noise's
        scale.
        """
        first, second = (self.release(world, seed=seed, time=time, **how) for seed in (1, 2))
        return [(r, (first.value_of(r) - second.value_of(r)) / math.sqrt(2)) for r in first.noisy]

    def check_noise(self) -> None:
        """Check that the noise is Gaussian and independent of data, rounds and other noises, and that streams repeat
        it.
        """
        # A resumed round must release the same bits: two noises on one value would let an observer average them.
        again = self.release(self.worlds["spread"]), self.release(self.worlds["spread"])
        for one in again[0].noisy:
            if not torch.equal(again[0].value_of(one), again[1].value_of(one)):
                raise BrokenLaw("same streams, same bits", f"{one.source}'s value is another the second time")
        found = {name: self.noise_of(world) for name, world in self.worlds.items()}
        first = found["spread"]
        for name, noises in found.items():
            for (one, noise), (_, other) in zip(first, noises, strict=True):
                if float((noise - other).abs().max()) > 1e-4 * (float(noise.std()) + self.clip_norm):
                    raise BrokenLaw("noise knows no data", f"{one.source}'s noise is another when updates are {name}")
        rows = np.array([noise.numpy() for _, noise in [*first, *self.noise_of(self.worlds["spread"], time=2)]])
        _check_normal(rows)

    def check_sensitivity(self) -> None:
        """Check that no neighbouring world moves a value further than the claimed noise covers, and only its subjects
        do.
        """
        scale = {r.source: float(noise.square().mean().sqrt()) for r, noise in self.noise_of(self.worlds["spread"])}
        for name, world in self.worlds.items():
            here = self.release(world)
            for subject in self.channel.members:
                for twin in self.twins(world, subject):
                    self._compare(here, self.release(twin), subject, scale, f"updates {name}")

    def _compare(self, here: Released, there: Released, subject: int, scale: Mapping[str, float], where: str) -> None:
        for one, other in zip(here.noisy, there.noisy, strict=True):
            moved = float((here.value_of(one) - there.value_of(other)).norm())
            if moved <= 1e-4 * self.clip_norm:
                continue
            if client_name(subject) not in one.subjects:
                raise BrokenLaw(
                    "who is in a release is its subject", f"{client_name(subject)} moves that of {one.source}"
                )
            claimed = _gaussian_in(one.event).noise_multiplier
            # `scale` is an estimate from DIMENSION coordinates: its relative standard error is sqrt(0.5 / DIMENSION).
            # The last term covers single precision.
            slack = 1 + SIGMAS * math.sqrt(0.5 / DIMENSION) + 1e-3
            if claimed * moved > scale[one.source] * slack:
                seen = (
                    f"noise multiplier {claimed:.4g} is claimed, and {scale[one.source] / moved:.4g} is there: {where}"
                )
                raise BrokenLaw("noise as claimed", seen)

    def check_by_drawing(self) -> None:
        """Test claims other than Gaussian noise by many draws in two neighbouring worlds of few dimensions."""
        for size, draws in ((1, self.draws), (9, self.draws // 4)):
            line = torch.full((size,), FAR * self.clip_norm)
            here = dict.fromkeys(range(CLIENTS), line)
            for there in self.twins(here, 1):
                pair = [self._draw_projections(world, draws) for world in (here, there)]
                for source in pair[0]:
                    event, with_subject = pair[0][source]
                    for one, other in ((with_subject, pair[1][source][1]), (pair[1][source][1], with_subject)):
                        _check_drawn(event, one, other)

    def _draw_projections(self, world: World, draws: int) -> dict[str, tuple[Event, np.ndarray]]:
        """Return source -> (its claim about client 1, the sum of the value's coordinates in every draw)."""
        found: dict[str, tuple[Event, list[float]]] = {}
        unit = self.mechanism.with_noise(dict.fromkeys(NEEDED, 1.0))
        for seed in range(draws):
            made = self.release(world, seed=seed, members=(0, 1), mechanism=unit)
            for one in (one for one in made.noisy if client_name(1) in one.subjects):
                found.setdefault(one.source, (one.event, []))[1].append(float(made.value_of(one).sum()))
        return {source: (event, np.array(values)) for source, (event, values) in found.items()}

    def check_post_processing(self) -> None:
        """Check that post-processing uses only what was sent, and that its inputs in the ledger name it."""
        for world in self.worlds.values():
            made = self.release(world)
            if made.claims[-1].event != POST_PROCESSING or self.each:
                continue
            sent = {FIRST + place for place, one in enumerate(made.claims) if one.event != POST_PROCESSING}
            if not sent <= set(made.claims[-1].inputs):
                raise BrokenLaw("post-processing names what it is made of", f"inputs lack releases {sorted(sent)[:3]}")
            law = "post-processing is made of what was sent"
            if set(made.left) != set(self.channel.members):
                raise BrokenLaw(law, "members let nothing go by `updates.collect_outputs`")
            # Replay the recorded messages with clients that raise when trained: the value must follow from the messages
            # alone.
            again = self.release(world, worker=SilentClients(world, law, RepeatingNodes(made.left)))
            if not torch.equal(again.outcome.values[EVERYONE], made.outcome.values[EVERYONE]):
                raise BrokenLaw(law, "of the same messages another value is made")

    def check_hidden_cohort(self) -> None:
        """Check that amplification by sampling is claimed only where claims, noise and values do not tell who was
        drawn.
        """
        if self.each:
            return
        world, sampler = self.worlds["along one line"], PoissonCohorts(CLIENTS, RATE)
        used = self.mechanism.with_noise(NEEDED)
        few, many = (self.claims_of(used, world, members=who, sampler=sampler) for who in ((4,), (0, 1, 2)))
        full = {one.source: one.event for one in self.claims_of(used, world)}
        hidden = [one for one in few if isinstance(one.event, Poisson)]
        for one in few:
            if one.event not in (full.get(one.source), sampler.hidden_event(full.get(one.source, Clear()))):
                raise BrokenLaw("a claim is the sampler's or none", f"{one.source} claims {one.event}")
        if not hidden:
            return
        if few != many:
            raise BrokenLaw("claims do not tell who was drawn", "another cohort makes other claims")
        # Noise at the clients comes and goes with the sender, so that a missing sender changes the variance and
        # Poisson's bound does not hold. Only a sum that is noised once may claim it.
        if any(one.source != self.channel.name or one.subjects < self.channel.subjects for one in hidden):
            raise BrokenLaw("only a sum hides who is in it", f"{hidden[0].source} claims that sampling hides members")
        if any(self.channel.name not in one.coins_known_to for one in hidden):
            raise BrokenLaw("who draws knows who was drawn", f"coins_known_to lacks {self.channel.name}")
        self._check_hidden_values(world, sampler)

    def _check_hidden_values(self, world: World, sampler: CohortSampler) -> None:
        """Check that the noise does not depend on the cohort, and that one member less moves the value within its
        bound.
        """
        noises = [self.noise_of(world, members=who, sampler=sampler) for who in ((), (4,), (0, 1, 2))]
        scale = {r.source: float(noise.square().mean().sqrt()) for r, noise in noises[0]}
        for some in noises[1:]:
            for one, noise in some:
                if abs(float(noise.square().mean().sqrt()) / scale[one.source] - 1) > 1e-3:
                    raise BrokenLaw("noise does not tell who was drawn", "a larger cohort has another noise")
        for name, updates in self.worlds.items():
            here, there = (self.release(updates, members=who, sampler=sampler) for who in ((0, 1, 2), (0, 2)))
            self._compare(here, there, 1, scale, f"updates {name}, sampled")

    def check_broken_update(self) -> None:
        """Check that an update that is not finite counts as zero: it neither passes through nor stops a round."""
        world = self.worlds["spread"]
        for wrong in (torch.nan, torch.inf):
            made = self.release({**world, 1: torch.full_like(world[1], wrong)})
            if not all(torch.isfinite(value).all() for value in (*made.outcome.values.values(), *made.left.values())):
                raise BrokenLaw("an update that is not finite counts as none", f"{wrong} passes")


class _ClaimsOnly:
    """A mechanism that makes the claims of another one and computes no values."""

    def __init__(self, whole: Mechanism) -> None:
        self.claim_mean, self.claim_each = whole.claim_mean, whole.claim_each

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        return ReleaseValues({})

    compute_each = mean


def kinds_in(event: Event) -> set[type[Event]]:
    """Return the types of an event and of all events inside it."""
    inner = [getattr(event, "event", None), *getattr(event, "events", ())]
    return {type(event)}.union(*(kinds_in(one) for one in inner if one is not None))


def _gaussian_in(event: Event) -> Gaussian:
    inner = event.event if isinstance(event, Poisson) else event
    if not isinstance(inner, Gaussian):
        raise BrokenLaw("what is claimed can be checked", f"{event} is not one Gaussian")
    return inner


def _check_scaled(expected: Event, claimed: Event) -> None:
    """Raise `BrokenLaw` if the claimed event costs more than the event that calibration expects."""
    if isinstance(expected, Gaussian) and isinstance(claimed, Gaussian):
        holds = claimed.noise_multiplier >= expected.noise_multiplier * (1 - 1e-9)
    else:
        ours, theirs = (accounting.epsilon({event: 1}, 1e-3) for event in (expected, claimed))
        holds = theirs <= ours * (1 + 1e-6)
    if not holds:
        raise BrokenLaw("an event scales with the noise", f"{expected} is planned for, and {claimed} is claimed")


def _check_normal(rows: np.ndarray) -> None:
    """Raise `BrokenLaw` unless rows look standard normal up to scale, and no two rows correlate at any shift."""
    from scipy import stats  # slow to load, and runs of our own need none of it

    if not rows.any(axis=1).all():
        raise BrokenLaw("noise as claimed", "a Gaussian is claimed, and the streams make no noise")
    unit = rows / np.sqrt((rows**2).mean(1, keepdims=True))
    for row in unit:
        if stats.kstest(row, "norm").pvalue < NEVER:
            raise BrokenLaw("noise as claimed", "a Gaussian is claimed, and the noise is none")
    if abs((unit**4).mean() - 3) > (SIGMAS + 0.5) * math.sqrt(24 / unit.size):
        raise BrokenLaw("noise as claimed", "a Gaussian is claimed, and the noise has other tails")
    # Circular correlation at every shift by FFT: it finds noise that is reused in another release, also if it is
    # shifted.
    spectra = np.fft.rfft(unit)
    for place, one in enumerate(spectra):
        together = np.abs(np.fft.irfft(one.conj() * spectra[place:], unit.shape[1])) / unit.shape[1]
        together[0, 0] = 0.0
        if together.max() > (SIGMAS + 1.5) / math.sqrt(unit.shape[1]):
            raise BrokenLaw("every release has noise of its own", "two noises, or two parts of one, are alike")


def _check_drawn(event: Event, here: np.ndarray, there: np.ndarray) -> None:
    """Raise `BrokenLaw` if P(tail) <= e^epsilon Q(tail) + delta fails by more than these draws allow, at any delta."""
    from scipy import stats

    # Cuts are chosen on the first quarter and tested on the rest, so that the choice does not bias the test.
    first = len(here) // 4
    cuts = np.quantile(np.concatenate([here[:first], there[:first]]), np.linspace(0.02, 0.98, 25))
    for delta in (1e-6, 1e-2, 0.1):
        claimed = accounting.epsilon({event: 1}, delta)
        for cut in cuts:
            for tail in (np.greater, np.less):
                ours, theirs = int(tail(here[first:], cut).sum()), int(tail(there[first:], cut).sum())
                tested = len(here) - first
                # Clopper-Pearson bounds: exact for every count, so the odds of a false alarm hold for few draws as
                # well.
                low = stats.beta.ppf(NEVER, ours, tested - ours + 1) if ours else 0.0
                high = stats.beta.ppf(1 - NEVER, theirs + 1, tested - theirs) if theirs < tested else 1.0
                if low > math.exp(min(claimed, 700.0)) * high + delta:
                    seen = f"{event} costs epsilon {claimed:.3g} at delta {delta:g}, and drawing it shows more"
                    raise BrokenLaw("noise as claimed", seen)


def check_mechanism_laws(
    mechanism: Mechanism, *, clip_norm: float, adjacency: Adjacency, trusted: bool, draws: int = DRAWS
) -> None:
    """Raise `BrokenLaw` unless a mechanism of clients' updates passes every check, below plain and scaled channels.

    `trusted` says whether the gathering party is trusted. Means are checked, and single values if the mechanism
    releases them.
    """
    plain = replace(Star(CLIENTS, True).top, name=SERVER, trusted=trusted)
    own = replace(plain, noise_factor=1.5, clip_factor=0.5)
    for channel in (plain, own) if mechanism.uses_channel_factors else (plain,):
        clip = clip_norm * channel.clip_factor
        laws = MechanismLaws(mechanism, clip, adjacency, channel, draws=draws)
        laws.check_all()
        each = replace(laws, each=True)
        try:
            each.claims_of(mechanism, each.worlds["spread"])
        except BrokenLaw:
            raise
        except Refused:
            continue  # it protects sums only
        each.check_all()
