"""A tree from a JSON file: `{"servers": [{"name": "north", "trusted": true, "servers": [...]}, ...]}`.

A server has `"devices": [0, 1, 2]` or `"servers": [...]`; `"trusted"` may be left out and is then false.
"""

import json
import re
from pathlib import Path
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.foreign import read_text
from sightline.topology.tree import CLOUD, Node

FILE_KEYS = ["name", "trusted", "devices", "servers"]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*")
TAKEN = re.compile(r"(client-\d+|public|server|clients)")
EXAMPLE = 'e.g. {"servers": [{"name": "edge-0", "trusted": true, "devices": [0, 1]}]}'


def read_tree(path: Path | str) -> tuple[Node, ...]:
    """The servers directly below the cloud; anything malformed is refused in one line."""
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("topology.file", path, "no such file", EXAMPLE)
    except (OSError, ValueError, RecursionError) as error:
        invalid("topology.file", path, f"cannot be read as JSON ({type(error).__name__})", EXAMPLE)
    if not isinstance(plain, dict) or set(plain) != {"servers"} or not _read_objects(plain["servers"]):
        invalid("topology.file", path, 'an object with a list of "servers" is needed', EXAMPLE)
    try:
        return tuple(_read_node(server) for server in plain["servers"])
    except RecursionError:
        invalid("topology.file", path, "has more levels than can be walked")


def _read_node(plain: dict[str, Any]) -> Node:
    for key, value in plain.items():
        if key not in FILE_KEYS:
            invalid(f"topology.file.{key}", value, "unknown key", did_you_mean(key, FILE_KEYS))
    name, trusted, devices = plain.get("name"), plain.get("trusted", False), plain.get("devices", [])
    if not isinstance(name, str) or not NAME.fullmatch(name) or TAKEN.fullmatch(name) or name == CLOUD:
        invalid("topology.file.name", name, "a server has a name of its own: letters, digits, dash", EXAMPLE)
    if not isinstance(trusted, bool):
        invalid(f"topology.file.{name}.trusted", trusted, "is true or false")
    if not isinstance(devices, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in devices):
        invalid(f"topology.file.{name}.devices", devices, "is a list of device numbers", EXAMPLE)
    below = plain.get("servers", [])
    if not _read_objects(below):
        invalid(f"topology.file.{name}.servers", below, "is a list of servers", EXAMPLE)
    return Node(name, trusted, tuple(sorted(devices)), tuple(_read_node(server) for server in below))


def _read_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
