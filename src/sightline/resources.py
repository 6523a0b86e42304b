"""Energy and delay of uploads: measured tables, wireless links, and the cost of a gathering on any topology."""

import csv
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.config import Experiment
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.formatting import read_text
from sightline.mechanisms import CohortSampler
from sightline.plugins import RESOURCES, locate_plugin, refuse_plugin
from sightline.randomness import Purpose, Streams
from sightline.topology import Channel, Topology, client_name

Floats = NDArray[np.float64]


class Overlap(StrEnum):
    """How delays of several senders combine."""

    MAX = "max"
    """As long as the slowest: they send in parallel."""
    SUM = "sum"
    """One after the other: they share the medium (as in the paper's objective)."""


@dataclass(frozen=True)
class Cost:
    """Energy and delay of some uploads.

    >>> Cost(1.0, 2.0) + Cost(0.5, 1.0)
    Cost(energy_joule=1.5, delay_seconds=3.0)
    """

    energy_joule: float = 0.0
    delay_seconds: float = 0.0

    def __add__(self, later: "Cost") -> "Cost":
        """Return the cost of one after the other."""
        return Cost(self.energy_joule + later.energy_joule, self.delay_seconds + later.delay_seconds)

    def times(self, count: float) -> "Cost":
        """Return the cost of `count` repetitions."""
        return Cost(count * self.energy_joule, count * self.delay_seconds)


def combine_costs(costs: Iterable[Cost], overlap: Overlap) -> Cost:
    """Combine the costs of simultaneous uploads; an empty cohort costs zero.

    >>> combine_costs([Cost(1.0, 2.0), Cost(1.0, 3.0)], Overlap.MAX)
    Cost(energy_joule=2.0, delay_seconds=3.0)
    """
    result = list(costs)
    delays = [cost.delay_seconds for cost in result]
    delay = sum(delays) if overlap is Overlap.SUM else max(delays, default=0.0)
    return Cost(sum(cost.energy_joule for cost in result), delay)


@dataclass(frozen=True, eq=False)
class Sending:
    """The cost of one upload of the model for every client: two arrays, indexed by client number."""

    energy_joule: Floats
    delay_seconds: Floats

    def of(self, members: tuple[int, ...]) -> "Sending":
        """Return the costs of some clients only."""
        indices = np.asarray(members, dtype=np.int64)
        return Sending(self.energy_joule[indices], self.delay_seconds[indices])


def expected_gathering(many: Sequence[tuple[Sending, CohortSampler]], overlap: Overlap) -> Cost:
    """Return the mean energy and delay of one upload by all drawn clients; each channel draws for itself.

    Guarantees: a function of the samplers' distributions and of the public prices. With full participation it is the
    plain sum of the energies and the plain maximum (or sum) of the delays.
    """
    # Realised cohorts are never used: devices have different distances, so a sum of a few energies would be a
    # fingerprint of the cohort, which amplification assumes to be secret.
    energy = math.fsum(member_rate(sampler) * math.fsum(sending.energy_joule) for sending, sampler in many)
    if overlap is Overlap.SUM:
        return Cost(
            energy, math.fsum(member_rate(sampler) * math.fsum(sending.delay_seconds) for sending, sampler in many)
        )
    return Cost(energy, expected_slowest([(sending.delay_seconds, sampler) for sending, sampler in many]))


def member_rate(sampler: CohortSampler) -> float:
    """Return the probability that a member is drawn."""
    return sampler.expected / sampler.population


def expected_slowest(many: Sequence[tuple[Floats, CohortSampler]]) -> float:
    """Return E[max] of the delays of all cohorts together, zero if no client is drawn.

    P(max <= x) is the product over channels of the chance that none of the slower ones is drawn; the mean is the sum of
    its steps.
    """
    times = np.unique(np.concatenate([delays for delays, _ in many])) if many else np.zeros(0)
    within = np.ones(len(times))
    nobody = 1.0
    for delays, sampler in many:
        slower = len(delays) - np.searchsorted(np.sort(delays), times, side="right")
        within = within * sampler.chance_of_none(slower)
        nobody *= float(sampler.chance_of_none(np.array([len(delays)]))[0])
    return math.fsum(times * np.diff(within, prepend=nobody))


Rows = Mapping[tuple[str, int | None], Cost]
"""Maps (node, round or None for every round) to its cost."""

COLUMNS = ("node", "energy_joule", "delay_seconds")


