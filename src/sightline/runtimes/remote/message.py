"""What travels between a server and a node: words and arrays, the questions in them, and how a node reads them."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from sightline.algorithms import RULES
from sightline.config import Experiment, to_toml
from sightline.errors import InvalidInput, invalid, refuse
from sightline.mechanisms import CallId, PrivateSteps, StateRule
from sightline.topology import Channel
from sightline.training import LocalTask
from sightline.training.local_work import AS_PLANNED, client_rows

QUESTION = "question"
"""A random number that no two questions share: an answer must bring it back."""
MARKS = (QUESTION, "round", "client")

Words = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WireMessage:
    """A question or an answer: plain words (anything JSON can say) and named arrays."""

    words: Words = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The message as one safetensors file."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(arrays, {"words": json.dumps(dict(self.words), allow_nan=False)})

    def reply(self, client: int, words: Words, arrays: Arrays | None = None) -> "WireMessage":
        """An answer that says which question it answers, and whose it is."""
        mark = {"client": client} | {name: self.words.get(name) for name in MARKS if name != "client"}
        return WireMessage({**words, **mark}, arrays or {})

    def without_mark(self) -> "WireMessage":
        """The message without the number that makes it unlike all others: what is really asked."""
        return WireMessage({name: word for name, word in self.words.items() if name != QUESTION}, self.arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "WireMessage":
        """The message that `to_bytes` wrote; anything else is refused."""
        try:
            size = int.from_bytes(content[:8], "little")
            words = read_words(json.loads(content[8 : 8 + size])["__metadata__"]["words"])
            return cls(words, load(content))
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"message={len(content)} bytes: cannot be read ({type(error).__name__})") from None


def read_words(text: str) -> dict[str, Any]:
    """The words of a message; raises ValueError for anything that `to_bytes` would not write."""
    words = json.loads(text, parse_constant=_no_number)
    if not isinstance(words, dict):
        raise ValueError("words are a table")
    return words


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def pack_value(value: Mapping[str, Any], under: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Numbers and tensors apart: the words of a message, and its arrays with names that begin with `under`."""
    words = {name: part for name, part in value.items() if not isinstance(part, Tensor)}
    arrays = {f"{under}/{name}": part.numpy() for name, part in value.items() if isinstance(part, Tensor)}
    return words, arrays


def unpack_value(words: Mapping[str, Any], arrays: Arrays, under: str) -> dict[str, Any]:
    """What `packed` took apart."""
    start = f"{under}/"
    found = {name.removeprefix(start): own_tensor(array) for name, array in arrays.items() if name.startswith(start)}
    return {**words, **found}


