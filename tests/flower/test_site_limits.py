"""What a question may cost a site: seconds and bytes, for every caller."""

import re
import threading
import time
from multiprocessing.connection import Listener

import numpy as np
import pytest

from sightline.errors import SightlineError
from sightline.runtimes.remote.client_executor import ClientSide
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.process import ask_site, run_within, serve_site
from tests.flower.cases import releases_of
from tests.flower.test_site import LOCAL, question, site_of  # noqa: F401


def busy(seconds):
    """Work that catches what it can, as models do."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.001)
        except Exception:
            continue
    return "done"


def test_work_that_takes_too_long_is_stopped():
    begun = time.monotonic()
    with pytest.raises(SightlineError, match=r"largest_seconds=0.05: computing the answer takes longer"):
        run_within(0.05, lambda: busy(20.0))
    assert time.monotonic() - begun < 5.0


def test_work_in_time_is_left_alone_and_so_is_what_comes_after():
    assert [run_within(0.02, lambda: busy(0.0)) for _ in range(50)] == ["done"] * 50
    busy(0.1)  # a late interruption would stop the test here


def test_an_error_of_the_work_is_the_works_own():
    with pytest.raises(ZeroDivisionError):
        run_within(5.0, lambda: 1 // 0)


def test_the_limit_holds_at_the_very_moment_the_work_ends():
    for _ in range(200):
        try:
            assert run_within(0.002, lambda: busy(0.002)) == "done"
        except SightlineError:
            continue


def test_a_question_that_takes_too_long_is_charged_and_fails(site_of, monkeypatch, caplog):  # noqa: F811
    site = site_of(LOCAL, largest_seconds=0.01)
    whole = ClientSide.compute_task
    monkeypatch.setattr(ClientSide, "compute_task", lambda self, *a: busy(60.0) or whole(self, *a))
    answer = site.answer(question(LOCAL))
    assert len(releases_of(site)) == 1
    assert "largest_seconds=0.01: computing the answer takes longer" in caplog.text
    assert "largest_seconds" not in str(answer.fields)


def test_answers_leave_after_the_same_time_computed_or_failed(site_of, monkeypatch, caplog):  # noqa: F811
    site = site_of(LOCAL, answer_seconds=0.7)
    begun = time.monotonic()
    good = site.answer(question(LOCAL))
    assert time.monotonic() - begun >= 0.7
    begun = time.monotonic()
    assert site.answer(question(LOCAL)).fields == good.fields
    assert time.monotonic() - begun < 0.7, "what was answered before is not kept waiting"
    whole = ClientSide.compute_task
    monkeypatch.setattr(ClientSide, "compute_task", lambda self, *a: busy(20.0) or whole(self, *a))
    begun = time.monotonic()
    failed = site.answer(question(LOCAL, round=2))
    assert 0.7 <= time.monotonic() - begun < 10.0
    assert "as if its examples were blank" in caplog.text
    assert not failed.arrays
    assert failed.fields["refused"].endswith("the site's log says why")


def test_a_message_of_too_many_bytes_is_not_read_and_the_next_is(site_of, tmp_path):  # noqa: F811
    site, place, ready = site_of(LOCAL, largest_bytes=4096), tmp_path / "s", threading.Event()
    threading.Thread(target=serve_site, args=(site, place), kwargs={"ready": ready.set}, daemon=True).start()
    assert ready.wait(10)
    refusal = ask_site(place, WireMessage({"call": "hello"}, {"start": np.zeros(10**6, np.float32)}))
    assert refusal.fields["refused"].startswith(
        "site-socket: no site answers there, or the message is too large for it"
    )
    assert ask_site(place, WireMessage({"call": "hello"})).fields["client"] == 2


@pytest.mark.parametrize("numbers", [1, 10**6])  # the second is more than a socket takes while nobody reads
def test_a_node_does_not_wait_for_ever_for_a_site_that_hangs(numbers, tmp_path):
    with Listener(str(tmp_path / "s"), family="AF_UNIX"):  # takes the call and says nothing
        message = WireMessage({"call": "hello"}, {"start": np.zeros(numbers, np.float32)})
        refusal = ask_site(tmp_path / "s", message, seconds=0.1)
    assert re.search("no answer within 0.1 seconds|no site answers there", refusal.fields["refused"])
