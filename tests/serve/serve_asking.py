"""Pages over a folder, asked through the guard without a socket, and a server of them at work."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp

from sightline.apps.serve import Server
from sightline.apps.serve.guard import Guard
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.server import build_app

TOKEN = "the-token-of-these-tests"
HOST = {"Host": "127.0.0.1:8710"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "")


Ask = Callable[..., Answer]


def site_of(folder: Path) -> Guard:
    return Guard(build_app(PageServer(folder)), TOKEN)


def scope_of(target: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """A request as uvicorn hands it on."""
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
    }


def answer(app: ASGIApp, target: str, headers: Mapping[str, str]) -> Answer:
    """What an application answers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope_of(target, headers), receive, send))
    start, *parts = sent
    return Answer(start["status"], Headers(raw=start["headers"]), b"".join(bytes(part["body"]) for part in parts))


def asking(site: ASGIApp) -> Ask:
    """Ask as a browser that holds the cookie does."""

    def ask(target: str, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return answer(site, target, HOST | {"Cookie": f"sightline={TOKEN}"} | given)

    return ask


@contextmanager
def at_work(folder: Path) -> Iterator[Server]:
    """A server on a free port of this machine, until the end of the block."""
    with closing(Server(folder, host="127.0.0.1", port=0)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running
        finally:
            running.should_exit = running.force_exit = True
            thread.join()
