"""Write the SHA-256 of every file that pip may install beside the versions of constraints files: FILE...

Hashes come from the index that pip asks, for Linux on x86-64 and aarch64 and macOS on arm64. Wheels only, unless a
release has none. A hash that is already there for the same version stays: its file may be in another index, as the CPU
builds of torch are (`pip hash FILE` prints it).
"""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from pip._internal.models.index import PyPI

ANSWERS = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
PYTHONS = ("py3", "cp311", "cp312", "cp313", "cp314")
SYSTEMS = (r"any", r"(many)?linux.*_(x86_64|aarch64)", r"macosx_.*_(arm64|universal2)")
LINE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(\s*;[^\\]*)?")


def index_files(name: str) -> dict[str, str]:
    """Every file of a package in the index, with its SHA-256."""
    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    request = urllib.request.Request(f"{index}/{canonicalize_name(name)}/", headers={"Accept": ANSWERS})
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    if text.lstrip().startswith("{"):
        return {file["filename"]: file["hashes"]["sha256"] for file in json.loads(text)["files"]}
    return {name: digest for digest, name in re.findall(r"#sha256=([0-9a-f]{64})[^>]*>([^<]+)<", text)}


def is_supported(filename: str) -> bool:
    """Whether a wheel is for a system and a Python of ours."""
    return any(
        (tag.interpreter in PYTHONS or (tag.abi == "abi3" and re.fullmatch(r"cp3\d+", tag.interpreter)))
        and not tag.abi.endswith("t")
        and any(re.fullmatch(system, tag.platform) for system in SYSTEMS)
        for tag in parse_wheel_filename(filename)[3]
    )


def release_hashes(name: str, version: str) -> set[str]:
    """The hashes of a release's wheels; of its source where it has no wheel."""
    wheels, sources = set(), set()
    for file, digest in index_files(name).items():
        if file.endswith(".whl"):
            if file.split("-")[1] == version and is_supported(file):
                wheels.add(digest)
        elif re.fullmatch(
            rf"{re.escape(canonicalize_name(name))}-{re.escape(version)}\.tar\.gz", canonical_source(file)
        ):
            sources.add(digest)
    return wheels or sources


def canonical_source(file: str) -> str:
    """The name of a source archive with its package's name in one spelling."""
    name, _, rest = file.rpartition("-")
    return f"{canonicalize_name(name)}-{rest}"


def known_hashes(text: str) -> dict[tuple[str, str], set[str]]:
    """The hashes that a file has, by package and version."""
    found: dict[tuple[str, str], set[str]] = {}
    for part in text.replace("\\\n", " ").splitlines():
        if match := LINE.match(part):
            found[canonicalize_name(match[1]), match[2]] = set(re.findall(r"sha256:([0-9a-f]{64})", part))
    return found


def with_hashes(text: str) -> str:
    """The same lines with the hashes of today's index and those that were there."""
    known, lines = known_hashes(text), []
    for part in text.replace("\\\n", " ").splitlines():
        match = LINE.match(part)
        if match is None:
            lines.append(part)
            continue
        name, version, marker = match[1], match[2].partition("+")[0], (match[3] or "").strip()
        hashes = release_hashes(name, version) | known.get((canonicalize_name(name), version), set())
        if not hashes:
            sys.exit(f"{name}=={version}: the index has no file of it")
        options = [f"    --hash=sha256:{digest}" for digest in sorted(hashes)]
        lines.append(" \\\n".join([f"{name}=={version}{' ' + marker if marker else ''}", *options]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_hashes(path.read_text()))
