"""A ledger as one JSON file that can be accounted again without the run, its code or its data."""

import json
from pathlib import Path
from typing import Any

from sightline.errors import InvalidInput, invalid
from sightline.foreign import read_text
from sightline.ledger.ledger import Ledger
from sightline.ledger.parties import read_parties, write_parties
from sightline.ledger.release import release_from

SCHEMA = "sightline-ledger/1"


def export_ledger(ledger: Ledger) -> dict[str, Any]:
    """The plain form: `{"schema", "participants", "releases": [...]}`, one object per release, ids are positions."""
    return {
        "schema": SCHEMA,
        "participants": write_parties(ledger.participants),
        "releases": [json.loads(release.body()) for release in ledger],
    }


def read_export(path: Path | str) -> Ledger:
    """The ledger of an exported file; anything malformed is refused.

    A file without participants, as they were once written, knows the names in its releases.
    """
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("ledger", path, "no such file", "write one with sightline report RUN_DIR --ledger FILE.json")
    except (OSError, ValueError, RecursionError) as error:
        invalid("ledger", path, f"cannot be read as JSON ({type(error).__name__})")
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA or not isinstance(plain.get("releases"), list):
        raise InvalidInput(f"ledger={path}: not a {SCHEMA} file")
    participants = plain.get("participants", "")
    if not isinstance(participants, str):
        invalid("participants", type(participants).__name__, "is one text", 'e.g. "client-0..23, server"')
    releases = (release_from(row, place) for place, row in enumerate(plain["releases"]))
    return Ledger(releases, participants=read_parties(participants))