@dataclass(frozen=True, eq=False)
class CostTable:
    """Measured costs, from rows that cover every client."""

    rows: Rows
    clients: int
    name: str = "table"

    def __post_init__(self) -> None:
        for client in range(self.clients):
            self._cost_of(client_name(client), "client", None)

    def sending(self, *, round: int, use: int) -> Sending:
        """Return every client's upload in a round."""
        return self._sending_in(round if round in self._rounds else None)

    @cached_property
    def typical(self) -> Sending:
        """Return every client's upload in rounds without rows of their own."""
        return self._sending_in(None)

    def wired(self, node: str, *, round: int) -> Cost:
        """Return one edge's upload to the server above it."""
        return self._cost_of(node, "edge", round)

    @cached_property
    def _rounds(self) -> frozenset[int | None]:
        return frozenset(round for _, round in self.rows if round is not None)

    def _sending_in(self, round: int | None) -> Sending:
        result = [self._cost_of(client_name(client), "client", round) for client in range(self.clients)]
        energy = np.array([cost.energy_joule for cost in result])
        return Sending(energy, np.array([cost.delay_seconds for cost in result]))

    def _cost_of(self, node: str, kind: str, round: int | None) -> Cost:
        # Most specific first: a row of the node before one of its kind, a row of the round before one for every round.
        for name in (node, kind):
            for when in dict.fromkeys((round, None)):
                if (name, when) in self.rows:
                    return self.rows[name, when]
        reason = f"{self.name} has no row for this node"
        invalid("resources.file", node, reason, f'add a row without a round, or a row for node = "{kind}"')


def read_table(given: Mapping[str, Any], *, clients: int) -> CostTable:
    """Return the table of `[resources] model = "table", file = "costs.csv"`."""
    for key, value in given.items():
        if key != "file":
            reason = 'unknown setting of model = "table"'
            invalid(f"resources.{key}", value, reason, did_you_mean(key, ["file", "delays"]))
    if not isinstance(given.get("file"), str):
        invalid(
            "resources.file", given.get("file", "missing"), "a CSV or JSON file is needed", 'e.g. file = "costs.csv"'
        )
    path = Path(given["file"])
    return CostTable({_row_key(path, row): _row_cost(path, row) for row in _read_rows(path)}, clients, path.name)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = read_text(path, encoding="utf-8-sig")
        rows = json.loads(text) if path.suffix.lower() == ".json" else list(csv.DictReader(text.splitlines()))
    except FileNotFoundError:
        invalid("resources.file", path, "no such file")
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        invalid("resources.file", path, f"cannot be read ({type(error).__name__})", "give UTF-8 CSV or JSON")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        invalid("resources.file", path, "has no rows", f"columns: {', '.join(COLUMNS)}, and perhaps round")
    for column in COLUMNS:
        if not all(column in row for row in rows):
            reason = f"has no column {column}"
            invalid("resources.file", path, reason, f"columns: {', '.join(COLUMNS)}, and perhaps round")
    return rows


def _row_key(path: Path, row: Mapping[str, Any]) -> tuple[str, int | None]:
    round = row.get("round")
    if round is None or round == "":
        return str(row["node"]).strip(), None
    number = _row_number(path, row, "round")
    if number != int(number) or number < 1:
        invalid("resources.file", round, f"a round in {path.name} must be a whole number >= 1")
    return str(row["node"]).strip(), int(number)


def _row_cost(path: Path, row: Mapping[str, Any]) -> Cost:
    return Cost(_row_number(path, row, "energy_joule"), _row_number(path, row, "delay_seconds"))


def _row_number(path: Path, row: Mapping[str, Any], column: str) -> float:
    try:
        value = float(row.get(column, "") if not isinstance(row.get(column), bool) else "")
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value < float("inf"):
        invalid(
            "resources.file", f"{row.get('node')}: {row.get(column)}", f"{column} in {path.name} must be a number >= 0"
        )
    return value


def dbm_to_watt(power_dbm: float) -> float:
    """Return watts from decibels over one milliwatt.

    >>> dbm_to_watt(30.0), round(dbm_to_watt(24.0), 4)
    (1.0, 0.2512)
    """
    return float(10 ** ((power_dbm - 30) / 10))


def path_gain(distance_metre: Floats, *, gain_db: float, exponent: float) -> Floats:
    """Return the mean power gain |h|^2: gain_db at one metre, falling by 10 exponent dB per decade of distance.

    >>> f"{path_gain(np.array([100.0]), gain_db=-30.0, exponent=3.75)[0]:.4g}"
    '3.162e-11'
    """
    return np.asarray(10 ** ((gain_db - 10 * exponent * np.log10(distance_metre)) / 10), dtype=np.float64)


def shannon_rate(
    gain: Floats, *, power_dbm: float, bandwidth_hertz: float, noise_dbm_per_hertz: float
) -> Floats:  # fmt: skip
    """Return R = W log2(1 + p |h|^2 / (N0 W)) in bits per second (appendix D, after Tse and Viswanath)."""
    noise_watt = dbm_to_watt(noise_dbm_per_hertz) * bandwidth_hertz
    return np.asarray(
        bandwidth_hertz * np.log1p(dbm_to_watt(power_dbm) * gain / noise_watt) / np.log(2), dtype=np.float64
    )


