"""Questions and answers as plain values, who may ask, and for how long: tokens, deadlines, limits."""

import hashlib
import hmac
import io
import ipaddress
import json
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

SECURITY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer, also on refusals."""

HTML, JSON = "text/html; charset=utf-8", "application/json"


@dataclass(frozen=True)
class Request:
    """A question: path, values of the query, headers by lower-case name."""

    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: str, headers: Mapping[str, str]) -> "Request":
        """From the target of a request line."""
        parts = urlsplit(target)
        if not target.startswith("/") or parts.netloc:
            raise ValueError("the target of a request is a path")
        query = parse_qs(parts.query, max_num_fields=200, errors="replace")
        return cls(parts.path, query, {name.lower(): value for name, value in headers.items()})

    def one(self, name: str, otherwise: str = "") -> str:
        """A value of the query, the first where it is given several times."""
        return self.query.get(name, [otherwise])[0]


@dataclass(frozen=True)
class Response:
    """An answer."""

    status: HTTPStatus
    body: bytes = b""
    kind: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)


def html_response(text: str, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """A page, or a part of one; halves of characters, which no page can hold, are question marks."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, text.encode(errors="replace"), HTML, named)


def json_response(value: Any) -> Response:
    """One JSON value."""
    return Response(HTTPStatus.OK, json.dumps(value, allow_nan=False).encode(), JSON)


def unless_known(request: Request, response: Response) -> Response:
    """The answer, or the short word that the asker has it already."""
    if response.status is not HTTPStatus.OK:
        return response
    mark = f'"{hashlib.sha256(response.body).hexdigest()[:24]}"'
    headers = {**response.headers, "ETag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(HTTPStatus.NOT_MODIFIED, b"", response.kind, headers)
    return Response(response.status, response.body, response.kind, headers)


HEAD = '<!doctype html><meta charset="utf-8"><title>Sightline</title><link rel="icon" href="data:,">'
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST)
"""What strangers are answered, and nobody else."""


@dataclass(frozen=True)
class Guard:
    """Guarantees: without the token nothing is answered but a refusal, whatever is asked.

    The `Host` must be a name that this server goes by: a page of another site whose name was made to point here
    (DNS rebinding) comes with its own. Addresses in figures cannot be made to point anywhere, so where the server
    listens to others than this machine all of them are welcome.
    """

    token: str = field(repr=False)
    names: frozenset[str] = LOCAL
    any_address: bool = False
    cookie: str = "sightline"

    def refusal(self, request: Request) -> Response | None:
        """Why not, or None when the request is welcome; a token in the address is exchanged for a cookie."""
        if not self._is_named(request.headers.get("host", "")):
            return _refuse_with(HTTPStatus.MISDIRECTED_REQUEST, "This server does not go by that name.")
        if self._is_foreign(request):
            return _refuse_with(HTTPStatus.FORBIDDEN, "Other sites may not ask.")
        if "token" in request.query:
            return self._enter_with_cookie(request)
        if self._is_known(self._cookie_of(request)) or self._is_known(_bearer_token(request)):
            return None
        return _refuse_with(
            HTTPStatus.UNAUTHORIZED, "Open the address that sightline serve printed: it holds the token."
        )

    def _is_named(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        return name in self.names or (self.any_address and is_address(name))

    def _is_foreign(self, request: Request) -> bool:
        """Whether a page of another origin asks: it may lead here, but not fetch. Another port is another origin."""
        if (
            request.headers.get("sec-fetch-mode") == "navigate"
            and request.headers.get("sec-fetch-dest", "document") == "document"
        ):
            return False
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{request.headers.get('host', '')}":
            return True
        return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")

    def _is_known(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie_of(self, request: Request) -> str:
        try:
            held = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return held.value if held else ""

    def _enter_with_cookie(self, request: Request) -> Response:
        """Set the cookie and lead on to the same page without the token, so that it is in no address bar."""
        if not self._is_known(request.one("token")):
            return _refuse_with(HTTPStatus.UNAUTHORIZED, "That token is not, or no longer, the right one.")
        rest = urlencode({name: values for name, values in request.query.items() if name != "token"}, doseq=True)
        path = "/" + request.path.lstrip("/\\")
        cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        # a 200 that leads on, not a redirect: a strict cookie would not be sent along with a redirect from elsewhere
        return html_response(
            f"{HEAD}<p>Opening …</p>",
            Set_Cookie=cookie,
            Cache_Control="no-store",
            Refresh=f"0; url={path}{'?' if rest else ''}{rest}",
        )


def is_address(name: str) -> bool:
    """Whether a host is an address in figures."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """The names a server goes by that listens on `host`."""
    own = set() if host in LOCAL else {host.lower(), socket.gethostname().lower()}
    return LOCAL | own | {name.lower() for name in more}


def _bearer_token(request: Request) -> str:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _refuse_with(status: HTTPStatus, words: str) -> Response:
    return html_response(f"{HEAD}<p>{words}</p>", status, Cache_Control="no-store")


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
