"""A round of the plan: what a run will release, found out before any data is touched."""

from collections.abc import Callable

import torch

from sightline.engine.round import LiveRound
from sightline.mechanisms import LocalSchedule, ModelChoice, ReleaseContext, ReleaseValues, Updates
from sightline.randomness import EVERYONE
from sightline.topology import Channel


class PlannedRound(LiveRound):
    """A round of the plan: everybody takes part, nothing is computed, the ledger lies in memory."""

    counting = False

    @property
    def rehearsal(self) -> bool:
        """Yes: paths that depend on values are those that cost most."""
        return True

    def _collect_choices(self, ballot: ModelChoice, scene: ReleaseContext) -> dict[int, int]:
        return dict.fromkeys(ballot.choosers.members, 0)

    def set_pace(self, wanted: LocalSchedule, *, most_steps: int) -> None:
        """The most that may be asked for: calibration must hold whatever will be wanted."""
        super().set_pace(LocalSchedule(most_steps), most_steps=most_steps)

    def _draw_members(self, channel: Channel) -> tuple[int, ...]:
        """Everybody, in the rounds of the busiest client: calibration must hold for it."""
        return channel.members if self._setting.sampler_of(channel).takes_part_in_plan(self.time) else ()

    def _compute_values(
        self, updates: Updates, scene: ReleaseContext, compute: Callable[[Updates, ReleaseContext], ReleaseValues]
    ) -> ReleaseValues:
        nothing = torch.zeros(1)
        return ReleaseValues(dict.fromkeys((EVERYONE, *updates.cohort.members), nothing))
