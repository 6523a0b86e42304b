"""Answers as they come over Flower's grid: twice, from the wrong node, to nobody's question, as archives or nonsense."""

import io
import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from sightline.runtimes.flower.server_app import NodeRegistry
from sightline.runtimes.flower.transport import GridTransport, from_record, to_record
from sightline.runtimes.remote.message import WireMessage


@pytest.fixture(autouse=True)
def of_a_server(monkeypatch):
    """Flower's messages know whose they are from the process that makes them: here the server's."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


HELLO = {"client": 0, "examples": 10, "shape": [8], "kind": "vector", "classes": 3, "vocabulary": 0}


class Wire:
    """A grid whose messages stay in this process: `answers` makes the replies to everything that was pushed."""

    def __init__(self, nodes, answers):
        self.nodes, self.answers, self.pushed = nodes, answers, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            message.metadata._message_id = f"m{len(self.pushed)}"
            self.pushed.append(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, ids):
        return self.answers(self.pushed)


def reply(message, letter):
    return Message(letter if isinstance(letter, RecordDict) else to_record(letter), reply_to=message)


def value(number):
    return WireMessage({}, {"value": np.full(3, number, np.float32)})


def test_what_is_there_counts_also_when_the_time_is_over():
    found = asked(lambda pushed: [reply(message, value(1)) for message in pushed], timeout=0.0)
    assert {client: answer.arrays["value"].tolist() for client, answer in found.items()} == {0: [1, 1, 1], 1: [1, 1, 1]}


def asked(answers, clients=(0, 1), timeout=0.2):
    post = GridTransport(Wire((10, 11), answers), lambda: {0: 10, 1: 11}, timeout=timeout)
    return post.ask({client: WireMessage({"client": client}) for client in clients}, "server/1")


def test_of_an_answer_that_comes_twice_the_first_counts():
    def twice(pushed):
        first, second = pushed
        return [reply(first, value(1)), reply(first, value(2)), reply(second, value(3)), reply(first, value(4))]

    found = asked(twice)
    assert found[0].arrays["value"].tolist() == [1, 1, 1]
    assert found[1].arrays["value"].tolist() == [3, 3, 3]


def test_an_answer_of_another_node_is_not_its_answer():
    def forged(pushed):
        first, second = pushed
        false = reply(first, value(9))
        false.metadata._src_node_id = 11
        return [false, reply(second, value(3))]

    found = asked(forged)
    assert found[0] == "no answer within 0.2 seconds"
    assert found[1].arrays["value"].tolist() == [3, 3, 3]


def test_after_a_forged_answer_the_true_one_still_counts():
    def both(pushed):
        false = reply(pushed[0], value(9))
        false.metadata._src_node_id = 11
        return [false, reply(pushed[0], value(1)), reply(pushed[1], value(3))]

    assert asked(both)[0].arrays["value"].tolist() == [1, 1, 1]


def test_answers_to_questions_that_nobody_waits_for_are_not_looked_at():
    def stray(pushed):
        old = reply(pushed[0], value(9))
        old.metadata._reply_to_message_id = "of a round before"
        return [old]

    assert asked(stray) == {0: "no answer within 0.2 seconds", 1: "no answer within 0.2 seconds"}


def saved(save, *values):
    made = io.BytesIO()
    save(made, *values)
    return made.getvalue()


def record(words='{"a": 1}', data=None, stype="numpy.ndarray"):
    array = Array(dtype="float32", shape=(3,), stype=stype, data=data or saved(np.save, np.zeros(3, np.float32)))
    return RecordDict({"words": ConfigRecord({"json": words}), "arrays": ArrayRecord({"value": array})})


def lying(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


NONSENSE = {
    "an archive": record(data=saved(np.savez, np.zeros(3))),
    "a pickle": record(data=saved(lambda file, v: np.save(file, v, allow_pickle=True), np.array([{}], object))),
    "an empty file": record(data=b" "),
    "a lying header": record(data=lying("(1000000000000000,)")),
    "another format": record(stype="torch"),
    "words that are none": record(words="]"),
    "words that are a list": record(words="[1]"),
    "no number": record(words='{"a": NaN}'),
    "nested words": record(words="[" * 100_000),
    "nothing": RecordDict({}),
    "words only": RecordDict({"words": ConfigRecord({"json": "{}"})}),
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_told_in_one_line(content):
    found = asked(lambda pushed: [reply(pushed[0], content), reply(pushed[1], value(3))])
    assert found[0].startswith("sent nonsense")
    assert "\n" not in found[0]
    assert found[1].arrays["value"].tolist() == [3, 3, 3]


def test_a_good_record_is_a_letter():
    assert from_record(record()).words == json.loads('{"a": 1}')


@pytest.mark.parametrize(
    "change",
    [
        {"client": True},
        {"client": -1},
        {"client": 10**30},
        {"client": "0"},
        {"examples": 0},
        {"examples": 10**18},
        {"examples": 1.5},
        {"shape": [10**12]},
        {"shape": ["8"]},
        {"shape": [[8]]},
        {"shape": 8},
        {"shape": [-8]},
        {"shape": [1] * 50},
        {"kind": "pickle"},
        {"kind": []},
        {"classes": None},
        {"vocabulary": "many"},
        {"refused": "\x1b[2J\nsightline: done" + "x" * 10**5},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_node_that_lies_about_itself_is_turned_away_in_one_line(change):
    told = []
    wire = Wire((10,), lambda pushed: [reply(pushed[0], WireMessage(HELLO | change))])
    assert NodeRegistry(wire, told.append)() == {}
    assert len(told) == 1
    assert told[0].isprintable()
    assert len(told[0]) <= 400


def test_a_second_node_of_one_name_is_turned_away():
    told = []
    wire = Wire((10, 11), lambda pushed: [reply(message, WireMessage(HELLO)) for message in pushed])
    assert NodeRegistry(wire, told.append)() in ({0: 10}, {0: 11})
    assert "another connected node is already" in told[0]
