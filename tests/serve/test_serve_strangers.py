"""Strangers at a real server: odd requests, foreign pages, slow and many callers, and runs made to do harm."""

import hmac
import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest
from serve_asking import Ask, answer, asking, at_work, site_of
from starlette.requests import Request
from starlette.responses import Response

from sightline.apps.cli.main import run_arguments
from sightline.apps.serve import Server
from sightline.apps.serve.guard import SECURITY
from sightline.apps.serve.pages import Page
from sightline.apps.serve.server import ROUTES, Connection
from sightline.engine import RunRecord
from tests.report.report_runs import FACTS, quickstart, write

BEARER = "Authorization: Bearer {token}\r\n"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, at_work(folder) as running:
        patch.setattr(Connection, "most_connections", 6)
        patch.setattr(Connection, "request_seconds", 0.5)
        yield running


def line(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=600)


def raw(server: Server, text: str | bytes) -> bytes:
    """What comes back until the server hangs up."""
    with line(server) as one:
        one.sendall(text if isinstance(text, bytes) else text.format(token=server.token).encode("latin-1"))
        found = b""
        while piece := one.recv(1 << 16):
            found += piece
    return found


def status(said: bytes) -> int:
    return int(said.split()[1]) if said.startswith(b"HTTP/1.1 ") else 0


