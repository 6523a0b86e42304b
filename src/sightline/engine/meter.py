"""What a round's uploads cost, and what a choice of participation would cost: public numbers only."""

from collections.abc import Mapping, Sequence

from sightline.engine.setting import BuiltExperiment
from sightline.errors import invalid
from sightline.mechanisms import CohortSampler, ReleaseContext
from sightline.resources import Cost
from sightline.topology import Channel


class CostMeter:
    """Counts energy and delay of one round into its metrics, where the experiment has a model of them."""

    def __init__(self, setting: BuiltExperiment, time: int, counts: dict[str, float], *, counting: bool) -> None:
        self._resources, self._topology = setting.resources, setting.topology
        self._time, self._counts = time, counts
        self._gatherings = 0
        self._counting = counting and self._resources is not None
        if self._counting:
            self._charge_cost(Cost())

    def charge_gathering(self, scenes: Sequence[ReleaseContext]) -> None:
        """One upload by the cohorts of these channels: its mean cost, which tells nobody who took part."""
        if self._resources is None or not self._counting:
            return
        many = [(scene.channel, scene.sampler) for scene in scenes]
        self._charge_cost(self._resources.cost_of_gathering(many, round=self._time, use=self._gatherings))
        self._gatherings += 1

    def charge_lifting(self) -> None:
        """What the edges have is sent up to the top, level by level."""
        if self._resources is not None and self._counting:
            for nodes in self._topology.uplinks:
                self._charge_cost(self._resources.cost_of_lifting(nodes, round=self._time))

    def price_samplers(self, many: Sequence[tuple[Channel, CohortSampler]]) -> tuple[Cost, Cost]:
        """(one gathering by these samplers, one way up to the top), as they can be known beforehand."""
        if self._resources is None:
            invalid("resources", "missing", "a price needs a model of energy and delay", "add a [resources] table")
        up = Cost()
        for nodes in self._topology.uplinks:
            up += self._resources.cost_of_lifting(nodes)
        return self._resources.gathered_typically(many), up

    def note_metrics(self, numbers: Mapping[str, float]) -> None:
        """Public numbers of the round for its metrics."""
        self._counts.update({name: float(value) for name, value in numbers.items()})

    def _charge_cost(self, cost: Cost) -> None:
        for name, value in (("energy_joule", cost.energy_joule), ("delay_seconds", cost.delay_seconds)):
            self._counts[name] = self._counts.get(name, 0.0) + value
