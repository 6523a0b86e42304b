"""What an administrator watches: logs of one JSON object per line, and /health and /metrics on loopback."""

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from typing_extensions import override

from sightline.errors import invalid, printable

LOG = logging.getLogger("sightline.monitor")
FIRST_PORT = 9400
"""The first port that is tried for port 0, which leaves the choice to us."""
KEPT_SECONDS = 5.0
"""A page is computed at most this often: reading it must not slow answers down."""
FIELDS = "fields"


class JsonLines(logging.Formatter):
    """Formatter of one JSON object per line; the fields of an event come beside its time, level and message."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line |= {"message": printable(record.getMessage())} | getattr(record, FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json(level: int = logging.INFO) -> None:
    """Write the log of this process to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("sightline")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


class Metric(NamedTuple):
    """A number for Prometheus, or several that differ by their labels."""

    name: str
    kind: str
    help: str
    values: Mapping[tuple[tuple[str, str], ...], float]


def metric(name: str, kind: str, help: str, value: float) -> Metric:
    """Return a metric of one number without labels."""
    return Metric(f"sightline_{name}", kind, help, {(): value})


def labelled(name: str, kind: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a metric of one number per value of a label."""
    return Metric(f"sightline_{name}", kind, help, {((label, key),): value for key, value in values.items()})


def format_metrics(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format.

    >>> print(format_metrics([labelled("answers_total", "counter", "Answers.", "outcome", {"answered": 3})]), end="")
    # HELP sightline_answers_total Answers.
    # TYPE sightline_answers_total counter
    sightline_answers_total{outcome="answered"} 3
    """
    lines = []
    for name, kind, help, values in metrics:
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        for labels, value in values.items():
            inner = ",".join(f"{key}={json.dumps(printable(text))}" for key, text in labels)
            number = "+Inf" if value == math.inf else f"{value:.10g}"
            lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return "\n".join(lines) + "\n"


Health = Callable[[], Mapping[str, Any]]
"""Returns facts with `status`: "ok" answers 200, anything else 503."""


class Monitor:
    """Read-only pages /health and /metrics on 127.0.0.1, open to every user of this machine.

    Guarantees: the pages hold only what does not depend on anyone's data: counts of questions, rounds, and what was
    reserved or spent of a budget, which follows from the approved experiment. They hold no losses, no durations
    (training time depends on the data), no text of errors, and at a server no counts of answers: a cohort that is
    claimed to be hidden must not be counted in public.
    """

    def __init__(self, health: Health, metrics: Callable[[], Iterable[Metric]], port: int = 0) -> None:
        self._lock, self._kept = threading.Lock(), dict[str, tuple[float, int, str]]()
        pages = {"/health": lambda: _health_page(health), "/metrics": lambda: (200, format_metrics(metrics()))}
        self._server = _listen(port, _handler(lambda path: self._page(path, pages)))
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _page(self, path: str, pages: Mapping[str, Callable[[], tuple[int, str]]]) -> tuple[int, str]:
        if path not in pages:
            return 404, "/health or /metrics\n"
        with self._lock:
            known = self._kept.get(path)
            if known is None or time.monotonic() - known[0] > KEPT_SECONDS:
                try:
                    code, text = pages[path]()
                except Exception:
                    LOG.exception("%s could not be computed", path)
                    code, text = 503, "the log says why\n"
                self._kept[path] = known = (time.monotonic(), code, text)
        return known[1], known[2]

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _health_page(health: Health) -> tuple[int, str]:
    facts = health()
    return 200 if facts["status"] == "ok" else 503, json.dumps(dict(facts)) + "\n"


def _handler(page: Callable[[str], tuple[int, str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            # A page of another origin that points its name at 127.0.0.1 sends that name.
            host = self.headers.get("Host", "").rpartition(":")[0]
            code, text = page(self.path) if host in ("127.0.0.1", "localhost") else (403, "ask 127.0.0.1\n")
            self.send_response(code)
            self.send_header(
                "Content-Type", "application/json" if self.path == "/health" else "text/plain; version=0.0.4"
            )
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a scrape is not an event."""

    return Handler


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    wanted = [port] if port else range(FIRST_PORT, FIRST_PORT + 100)
    for number in wanted:
        try:
            return ThreadingHTTPServer(("127.0.0.1", number), handler)
        except OSError as error:
            last = error
    invalid("--health-port", port, f"cannot listen there ({last.strerror})", "choose another port")