def own_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor of its own: what came by post may be read-only memory."""
    return torch.from_numpy(np.array(array))


def experiment_digest(experiment: Experiment) -> str:
    """The name of an experiment between a server and its sites: both work it out from their own copies."""
    return hashlib.sha256(f"sightline experiment 1\n{to_toml(experiment)}".encode()).hexdigest()


LEAVING = "leaving"
"""The call by which a node does its own part of the mechanism; every other call sends a result without noise."""
CHOOSE = "choose"
"""The call by which a node chooses one of several models, privately."""
CHANNEL = ("name", "clip_factor", "noise_factor", "trusted")
"""What a member must know of the channel that asks."""
PLAN = ("clip_norm", "noise_multiplier", "rate", "steps", "expected_batch", "groups")
CALLS = (LEAVING, CHOOSE, "train", "dp_sgd", "gradient_sums", "minimise")


@dataclass(frozen=True, eq=False)
class Request:
    """What a whole cohort is asked, before it is dealt out to its members."""

    call: str
    starts: Tensor
    at: CallId
    task: LocalTask = AS_PLANNED
    memory: StateRule | None = None
    channel: Channel | None = None
    plans: Sequence[PrivateSteps] | None = None
    linear: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    gradient_tolerance: float | None = None
    candidates: Tensor | None = None
    epsilon: float | None = None
    line: int = 0

    def message_for(
        self, place: int, client: int, *, common: Mapping[str, Any], kept: Tensor | None = None
    ) -> WireMessage:
        """The question to the member at that place of the cohort."""
        terms, arrays = pack_value(self.task.select_clients(place).named_fields(), "terms")
        words = dict(common) | {
            "call": self.call,
            "client": client,
            "round": self.at.round,
            "use": self.at.use,
            "part": self.at.part,
            "line": self.line,
            "terms": terms,
            "plan": None if self.plans is None else {name: getattr(self.plans[place], name) for name in PLAN},
            "gradient_tolerance": self.gradient_tolerance,
            "epsilon": self.epsilon,
        }
        if self.channel is not None:
            words["channel"] = {name: getattr(self.channel, name) for name in CHANNEL}
        if self.memory is not None:
            rule, more = pack_value(_state_fields(self.memory), "rule")
            words["memory"] = {"rule": type(self.memory.rule).__name__, "settings": rule}
            arrays |= more
        if client in self.linear:
            arrays["linear"] = self.linear[client]
        if self.candidates is not None:
            arrays["candidates"] = self.candidates.numpy()
        if kept is not None:
            arrays["kept"] = kept.numpy()
        return WireMessage(words, arrays | {"start": client_rows(self.starts, place).numpy()})

    def site_message_for(self, place: int, client: int, *, common: Mapping[str, Any]) -> WireMessage:
        """The question to a real site, which has its own copy of all the rest: which call, and public vectors."""
        words = dict(common) | {"call": self.call, "client": client}
        words |= {"round": self.at.round, "use": self.at.use, "part": self.at.part}
        _, arrays = pack_value(self.task.select_clients(place).named_fields(), "terms")
        if self.memory is not None:
            numbers, vectors = pack_value(_state_fields(self.memory), "rule")
            arrays |= vectors | {f"rule/{name}": np.array(float(value)) for name, value in numbers.items()}
        if self.candidates is not None:
            return WireMessage(words, arrays | {"candidates": self.candidates.numpy()})
        return WireMessage(words, arrays | {"start": client_rows(self.starts, place).numpy()})


@dataclass(frozen=True, eq=False)
class Task:
    """A question as its node reads it."""

    call: str
    client: int
    at: CallId
    start: Tensor
    local_task: LocalTask
    memory: StateRule | None
    channel: Channel
    plan: Mapping[str, Any] | None
    """The numbers in which the steps differ from the client's own plan."""
    linear: NDArray[np.float64] | None
    gradient_tolerance: float | None
    kept: Tensor | None
    candidates: Tensor | None
    epsilon: float | None
    line: int

    @classmethod
    def read(cls, message: WireMessage, client: int) -> "Task":
        """The task in a message; malformed ones are refused, and memory by a rule that this node does not know."""
        words, arrays = message.words, message.arrays
        try:
            call, plan = str(words["call"]), words.get("plan")
            if call not in CALLS:
                invalid("call", call, "no such question")
            factors = dict(words.get("channel") or {"name": "server"})
            return cls(
                call=call,
                client=client,
                at=CallId(
                    _ledger_number(words["round"]), _ledger_number(words["use"]), _ledger_number(words.get("part", 0))
                ),
                start=own_tensor(arrays["start"]),
                local_task=LocalTask(**unpack_value(words["terms"], arrays, "terms")),
                memory=_read_state_rule(words.get("memory"), arrays),
                channel=Channel(members=(client,), audience=frozenset({"public"}), **factors),
                plan=None if plan is None else {name: plan[name] for name in PLAN},
                linear=np.array(arrays["linear"]) if "linear" in arrays else None,
                gradient_tolerance=words.get("gradient_tolerance"),
                kept=own_tensor(arrays["kept"]) if "kept" in arrays else None,
                candidates=own_tensor(arrays["candidates"]) if "candidates" in arrays else None,
                epsilon=words.get("epsilon"),
                line=int(words.get("line", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            invalid("question", type(error).__name__, f"is not one that this version asks ({error})")


def _ledger_number(value: Any) -> int:
    """A round, use or part: what a ledger can hold."""
    if not 0 <= int(value) < 1 << 31:
        raise ValueError("rounds, uses and parts count from 0")
    return int(value)


def _state_fields(memory: StateRule) -> dict[str, Any]:
    rule: Any = memory.rule
    if rule is None or type(rule).__name__ not in RULES:
        law = "what its clients keep is no rule that a node knows"
        refuse("--runtime", f"flower ({memory.name})", law, "use --runtime simulator")
    return {one.name: getattr(rule, one.name) for one in dataclasses.fields(rule)}


def _read_state_rule(words: Mapping[str, Any] | None, arrays: Mapping[str, NDArray[Any]]) -> StateRule | None:
    if words is None:
        return None
    name = str(words["rule"])
    if name not in RULES:
        invalid("memory", name, "no rule that this node knows", f"known: {', '.join(RULES)}")
    return RULES[name](**unpack_value(words["settings"], arrays, "rule")).memory()
