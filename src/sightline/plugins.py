"""What other people bring: objects by "package.module:OBJECT", or by a name that an installed package offers.

An entry point of a group below makes a name work like a built-in one. Naming an object runs the module that it is in:
an experiment file is trusted as much as a program. Sites, which answer other people's experiments, look at a name
before anything of it is imported (`locate_plugin`).
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

REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
"""package.module:OBJECT."""
LONGEST_CAUSE = 160


@dataclass(frozen=True)
class PluginKind:
    """A kind of thing that others may bring."""

    key: str
    """Where an experiment file names it."""
    group: str
    """The entry points under which installed packages offer names."""
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
    """Where a thing of somebody else's is: found by its name, not yet imported."""

    kind: PluginKind
    name: str
    """As the experiment file has it."""
    module: str
    attribute: str

    def load_object(self) -> Any:
        """Import the module and take the object; whatever goes wrong is one line."""
        try:
            found: Any = import_module(self.module)
        except Exception as error:
            law = f"module {self.module!r} cannot be imported ({cause_of(error)})"
            invalid(self.kind.key, self.name, law, "check PYTHONPATH and spelling")
        for word in self.attribute.split("."):
            if not hasattr(found, word):
                known = [other for other in dir(found) if not other.startswith("_")]
                invalid(self.kind.key, self.name, f"{self.module!r} has no {word!r}", did_you_mean(word, known))
            found = getattr(found, word)
        return found

    @property
    def source_digest(self) -> str:
        """SHA-256 of the source of the module that was imported; "unknown" where it has no file."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else "unknown"

    def refuse_type(self, found: Any, wanted: str) -> NoReturn:
        """Say in one line that the object is not what its kind must be."""
        law = f"is a {type(found).__name__}, and a {self.kind.noun} is {wanted}"
        invalid(self.kind.key, self.name, law, "docs/plugins.md has one of each kind")


@cache
def _offered_points() -> dict[str, dict[str, tuple[EntryPoint, ...]]]:
    """Group -> name -> the entry points of that name, of every installed package; read once."""
    found: dict[str, dict[str, tuple[EntryPoint, ...]]] = {kind.group: {} for kind in KINDS}
    every = entry_points()
    for group, names in found.items():
        for point in every.select(group=group):
            if all(point.value != other.value for other in names.get(point.name, ())):
                names[point.name] = (*names.get(point.name, ()), point)
    return found


def forget_offers() -> None:
    """Look at the installed packages again: for whoever installs one into a running program."""
    _offered_points.cache_clear()


def offered_names(kind: PluginKind) -> list[str]:
    """The names that installed packages offer."""
    return sorted(_offered_points()[kind.group])


def locate_plugin(kind: PluginKind, name: str, built_in: Collection[str]) -> Plugin | None:
    """Where the thing of that name is, when somebody else brings it; None where it is built in.

    Guarantees: nothing is imported. A name that a package offers beside a built-in one, or that two packages offer, is
    refused whenever it is used: whose it is would depend on what else is installed.
    """
    offers = _offered_points()[kind.group].get(name, ())
    if name in built_in:
        if offers:
            law = f"{_describe_offers(offers)} offers a plugin of this name, and none can shadow a built-in one"
            invalid(kind.key, name, law, "uninstall it, or ask its author for another name")
        return None
    if REFERENCE.fullmatch(name):
        return Plugin(kind, name, *name.split(":"))
    if len(offers) > 1:
        law = f"{_describe_offers(offers)} offer plugins of this name"
        invalid(kind.key, name, law, 'name the one that is meant: "package.module:OBJECT"')
    if offers:
        return Plugin(kind, name, offers[0].module, offers[0].attr)
    known = [*built_in, *offered_names(kind)]
    way_out = did_you_mean(name, known) + ' (your own: "package.module:OBJECT")'
    invalid(kind.key, name, f"no such {kind.noun}", way_out)


def _describe_offers(offers: tuple[EntryPoint, ...]) -> str:
    return " and ".join(point.dist.name if point.dist is not None else point.value for point in offers)


def cause_of(error: BaseException) -> str:
    """The type and first words of an error in somebody else's code, on one line."""
    return printable(f"{type(error).__name__}: {error}", most=LONGEST_CAUSE)


class BrokenLaw(Refused):
    """Something does not do what it says: the law that it breaks, and how that was seen."""

    def __init__(self, law: str, seen: str) -> None:
        super().__init__(printable(f'breaks the law "{law}": {seen}'))


def refuse_plugin(kind: PluginKind, name: str, error: BaseException) -> NoReturn:
    """Refuse what did not pass its laws, in one line that names the law; or what failed while it was looked at."""
    seen = str(error) if isinstance(error, BrokenLaw) else f'breaks the law "runs at all": {cause_of(error)}'
    refuse(kind.key, name, seen, f"sightline.testing.check_{kind.noun} tells its author more")
