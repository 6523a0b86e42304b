"""The pages: how each is found, drawn and answered, and the first of them, the list of runs."""

import hashlib
import json
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sightline.apps.report.guarantee import terms_words
from sightline.apps.report.page import read_asset, template_environment
from sightline.apps.report.run_view import UNLIKE_A_RUN, locate_error
from sightline.apps.serve.guard import query_value
from sightline.apps.serve.run_folder import Glance, Glances, LiveRuns, NotThere, RunFolder, read_glance
from sightline.errors import SightlineError
from sightline.formatting import (
    NONE,
    format_duration,
    format_metric,
    format_plural,
    format_upper,
    metric_named,
)

Page = Callable[["PageServer", Request], Response]

STATIC = {"page.css": "text/css", "page.js": "text/javascript", "serve.css": "text/css", "serve.js": "text/javascript"}


def html_response(text: str, headers: dict[str, str] | None = None) -> Response:
    """Return a page, or a part of one; lone surrogates, which UTF-8 cannot encode, become question marks."""
    return HTMLResponse(text.encode(errors="replace"), headers=headers)


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return one JSON value."""
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def _unless_known(request: Request, response: Response) -> Response:
    """Return the response with its ETag, or 304 if the browser has it already."""
    if response.status_code != HTTPStatus.OK:
        return response
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:24]}"'
    response.headers["ETag"] = tag
    if request.headers.get("if-none-match") != tag:
        return response
    del response.headers["Content-Length"]
    return Response(None, HTTPStatus.NOT_MODIFIED, response.headers)


class PageServer:
    """Answers requests that passed the guard; reads runs and never writes."""

    def __init__(self, folder: Path) -> None:
        self.runs_folder, self.glances, self.live = RunFolder(folder), Glances(), LiveRuns()

    @cached_property
    def templates(self) -> Environment:
        """The templates of the server and of the report."""
        return template_environment("serve")

    def answer(self, page: Page, request: Request) -> Response:
        """Return what the page answers; an error becomes a page with one line, never a traceback."""
        response = _unless_known(request, self._answer(page, request))
        # Live pages: the browser keeps a copy but asks every time, and an unchanged page costs a 304.
        response.headers["Cache-Control"] = "private, no-cache"
        return response

    def _answer(self, page: Page, request: Request) -> Response:
        try:
            return page(self, request)
        except NotThere:
            return self._problem_page(request, HTTPStatus.NOT_FOUND, "There is no such page or run.")
        except (sqlite3.DatabaseError, MemoryError) as error:
            return self._problem_page(request, HTTPStatus.BAD_REQUEST, f"Cannot read the run's database ({error}).")
        except SightlineError as error:
            return self._problem_page(request, HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            # Unexpected types in one run's records are told as that run's damage, not as a failure of the server.
            if query_value(request, "run"):
                reason = f"Its records {UNLIKE_A_RUN} ({locate_error(error)}). Other runs are not affected."
                return self._problem_page(request, HTTPStatus.BAD_REQUEST, reason)
            # The text of an unexpected error may hold data: the page names no details, the owner's terminal does.
            traceback.print_exc(file=sys.stderr)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return self._problem_page(request, status, "The page failed; the terminal shows the error.")

    def draw(self, request: Request, template: str, title: str, **content: Any) -> Response:
        """Return a whole page, or with `part` in the query only the part that can change."""
        frame = self.templates.get_template("part.html" if query_value(request, "part") else "frame.html")
        return html_response(frame.render(template=template, title=title, path=request.scope["path"], content=content))

    def runs(self) -> tuple[list[Glance], list[str]]:
        """Return every run that can be read, the newest first, and the names of those that cannot.

        Runs that lead out of the folder are skipped.
        """
        glances: list[Glance] = []
        unreadable: list[str] = []
        for id in self.runs_folder.ids():
            try:
                glance = self.glances.of(id, self.runs_folder.directory(id))
            except (NotThere, SightlineError):
                continue
            if glance is None:
                unreadable.append(id)
            else:
                glances.append(glance)
        return sorted(glances, key=lambda glance: (glance.created, glance.run), reverse=True), unreadable

    def glance(self, id: str) -> Glance:
        """Return the summary of one run; raise what is wrong with a run that cannot be read."""
        directory = self.runs_folder.directory(id)
        return self.glances.of(id, directory) or read_glance(id, directory)

    def _problem_page(self, request: Request, status: HTTPStatus, reason: str) -> Response:
        if request.scope["path"].startswith("/api/"):
            return json_response({"error": reason.encode(errors="replace").decode()}, status)
        title = "Not found" if status is HTTPStatus.NOT_FOUND else "This cannot be shown"
        response = self.draw(request, "problem.html", title, heading=title, words=reason)
        response.status_code = status
        return response


def static_file(site: PageServer, request: Request) -> Response:
    """Return a style sheet or script."""
    name = request.path_params["name"]
    # A fixed list of names: no path of a request ever reaches the file system.
    if name not in STATIC:
        raise NotThere(name)
    return Response(_read_static(name), media_type=STATIC[name])


@cache
def _read_static(name: str) -> bytes:
    if name.startswith("page."):
        return read_asset(name).encode()
    return resources.files("sightline.apps.serve").joinpath(name).read_bytes()


def missing_page(site: PageServer, request: Request) -> Response:
    """Answer a path that is no page."""
    raise NotThere(request.scope["path"])


STATUSES = ("running", "finished", "stopped")
NAMED = 12
"""Unreadable runs named on the page; further ones are counted."""


def listing_page(site: PageServer, request: Request) -> Response:
    """Return the list of runs."""
    result, unreadable = site.runs()
    chosen = filter_runs(result, request)
    return site.draw(
        request,
        "listing.html",
        "Runs",
        folder=str(site.runs_folder.folder),
        rows=[run_row(glance) for glance in chosen],
        metric=_common_metric(chosen),
        shown=f"{len(chosen)} of {format_plural(len(result), 'run')}"
        if len(chosen) < len(result)
        else format_plural(len(result), "run"),
        any=bool(result),
        unreadable=unreadable[:NAMED],
        more_unreadable=max(0, len(unreadable) - NAMED),
        q=query_value(request, "q"),
        selects=[
            ("status", "Status", STATUSES, query_value(request, "status")),
            (
                "algorithm",
                "Algorithm",
                sorted({glance.algorithm for glance in result} - {""}),
                query_value(request, "algorithm"),
            ),
            ("unit", "Protects", sorted({glance.unit for glance in result}), query_value(request, "unit")),
        ],
        running=any(glance.status == "running" for glance in result),
    )


def listing_api(site: PageServer, request: Request) -> Response:
    """Return the list as JSON."""
    return json_response({"runs": [glance.plain() for glance in filter_runs(site.runs()[0], request)]})


def filter_runs(glances: Iterable[Glance], request: Request) -> list[Glance]:
    """Return the runs that match every word of `q`, and the chosen status, algorithm and unit."""
    words = query_value(request, "q").lower().split()
    wanted = {
        name: query_value(request, name) for name in ("status", "algorithm", "unit") if query_value(request, name)
    }
    return [
        glance
        for glance in glances
        if all(word in _search_text(glance) for word in words)
        and all(getattr(glance, n) == value for n, value in wanted.items())
    ]


def _search_text(glance: Glance) -> str:
    fields = (
        glance.run,
        glance.name,
        glance.algorithm,
        glance.source,
        glance.topology,
        glance.unit,
        "seed",
        glance.seed,
    )
    return " ".join(map(str, fields)).lower()


def run_row(glance: Glance) -> dict[str, Any]:
    """Return a row of the list, as text."""
    return {
        "run": glance.run,
        "folder": glance.run.rpartition("/")[0],
        "title": glance.run.rpartition("/")[2] if glance.run != "." else glance.name,
        "status": glance.status,
        "share": f"{min(1.0, glance.round / glance.planned):.4f}" if glance.planned else "0",
        "rounds": f"{glance.round:,} of {glance.planned:,}" if glance.planned else f"{glance.round:,}",
        "left": progress_words(glance),
        "about": [word for word in (glance.algorithm, glance.source, glance.topology) if word],
        "metric": f"Test {metric_named(glance.metric).title}",
        "reached": format_metric(metric_named(glance.metric), glance.reached),
        "epsilon": epsilon_words(glance),
        "note": epsilon_note(glance),
        "time": format_duration(glance.seconds) if glance.seconds else NONE,
        "created": glance.created[:16].replace("T", " "),
    }


def _common_metric(glances: Iterable[Glance]) -> str:
    """Return the heading of the metric column: the metric if all runs share it, otherwise "Metric"."""
    names = {glance.metric for glance in glances}
    return f"Test {metric_named(names.pop() if names else None).title}" if len(names) < 2 else "Metric"


def progress_words(glance: Glance) -> str:
    """Return the time left, or for how long the run has written nothing."""
    if glance.silent is not None:
        return f"nothing written for {format_duration(glance.silent)}"
    return f"about {format_duration(glance.left)} left" if glance.left else ""


def epsilon_words(glance: Glance) -> str:
    """Return the last epsilon that a round recorded, rounded up."""
    if glance.unit == "none":
        return "none"
    return NONE if glance.epsilon is None else format_upper(glance.epsilon)


def epsilon_note(glance: Glance) -> str:
    """Return the terms of the shown epsilon, and how many later releases it does not include."""
    if glance.unit == "none":
        return "no guarantee"
    terms = terms_words(glance.unit, glance.adjacency, glance.delta)
    return terms + (f", {format_plural(glance.since, 'release')} since" if glance.since else "")
