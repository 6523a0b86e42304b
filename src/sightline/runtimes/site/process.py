"""A site as its own process behind a socket: code from the network reaches the socket and nothing else."""

import ctypes
import fcntl
import logging
import math
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sightline.errors import SightlineError, invalid
from sightline.runtimes.remote.message import LARGEST_SITE_FIELDS, WireMessage

# A node that only asks must not load torch.
if TYPE_CHECKING:
    from sightline.runtimes.site.site import Site

LOG = logging.getLogger("sightline.site")
LARGEST_LETTER = 1 << 31
PATIENCE_SECONDS = 60.0
"""Time within which a whole message must arrive, and within which its answer must be taken."""
MOST_CALLERS = 32
PAUSE_SECONDS = 0.1
T = TypeVar("T")


def serve_site(site: "Site", path: Path, *, ready: Callable[[], None] = lambda: None) -> None:
    """Answer one question per connection, until the process ends.

    Guarantees: nothing at `path` is removed except a stale socket of this user; messages are read as safetensors,
    never unpickled; a caller that hangs up, drips or sends garbage changes nothing and delays no other caller; a
    message of more than the policy's `largest_bytes` is not read; no message ends the process.
    """
    with _claim_socket(path) as listener:
        ready()
        callers = _Callers(site)
        while listener.fileno() >= 0:
            try:
                callers.take(listener.accept()[0])
            except (OSError, RuntimeError) as error:
                # Out of descriptors or threads: other callers end soon, so wait and go on.
                LOG.warning("a caller could not be taken (%s)", type(error).__name__)
                time.sleep(PAUSE_SECONDS)


@contextmanager
def _claim_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at a path at which no other process answers; the lock file beside it is released with the process."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        invalid("--socket", path, f"{lock.name} beside it cannot be opened ({error.strerror})", "choose another path")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse_taken(path)
        _remove_stale(path)
        with _listen_at(path) as listener:
            # Remember the inode: at the end remove only the socket that this process made.
            own = path.lstat().st_ino
            try:
                yield listener
            finally:
                with suppress(OSError):
                    if path.lstat().st_ino == own:
                        path.unlink()
    finally:
        os.close(handle)


def _refuse_taken(path: Path) -> NoReturn:
    invalid("--socket", path, "another process already answers there", "stop it, or choose another path")


