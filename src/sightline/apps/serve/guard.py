"""Who may ask: the right token, under a name of this machine, from no other site."""

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlencode

from sightline.apps.serve.message import Request, Response, html_response

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
