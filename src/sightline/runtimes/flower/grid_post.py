"""The post of a ServerApp: questions go out over Flower's Grid, answers come back as they are ready."""

import time
from collections.abc import Iterable, Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from sightline.errors import SightlineError
from sightline.runtimes.flower.records import from_record, to_record
from sightline.runtimes.letter import Letter

POLL_SECONDS = 0.02
SLOWEST_POLL_SECONDS = 1.0


class GridPost:
    """Takes letters to the nodes of a grid and waits `timeout` seconds for their answers, never longer.

    An answer that comes later is an answer to a message that nobody waits for any more: it is never looked at.
    """

    def __init__(self, grid: Grid, node_of: Mapping[int, int], *, timeout: float) -> None:
        self._grid, self._node_of, self._timeout = grid, node_of, timeout

    def ask(self, letters: Mapping[int, Letter], group: str) -> dict[int, Letter | str]:
        """Every client's answer, or why there is none."""
        away = {client: "no node of that client is connected" for client in letters if client not in self._node_of}
        nodes = {self._node_of[client]: client for client in letters if client in self._node_of}
        answers = self.exchange({node: letters[client] for node, client in nodes.items()}, group)
        return away | {nodes[node]: answer for node, answer in answers.items()}

    def exchange(self, letters: Mapping[int, Letter], group: str) -> dict[int, Letter | str]:
        """The same by node id."""
        if not letters:
            return {}
        messages = [
            Message(to_record(letter), node, MessageType.TRAIN, group_id=group, ttl=self._timeout)
            for node, letter in letters.items()
        ]
        late: dict[int, Letter | str] = dict.fromkeys(letters, f"no answer within {self._timeout:g} seconds")
        return late | gathered(self._grid, self._grid.push_messages(messages), self._timeout)

    def close(self) -> None:
        """The grid is Flower's to close."""


def gathered(grid: Grid, sent: Iterable[str], timeout: float) -> dict[int, Letter | str]:
    """Node -> answer, of those that answer before the time is up."""
    waiting = set(sent)
    found: dict[int, Letter | str] = {}
    end, pause = time.monotonic() + timeout, POLL_SECONDS
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            found[reply.metadata.src_node_id] = _read(reply)
        if waiting:
            time.sleep(pause)
            pause = min(1.2 * pause, SLOWEST_POLL_SECONDS)
    return found


def connected(grid: Grid, count: int, *, timeout: float) -> list[int]:
    """The nodes of a grid, in the order of their ids, as soon as there are `count` of them."""
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise SightlineError(f"nodes={len(nodes)}: {count} are needed and the wait of {timeout:g} seconds is over")
        time.sleep(POLL_SECONDS)
    return nodes


def _read(reply: Message) -> Letter | str:
    if reply.has_error():
        return f"failed: {reply.error.reason}"
    try:
        return from_record(reply.content)
    except SightlineError as error:
        return f"sent nonsense: {error}"
