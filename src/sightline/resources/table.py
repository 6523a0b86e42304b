"""Measured costs from a user's file: one row per node, or one per node and round.

CSV with a header line, or JSON as a list of objects; columns (further ones are ignored):

| column | what it is |
|---|---|
| `node` | a name as in the ledger (`client-3`, `edge-0`), or `client` / `edge` for all that have no row of their own |
| `energy_joule` | of one upload of this experiment's model |
| `delay_seconds` | of the same |
| `round` | optional: the row holds for that round only; rounds without a row use the node's rows without a round |
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import did_you_mean, invalid
from sightline.foreign import read_text
from sightline.resources.cost import Cost, Sending
from sightline.topology import client_name

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
