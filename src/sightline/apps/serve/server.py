"""The server: sockets and threads around `Site.answer`, from the standard library."""

import io
import secrets
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sightline.apps.serve import calculator, listing, matrix, planned, running
from sightline.apps.serve.guard import (
    HEAD,
    LOCAL,
    REFUSALS,
    SECURITY,
    Guard,
    Places,
    Request,
    Response,
    TimedReader,
    html_response,
    names_of,
)
from sightline.apps.serve.pages import Page, PageServer
from sightline.errors import invalid

ROUTES: dict[str, Page] = {
    "/": listing.listing_page,
    "/run": running.run_page,
    "/report.html": running.download_report,
    "/sight": matrix.matrix_page,
    "/pair": matrix.pair_page,
    "/ledger": running.timeline_page,
    "/compare": running.comparison_page,
    "/calculator": calculator.calculator_page,
    "/groups": planned.groups_page,
    "/tree": planned.tree_page,
    "/api/runs": listing.listing_api,
    "/api/run": running.run_api,
    "/api/sight": matrix.matrix_api,
    "/api/ledger": running.timeline_api,
    "/api/compare": running.comparison_api,
    "/api/account": calculator.calculator_api,
    "/api/groups": planned.groups_api,
    "/api/tree": planned.tree_api,
}


class Server(ThreadingHTTPServer):
    """Listens at one address; each connection has a thread of its own."""

    daemon_threads = True
    request_queue_size = 64
    most_connections = 128
    """Beyond these a caller that is waited for is hung up on, see `Places`: strangers make no threads without end."""

    def __init__(self, folder: Path, *, host: str, port: int, names: tuple[str, ...] = ()) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.token, self.places = secrets.token_urlsafe(24), Places(self.most_connections)
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            where = f"{host}:{port}"
            invalid("--host/--port", where, f"cannot listen there ({error})", "give another --port, or 0 for any")
        guard = Guard(
            self.token,
            names=names_of(host, names),
            any_address=host not in LOCAL,
            cookie=f"sightline-{self.server_port}",
        )
        self.site, self.host = PageServer(folder, guard, ROUTES), host

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, which can take long and tells others."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection, where there is a place."""
        if self.places.take(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread's work; then its place is free again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.leave(request)

    @property
    def url(self) -> str:
        """Where to look, with the token."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        shown = f"[{shown}]" if ":" in shown and not shown.startswith("[") else shown
        return f"http://{shown}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no error; anything else goes to the terminal."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "Sightline"
    sys_version = ""
    request_seconds = 10.0
    """For a whole request, line and headers, however its bytes come in."""
    idle_seconds = 30.0
    """For the next request to begin."""
    send_seconds = 30.0
    """For a whole answer to be taken."""

    def setup(self) -> None:
        """Read by the clock; the rest as always."""
        super().setup()
        self.rfile.close()
        self._reader, self._first_byte = TimedReader(self.connection), self.request_seconds
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        """One request, all of it in its time; the first is to begin at once."""
        self._reader.await_request(first_byte=self._first_byte, whole=self.request_seconds)
        self._first_byte = self.idle_seconds
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if not self.server.places.begin_answer(self.connection):
            self.close_connection = True
            return
        response = self._answer_request()
        self._send_response(response, body=body)
        self.server.places.end_answer(self.connection, known=response.status not in REFUSALS)

    def _answer_request(self) -> Response:
        if "content-length" in self.headers or "transfer-encoding" in self.headers:
            self.close_connection = True  # a body would be read as the next request
        try:
            if len(self.headers.get_all("host", [])) != 1:
                raise ValueError("one Host, no more and no less")
            return self.server.site.answer(Request.of(self.path, dict(self.headers.items())))
        except ValueError:
            self.close_connection = True
            return html_response(f"{HEAD}<p>Not a request.</p>", HTTPStatus.BAD_REQUEST)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no request of ours gets one line with the headers of every answer, and the connection ends."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send_response(
            html_response(f"{HEAD}<p>{status.phrase}.</p>", status, Connection="close"), body=self.command != "HEAD"
        )

    def _send_response(self, response: Response, *, body: bool = True) -> None:
        self.connection.settimeout(self.send_seconds)
        self.request_version = self.protocol_version  # to a request of any version, an answer with headers
        self.send_response(response.status)
        headers = {"Cache-Control": "private, no-cache", "Content-Type": response.kind, **SECURITY, **response.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: addresses may hold the token."""
