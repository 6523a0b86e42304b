"""A site over a folder, asked without a socket."""

from collections.abc import Callable
from pathlib import Path

from sightline.serve.guard import Guard
from sightline.serve.message import Request, Response
from sightline.serve.server import ROUTES
from sightline.serve.site import Site

TOKEN = "the-token-of-these-tests"
HOST = {"Host": "127.0.0.1:8710"}
Ask = Callable[..., Response]


def site_of(folder: Path) -> Site:
    return Site(folder, Guard(TOKEN), ROUTES)


def asking(site: Site) -> Ask:
    """Ask as a browser that holds the cookie does."""

    def ask(target: str, **headers: str) -> Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return site.answer(Request.of(target, HOST | {"Cookie": f"sightline={TOKEN}"} | given))

    return ask
