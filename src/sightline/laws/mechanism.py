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

from sightline.accounting.compositions import kinds_in
from sightline.errors import Refused
from sightline.events import (
    Adjacency,
    Allocation,
    Clear,
    Event,
    Gaussian,
    Poisson,
    Pooled,
    Product,
    Split,
    Unit,
    WithoutReplacement,
)
from sightline.laws.known_clients import (
    SIGMAS,
    KnownClients,
    NotedUpdates,
    Released,
    RepeatingNodes,
    SilentClients,
    World,
    check_drawn,
    check_normal,
    check_scaled,
)
from sightline.ledger import POST_PROCESSING, Release
from sightline.mechanisms.contract import Mechanism, NoisedBy, NoisedValue, ReleaseContext, ReleaseValues
from sightline.mechanisms.samplers import Cohort, CohortSampler, Full, PoissonCohorts
from sightline.mechanisms.updates import Public
from sightline.plugins import BrokenLaw
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import SERVER, Channel, Star, client_name
from sightline.training.call import CallId

CLIENTS = 6
# Large enough that the standard deviation of the noise is known to about 1 %, and that two noises that are secretly
# equal correlate far beyond chance.
DIMENSION = 3000
FAR = 100.0
"""Length, in clip norms, of an update that is far outside the ball."""
NEEDED = {n: 1.1 + 0.2 * n for n in range(CLIENTS)}
"""Client -> noise multiplier. No two are equal, so that a mix-up of clients shows."""
DRAWS = 800
"""Number of draws of the sampling test, for claims other than Gaussian noise."""
NUMBERED, SMALL = 400, 8
"""Number of draws by which the noise of a number is known, and the dimension of the mean beside it."""
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
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the channel's last release; empty in its first."""

    def check_all(self) -> None:
        """Raise `BrokenLaw` for the first check that fails."""
        self.check_claims()
        self.check_needed_noise()
        gaussian = all(joint_noise(one.event) is not None for one in self.release(self.worlds["spread"]).noisy)
        self.check_numbers(gaussian=gaussian)
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
        result = {
            "spread": spread,
            "along one line": dict.fromkeys(range(CLIENTS), line),
            "one against all": {n: -line if n == 1 else line for n in range(CLIENTS)},
        }
        return {name: {n: row.float() for n, row in world.items()} for name, world in result.items()}

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
        claims_only: bool = False,
    ) -> Released:  # fmt: skip
        """Run one release call in `world` with the random streams of `seed` and return its claims and values."""
        context = self._context(sampler or Full(CLIENTS), seed, time)
        cohort = Cohort(tuple(self.channel.members if members is None else members))
        start = Public(torch.zeros(len(world[0])), frozenset({START}))
        starts = dict.fromkeys(cohort.members, start)
        updates = NotedUpdates(
            cohort, starts, worker or KnownClients(world), CallId(time, 0), eligible=frozenset({START})
        )
        used = (mechanism or self.mechanism.with_noise(NEEDED)).at(self.channel)
        claim, compute = (used.claim_each, used.compute_each) if self.each else (used.claim_mean, used.mean)
        claims = claim(updates, context)
        outcome = ReleaseValues({}) if claims_only else compute(updates, context)
        return Released(claims, updates.left, outcome, self.channel.name)

    def claims_of(self, mechanism: Mechanism, world: World, **how: Any) -> tuple[Release, ...]:
        """Return the claims alone; raise `BrokenLaw` if the mechanism looks at an update to make them."""
        silent = SilentClients(world, "claims are made before updates are computed")
        # Values are not computed here, so any call of the worker comes from making claims.
        return self.release(world, worker=silent, mechanism=mechanism, claims_only=True, **how).claims

    def check_claims(self) -> None:
        """Check that claims are made without data, are the same every time, and name the party that adds the noise."""
        used, world = self.mechanism.with_noise(NEEDED), self.worlds["spread"]
        claims = self.claims_of(used, world)
        if self.claims_of(used, world) != claims or self.release(world).claims != claims:
            raise BrokenLaw(
                "claims are the same every time", "the claims differ when made again, or when values are computed"
            )
        if not claims:
            raise BrokenLaw("every release is claimed", "it claims nothing")
        facts = used.facts
        if facts.noised_value is not NoisedValue.UPDATE or facts.private_steps or facts.keeps_noised:
            raise BrokenLaw(
                "a mechanism noises clients' updates and nothing else", "its facts name another noised value"
            )
        for claim in claims:
            self._check_claim(claim)
        if not claims[-1].audience >= self.channel.audience:
            raise BrokenLaw(
                "every party that sees a value is in its audience",
                "the last claim omits some of the channel's audience",
            )
        self._check_noised_by(used.at(self.channel).noised_by, claims)

    def _check_claim(self, claim: Release) -> None:
        """Check the fields of a single claim."""
        facts = (claim.time, claim.unit, claim.adjacency) == (1, Unit.CLIENT, self.adjacency)
        if not facts or not set(claim.inputs) & {START, *range(FIRST, FIRST + CLIENTS + 2)}:
            raise BrokenLaw(
                "a claim names the unit, the adjacency and the inputs of its value",
                f"{claim.what or claim.source} names others",
            )
        inner = kinds_in(claim.event)
        # All clients take part here (`Full`), so nothing is hidden and only noise can protect. An amplified event would
        # understate the cost.
        if inner & HIDING:
            raise BrokenLaw("a release of all clients claims no amplification", f"{claim.source} claims {claim.event}")
        if claim.event not in (Clear(), POST_PROCESSING) and self.channel.name not in claim.audience | {claim.source}:
            raise BrokenLaw(
                "every party that sees a value is in its audience",
                f"{self.channel.name} sees what {claim.source} sends",
            )

    def _check_noised_by(self, party: NoisedBy, claims: tuple[Release, ...]) -> None:
        """Check that the party that adds the noise claims it, and that what it receives without noise is claimed."""
        sources = {claim.source for claim in claims if claim.event not in (Clear(), POST_PROCESSING)}
        expected = {
            NoisedBy.SERVER: {self.channel.name},
            NoisedBy.CLIENT: self.channel.subjects,
            NoisedBy.NOBODY: set(),
        }
        if not sources or sources != set(expected[party]):
            raise BrokenLaw(
                "the party that adds the noise claims it",
                f"noised_by is the {party}, but {sorted(sources)[:3]} claim noise",
            )
        handed = [claim for claim in claims if claim.event == Clear() and self.channel.name in claim.audience]
        if party is NoisedBy.SERVER and not any(claim.subjects >= self.channel.subjects for claim in handed):
            raise BrokenLaw(
                "every hand-over to a trusted party is claimed", f"{self.channel.name} receives updates without a claim"
            )

    def _context(self, sampler: CohortSampler, seed: int, time: int) -> ReleaseContext:
        streams = Streams.from_seed(seed)
        return ReleaseContext(
            time=time, unit=Unit.CLIENT, adjacency=self.adjacency, channel=self.channel, sampler=sampler, next_id=FIRST,
            noise=lambda who: streams.rng(Purpose.NOISE, round=time, participant=who), numbers=self.numbers,
        )  # fmt: skip

    def check_needed_noise(self) -> None:
        """Check that every client gets the noise it needs, and that calibration's scaled events match the claims."""
        world = self.worlds["spread"]
        for factor in (1.0, 2.0):
            needed = {n: factor * z for n, z in NEEDED.items()}
            for one in self.claims_of(self.mechanism.with_noise(needed), world):
                got = joint_noise(one.event) or math.inf
                for client in (n for n in NEEDED if client_name(n) in one.subjects):
                    if got < needed[client] * self.channel.noise_factor * (1 - 1e-9):
                        seen = f"{client_name(client)} needs {needed[client]:.4g} but gets {got:.4g}"
                        raise BrokenLaw("every client gets the noise that it needs", seen)
        # Calibration scales the events of a plan with unit noise. If the claims at twice the noise cost more than the
        # scaled events, a calibrated run would exceed its epsilon.
        unit, twice = (
            self.claims_of(self.mechanism.with_noise(dict.fromkeys(NEEDED, factor)), world) for factor in (1.0, 2.0)
        )
        for one, two in zip(unit, twice, strict=True):
            if one.event not in (Clear(), POST_PROCESSING):
                check_scaled(self.mechanism.scaled(one.event, 2.0), two.event)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers that come with a mean."""
        return () if self.each else self.mechanism.facts.numbers

    def check_numbers(self, *, gaussian: bool) -> None:
        """Check that numbers are named, repeatable and noised with the sum, and that no claim depends on them."""
        if not self.names:
            return
        used = self.mechanism.with_noise(NEEDED)
        if used.at(self.channel).noised_by is not NoisedBy.SERVER or not gaussian:
            raise BrokenLaw(
                "claims are of a kind that can be checked", "numbers need a sum to which one party adds Gaussian noise"
            )
        world = self.worlds["spread"]
        made, again = (self.release(world).outcome.numbers for _ in range(2))
        if set(made) != set(self.names) or not all(map(math.isfinite, made.values())):
            raise BrokenLaw(
                "a release returns exactly the numbers that the mechanism names",
                f"it names {sorted(self.names)}, but releases {dict(made)}",
            )
        if made != again:
            raise BrokenLaw("the same random streams give the same result", "its numbers differ the second time")
        for numbers in (made, {name: 3 * value + 1 for name, value in made.items()}):
            if replace(self, numbers=numbers).claims_of(used, world) != self.claims_of(used, world):
                raise BrokenLaw("claims do not follow released values", f"its claims change after {dict(numbers)}")

    @cached_property
    def number_noise(self) -> dict[str, float]:
        """Return number -> the standard deviation of its noise.

        Raise `BrokenLaw` if the noise depends on data or correlates with that of the mean.
        """
        unit = self.clip_norm / math.sqrt(SMALL)
        # Every second update is outside the ball, or none.
        worlds = [
            {n: torch.full((SMALL,), unit * (long if n % 2 else 0.1)) for n in range(CLIENTS)} for long in (3.0, 0.1)
        ]
        here, there = (np.array([self._draw_numbers(world, seed) for seed in range(NUMBERED)]) for world in worlds)
        std = here.std(axis=0)
        if ((here - there).std(axis=0)[SMALL:] > 0.1 * std[SMALL:] + 1e-9).any():
            raise BrokenLaw("the noise does not depend on the data", "the noise of a number changes with the updates")
        unit_noise = (here - here.mean(axis=0)) / np.where(std > 0, std, 1.0)
        alike = np.abs(unit_noise.T @ unit_noise / NUMBERED - np.diag(std > 0))[SMALL:]
        if alike.max() > (SIGMAS + 0.5) / math.sqrt(NUMBERED):
            raise BrokenLaw(
                "every release has independent noise", "a number shares noise with the mean or with another number"
            )
        return dict(zip(self.names, std[SMALL:].tolist(), strict=True))

    def _draw_numbers(self, world: World, seed: int) -> list[float]:
        outcome = self.release(world, seed=seed).outcome
        return [*outcome.values[EVERYONE].tolist(), *(outcome.numbers[name] for name in self.names)]

    def numbers_later(self) -> Mapping[str, float]:
        """Return the numbers after some releases of updates that are far too long."""
        laws = self
        for time in range(1, 4):
            laws = replace(laws, numbers=laws.release(self.worlds["along one line"], time=time).outcome.numbers)
        return laws.numbers

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
                raise BrokenLaw(
                    "the same random streams give the same result", f"{one.source}'s value differs the second time"
                )
        result = {name: self.noise_of(world) for name, world in self.worlds.items()}
        first = result["spread"]
        for name, noises in result.items():
            for (one, noise), (_, other) in zip(first, noises, strict=True):
                if float((noise - other).abs().max()) > 1e-4 * (float(noise.std()) + self.clip_norm):
                    raise BrokenLaw(
                        "the noise does not depend on the data", f"{one.source}'s noise changes when updates are {name}"
                    )
        rows = np.array([noise.numpy() for _, noise in [*first, *self.noise_of(self.worlds["spread"], time=2)]])
        check_normal(rows)

    def check_sensitivity(self) -> None:
        """Check that no neighbouring world moves a value further than the claimed noise covers, and only its subjects
        do.
        """
        scale = {r.source: float(noise.square().mean().sqrt()) for r, noise in self.noise_of(self.worlds["spread"])}
        for name, world in self.worlds.items():
            here = self.release(world)
            for subject in self.channel.members:
                for there in self._neighbours(world, subject):
                    self._compare(here, there, subject, scale, f"updates {name}")

    def _neighbours(self, world: World, subject: int) -> Iterator[Released]:
        """Yield the release in neighbouring worlds. A subject that is zeroed out is in no count."""
        if self.names and self.adjacency is Adjacency.ADD_REMOVE:
            yield self.release(world, members=[n for n in self.channel.members if n != subject])
            return
        for twin in self.twins(world, subject):
            yield self.release(twin)

    def _compare(self, here: Released, there: Released, subject: int, scale: Mapping[str, float], where: str) -> None:
        for one, other in zip(here.noisy, there.noisy, strict=True):
            moved = float((here.value_of(one) - there.value_of(other)).norm())
            counted = self._count_moves(here, there)
            if moved <= 1e-4 * self.clip_norm and not counted:
                continue
            if client_name(subject) not in one.subjects:
                raise BrokenLaw(
                    "every client that affects a release is among its subjects",
                    f"{client_name(subject)} affects the release of {one.source}",
                )
            claimed = _noise_in(one.event)
            # `scale` is an estimate from DIMENSION coordinates: its relative standard error is sqrt(0.5 / DIMENSION).
            # The last term covers single precision.
            slack = 1 + SIGMAS * math.sqrt(0.5 / DIMENSION) + 1e-3
            # Mean and numbers are one vector. Its length, in units of the noise, is what one Gaussian must cover.
            if claimed * math.hypot(moved / (scale[one.source] * slack), counted) > 1:
                actual = 1 / math.hypot(moved / scale[one.source], counted)
                seen = f"noise multiplier {claimed:.4g} is claimed, but {actual:.4g} was measured: {where}"
                raise BrokenLaw("the noise matches the claim", seen)

    def _count_moves(self, here: Released, there: Released) -> float:
        """Return how far the numbers of two worlds are apart, in units of their noise; rather too little."""
        moves = {name: abs(here.outcome.numbers[name] - there.outcome.numbers[name]) for name in self.names}
        slack = 1 + SIGMAS * math.sqrt(0.5 / NUMBERED)
        silent = [name for name, moved in moves.items() if moved > 1e-9 and not self.number_noise[name]]
        if silent:
            raise BrokenLaw("the noise matches the claim", f"{silent[0]} depends on updates but has no noise")
        return math.hypot(*(moved / (self.number_noise[name] * slack) for name, moved in moves.items() if moved))

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
                        check_drawn(event, one, other)

    def _draw_projections(self, world: World, draws: int) -> dict[str, tuple[Event, np.ndarray]]:
        """Return source -> (its claim about client 1, the sum of the value's coordinates in every draw)."""
        result: dict[str, tuple[Event, list[float]]] = {}
        unit = self.mechanism.with_noise(dict.fromkeys(NEEDED, 1.0))
        for seed in range(draws):
            made = self.release(world, seed=seed, members=(0, 1), mechanism=unit)
            for one in (one for one in made.noisy if client_name(1) in one.subjects):
                result.setdefault(one.source, (one.event, []))[1].append(float(made.value_of(one).sum()))
        return {source: (event, np.array(values)) for source, (event, values) in result.items()}

    def check_post_processing(self) -> None:
        """Check that post-processing uses only what was sent, and that its inputs in the ledger name it."""
        for world in self.worlds.values():
            made = self.release(world)
            if made.claims[-1].event != POST_PROCESSING or self.each:
                continue
            sent = {FIRST + index for index, claim in enumerate(made.claims) if claim.event != POST_PROCESSING}
            if not sent <= set(made.claims[-1].inputs):
                raise BrokenLaw("post-processing lists its inputs", f"inputs lack releases {sorted(sent)[:3]}")
            reason = "post-processing uses only what members sent"
            if set(made.left) != set(self.channel.members):
                raise BrokenLaw(reason, "members send nothing through `updates.collect_outputs`")
            # Replay the recorded messages with clients that raise when trained: the value must follow from the messages
            # alone.
            again = self.release(world, worker=SilentClients(world, reason, RepeatingNodes(made.left)))
            if not torch.equal(again.outcome.values[EVERYONE], made.outcome.values[EVERYONE]):
                raise BrokenLaw(reason, "the same messages give another value")

    def check_hidden_cohort(self) -> None:
        """Check that amplification by sampling is claimed only where claims, noise and values do not tell who was
        drawn.
        """
        if self.each:
            return
        world, sampler = self.worlds["along one line"], PoissonCohorts(CLIENTS, RATE)
        used = self.mechanism.with_noise(NEEDED)
        few, many = (self.claims_of(used, world, members=who, sampler=sampler) for who in ((4,), (0, 1, 2)))
        full = {claim.source: claim.event for claim in self.claims_of(used, world)}
        hidden = [claim for claim in few if isinstance(claim.event, Poisson)]
        for claim in few:
            if claim.event not in (full.get(claim.source), sampler.hidden_event(full.get(claim.source, Clear()))):
                raise BrokenLaw(
                    "a claim is the sampler's event or that of full participation",
                    f"{claim.source} claims {claim.event}",
                )
        if not hidden:
            return
        if few != many:
            raise BrokenLaw("claims do not depend on the drawn cohort", "another cohort leads to other claims")
        # Noise at the clients comes and goes with the sender, so that a missing sender changes the variance and
        # Poisson's bound does not hold. Only a sum that is noised once may claim it.
        if any(claim.source != self.channel.name or claim.subjects < self.channel.subjects for claim in hidden):
            raise BrokenLaw(
                "only a noised sum claims amplification by sampling",
                f"{hidden[0].source} claims amplification for other releases",
            )
        if any(self.channel.name not in claim.coins_known_to for claim in hidden):
            raise BrokenLaw(
                "the party that draws the cohort is in coins_known_to", f"coins_known_to lacks {self.channel.name}"
            )
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
                    raise BrokenLaw("the noise does not depend on the drawn cohort", "a larger cohort gets other noise")
        for name, updates in self.worlds.items():
            here, there = (self.release(updates, members=who, sampler=sampler) for who in ((0, 1, 2), (0, 2)))
            self._compare(here, there, 1, scale, f"updates {name}, sampled")

    def check_broken_update(self) -> None:
        """Check that an update that is not finite counts as zero: it neither passes through nor stops a round."""
        world = self.worlds["spread"]
        for wrong in (torch.nan, torch.inf):
            made = self.release({**world, 1: torch.full_like(world[1], wrong)})
            values = (
                *made.outcome.values.values(),
                *made.left.values(),
                torch.tensor([*made.outcome.numbers.values()]),
            )
            if not all(torch.isfinite(value).all() for value in values):
                raise BrokenLaw("an update that is not finite counts as zero", f"a value became {wrong}")


def joint_noise(event: Event) -> float | None:
    """Return the noise multiplier of a Gaussian, or of several on one joint vector; None for other events."""
    parts = event.events if isinstance(event, Product) else (event,)
    noises = [part.noise_multiplier for part in parts if isinstance(part, Gaussian)]
    return math.fsum(z**-2 for z in noises) ** -0.5 if noises and len(noises) == len(parts) else None


def _noise_in(event: Event) -> float:
    noise = joint_noise(event.event if isinstance(event, Poisson) else event)
    if noise is None:
        raise BrokenLaw("claims are of a kind that can be checked", f"{event} is not one Gaussian")
    return noise


def check_mechanism_laws(
    mechanism: Mechanism, *, clip_norm: float, adjacency: Adjacency, trusted: bool, draws: int = DRAWS
) -> None:
    """Raise `BrokenLaw` unless a mechanism of clients' updates passes every check, below plain and scaled channels.

    `trusted` says whether the gathering party is trusted. Means are checked, and single values if the mechanism
    releases them.
    """
    plain = replace(Star(CLIENTS, True).top, name=SERVER, trusted=trusted)
    own = replace(plain, noise_factor=1.5, clip_factor=0.5)
    for channel in (plain, own) if mechanism.facts.uses_channel_factors else (plain,):
        clip = clip_norm * channel.clip_factor
        laws = MechanismLaws(mechanism, clip, adjacency, channel, draws=draws)
        laws.check_all()
        if laws.names:  # a number may change what the next release does
            replace(laws, numbers=laws.numbers_later()).check_all()
        each = replace(laws, each=True)
        try:
            each.claims_of(mechanism, each.worlds["spread"])
        except BrokenLaw:
            raise
        except Refused:
            continue  # it protects sums only
        each.check_all()
