"""The only way out: the budget is asked and the ledger is written before a value may be handed on."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sightline.engine.build import BuiltExperiment
from sightline.engine.followed_plan import PLAN, FollowedPlan, PlannedRound
from sightline.errors import BudgetExhausted, Refused
from sightline.events import Allocation, Clear, FixedCohort, Poisson, Unit, WithoutReplacement
from sightline.ledger import Draw, Ledger, LedgerDamaged, Release
from sightline.mechanisms import CallId, Updates
from sightline.randomness import EVERYONE, Purpose
from sightline.topology import Channel

HIDDEN_COHORTS = Poisson | WithoutReplacement | FixedCohort | Allocation
"""Events of a client that rest on the sampling of a cohort."""


@dataclass(frozen=True)
class DrawnCohort:
    """A cohort as the sampler drew it: one release may hide behind it."""

    draw: Draw
    members: frozenset[int]


class SeenBefore(Exception):
    """Values of this round went out to nodes before it was interrupted, and they may answer otherwise this time."""


class ReleaseGate:
    """The releases of one round on their way to the ledger.

    Guarantees: no training call is released twice, since its noise would cancel out; a release that claims to hide who
    took part has a cohort of its own, drawn by the sampler, and nobody else is in it; a round of a run that follows a
    plan claims nothing beyond it; a round that was interrupted makes the same releases again,
    unless real nodes have seen some of it: then it is done `anew`, with other sampling and noise, and all of it counts.
    So does what was released before number `since`, by other code.
    """

    def __init__(
        self, setting: BuiltExperiment, ledger: Ledger, time: int, *, budgeted: bool, steadfast: bool = True,
        anew: bool = False, since: int = 0, planned: PlannedRound | None = None,
    ) -> None:  # fmt: skip
        self._setting, self._ledger, self._time, self._budgeted = setting, ledger, time, budgeted
        self._planned = planned
        self._steadfast = steadfast
        self._again = max(since, len(ledger) if anew else 0)
        self._made_before = [] if anew else _tail_of(ledger, time, since)
        self._released: set[CallId] = set()
        self._cohorts: defaultdict[str, list[DrawnCohort]] = defaultdict(list)
        if planned is not None and budgeted and not self._made_before:
            self._check_budget(planned.charge_missing(ledger))

    @property
    def next_id(self) -> int:
        """The ledger number that the next release will get."""
        return self._made_before[0].id if self._made_before else len(self._ledger)

    def note_draw(self, channel: Channel, cohort: DrawnCohort) -> None:
        """A cohort of the channel was drawn: one release may hide behind its sampling."""
        self._cohorts[channel.name].append(cohort)

    def take_draw(self, channel: Channel) -> DrawnCohort | None:
        """The channel's first cohort that no release call has taken: in the order in which they were drawn."""
        waiting = self._cohorts[channel.name]
        return waiting.pop(0) if waiting else None

    def check_draws(
        self, claims: tuple[Release, ...], channel: Channel, updates: Updates, drawn: DrawnCohort | None
    ) -> tuple[Release, ...]:
        """The claims, each with the draw that it rests on; one that claims to hide who was drawn needs one of its own.

        Draws of a schedule hide many releases, which are charged as one and have a joint name.
        """
        found, at = [], updates.at
        for claim in claims:
            draw = None
            if self._setting.unit is Unit.CLIENT and isinstance(claim.event, HIDDEN_COHORTS):
                draw, drawn = _hiding_draw(channel, updates, drawn), None
            elif self._setting.unit is Unit.SAMPLE and claim.subjects and not isinstance(claim.event, Clear):
                draw = Draw(Purpose.BATCHES, at.round, _number_of(claim.source), at.use, at.part, self._again)
            found.append(claim if draw is None or claim.joint else replace(claim, draw=draw))
        return tuple(found)

    def check_first_use(self, at: CallId) -> None:
        """The noise belongs to the training call: two releases of it at two scales would cancel out."""
        rivals = {earlier for earlier in self._released if (earlier.round, earlier.use) == (at.round, at.use)}
        if at in rivals or (rivals and not at.part) or replace(at, part=0) in rivals:
            raise Refused(f"release={at}: these updates were released already; train again, or reuse the value")
        self._released.add(at)

    def record_releases(self, claims: Sequence[Release]) -> Sequence[Release]:
        """Within plan and budget, written and durable; of a round that is done again, found in the ledger."""
        if self._planned is not None:
            self._planned.check_claims(claims, None if self._made_before else self._ledger)
        if self._made_before:
            return self._found_again(claims)
        if self._budgeted:
            self._check_budget(claims)
        return self._ledger.append(claims)

    def charge_plan(self, later: FollowedPlan | None) -> None:
        """Charge what is planned for this round and was not released, and of a plan all `later` rounds.

        The last act of a round. Of later rounds those are charged that `stop_at_epsilon` leaves room for: the run could
        not have made others.
        """
        if self._made_before:  # charged before the round was interrupted, or there was nothing to charge
            if any(release.time == self._time and release.source != PLAN for release in self._made_before):
                raise LedgerDamaged(f"round={self._time}: the ledger holds more releases than this run makes")
            return
        rows = self._planned.charge_missing(self._ledger) if self._planned is not None else []
        for more in later.charge_rounds_after(self._time, self._ledger) if later is not None else ():
            try:
                self._check_budget([*rows, *more])
            except BudgetExhausted:
                break
            rows += more
        if rows:
            self._ledger.append(rows)

    def _found_again(self, claims: Sequence[Release]) -> Sequence[Release]:
        """A round that was interrupted after its releases were recorded: the same streams make the same releases.

        Where others were asked for afterwards, nodes have seen the value of this one. The same noise on what they
        answer now would cancel out.
        """
        later = self._made_before[len(claims) :]
        if not self._steadfast and _asked_for(claims) and _asked_for(later):
            raise SeenBefore
        found, self._made_before = self._made_before[: len(claims)], self._made_before[len(claims) :]
        if [release.body() for release in found] != [release.body() for release in claims]:
            raise LedgerDamaged(f"round={self._time}: the ledger holds other releases than the ones this run makes")
        return found

    def _check_budget(self, claims: Sequence[Release]) -> None:
        """Stop before a round that would exceed `stop_at_epsilon`.

        Covered (docs/accounting-proofs.md): settings, draws and limits decide on the events, released values never do.
        So the round that it stops before is fixed beforehand, and what was released is the beginning of a fixed list.
        It is not a filter for events that are chosen after looking at results: that is `accounting.GaussianFilter`.
        """
        privacy = self._setting.experiment.privacy
        if privacy.stop_at_epsilon is None:
            return
        accountant = self._setting.accountant
        self._check_earlier(claims, privacy.stop_at_epsilon)
        room = self._ledger.budget_room(privacy.stop_at_epsilon, privacy.delta, accountant=accountant)
        for kind, lines in self._setting.topology.lines.items():
            if not self._ledger.fits_budget(lines, room, planned=claims):
                epsilon = self._ledger.worst_of(lines, privacy.delta, accountant=accountant, planned=claims)
                raise BudgetExhausted(
                    f"stop_at_epsilon={privacy.stop_at_epsilon:g}: round {self._time} would cost {epsilon:.4g} "
                    f"against {kind}; stopped before it"
                )

    def _check_earlier(self, claims: Sequence[Release], limit: float) -> None:
        """Stop before the runs that this one started from and this one cost more together, where both shall count."""
        setting = self._setting
        if setting.earlier is None or not setting.experiment.privacy.continue_ledger:
            return
        for kind, lines in setting.topology.lines.items():
            delta = setting.experiment.privacy.delta
            spent = setting.earlier.worst(self._ledger, lines, delta, setting.accountant, claims)
            if spent > limit:
                raise BudgetExhausted(
                    f"stop_at_epsilon={limit:g}: with the runs that model.init comes from, round {self._time} would "
                    f"cost {spent:.4g} against {kind}; stopped before it"
                )


