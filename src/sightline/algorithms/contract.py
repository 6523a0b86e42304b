"""The contract of an algorithm, and `Round`, the one object through which it reaches clients and the ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Signature, signature
from typing import Any, Protocol

import numpy as np

from sightline.config import Experiment
from sightline.errors import refuse
from sightline.mechanisms import Cohort, Cohorts, LocalSchedule, Public, StateRule, Updates
from sightline.resources import Cost
from sightline.topology import Channel

# Only `Public` values: state can then never hold anything that was not released, and its sources reach the ledger.
State = Mapping[str, Public]
"""What an algorithm remembers between rounds: named public vectors, checkpointed as they are."""


DERIVED = "derived"
"""Marks a settings field that follows from the experiment and cannot be set by the user."""


PRIVATE_SIZES = "a client's replacement may have more or fewer examples, and public step counts would reveal it"


@dataclass(frozen=True)
class WorkStats:
    """Public facts about the work behind a released mean; the same for every cohort if the cohort is a secret.

    Reading step counts that follow from shard sizes raises `Refused` if sizes are not public: under replace-one at
    client level a neighbour may hold more or fewer examples.
    """

    learning_rate: float
    share: float
    """Share of all clients' weight behind the mean: |S| / N, in expectation if S is a secret."""
    counted: tuple[float, float] | None
    """The mean and the largest number of steps; None if they are not public."""

    @property
    def steps(self) -> float:
        """Expected number of effective local steps, averaged by the weights of the mean."""
        return self._public_steps()[0]

    @property
    def most_steps(self) -> float:
        """The largest number of effective local steps of any client."""
        return self._public_steps()[1]

    def _public_steps(self) -> tuple[float, float]:
        # A client with more data than all others would change numbers that every client computes with, far beyond its
        # own clipped update. No bound on its update covers that.
        if self.counted is None:
            refuse("privacy.adjacency", "replace", PRIVATE_SIZES, 'use adjacency = "add_remove", or give local.steps')
        return self.counted


@dataclass(frozen=True, eq=False)
class ChannelMean:
    """A channel's released mean, with the public facts needed to read it as a gradient."""

    channel: Channel
    value: Public
    reach: float
    """Learning rate x local steps behind it."""
    noise_std: float
    """Standard deviation of the privacy noise in each coordinate."""


class RoundControl(Protocol):
    """What an algorithm that steers its rounds reads and sets: schedule, participation, costs and noise; all public."""

    planned: LocalSchedule
    """Local steps and step size of the experiment file."""
    schedule: LocalSchedule
    """Local steps and step size of this round."""
    most_steps: int | None
    """The most local steps that any round may ask for; claims must hold for it."""
    clip_norm: float | None
    """The experiment's clip norm; None without privacy."""
    period: int
    """Rounds from one exchange between channels to the next."""
    top: Channel
    """The channel that publishes to everyone."""
    gathering_channels: tuple[Channel, ...]
    """The channels through which a round of all clients reaches the top: a star's server, or a tree's edges."""
    channel_means: Sequence[Sequence[ChannelMean]]
    """The means released in this round so far: one list per gathering, in the order of its channels."""

    released: dict[str, Public]
    """Channel -> the numbers that its last mean was released with, see `MechanismFacts.numbers`; empty without any."""

    def set_schedule(self, wanted: LocalSchedule, *, most_steps: int) -> None:
        """Set other local steps, step sizes or participation for this round, chosen from public values only.

        Call it before anything is sampled or trained. Raise `Refused` for participation above the experiment's sampler
        or more than `most_steps`; a plan uses those limits instead. Below untrusted servers, releases at own rates
        claim `Gaussian(z)`, see `LocalSchedule.rates`.
        """

    def largest_rate(self, channel: Channel) -> float:
        """Return the largest probability with which a member of the channel may take part."""

    def price_rates(self, rates: Mapping[str, float]) -> tuple[Cost, Cost]:
        """Return (cost of one gathering at these rates, cost of one way up to the top) by the resource model."""

    def noise_multiplier(self, channel: Channel) -> float:
        """Return the noise multiplier of the channel's releases."""

    def channel_shares(self, channels: Sequence[Channel]) -> list[float]:
        """Return the public share of each channel in a mean over all of them."""

    def note_metrics(self, **numbers: float) -> None:
        """Add public numbers to the round's metrics."""


