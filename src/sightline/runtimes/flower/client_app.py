"""The ClientApp: a question is answered by the site that the node's configuration names, or by a simulated client."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from sightline.runtimes.flower.transport import from_record, to_record
from sightline.runtimes.remote.message import WireMessage
from sightline.runtimes.site import process

KEPT = "sightline"
"""The record of a node's state that holds what simulated clients keep between rounds."""
SIMULATED = {"partition-id", "num-partitions"}


def answer_message(message: Message, context: Context) -> Message:
    """Answer one question, while somebody waits for the answer."""
    answer = answer_request(from_record(message.content), context, seconds=message.metadata.ttl)
    return Message(to_record(answer), reply_to=message)


def answer_request(message: WireMessage, context: Context, *, seconds: float | None = None) -> WireMessage:
    """The answer of the site behind this node: `site-socket` (a process of its own) or `site` (its folder).

    Torch is loaded where it is needed: a node starts a process for every message.
    """
    config: Mapping[str, Any] = context.node_config
    if "site-socket" in config:
        return process.ask_site(Path(str(config["site-socket"])), message, seconds=seconds)
    if "site" in config:
        from sightline.runtimes.site.site import Site

        return Site(Path(str(config["site"]))).answer(message)
    if set(config) <= SIMULATED:
        return simulated_answer(message, context)
    return WireMessage({"refused": "node-config: this node names no site; give site=FOLDER or site-socket=PATH"})


def simulated_answer(message: WireMessage, context: Context) -> WireMessage:
    """A simulated client's answer; what it keeps goes into the node's state."""
    from sightline.runtimes.remote import client_executor
    from sightline.runtimes.remote.message import own_tensor

    record = context.state[KEPT] if KEPT in context.state else ArrayRecord()
    kept = {name: own_tensor(array.numpy()) for name, array in record.items()}
    answer = client_executor.answer_simulated(message, kept)
    context.state[KEPT] = ArrayRecord({name: Array(value.numpy()) for name, value in kept.items()})
    return answer


app = ClientApp()
app.train()(answer_message)
