"""Answers as they come over Flower's grid: twice, from the wrong node, to nobody's question, as archives or nonsense."""

import dataclasses
import io
import json
import random
import time
import tracemalloc

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from sightline import engine
from sightline.config import parse
from sightline.data import Client, Federation, Kind, Shard
from sightline.errors import InvalidInput, SightlineError
from sightline.runtimes.flower.apps import serve_experiment, wait_for_sites
from sightline.runtimes.flower.nodes import GridTransport, NodeRegistry, Register, from_record, read_register, to_record
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site.policy import blank_shard
from tests.flower.cases import changed, privacy


@pytest.fixture(autouse=True)
def of_a_server(monkeypatch):
    """Flower's messages know whose they are from the process that makes them: here the server's."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


HELLO = {"client": 0, "examples": 10, "shape": [8], "kind": "vector", "classes": 3, "vocabulary": 0}


def new_key():
    """A node's public key as Flower tells it, and as its owner's .pub file has it."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return public_key_to_bytes(key), line


KEYS, LINES = zip(*(new_key() for _ in range(2)), strict=True)
STRANGER = new_key()[0]
REGISTER = Register({KEYS[0]: 0, KEYS[1]: 1}, {0: 10, 1: 10})


def registry(wire, told):
    """Clients 0 and 1 of ten examples each, by their keys; what is told besides their hello's request is kept."""

    def tell(line):
        if not line.endswith("asked for its hello"):
            told.append(line)

    return NodeRegistry(wire, REGISTER, tell)


class Wire:
    """A grid whose messages stay in this process: `answers` makes the replies to everything that was pushed."""

    def __init__(self, nodes, answers, keys=None):
        self.nodes, self.answers, self.pushed = nodes, answers, []
        self.keys = keys if keys is not None else {10: KEYS[0]}

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys[node]) for node in self.nodes]

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
    "an open bracket": record(data=lying("(3,").replace(b", }", b"   ")),
    "an archive without members": record(data=b"PK\x03\x04" + bytes(60)),
    "columns first": record(data=saved(np.save, np.zeros((2, 3), np.float32, order="F"))),
    "a byte too many": record(data=saved(np.save, np.zeros(3, np.float32)) + b"x"),
    "a byte too few": record(data=saved(np.save, np.zeros(3, np.float32))[:-1]),
    "no array": record(data=saved(np.save, np.array(["text"]))),
    "infinity": record(words='{"question": 1e999}'),
    "a name twice": record(words='{"round": 1, "round": 2}'),
    "half a character": record(words='{"a": "\\ud800"}'),
    "a long number": record(words='{"a": ' + "9" * 30 + "}"),
    "long words": record(words='{"a": "' + "x" * (1 << 16) + '"}'),
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


def test_no_damaged_reply_ends_the_run():
    """numpy.load let tokenize.TokenError and zipfile.BadZipFile through: one node ended the run of three."""
    dice, good = random.Random(0), saved(np.save, np.zeros(3, np.float32))
    pieces = [b"(", b"'", b"PK\x03\x04", b"9" * 30, b"\n", b"True", b"|O", b""]
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(bad))
            bad[place : place + dice.randint(0, 9)] = dice.choice([*pieces, bytes([dice.randrange(256)])])
        try:
            assert from_record(record(data=bytes(bad) or b" ")).arrays["value"].dtype in (
                np.float32,
                np.float64,
                np.int64,
            )
        except InvalidInput as error:
            assert "\n" not in str(error)


class Unpacking(Wire):
    """Flower's grid: the replies of one request are unpacked together, and what is pulled is gone."""

    def pull_messages(self, ids):
        wanted = [one for one in self.answers(self.pushed) if one.metadata.reply_to_message_id in ids]
        if any(one.metadata.reply_to_message_id == "m0" for one in wanted):
            raise KeyError("an object of a type that Flower does not know")
        return wanted


def test_a_reply_that_flower_cannot_unpack_costs_its_sender_only():
    wire = Unpacking(
        (10, 11), lambda pushed: [reply(message, value(3)) for message in pushed], dict(enumerate(KEYS, 10))
    )
    post = GridTransport(wire, lambda: {0: 10, 1: 11}, timeout=5)
    found = post.ask({client: WireMessage({"client": client}) for client in (0, 1)}, "server/1")
    assert found[0] == "sent nonsense: its reply cannot be unpacked"
    assert found[1].arrays["value"].tolist() == [3, 3, 3]