class Round(Protocol):
    """One round. Values that depend on private data leave it only through the release methods."""

    time: int
    clients: range

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels that gather updates: a star's server, a tree's edges, the groups' masters."""

    @property
    def control(self) -> RoundControl:
        """The schedule of the round, for algorithms that choose it, and how channels exchange."""

    @property
    def rehearsal(self) -> bool:
        """Whether this is a plan, in which nothing is computed; an adaptive order of releases may then be any order.

        The releases themselves must not depend on released values: a plugin is held to its plan, round by round.
        """

    def server_rng(self) -> np.random.Generator:
        """Return the server's generator of this round, for draws from public probabilities."""

    def work_stats(self, cohort: Cohort) -> WorkStats:
        """Return the public facts about the work behind the cohort's mean update."""

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Draw the cohort of a channel by the experiment's sampler; by default of all clients.

        Where sampling hides who that is, an algorithm of another package cannot read it: the cohort is for `train`.
        """

    def everyone(self) -> Cohort:
        """Return the cohort of all clients, publicly."""

    def train(
        self, cohort: Cohort, start: Public | Mapping[int, Public], *, memory: StateRule | None = None, **asked: Any
    ) -> Updates:
        """Return the updates of the cohort, trained from one model or one model each; private until released.

        `memory` is the state that clients keep between rounds and how it enters their training; `asked` are fields of
        `LocalTask` that differ from the experiment.
        """

    def release_mean(self, updates: Updates, channel: Channel | None = None) -> Public:
        """Release the cohort's mean update to the channel's audience by the experiment's mechanism, and return it.

        Without a channel it goes up through every gathering channel, and the mean of all is published to everyone.
        """

    def release_means(self, many: Sequence[tuple[Updates, Channel]]) -> list[Public]:
        """Release the means of several channels at once; all are claimed and recorded before any is computed."""

    def select_models(self, cohort: Cohort, candidates: Sequence[Public], *, epsilon: float) -> dict[int, Public]:
        """Return each member's private choice of one of the models, as the model's number, released to the server.

        Remote clients that do not answer are missing.
        """

    def publish(self, value: Public) -> Public:
        """Publish to everyone, by the top server, a value computed from what was sent up."""

    def show(self, shown: Sequence[tuple[Public, Channel, frozenset[str], str]]) -> list[Public]:
        """Send values that some parties hold to more parties: (value, by whom, to whom, what it is).

        Returns the same values, held by these parties too. It costs no privacy, but the ledger records the flow. A
        value of `COUNTED` is recorded as seen and never sent.
        """

    def release_each(self, updates: Updates, channel: Channel | None = None) -> dict[int, Public]:
        """Release each member's own update to the channel's audience by the experiment's mechanism, and return them."""


@dataclass(frozen=True)
class ClusterState:
    """Clusters in an algorithm's state: public values only."""

    cluster_of: tuple[int, ...]
    """The cluster of each client."""
    # Such clients were sent the same models and have equal views, so two of each class stand for all as observers.
    alike: tuple[int, ...]
    """Equal numbers for clients that have been in the same clusters at all times."""
    how: str
    """How clients got their cluster: known, drawn, chosen or kept."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the server knows of the clusters: `count`, and for a mixture `mss`, `points`, `centres`, ..."""


class InitFunction(Protocol):
    """A function that returns the state before the first round."""

    def __call__(self, start: Public, clients: range, settings: Any) -> State:
        """Return the state for a freshly initialised model."""


class RoundFunction(Protocol):
    """A function that runs one round of the algorithm."""

    def __call__(self, state: State, r: Round, settings: Any) -> State:
        """Return the state after the round."""


class ModelsFunction(Protocol):
    """A function that returns the models by which the algorithm is evaluated."""

    def __call__(self, state: State, clients: range) -> Public | dict[int, Public]:
        """Return one model for all, or one per client."""


def global_model(state: State, clients: range) -> Public:
    """Return the one model of an algorithm whose state holds it under `model`."""
    return state["model"]


