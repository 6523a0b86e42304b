"""A site over a folder, asked without a socket, and a server of it at work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.apps.serve import Server
from sightline.apps.serve.guard import Guard, Request, Response
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.server import ROUTES

TOKEN = "the-token-of-these-tests"
HOST = {"Host": "127.0.0.1:8710"}
Ask = Callable[..., Response]


def site_of(folder: Path) -> PageServer:
    return PageServer(folder, Guard(TOKEN), ROUTES)


def asking(site: PageServer) -> Ask:
    """Ask as a browser that holds the cookie does."""

    def ask(target: str, **headers: str) -> Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return site.answer(Request.of(target, HOST | {"Cookie": f"sightline={TOKEN}"} | given))

    return ask


@contextmanager
def at_work(folder: Path) -> Iterator[Server]:
    """A server on a free port of this machine, until the end of the block."""
    with Server(folder, host="127.0.0.1", port=0) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
