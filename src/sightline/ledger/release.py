"""A release: the only way in which anything that depends on private data leaves a participant."""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sightline.errors import InvalidInput
from sightline.events import Adjacency, Event, Product, Unit, from_json, to_json
from sightline.ledger.parties import NOBODY, Parties, read_parties, written

POST_PROCESSING = Product(())
"""The event of a value that is computed from earlier releases and nothing else: it costs nothing."""


@dataclass(frozen=True, slots=True)
class Release:
    """One line of the ledger. `event` is what the value reveals of `subjects` *given* the values in `inputs`.

    `subjects` are those who could be in it (all eligible ones when a hidden coin chose among them), never the realised
    cohort of a claimed sampling. Releases of one `joint` name are charged once, by their common event.
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

    def numbered(self, id: int) -> "Release":
        """The same release with its place in the ledger."""
        if any(not 0 <= earlier < id for earlier in self.inputs):
            raise InvalidInput(f"inputs={self.inputs}: a release is computed from earlier releases only")
        return replace(self, id=id)

    def body(self) -> str:
        """The canonical text of the release: what is stored, hashed and exported."""
        plain = {
            "time": self.time,
            "source": self.source,
            "subjects": written(self.subjects),
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "event": _event_plain(self.event),
            "audience": written(self.audience),
            "inputs": list(self.inputs),
            "coins_known_to": written(self.coins_known_to),
            "joint": self.joint,
            "what": self.what,
        }
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def release_from(plain: dict[str, Any], id: int) -> Release:
    """The release that `Release.body` wrote; a malformed one is refused, not guessed."""
    try:
        return Release(
            time=int(plain["time"]),
            source=str(plain["source"]),
            subjects=read_parties(plain["subjects"]),
            unit=Unit(plain["unit"]),
            adjacency=Adjacency(plain["adjacency"]),
            event=_event_read(json.dumps(plain["event"])),
            audience=read_parties(plain["audience"]),
            inputs=tuple(int(number) for number in plain["inputs"]),
            coins_known_to=read_parties(plain["coins_known_to"]),
            joint=str(plain["joint"]),
            what=str(plain["what"]),
        ).numbered(id)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"release={id}: not a release ({type(error).__name__}: {error})") from None


@lru_cache(maxsize=4096)
def _event_plain(event: Event) -> dict[str, Any]:
    return to_json(event)


@lru_cache(maxsize=4096)
def _event_read(text: str) -> Event:
    return from_json(json.loads(text))
