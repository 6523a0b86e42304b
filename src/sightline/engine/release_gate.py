"""The release gate: check plan and budget and write the ledger before a value may be returned, the only way out.

A bound holds for a list of events that is fixed in advance, in any order and with any of them left out. The sum of what
a run happened to release is not a bound if released values decided what that was. Where they may decide (a plugin
algorithm, an early end), the ledger is filled up to the plan.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sightline.engine.build import BuiltExperiment
from sightline.errors import BudgetExhausted, Refused, refuse
from sightline.events import Allocation, Clear, FixedCohort, Poisson, Unit, WithoutReplacement
from sightline.ledger import Draw, Ledger, LedgerDamaged, Parties, Release
from sightline.mechanisms import CallId, Updates
from sightline.randomness import EVERYONE, Purpose
from sightline.topology import Channel, Line, Topology

HIDDEN_COHORTS = Poisson | WithoutReplacement | FixedCohort | Allocation
"""Client-level events that rest on the sampling of a cohort."""
PLAN = "plan"
"""The source of rows that charge for what was planned and not released."""
WHAT = "planned and not released; charged all the same"

Facts = tuple[Any, ...]
"""What a claim and a planned release have in common: all fields but subjects, sender, inputs and text."""


@dataclass(frozen=True)
class DrawnCohort:
    """A cohort as the sampler drew it; it can hide one release."""

    draw: Draw
    members: frozenset[int]
    among: frozenset[int] = frozenset()
    """The members of the channel that it was drawn from."""


class StoppedByGate(BudgetExhausted):
    """The budget ends the run: the gate alone raises this, before a round that is fixed beforehand."""


class SeenBefore(Exception):
    """Raised if real nodes saw values of this round before it was interrupted; they may answer differently now."""


class ReleaseGate:
    """The releases of one round on their way to the ledger.

    Guarantees: no training call is released twice, since its noise would cancel out; a release that claims to hide who
    took part has its own cohort, exactly as the sampler drew it; a round of a run that follows a
    plan claims nothing beyond it; a round that was interrupted makes the same releases again,
    unless real nodes have seen some of it: then it is `repeated` with other sampling and noise, and all of it counts.
    So does what other code released before number `since`.
    """

    def __init__(
        self, built: BuiltExperiment, ledger: Ledger, time: int, *, budgeted: bool, steadfast: bool = True,
        repeated: bool = False, since: int = 0, planned: "PlannedRound | None" = None,
    ) -> None:  # fmt: skip
        self._built, self._ledger, self._time, self._budgeted = built, ledger, time, budgeted
        self._planned = planned
        self._steadfast = steadfast
        self._again = max(since, len(ledger) if repeated else 0)
        self._made_before = [] if repeated else _releases_of_round(ledger, time, since)
        self._released: set[CallId] = set()
        self._cohorts: defaultdict[str, list[DrawnCohort]] = defaultdict(list)
        # Ask the budget for the whole planned round at once: a plugin's round is charged in full even if it stops
        # half-way.
        if planned is not None and budgeted and not self._made_before:
            self._check_budget(planned.charge_missing(ledger))

    @property
    def next_id(self) -> int:
        """The ledger number of the next release."""
        return self._made_before[0].id if self._made_before else len(self._ledger)

    def note_draw(self, channel: Channel, cohort: DrawnCohort) -> None:
        """Record that a cohort of the channel was drawn; its sampling can hide one release."""
        self._cohorts[channel.name].append(cohort)

    def take_draw(self, channel: Channel, sealed: Sequence[DrawnCohort] | None = None) -> DrawnCohort | None:
        """Return the channel's first unused cohort, in the order of the draws; None if there is none.

        A `sealed` cohort is released by its own draw, once, whatever the order.
        """
        waiting = self._cohorts[channel.name]
        if sealed is None:
            return waiting.pop(0) if waiting else None
        for index, one in enumerate(waiting):
            if one.among == frozenset(channel.members) and any(one is mine for mine in sealed):
                return waiting.pop(index)
        raise Refused(
            f"channel={channel.name}: the cohort was released already, or was not drawn from this channel; "
            "sample the channel again before every release"
        )

    def check_draws(
        self, claims: tuple[Release, ...], channel: Channel, updates: Updates, drawn: DrawnCohort | None, *,
        sealed: bool = False,
    ) -> tuple[Release, ...]:  # fmt: skip
        """Return the claims, each with the draw on which it rests. Raise `Refused` if a hiding claim has no own draw.

        Draws of a schedule hide many releases, which are charged as one and have a joint name. An algorithm of another
        package may hide behind a `sealed` cohort only.
        """
        result, at = [], updates.at
        for claim in claims:
            draw = None
            if self._built.unit is Unit.CLIENT and isinstance(claim.event, HIDDEN_COHORTS):
                # A second release of the call must not use the same draw. Two releases of one cohort are correlated,
                # and the composition of two independent amplified events would not cover them.
                if self._built.foreign and not sealed:
                    drawn = None
                draw, drawn = _hiding_draw(channel, updates, drawn), None
            elif self._built.unit is Unit.SAMPLE and claim.subjects and not isinstance(claim.event, Clear):
                draw = Draw(Purpose.BATCHES, at.round, _client_number_of(claim.source), at.use, at.part, self._again)
            result.append(claim if draw is None or claim.joint else replace(claim, draw=draw))
        return tuple(result)

    def check_first_use(self, at: CallId) -> None:
        """Raise `Refused` if the updates of this training call were released already."""
        # The noise stream belongs to the call: two releases of it at two scales would cancel the noise. A whole call
        # and its parts are rivals too.
        rivals = {earlier for earlier in self._released if (earlier.round, earlier.use) == (at.round, at.use)}
        if at in rivals or (rivals and not at.part) or replace(at, part=0) in rivals:
            raise Refused(f"release={at}: these updates were released already; train again, or reuse the value")
        self._released.add(at)

    def record_releases(self, claims: Sequence[Release]) -> Sequence[Release]:
        """Check plan and budget and store the claims durably; in a repeated round, find them in the ledger."""
        if self._planned is not None:
            self._planned.check_claims(claims, None if self._made_before else self._ledger)
        if self._made_before:
            return self._repeat_releases(claims)
        if self._budgeted:
            self._check_budget(claims)
        return self._ledger.append(claims)

    def charge_plan(self, later: "FollowedPlan | None") -> None:
        """Charge what is planned for this round and was not released, and with `later` all later rounds.

        This is the last act of a round. Later rounds are charged as far as `stop_at_epsilon` leaves room: the run could
        not have made others.
        """
        if self._made_before:  # charged before the round was interrupted, or there was nothing to charge
            if any(release.time == self._time and release.source != PLAN for release in self._made_before):
                raise LedgerDamaged(f"round={self._time}: the ledger has more releases than this run makes")
            return
        rows = self._planned.charge_missing(self._ledger) if self._planned is not None else []
        for more in later.charge_rounds_after(self._time, self._ledger) if later is not None else ():
            try:
                self._check_budget([*rows, *more])
            except StoppedByGate:
                break
            rows += more
        if rows:
            self._ledger.append(rows)

    def _repeat_releases(self, claims: Sequence[Release]) -> Sequence[Release]:
        """Return the recorded releases of an interrupted round: the same streams make the same releases.

        Raise `SeenBefore` if nodes were asked again afterwards: they have seen this value, and the same noise on what
        they answer now would cancel out.
        """
        later = self._made_before[len(claims) :]
        if not self._steadfast and _has_subjects(claims) and _has_subjects(later):
            raise SeenBefore
        result, self._made_before = self._made_before[: len(claims)], self._made_before[len(claims) :]
        if any(release.source == PLAN for release in result):
            reason = "an error ended this round before, and its whole plan was charged"
            raise Refused(f"round={self._time}: {reason}; start a new run")
        if [release.body() for release in result] != [release.body() for release in claims]:
            raise LedgerDamaged(f"round={self._time}: the releases in the ledger differ from those of this run")
        return result

    def _check_budget(self, claims: Sequence[Release]) -> None:
        """Raise `BudgetExhausted` before a release that would exceed `stop_at_epsilon`.

        Valid because settings, draws and limits decide the events and released values never do: the round that it stops
        before is fixed in advance, and what was released is the beginning of a fixed list. It is not a filter for
        events that are chosen after looking at results: that is `accounting.GaussianFilter`.
        """
        privacy = self._built.experiment.privacy
        if privacy.stop_at_epsilon is None:
            return
        accountant = self._built.accountant
        self._check_earlier(claims, privacy.stop_at_epsilon)
        room = self._ledger.budget_room(privacy.stop_at_epsilon, privacy.delta, accountant=accountant)
        for kind, lines in self._built.topology.lines.items():
            if not self._ledger.fits_budget(lines, room, planned=claims):
                epsilon = self._ledger.worst_of(lines, privacy.delta, accountant=accountant, planned=claims)
                raise StoppedByGate(
                    f"stop_at_epsilon={privacy.stop_at_epsilon:g}: round {self._time} would cost {epsilon:.4g} "
                    f"against {kind}; stopped before it"
                )

    def _check_earlier(self, claims: Sequence[Release], limit: float) -> None:
        """Raise `BudgetExhausted` before this run and the runs it started from exceed the limit together."""
        built = self._built
        if built.earlier is None or not built.experiment.privacy.continue_ledger:
            return
        for kind, lines in built.topology.lines.items():
            delta = built.experiment.privacy.delta
            spent = built.earlier.worst(self._ledger, lines, delta, built.accountant, claims)
            if spent > limit:
                raise StoppedByGate(
                    f"stop_at_epsilon={limit:g}: with the runs behind model.init, round {self._time} would "
                    f"cost {spent:.4g} against {kind}; stopped before it"
                )


def _hiding_draw(channel: Channel, updates: Updates, drawn: DrawnCohort | None) -> Draw:
    """Return the draw that hides the members of a release: exactly those who were drawn. Raise `Refused` otherwise.

    Other members would be in it for certain; who is left out of a draw may follow from who else was drawn.
    """
    if drawn is None:
        raise Refused(
            f"channel={channel.name}: this release claims amplification by sampling, but no cohort was "
            "drawn for it; sample the channel before every release and train exactly that cohort"
        )
    if set(updates.cohort.members) != drawn.members:
        raise Refused(
            f"channel={channel.name}: this release claims amplification by sampling, but its cohort is not the "
            "one that was drawn for it; train exactly the sampled cohorts, in the order of the draws"
        )
    return drawn.draw


def _client_number_of(source: str) -> int:
    """Return the number of a client by its name; `EVERYONE` for a server or an edge."""
    kind, _, digits = source.rpartition("-")
    return int(digits) if kind == "client" and digits.isdecimal() else EVERYONE


def _has_subjects(releases: Sequence[Release]) -> bool:
    """Return whether members answered for some of the releases; others only show what was public already."""
    return any(release.subjects for release in releases)


def _releases_of_round(ledger: Ledger, time: int, since: int) -> list[Release]:
    result: list[Release] = []
    for index in range(len(ledger) - 1, since - 1, -1):
        if ledger[index].time < time:
            break
        result.append(ledger[index])
    return result[::-1]


class LeftPlan(Refused):
    """Raised for a claim that the plan does not have."""


class Layers:
    """Planned releases with equal facts; each layer covers each of its subjects once."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.sets: list[set[str]] = []

    def add(self, release: Release) -> None:
        """Add a planned release."""
        self.ids.append(release.id)
        # Disjoint releases share a layer, so that one claim may use up several planned rows.
        free = next((layer for layer in self.sets if layer.isdisjoint(release.subjects)), None)
        if free is None:
            self.sets.append(set(release.subjects))
        else:
            free |= release.subjects

    def use_up(self, subjects: Parties) -> Parties:
        """Remove subjects and return those that no layer covers."""
        for layer in self.sets:
            covered = subjects & layer
            layer -= covered
            subjects -= covered
        return subjects