def keeps_state(algorithm: str) -> Callable[[Experiment], None]:
    """Return the check of an algorithm whose clients keep state.

    The server must not take the local step for them. And amplification is claimed only for independent draws: a
    client's state reveals whether it took part before, so later updates of the others would reveal who else was in a
    cohort of fixed size, and with it the draw behind the amplification. (Under add/remove such a cohort claims to hide
    nothing, see `FixedCohorts.hidden`.)
    """

    def check(experiment: Experiment) -> None:
        privacy, scheme = experiment.privacy, experiment.sampling.clients.scheme
        hidden = experiment.sampling.clients.scheduled or (scheme == "fixed" and privacy.adjacency == "replace")
        if privacy.unit == "client" and privacy.place != "client" and hidden:
            reason = f"{algorithm}'s clients keep state, which reveals earlier cohorts and undoes amplification"
            refuse("sampling.clients.scheme", scheme, reason, 'use scheme = "poisson" or "full"')
        if privacy.unit == "sample" and privacy.mechanism == "gaussian" and privacy.place == "server":
            reason = f'{algorithm} needs local steps at the clients; with where = "server" the server takes the step'
            refuse("privacy.where", "server", reason, 'use where = "client"')

    return check


@dataclass(frozen=True)
class AlgorithmFacts:
    """What the engine and the report must know about an algorithm; the defaults suit FedAvg."""

    personal: bool = False
    """Whether every client ends with its own model."""
    says: str = ""
    """A sentence for the report, if the guarantee needs one."""
    check: Callable[[Experiment], None] = lambda experiment: None
    """Raises for experiments with which the algorithm has no guarantee."""
    topologies: tuple[str, ...] = ("star", "tree")
    """The kinds of topology on which it runs."""
    cohorts: Callable[[Experiment], Cohorts] = lambda experiment: Cohorts(experiment.rounds)
    """How many cohorts of each channel it draws; by default one a round."""
    complete: Callable[[Any, Experiment], Any] = lambda settings, experiment: settings
    """Fills in settings that follow from the rest of the experiment."""
    clusters: Callable[[State], ClusterState | None] = lambda state: None
    """The clusters in a state, for views, evaluation and report."""
    aggregations: Callable[[Any, int], int] = lambda settings, steps: 1
    """(settings, local steps of a planned round) -> how often a round gathers from its channels."""
    workload: Callable[[Any, int], Sequence[float] | None] = lambda settings, rounds: None
    """(settings, rounds) -> the weight of a round's mean in the model after 1, 2, ... rounds; None: always 1.

    Strategies of correlated noise are optimised for it.
    """
    # Released values may decide an early end, and the epsilon of the rounds actually run would then be an odometer, not
    # a guarantee. So the rounds that are left are charged all the same: the planned list is fixed in advance.
    finished: Callable[[State], bool] = lambda state: False
    """Whether there is nothing left to do before the planned rounds are over."""
    ending: str = ""
    """Why a `finished` run has fewer rounds than planned, for the report."""
    remembers: bool = False
    """Whether clients train by state of earlier rounds, which reveals whether they took part."""
    kept: str = ""
    """The client state that is each client's own model, by which clients are evaluated; private, never published."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: its settings, three pure functions, and facts about it."""

    name: str
    settings: type
    init: InitFunction
    round: RoundFunction
    models: ModelsFunction
    facts: AlgorithmFacts = AlgorithmFacts()

    def __new__(cls, *_: Any, **given: Any) -> "Algorithm":
        """Raise TypeError for fields of the facts, which were fields of the algorithm before version 0.2."""
        for name in given.keys() & AlgorithmFacts.__dataclass_fields__.keys():
            raise TypeError(f"Algorithm({name}=...) moved: pass facts=AlgorithmFacts({name}=...)")
        return super().__new__(cls)


# Without this, help() and editors show the signature of `__new__`.
Algorithm.__signature__ = Signature(list(signature(Algorithm.__init__).parameters.values())[1:])  # type: ignore[attr-defined]


def with_facts(algorithm: Algorithm, **changes: Any) -> Algorithm:
    """Return the algorithm with some of its facts changed."""
    return replace(algorithm, facts=replace(algorithm.facts, **changes))
