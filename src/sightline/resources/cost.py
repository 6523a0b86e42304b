"""What sending costs, energy adding up and delays overlapping; and costs that were measured, from a user's file."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import did_you_mean, invalid
from sightline.foreign import read_text
from sightline.mechanisms import CohortSampler
from sightline.topology import client_name

Floats = NDArray[np.float64]


class Overlap(StrEnum):
    """How long several senders take together."""

    MAX = "max"
    """As long as the slowest: they send side by side."""
    SUM = "sum"
    """One after the other: they share the medium (the paper's objective reads like that)."""


@dataclass(frozen=True)
class Cost:
    """Energy and delay of some sending.

    >>> Cost(1.0, 2.0) + Cost(0.5, 1.0)
    Cost(energy_joule=1.5, delay_seconds=3.0)
    """

    energy_joule: float = 0.0
    delay_seconds: float = 0.0

    def __add__(self, later: "Cost") -> "Cost":
        """The one, and then the other."""
        return Cost(self.energy_joule + later.energy_joule, self.delay_seconds + later.delay_seconds)

    def times(self, count: float) -> "Cost":
        """The same so many times."""
        return Cost(count * self.energy_joule, count * self.delay_seconds)


def combine_costs(costs: Iterable[Cost], overlap: Overlap) -> Cost:
    """Several senders of one moment; nobody costs nothing.

    >>> combine_costs([Cost(1.0, 2.0), Cost(1.0, 3.0)], Overlap.MAX)
    Cost(energy_joule=2.0, delay_seconds=3.0)
    """
    found = list(costs)
    delays = [cost.delay_seconds for cost in found]
    delay = sum(delays) if overlap is Overlap.SUM else max(delays, default=0.0)
    return Cost(sum(cost.energy_joule for cost in found), delay)


@dataclass(frozen=True, eq=False)
class Sending:
    """What one upload of the model costs every client: two arrays, by the clients' numbers."""

    energy_joule: Floats
    delay_seconds: Floats

    def of(self, members: tuple[int, ...]) -> "Sending":
        """Of some clients only."""
        places = np.asarray(members, dtype=np.int64)
        return Sending(self.energy_joule[places], self.delay_seconds[places])


def expected_gathering(many: Sequence[tuple[Sending, CohortSampler]], overlap: Overlap) -> Cost:
    """Mean energy, and mean delay, of one upload by everybody who is drawn; each channel draws for itself.

    Guarantees: it is a function of the samplers' laws and of the public prices; the realised cohorts are not looked
    at. With everybody drawn it is the plain sum of the energies and the plain maximum (or sum) of the delays.
    """
    energy = math.fsum(member_rate(sampler) * math.fsum(sending.energy_joule) for sending, sampler in many)
    if overlap is Overlap.SUM:
        return Cost(
            energy, math.fsum(member_rate(sampler) * math.fsum(sending.delay_seconds) for sending, sampler in many)
        )
    return Cost(energy, expected_slowest([(sending.delay_seconds, sampler) for sending, sampler in many]))


def member_rate(sampler: CohortSampler) -> float:
    """How likely a member is to be drawn."""
    return sampler.expected / sampler.population


def expected_slowest(many: Sequence[tuple[Floats, CohortSampler]]) -> float:
    """E[max] of the delays of all cohorts together, zero where nobody is drawn.

    P(max <= x) is the product over channels of the chance that none of the slower ones is drawn; the mean is the sum
    of its steps.
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
"""(node, round or None for every round) -> its cost."""

COLUMNS = ("node", "energy_joule", "delay_seconds")


@dataclass(frozen=True, eq=False)
class Table:
    """Costs as they were measured. Constructed from rows that cover every client."""

    rows: Rows
    clients: int
    name: str = "table"

    def __post_init__(self) -> None:
        for client in range(self.clients):
            self._cost_of(client_name(client), "client", None)

    def sending(self, *, round: int, use: int) -> Sending:
        """Every client's upload in a round."""
        return self._sending_in(round if round in self._rounds else None)

    @cached_property
    def typical(self) -> Sending:
        """Every client's upload in rounds that have no rows of their own."""
        return self._sending_in(None)

    def wired(self, node: str, *, round: int) -> Cost:
        """One edge's upload to the server above it."""
        return self._cost_of(node, "edge", round)

    @cached_property
    def _rounds(self) -> frozenset[int | None]:
        return frozenset(round for _, round in self.rows if round is not None)

    def _sending_in(self, round: int | None) -> Sending:
        found = [self._cost_of(client_name(client), "client", round) for client in range(self.clients)]
        energy = np.array([cost.energy_joule for cost in found])
        return Sending(energy, np.array([cost.delay_seconds for cost in found]))

    def _cost_of(self, node: str, kind: str, round: int | None) -> Cost:
        for name in (node, kind):
            for when in dict.fromkeys((round, None)):
                if (name, when) in self.rows:
                    return self.rows[name, when]
        law = f"{self.name} has no row for it"
        invalid("resources.file", node, law, f'add one without a round, or one for node = "{kind}"')


def read_table(given: Mapping[str, Any], *, clients: int) -> Table:
    """`[resources] model = "table", file = "costs.csv"` of an experiment file."""
    for key, value in given.items():
        if key != "file":
            law = "a table has no such setting"
            invalid(f"resources.{key}", value, law, did_you_mean(key, ["file", "delays"]))
    if not isinstance(given.get("file"), str):
        invalid("resources.file", given.get("file", "missing"), "names a CSV or JSON file", 'e.g. file = "costs.csv"')
    path = Path(given["file"])
    return Table({_row_key(path, row): _row_cost(path, row) for row in _read_rows(path)}, clients, path.name)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = read_text(path, encoding="utf-8-sig")
        rows = json.loads(text) if path.suffix.lower() == ".json" else list(csv.DictReader(text.splitlines()))
    except FileNotFoundError:
        invalid("resources.file", path, "no such file")
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        invalid("resources.file", path, f"cannot be read ({type(error).__name__})", "give UTF-8 CSV or JSON")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        invalid("resources.file", path, "holds no rows", f"columns: {', '.join(COLUMNS)}, and perhaps round")
    for column in COLUMNS:
        if not all(column in row for row in rows):
            law = f"has no column {column}"
            invalid("resources.file", path, law, f"columns: {', '.join(COLUMNS)}, and perhaps round")
    return rows


def _row_key(path: Path, row: Mapping[str, Any]) -> tuple[str, int | None]:
    round = row.get("round")
    if round is None or round == "":
        return str(row["node"]).strip(), None
    number = _row_number(path, row, "round")
    if number != int(number) or number < 1:
        invalid("resources.file", round, f"a round in {path.name} is a whole number from 1")
    return str(row["node"]).strip(), int(number)


def _row_cost(path: Path, row: Mapping[str, Any]) -> Cost:
    return Cost(_row_number(path, row, "energy_joule"), _row_number(path, row, "delay_seconds"))


def _row_number(path: Path, row: Mapping[str, Any], column: str) -> float:
    try:
        value = float(row.get(column, "") if not isinstance(row.get(column), bool) else "")
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value < float("inf"):
        invalid("resources.file", f"{row.get('node')}: {row.get(column)}", f"{column} in {path.name} is a number >= 0")
    return value
