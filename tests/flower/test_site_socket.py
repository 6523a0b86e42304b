"""The socket of a site: one owner, several callers, and no message that ends it."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from sightline.errors import InvalidInput
from sightline.runtimes.remote.client_executor import ClientSide
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site import process
from sightline.runtimes.site.process import ask_site, serve_site
from tests.flower.cases import releases_of
from tests.flower.test_hostile_site import framed, header, sent
from tests.flower.test_site import LOCAL, question, site_of, state_of  # noqa: F401

HELLO = WireMessage({"call": "hello"})


def serve(site, place):
    ready = threading.Event()
    threading.Thread(target=serve_site, args=(site, place), kwargs={"ready": ready.set}, daemon=True).start()
    assert ready.wait(60)
    return place


@pytest.fixture
def door(site_of, tmp_path):  # noqa: F811
    site = site_of(LOCAL)
    return serve(site, tmp_path / "door"), site


def words(text):
    """A whole question as bytes, with words that no version writes."""
    start = {"dtype": "F32", "shape": [63], "data_offsets": [0, 4 * 63]}
    return header(json.dumps({"__metadata__": {"words": text}, "start": start})) + bytes(4 * 63)


def said_to(place, content):
    """What the site says to some bytes."""
    with sent(place, framed(content)) as line:
        return WireMessage.from_bytes(process._receive(line, 1 << 20, time.monotonic() + 60))


PLAIN = json.dumps(question(LOCAL, question="q").fields)
BAD = {
    "infinity": PLAIN.replace('"q"', "1e999"),
    "minus infinity": PLAIN.replace('"q"', "-1e999"),
    "not a number": PLAIN.replace('"q"', "NaN"),
    "a long number": PLAIN.replace('"q"', "9" * 25),
    "a very long number": PLAIN.replace('"q"', "9" * 5000),
    "a table": PLAIN.replace('"q"', '{"a": [1]}'),
    "nested": PLAIN.replace('"q"', "[" * 900 + "]" * 900),
    "nested deeper": PLAIN.replace('"q"', "[" * 20_000 + "]" * 20_000),
    "a name twice": PLAIN.replace('"q"', '"q", "round": 1'),
    "half a character": PLAIN.replace('"q"', '"\\ud800"'),
    "a long question": PLAIN.replace('"q"', json.dumps("q" * 65)),
    "a long run": PLAIN.replace('"a"', json.dumps("a" * 65)),
    "a run of 64 MiB": PLAIN.replace('"a"', json.dumps("a" * (64 << 20))),
    "a run of two lines": PLAIN.replace('"a"', '"a\\nrefused: nothing"'),
    "a digest that a terminal obeys": PLAIN.replace('"digest": "', '"digest": "\\u001b[2J\\r\\n'),
    "a digest that is none": PLAIN.replace('"digest": "', '"digest": "x'),
    "a call of two lines": PLAIN.replace('"leaving"', '"leaving\\n"'),
    "a huge round": PLAIN.replace('"round": 1', '"round": 2147483648'),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_no_words_end_a_site_are_stored_or_write_lines_into_its_log(text, door, caplog):
    """`"question": 1e999` ended the process; 64 MiB of `run` were stored; `run` and `digest` wrote lines into the log."""
    place, site = door
    assert text != PLAIN
    refused = said_to(place, words(text)).fields["refused"]
    assert refused.isprintable()
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 1100 for record in caplog.records)
    assert state_of(site).run is None
    assert len(releases_of(site)) == 0
    assert ask_site(place, HELLO).fields["client"] == 2


def test_only_the_words_above_were_wrong(door):
    assert said_to(door[0], words(PLAIN)).arrays["value"].shape == (63,)


@pytest.mark.parametrize(
    "answer", [lambda *_: 1 // 0, lambda *_: WireMessage({"a": float("inf")})], ids=["raises", "inf"]
)
def test_a_mistake_of_our_own_is_logged_and_answered(answer, door, monkeypatch, caplog):
    place, site = door
    monkeypatch.setattr(site, "answer", answer)
    assert said_to(place, HELLO.to_bytes()).fields["refused"].endswith("; the site's log says more")
    assert "a message could not be answered" in caplog.text
    monkeypatch.undo()
    assert ask_site(place, HELLO).fields["client"] == 2


def test_a_dripping_caller_is_left_in_time_and_keeps_nobody_waiting(door, monkeypatch):
    """One byte per 5 s kept a site's only line for 5 s times the bytes of a message: the deadline was per recv."""
    place, _ = door
    with sent(place, struct.pack("!i", 1000)):
        assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
    monkeypatch.setattr(process, "PATIENCE_SECONDS", 0.3)
    with sent(place, struct.pack("!i", 1000)) as line:
        end = time.monotonic() + 60
        while is_open(line):
            assert time.monotonic() < end
            with contextlib.suppress(BrokenPipeError):
                line.sendall(b"x")
            time.sleep(0.02)


def test_callers_that_only_hold_the_line_make_room(door, monkeypatch):
    monkeypatch.setattr(process, "MOST_CALLERS", 4)
    place, _ = door
    silent = [sent(place, struct.pack("!i", 1000)) for _ in range(12)]
    for _ in range(3):
        assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
    for line in silent:
        line.close()


def test_callers_together_take_no_more_memory_than_two_messages(site_of, tmp_path):  # noqa: F811
    site = site_of(LOCAL, largest_bytes=1 << 20)
    place = serve(site, tmp_path / "door")
    lines = [sent(place, struct.pack("!i", 1 << 20) + bytes(900_000)) for _ in range(5)]
    assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
    end = time.monotonic() + 30
    while sum(map(is_open, lines)) > 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    for line in lines:
        line.close()