def _remove_stale(path: Path) -> None:
    """Remove the socket that a dead process of this user left; raise InvalidInput for anything else at the path."""
    try:
        existing = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(existing.st_mode) or existing.st_uid != os.geteuid():
        invalid("--socket", path, "the path exists and is not a socket of this user", "choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            LOG.debug("the socket was probed (%s)", type(error).__name__)
    _refuse_taken(path)


def _listen_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    # The socket is for its owner and group: the user that runs the SuperNode is in the group.
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        invalid("--socket", path, f"cannot listen there ({error.strerror or error})", "choose another path")
    finally:
        os.umask(before)
    return listener


class _Callers:
    """The callers of a site, each served in its own thread.

    Guarantees: at most MOST_CALLERS at a time, and together at most twice `largest_bytes` of messages. When there are
    more, the one that has talked longest is hung up on: an honest message on a socket of this machine takes a moment.
    A caller whose question is being answered is never hung up on; one that waits for its turn may be, and is left as
    soon as it hangs up itself.
    """

    def __init__(self, site: "Site") -> None:
        self._site, self._lock = site, threading.Lock()
        self._talking: dict[socket.socket, int] = {}
        """Bytes of each caller that is being read, waits, or is taking its answer, the oldest caller first."""
        self._answering: dict[socket.socket, int] = {}

    def take(self, caller: socket.socket) -> None:
        """Serve a caller in a new thread, or turn it away if every slot is taken by a question being answered."""
        with self._lock:
            if len(self._talking) + len(self._answering) >= MOST_CALLERS and not self._hang_up_on_oldest(caller):
                LOG.warning("a caller was turned away: %d questions are being answered", len(self._answering))
                caller.close()
                return
            self._talking[caller] = 0
        try:
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()
        except RuntimeError:
            self._forget(caller)
            raise

    def _serve(self, caller: socket.socket) -> None:
        try:
            content = _receive(caller, self._site.policy.largest_bytes, _deadline(PATIENCE_SECONDS), self._count)
            answer = _answer_bytes(self._site, content, partial(self._still_waits, caller))
            del content
            self._begin_taking(caller)
            _send(caller, answer, _deadline(PATIENCE_SECONDS))
        except (EOFError, OSError, MemoryError) as error:
            LOG.debug("a caller was left (%s)", type(error).__name__)
        except Exception:
            LOG.exception("a caller could not be served")
        finally:
            self._forget(caller)

    def _count(self, caller: socket.socket, arrived: int) -> None:
        """Record how many bytes a caller has sent; raise EOFError if the caller is to be disconnected."""
        with self._lock:
            if caller not in self._talking:
                raise EOFError
            self._talking[caller] = arrived
            while sum(self._talking.values()) + sum(self._answering.values()) > 2 * self._site.policy.largest_bytes:
                if not self._hang_up_on_oldest(caller):
                    raise EOFError

    def _hang_up_on_oldest(self, but: socket.socket) -> bool:
        oldest = next((caller for caller in self._talking if caller is not but), None)
        if oldest is None:
            return False
        del self._talking[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def _still_waits(self, caller: socket.socket, held: bool) -> bool:
        """Return whether a caller still waits; `held` when its turn has come."""
        if _hung_up(caller):
            return False
        with self._lock:
            if held and caller in self._talking:
                self._answering[caller] = self._talking.pop(caller)
            return caller in (self._answering if held else self._talking)

    def _begin_taking(self, caller: socket.socket) -> None:
        """Record that a caller now takes its answer; raise EOFError if it was hung up on."""
        with self._lock:
            if self._talking.pop(caller, None) is None and self._answering.pop(caller, None) is None:
                raise EOFError
            self._talking[caller] = 0

    def _forget(self, caller: socket.socket) -> None:
        with self._lock:
            self._talking.pop(caller, None)
            self._answering.pop(caller, None)
        caller.close()


def _hung_up(line: socket.socket) -> bool:
    """Return whether the other end is closed, or this one was shut."""
    poll = select.poll()
    # No events to ask for: POLLHUP is always reported.
    poll.register(line, 0)
    return bool(poll.poll(0))


def _answer_bytes(site: "Site", content: bytes | bytearray, still_waits: Callable[[bool], bool]) -> bytes:
    """Return the answer to a message as bytes; raise no Exception but MemoryError."""
    try:
        return site.answer(WireMessage.from_bytes(content, largest_fields=LARGEST_SITE_FIELDS), still_waits).to_bytes()
    except SightlineError as error:
        LOG.warning("refused: %s", error)
        return WireMessage({"refused": str(error)}).to_bytes()
    except Exception as error:
        LOG.exception("a message could not be answered")
        return WireMessage({"refused": f"{type(error).__name__}; the site's log says more"}).to_bytes()


def _deadline(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds


def _set_deadline(line: socket.socket, end: float) -> None:
    """Make the next call on a socket raise TimeoutError at `end`."""
    # A timeout of 0 would mean non-blocking, hence at least a millisecond.
    line.settimeout(None if math.isinf(end) else max(1e-3, end - time.monotonic()))


def _send(line: socket.socket, content: bytes, end: float) -> None:
    """Send a message in the frame of `multiprocessing.connection`, completely before `end`."""
    size = len(content)
    head = struct.pack("!i", size) if size < 1 << 31 else struct.pack("!iQ", -1, size)
    for part in (head, content):
        _set_deadline(line, end)
        line.sendall(part)


def _receive(
    line: socket.socket, largest: int, end: float, count: Callable[[socket.socket, int], None] = lambda *_: None
) -> bytearray:
    """Receive a message of at most `largest` bytes, completely before `end`; memory grows with the bytes received."""
    (size,) = struct.unpack("!i", _receive_exactly(line, 4, end, count))
    if size == -1:
        (size,) = struct.unpack("!Q", _receive_exactly(line, 8, end, count))
    if not 0 <= size <= largest:
        raise EOFError
    return _receive_exactly(line, size, end, count)


def _receive_exactly(
    line: socket.socket, size: int, end: float, count: Callable[[socket.socket, int], None]
) -> bytearray:
    content = bytearray()
    while len(content) < size:
        # The deadline is for the whole message: a timeout per read would let a caller drip one byte at a time.
        if time.monotonic() >= end:
            raise TimeoutError
        _set_deadline(line, end)
        piece = line.recv(min(size - len(content), 1 << 20))
        if not piece:
            raise EOFError
        content += piece
        count(line, len(content))
    return content


def ask_site(path: Path, message: WireMessage, *, seconds: float | None = None) -> WireMessage:
    """Return the answer of the site behind a socket, or a refusal if it does not arrive completely within `seconds`."""
    end = _deadline(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
    try:
        with socket.socket(socket.AF_UNIX) as site:
            _set_deadline(site, end)
            site.connect(str(path))
            _send(site, message.to_bytes(), end)
            return WireMessage.from_bytes(_receive(site, LARGEST_LETTER, end), largest_fields=LARGEST_SITE_FIELDS)
    except TimeoutError:
        return WireMessage({"refused": f"site-socket: no answer within {seconds:g} seconds"})
    except (EOFError, OSError, SightlineError) as error:
        reason = f"no site answers there, or the message is too large for it ({type(error).__name__})"
        return WireMessage({"refused": f"site-socket: {reason}"})


class _TimeOver(BaseException):
    """Raised in a thread whose time is over. A BaseException, so that no `except Exception` on its way stops it."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`; raise SightlineError if it takes longer than `seconds`.

    Guarantees: nothing is raised into the caller after this has returned. A long call into C is not interrupted: the
    error is raised when it returns.
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
            # Cancel an exception that was sent but has not been raised yet.
            _raise_in(thread, None)
    except _TimeOver:
        raise SightlineError(f"largest_seconds={seconds:g}: computing the answer takes longer") from None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread at its next bytecode, or cancel a pending one."""
    pending = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), pending)
