"""Messages as Flower's records, and back."""

import json
import time
from collections.abc import Callable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from sightline.errors import InvalidInput, SightlineError
from sightline.runtimes.remote.message import LARGEST_SITE_WORDS, LARGEST_WORDS, WireMessage, read_npy, read_words

WORDS, ARRAYS = "words", "arrays"


def to_record(letter: WireMessage) -> RecordDict:
    """Words as one JSON text, arrays as they are."""
    arrays = {name: Array(np.asarray(array, order="C")) for name, array in letter.arrays.items()}
    return RecordDict(
        {WORDS: ConfigRecord({"json": json.dumps(dict(letter.words), allow_nan=False)}), ARRAYS: ArrayRecord(arrays)}
    )


def from_record(record: RecordDict, *, most_words: int = LARGEST_WORDS) -> WireMessage:
    """Return the message in a record, with at most `most_words` characters of words.

    Guarantees: any other record raises InvalidInput and nothing else. Flower's own reader is not used: it opens
    archives too, and NumPy's raises more than it documents.
    """
    try:
        words = read_words(record.config_records[WORDS]["json"], most=most_words)
        return WireMessage(words, {name: _read_array(array) for name, array in record.array_records[ARRAYS].items()})
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
"""The node of every client that can be asked now."""


class GridTransport:
    """Takes letters to the nodes of a grid and waits `timeout` seconds for their answers, never longer.

    An answer that comes later is an answer to a message that nobody waits for any more: it is never looked at.
    """

    def __init__(
        self, grid: Grid, node_of: NodeOf, *, timeout: float, largest: int = LARGEST_ANSWER, simulated: bool = False
    ) -> None:
        self._grid, self._node_of, self._timeout, self._largest = grid, node_of, timeout, largest
        self._simulated = simulated

    def ask(self, letters: Mapping[int, WireMessage], group: str) -> Answers:
        """Every client's answer, or why there is none."""
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
        """The grid is Flower's to close."""


def exchange_messages(
    grid: Grid,
    letters: Mapping[int, tuple[int, WireMessage]],
    *,
    group: str,
    timeout: float,
    largest: int = LARGEST_ANSWER,
    simulated: bool = False,
) -> Answers:
    """Return by key the answer of the node that its letter was for, of at most `largest` bytes, or why there is none.

    Guarantees: what one node sends does not keep another's answer away. Flower unpacks all replies of one request or
    none, so every reply is a request of its own, unless the nodes are `simulated`.
    """
    found: Answers = dict.fromkeys(letters, f"no answer within {timeout:g} seconds")
    messages = {
        key: Message(to_record(letter), node, MessageType.TRAIN, group_id=group, ttl=timeout + GRACE_SECONDS)
        for key, (node, letter) in letters.items()
    }
    if not messages:
        return found
    sent = set(grid.push_messages(list(messages.values())))
    waiting = {message.metadata.message_id: key for key, message in messages.items()}
    found |= {key: "its node could not be reached" for id, key in waiting.items() if id not in sent}
    waiting = {id: key for id, key in waiting.items() if id in sent}
    end, pause = time.monotonic() + timeout, POLL_SECONDS
    over = False
    while waiting and not over:
        over = time.monotonic() >= end  # a last look: what has come in time counts, however slow this machine is
        for ids in [list(waiting)] if simulated else [[id] for id in waiting]:
            replies = _pull_replies(grid, ids)
            if replies is None:
                found |= {waiting.pop(id): "sent nonsense: its reply cannot be unpacked" for id in ids}
                continue
            for reply in replies:
                id = reply.metadata.reply_to_message_id
                if id in ids and id in waiting and reply.metadata.src_node_id == letters[waiting[id]][0]:
                    found[waiting.pop(id)] = _read_reply(reply, largest)
        if waiting and not over:
            time.sleep(pause)
            pause = min(1.2 * pause, SLOWEST_POLL_SECONDS)
    return found


def wait_for_nodes(grid: Grid, count: int, *, timeout: float) -> list[int]:
    """The nodes of a grid, in the order of their ids, as soon as there are `count` of them."""
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise SightlineError(f"nodes={len(nodes)}: {count} are needed and the wait of {timeout:g} seconds is over")
        time.sleep(POLL_SECONDS)
    return nodes


def _pull_replies(grid: Grid, ids: list[str]) -> list[Message] | None:
    """Return the replies to messages, or None when Flower cannot unpack them; raises when the SuperLink is gone."""
    try:
        replies = list(grid.pull_messages(ids))
        _ = [(reply.metadata.reply_to_message_id, reply.metadata.src_node_id) for reply in replies]
        return replies
    except Exception as error:
        log(WARNING, "a reply cannot be unpacked (%s)", type(error).__name__)
        list(grid.get_nodes())
        return None


def _read_reply(reply: Any, largest: int) -> WireMessage | str:
    try:
        if reply.has_error():
            return f"failed: {' '.join(str(reply.error.reason).split())[:300]}"
        if (size := _count_bytes(reply.content)) > largest:
            return f"sent {size} bytes, at most {largest} are an answer"
        return from_record(reply.content, most_words=LARGEST_SITE_WORDS)
    except SightlineError as error:
        return f"sent nonsense: {error}"
    except Exception as error:
        return f"sent nonsense: {type(error).__name__}"


def _count_bytes(record: RecordDict) -> int:
    """What would be unpacked: arrays and words, wherever they are."""
    arrays = sum(len(array.data) for part in record.array_records.values() for array in part.values())
    words = sum(len(str(value)) for part in record.config_records.values() for value in part.values())
    return arrays + words
