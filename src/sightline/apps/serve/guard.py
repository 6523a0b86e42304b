"""Who may ask: one ASGI middleware checks the form of a request, its host, its origin and its token."""

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Sent with every response, refusals included."""

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
MAX_QUERY_FIELDS = 200
_PAGE = '<!doctype html><meta charset="utf-8"><title>Sightline</title><link rel="icon" href="data:,"><p>{}</p>'


def query_value(request: Request, name: str, default: str = "") -> str:
    """Return the first value of a query field that is not empty, or the default."""
    return next((value for value in request.query_params.getlist(name) if value), default)


def refuse(status: HTTPStatus, sentence: str) -> Response:
    """Return a refusal: one sentence, not stored by the browser, after which the connection closes."""
    return HTMLResponse(_PAGE.format(sentence), status, {"Cache-Control": "no-store", "Connection": "close"})


@dataclass(frozen=True)
class Guard:
    """Middleware that passes a request on to `app` only if it carries the token.

    Guarantees: any other request gets a refusal that depends on nothing but its own bytes; no file is read for it and
    no thread is started. `scope["state"]["owner"]` tells the connection whether the token was shown.
    """

    app: ASGIApp = field(repr=False)
    token: str = field(repr=False)
    names: frozenset[str] = LOCAL
    any_address: bool = False
    cookie: str = "sightline"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = self.check(Request(scope))
        scope.setdefault("state", {})["owner"] = response is None or response.status_code == HTTPStatus.OK
        await (response or self.app)(scope, receive, send)

    def check(self, request: Request) -> Response | None:
        """Return None if the request may pass, otherwise the refusal, or the page that sets the cookie."""
        # The order matters: form, host and origin come before the token, so that pages of other sites cannot probe it.
        refusal = _check_form(request)
        if refusal is not None:
            return refusal
        if not self._is_own_name(request.headers["host"]):
            return refuse(HTTPStatus.MISDIRECTED_REQUEST, "The Host of this request is not a name of this server.")
        if _is_cross_origin(request):
            return refuse(HTTPStatus.FORBIDDEN, "Pages of other origins may link to this server but not fetch from it.")
        if query_value(request, "token"):
            return self._exchange_token(request)
        if self._is_token(request.cookies.get(self.cookie, "")) or self._is_token(_bearer_token(request)):
            return None
        return refuse(HTTPStatus.UNAUTHORIZED, "Open the address that sightline serve printed: it contains the token.")

    def _is_own_name(self, host: str) -> bool:
        # A site that points its own name at this machine (DNS rebinding) sends that name. A numeric address cannot be
        # pointed elsewhere, so a server that others may reach accepts all of them.
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        return name in self.names or (self.any_address and is_address(name))

    def _is_token(self, given: str) -> bool:
        # Constant time: the comparison must not tell how much of a guess is right.
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _exchange_token(self, request: Request) -> Response:
        """Set the cookie and lead to the same page without the token, so that the address bar does not show it."""
        if not self._is_token(query_value(request, "token")):
            return refuse(HTTPStatus.UNAUTHORIZED, "This token is wrong, or from an earlier start of the server.")
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        # The raw path: a decoded one could hold line breaks. One leading slash: two would name another host.
        path = "/" + request.scope["raw_path"].decode("ascii").lstrip("/\\")
        headers = {"Cache-Control": "no-store", "Refresh": f"0; url={path}{'?' if rest else ''}{rest}"}
        # A page that leads on, not a redirect: browsers do not send a strict cookie along with a redirect that began
        # on another site.
        response = HTMLResponse(_PAGE.format("Opening …"), headers=headers)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return response


def _check_form(request: Request) -> Response | None:
    """Refuse what no browser sends to this server: other methods, bodies, odd targets, a missing or second Host."""
    scope, headers = request.scope, request.headers
    if scope["method"] not in ("GET", "HEAD"):
        return refuse(HTTPStatus.NOT_IMPLEMENTED, "This server only answers GET and HEAD.")
    if scope["http_version"] not in ("1.0", "1.1"):
        return refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "This server speaks HTTP/1.1.")
    # h11 limits one event; this limits the whole head and the number of headers.
    head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) + 4 for k, v in scope["headers"])
    if head > MAX_HEAD_BYTES or len(scope["headers"]) > MAX_HEADERS:
        return refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The address or the headers are too long.")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This server takes no request body.")
    is_path = scope["raw_path"].startswith(b"/") and not scope["raw_path"].startswith(b"//")
    if not is_path or scope["query_string"].count(b"&") >= MAX_QUERY_FIELDS or len(headers.getlist("host")) != 1:
        return refuse(HTTPStatus.BAD_REQUEST, "Bad request.")
    return None


def _is_cross_origin(request: Request) -> bool:
    """Return whether a page of another origin makes this request other than by a link; another port is another."""
    mode, target = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest", "document")
    # Following a link shows a page to the user only; the other site cannot read it.
    if mode == "navigate" and target == "document":
        return False
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        return True
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _bearer_token(request: Request) -> str:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def is_address(name: str) -> bool:
    """Return whether a host is a numeric address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server that listens on `host`."""
    own = set() if host in LOCAL else {host.lower(), socket.gethostname().lower()}
    return LOCAL | own | {name.lower() for name in more}
