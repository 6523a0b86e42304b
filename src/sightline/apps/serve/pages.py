"""The site: one function per page, over one folder of runs."""

import json
import sqlite3
import sys
import traceback
from collections.abc import Callable
from functools import cache, cached_property
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from sightline.apps.report.page import read_asset, template_environment
from sightline.apps.report.run_view import UNLIKE_A_RUN, locate_error
from sightline.apps.serve.guard import Guard, Request, Response, html_response, unless_known
from sightline.apps.serve.run_folder import Glance, Glances, LiveRuns, NotThere, RunFolder, read_glance
from sightline.errors import SightlineError

Page = Callable[["PageServer", Request], Response]

STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "serve.css": "text/css; charset=utf-8",
    "serve.js": "text/javascript; charset=utf-8",
}


class PageServer:
    """Answers requests; reads runs and never writes."""

    def __init__(self, folder: Path, guard: Guard, routes: dict[str, Page]) -> None:
        self.runs_folder, self.guard, self._routes = RunFolder(folder), guard, routes
        self.glances, self.live = Glances(), LiveRuns()

    @cached_property
    def templates(self) -> Environment:
        """Our own templates and those of the report."""
        return template_environment("serve")

    def answer(self, request: Request) -> Response:
        """The answer to any request; whatever goes wrong is told in one line, never in a traceback."""
        refusal = self.guard.refusal(request)
        if refusal is not None:
            return refusal
        try:
            if request.path.startswith("/static/"):
                return unless_known(request, _static_file(request.path.removeprefix("/static/")))
            if request.path not in self._routes:
                raise NotThere(request.path)
            return unless_known(request, self._routes[request.path](self, request))
        except NotThere:
            return self._problem_page(request, HTTPStatus.NOT_FOUND, "There is no such page, or no such run.")
        except (sqlite3.DatabaseError, MemoryError) as error:
            return self._problem_page(request, HTTPStatus.BAD_REQUEST, f"The run's database cannot be read ({error}).")
        except SightlineError as error:
            return self._problem_page(request, HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            if "run" in request.query:
                return self._problem_page(
                    request,
                    HTTPStatus.BAD_REQUEST,
                    f"Its records {UNLIKE_A_RUN} ({locate_error(error)}). Other runs are not touched by it.",
                )
            traceback.print_exc(file=sys.stderr)
            return self._problem_page(request, HTTPStatus.INTERNAL_SERVER_ERROR, "Something failed; see the terminal.")

    def draw(self, request: Request, template: str, title: str, **content: Any) -> Response:
        """A whole page, or with `part` in the query only the part that can change."""
        name = "part.html" if "part" in request.query else "frame.html"
        drawn = self.templates.get_template(name)
        return html_response(drawn.render(template=template, title=title, path=request.path, content=content))

    def runs(self) -> tuple[list[Glance], list[str]]:
        """Every run that can be read, the newest first, and the names of those that cannot.

        A run that leads out of the folder is passed over, and hides no other.
        """
        found: list[Glance] = []
        unreadable: list[str] = []
        for id in self.runs_folder.ids():
            try:
                glance = self.glances.of(id, self.runs_folder.directory(id))
            except (NotThere, SightlineError):
                continue
            if glance is None:
                unreadable.append(id)
            else:
                found.append(glance)
        return sorted(found, key=lambda one: (one.created, one.run), reverse=True), unreadable

    def glance(self, id: str) -> Glance:
        """One run at a glance; what is wrong with a run that cannot be read is raised."""
        directory = self.runs_folder.directory(id)
        return self.glances.of(id, directory) or read_glance(id, directory)

    def _problem_page(self, request: Request, status: HTTPStatus, words: str) -> Response:
        words = words.encode(errors="replace").decode()
        if request.path.startswith("/api/"):
            return Response(status, json.dumps({"error": words}).encode(), "application/json")
        title = "Not here" if status is HTTPStatus.NOT_FOUND else "This cannot be shown"
        drawn = self.draw(request, "problem.html", title, heading=title, words=words)
        return Response(status, drawn.body, drawn.kind)


@cache
def _page_file(name: str) -> bytes:
    if name.startswith("page."):
        return read_asset(name).encode()
    return resources.files("sightline.apps.serve").joinpath(name).read_bytes()


def _static_file(name: str) -> Response:
    if name not in STATIC:
        raise NotThere(name)
    return Response(HTTPStatus.OK, _page_file(name), STATIC[name])
