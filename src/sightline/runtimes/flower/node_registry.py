"""Which node speaks for which client: every newcomer is asked who it is."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp import Grid

from sightline.data import Kind
from sightline.errors import printable
from sightline.runtimes.flower.transport import exchange_messages
from sightline.runtimes.remote.clients import LONGEST_REASON
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.site import HELLO
from sightline.topology import client_name

HELLO_SECONDS = 120.0
TRIES = 3
MOST = 10**8
"""No site has a number, examples or pixels beyond this."""
KINDRED = ("shape", "kind", "classes", "vocabulary")
"""The facts in which all sites must agree."""


class NodeRegistry:
    """The sites of a federation by their numbers. Nodes may come, go and come back under another id.

    Guarantees: one node per client; a second one that claims the number of a connected node is turned away.
    """

    def __init__(self, grid: Grid, tell: Callable[[str], None]) -> None:
        self._grid, self._tell = grid, tell
        self._tries: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __call__(self) -> Mapping[int, int]:
        """The node of every client that is connected now."""
        here = set(self._grid.get_node_ids())
        new = {node: (node, WireMessage({"call": HELLO})) for node in here if self._tries.get(node, 0) < TRIES}
        for node, answer in exchange_messages(self._grid, new, group=HELLO, timeout=HELLO_SECONDS).items():
            self._tries[node] = self._tries.get(node, 0) + 1
            if isinstance(answer, str):
                self._tell(printable(f"node {node}: {answer}", most=LONGEST_REASON))
            else:
                self._tries[node] = TRIES
                self._admit_node(node, answer.words, here)
        return {client: node for client, node in self._node_of.items() if node in here}

    def _admit_node(self, node: int, facts: Mapping[str, Any], here: set[int]) -> None:
        why = _wrong_facts(facts) or self._why_unlike(facts)
        client = -1 if why else int(facts["client"])
        if not why and self._node_of.get(client, node) in here - {node}:
            why = f"says that it is {client_name(client)}, which another connected node is already"
        if not why and client in self.facts and facts["examples"] != self.facts[client]["examples"]:
            why = f"says that {client_name(client)} has another number of examples than before"
        if why:
            self._tell(printable(f"node {node}: turned away, it {why}", most=LONGEST_REASON))
            return
        self._node_of[client] = node
        self.facts.setdefault(client, dict(facts))

    def _why_unlike(self, facts: Mapping[str, Any]) -> str:
        first = next(iter(self.facts.values()), facts)
        return "" if all(facts[name] == first[name] for name in KINDRED) else "has data of another kind than the others"


def _wrong_facts(facts: Mapping[str, Any]) -> str:
    if "refused" in facts:
        return f"refused: {facts['refused']}"
    counts = (facts.get(name) for name in ("client", "examples", "classes", "vocabulary"))
    shape = facts.get("shape")
    known = isinstance(shape, list) and len(shape) in (1, 3) and facts.get("kind") in list(Kind)
    if not known or not facts.get("examples") or not all(map(_read_count, (*counts, *(shape or ())))):
        return "does not say who it is"
    return ""


def _read_count(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MOST
