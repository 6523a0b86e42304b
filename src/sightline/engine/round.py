"""The `Round` that algorithms use: it samples, trains lazily, and releases through the ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.accounting.strategies import Strategy
from sightline.algorithms.contract import ChannelMean, WorkStats
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import (
    Execution,
    ScheduleControl,
    eligible_members,
    gradient_reach,
    work_stats,
)
from sightline.engine.release_gate import DrawnCohort, FollowedPlan, ReleaseGate
from sightline.errors import Refused, refuse
from sightline.events import Gaussian, Unit
from sightline.ledger import NOBODY, POST_PROCESSING, Draw, Ledger, Parties, Release
from sightline.mechanisms import (
    ABSENT,
    COUNTED,
    CallId,
    ClientState,
    Cohort,
    ModelChoice,
    Public,
    ReleaseContext,
    ReleaseValues,
    StateAccess,
    StateRule,
    Updates,
    active_places,
    share_training,
    sum_weighted,
    trim_sources,
)
from sightline.mechanisms.contract import NoiseRow
from sightline.mechanisms.sealed import SealedCohort, SealedUpdates, open_sealed, refuse_look
from sightline.plugins import MECHANISM, BrokenLaw
from sightline.randomness import EVERYONE, Purpose
from sightline.resources import CostMeter
from sightline.topology import PUBLIC, Channel, client_name, has_one_server
from sightline.training import LocalTask

Draws = tuple[DrawnCohort, ...]
HELD = "every party holds the values that it uses"
"""The law that a party computes only with values that were released or shown to it."""


def open_updates(updates: Updates) -> tuple[Updates, Draws | None]:
    """Return the updates, unsealed, and the draws of a sealed cohort (None if they were not sealed)."""
    if not isinstance(updates, SealedUpdates):
        return updates, None
    inside, _, draws = open_sealed(updates)
    return inside, draws


class TrainingRound:
    """One round of a real run or of a plan, depending on its execution.

    Guarantees: a release is durable in the ledger before its value is returned to the algorithm; the budget is checked
    before the ledger is written and before any data is touched; every release call has its own noise.
    """

    def __init__(
        self, built: BuiltExperiment, ledger: Ledger, execution: Execution, time: int,
        memories: Mapping[str, ClientState] | None = None, *, repeated: bool = False, since: int = 0,
        plan: FollowedPlan | None = None,
    ) -> None:  # fmt: skip
        self.time = time
        self.rehearsal = execution.rehearsal
        self.memories = dict(memories or {})
        self.clients = built.clients
        self.counts = {"rejected": 0.0, "uplink_floats": 0.0, "downlink_floats": 0.0}
        self._built = built
        self._one_server = has_one_server(built.topology)
        self._ledger = ledger
        self._execution, self._worker = execution, execution.worker
        # Named by the length of the ledger, so that no two attempts of a round share a stream.
        self._secret = execution.secret.fresh_streams(len(ledger)) if repeated else execution.secret
        self._draws, self._again = 0, max(since, len(ledger) if repeated else 0)
        self._redone = len(ledger) if repeated else 0
        self._tosses = 0
        self._uses = 0
        self._noted: list[list[float]] = []
        nodes = self._worker.nodes
        steadfast = nodes is None or nodes.steadfast
        self._gate = ReleaseGate(
            built, ledger, time, budgeted=not self.rehearsal, steadfast=steadfast, repeated=repeated, since=since,
            planned=None if plan is None else plan.begin_round(time),
        )  # fmt: skip
        self._meter: CostMeter | None = None
        if built.resources is not None and not self.rehearsal:
            self._meter = CostMeter(built.resources, built.topology, time, self.counts)
        self.control = ScheduleControl(built, execution, time, self.counts)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels of the topology in this round."""
        return self._built.topology.channels_at(self.time)

    def server_rng(self) -> np.random.Generator:
        """Return the server's generator of this round; every call returns a fresh one."""
        self._tosses += 1
        return self._secret.rng(Purpose.ASSIGNMENT, round=self.time, use=self._tosses - 1)

    def work_stats(self, cohort: Cohort) -> WorkStats:
        """Return the public facts about the work behind the cohort's mean update."""
        samplers = [self.control.sampler_of(channel) for channel in self.control.gathering_channels]
        return work_stats(self._built, cohort, self.control.schedule, samplers)

    def sample(self, channel: Channel | None = None) -> Cohort:
        """Draw the cohort of the channel; without a channel, of all gathering channels."""
        channels = (channel,) if channel else self.control.gathering_channels
        drawn = [self._draw_members(channel) for channel in channels]
        cohort = Cohort(tuple(n for members, _ in drawn for n in members))
        if not any(self._seals(channel) for channel in channels):
            return cohort
        eligible = [eligible_members(self.control.sampler_of(channel), channel, self.time) for channel in channels]
        return SealedCohort(cohort, frozenset[int]().union(*eligible), [draw for _, draw in drawn])

    def _seals(self, channel: Channel) -> bool:
        """Whether the algorithm may not know who was drawn: it is of another package, and epsilon may count on that.

        Where clients noise what they send, nothing is claimed to be hidden, unless all send noise or the mechanism is
        of another package too. What is not sealed cannot be claimed to be hidden (`ReleaseGate.check_draws`).
        """
        built = self._built
        if not built.foreign or built.unit is not Unit.CLIENT:
            return False
        privacy, own = built.experiment.privacy, any(plugin.kind == MECHANISM for plugin in built.plugins)
        probe, open_ = Gaussian(1.0), privacy.place == "client" and not privacy.everyone_sends_noise and not own
        return not open_ and self.control.sampler_of(channel).hidden_event(probe) != probe

    def _draw_members(self, channel: Channel) -> tuple[tuple[int, ...], DrawnCohort]:
        rng = self._secret.rng(Purpose.COHORT, round=self.time, use=self._draws)
        draw = Draw(Purpose.COHORT, self.time, EVERYONE, self._draws, again=self._again)
        self._draws += 1
        sampler, line = self.control.sampler_of(channel), self._built.channel_number(channel)
        members = self._execution.draw_members(sampler, channel, self.time, rng, line=line)
        drawn = DrawnCohort(draw, frozenset(members), frozenset(channel.members))
        self._gate.note_draw(channel, drawn)
        return members, drawn

    def everyone(self) -> Cohort:
        """Return the cohort of all clients, publicly."""
        return Cohort(tuple(self.clients))

    def train(
        self, cohort: Cohort, start: Public | Mapping[int, Public], *, memory: StateRule | None = None, **asked: Any
    ) -> Updates:
        """Return updates that are computed only when a mechanism asks for them."""
        if isinstance(cohort, SealedCohort):
            return self._train_sealed(cohort, start, memory, asked)
        starts = dict.fromkeys(cohort.members, start) if isinstance(start, Public) else start
        given = [start] if isinstance(start, Public) else list(start.values())
        # Starts of all eligible members, also of those not drawn: the inputs of a release must not reveal the cohort.
        eligible = frozenset[int]().union(*(one.sources for one in given))
        behind = {} if isinstance(start, Public) else {n: one.sources for n, one in start.items()}
        starts = {member: starts[member] for member in cohort.members}
        self._check_starts(starts)
        at = CallId(self.time, self._uses)
        self._uses += 1
        task = LocalTask(**self.control.task_fields() | asked)
        self._refuse_parts(memory)
        recall = None
        if memory is not None:
            # One set of sources for the state of all clients. A set per client would reveal in the ledger who took part
            # when.
            state = self.memories.get(memory.name, ClientState())
            recall = StateAccess(memory, state, self._worker.dimension)
            received = memory.sources | state.sources
            eligible = self._ledger.frontier(eligible | received)
            reached = {ids: self._ledger.frontier(ids | received) for ids in {s.sources for s in given}}
            starts = {n: replace(s, sources=reached[s.sources]) for n, s in starts.items()}
            behind = {n: reached[ids] for n, ids in behind.items()}
        return Updates(cohort, starts, self._worker, at, task, recall, self._built.splitter, eligible, behind)

    def _train_sealed(
        self,
        cohort: SealedCohort,
        start: Public | Mapping[int, Public],
        memory: StateRule | None,
        asked: dict[str, Any],
    ) -> Updates:
        """Train a cohort that the algorithm may not know; a refusal does not depend on who was drawn."""
        inside, possible, draws = open_sealed(cohort)
        if not isinstance(start, Public):
            start = {member: start[member] for member in list(start)}
            if possible - start.keys():
                reason = "some members that could have been drawn have no model"
                refuse("start", f"{len(start)} models", reason, "give one for each member of the channel")
        rows = [name for name, value in asked.items() if isinstance(value, torch.Tensor) and value.dim() > 1]
        if rows:
            refuse(rows[0], "rows", "rows per member would reveal a hidden cohort", "give one vector for all")
        return SealedUpdates(self.train(inside, start, memory=memory, **asked), possible, draws)

    def _refuse_parts(self, memory: StateRule | None) -> None:
        """Raise `Refused` for client state with split models, except for private steps, which move the whole model."""
        if self._built.splitter is None:
            return
        # A client that trains a part would learn zeros for the rest of the vector that it keeps.
        if memory is not None and self._built.unit is not Unit.SAMPLE:
            reason = f"{self._built.algorithm.name}'s clients keep a vector of the whole model, but they train parts"
            refuse(
                "algorithm.split", memory.name, reason, 'use fedavg, fedavgm, fedprox or fedyogi, or unit = "sample"'
            )

    def select_models(self, cohort: Cohort, candidates: Sequence[Public], *, epsilon: float) -> dict[int, Public]:
        """Claim, record, then let every member choose by its own data."""
        if isinstance(cohort, SealedCohort):
            refuse_look()
        ballot = ModelChoice(cohort, tuple(candidates), epsilon)
        at = CallId(self.time, self._uses)
        self._uses += 1
        context = self._release_context_at(at, self.channels[0], Purpose.SELECTION)
        made = self._gate.record_releases(ballot.claim_choices(context))
        choices = self._execution.collect_choices(ballot, context)
        self.counts["downlink_floats"] += (len(candidates) - 1.0) * len(cohort.members) * self._built.model.parameters
        return {
            member: self._hold(release, self.channels[0].name, torch.tensor([float(choices[member])]))
            for member, release in zip(cohort.members, made, strict=True)
            if member in choices
        }

    def release_mean(self, updates: Updates, channel: Channel | None = None) -> Public:
        """Claim, record, compute and return the mean; without a channel, through all gathering channels to everyone."""
        top, gathering = self._built.topology.top, self.control.gathering_channels
        if channel is None and gathering != (top,):
            steps = self.release_means(share_training(updates, gathering))
            return self.publish(sum_weighted(steps, self.control.channel_shares(gathering)))
        made, outcome = self._claim_and_compute(updates, channel or top, each=False)
        return self._hold(made[-1], (channel or top).name, outcome.values[EVERYONE])

    def _check_starts(self, starts: Mapping[int, Public]) -> None:
        """Raise `BrokenLaw` for a member that starts from a value which it does not hold.

        Around one server the server runs the program and sends every start itself.
        """
        if self._one_server:
            return
        for member, start in starts.items():
            if not start.is_held_by(frozenset({client_name(member)})):
                raise BrokenLaw(HELD, f"{client_name(member)} does not hold the model that it trains; use r.show")

    def _check_holder(self, value: Public, holder: str) -> None:
        """Raise `BrokenLaw` if a party shows a value that it does not hold."""
        if value.value is not COUNTED and not self._one_server and not value.is_held_by(frozenset({holder})):
            raise BrokenLaw(HELD, f"{holder} shows a value that it does not hold; use r.show towards it first")

    def _hold(self, release: Release, holder: str, value: torch.Tensor) -> Public:
        """Return a released value, held by the one who released it and by its audience."""
        held = release.audience | {holder}
        shared = self._execution.share_value(release, holder, value)
        return Public(shared, frozenset({release.id}), None if PUBLIC in held else held)

    def publish(self, value: Public) -> Public:
        """Publish a value computed from what was sent up, by the top server to everyone."""
        top = self._built.topology.top
        self._check_holder(value, top.name)
        (made,) = self._record_shown([(value, top, top.audience, "mean of what was sent up")])
        if self._meter is not None:
            self._meter.charge_lifting()
        return self._hold(made, top.name, value.value)

    def release_means(self, many: Sequence[tuple[Updates, Channel]]) -> list[Public]:
        """Release the means of several channels at once; all are claimed and recorded before any is computed."""
        contexts, claims = [], list[tuple[Release, ...]]()
        opened = [(*self._open_updates(updates, channel), channel) for updates, channel in many]
        for updates, draws, channel in opened:
            context, drawn = self._release_context(updates, channel, draws)
            contexts.append(replace(context, next_id=context.next_id + sum(map(len, claims))))
            claimed = self._built.mechanism.at(channel).claim_mean(updates, contexts[-1])
            claims.append(self._gate.check_draws(claimed, channel, updates, drawn, sealed=draws is not None))
        made = list(self._gate.record_releases([release for some in claims for release in some]))
        values, means = [], list[ChannelMean]()
        for (updates, _, _), context, some in zip(opened, contexts, claims, strict=True):
            mine, made = made[: len(some)], made[len(some) :]
            mechanism = self._built.mechanism.at(context.channel)
            outcome = self._execution.compute_values(updates, context, mechanism.mean)
            self._keep_client_state(updates, mine)
            self._count_traffic(outcome.rejected, mechanism.count_senders(updates.cohort, context))
            values.append(self._hold(mine[-1], context.channel.name, outcome.values[EVERYONE]))
            self._keep_numbers(context.channel, outcome, mine[-1])
            reach = gradient_reach(updates.task, self.control.planned)
            means.append(ChannelMean(context.channel, values[-1], reach, outcome.noise_std))
        self.control.channel_means.append(means)
        if self._meter is not None:
            self._meter.charge_gathering([(context.channel, context.sampler) for context in contexts])
        return values

    def show(self, shown: Sequence[tuple[Public, Channel, Parties, str]]) -> list[Public]:
        """Record that values are shown to more parties, and return them, held by these parties too."""
        for value, channel, _, _ in shown:
            self._check_holder(value, channel.name)
        result = []
        for (value, channel, audience, _), made in zip(shown, self._record_shown(shown), strict=True):
            if value.value is COUNTED:
                result.append(value)
                continue
            shared = self._execution.share_value(made, channel.name, value.value)
            held = None if value.held_by is None else value.held_by | audience
            result.append(replace(value, value=shared if value.value is ABSENT else value.value, held_by=held))
        return result

    def _record_shown(self, shown: Sequence[tuple[Public, Channel, Parties, str]]) -> Sequence[Release]:
        facts = (self._built.unit, self._built.adjacency)
        return self._gate.record_releases(
            [
                Release(self.time, channel.name, NOBODY, *facts, POST_PROCESSING, audience,
                        inputs=tuple(sorted(value.sources)), what=what)
                for value, channel, audience, what in shown
            ]
        )  # fmt: skip

    def release_each(self, updates: Updates, channel: Channel | None = None) -> dict[int, Public]:
        """Claim, record, compute and return one release per member."""
        if isinstance(updates, SealedUpdates):
            refuse_look()
        made, outcome = self._claim_and_compute(updates, channel or self._built.topology.top, each=True)
        pairs = zip(updates.cohort.members, made, strict=True)
        # Real nodes may not answer: their releases are charged, and their values are missing.
        return {
            member: self._hold(release, client_name(member), outcome.values[member])
            for member, release in pairs
            if member in outcome.values
        }

    def _claim_and_compute(
        self, updates: Updates, channel: Channel, *, each: bool
    ) -> tuple[Sequence[Release], ReleaseValues]:
        mechanism = self._built.mechanism.at(channel)
        claim, compute = (
            (mechanism.claim_each, mechanism.compute_each) if each else (mechanism.claim_mean, mechanism.mean)
        )
        updates, draws = self._open_updates(updates, channel)
        context, drawn = self._release_context(updates, channel, draws)
        claims = self._gate.check_draws(claim(updates, context), channel, updates, drawn, sealed=draws is not None)
        # Claims are durable before any value is computed: a crash in between costs budget, never an uncounted release.
        made = self._gate.record_releases(claims)
        outcome = self._execution.compute_values(updates, context, compute)
        self._keep_client_state(updates, made)
        if not each:
            self._keep_numbers(channel, outcome, made[-1])
        self._count_traffic(outcome.rejected, mechanism.count_senders(updates.cohort, context))
        if self._meter is not None:
            self._meter.charge_gathering([(channel, context.sampler)])
            if channel == self._built.topology.top:
                self._meter.charge_lifting()
        return made, outcome

    def _open_updates(self, updates: Updates, channel: Channel) -> tuple[Updates, Draws | None]:
        """Return the updates, unsealed, with the releases behind the channel's numbers, and the draws."""
        inside, draws = open_updates(updates)
        numbers = self.control.released.get(channel.name)
        if numbers is None:
            return inside, draws
        # What is released now depends on the numbers, for example through the clip norm. The mechanism reads its inputs
        # off the updates, so that it cannot forget them.
        starts = {n: replace(start, sources=start.sources | numbers.sources) for n, start in inside.starts.items()}
        return replace(inside, starts=starts, eligible=frozenset(inside.sources) | numbers.sources), draws

    def _keep_numbers(self, channel: Channel, outcome: ReleaseValues, mean: Release) -> None:
        """Keep the numbers that came with a mean for the channel's next release, and show them as metrics."""
        names = self._built.mechanism.facts.numbers
        if not names:
            return
        # A plan has none; zeros keep its flow of information that of the run.
        result = [outcome.numbers.get(name, 0.0) for name in names]
        self.control.released[channel.name] = Public(torch.tensor(result), frozenset({mean.id}))
        self._noted.append(result)
        self.control.note_metrics(**dict(zip(names, np.mean(self._noted, axis=0), strict=True)))

    def _keep_client_state(self, updates: Updates, made: Sequence[Release]) -> None:
        """Store the members' state, with every release that they received or sent."""
        if updates.recall is None:
            return
        name = updates.recall.memory.name
        before = self.memories.get(name, ClientState())
        own = {client_name(member) for member in updates.cohort.members}
        sent = {release.id for release in made if release.source in own} | {made[-1].id} if made else set()
        sources = self._ledger.frontier(before.sources | frozenset(updates.sources) | sent)
        self.memories[name] = ClientState({**before.values, **updates.recall.after}, sources, updates.recall.noised)

    def _count_traffic(self, rejected: int, senders: float) -> None:
        splitter, floats = self._built.splitter, senders * self._built.model.parameters
        # A client is sent its part only, if a trusted server knows the part.
        alone = splitter is not None and self._built.mechanism.facts.sends_parts
        up, down = (splitter.splitting.share, splitter.splitting.sent) if splitter is not None and alone else (1.0, 1.0)
        self.counts["rejected"] += rejected
        self.counts["uplink_floats"] += floats * up
        self.counts["downlink_floats"] += floats * down

    def charge_plan(self, later: FollowedPlan | None = None) -> None:
        """Charge what was planned for this round and not released; with `later`, also its later rounds."""
        self._gate.charge_plan(later)

    def _release_context(
        self, updates: Updates, channel: Channel, draws: Draws | None
    ) -> tuple[ReleaseContext, DrawnCohort | None]:
        self._gate.check_first_use(updates.at)
        self._check_turns(updates, channel)
        drawn = self._gate.take_draw(channel, draws)
        context = self._release_context_at(updates.at, channel, Purpose.NOISE)
        numbers, names = self.control.released.get(channel.name), self._built.mechanism.facts.numbers
        known = {} if numbers is None else dict(zip(names, numbers.value.tolist(), strict=True))
        return replace(context, chosen=self._is_chosen(updates.cohort, channel, drawn), numbers=known), drawn

    def _is_chosen(self, cohort: Cohort, channel: Channel, drawn: DrawnCohort | None) -> bool:
        """Return whether released values may have influenced how many clients take part.

        False if all members take part by the experiment's own sampler, or if the cohort is as that sampler drew it. A
        plugin algorithm also decides which draws it uses.
        """
        # `Pooled` counts the noises of a cohort, and that count has no limit at which it could be claimed. If it may
        # follow released values, only `Gaussian(z)` is claimed.
        members = frozenset(cohort.members)
        if self.control.sets_rate(channel):
            return True
        sampler = self.control.sampler_of(channel)
        if sampler.expected == sampler.population and members == frozenset(channel.members):
            return False
        return self._built.foreign or drawn is None or members != drawn.members

    def _check_turns(self, updates: Updates, channel: Channel) -> None:
        """Raise `Refused` for clients whose turn it is not: releases are claimed to be about the current group only."""
        sampler = self.control.sampler_of(channel)
        if active_places(sampler, self.time) is None:
            return
        if set(updates.cohort.members) - set(eligible_members(sampler, channel, self.time)):
            reason = "a client was asked in a round that is not its turn"
            refuse(
                "sampling.clients.scheme",
                "turns",
                reason,
                "train the cohort that the channel samples, or use another scheme",
            )

    def _release_context_at(self, at: CallId, channel: Channel, purpose: Purpose) -> ReleaseContext:
        # Noise streams are named by (purpose, round, call, participant, part). Order, batching and resumption cannot
        # change them, and a resumed round draws the same noise for a value that is already recorded.
        return ReleaseContext(
            time=self.time,
            unit=self._built.unit,
            adjacency=self._built.adjacency,
            channel=channel,
            sampler=self.control.sampler_of(channel),
            next_id=self._gate.next_id,
            use=at.use,
            noise=lambda participant: self._secret.rng(
                purpose,
                round=at.round,
                use=at.use,
                participant=participant if participant >= 0 else participant - at.part,
            ),
            line=self._built.channel_number(channel),
            again=self._redone,
            correlated=self._draw_correlated,
        )

    def _draw_correlated(self, row: NoiseRow, strategy: Strategy, dimension: int) -> NDArray[np.float64]:
        """Return a row of correlated noise, continuing the stream in the ledger."""
        if self._execution.noises is None:
            raise Refused(f"release={row.release}: a plan has no noise")
        return self._execution.noises.draw_noise(row, strategy, dimension, self._ledger)


def walk_rounds(
    built: BuiltExperiment,
    ledger: Ledger,
    execution: Execution,
    rounds: int,
    on_round: Callable[[Mapping[str, float]], None] = lambda counts: None,
) -> None:
    """Run the algorithm's rounds without data; `on_round` gets the traffic of each."""
    state: Any = built.algorithm.init(Public(torch.zeros(1)), built.clients, built.settings)
    memories: Mapping[str, ClientState] = {}
    for time in range(1, rounds + 1):
        r = TrainingRound(built, ledger, execution, time, memories)
        state = trim_sources(built.algorithm.round(state, r, built.settings), ledger)
        memories = r.memories
        on_round(r.counts)
    check_models(built, state)


def check_models(built: BuiltExperiment, state: Mapping[str, Public]) -> None:
    """Raise `BrokenLaw` if a client's personal model is not held by that client."""
    models = built.algorithm.models(state, built.clients)
    if isinstance(models, Public) or has_one_server(built.topology):
        return
    for client, model in models.items():
        if not model.is_held_by(frozenset({client_name(client)})):
            raise BrokenLaw(HELD, f"{client_name(client)} does not hold its own model; use r.show")
