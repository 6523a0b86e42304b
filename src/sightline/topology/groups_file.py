"""Memberships from a JSON file: `{"workers": N, "groups": [[0, 1], ...]}`, and what may stand beside them.

`"schedule": [{"from": 3, "groups": [...]}]` changes memberships from the third interval on; `"rates"`,
`"noise_factors"` and `"clip_factors"` give every group its own, relative to the experiment's where they are factors.
"""

import json
from pathlib import Path
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.foreign import read_text
from sightline.topology.groups_schedule import Era, Schedule
from sightline.topology.groups_structures import Group

FILE_KEYS = ["workers", "groups", "schedule", "rates", "noise_factors", "clip_factors"]
EXAMPLE = 'e.g. {"workers": 3, "groups": [[0, 1], [1, 2]]}'


def read_schedule(path: Path | str) -> Schedule:
    """The schedule of a membership file; anything malformed is refused in one line."""
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("membership", path, "no such file", EXAMPLE)
    except (OSError, ValueError, RecursionError) as error:
        invalid("membership", path, f"cannot be read as JSON ({type(error).__name__})", EXAMPLE)
    return schedule_from(plain)


def schedule_from(plain: Any) -> Schedule:
    """The schedule of a plain dictionary."""
    if not isinstance(plain, dict) or not {"workers", "groups"} <= set(plain):
        invalid("membership", type(plain).__name__, 'an object with "workers" and "groups" is needed', EXAMPLE)
    for key in plain:
        if key not in FILE_KEYS:
            invalid(f"membership.{key}", plain[key], "unknown key", did_you_mean(key, FILE_KEYS))
    return Schedule(
        _read_whole("workers", plain["workers"]),
        (
            Era(1, _read_groups(plain["groups"])),
            *(_read_era(entry) for entry in _read_list("schedule", plain.get("schedule", []))),
        ),
        rates=read_numbers("rates", plain.get("rates")),
        noise_factors=read_numbers("noise_factors", plain.get("noise_factors")),
        clip_factors=read_numbers("clip_factors", plain.get("clip_factors")),
    )


def read_numbers(name: str, value: Any) -> tuple[float, ...] | None:
    """A list of finite numbers, or nothing."""
    if value is None:
        return None
    found = _read_list(name, value)
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in found):
        invalid(name, value, "is a list of numbers, one for each group")
    try:
        return tuple(float(v) for v in found)
    except OverflowError:
        invalid(name, value, "holds a number that is too large")


def _read_era(entry: Any) -> Era:
    if not isinstance(entry, dict) or set(entry) != {"from", "groups"}:
        invalid("schedule", entry, 'an entry has "from" and "groups"', 'e.g. {"from": 3, "groups": [[0], [1, 2]]}')
    return Era(_read_whole("schedule.from", entry["from"]), _read_groups(entry["groups"]))


def _read_groups(value: Any) -> tuple[Group, ...]:
    return tuple(
        tuple(sorted(_read_whole("groups", n) for n in _read_list("groups", group)))
        for group in _read_list("groups", value)
    )


def _read_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        invalid(name, value, "is a list", EXAMPLE)
    return value


def _read_whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        invalid(name, value, "is a whole number", EXAMPLE)
    return value
