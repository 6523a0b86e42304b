"""Flower's nodes: which key belongs to which client, and messages as Flower's records."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from sightline.data import Kind
from sightline.errors import InvalidInput, SightlineError, invalid, printable
from sightline.runtimes.flower.federation import MOST_CLIENT, MOST_EXAMPLES, RegisterFile, read_public_key, read_section
from sightline.runtimes.remote.clients import LONGEST_REASON
from sightline.runtimes.remote.message import LARGEST_FIELDS, LARGEST_SITE_FIELDS, WireMessage, read_fields, read_npy
from sightline.runtimes.site.site import HELLO
from sightline.topology import client_name

MOST = {"client": MOST_CLIENT, "examples": MOST_EXAMPLES, "classes": 10**5, "vocabulary": 10**7}
"""Upper limits for the facts of a site."""
MOST_NUMBERS = 10**7
"""Upper limit for the numbers in one example."""


@dataclass(frozen=True)
class Register:
    """The client of each key, and the number of examples of each client."""

    client_of: Mapping[bytes, int]
    """By public key, in PEM as Flower reports it."""
    examples: Mapping[int, int]
    names: Mapping[int, str] = field(default_factory=dict)
    """What people call a client, where the register says it."""

    def label(self, client: int) -> str:
        """Return a client as the operator's output names it."""
        name = self.names.get(client)
        return client_name(client) if name is None else f"{client_name(client)} ({name})"


def read_register(path: str, clients: int) -> Register:
    """Return the operator's register; raise InvalidInput unless every client has exactly one key of its own."""
    if not path:
        reason = "real sites are known by their keys, and the server's own file says whose key is whose"
        invalid("register", path, reason, "give register=FILE in --run-config; docs/deployment.md shows one")
    sites = read_section(Path(path), RegisterFile, "register").site
    client_of: dict[bytes, int] = {}
    for site in sites:
        key = read_public_key(site.key, "register: key", f"the key of {client_name(site.client)}")
        if key in client_of or site.client in client_of.values():
            invalid("register: client", site.client, "a client or a key occurs twice", "remove one of the two")
        client_of[key] = site.client
    if missing := sorted(set(range(clients)) - set(client_of.values())):
        reason = f"{client_name(missing[0])} is not in it, and the experiment has {clients} clients"
        invalid("register", Path(path).name, reason, "add its [[site]] with client, key and examples")
    names = {site.client: site.name for site in sites if site.name is not None}
    return Register(client_of, {site.client: site.examples for site in sites}, names)


KINDRED = ("shape", "kind", "classes", "vocabulary")
"""The facts in which all sites must agree."""
HELLO_SECONDS = 120.0
HELLO_BYTES = 1 << 16
TRIES = 3


class NodeRegistry:
    """The sites of a federation by client number. Nodes may leave and come back under another id.

    Guarantees: a node speaks only for the client that the register gives to its key, whatever it says about itself;
    there is one node per client; its size is the register's. A node without a registered key is not asked anything.
    """

    def __init__(self, grid: Grid, register: Register, tell: Callable[[str], None]) -> None:
        self._grid, self._register, self._tell = grid, register, tell
        self._tries: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __call__(self) -> Mapping[int, int]:
        """Return the node of every client that is connected now."""
        # Flower reports the key that authenticated each node. The hello is compared with the register and decides
        # nothing.
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
                self._tell(
                    f"node {node}: connected with the key of {self._register.label(client)}, asked for its hello"
                )
        # A node may still be starting: it is asked up to TRIES times before it is left alone.
        answers = exchange_messages(self._grid, new, group=HELLO, timeout=HELLO_SECONDS, largest=HELLO_BYTES)
        for node, answer in answers.items():
            self._tries[node] = self._tries.get(node, 0) + 1
            if isinstance(answer, str):
                self._tell(printable(f"node {node}: {answer}", most=LONGEST_REASON))
            else:
                self._tries[node] = TRIES
                self._admit_node(node, answer.fields, here)
        return {client: node for client, node in self._node_of.items() if here.get(node) == client}

    def _admit_node(self, node: int, facts: Mapping[str, Any], here: Mapping[int, int | None]) -> None:
        client = here[node]
        if client is None:
            return
        why = _wrong_facts(facts) or self._why_not_registered(client, facts) or self._why_unlike(facts)
        other = self._node_of.get(client, node)
        if not why and other != node and here.get(other) == client:
            why = f"says that it is {client_name(client)}, but another connected node is that client already"
        if why:
            self._tell(printable(f"node {node}: turned away, it {why}", most=LONGEST_REASON))
            return
        self._node_of[client] = node
        self.facts.setdefault(client, dict(facts))

    def _why_not_registered(self, client: int, facts: Mapping[str, Any]) -> str:
        if facts["client"] != client:
            return f"says that it is {client_name(int(facts['client']))}, but its key belongs to {client_name(client)}"
        # A claimed size is never believed: it would be a weight in the mean, and memory to allocate.
        known = self._register.examples[client]
        return "" if facts["examples"] == known else f"says {facts['examples']} examples, but the register says {known}"

    def _why_unlike(self, facts: Mapping[str, Any]) -> str:
        first = next(iter(self.facts.values()), facts)
        return (
            "" if all(facts[name] == first[name] for name in KINDRED) else "has data of another kind than other sites"
        )