def _hiding_draw(channel: Channel, updates: Updates, drawn: DrawnCohort | None) -> Draw:
    """The draw that hides who is in a release; members who were not drawn would be in it for certain."""
    if drawn is None:
        raise Refused(
            f"channel={channel.name}: this release claims that sampling hides who is in it, and no cohort was "
            "drawn for it; sample the channel again before every release"
        )
    more = set(updates.cohort.members) - drawn.members
    if more:
        raise Refused(
            f"channel={channel.name}: this release claims that sampling hides who is in it, and client {min(more)} was "
            "not drawn for it; train whom the channel sampled, in the order of the draws"
        )
    return drawn.draw


def _number_of(source: str) -> int:
    """The number of a client by its name; nobody's for a server or an edge."""
    kind, _, digits = source.rpartition("-")
    return int(digits) if kind == "client" and digits.isdecimal() else EVERYONE


def _asked_for(releases: Sequence[Release]) -> bool:
    """Whether members answered for some of the releases; the others only show what was public already."""
    return any(release.subjects for release in releases)


def _tail_of(ledger: Ledger, time: int, since: int) -> list[Release]:
    found: list[Release] = []
    for place in range(len(ledger) - 1, since - 1, -1):
        if ledger[place].time < time:
            break
        found.append(ledger[place])
    return found[::-1]
