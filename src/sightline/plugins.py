"""Plugins: objects named "package.module:OBJECT", or by a name that an installed package offers.

An entry point of a group below makes a name work like a built-in one. Naming an object runs its module: an experiment
file is trusted as much as a program. Sites, which answer experiments of other parties, inspect a name before anything
of it is imported (`locate_plugin`).
"""

import hashlib
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn

from sightline.errors import Refused, did_you_mean, invalid, printable, refuse

# package.module:OBJECT.
REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
LONGEST_CAUSE = 160


def import_extra(module: str, extra: str) -> Any:
    """Import and return a module that an optional extra installs. Raises with the pip command if it is missing.

    >>> import_extra("no_such_module", "images")
    Traceback (most recent call last):
    ...
    sightline.errors.InvalidInput: module=no_such_module: cannot be imported; pip install "sightline[images]"
    """
    try:
        return import_module(module)
    except ImportError:
        invalid("module", module, "cannot be imported", f'pip install "sightline[{extra}]"')


@dataclass(frozen=True)
class PluginKind:
    """A kind of object that plugins may provide."""

    key: str
    """The key of an experiment file that names it."""
    group: str
    """The entry-point group under which installed packages offer names."""
    noun: str


ALGORITHM = PluginKind("algorithm.name", "sightline.algorithms", "algorithm")
MECHANISM = PluginKind("privacy.mechanism", "sightline.mechanisms", "mechanism")
TOPOLOGY = PluginKind("topology.kind", "sightline.topologies", "topology")
SAMPLER = PluginKind("sampling.clients.scheme", "sightline.samplers", "sampler")
RESOURCES = PluginKind("resources.model", "sightline.resources", "resource model")
TRANSPORT = PluginKind("runtime", "sightline.transports", "runtime")
KINDS = (ALGORITHM, MECHANISM, TOPOLOGY, SAMPLER, RESOURCES, TRANSPORT)


@dataclass(frozen=True)
class Plugin:
    """The location of a plugin's object: found by its name, not imported yet."""

    kind: PluginKind
    name: str
    """The name in the experiment file."""
    module: str
    attribute: str

    def load_object(self) -> Any:
        """Import the module and return the object. Raises with one line for any failure."""
        try:
            # Importing a plugin may raise anything; the user gets one line instead of a foreign traceback.
            result: Any = import_module(self.module)
        except Exception as error:
            reason = f"module {self.module!r} cannot be imported ({cause_of(error)})"
            invalid(self.kind.key, self.name, reason, "check PYTHONPATH and spelling")
        for word in self.attribute.split("."):
            if not hasattr(result, word):
                known = [other for other in dir(result) if not other.startswith("_")]
                invalid(self.kind.key, self.name, f"{self.module!r} has no {word!r}", did_you_mean(word, known))
            result = getattr(result, word)
        return result

    @property
    def source_digest(self) -> str:
        """Return the SHA-256 of the imported module's source; "unknown" if it has no file."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else "unknown"

    def refuse_type(self, loaded: Any, wanted: str) -> NoReturn:
        """Raise with one line if the object is not of the type that its kind needs."""
        reason = f"is a {type(loaded).__name__}, but a {self.kind.noun} must be {wanted}"
        invalid(self.kind.key, self.name, reason, "docs/plugins.md has an example of each kind")


@cache
def _offered_points() -> dict[str, dict[str, tuple[EntryPoint, ...]]]:
    """Return the entry points of every installed package by group and name; read once."""
    result: dict[str, dict[str, tuple[EntryPoint, ...]]] = {kind.group: {} for kind in KINDS}
    every = entry_points()
    for group, names in result.items():
        for point in every.select(group=group):
            if all(point.value != other.value for other in names.get(point.name, ())):
                names[point.name] = (*names.get(point.name, ()), point)
    return result


def forget_offers() -> None:
    """Read the installed packages again, after one was installed into a running program."""
    _offered_points.cache_clear()


def offered_names(kind: PluginKind) -> list[str]:
    """Return the names that installed packages offer."""
    return sorted(_offered_points()[kind.group])


def locate_plugin(kind: PluginKind, name: str, built_in: Collection[str]) -> Plugin | None:
    """Return the location of a plugin by its name; None for a built-in name. Raises for an unknown name.

    Guarantees: nothing is imported. A name that a package offers beside a built-in one, or that two packages offer, is
    refused.
    """
    offers = _offered_points()[kind.group].get(name, ())
    # Otherwise the meaning of an experiment file would depend on what else is installed.
    if name in built_in:
        if offers:
            reason = f"{_describe_offers(offers)} offers a plugin of this name, but a plugin cannot replace a built-in"
            invalid(kind.key, name, reason, "uninstall it, or ask its author for another name")
        return None
    if REFERENCE.fullmatch(name):
        return Plugin(kind, name, *name.split(":"))
    if len(offers) > 1:
        reason = f"{_describe_offers(offers)} offer plugins of this name"
        invalid(kind.key, name, reason, 'name the module and object: "package.module:OBJECT"')
    if offers:
        return Plugin(kind, name, offers[0].module, offers[0].attr)
    known = [*built_in, *offered_names(kind)]
    way_out = did_you_mean(name, known) + ' (your own: "package.module:OBJECT")'
    invalid(kind.key, name, f"no such {kind.noun}", way_out)


def _describe_offers(offers: tuple[EntryPoint, ...]) -> str:
    return " and ".join(point.dist.name if point.dist is not None else point.value for point in offers)


def cause_of(error: BaseException) -> str:
    """Return the type and first words of a plugin's exception, on one line."""
    return printable(f"{type(error).__name__}: {error}", most=LONGEST_CAUSE)


class BrokenLaw(Refused):
    """A plugin does not do what it claims: the law that it breaks, and how that was observed."""

    def __init__(self, law: str, observed: str) -> None:
        super().__init__(printable(f'breaks the law "{law}": {observed}'))


def refuse_plugin(kind: PluginKind, name: str, error: BaseException) -> NoReturn:
    """Raise with one line for a plugin that broke a law, or failed while it was checked."""
    seen = (
        str(error) if isinstance(error, BrokenLaw) else f'breaks the law "runs without an exception": {cause_of(error)}'
    )
    refuse(kind.key, name, seen, f"sightline.testing.check_{kind.noun} gives its author details")