def _wrong_facts(facts: Mapping[str, Any]) -> str:
    if "refused" in facts:
        return f"refused: {facts['refused']}"
    shape = facts.get("shape")
    if not isinstance(shape, list) or len(shape) not in (1, 2, 3) or facts.get("kind") not in list(Kind):
        return "sent no valid description of its data"
    counts = [(facts.get(name), most) for name, most in MOST.items()] + [(size, MOST_NUMBERS) for size in shape]
    if not all(_is_count(*count) for count in counts) or not facts["examples"]:
        return "sent no valid description of its data"
    return "" if math.prod(shape) <= MOST_NUMBERS else f"has examples of more than {MOST_NUMBERS} numbers"


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 <= number <= most


FIELDS, ARRAYS = "words", "arrays"


def to_record(letter: WireMessage) -> RecordDict:
    """Return the message as a record: fields as one JSON text, arrays as they are."""
    arrays = {name: Array(np.asarray(array, order="C")) for name, array in letter.arrays.items()}
    return RecordDict(
        {FIELDS: ConfigRecord({"json": json.dumps(dict(letter.fields), allow_nan=False)}), ARRAYS: ArrayRecord(arrays)}
    )


def from_record(record: RecordDict, *, largest_fields: int = LARGEST_FIELDS) -> WireMessage:
    """Return the message in a record, with at most `largest_fields` characters of fields.

    Guarantees: any other record raises InvalidInput and nothing else.
    """
    try:
        # Flower's own reader is not used: it also opens archives, and NumPy's raises more than it documents.
        fields = read_fields(record.config_records[FIELDS]["json"], most=largest_fields)
        return WireMessage(fields, {name: _read_array(array) for name, array in record.array_records[ARRAYS].items()})
    except Exception as error:
        raise InvalidInput(f"message={type(error).__name__}: not a message of this version") from None


def _read_array(array: Array) -> NDArray[Any]:
    if array.stype != "numpy.ndarray":
        raise TypeError("not an array of NumPy")
    return read_npy(array.data)


POLL_SECONDS = 0.02
SLOWEST_POLL_SECONDS = 1.0
GRACE_SECONDS = 60.0
"""Flower drops a reply whose message has expired; the clocks of two machines may differ by this much."""

LARGEST_ANSWER = 1 << 31

Answers = dict[int, WireMessage | str]
NodeOf = Callable[[], Mapping[int, int]]
"""Returns the node of every client that can be asked now."""


class GridTransport:
    """Carries messages to the nodes of a grid and waits at most `timeout` seconds for their answers.

    A late answer is never read.
    """

    def __init__(
        self, grid: Grid, node_of: NodeOf, *, timeout: float, largest: int = LARGEST_ANSWER, simulated: bool = False
    ) -> None:
        self._grid, self._node_of, self._timeout, self._largest = grid, node_of, timeout, largest
        self._simulated = simulated

    def ask(self, letters: Mapping[int, WireMessage], group: str) -> Answers:
        """Return every client's answer, or why there is none."""
        node_of = self._node_of()
        away: Answers = {client: "its node is not connected" for client in letters if client not in node_of}
        return away | exchange_messages(
            self._grid,
            {client: (node_of[client], letter) for client, letter in letters.items() if client in node_of},
            group=group,
            timeout=self._timeout,
            largest=self._largest,
            simulated=self._simulated,
        )

    def close(self) -> None:
        """Do nothing: Flower closes the grid."""