def read_number(name: str, value: Any) -> float:
    """Return a finite number. Raises for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        invalid(name, value, "must be a finite number")
    return float(value)


def read_positive(name: str, value: Any) -> float:
    """Return a finite number above zero. Raises for anything else."""
    if read_number(name, value) <= 0:
        invalid(name, value, "must be a positive number")
    return float(value)


def read_span(name: str, value: Any) -> tuple[float, float]:
    """Return (nearest, farthest), equal if one distance is given. Raises for anything else."""
    if not isinstance(value, list | tuple):
        return read_positive(name, value), read_positive(name, value)
    if len(value) != 2 or read_positive(name, value[0]) > read_positive(name, value[1]):
        invalid(name, value, "must be one distance, or [nearest, farthest]", "e.g. [10.0, 100.0]")
    return float(value[0]), float(value[1])


def read_boolean(name: str, value: Any) -> bool:
    """Return true or false. Raises for anything else."""
    if not isinstance(value, bool):
        invalid(name, value, "must be true or false")
    return value


# Least gain of a fade: a rate of zero would be an endless upload.
DEEPEST_FADE = 1e-9


@dataclass(frozen=True)
class WirelessSettings:
    """The parameters of the wireless and the wired links; the defaults are the paper's."""

    bandwidth_hertz: float = 1e6
    noise_dbm_per_hertz: float = -173.0
    power_dbm: float = 24.0
    distance_metre: tuple[float, float] = (10.0, 100.0)
    """Nearest and farthest; devices are spread evenly over that ring around their server."""
    gain_at_one_metre_db: float = -30.0
    path_loss_exponent: float = 3.75
    fading: bool = True
    """Rayleigh: every upload of every device is multiplied by its own |u|^2, u ~ CN(0, 1)."""
    bits_per_parameter: float = 32.0
    wired_power_dbm: float = 38.0
    wired_bits_per_second: float = 1e8

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "WirelessSettings":
        """Return the settings of `[resources]`. Raises for unknown keys and invalid values."""
        known = [field.name for field in dataclasses.fields(cls)]
        result: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                reason = 'unknown setting of model = "wireless"'
                invalid(f"resources.{key}", value, reason, did_you_mean(key, [*known, "delays"]))
            result[key] = READERS.get(key, read_positive)(f"resources.{key}", value)
        return cls(**result)


READERS = {
    "noise_dbm_per_hertz": read_number,
    "power_dbm": read_number,
    "gain_at_one_metre_db": read_number,
    "wired_power_dbm": read_number,
    "distance_metre": read_span,
    "fading": read_boolean,
}


@dataclass(frozen=True, eq=False)
class Wireless:
    """Prices of one federation's uploads.

    Guarantees: distances and fading depend on the seed, the round and the number of the upload in it, and on nothing
    private: they are the same whichever clients took part.
    """

    settings: WirelessSettings
    clients: int
    parameters: int
    streams: Streams

    @property
    def bits(self) -> float:
        """Return Q M, the size of one upload."""
        return self.settings.bits_per_parameter * self.parameters

    @cached_property
    def distance_metre(self) -> Floats:
        """Return every device's distance from its server."""
        nearest, farthest = self.settings.distance_metre
        share = self.streams.rng(Purpose.RESOURCES).random(self.clients)
        # The square root makes devices uniform over the area of the ring, not over its radius.
        return np.asarray(np.sqrt(nearest**2 + share * (farthest**2 - nearest**2)))

    def sending(self, *, round: int, use: int) -> Sending:
        """Return every device's upload, with the fading of that moment."""
        if not self.settings.fading:
            return self.typical
        fade = self.streams.rng(Purpose.RESOURCES, round=round, use=use).exponential(size=self.clients)
        return self._price_uploads(np.maximum(fade, DEEPEST_FADE))

    @cached_property
    def typical(self) -> Sending:
        """Return every device's upload at its mean gain: what can be known beforehand."""
        return self._price_uploads(np.ones(self.clients))

    def wired(self, node: str, *, round: int) -> Cost:
        """Return one edge's upload to the server above it."""
        seconds = self.bits / self.settings.wired_bits_per_second
        return Cost(dbm_to_watt(self.settings.wired_power_dbm) * seconds, seconds)

    def _price_uploads(self, fade: Floats) -> Sending:
        s = self.settings
        gain = path_gain(self.distance_metre, gain_db=s.gain_at_one_metre_db, exponent=s.path_loss_exponent)
        rate = shannon_rate(
            gain * fade,
            power_dbm=s.power_dbm,
            bandwidth_hertz=s.bandwidth_hertz,
            noise_dbm_per_hertz=s.noise_dbm_per_hertz,
        )
        seconds = self.bits / rate
        return Sending(dbm_to_watt(s.power_dbm) * seconds, seconds)


