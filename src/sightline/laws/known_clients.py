"""Test doubles for clients whose updates are given, and statistical tests of what a mechanism makes of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from sightline import accounting
from sightline.events import Clear, Event, Gaussian
from sightline.ledger import POST_PROCESSING, Release
from sightline.mechanisms.contract import ReleaseContext, ReleaseValues
from sightline.mechanisms.updates import ClientOutput, ClientSideMechanism, RemoteNodes, Updates
from sightline.plugins import BrokenLaw
from sightline.randomness import EVERYONE
from sightline.topology import client_name
from sightline.training.call import Block, CallKind, TrainingCall

# A false alarm would refuse a correct plugin, so every test has odds of about 1e-9: p-values below NEVER, or deviations
# beyond SIGMAS.
NEVER = 1e-9
SIGMAS = 6.5


class KnownClients:
    """A client executor whose updates are given instead of trained."""

    def __init__(self, updates: Mapping[int, Tensor], nodes: RemoteNodes | None = None) -> None:
        self.updates, self.nodes = updates, nodes
        self.dimension = len(next(iter(updates.values())))
        self.sizes: Sequence[int] = [10] * len(updates)

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield each member's start plus its given update; raise `BrokenLaw` for anything but training."""
        if call.kind is not CallKind.TRAIN:
            asked = "evaluations" if call.kind is CallKind.RIGHT_ANSWERS else "private steps"
            raise BrokenLaw("a mechanism noises clients' updates and nothing else", f"it asks for {asked}")
        if call.cohort:
            yield call.cohort, call.starts + torch.stack([self.updates[member] for member in call.cohort])


class SilentClients(KnownClients):
    """Clients that raise `BrokenLaw` when their updates are asked for."""

    def __init__(self, updates: Mapping[int, Tensor], reason: str, nodes: RemoteNodes | None = None) -> None:
        super().__init__(updates, nodes)
        self._reason = reason

    @override
    def run(self, call: TrainingCall) -> Iterator[Block]:
        raise BrokenLaw(self._reason, "it looks at updates")


@dataclass(frozen=True)
class RepeatingNodes:
    """Nodes that send again what was sent before."""

    left: Mapping[int, Tensor]
    steadfast: bool = True

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield the recorded values."""
        yield from (ClientOutput(member, self.left[member]) for member in updates.cohort.members)

    def request_choices(self, ballot: Any, context: ReleaseContext) -> dict[int, int]:
        """Raise `BrokenLaw`: these nodes make no choices."""
        raise BrokenLaw("a mechanism noises clients' updates and nothing else", "it asks for choices")


@dataclass(frozen=True, eq=False)
class NotedUpdates(Updates):
    """Updates that record what each member sends through `collect_outputs`."""

    left: dict[int, Tensor] = field(default_factory=dict)

    @override
    def collect_outputs(self, mechanism: ClientSideMechanism, context: ReleaseContext) -> Iterator[ClientOutput]:
        for output in super().collect_outputs(mechanism, context):
            self.left[output.member] = output.value
            yield output


World = Mapping[int, Tensor]
"""Client -> its update."""


@dataclass(frozen=True, eq=False)
class Released:
    """One release call: its claims, the members' messages and the released values."""

    claims: tuple[Release, ...]
    left: Mapping[int, Tensor]
    outcome: ReleaseValues
    channel: str

    @property
    def noisy(self) -> list[Release]:
        """The claims that carry noise."""
        return [claim for claim in self.claims if claim.event not in (Clear(), POST_PROCESSING)]

    def value_of(self, release: Release) -> Tensor:
        """Return the value of a release. Raise `BrokenLaw` if it was claimed and never sent."""
        every = {client_name(n): v for n, v in {**self.outcome.values, **self.left}.items() if n != EVERYONE}
        if EVERYONE in self.outcome.values:
            every[self.channel] = self.outcome.values[EVERYONE]
        if release.source not in every:
            raise BrokenLaw(
                "every claimed release returns a value", f"{release.source} claims a release but returns no value"
            )
        return every[release.source].double()


def check_scaled(expected: Event, claimed: Event) -> None:
    """Raise `BrokenLaw` if the claimed event costs more than the event that calibration expects."""
    if isinstance(expected, Gaussian) and isinstance(claimed, Gaussian):
        holds = claimed.noise_multiplier >= expected.noise_multiplier * (1 - 1e-9)
    else:
        ours, theirs = (accounting.epsilon({event: 1}, 1e-3) for event in (expected, claimed))
        holds = theirs <= ours * (1 + 1e-6)
    if not holds:
        raise BrokenLaw(
            "the claimed event scales with the calibrated noise", f"{expected} is planned, but {claimed} is claimed"
        )


def check_normal(rows: np.ndarray) -> None:
    """Raise `BrokenLaw` unless rows look standard normal up to scale, and no two rows correlate at any shift."""
    from scipy import stats  # slow to load, and runs of our own need none of it

    if not rows.any(axis=1).all():
        raise BrokenLaw("the noise matches the claim", "a Gaussian is claimed, but the streams produce no noise")
    unit = rows / np.sqrt((rows**2).mean(1, keepdims=True))
    for row in unit:
        if stats.kstest(row, "norm").pvalue < NEVER:
            raise BrokenLaw(
                "the noise matches the claim", "a Gaussian is claimed, but the noise has another distribution"
            )
    if abs((unit**4).mean() - 3) > (SIGMAS + 0.5) * math.sqrt(24 / unit.size):
        raise BrokenLaw("the noise matches the claim", "a Gaussian is claimed, but the noise has other tails")
    # Circular correlation at every shift by FFT: it finds noise that is reused in another release, also if it is
    # shifted.
    spectra = np.fft.rfft(unit)
    for index, spectrum in enumerate(spectra):
        together = np.abs(np.fft.irfft(spectrum.conj() * spectra[index:], unit.shape[1])) / unit.shape[1]
        together[0, 0] = 0.0
        if together.max() > (SIGMAS + 1.5) / math.sqrt(unit.shape[1]):
            raise BrokenLaw(
                "every release has independent noise", "two noises, or two parts of one noise, are correlated"
            )


def check_drawn(event: Event, here: np.ndarray, there: np.ndarray) -> None:
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
                    seen = f"{event} costs epsilon {claimed:.3g} at delta {delta:g}, but samples show more"
                    raise BrokenLaw("the noise matches the claim", seen)