class FollowedPlan:
    """The planned releases of a whole run, by round."""

    def __init__(self, planned: Ledger, topology: Topology) -> None:
        self.planned = planned
        self.lines: tuple[Line, ...] = tuple(line for some in topology.lines.values() for line in some)
        # If memberships change, no observer's view stands for another's.
        if not topology.steady:
            names = sorted(planned.participants - set(topology.trusted))
            self.lines = tuple(Line(name, frozenset({name})) for name in names)
        channels = (*topology.channels, *topology.gathering_channels, topology.top)
        self.everyone_sees = all(line.observer in channel.audience for line in self.lines for channel in channels)
        self._rounds: defaultdict[int, list[Release]] = defaultdict(list)
        for release in planned:
            if release.subjects:
                self._rounds[release.time].append(release)

    def begin_round(self, time: int) -> "PlannedRound":
        """Return what one round may claim."""
        return PlannedRound(self, time, layers_of(self._rounds[time]))

    def charge_rounds_after(self, time: int, ledger: Ledger) -> list[list[Release]]:
        """Return the charges of every later round, as rows of round `time`."""
        later = [number for number in sorted(self._rounds) if number > time]
        charged: set[str] = set()
        result = []
        for number in later:
            rows = self.make_charges(layers_of(self._rounds[number]), ledger, time)
            # A joint event is charged once, with its first release, also if the plan names it in several rounds.
            result.append([row for row in rows if row.joint not in charged])
            charged |= {row.joint for row in rows if row.joint}
        return result

    def make_charges(self, layers: dict[Facts, Layers], ledger: Ledger, time: int) -> list[Release]:
        """Return rows for planned releases that were not made, seen by all parties that the plan lets see them."""
        result = []
        for (unit, adjacency, event, audience, known, joint), some in layers.items():
            if joint and ledger.knows_joint(joint):
                continue
            for subjects in filter(None, some.sets):
                # What is not released does not flow. The plan's own flow is charged instead, to every party it would
                # have reached.
                reach = audience.union(*{self._reach[id] for id in some.ids})
                result.append(
                    Release(time, PLAN, frozenset(subjects), unit, adjacency, event, reach, coins_known_to=known,
                            joint=joint, what=WHAT)
                )  # fmt: skip
        return result

    @cached_property
    def _reach(self) -> list[Parties]:
        """For each planned release, the parties that see it or anything computed from it."""
        result = [release.audience for release in self.planned]
        for id in range(len(result) - 1, -1, -1):
            for earlier in self.planned[id].inputs:
                here, there = result[id], result[earlier]
                if here is not there:
                    result[earlier] = here if there <= here else there if here <= there else here | there
        return result

    @cached_property
    def subjects(self) -> Parties:
        """All subjects of the plan."""
        return frozenset[str]().union(*{release.subjects for release in self.planned})