class Prices(Protocol):
    """What an upload costs each client or edge."""

    @property
    def typical(self) -> Sending:
        """Return every client's upload as it can be known beforehand."""

    def sending(self, *, round: int, use: int) -> Sending:
        """Return every client's upload at a moment."""

    def wired(self, node: str, *, round: int) -> Cost:
        """Return one edge's upload to the server above it."""


@dataclass(frozen=True, eq=False)
class Resources:
    """A model of energy and delay. Only uploads cost; broadcasts are free, as in the paper."""

    prices: Prices
    overlap: Overlap = Overlap.MAX

    def cost_of_gathering(self, many: Iterable[tuple[Channel, CohortSampler]], *, round: int, use: int) -> Cost:
        """Return the mean cost of one upload by the cohorts of several channels at one moment."""
        sending = self.prices.sending(round=round, use=use)
        return self._expected_cost(sending, many)

    def gathered_typically(self, many: Iterable[tuple[Channel, CohortSampler]]) -> Cost:
        """Return the mean cost of one upload by the cohorts as it can be known beforehand."""
        return self._expected_cost(self.prices.typical, many)

    def cost_of_lifting(self, nodes: Sequence[str], *, round: int = 0) -> Cost:
        """Return the cost of every node sending one model to the server above it, all at once."""
        return combine_costs([self.prices.wired(node, round=round) for node in nodes], self.overlap)

    def _expected_cost(self, sending: Sending, many: Iterable[tuple[Channel, CohortSampler]]) -> Cost:
        return expected_gathering([(sending.of(channel.members), sampler) for channel, sampler in many], self.overlap)


def _build_wireless(settings: Mapping[str, Any], experiment: Experiment, parameters: int) -> Prices:
    # From the seed even if noise comes from the operating system: distances and fading are public.
    streams = Streams.from_seed(experiment.seed)
    return Wireless(WirelessSettings.read(settings), experiment.data.clients, parameters, streams)


BuildPrices = Callable[[Mapping[str, Any], Experiment, int], Prices]
"""Maps (its own settings, experiment, parameters of the model) to prices."""

MODELS: dict[str, BuildPrices] = {
    "wireless": _build_wireless,
    "table": lambda settings, experiment, parameters: read_table(settings, clients=experiment.data.clients),
}
"""Models of links by name."""


def find_prices(model: str) -> BuildPrices:
    """Return how the prices of a model are built, for a built-in model or a plugin."""
    plugin = locate_plugin(RESOURCES, model, MODELS)
    if plugin is None:
        return MODELS[model]
    result = plugin.load_object()
    if not callable(result):
        plugin.refuse_type(result, "a function (settings, experiment, parameters) -> prices")
    return result  # type: ignore[no-any-return]


def build_resources(experiment: Experiment, *, parameters: int) -> Resources | None:
    """Return the resource model of an experiment file, or None."""
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
        invalid("resources.delays", value, 'must be "max" (side by side) or "sum" (one after the other)')
    return Overlap(value)


class CostMeter:
    """Adds energy and delay of one round to its metrics."""

    def __init__(self, resources: Resources, topology: Topology, time: int, counts: dict[str, float]) -> None:
        self._resources, self._topology, self._time, self._counts = resources, topology, time, counts
        self._gatherings = 0
        self._add_cost(Cost())

    def charge_gathering(self, sampled: Sequence[tuple[Channel, CohortSampler]]) -> None:
        """Charge one upload by the cohorts of these channels at its mean cost."""
        # The mean over the sampling, never the realised cohort: devices have different distances, so a sum of a few
        # energies would be a fingerprint of who took part.
        self._add_cost(self._resources.cost_of_gathering(sampled, round=self._time, use=self._gatherings))
        self._gatherings += 1

    def charge_lifting(self) -> None:
        """Charge sending the edges' values up to the top, level by level."""
        for nodes in self._topology.uplinks:
            self._add_cost(self._resources.cost_of_lifting(nodes, round=self._time))

    def _add_cost(self, cost: Cost) -> None:
        for name, value in (("energy_joule", cost.energy_joule), ("delay_seconds", cost.delay_seconds)):
            self._counts[name] = self._counts.get(name, 0.0) + value


__all__ = [
    "MODELS",
    "Cost",
    "CostMeter",
    "CostTable",
    "Overlap",
    "Prices",
    "Resources",
    "Sending",
    "Wireless",
    "WirelessSettings",
    "build_resources",
    "combine_costs",
    "expected_gathering",
    "find_prices",
    "read_table",
]