def test_a_superlink_that_is_gone_ends_the_run():
    """Else everybody would be left out of round after round, each of which spends privacy."""
    wire = Unpacking((10,), lambda pushed: [reply(message, value(3)) for message in pushed])
    wire.get_nodes = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        GridTransport(wire, lambda: {0: 10}, timeout=5).ask({0: WireMessage({"client": 0})}, "server/1")


def test_a_reply_that_claims_to_be_the_answer_to_another_question_takes_nothing_away():
    """The metadata inside a reply are its sender's words: node 11 answers node 10's message, as node 10."""

    def forged(pushed):
        false = reply(pushed[1], value(9))
        false.metadata._reply_to_message_id, false.metadata._src_node_id = "m0", 10
        return [false]

    class Asked(Wire):
        def pull_messages(self, ids):
            return forged(self.pushed) if "m1" in ids else [reply(self.pushed[0], value(1))]

    post = GridTransport(Asked((11, 10), None), lambda: {1: 11, 0: 10}, timeout=0.2)
    found = post.ask({0: WireMessage({"client": 0}), 1: WireMessage({"client": 1})}, "server/1")
    assert found[0].arrays["value"].tolist() == [1, 1, 1]
    assert found[1] == "no answer within 0.2 seconds"


def test_a_good_record_is_a_letter():
    assert from_record(record()).fields == json.loads('{"a": 1}')


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
        {"shape": [3, 10**4, 10**4]},
        {"classes": 10**8},
        {"kind": "pickle"},
        {"kind": []},
        {"classes": None},
        {"vocabulary": "many"},
        {"refused": "\x1b[2J\nsightline: done" + "x" * 10**5},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_node_that_lies_about_itself_is_turned_away_in_one_line(change):
    told, wire = [], Wire((10,), lambda pushed: [reply(pushed[0], WireMessage(HELLO | change))])
    assert registry(wire, told)() == {}
    assert len(told) == 1
    assert told[0].isprintable()
    assert len(told[0]) <= 400


def test_a_second_node_of_one_key_is_turned_away():
    told = []
    wire = Wire(
        (10, 11),
        lambda pushed: [reply(message, WireMessage(HELLO)) for message in pushed],
        keys={10: KEYS[0], 11: KEYS[0]},
    )
    assert registry(wire, told)() in ({0: 10}, {0: 11})
    assert "another connected node is that client already" in told[0]


def test_a_node_cannot_take_the_number_of_another_nor_replay_its_hello():
    said = WireMessage(HELLO)  # the very record that client 0's node sent

    def replayed(pushed):
        return [reply(message, said) for message in pushed]

    told = []
    found = registry(Wire((11, 10), replayed, keys={10: KEYS[0], 11: KEYS[1]}), told)()
    assert found == {0: 10}
    assert told == ["node 11: turned away, it says that it is client-0, but its key belongs to client-1"]


def test_a_node_that_was_first_does_not_keep_the_place_of_another():
    nodes = {11: KEYS[1]}
    wire = Wire(nodes, lambda pushed: [reply(message, WireMessage(HELLO)) for message in pushed], keys=nodes)
    ask = registry(wire, [])
    assert ask() == {}
    nodes[10] = KEYS[0]
    assert ask() == {0: 10}


@pytest.mark.parametrize("key", [STRANGER, b"", b"\x00" * 10**5])
def test_a_node_without_a_registered_key_is_not_asked_anything(key):
    told, wire = [], Wire((10,), lambda pushed: [], keys={10: key})
    ask = registry(wire, told)
    assert (ask(), ask()) == ({}, {})
    assert wire.pushed == []
    assert told == ["node 10: turned away, its key is not in the register"]


@pytest.mark.parametrize("examples", [1, 9, 11, 10**8])
def test_the_size_of_a_site_is_what_the_register_says(examples):
    told = []
    wire = Wire((10,), lambda pushed: [reply(pushed[0], WireMessage(HELLO | {"examples": examples}))])
    assert registry(wire, told)() == {}
    assert told == [f"node 10: turned away, it says {examples} examples, but the register says 10"]


