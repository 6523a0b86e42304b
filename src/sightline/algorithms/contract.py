"""What an algorithm is, and the one object through which it touches the world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sightline.config import Experiment
from sightline.errors import refuse
from sightline.ledger import Release
from sightline.mechanisms import Cohort, Cohorts, LocalSchedule, Public, StateRule, Updates
from sightline.resources import Cost
from sightline.topology import Channel

State = Mapping[str, Public]
"""Everything an algorithm remembers between rounds: named public vectors, checkpointed as they are."""


DERIVED = "derived"
"""Marks a field of settings that follows from the experiment and is not the user's to give."""


PRIVATE_SIZES = (
    "a client's data may be exchanged for more or fewer examples, and steps that everybody counts with follow"
)


@dataclass(frozen=True)
class WorkStats:
    """Public facts about the work behind a released mean. Where the cohort is a secret they are the same for all.

    Numbers of steps that follow from the sizes of shards are refused where these are not public: for a client whose
    data may be exchanged for any other, also for more or fewer examples.
    """

    learning_rate: float
    share: float
    """How much of all clients' weight stands behind the mean: |S| / N, in expectation where S is a secret."""
    counted: tuple[float, float] | None
    """The mean and the largest number of steps; none where they are not public."""

    @property
    def steps(self) -> float:
        """Expected number of effective local steps, averaged by the weights of the mean."""
        return self._public_steps()[0]

    @property
    def most_steps(self) -> float:
        """The largest number of effective local steps that any client can take."""
        return self._public_steps()[1]

    def _public_steps(self) -> tuple[float, float]:
        if self.counted is None:
            refuse("privacy.adjacency", "replace", PRIVATE_SIZES, 'use adjacency = "add_remove", or give local.steps')
        return self.counted


@dataclass(frozen=True, eq=False)
class ChannelMean:
    """A channel's released mean, with public facts by which it can be read as a gradient."""

    channel: Channel
    value: Public
    reach: float
    """Learning rate x local steps behind it."""
    noise_std: float
    """Of the privacy noise in each of its coordinates."""


class Round(Protocol):
    """One round. Whatever depends on private data comes out of it only by `release_mean` or `release_each`."""

    time: int
    clients: range
    planned: LocalSchedule
    """Local steps and step size of the experiment file."""
    pace: LocalSchedule
    """Those of this round."""
    most_steps: int | None
    """The most local steps that any round may ask for: what its claims must hold for."""
    clip_norm: float | None
    """The experiment's clip norm; None without privacy."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Who gathers updates: a star's server, a tree's edges, the groups' masters."""

    @property
    def period(self) -> int:
        """Rounds from one exchange between channels to the next."""

    @property
    def gathers(self) -> tuple[Channel, ...]:
        """The channels through which a round of all clients reaches the top: a star's server, or a tree's edges."""

    def set_pace(self, wanted: LocalSchedule, *, most_steps: int) -> None:
        """Ask other local steps, step sizes or participation of this round, decided from public values only.

        Before anything is sampled or trained. Nobody may take part more often than the experiment's sampler says or do
        more than `most_steps`; a plan takes those limits in place of what is wanted. Below servers that are not
        trusted, releases at rates of one's own claim `Gaussian(z)`, see `LocalSchedule.rates`.
        """

    @property
    def heard(self) -> Sequence[Sequence[ChannelMean]]:
        """What was released in this round so far: one list a gathering, in the order of its channels."""

    def most_often(self, channel: Channel) -> float:
        """How likely a member of the channel may be to take part, at most."""

    def price_rates(self, rates: Mapping[str, float]) -> tuple[Cost, Cost]:
        """(one gathering at these rates, one way up to the top) by the experiment's resource model, beforehand."""

    def noise_multiplier(self, channel: Channel) -> float:
        """z of what the channel releases."""

    def note_metrics(self, **numbers: float) -> None:
        """Public numbers for the round's metrics."""

    def channel_shares(self, channels: Sequence[Channel]) -> list[float]:
        """The public share of each channel in a mean over all of them."""

    @property
    def rehearsal(self) -> bool:
        """Whether nothing is computed: where the order of releases follows released values, any order will do.

        What is released may not follow them: an algorithm of another package is held to the plan, round by round.
        """

    def server_rng(self) -> np.random.Generator:
        """The server's own generator of this round, for draws from public probabilities."""

    def work_stats(self, cohort: Cohort) -> WorkStats:
        """How much work the cohort's mean update is the mean of."""

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Draw who of a channel's members takes part, as the experiment's sampler says; by default of all clients."""

    def everyone(self) -> Cohort:
        """All clients, openly."""

    def train(
        self, cohort: Cohort, start: Public | Mapping[int, Public], *, memory: StateRule | None = None, **asked: Any
    ) -> Updates:
        """Local training of the cohort from one model or from one model each; private until released.

        `memory` names what clients keep between rounds and how it enters their training; `asked` are fields of
        `LocalTask`, what the call asks otherwise than the experiment.
        """

    def release_mean(self, updates: Updates, channel: Channel | None = None) -> Public:
        """The cohort's mean update, made public to the channel's audience by the experiment's mechanism.

        Without a channel it goes up through every channel that gathers, and the mean of all comes back to everybody.
        """

    def release_means(self, many: Sequence[tuple[Updates, Channel]]) -> list[Public]:
        """Several channels' means of one moment, claimed and recorded together before any of them is computed."""

    def select_models(self, cohort: Cohort, candidates: Sequence[Public], *, epsilon: float) -> dict[int, Public]:
        """Each member's private choice of one of the models, as the model's number, made public to the server.

        Who was asked and did not answer, where clients are elsewhere, is not in it.
        """

    def publish(self, value: Public) -> Public:
        """Let the top show everybody a value that it worked out of what was sent up."""

    def show_values(self, shown: Sequence[tuple[Public, Channel, frozenset[str], str]]) -> Sequence[Release]:
        """Let others see values that are public to some already: (value, by whom, to whom, what it is)."""

    def release_each(self, updates: Updates, channel: Channel | None = None) -> dict[int, Public]:
        """Each member's own update, made public to the channel's audience by the experiment's mechanism."""


