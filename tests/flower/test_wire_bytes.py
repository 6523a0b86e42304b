"""The bytes of messages: a node of an earlier version reads them, so their keys and their encoding must not change."""

import hashlib

import numpy as np
import pytest
import torch

from sightline.algorithms import RULES
from sightline.runtimes.remote.message import CHOOSE, LEAVING, Question, WireMessage
from sightline.topology import Channel
from sightline.training.call import (
    CallId,
    CallKind,
    ClientState,
    LocalTask,
    PrivateSteps,
    StateAccess,
    TrainingCall,
)

STARTS = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
CHANNEL = Channel("edge-1", (4, 7), frozenset({"public"}), clip_factor=2.0, noise_factor=0.5)
PLANS = (PrivateSteps(1.0, 0.5, 0.25, 4, 2.0), PrivateSteps(1.5, 0.75, 0.125, 8, 4.0, groups=2))
TASK = LocalTask(steps=3, learning_rate=0.25, proximal=0.5, anchor=torch.ones(3))
VARIATE = RULES["ControlVariate"](control=torch.ones(3), learning_rate=0.5, steps=4.0, most_steps=5.0)
STATE = StateAccess(VARIATE.memory(), ClientState(), 3)


def call_of(kind=CallKind.TRAIN, starts=STARTS, task=TASK, **more):
    return TrainingCall(kind, (4, 7), starts, CallId(2, 1, 3), task, **more)


ASKED = {
    "leaving": Question(LEAVING, call_of(state=STATE), CHANNEL, line=1),
    "dp_sgd": Question("dp_sgd", call_of(CallKind.DP_SGD, plans=PLANS)),
    "minimise": Question("minimise", call_of(linear={7: np.ones(3)}, gradient_tolerance=1e-6)),
    "choose": Question(CHOOSE, call_of(starts=STARTS[0], task=LocalTask(), candidates=STARTS), CHANNEL, epsilon=0.5),
}


def sent(name):
    asked, kept = ASKED[name], torch.full((3,), 2.0) if name == "leaving" else None
    yield asked.message_for(1, 7, common={"run": "a", "question": "q"}, kept=kept)
    yield asked.site_message_for(1, 7, common={"digest": "0" * 64, "question": "q"})
    yield WireMessage({"question": "q", "round": 2}).reply(7, {"rejected": False}, {"value": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("leaving", "accb44bd07fe06ea"),
        ("dp_sgd", "f754cb76cdda2c0d"),
        ("minimise", "85de5e590e9fe9b5"),
        ("choose", "4e87828d4c545e3f"),
    ],
)
def test_the_bytes_of_a_message_never_change(name, digest):
    content = b"".join(message.to_bytes() for message in sent(name))
    assert hashlib.sha256(content).hexdigest()[:16] == digest
    assert b'"__metadata__":{"words":' in content


def test_a_node_reads_the_question_that_was_asked():
    for name in ASKED:
        first, *_ = sent(name)
        assert WireMessage.from_bytes(first.to_bytes()).to_bytes() == first.to_bytes()