def test_the_output_names_the_sites_that_are_waited_for(monkeypatch):
    """`flwr run --stream` printed nothing for the 300 s of `wait`."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    nodes, told = {}, []

    def hello(pushed):
        clients = {10: 0, 11: 1}
        return [reply(one, WireMessage(HELLO | {"client": clients[one.metadata.dst_node_id]})) for one in pushed]

    roll = NodeRegistry(Wire(nodes, hello, keys=nodes), REGISTER, told.append)

    def roll_of_late_nodes():
        nodes.update({10: KEYS[0]} if clock[0] >= 8 else {})
        nodes.update({11: KEYS[1]} if clock[0] >= 100 else {})
        return roll()

    wait_for_sites(roll_of_late_nodes, 2, seconds=300.0, say=told.append)
    assert told[:3] == [
        "waiting for client-0, client-1: 0 of 2 sites joined (0 of 300 s)",
        "waiting for client-0, client-1: 0 of 2 sites joined (5 of 300 s)",
        "node 10: connected with the key of client-0, asked for its hello",
    ]
    assert told[3] == "waiting for client-1: 1 of 2 sites joined (8 of 300 s)"
    assert sum("waiting for client-1:" in line for line in told) == 19  # every five seconds until 100 s
    assert told[-1] == "all 2 sites joined"


def test_the_end_of_the_wait_names_who_did_not_join(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(SightlineError) as caught:
        wait_for_sites(dict, 8, seconds=0.0, say=lambda line: None)
    assert str(caught.value).endswith("client-3, client-4 and 3 more did not join in 0 s")
    assert str(caught.value).startswith("sites=0 of 8: client-0, ")


def test_a_node_whose_key_changes_is_not_asked_any_more():
    keys = {10: KEYS[0]}
    ask = registry(Wire((10,), lambda pushed: [reply(pushed[0], WireMessage(HELLO))], keys=keys), [])
    assert ask() == {0: 10}
    keys[10] = STRANGER
    assert ask() == {}


def test_an_answer_of_too_many_bytes_is_not_unpacked():
    post = GridTransport(
        Wire((10,), lambda pushed: [reply(pushed[0], value(1))]), lambda: {0: 10}, timeout=5, largest=50
    )
    assert post.ask({0: WireMessage({"client": 0})}, "server/1")[0].endswith("bytes; an answer has at most 50")


def written(tmp_path, *sites):
    path = tmp_path / "register.toml"
    path.write_text(
        tomli_w.dumps({"site": [dict(zip(("client", "key", "examples"), site, strict=True)) for site in sites]})
    )
    return str(path)


def test_a_register_is_read_as_flower_tells_keys(tmp_path):
    register = read_register(written(tmp_path, (0, LINES[0], 10), (1, LINES[1] + " site-1", 20)), 2)
    assert register == Register({KEYS[0]: 0, KEYS[1]: 1}, {0: 10, 1: 20})


@pytest.mark.parametrize(
    ("sites", "law"),
    [
        ([(0, LINES[0], 10)], "client-1 is not in it, and the experiment has 2 clients"),
        ([(0, LINES[0], 10), (1, LINES[0], 10)], "a client or a key occurs twice"),
        ([(0, LINES[0], 10), (0, LINES[1], 10)], "a client or a key occurs twice"),
        ([(0, "", 10)], "the key of client-0 is not an OpenSSH public key; paste the line of its .pub file"),
        ([(0, LINES[0], 10**9)], "less than or equal to 100000000"),
        ([(0, LINES[0], 0)], "greater than or equal to 1"),
    ],
)
def test_a_register_with_a_mistake_is_refused_in_one_line(sites, law, tmp_path):
    with pytest.raises(InvalidInput, match=law) as caught:
        read_register(written(tmp_path, *sites), 2)
    assert "\n" not in str(caught.value)


def test_without_a_register_real_sites_are_refused(tmp_path):
    experiment = parse(changed(privacy=privacy("client", "client", noise_multiplier=2.0)))
    with pytest.raises(InvalidInput, match=r"register=.*give register=FILE in --run-config"):
        serve_experiment(experiment, Wire((), None), {"sites": True, "out": str(tmp_path / "run")}, say=print)
    assert not (tmp_path / "run").exists()


def test_a_hundred_million_examples_elsewhere_take_no_memory(tmp_path):
    like = Shard(np.empty((0, 784), np.float32), np.empty(0, np.int64))
    tracemalloc.start()
    try:
        clients = tuple(Client(blank_shard(like, 10**8), like) for _ in range(6))
        federation = Federation("sites", clients, like, 3, Kind.VECTOR, elsewhere=True)
        experiment = parse(changed(privacy=privacy("client", "client", noise_multiplier=2.0)))
        engine.calibrate_noise(engine.build_experiment(experiment, federation=federation), real_nodes=True)
        other = dataclasses.replace(federation, clients=(*clients[:-1], Client(blank_shard(like, 10**8 - 1), like)))
        assert federation.digest() != other.digest()
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
