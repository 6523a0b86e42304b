"""A release: the only way in which anything that depends on private data leaves a participant."""

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sightline.errors import InvalidInput, one_line
from sightline.events import Adjacency, Event, Product, Unit, from_json, to_json
from sightline.ledger.parties import NOBODY, Parties, read_parties, write_parties

POST_PROCESSING = Product(())
"""The event of a value that is computed from earlier releases and nothing else: it costs nothing."""


@dataclass(frozen=True, slots=True)
class Release:
    """One line of the ledger. `event` is what the value reveals of `subjects` *given* the values in `inputs`.

    `subjects` are those who could be in it (all eligible ones when hidden sampling chose among them), never the
    realised cohort of a claimed sampling. Releases of one `joint` name are charged once, by their common event.
    """

    time: int
    source: str
    subjects: Parties
    unit: Unit
    adjacency: Adjacency
    event: Event
    audience: Parties
    inputs: tuple[int, ...] = ()
    coins_known_to: Parties = NOBODY
    joint: str = ""
    what: str = ""
    id: int = -1

    def with_id(self, id: int) -> "Release":
        """The same release with its place in the ledger."""
        _check_order(self.inputs, id)
        return replace(self, id=id)

    def body(self) -> str:
        """The canonical text of the release: what is stored, hashed and exported."""
        plain = {
            "time": self.time,
            "source": self.source,
            "subjects": write_parties(self.subjects),
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "event": _event_plain(self.event),
            "audience": write_parties(self.audience),
            "inputs": list(self.inputs),
            "coins_known_to": write_parties(self.coins_known_to),
            "joint": self.joint,
            "what": self.what,
        }
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def _check_order(inputs: tuple[int, ...], id: int) -> None:
    if any(not 0 <= earlier < id for earlier in inputs):
        raise InvalidInput(f"inputs={inputs}: a release is computed from earlier releases only")


def release_from(plain: dict[str, Any], id: int) -> Release:
    """The release that `Release.body` wrote; a malformed one is refused, not guessed."""
    try:
        return Release(
            time=_whole_number(plain["time"]),
            source=str(plain["source"]),
            subjects=read_parties(plain["subjects"]),
            unit=Unit(plain["unit"]),
            adjacency=Adjacency(plain["adjacency"]),
            event=_event_read(json.dumps(plain["event"])),
            audience=read_parties(plain["audience"]),
            inputs=tuple(_whole_number(number) for number in plain["inputs"]),
            coins_known_to=read_parties(plain["coins_known_to"]),
            joint=str(plain["joint"]),
            what=str(plain["what"]),
        ).with_id(id)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(one_line("release", id, f"not a release ({type(error).__name__}: {error})"[:300])) from None


def _whole_number(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("rounds and releases are whole numbers from 0")
    return number


_NUMBERS = r"(?:0|[1-9]\d{0,17})"
_BODY = re.compile(
    rf'\{{"time":({_NUMBERS}),(.*),"inputs":\[((?:{_NUMBERS}(?:,{_NUMBERS})*)?)\],("coins_known_to":.*)\}}', re.DOTALL
)


def release_like(body: str, id: int) -> Release | None:
    """The release of a stored body, None unless `Release.body` wrote it.

    Bodies that differ in time and inputs alone are taken apart once.
    """
    found = _BODY.fullmatch(body) if isinstance(body, str) else None
    like = None if found is None else _release_of_body(f'{{"time":0,{found[2]},"inputs":[],{found[4]}}}')
    if found is None or like is None:
        return None
    inputs = tuple(int(number) for number in found[3].split(",")) if found[3] else ()
    _check_order(inputs, id)
    return Release(
        int(found[1]), like.source, like.subjects, like.unit, like.adjacency, like.event, like.audience, inputs,
        like.coins_known_to, like.joint, like.what, id,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _release_of_body(body: str) -> Release | None:
    """The release of a body without time and inputs; None unless the body is written as `Release.body` writes it."""
    try:
        release = release_from(json.loads(body), 0)
    except (ValueError, InvalidInput, RecursionError):
        return None
    return release if release.body() == body else None


@lru_cache(maxsize=4096)
def _event_plain(event: Event) -> dict[str, Any]:
    return to_json(event)


@lru_cache(maxsize=4096)
def _event_read(text: str) -> Event:
    return from_json(json.loads(text))
