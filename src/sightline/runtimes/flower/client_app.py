"""The ClientApp: every question that a node gets is answered by the simulation's node, or by the site that it names."""

import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from sightline.runtimes import simulated_node
from sightline.runtimes.flower.records import from_record, to_record
from sightline.runtimes.letter import Letter, tensor

KEPT = "sightline"
"""The record of a node's state that holds what its client keeps between rounds."""


def train(message: Message, context: Context) -> Message:
    """Answer one question."""
    torch.set_num_threads(1)
    return Message(to_record(answered(from_record(message.content), context)), reply_to=message)


def answered(letter: Letter, context: Context) -> Letter:
    """The client's answer; what it keeps goes into the node's state."""
    record = context.state[KEPT] if KEPT in context.state else ArrayRecord()
    kept = {name: tensor(array.numpy()) for name, array in record.items()}
    answer = simulated_node.answer(letter, kept)
    context.state[KEPT] = ArrayRecord({name: Array(value.numpy()) for name, value in kept.items()})
    return answer


app = ClientApp()
app.train()(train)
