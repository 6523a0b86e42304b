"""Connections: how long a caller may take over a question, and who makes room when every place is taken."""

import io
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any


class TimedReader(io.RawIOBase):
    """Reads a socket until a moment, however often a byte arrives before it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until, self._once_begun = connection, time.monotonic(), 0.0

    def await_request(self, *, first_byte: float, whole: float) -> None:
        """So many seconds until a request begins, and from then on so many until all of it is here."""
        self._until, self._once_begun = time.monotonic() + first_byte, whole

    def readable(self) -> bool:
        """It reads."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has arrived, once something has; too late is a `TimeoutError`."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        number = self._connection.recv_into(buffer)
        if self._once_begun:
            self._until, self._once_begun = min(self._until, time.monotonic() + self._once_begun), 0.0
        return number


@dataclass
class _Place:
    """Since when its next request is awaited (None: one is answered), and whether it had the token."""

    awaited_since: float | None
    known: bool = False


class Places:
    """So many connections at a time.

    Guarantees: while any connection waits for its caller, a new one finds a place: it takes that of a caller who never
    showed the token and has been waited for longest, or else that of the longest silent one. An answer under way is not
    broken off.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._held: dict[socket.socket, _Place] = {}

    def take(self, connection: socket.socket) -> bool:
        """A place for a new connection; False when all callers are being answered."""
        with self._lock:
            if len(self._held) >= self._most and not self._make_room():
                return False
            self._held[connection] = _Place(time.monotonic())
            return True

    def _make_room(self) -> bool:
        waiting = [
            (place.known, place.awaited_since, one)
            for one, place in self._held.items()
            if place.awaited_since is not None
        ]
        if not waiting:
            return False
        _, _, dropped = min(waiting, key=lambda one: one[:2])
        del self._held[dropped]
        with suppress(OSError):  # it may have hung up meanwhile
            dropped.shutdown(socket.SHUT_RDWR)  # wakes its thread, which then ends
        return True

    def begin_answer(self, connection: socket.socket) -> bool:
        """The request is whole; False when the connection had to make room before that."""
        with self._lock:
            place = self._held.get(connection)
            if place is not None:
                place.awaited_since = None
            return place is not None

    def end_answer(self, connection: socket.socket, *, known: bool) -> None:
        """The answer is sent; from now on the next request is awaited."""
        with self._lock:
            if connection in self._held:
                self._held[connection] = _Place(time.monotonic(), known)

    def leave(self, connection: socket.socket) -> None:
        """The connection has ended."""
        with self._lock:
            self._held.pop(connection, None)
