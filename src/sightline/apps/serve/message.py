"""What comes in and what goes out, as plain values: every page is a function from one to the other."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
