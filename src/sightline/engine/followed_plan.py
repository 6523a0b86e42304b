"""A plan to which a run is held: nothing is released beyond it, and what is left out is charged all the same.

A bound holds for a list of events that is fixed in advance, in any order and with any of them left out. The sum of what
a run happened to release is not a bound if released values decided what that was. Where they may decide (a plugin
algorithm, an early end), the ledger is filled up to the plan.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from sightline.errors import Refused, refuse
from sightline.ledger import Ledger, Parties, Release
from sightline.topology import Line, Topology

PLAN = "plan"
"""The source of rows that charge for what was planned and not released."""
WHAT = "planned and not released; charged all the same"

Facts = tuple[Any, ...]
"""What a claim and a planned release have in common: all fields but subjects, sender, inputs and text."""


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