def exchange_messages(
    grid: Grid,
    letters: Mapping[int, tuple[int, WireMessage]],
    *,
    group: str,
    timeout: float,
    largest: int = LARGEST_ANSWER,
    simulated: bool = False,
) -> Answers:
    """Return by key the answer of the node that was asked, of at most `largest` bytes, or why there is none.

    Guarantees: what one node sends does not block the answer of another.
    """
    result: Answers = dict.fromkeys(letters, f"no answer within {timeout:g} seconds")
    messages = {
        key: Message(to_record(letter), node, MessageType.TRAIN, group_id=group, ttl=timeout + GRACE_SECONDS)
        for key, (node, letter) in letters.items()
    }
    if not messages:
        return result
    sent = set(grid.push_messages(list(messages.values())))
    waiting = {message.metadata.message_id: key for key, message in messages.items()}
    result |= {key: "its node could not be reached" for id, key in waiting.items() if id not in sent}
    waiting = {id: key for id, key in waiting.items() if id in sent}
    end, pause = time.monotonic() + timeout, POLL_SECONDS
    over = False
    while waiting and not over:
        # One last look: what arrived in time counts, however slow this machine is.
        over = time.monotonic() >= end
        # Flower unpacks all replies of a request or none, so a malformed reply would hide the others: pull one at a
        # time.
        for ids in [list(waiting)] if simulated else [[id] for id in waiting]:
            replies = _pull_replies(grid, ids)
            if replies is None:
                result |= {waiting.pop(id): "sent nonsense: its reply cannot be unpacked" for id in ids}
                continue
            for reply in replies:
                id = reply.metadata.reply_to_message_id
                # The reply must come from the node that was asked: another node may know the message id.
                if id in ids and id in waiting and reply.metadata.src_node_id == letters[waiting[id]][0]:
                    result[waiting.pop(id)] = _read_reply(reply, largest)
        if waiting and not over:
            time.sleep(pause)
            pause = min(1.2 * pause, SLOWEST_POLL_SECONDS)
    return result


def wait_for_nodes(grid: Grid, count: int, *, timeout: float) -> list[int]:
    """Return the nodes of a grid in the order of their ids as soon as there are `count`; raise after `timeout`."""
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise SightlineError(f"nodes={len(nodes)}: {count} are needed and the wait of {timeout:g} seconds is over")
        time.sleep(POLL_SECONDS)
    return nodes


def _pull_replies(grid: Grid, ids: list[str]) -> list[Message] | None:
    """Return the replies to messages, or None if Flower cannot unpack them; raise if the SuperLink is gone."""
    try:
        replies = list(grid.pull_messages(ids))
        _ = [(reply.metadata.reply_to_message_id, reply.metadata.src_node_id) for reply in replies]
        return replies
    except Exception as error:
        log(WARNING, "a reply cannot be unpacked (%s)", type(error).__name__)
        # Raises if the SuperLink is gone, so that a lost connection is not taken for a malformed reply.
        list(grid.get_nodes())
        return None


def _read_reply(reply: Any, largest: int) -> WireMessage | str:
    try:
        if reply.has_error():
            return f"failed: {' '.join(str(reply.error.reason).split())[:300]}"
        if (size := _count_bytes(reply.content)) > largest:
            return f"sent {size} bytes; an answer has at most {largest}"
        return from_record(reply.content, largest_fields=LARGEST_SITE_FIELDS)
    except SightlineError as error:
        return f"sent nonsense: {error}"
    except Exception as error:
        return f"sent nonsense: {type(error).__name__}"


def _count_bytes(record: RecordDict) -> int:
    """Return the bytes that would be unpacked: arrays and fields, wherever they are."""
    arrays = sum(len(array.data) for part in record.array_records.values() for array in part.values())
    fields = sum(len(str(value)) for part in record.config_records.values() for value in part.values())
    return arrays + fields