@dataclass(frozen=True)
class ClusterState:
    """Clusters as an algorithm's state has them: public values only."""

    cluster_of: tuple[int, ...]
    """The cluster of each client."""
    alike: tuple[int, ...]
    """Equal numbers: clients who have been in equal clusters at all times."""
    how: str
    """How everybody got there: known, drawn, chosen, kept."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the server knows of the clusters: `count`, and of a mixture `mss`, `points`, `centres`, ..."""


class InitFunction(Protocol):
    """The state before the first round."""

    def __call__(self, start: Public, clients: range, settings: Any) -> State:
        """From a freshly initialised model."""


class RoundFunction(Protocol):
    """One round of the algorithm."""

    def __call__(self, state: State, r: Round, settings: Any) -> State:
        """The state after the round."""


class ModelsFunction(Protocol):
    """The models that the algorithm is judged by."""

    def __call__(self, state: State, clients: range) -> Public | dict[int, Public]:
        """One model for all, or one per client."""


def as_given(settings: Any, experiment: Experiment) -> Any:
    """The settings of an algorithm that needs nothing else of the experiment."""
    return settings


def no_clusters(state: State) -> None:
    """What an algorithm without clusters finds."""


def suits_everything(experiment: Experiment) -> None:
    """The check of an algorithm that runs with every unit and mechanism."""


def one_a_round(experiment: Experiment) -> Cohorts:
    """Of an algorithm that draws a cohort of each channel in every round."""
    return Cohorts(experiment.rounds)


def one_gathering(settings: Any, steps: int) -> int:
    """A round gathers once."""
    return 1


def plain_sums(settings: Any, rounds: int) -> Sequence[float] | None:
    """Models are sums over rounds."""
    return None


def never_ends(state: State) -> bool:
    """The rounds decide when a run is over."""
    return False


def keeps_state(algorithm: str) -> Callable[[Experiment], None]:
    """The check of an algorithm whose clients keep what they learned.

    The server must not take the local step for them. And amplification is claimed only where draws are independent: a
    client's state tells whether it took part before, so that later updates of the others would give away who else was
    in a cohort of fixed size, and with it the draw behind the amplification. (Under add/remove such a cohort claims to
    hide nothing, see `FixedCohorts.hidden`.)
    """

    def check(experiment: Experiment) -> None:
        privacy, scheme = experiment.privacy, experiment.sampling.clients.scheme
        hidden = experiment.sampling.clients.scheduled or (scheme == "fixed" and privacy.adjacency == "replace")
        if privacy.unit == "client" and privacy.place != "client" and hidden:
            law = f"{algorithm}'s clients remember that they took part, which undoes what this cohort hides"
            refuse("sampling.clients.scheme", scheme, law, 'use scheme = "poisson" or "full"')
        if privacy.unit == "sample" and privacy.mechanism == "gaussian" and privacy.place == "server":
            law = f"{algorithm}'s clients keep what they learn in local steps, and the server takes the step here"
            refuse("privacy.where", "server", law, 'use where = "client"')

    return check


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: its settings and three pure functions."""

    name: str
    settings: type
    init: InitFunction
    round: RoundFunction
    models: ModelsFunction
    personal: bool = False
    """Whether every client ends with a model of its own."""
    says: str = ""
    """A sentence for the report, where the guarantee needs one."""
    check: Callable[[Experiment], None] = suits_everything
    """Refuses experiments with which the algorithm has no guarantee."""
    topologies: tuple[str, ...] = ("star", "tree")
    """The kinds of topology that it runs on."""
    cohorts: Callable[[Experiment], Cohorts] = one_a_round
    """How many cohorts of each channel it draws."""
    complete: Callable[[Any, Experiment], Any] = as_given
    """Fills in settings that follow from the rest of the experiment."""
    found: Callable[[State], ClusterState | None] = no_clusters
    """The clusters that a state has, for lines of sight, evaluation and report."""
    aggregations: Callable[[Any, int], int] = one_gathering
    """(settings, local steps of a planned round) -> how often a round gathers from its channels."""
    workload: Callable[[Any, int], Sequence[float] | None] = plain_sums
    """(settings, rounds) -> how much of a round's mean is in the model after 1, 2, ... rounds; None: all of it, always.

    What strategies of correlated noise are optimised for."""
    finished: Callable[[State], bool] = never_ends
    """Whether there is nothing left to do before the rounds are over.

    The rounds that are left are charged all the same: released values may have decided this."""
    ending: str = ""
    """What has been done when it is `finished`, for whoever wonders why there are fewer rounds than planned."""
    remembers: bool = False
    """Whether clients train by what they kept of earlier rounds: it tells whether they took part."""
    kept: str = ""
    """The memory that is each client's own model: what clients are judged by, private, never published."""
