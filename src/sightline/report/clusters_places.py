"""Who was in which cluster, round by round: one strip per client, one block per stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sightline.report.clusters_scatter import colour_of

WIDTH, ROW = 480.0, 12.0
MOST_CLIENTS = 120
MOST_BLOCKS = 6000
HOW = {
    "known": "known beforehand",
    "drawn": "drawn by the server from the mixture",
    "chosen": "chosen by the clients in private",
    "kept": "kept from before",
}


@dataclass(frozen=True)
class Block:
    """A client's stay in one cluster."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    words: str


@dataclass(frozen=True)
class PlaceStrips:
    """All stays, and the phases above them."""

    blocks: tuple[Block, ...]
    phases: tuple[tuple[float, str], ...]
    """Where each way of assignment begins, in words."""
    height: float
    width: float = WIDTH


def place_strips(rows: Sequence[Mapping[str, Any]], truth: Sequence[int] | None) -> PlaceStrips | None:
    """The strips of the rounds that had clusters; None without any, or with more than can be drawn."""
    there = [row for row in rows if row.get("clusters")]
    if not there or len(there[0]["clusters"]["assignment"]) > MOST_CLIENTS:
        return None
    clients = range(len(there[0]["clusters"]["assignment"]))
    order = sorted(clients, key=lambda n: (0 if truth is None else truth[n], n))
    blocks = [block for strip, client in enumerate(order) for block in _client_strip(there, client, strip)]
    return PlaceStrips(tuple(blocks), _phase_spans(there), len(order) * ROW) if len(blocks) <= MOST_BLOCKS else None


def _client_strip(rows: Sequence[Mapping[str, Any]], client: int, strip: int) -> list[Block]:
    step, found = WIDTH / len(rows), []
    stays = groupby(enumerate(rows), key=lambda pair: pair[1]["clusters"]["assignment"][client])
    for cluster, stay in stays:
        held = list(stay)
        first, last = held[0][1]["round"], held[-1][1]["round"]
        when = f"round {first}" if first == last else f"rounds {first} to {last}"
        words = f"client-{client}, {when}: cluster {cluster}."
        x, width = held[0][0] * step, len(held) * step
        found.append(Block(round(x, 2), strip * ROW, round(width, 2), ROW - 2, colour_of(cluster), words))
    return found


def _phase_spans(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, str], ...]:
    found = []
    for how, stay in groupby(enumerate(rows), key=lambda pair: pair[1]["clusters"]["how"]):
        held = list(stay)
        first, last = held[0][1]["round"], held[-1][1]["round"]
        when = f"Round {first}" if first == last else f"Rounds {first} to {last}"
        found.append((round(held[0][0] * WIDTH / len(rows), 2), f"{when}: {HOW.get(how, how)}"))
    return tuple(found)
