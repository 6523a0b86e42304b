"""A hostile server, or a stranger at the door of a site: the site's budget and its process outlive them."""

import io
import math
import socket
import struct
import threading

import numpy as np
import pytest

from sightline.errors import InvalidInput
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site import process
from sightline.runtimes.site.site import Site
from tests.flower.cases import releases_of
from tests.flower.test_site import CENTRAL, LOCAL, question, site_of  # noqa: F401


def around(site):
    """Every file near a site that is not its own."""
    return sorted(path for path in site.folder.parent.parent.rglob("*") if not path.is_relative_to(site.folder))


CHANNEL = {"name": "server", "clip_factor": 1.0, "noise_factor": 1.0}


@pytest.mark.parametrize(
    "more",
    [
        {"noise": 0.0},
        {"noise": "2.0"},
        {"channel": CHANNEL | {"noise_factor": 0.0}},
        {"channel": CHANNEL | {"clip_factor": -1.0}},
        {"channel": CHANNEL | {"trusted": True}},
        {"channel": [1]},
        {"round": -1},
        {"round": 10**30},
        {"round": 1.0},
        {"round": [1]},
        {"use": -1},
        {"use": None},
        {"part": {}},
        {"line": -5},
        {"client": 0},
        {"terms": {"mu": 1e308}},
        {"terms": []},
        {"call": "choose", "epsilon": 1e9},
        {"call": ["leaving"]},
        {"digest": None},
        {"digest": "0" * 64},
        {"run": "../../x"},
    ],
    ids=str,
)
def test_whatever_is_asked_the_site_answers_within_its_budget_or_not_at_all(more, site_of):  # noqa: F811
    site = site_of(LOCAL, epsilon=5.0)
    outside, reserved = around(site), site.spent()
    answer = site.answer(question(LOCAL, **more))
    assert around(site) == outside
    assert site.spent() == reserved <= 5.0
    if "value" in answer.arrays:
        # the noise of the approved experiment is in it: std of 63 numbers is z C within 8 sigma
        assert [release.event.noise_multiplier for release in releases_of(site)] == [2.0]
        assert np.isfinite(answer.arrays["value"]).all()
        assert answer.arrays["value"].std() > 0.4 * 2.0 * (1 - 8 / math.sqrt(2 * 63))
    else:
        assert "\n" not in answer.fields["refused"]
        assert len(releases_of(site)) == 0


def test_an_answer_says_which_question_it_answers_and_whose_it_is(site_of):  # noqa: F811
    site = site_of(LOCAL)
    first = site.answer(question(LOCAL, question="a1", client=0))
    again = site.answer(question(LOCAL, question="b2", client=0))
    assert [first.fields[name] for name in ("question", "round", "client")] == ["a1", 1, 2]
    assert again.fields["question"] == "b2"
    # the number of a question is not part of what is asked: asked again, the answer is the same and is charged once
    assert first.arrays["value"].tobytes() == again.arrays["value"].tobytes()
    assert len(releases_of(site)) == 1


def header(words, arrays="{}"):
    text = words.encode()
    return struct.pack("<Q", len(text)) + text


NONSENSE = {
    "empty": b"",
    "words are a list": WireMessage({}).to_bytes().replace(b'"{}"', b'"[]"'),
    "not a number": header('{"__metadata__":{"words":"{\\"round\\": NaN}"}}'),
    "nested": header('{"__metadata__":{"words":"' + "[" * 100_000 + "]" * 100_000 + '"}}'),
    "nested header": header("[" * 100_000 + "]" * 100_000),
    "no metadata": header("{}"),
    "a size beyond all": struct.pack("<Q", 2**63) + b"{}",
    "an array beyond all": header(
        '{"__metadata__":{"words":"{}"},"v":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,16]}}'
    ),
    "a long number": header('{"__metadata__":{"words":"{\\"a\\": ' + "9" * 5000 + '}"}}'),
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_no_letter(content):
    with pytest.raises(InvalidInput) as caught:
        WireMessage.from_bytes(content)
    assert "\n" not in str(caught.value)


@pytest.fixture
def door(site_of, tmp_path, monkeypatch):  # noqa: F811
    """A site behind its socket that has little patience and takes short letters only."""
    monkeypatch.setattr(process, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(process, "LARGEST_LETTER", 1 << 16)
    ready, place = threading.Event(), tmp_path / "door"
    site = site_of(LOCAL)
    threading.Thread(target=process.serve_site, args=(site, place), kwargs={"ready": ready.set}, daemon=True).start()
    assert ready.wait(600)
    return place, site


def sent(place, content):
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(600)
    line.connect(str(place))
    line.sendall(content)
    return line


def framed(content):
    return struct.pack("!i", len(content)) + content


STRANGERS = {
    "hangs up": b"",
    "falls silent": framed(b"x" * 100)[:50],
    "too long": struct.pack("!i", 1 << 20) + b"x" * 1000,
    "far too long": struct.pack("!i", -1) + struct.pack("!Q", 1 << 60) + b"x" * 1000,
    "a negative size": struct.pack("!i", -7),
} | {name: framed(content) for name, content in NONSENSE.items()}


@pytest.mark.parametrize("content", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_at_the_door_keeps_nobody_out(content, door):
    place, site = door
    with sent(place, content):
        answer = process.ask_site(place, WireMessage({"call": "hello"}))
    assert answer.fields["client"] == 2
    assert len(releases_of(site)) == 0


def test_a_pickle_at_the_door_is_not_opened(door, tmp_path):
    import os
    import pickle

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code ran"),)

    with sent(door[0], framed(pickle.dumps(Bomb()))) as line:
        said = line.makefile("rb").read()
    assert b"cannot be read" in said
    assert not (tmp_path / "code ran").exists()


def archive(**arrays):
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


def examples(like):
    return {name: np.array(like[name]) for name in ("train_x", "train_y", "test_x", "test_y")}


@pytest.mark.parametrize("trouble", ["cut", "empty", "text", "objects", "a name is missing", "columns first"])
def test_the_data_of_a_site(trouble, site_of):  # noqa: F811
    folder = site_of(CENTRAL).folder
    path = folder / "data.npz"
    with np.load(path) as found:
        good = examples(found)
    bad = {
        "cut": path.read_bytes()[:-100],
        "empty": b"",
        "text": b"train_x = 1",
        "objects": archive(**good | {"train_x": np.array([{}], object)}),
        "a name is missing": archive(train_x=good["train_x"]),
        "columns first": archive(**good | {"train_x": np.asfortranarray(good["train_x"])}),
    }
    path.write_bytes(bad[trouble])
    if trouble == "columns first":
        assert np.array_equal(Site(folder).data.train.x, good["train_x"])
        return
    with pytest.raises(InvalidInput) as caught:
        Site(folder)
    assert "\n" not in str(caught.value)
