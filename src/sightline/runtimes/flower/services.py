"""Files that let systemd or Docker Compose start a server or a site, written with the paths of this machine."""

import json
import os
import pwd
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import invalid
from sightline.runtimes.flower.federation import write_public

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
"""What root needs in a container to start, watch and end processes of other users."""
IMAGE = "sightline:local"

UNIT = """[Unit]
Description=Sightline {kind} {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={line}
{user}Restart=on-failure
RestartSec=10
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""

COMPOSE = """# Build the image once: docker build --file deploy/Dockerfile --tag {image} .   (in a clone of Sightline)
services:
  {kind}:
    image: {image}
    command: {command}
    user: {user}
    network_mode: host
    init: true
    restart: unless-stopped
    read_only: true
    tmpfs: ["/tmp"]
    cap_drop: ["ALL"]
    cap_add: {capabilities}
    security_opt: ["no-new-privileges:true"]
    volumes: {volumes}
"""


def write_unit(folder: Path, kind: str, users: Sequence[str]) -> Path:
    """Write the systemd unit of a `server` or a `site` into its folder; return its path."""
    folder = folder.resolve()
    line = " ".join(_quote_word(word) for word in (sys.executable, "-m", "sightline", kind, "start", str(folder)))
    # With separate users root starts each process as its own.
    user = "" if users else f"User={pwd.getpwuid(os.geteuid()).pw_name}\n"
    plain = re.sub("[^A-Za-z0-9_.-]", "-", folder.name)
    path = folder / f"sightline-{kind}-{plain}.service"
    name = _quote_word(folder.name).strip('"')
    write_public(path, UNIT.format(kind=kind, name=name, line=line, user=user))
    return path


def _quote_word(word: str) -> str:
    """Return a word as systemd reads it: quoted, with its own meaning taken from %, $, quotes and backslashes."""
    if any(not letter.isprintable() for letter in word):
        invalid("FOLDER", repr(word), "has characters that a unit cannot hold", "choose another folder")
    for letter, plain in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(letter, plain)
    return f'"{word}"'


def write_compose(folder: Path, kind: str, users: Sequence[str]) -> Path:
    """Write the Compose file of a `server` or a `site` into its folder; return its path."""
    folder = folder.resolve()
    # The same path in the container, so that what the folder's files say holds there too.
    volumes: list[dict[str, object]] = [{"type": "bind", "source": str(folder), "target": str(folder)}]
    if users:
        volumes += [
            {"type": "bind", "source": path, "target": path, "read_only": True}
            for path in ("/etc/passwd", "/etc/group")
        ]
    path = folder / "docker-compose.yml"
    text = COMPOSE.format(
        image=IMAGE,
        kind=kind,
        command=_as_yaml(["sightline", kind, "start", str(folder)]),
        user=_as_yaml("0:0" if users else f"{os.geteuid()}:{os.getegid()}"),
        capabilities=_as_yaml(CAPABILITIES if users else []),
        volumes=_as_yaml(volumes),
    )
    write_public(path, text)
    return path


def _as_yaml(value: object) -> str:
    # JSON is YAML; Compose replaces $ by variables unless it is doubled.
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")
