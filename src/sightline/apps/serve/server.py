"""The server: uvicorn with deadlines and a limit of connections, around the pages as Starlette routes."""

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from types import FrameType

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from sightline.apps.serve import calculator, matrix, pages, planned, running
from sightline.apps.serve.guard import LOCAL, MAX_HEAD_BYTES, SECURITY, Guard, names_of, refuse
from sightline.apps.serve.pages import Page, PageServer
from sightline.errors import invalid

ROUTES: dict[str, Page] = {
    "/": pages.listing_page,
    "/run": running.run_page,
    "/report.html": running.download_report,
    "/officer.html": running.download_officer,
    "/sight": matrix.matrix_page,
    "/pair": matrix.pair_page,
    "/ledger": running.timeline_page,
    "/compare": running.comparison_page,
    "/calculator": calculator.calculator_page,
    "/groups": planned.groups_page,
    "/tree": planned.tree_page,
    "/api/runs": pages.listing_api,
    "/api/run": running.run_api,
    "/api/sight": matrix.matrix_api,
    "/api/ledger": running.timeline_api,
    "/api/compare": running.comparison_api,
    "/api/account": calculator.calculator_api,
    "/api/groups": planned.groups_api,
    "/api/tree": planned.tree_api,
}


def build_app(site: PageServer) -> Starlette:
    """Return the pages as an ASGI application, to be put behind a `Guard`."""
    others = {"/static/{name}": pages.static_file, "/{rest:path}": pages.missing_page}
    return Starlette(routes=[Route(path, _endpoint(site, page)) for path, page in (ROUTES | others).items()])


def _endpoint(site: PageServer, page: Page) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        return await _run_in_thread(lambda: site.answer(page, request))

    return answer


async def _run_in_thread(work: Callable[[], Response]) -> Response:
    # A daemon thread, unlike those of asyncio and anyio: Ctrl-C does not wait until a long ledger is read. There are
    # never more threads than connections.
    future: Future[Response] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)


class Connection(H11Protocol):
    """A connection with what uvicorn lacks: a deadline for the head of a request, and eviction.

    Guarantees: a request that is not whole `request_seconds` after its first byte (the first one: after the connection
    was made) ends the connection, however its bytes arrive; so do `idle_seconds` after a response in which no request
    begins or the response is not taken. When all places are taken, a new connection takes the place of one that has
    not shown the token, or else of one that waits for its next request, the longest waiting first; an answer to the
    owner is never broken off.
    """

    # One reader with a few tabs needs far fewer; a browser opens at most six connections per host.
    most_connections = 128
    request_seconds = 10.0
    idle_seconds = 30.0

    _deadline: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _has_begun = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find a place, or close."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self._close_after(self.request_seconds)
        if len(self.connections) > self.most_connections:
            others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
            waiting = [other for other in others if not other._is_busy()]
            # Strangers go first: holding connections open without the token must not lock the owner out.
            evicted = min(waiting, key=lambda other: (other._has_owner(), other._waiting_since), default=self)
            self.connections.discard(evicted)
            evicted.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Start the clock when a request begins, stop it when all of its head is here."""
        super().handle_events()
        if self._is_answering():
            # If the response before is not taken yet, its deadline stands: this one could not be sent either.
            if not self.flow.write_paused:
                self._stop_clock()
        elif not self._has_begun and self.conn.trailing_data[0]:
            self._has_begun = True
            self._close_after(self.request_seconds)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waiting_since, self._has_begun = self.loop.time(), False
        self._close_after(self.idle_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 cannot parse, with the headers of every response."""
        # uvicorn calls this inside its except clause, so the error is still the current one.
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        status = HTTPStatus(hint)
        refusal = refuse(status, f"{status.phrase}.")
        headers = [*self.server_state.default_headers, *refusal.raw_headers]
        start = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        # A response may already be under way; then nothing more can be sent.
        with suppress(h11.LocalProtocolError):
            for event in (start, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _has_owner(self, undecided: bool = False) -> bool:
        return self.scope is not None and bool(self.scope["state"].get("owner", undecided))

    def _is_busy(self) -> bool:
        is_sending = self._is_answering() or self.transport.get_write_buffer_size() > 0
        return is_sending and self._has_owner(undecided=True)

    def _close_after(self, seconds: float) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


class Server(uvicorn.Server):
    """A server on one address, for the runs of one folder. It listens from the start and answers in `serve`."""

    def __init__(self, folder: Path, *, host: str, port: int, names: tuple[str, ...] = ()) -> None:
        self.socket, self.host, self.token = _listen(host, port), host, secrets.token_urlsafe(24)
        self.server_port = int(self.socket.getsockname()[1])
        self.site = PageServer(folder)
        self.guard = Guard(
            build_app(self.site),
            self.token,
            names=names_of(host, names),
            any_address=host not in LOCAL,
            cookie=f"sightline-{self.server_port}",
        )
        config = uvicorn.Config(
            self.guard,
            http=Connection,
            loop="asyncio",
            ws="none",
            # Nothing to start or stop; proxy headers are off because a client could forge its address with them.
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            headers=[("Server", "Sightline"), *SECURITY.items()],
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=int(Connection.idle_seconds),
            # No log: addresses contain the token. Errors of pages are printed by PageServer.
            log_config=None,
            log_level="critical",
            access_log=False,
        )
        super().__init__(config)

    def serve_forever(self) -> None:
        """Answer requests until SIGINT or SIGTERM, or until `should_exit` is set."""
        self.run(sockets=[self.socket])

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        shown = f"[{shown}]" if ":" in shown and not shown.startswith("[") else shown
        return f"http://{shown}:{self.server_port}/?token={self.token}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at once, without raising the signal a second time as uvicorn does: the command ends with exit code 0."""
        # Answers run in daemon threads: there is nothing to wait for.
        self.should_exit = self.force_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; an address that cannot be had is one clear line."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # A restart on the same port must not wait for connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        where = f"{host}:{port}"
        invalid("--host/--port", where, f"cannot listen there ({error})", "give another --port, or 0 for any free one")
    return listener