class PlannedRound:
    """The plan of one round, and what of it has not been claimed yet."""

    def __init__(self, plan: FollowedPlan, time: int, left: dict[Facts, Layers]) -> None:
        self._plan, self._time, self._left = plan, time, left

    def check_claims(self, claims: Sequence[Release], ledger: Ledger | None) -> None:
        """Raise `LeftPlan` unless the claims are planned releases of this round, or about fewer of their subjects.

        Where not every party sees everything, no more may reach an observer than by the plan. Without a ledger the
        claims are already recorded and are not appended.
        """
        for claim in claims:
            planned = self._left.get(facts_of(claim)) if claim.subjects else None
            uncovered = planned.use_up(claim.subjects) if planned is not None else claim.subjects
            if uncovered:
                raise LeftPlan(
                    f"round={self._time}: a release of {claim.source} about {len(uncovered)} subjects is not in the "
                    f"plan ({claim.event}); claim the same events for all released values"
                )
        if not self._plan.everyone_sees and ledger is not None:
            self._check_flow(claims, ledger)

    def _check_flow(self, claims: Sequence[Release], ledger: Ledger) -> None:
        # For every observer and subject, what has flowed must be a part of what flows by the plan.
        added = [release.with_id(len(ledger) + index) for index, release in enumerate(claims)]
        for line in self._plan.lines:
            view, planned = ledger.view(line.observer).preview_with(added), self._plan.planned.view(line.observer)
            for subject in sorted(self._plan.subjects - line.exempt):
                if not view.composition(subject) <= planned.composition(subject):
                    raise LeftPlan(
                        f"round={self._time}: more releases about {subject} would reach {line.observer} than planned; "
                        "combine the same releases in every run"
                    )

    def charge_missing(self, ledger: Ledger) -> list[Release]:
        """Return rows for what the plan has for this round and was not claimed."""
        return self._plan.make_charges(self._left, ledger, self._time)


def layers_of(releases: Iterable[Release]) -> dict[Facts, Layers]:
    """Return planned releases grouped by their facts."""
    result: defaultdict[Facts, Layers] = defaultdict(Layers)
    for release in releases:
        result[facts_of(release)].add(release)
    return dict(result)


def facts_of(release: Release) -> Facts:
    """Return the fields that must be equal in a claim and in the plan."""
    return (release.unit, release.adjacency, release.event, release.audience, release.coins_known_to, release.joint)


def refuse_early_stop(stop_at: float | None, plan: FollowedPlan) -> None:
    """Raise `Refused` for a budget if flow may follow released values."""
    # The round before which the budget stops would then follow released values too, and no fixed list would be left.
    if stop_at is not None and not plan.everyone_sees:
        reason = "a plugin algorithm decides who sees what, and thereby the round in which this budget stops"
        refuse("privacy.stop_at_epsilon", stop_at, reason, "use privacy.epsilon, which holds for the whole plan")
