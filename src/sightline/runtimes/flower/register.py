"""Who speaks for which client: the server's own register of node keys and sizes, and the nodes that are connected."""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.serverapp import Grid
from pydantic import Field, ValidationError

from sightline.config.section import Section
from sightline.data import Kind
from sightline.errors import invalid, printable
from sightline.runtimes.flower.transport import exchange_messages
from sightline.runtimes.remote.clients import LONGEST_REASON
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.site import HELLO
from sightline.topology import client_name

LARGEST_REGISTER = 1 << 24
MOST_EXAMPLES = 10**8
MOST = {"client": 10**6, "examples": MOST_EXAMPLES, "classes": 10**5, "vocabulary": 10**7}
"""No site has more of these."""
MOST_NUMBERS = 10**7
"""No example has more numbers."""


class RegisteredSite(Section):
    """One `[[site]]` of the register."""

    client: Annotated[int, Field(ge=0, le=MOST["client"])]
    key: str
    """The node's public key: the line of its .pub file, as `ssh-keygen -t ecdsa` writes it."""
    examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]
    """How many examples the site has, as its owner told the operator; a node that says otherwise is turned away."""


class RegisterFile(Section):
    """The whole file."""

    site: list[RegisteredSite]


@dataclass(frozen=True)
class Register:
    """Whose key belongs to which client, and how many examples each client has."""

    client_of: Mapping[bytes, int]
    """By public key, in PEM as Flower tells it."""
    examples: Mapping[int, int]


def read_register(path: str, clients: int) -> Register:
    """The operator's file; one key per client, one client per key, and nobody missing. Mistakes are one line."""
    if not path:
        law = "real sites are known by their keys, and the server's own file says whose key is whose"
        invalid("register", path, law, "give register=FILE in --run-config; docs/deployment.md shows one")
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_REGISTER).decode()
        sites = RegisterFile.model_validate(tomllib.loads(text)).site
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        invalid("register", path, f"cannot be read ({type(error).__name__})")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        invalid(f"register: {'.'.join(str(part) for part in first['loc'])}", first["input"], first["msg"])
    client_of: dict[bytes, int] = {}
    for site in sites:
        key = read_key(site)
        if key in client_of or site.client in client_of.values():
            invalid(
                "register: client", site.client, "one client has one key, and one key is one client's", "remove one"
            )
        client_of[key] = site.client
    if missing := sorted(set(range(clients)) - set(client_of.values())):
        law = f"{client_name(missing[0])} is not in it, and the experiment has {clients} clients"
        invalid("register", Path(path).name, law, "add its [[site]] with client, key and examples")
    return Register(client_of, {site.client: site.examples for site in sites})


def read_key(site: RegisteredSite) -> bytes:
    """A public key in the form in which Flower tells the keys of nodes."""
    try:
        key = load_ssh_public_key(site.key.strip().encode())
        return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except (ValueError, UnsupportedAlgorithm):
        law = f"the key of {client_name(site.client)} is not an OpenSSH public key"
        invalid("register: key", site.key[:60], law, "paste the line of its .pub file")


KINDRED = ("shape", "kind", "classes", "vocabulary")
"""The facts in which all sites must agree."""
HELLO_SECONDS = 120.0
HELLO_BYTES = 1 << 16
TRIES = 3


class NodeRegistry:
    """The sites of a federation by their numbers. Nodes may come, go and come back under another id.

    Guarantees: a node speaks for the client that the register gives to its key, and for no other, whatever it says of
    itself; one node per client; its size is the register's. Who has no registered key is not asked anything.
    """

    def __init__(self, grid: Grid, register: Register, tell: Callable[[str], None]) -> None:
        self._grid, self._register, self._tell = grid, register, tell
        self._tries: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __call__(self) -> Mapping[int, int]:
        """The node of every client that is connected now."""
        here = {
            int(node.node_id): self._register.client_of.get(bytes(node.public_key)) for node in self._grid.get_nodes()
        }
        for node in [node for node, client in here.items() if client is None and node not in self._tries]:
            self._tries[node] = TRIES
            self._tell(f"node {node}: turned away, its key is not in the register")
        new = {}
        for node, client in here.items():
            if client is not None and self._tries.get(node, 0) < TRIES:
                new[node] = (node, WireMessage({"call": HELLO}))
                self._tell(f"node {node}: connected with the key of {client_name(client)}, asked for its hello")
        answers = exchange_messages(self._grid, new, group=HELLO, timeout=HELLO_SECONDS, largest=HELLO_BYTES)
        for node, answer in answers.items():
            self._tries[node] = self._tries.get(node, 0) + 1
            if isinstance(answer, str):
                self._tell(printable(f"node {node}: {answer}", most=LONGEST_REASON))
            else:
                self._tries[node] = TRIES
                self._admit_node(node, answer.words, here)
        return {client: node for client, node in self._node_of.items() if here.get(node) == client}

    def _admit_node(self, node: int, facts: Mapping[str, Any], here: Mapping[int, int | None]) -> None:
        client = here[node]
        if client is None:
            return
        why = _wrong_facts(facts) or self._why_not_registered(client, facts) or self._why_unlike(facts)
        other = self._node_of.get(client, node)
        if not why and other != node and here.get(other) == client:
            why = f"says that it is {client_name(client)}, which another connected node is already"
        if why:
            self._tell(printable(f"node {node}: turned away, it {why}", most=LONGEST_REASON))
            return
        self._node_of[client] = node
        self.facts.setdefault(client, dict(facts))

    def _why_not_registered(self, client: int, facts: Mapping[str, Any]) -> str:
        if facts["client"] != client:
            return f"says that it is {client_name(int(facts['client']))}, and its key is {client_name(client)}'s"
        known = self._register.examples[client]
        return "" if facts["examples"] == known else f"says {facts['examples']} examples, and the register says {known}"

    def _why_unlike(self, facts: Mapping[str, Any]) -> str:
        first = next(iter(self.facts.values()), facts)
        return "" if all(facts[name] == first[name] for name in KINDRED) else "has data of another kind than the others"


def _wrong_facts(facts: Mapping[str, Any]) -> str:
    if "refused" in facts:
        return f"refused: {facts['refused']}"
    shape = facts.get("shape")
    if not isinstance(shape, list) or len(shape) not in (1, 2, 3) or facts.get("kind") not in list(Kind):
        return "does not say who it is"
    counts = [(facts.get(name), most) for name, most in MOST.items()] + [(size, MOST_NUMBERS) for size in shape]
    if not all(_is_count(*count) for count in counts) or not facts["examples"]:
        return "does not say who it is"
    return "" if math.prod(shape) <= MOST_NUMBERS else f"has examples of more than {MOST_NUMBERS} numbers"


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 <= number <= most