def is_open(line):
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_others_are_heard_while_an_answer_is_computed(door, monkeypatch):
    """Answers stay one at a time; hello, and questions for which nothing is approved, do not wait for them."""
    place, site = door
    begun, go_on, inside, most = threading.Event(), threading.Event(), [], []
    whole = ClientSide.compute_task

    def slow(self, *args):
        inside.append(1)
        most.append(len(inside))
        begun.set()
        assert go_on.wait(60)
        inside.pop()
        return whole(self, *args)

    monkeypatch.setattr(ClientSide, "compute_task", slow)
    found = []
    asked = [
        threading.Thread(target=lambda n=n: found.append(ask_site(place, question(LOCAL, round=n)))) for n in (1, 2)
    ]
    asked[0].start()
    assert begun.wait(60)
    asked[1].start()
    assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
    stranger = ask_site(place, question(LOCAL, digest="0" * 64), seconds=30)
    assert "no experiment with this digest" in stranger.fields["refused"]
    go_on.set()
    for thread in asked:
        thread.join(60)
    assert [answer.arrays["value"].shape for answer in found] == [(63,)] * 2
    assert max(most) == 1
    assert len(releases_of(site)) == 2


def test_callers_that_hung_up_while_they_waited_make_room(door, monkeypatch):
    """Questions that waited for their turn counted as answered: 32 callers that had hung up locked everybody out."""
    place, site = door
    monkeypatch.setattr(process, "MOST_CALLERS", 4)
    content = framed(question(LOCAL).to_bytes())
    with site._hold_lock():
        for _ in range(4):
            sent(place, content).close()
        waiting = [sent(place, content) for _ in range(8)]
        for _ in range(3):
            assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
        assert any(map(is_open, waiting))
        for line in waiting:
            line.close()
    assert "value" in ask_site(place, question(LOCAL, round=2), seconds=30).arrays


def test_a_question_whose_caller_hung_up_is_not_answered(door):
    place, site = door
    with site._hold_lock():
        sent(place, framed(question(LOCAL).to_bytes())).close()
        time.sleep(0.3)
    assert "value" in ask_site(place, question(LOCAL, run="b"), seconds=30).arrays
    assert state_of(site).run == "b"


def refusal(site, place):
    """Why a site does not answer at a place; nothing when it does."""
    found, done = [], threading.Event()

    def run():
        try:
            serve_site(site, place, ready=done.set)
        except InvalidInput as error:
            found.append(str(error))
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(60)
    return "".join(found)


@pytest.mark.parametrize("what", ["a file", "a folder", "a link", "a link to a socket"])
def test_what_is_at_the_path_of_the_socket_stays_there(what, door, tmp_path):
    """`serve --socket PATH` deleted whatever was at PATH."""
    other, site = door
    place, target = tmp_path / "place", tmp_path / "target"
    target.write_text("mine")
    if what == "a file":
        place.write_text("mine")
    elif what == "a folder":
        place.mkdir()
    else:
        place.symlink_to(target if what == "a link" else other)
    before = place.lstat()
    assert refusal(site, place).endswith("the path exists and is not a socket of this user; choose another path")
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("lock", ["held", "gone"])
def test_a_second_process_does_not_take_the_socket(lock, door, tmp_path):
    """A second process took the socket and the first went on without a word, heard by nobody."""
    place, site = door
    if lock != "held":
        (tmp_path / "door.lock").unlink()
    assert refusal(site, place).endswith("another process already answers there; stop it, or choose another path")
    assert ask_site(place, HELLO, seconds=30).fields["client"] == 2


def test_a_socket_that_a_dead_process_left_is_taken_over(site_of, tmp_path):  # noqa: F811
    place = tmp_path / "door"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    serve(site_of(LOCAL), place)
    assert ask_site(place, HELLO, seconds=30).fields["client"] == 2
    assert place.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("name", ["x" * 120, "missing/door", "linked"])
def test_a_place_where_no_socket_can_be_is_one_line(name, door, tmp_path):
    (tmp_path / "linked.lock").symlink_to(tmp_path / "victim")
    why = refusal(door[1], tmp_path / name)
    assert why.startswith("--socket=")
    assert why.isprintable()
    assert not (tmp_path / "victim").exists()


@pytest.mark.slow
def test_a_real_site_outlives_every_caller(site_of, tmp_path):  # noqa: F811
    """The process of `sightline site serve` itself, on its socket, with the messages that ended it."""
    site, place = site_of(LOCAL), tmp_path / "door"
    code = "from sightline.apps.cli.main import main; main()"
    command = [sys.executable, "-c", code, "site", "serve", str(site.folder), "--socket", str(place)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as served:
        try:
            assert "site 2 answers at" in served.stderr.readline()
            silent = [sent(place, struct.pack("!i", 1000) + b"x") for _ in range(process.MOST_CALLERS + 5)]
            for text in BAD.values():
                assert said_to(place, words(text)).fields["refused"].isprintable()
            second = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert (second.returncode, second.stderr.count("\n")) == (2, 1)
            assert "another process already answers there" in second.stderr
            assert ask_site(place, question(LOCAL), seconds=60).arrays["value"].shape == (63,)
            for line in silent:
                line.close()
            assert served.poll() is None
        finally:
            served.terminate()
            log = served.stderr.read()
    said = [line for line in log.splitlines() if line and line != "sightline: ended by SIGTERM"]
    assert all("refused: " in line for line in said), log
    assert state_of(site).run == "a"
