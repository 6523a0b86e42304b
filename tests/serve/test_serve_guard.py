"""Who may ask: token, name, site, path. Everything else is a refusal that says nothing of the runs."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from serve_asking import HOST, TOKEN, Ask, answer, asking, at_work, scope_of, site_of
from starlette.requests import Request

from sightline.apps.serve import Server
from sightline.apps.serve.guard import SECURITY, Guard, names_of
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.server import ROUTES, build_app
from sightline.errors import InvalidInput
from tests.report.report_runs import quickstart

EVERYTHING = [*ROUTES, "/static/page.css", "/static/serve.js", "/nowhere"]


@pytest.mark.parametrize("path", EVERYTHING)
def test_without_the_token_there_is_nothing_but_a_refusal(folder: Path, path: str) -> None:
    site = site_of(folder)
    for headers in ({}, {"Cookie": "sightline=wrong"}, {"Authorization": "Bearer wrong"}, {"Cookie": "=;;\x01="}):
        refused = answer(site, f"{path}?run=quick", HOST | headers)
        assert refused.status == 401
        assert b"quick" not in refused.body
    assert answer(site, f"{path}?token=wrong&run=quick", HOST).status == 401


def test_the_token_is_exchanged_for_a_strict_cookie_and_leaves_the_address(folder: Path) -> None:
    way_in = answer(site_of(folder), f"/run?run=a%20b&token={TOKEN}", HOST)
    assert way_in.status == 200
    cookie = way_in.headers["Set-Cookie"]
    assert cookie.startswith(f"sightline={TOKEN};")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert way_in.headers["Refresh"] == "0; url=/run?run=a+b"
    assert TOKEN.encode() not in way_in.body


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example", "/%0d%0aX:%20y"])
def test_the_way_in_leads_nowhere_else(folder: Path, path: str) -> None:
    request = Request(scope_of(f"{path}?token={TOKEN}", {"host": "localhost"}))
    where = site_of(folder)._exchange_token(request).headers["Refresh"].removeprefix("0; url=")
    assert where.startswith("/")
    assert where[1:2] not in ("/", "\\")
    assert "\n" not in where


def test_cookie_and_bearer_are_both_good(folder: Path) -> None:
    site = site_of(folder)
    assert asking(site)("/").status == 200
    assert answer(site, "/api/runs", HOST | {"Authorization": f"Bearer {TOKEN}"}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8710", "127.0.0.1.evil.example", "", "localhost.evil", "10.0.0.1"]
)
def test_a_name_that_is_not_ours_is_refused_even_with_the_token(ask: Ask, host: str) -> None:
    assert ask("/", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8710", "[::1]:8710", "localhost."])
def test_names_of_this_machine_are_welcome(ask: Ask, host: str) -> None:
    assert ask("/", Host=host).status == 200


def test_a_server_for_others_takes_addresses_but_no_foreign_name(folder: Path) -> None:
    guard = Guard(build_app(PageServer(folder)), TOKEN, names=names_of("0.0.0.0", ["box.lan"]), any_address=True)
    cookie = {"Cookie": f"sightline={TOKEN}"}
    for host, welcome in (
        ("192.168.1.7:8710", True),
        ("[fe80::1]:80", True),
        ("box.lan", True),
        ("evil.example", False),
    ):
        assert (guard.check(Request(scope_of("/", cookie | {"Host": host}))) is None) is welcome


def test_other_sites_may_link_but_not_fetch(ask: Ask) -> None:
    assert ask("/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors").status == 403
    assert ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200
    assert ask("/api/runs", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with a secret beside it, and links that lead to it."""
    place = tmp_path_factory.mktemp("guarded")
    runs = place / "runs"
    quickstart(runs / "quick", rounds=1)
    quickstart(place / "secret", rounds=1, name="hush")
    (runs / "link").symlink_to(place / "secret")
    quickstart(runs / "odd", rounds=1)
    (runs / "odd" / "config.toml").unlink()
    (place / "passwords.toml").write_text("hush = 1")
    (runs / "odd" / "config.toml").symlink_to(place / "passwords.toml")
    return runs


OUT = [
    "..",
    "../runs/quick",
    "quick/../../secret",
    "/etc",
    "quick/..",
    ".",
    "quick\0",
    "a\\b",
    "%2e%2e/secret",
    "link",
    "odd",
    "link/.",
]


OF_NO_RUN = {"/", "/calculator", "/groups", "/tree", "/api/runs", "/api/account", "/api/groups", "/api/tree"}


@pytest.mark.parametrize("path", [path for path in ROUTES if path not in OF_NO_RUN])
def test_no_name_leads_out_of_the_folder(guarded: Path, path: str) -> None:
    ask = asking(site_of(guarded))
    assert ask(f"{path}?run=quick&subject=client-0&observer=public").status == 200
    for name in OUT:
        refused = ask(f"{path}?run={quote(name)}")
        assert refused.status == 404, name
        assert b"hush" not in refused.body


def test_links_out_of_the_folder_are_not_listed(tmp_path: Path) -> None:
    quickstart(tmp_path / "secret", rounds=1, name="hush")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    assert b"hush" not in asking(site_of(tmp_path / "runs"))("/api/runs").body


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with at_work(folder) as running:
        yield running


def test_a_real_connection_has_the_headers_and_lives_on(server: Server) -> None:
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    bearer = {"Authorization": f"Bearer {server.token}"}
    for path in ("/", "/static/serve.css", "/nowhere", "/api/runs"):
        line.request("GET", path, headers=bearer)
        answer = line.getresponse()
        body = answer.read()
        assert answer.status == (404 if path == "/nowhere" else 200)
        assert server.token.encode() not in body
        for name, value in SECURITY.items():
            assert answer.headers[name] == value
    line.request("HEAD", "/", headers=bearer)
    answer = line.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    line.request("GET", "/")
    refused = line.getresponse()
    refused.read()
    assert refused.status == 401
    assert refused.headers["Content-Security-Policy"] == SECURITY["Content-Security-Policy"]
    line.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_there_is_nothing_to_change(server: Server, method: str) -> None:
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    line.request(method, "/", body=b"x=1", headers={"Authorization": f"Bearer {server.token}"})
    assert line.getresponse().status == 501
    line.close()


def test_what_is_known_is_not_sent_again(ask: Ask) -> None:
    first = ask("/run?run=quick")
    again = ask("/run?run=quick", If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


def test_it_listens_to_this_machine_alone_and_each_start_has_its_own_token(folder: Path) -> None:
    with (
        closing(Server(folder, host="127.0.0.1", port=0)) as one,
        closing(Server(folder, host="127.0.0.1", port=0)) as other,
    ):
        assert one.socket.getsockname()[0] == "127.0.0.1"
        assert one.token != other.token
        assert len(one.token) >= 32
        assert one.url == f"http://127.0.0.1:{one.server_port}/?token={one.token}"
        with pytest.raises(InvalidInput, match="cannot listen there"):
            Server(folder, host="127.0.0.1", port=one.server_port)