HOST = "Host: 127.0.0.1\r\nConnection: close\r\n"
ODD = {
    "no host": ("GET / HTTP/1.1\r\nConnection: close\r\n" + BEARER + "\r\n", 400),
    "two hosts": ("GET / HTTP/1.1\r\nHost: evil.example\r\n" + HOST + BEARER + "\r\n", 400),
    "another's host": ("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n" + BEARER + "\r\n", 421),
    "whole address": ("GET http://evil.example/ HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 400),
    "star": ("GET * HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 400),
    "a bad address": ("GET http://[ HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 400),
    "trace": ("TRACE / HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 501),
    "connect": ("CONNECT evil.example:80 HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 501),
    "markup as method": ("<script>alert(1)</script> / HTTP/1.1\r\n" + HOST + "\r\n", 400),
    "a long line": ("GET /?q=" + "x" * 70_000 + " HTTP/1.1\r\n" + HOST + "\r\n", 431),
    "a long header": ("GET / HTTP/1.1\r\nX: " + "x" * 70_000 + "\r\n" + HOST + "\r\n", 431),
    "many headers": ("GET / HTTP/1.1\r\n" + "".join(f"X{n}: 1\r\n" for n in range(200)) + HOST + "\r\n", 431),
    "many values": ("GET /?" + "&".join(f"a{n}=1" for n in range(500)) + " HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 400),
    "a version": ("GET / HTTP/9.9\r\n" + HOST + "\r\n", 505),
    "bytes": (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", 400),
    "static, encoded": ("GET /static/..%2f..%2fetc%2fpasswd HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 404),
    "static, dots": ("GET /static/../server.py HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 404),
    "run, encoded twice": ("GET /run?run=%252e%252e%252fsecret HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 404),
    "a null": ("GET /run?run=quick%00 HTTP/1.1\r\n" + HOST + BEARER + "\r\n", 404),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_request_is_refused_with_the_headers_of_every_answer(
    server: Server, odd: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text, expected = ODD[odd]
    said = raw(server, text)
    assert status(said) == expected
    head, _, body = said.partition(b"\r\n\r\n")
    for name, value in SECURITY.items():
        assert head.lower().count(f"\r\n{name}: {value}".lower().encode()) == 1
    assert b"<script>alert" not in body
    assert server.token.encode() not in said
    assert server.token not in "".join(capfd.readouterr())


def test_a_body_is_not_read_as_the_next_request(server: Server) -> None:
    inner = f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    said = raw(server, f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(inner)}\r\n\r\n{inner}")
    assert said.count(b"HTTP/1.1 ") == 1
    assert status(said) == 413


def test_the_way_in_is_stored_nowhere_and_the_token_is_told_to_nobody(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    said = raw(server, "GET /run?run=quick&token={token} HTTP/1.1\r\n" + HOST + "\r\n")
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"cache-control: no-store" in head.lower()
    assert b"referrer-policy: no-referrer" in head.lower()
    assert server.token.encode() not in body
    refresh = next(one for one in head.split(b"\r\n") if one.lower().startswith(b"refresh"))
    assert server.token.encode() not in refresh
    page = raw(server, "GET /run?run=quick HTTP/1.1\r\n" + HOST + BEARER + "\r\n")
    assert b"cache-control: private, no-cache" in page
    assert server.token.encode() not in page
    assert server.token not in "".join(capfd.readouterr())
    assert server.token not in repr(server.guard)


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "//\\evil.example"])
def test_the_way_in_does_not_lead_away(server: Server, path: str) -> None:
    said = raw(server, f"GET {path}?token={server.token} HTTP/1.1\r\n{HOST}\r\n")
    lead = [one for one in said.partition(b"\r\n\r\n")[0].split(b"\r\n") if one.startswith(b"refresh")]
    assert status(said) == 400 or lead == [b"refresh: 0; url=/evil.example" + (b"/" if path.endswith("/") else b"")]


@pytest.mark.parametrize(
    ("headers", "welcome"),
    [
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"}, False),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}, False),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}, False),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors", "Origin": "http://127.0.0.1:9999"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:9999"}, False),
        ({"Origin": "http://127.0.0.1:8710"}, True),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, True),
        ({"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, True),
        ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"}, True),
    ],
)
def test_pages_of_other_origins_may_lead_here_and_not_fetch(ask: Ask, headers: dict[str, str], welcome: bool) -> None:
    assert ask("/api/runs", **headers).status == (200 if welcome else 403)


def test_slow_and_silent_callers_are_hung_up_on_and_make_no_threads(server: Server) -> None:
    before = threading.active_count()
    with ExitStack() as crowd:
        held = [crowd.enter_context(line(server)) for _ in range(12)]
        for one in held[::2]:
            one.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert threading.active_count() <= before
        assert [last_words(one) for one in held] == [b""] * 12
    assert threading.active_count() <= before
    assert status(raw(server, "GET /api/runs HTTP/1.1\r\n" + HOST + BEARER + "\r\n")) == 200


def last_words(one: socket.socket) -> bytes:
    """What the server sends before it hangs up."""
    try:
        return one.recv(1 << 12)
    except ConnectionResetError:  # hung up on before it had read what was sent
        return b""


def test_a_stranger_never_starts_a_thread_and_is_not_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal reads no file, starts no thread and ends the connection, so that requests cannot pile up behind it."""
    monkeypatch.setattr("sightline.apps.serve.server.Thread", None)
    monkeypatch.setattr(server.site, "answer", None)
    said = raw(server, "GET /run?run=quick HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5)
    assert status(said) == 401
    assert said.count(b"HTTP/1.1 ") == 1


def test_an_idle_connection_ends_by_the_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "idle_seconds", 0.2)
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)) as owner:
        assert asks(server, owner) == 200
        assert last_words(owner.sock) == b""


def test_a_second_request_that_drips_ends_by_the_clock_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its first bytes came along with the request before, and long before the idle deadline."""
    monkeypatch.setattr(Connection, "request_seconds", 0.2)
    for rest in (b"GET /?q=", b""):
        with line(server) as one:
            head = f"HEAD /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
            one.sendall(head.encode() + rest)
            assert status(one.recv(1 << 16)) == 200
            one.settimeout(0.05)
            assert any(hung_up(one, b"G") for _ in range(40))


def test_an_answer_that_is_not_taken_ends_by_the_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "idle_seconds", 0.2)
    monkeypatch.setattr(server.site, "answer", lambda page, request: Response(b"x" * 20_000_000))
    with line(server) as one:
        one.sendall(("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + BEARER + "\r\n").format(token=server.token).encode())
        for _ in range(100):
            if not server.server_state.connections:
                break
            threading.Event().wait(0.05)
        assert not server.server_state.connections


def asks(server: Server, owner: http.client.HTTPConnection) -> int:
    """The owner asks, and keeps the connection."""
    owner.request("GET", "/api/runs", headers={"Authorization": f"Bearer {server.token}"})
    answer = owner.getresponse()
    answer.read()
    return answer.status


def test_a_crowd_that_drips_does_not_lock_the_owner_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However patient the server is: who is waited for longest makes room, those without the token first."""
    monkeypatch.setattr(Connection, "request_seconds", 600)
    with (
        closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)) as owner,
        ExitStack() as crowd,
    ):
        assert asks(server, owner) == 200
        kept = owner.sock
        for _ in range(3):
            for _ in range(6):
                crowd.enter_context(line(server)).sendall(b"GET /?q=")
            newcomer = raw(server, "GET /api/runs HTTP/1.1\r\n" + HOST + BEARER + "\r\n")
            assert status(newcomer) == 200
            assert len(server.server_state.connections) <= 6
        assert asks(server, owner) == 200
        assert owner.sock is kept


def test_a_request_that_drips_ends_by_the_clock(server: Server) -> None:
    """A byte at a time, each long before any read would give up."""
    with line(server) as one:
        one.settimeout(0.05)
        assert any(hung_up(one, bytes([byte])) for byte in b"GET /?q=" + b"x" * 100)


def hung_up(one: socket.socket, more: bytes) -> bool:
    """Whether the server ended the connection instead of taking more."""
    try:
        one.sendall(more)
        return one.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_an_answer_under_way_is_not_broken_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answer = server.site.answer

    def slowly(page: Page, request: Request) -> Response:
        begun.set()
        go_on.wait(600)
        return answer(page, request)

    monkeypatch.setattr(server.site, "answer", slowly)
    with line(server) as one, ExitStack() as crowd:
        one.sendall(("GET /api/runs HTTP/1.1\r\n" + HOST + BEARER + "\r\n").format(token=server.token).encode())
        begun.wait(600)
        monkeypatch.setattr(server.site, "answer", answer)
        monkeypatch.setattr(Connection, "most_connections", 1)
        with line(server) as late:  # no other place is left: the newcomer is hung up on
            assert last_words(late) == b""
        monkeypatch.setattr(Connection, "most_connections", 6)
        for _ in range(20):
            crowd.enter_context(line(server)).sendall(b"GET")
        assert status(raw(server, "GET /api/runs HTTP/1.1\r\n" + HOST + BEARER + "\r\n")) == 200
        go_on.set()
        assert status(one.recv(1 << 16)) == 200


HOSTILE = ["", "x" * 5000, "9" * 5000, "-1", "1e400", "nan", "\0", "\u202e\ud7ff", "%s%n", "' OR 1=1 --", "{{7*7}}",
           "${x}", "../" * 50, "client-0..99999999999", "[" * 3000, "<svg onload=alert(1)>"]  # fmt: skip
NAMES = ("run", "q", "start", "round", "subject", "observer", "by", "against", "scheme", "noise", "steps", "delta",
         "part", "wait", "status", "rate", "uses")  # fmt: skip


@pytest.mark.parametrize("path", sorted(ROUTES))
@pytest.mark.slow
def test_no_value_of_a_query_is_more_than_a_bad_request(ask: Ask, path: str) -> None:
    for name in ("run",) if path in ("/report.html", "/officer.html") else NAMES:
        for value in HOSTILE:
            run = "" if name == "run" else "run=quick&"
            answer = ask(f"{path}?{run}{name}={quote(value, errors='surrogatepass')}")
            assert answer.status in (200, 400, 404), (name, value[:20])
            assert answer.kind == "application/json" or b"<svg onload" not in answer.body


def broken(directory: Path, *statements: str, journal: bool = False) -> None:
    """Harm a database; without its journal, as runs of earlier versions are, since with it any edit is noticed."""
    with closing(sqlite3.connect(directory / "run.sqlite")) as connection, connection:
        for statement in statements if journal else ("DROP TABLE journal", *statements):
            connection.execute(statement)


HARM = {
    "facts are no JSON": ("UPDATE fact SET value = 'x' WHERE name = 'name'",),
    "facts of another kind": ("UPDATE fact SET value = '[1]' WHERE name = 'rounds_planned'",),
    "a delta in words": ("UPDATE fact SET value = '\"<b>small</b>\"' WHERE name = 'delta'",),
    "bytes that are no text": ("UPDATE fact SET value = CAST(x'ff22' AS TEXT) WHERE name = 'name'",),
    "a round that is a list": ("UPDATE round SET body = '[]'",),
    "nests": (f"UPDATE round SET body = '{'[' * 50_000}'",),
    "no ledger": ("DROP TABLE release",),
    "a view for a ledger": (
        "DROP TABLE release",
        "CREATE VIEW release AS WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n) "
        "SELECT id, 1 AS time, 'x' AS body, 'x' AS hash FROM n",
    ),
    "a trigger that forgets": (
        "CREATE TRIGGER forget BEFORE INSERT ON release BEGIN SELECT RAISE(IGNORE); END",
    ),
    "other columns": ("DROP TABLE round", "CREATE TABLE round (a, b, c)"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_a_run_that_was_made_to_do_harm_hides_no_other(tmp_path: Path, harm: str) -> None:
    quickstart(tmp_path / "good", rounds=1)
    broken(quickstart(tmp_path / "bad", rounds=1), *HARM[harm])
    ask = asking(site_of(tmp_path))
    for path in ("/", "/api/runs"):
        answer = ask(path)
        assert answer.status == 200
        assert b"good" in answer.body
        assert b"<b>small" not in answer.body
    for path in (*OF_A_RUN, "/compare", "/api/compare"):
        assert ask(f"{path}?run=bad&run=good").status in (200, 400), path


OF_A_RUN = (
    "/run",
    "/report.html",
    "/officer.html",
    "/sight",
    "/pair",
    "/ledger",
    "/api/run",
    "/api/sight",
    "/api/ledger",
)


def made_a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def set_fact(name: str, value: str) -> Callable[[Path], None]:
    return lambda run: broken(run, f"UPDATE fact SET value = '{value}' WHERE name = '{name}'")


DAMAGED: dict[str, Callable[[Path], object]] = {
    "sizes that are a word": set_fact("sizes", '"x"'),
    "sizes that are a number": set_fact("sizes", "-1"),
    "observers in a list": set_fact("observers", "[1]"),
    "a unit of another kind": set_fact("unit", "[1]"),
    "trusted is true": set_fact("trusted", "true"),
    "versions in a list": set_fact("versions", "[1]"),
    "a target in words": set_fact("target_epsilon", '"x"'),
    "epsilon is one number": lambda run: broken(run, """UPDATE round SET body = '{"epsilon": 5}'"""),
    "accuracy in words": lambda run: broken(run, """UPDATE round SET body = '{"test_accuracy": "x"}'"""),
    "an edited fact": lambda run: broken(run, "UPDATE fact SET value = '1' WHERE name = 'delta'", journal=True),
    "an edited round": lambda run: broken(run, "UPDATE round SET body = '{}'", journal=True),
    "an edited journal": lambda run: broken(run, "UPDATE journal SET body = '[1]'", journal=True),
    "half a database": lambda run: (run / "run.sqlite").write_bytes((run / "run.sqlite").read_bytes()[:5000]),
    "an empty database": lambda run: (run / "run.sqlite").write_bytes(b""),
    "the database is a folder": lambda run: made_a_folder(run / "run.sqlite"),
    "the log is a folder": lambda run: made_a_folder(run / "run.sqlite-wal"),
    "the settings are a folder": lambda run: made_a_folder(run / "config.toml"),
    "the settings are bytes": lambda run: (run / "config.toml").write_bytes(bytes(range(256))),
    "the settings nest": lambda run: (run / "config.toml").write_text("a = " + "[" * 5000),
    "no settings": lambda run: (run / "config.toml").unlink(),
    "a model that is a folder": lambda run: made_a_folder(run / "model.safetensors"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_run_has_a_clear_page(tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    DAMAGED[damage](quickstart(tmp_path / "bad", rounds=2))
    ask = asking(site_of(tmp_path))
    assert ask("/").status == 200
    for path in (*OF_A_RUN, "/compare", "/api/compare"):
        answer = ask(f"{path}?run=bad&subject=client-1&observer=public")
        assert answer.status in (200, 400), path
        if answer.status == 400 and not path.startswith("/api/"):
            assert b"This cannot be shown" in answer.body
            assert b"run.sqlite" in answer.body or b"no run of this version writes" in answer.body
            assert b'href="/"' in answer.body
        if answer.status == 400 and path.startswith("/api/"):
            assert json.loads(answer.body)["error"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", [name for name in DAMAGED if "folder" not in name or "settings" in name])
def test_a_damaged_run_is_one_line_on_the_terminal(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGED[damage](quickstart(tmp_path / "bad", rounds=2))
    for command in ("report", "compare"):
        code = run_arguments([command, str(tmp_path / "bad")])
        said = capsys.readouterr().err
        assert code in (0, 2)
        assert said.count("\n") == (1 if code else 0)
        assert "Traceback" not in said


def test_the_list_names_what_it_cannot_read(tmp_path: Path) -> None:
    quickstart(tmp_path / "good", rounds=1)
    (quickstart(tmp_path / "sweep" / "half & half", rounds=1) / "run.sqlite").write_bytes(b"x" * 5000)
    ask = asking(site_of(tmp_path))
    assert b'Cannot be read: <a href="/run?run=sweep%2Fhalf+%26+half">sweep/half &amp; half</a>.' in ask("/").body
    told = ask("/run?run=sweep%2Fhalf+%26+half")
    assert told.status == 400
    assert b"file is not a database" in told.body


def test_half_a_database_hides_no_other(tmp_path: Path) -> None:
    quickstart(tmp_path / "good", rounds=1)
    whole = (quickstart(tmp_path / "whole", rounds=30) / "run.sqlite").read_bytes()
    for number, size in enumerate((1, 100, 4096, 5000, 8192, len(whole) // 2, len(whole) - 1)):
        (tmp_path / f"half{number}").mkdir()
        (tmp_path / f"half{number}" / "run.sqlite").write_bytes(whole[:size])
        (tmp_path / f"torn{number}").mkdir()
        torn = whole[:size] + os.urandom(512) + whole[size + 512 :]
        (tmp_path / f"torn{number}" / "run.sqlite").write_bytes(torn)
    found = {row["run"] for row in json.loads(asking(site_of(tmp_path))("/api/runs").body)["runs"]}
    assert {"good", "whole"} <= found


def test_names_that_cannot_be_shown_are_passed_over_and_odd_ones_are_text(tmp_path: Path) -> None:
    odd = ["日本", "a b&c#d?e", "'\"<i>"]
    for name in [*odd, "esc\x1b[2J", "bidi\u202e", os.fsdecode(b"bytes\xff")]:
        quickstart(tmp_path / name, rounds=1)
    ask = asking(site_of(tmp_path))
    assert {row["run"] for row in json.loads(ask("/api/runs").body)["runs"]} == set(odd)
    page = ask("/").body
    assert b"\x1b" not in page
    assert b"<i>" not in page
    for name in odd:
        assert ask(f"/run?run={quote(name)}").status == 200
        ask(f"/report.html?run={quote(name)}").headers["Content-Disposition"].encode("ascii")


def test_half_characters_in_facts_do_not_stop_the_list(tmp_path: Path) -> None:
    directory = write(tmp_path / "run", dict(FACTS) | {"name": "x"}, [], [])
    record = RunRecord.open(directory)
    record.remember_metadata({"name": "\ud800 half", "algorithm": "\ud800"})
    record.close()
    ask = asking(site_of(tmp_path))
    for path in ("/", "/api/runs", "/run?run=run", "/report.html?run=run", "/compare?run=run"):
        assert ask(path).status == 200, path


def test_links_inside_and_out(tmp_path: Path) -> None:
    """Folders, databases and logs that are links out of the folder are no runs."""
    secret = quickstart(tmp_path / "secret", rounds=1, name="hush")
    runs = tmp_path / "runs"
    for name in ("a", "b"):
        (runs / name).mkdir(parents=True)
    (runs / "a" / "run.sqlite").symlink_to(secret / "run.sqlite")
    quickstart(runs / "c", rounds=1)
    (runs / "c" / "run.sqlite-wal").symlink_to(secret / "run.sqlite")
    (runs / "b" / "run.sqlite").symlink_to(runs / "b" / "run.sqlite")
    (runs / "loop").symlink_to(runs)
    ask = asking(site_of(runs))
    assert b"hush" not in ask("/").body
    assert ask("/").status == 200
    for name in ("a", "b", "c", "loop/c"):
        assert ask(f"/run?run={name}").status == 404, name


def test_the_token_is_no_word_of_the_command_line_or_the_environment(tmp_path: Path) -> None:
    quickstart(tmp_path / "runs" / "quick", rounds=1)
    busy = subprocess.Popen(
        [sys.executable, "-m", "sightline", "serve", "--port", "0", "--json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        told = json.loads(busy.stdout.readline())  # type: ignore[union-attr]
        token = told["url"].partition("?token=")[2]
        about = Path(f"/proc/{busy.pid}")
        for name in ("cmdline", "environ"):
            if (about / name).exists():
                assert token.encode() not in (about / name).read_bytes()
        connection = http.client.HTTPConnection("127.0.0.1", told["port"], timeout=600)
        connection.request("GET", f"/?token={token}", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 421
        connection.close()
    finally:
        busy.terminate()
        busy.communicate(timeout=600)


def test_the_tokens_comparison_does_not_stop_at_the_first_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compare = hmac.compare_digest
    monkeypatch.setattr("sightline.apps.serve.guard.hmac.compare_digest", lambda a, b: asked.append(1) or compare(a, b))
    site = site_of(tmp_path)
    for headers in ({"Authorization": "Bearer x"}, {"Cookie": "sightline=x"}):
        assert answer(site, "/", {"Host": "localhost"} | headers).status == 401
    assert answer(site, "/?token=x", {"Host": "localhost"}).status == 401
    assert len(asked) >= 3
