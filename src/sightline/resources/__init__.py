"""Energy and delay: models of links, and what a gathering costs on any topology."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sightline.config import Experiment
from sightline.errors import SightlineError, invalid
from sightline.mechanisms import CohortSampler
from sightline.plugins import RESOURCES, locate_plugin, refuse_plugin
from sightline.randomness import Streams
from sightline.resources.cost import Cost, Overlap, Sending, Table, combine_costs, expected_gathering, read_table
from sightline.resources.wireless import Wireless, WirelessSettings
from sightline.topology import Channel


class Prices(Protocol):
    """What one upload costs whom."""

    @property
    def typical(self) -> Sending:
        """Every client's upload as it can be known beforehand."""

    def sending(self, *, round: int, use: int) -> Sending:
        """Every client's upload at a moment."""

    def wired(self, node: str, *, round: int) -> Cost:
        """One edge's upload to the server above it."""


@dataclass(frozen=True, eq=False)
class Resources:
    """A model of energy and delay, ready to be asked. Only uploads cost; broadcasts are free, as in the paper."""

    prices: Prices
    overlap: Overlap = Overlap.MAX

    def cost_of_gathering(self, many: Iterable[tuple[Channel, CohortSampler]], *, round: int, use: int) -> Cost:
        """The mean cost of one upload by the cohorts of several channels at one moment."""
        sending = self.prices.sending(round=round, use=use)
        return self._expected_cost(sending, many)

    def gathered_typically(self, many: Iterable[tuple[Channel, CohortSampler]]) -> Cost:
        """The same, as it can be known beforehand."""
        return self._expected_cost(self.prices.typical, many)

    def cost_of_lifting(self, nodes: Sequence[str], *, round: int = 0) -> Cost:
        """Every node sends one model to the server above it, all at one moment."""
        return combine_costs([self.prices.wired(node, round=round) for node in nodes], self.overlap)

    def _expected_cost(self, sending: Sending, many: Iterable[tuple[Channel, CohortSampler]]) -> Cost:
        return expected_gathering([(sending.of(channel.members), sampler) for channel, sampler in many], self.overlap)


def _build_wireless(settings: Mapping[str, Any], experiment: Experiment, parameters: int) -> Prices:
    streams = Streams.from_seed(experiment.seed)
    return Wireless(WirelessSettings.read(settings), experiment.data.clients, parameters, streams)


BuildPrices = Callable[[Mapping[str, Any], Experiment, int], Prices]
"""(its own settings, experiment, parameters of the model) -> what an upload costs."""

MODELS: dict[str, BuildPrices] = {
    "wireless": _build_wireless,
    "table": lambda settings, experiment, parameters: read_table(settings, clients=experiment.data.clients),
}
"""Models of links by name."""


def find_prices(model: str) -> BuildPrices:
    """How the prices of a model are built: a built-in one, or somebody else's."""
    plugin = locate_plugin(RESOURCES, model, MODELS)
    if plugin is None:
        return MODELS[model]
    found = plugin.load_object()
    if not callable(found):
        plugin.refuse_type(found, "a function (settings, experiment, parameters) -> prices")
    return found  # type: ignore[no-any-return]


def build_resources(experiment: Experiment, *, parameters: int) -> Resources | None:
    """The resource model of an experiment file, or None."""
    section = experiment.resources
    if section is None:
        return None
    build, settings = find_prices(section.model), section.settings
    overlap = _read_overlap(settings.pop("delays", Overlap.MAX))
    try:
        return Resources(build(settings, experiment, parameters), overlap)
    except SightlineError:
        raise
    except Exception as error:
        if section.model in MODELS:
            raise
        refuse_plugin(RESOURCES, section.model, error)


def _read_overlap(value: Any) -> Overlap:
    if value not in list(Overlap):
        invalid("resources.delays", value, 'is "max" (side by side) or "sum" (one after the other)')
    return Overlap(value)


__all__ = [
    "MODELS",
    "Cost",
    "Overlap",
    "Prices",
    "Resources",
    "Sending",
    "Table",
    "Wireless",
    "WirelessSettings",
    "build_resources",
    "combine_costs",
    "expected_gathering",
    "find_prices",
    "read_table",
]
