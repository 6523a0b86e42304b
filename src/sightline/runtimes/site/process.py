"""A site as a process of its own: apps that came over the network reach it by a socket, and reach nothing else."""

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sightline.errors import SightlineError
from sightline.runtimes.remote.message import WireMessage

if TYPE_CHECKING:  # whoever only knocks does not load torch
    from sightline.runtimes.site.site import Site

LARGEST_LETTER = 1 << 31
PATIENCE_SECONDS = 60.0
T = TypeVar("T")


def serve_site(site: "Site", place: Path, *, ready: Callable[[], None] = lambda: None) -> None:
    """Answer one question per connection, until the process is ended.

    Guarantees: messages are read as safetensors, never unpickled; a caller that hangs up or talks nonsense changes
    nothing, one that falls silent is left; a message of more than the policy's `largest_bytes` is not read.
    """
    place.unlink(missing_ok=True)
    before = os.umask(0o117)  # the socket is for its owner and group: the user that runs the SuperNode is in the group
    try:
        listener = Listener(str(place), family="AF_UNIX")
    finally:
        os.umask(before)
    with listener:
        ready()
        while True:
            try:
                with listener.accept() as caller:
                    _set_deadline(caller.fileno(), PATIENCE_SECONDS)
                    caller.send_bytes(_answer_bytes(site, caller.recv_bytes(site.policy.largest_bytes)))
            except (EOFError, OSError, MemoryError):
                continue


def _set_deadline(descriptor: int, seconds: float) -> None:
    """Wait so long for the next bytes of the other side, or until it takes some, and no longer: others wait behind."""
    patience = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
    with socket.socket(fileno=os.dup(descriptor)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)


def _answer_bytes(site: "Site", content: bytes) -> bytes:
    try:
        message = WireMessage.from_bytes(content)
    except SightlineError as error:
        return WireMessage({"refused": str(error)}).to_bytes()
    return site.answer(message).to_bytes()


def ask_site(place: Path, message: WireMessage, *, seconds: float | None = None) -> WireMessage:
    """The answer of the site behind a socket, when it begins to come in time."""
    try:
        with Client(str(place), family="AF_UNIX") as site:
            if seconds is not None:
                _set_deadline(site.fileno(), seconds)
            site.send_bytes(message.to_bytes())
            if not site.poll(seconds):
                return WireMessage({"refused": f"site-socket: no answer within {seconds:g} seconds"})
            return WireMessage.from_bytes(site.recv_bytes(LARGEST_LETTER))
    except (EOFError, OSError) as error:
        why = f"nobody answers there, or not to a message of this size ({type(error).__name__})"
        return WireMessage({"refused": f"site-socket: {why}"})


class _TimeOver(BaseException):
    """Raised in a thread whose time is over; no `except Exception` on its way holds it up."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns; raises SightlineError when it takes longer.

    Guarantees: nothing is raised into the caller once this has returned. One long call into C is not interrupted: the
    error comes at its end.
    """
    thread, lock, over = threading.get_ident(), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not over:
                _raise_in(thread, _TimeOver)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), interrupt)
    timer.daemon = True
    try:
        try:
            timer.start()
            return work()
        finally:
            timer.cancel()
            with lock:
                over = True
            _raise_in(thread, None)  # what was sent and has not arrived yet
    except _TimeOver:
        raise SightlineError(f"largest_seconds={seconds:g}: the answer would take longer") from None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread at its next step, or take back the one that it has not met yet."""
    thing = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), thing)
