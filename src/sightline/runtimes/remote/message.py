"""Wire messages between a server and a node: text fields and arrays, and the questions encoded in them."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from sightline.algorithms import RULES
from sightline.config import Experiment, to_toml
from sightline.errors import InvalidInput, invalid, refuse
from sightline.topology import Channel
from sightline.training.call import CallId, CallKind, LocalTask, StateRule, TrainingCall
from sightline.training.local_work import client_rows

# The random number is not part of the question itself: a site recognises a repeated question without it.
QUESTION = "question"
"""Field for a random number that no two questions share; an answer must return it."""
MARKS = (QUESTION, "round", "client")
LARGEST_FIELDS = 1 << 24
"""Size limit, in bytes, of the fields of a message within one run: an experiment with its whole topology fits."""
LARGEST_SITE_FIELDS = 1 << 16
"""Size limit, in bytes, of the fields of a question to a real site, and of any answer."""
DEEPEST = 32
"""Levels of nesting in the fields."""

Fields = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WireMessage:
    """A question or an answer: fields (anything JSON can express) and named arrays."""

    fields: Fields = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the message as one safetensors file."""
        arrays = {name: np.asarray(array, order="C") for name, array in self.arrays.items()}
        return save(arrays, {"words": json.dumps(dict(self.fields), allow_nan=False)})

    def reply(self, client: int, fields: Fields, arrays: Arrays | None = None) -> "WireMessage":
        """Return an answer that names its question and its client."""
        mark = {"client": client} | {name: self.fields.get(name) for name in MARKS if name != "client"}
        return WireMessage({**fields, **mark}, arrays or {})

    @classmethod
    def from_bytes(cls, content: bytes | bytearray, *, largest_fields: int = LARGEST_FIELDS) -> "WireMessage":
        """Return the message that `to_bytes` wrote, with a header of at most `largest_fields` bytes.

        Guarantees: any other bytes raise InvalidInput and nothing else.
        """
        try:
            return cls(*_read_safetensors(content, largest_fields))
        except Exception as error:
            raise InvalidInput(f"message={len(content)} bytes: cannot be read ({type(error).__name__})") from None


def read_fields(text: str, *, most: int = LARGEST_FIELDS) -> dict[str, Any]:
    """Return the fields of a message.

    Raise ValueError or RecursionError unless they are one JSON object of at most `most` characters that `json.dumps`
    can write again: unique names, finite numbers, 64-bit whole numbers, text without lone surrogates, 32 levels.
    """
    if len(text) > most:
        raise ValueError(f"at most {most} characters of fields are read")
    fields = json.loads(
        text, parse_constant=_no_number, parse_float=_finite, parse_int=_small, object_pairs_hook=_named_once
    )
    if not isinstance(fields, dict):
        raise ValueError("the fields are not a JSON object")
    _check_values(fields, DEEPEST)
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is not finite")
    return number


def _small(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise ValueError("a whole number has 64 bits")
    return number


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _check_values(value: Any, levels: int) -> None:
    """Raise ValueError for deeper nesting and for lone surrogates, which no file can hold."""
    if not levels:
        raise ValueError(f"at most {DEEPEST} levels")
    if isinstance(value, str):
        # Encoding raises for lone surrogates.
        value.encode()
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        _check_values(part, levels - 1)


def _read_safetensors(
    content: bytes | bytearray, largest_fields: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return fields and arrays; the arrays are contiguous, in any order, and fill the file."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, largest_fields):
        raise ValueError("the header is longer than the file, or than a header may be")
    header = read_fields(content[8 : 8 + size].decode(), most=largest_fields)
    fields = read_fields(header.pop("__metadata__")["words"], most=largest_fields)
    arrays, end = {}, 8 + size
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        # Arrays must follow each other without gaps or overlaps, so that every byte of a message is accounted for.
        if set(entry) != {"dtype", "shape", "data_offsets"} or not end - 8 - size == begin <= stop:
            raise ValueError("not an array of a message")
        arrays[name] = make_array(DTYPES[entry["dtype"]], entry["shape"], memoryview(content)[end : 8 + size + stop])
        end = 8 + size + stop
    if end != len(content):
        raise ValueError("there are bytes that belong to no array")
    return fields, arrays


DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
"""The number formats of a message, as safetensors and NumPy name them."""
MOST_AXES = 8
MOST_NUMBERS = 1 << 40
_SIZE = rb"(?:0|[1-9]\d*)"
NPY = re.compile(
    rb"\x93NUMPY\x01\x00(..)(\{'descr': '(<f4|<f8|<i8)', 'fortran_order': False, "
    rb"'shape': \((?:(%b),|(%b(?:, %b)+))?\), \} *\n)" % (_SIZE, _SIZE, _SIZE),
    re.DOTALL,
)
"""The head of a .npy file of version 1.0, as `numpy.save` writes it for numbers in C order."""
LONGEST_HEAD = 512


def read_npy(content: bytes) -> NDArray[Any]:
    """Return the array in a .npy file of version 1.0, in C order, with a number format in DTYPES.

    Guarantees: any other bytes raise ValueError and nothing else; no memory is taken beyond the bytes given.
    """
    # NumPy's own reader evaluates the head as Python literals and raises more than it documents.
    result = NPY.match(content[:LONGEST_HEAD])
    if result is None or int.from_bytes(result[1], "little") != len(result[2]):
        raise ValueError("not a .npy file of numbers in C order")
    sizes = (result[4] or result[5] or b"").split(b", ")
    shape = [_small(size.decode()) for size in sizes if size]
    return make_array(result[3].decode(), shape, memoryview(content)[result.end() :])


def make_array(dtype: str, shape: Sequence[int], content: bytes | memoryview) -> NDArray[Any]:
    """Return numbers as an array; raise ValueError unless the bytes match the shape exactly."""
    if len(shape) > MOST_AXES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("not the shape of an array")
    # Sizes of zero count as one, so that a zero cannot hide the overflow of the others.
    if math.prod(size or 1 for size in shape) > MOST_NUMBERS:
        raise ValueError("an array of too many numbers")
    if math.prod(shape) * np.dtype(dtype).itemsize != len(content):
        raise ValueError("not as many bytes as the shape says")
    return np.frombuffer(content, dtype).reshape(tuple(shape))


SITE_TEXTS = {"call": "[a-z_]{1,32}", "digest": "[0-9a-f]{64}", "run": "[0-9A-Za-z._-]{0,64}", QUESTION: "[!-~]{0,64}"}
SITE_NUMBERS = ("round", "use", "part")
TERMS = "terms"
"""Field for the numbers of a task where calls come in any order: they say which approved kind of call is meant."""


def read_site_question(message: WireMessage) -> WireMessage:
    """Return a question with only the fields that a real site reads; raise InvalidInput for a wrong type or length."""
    fields = {name: message.fields[name] for name in (*SITE_TEXTS, *SITE_NUMBERS) if name in message.fields}
    for name, value in fields.items():
        if name in SITE_NUMBERS and not (type(value) is int and 0 <= value < 1 << 31):
            invalid(name, value, "is a whole number from 0 to 2147483647")
        if name in SITE_TEXTS and not (isinstance(value, str) and re.fullmatch(SITE_TEXTS[name], value)):
            invalid(name, value, f"is text that matches {SITE_TEXTS[name]}")
    if isinstance(message.fields.get(TERMS), dict):
        fields[TERMS] = message.fields[TERMS]
    return WireMessage(fields, message.arrays)


def pack_value(value: Mapping[str, Any], under: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Split a value into the fields of a message and its arrays, whose names begin with `under`."""
    fields = {name: part for name, part in value.items() if not isinstance(part, Tensor)}
    arrays = {f"{under}/{name}": part.numpy() for name, part in value.items() if isinstance(part, Tensor)}
    return fields, arrays


def unpack_value(fields: Mapping[str, Any], arrays: Arrays, under: str) -> dict[str, Any]:
    """Return the value that `pack_value` split."""
    start = f"{under}/"
    result = {name.removeprefix(start): own_tensor(array) for name, array in arrays.items() if name.startswith(start)}
    return {**fields, **result}


def own_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor with its own memory: the buffer of a message may be read-only."""
    return torch.from_numpy(np.array(array))


def comes_in_any_order(experiment: Experiment) -> bool:
    """Return whether released values decide which call comes next; sites then approve counts of calls, not a list."""
    return experiment.topology.kind == "clusters"


def experiment_digest(experiment: Experiment) -> str:
    """Return the digest by which a server and its sites name an experiment, each computed from its own copy."""
    return hashlib.sha256(f"sightline experiment 1\n{to_toml(experiment)}".encode()).hexdigest()


LEAVING = "leaving"
"""The call by which a node does its own part of the mechanism; every other call sends a result without noise."""
CHOOSE = "choose"
"""The call by which a node privately chooses one of several models."""
CHANNEL = ("name", "clip_factor", "noise_factor", "trusted")
"""The fields of a channel that a member must know."""
PLAN = ("clip_norm", "noise_multiplier", "rate", "steps", "expected_batch", "groups")
QUESTIONS = (LEAVING, CHOOSE, *(kind.value for kind in CallKind if kind is not CallKind.RIGHT_ANSWERS))
"""What a node may be asked. Counts of right answers do not leave it: a node chooses by itself."""


@dataclass(frozen=True, eq=False)
class Question:
    """A training call as its nodes are asked it, before it is split into one message per member."""

    name: str
    """LEAVING, CHOOSE, or the kind of the call."""
    call: TrainingCall
    channel: Channel | None = None
    line: int = 0
    epsilon: float | None = None

    @property
    def _rule(self) -> StateRule | None:
        return None if self.call.state is None else self.call.state.memory

    def message_for(
        self, index: int, client: int, *, common: Mapping[str, Any], kept: Tensor | None = None
    ) -> WireMessage:
        """Return the question to the member at that position of the cohort."""
        call = self.call
        terms, arrays = pack_value(call.task.select_clients(index).named_fields(), "terms")
        fields = dict(common) | {
            "call": self.name,
            "client": client,
            "round": call.at.round,
            "use": call.at.use,
            "part": call.at.part,
            "line": self.line,
            "terms": terms,
            "plan": {name: getattr(call.plans[index], name) for name in PLAN} if call.plans else None,
            "gradient_tolerance": call.gradient_tolerance or None,
            "epsilon": self.epsilon,
        }
        if self.channel is not None:
            fields["channel"] = {name: getattr(self.channel, name) for name in CHANNEL}
        if self._rule is not None:
            rule, more = pack_value(_state_fields(self._rule), "rule")
            fields["memory"] = {"rule": type(self._rule.rule).__name__, "settings": rule}
            arrays |= more
        if client in call.linear:
            arrays["linear"] = call.linear[client]
        if call.candidates is not None:
            arrays["candidates"] = call.candidates.numpy()
        if kept is not None:
            arrays["kept"] = kept.numpy()
        return WireMessage(fields, arrays | {"start": client_rows(call.starts, index).numpy()})

    def site_message_for(
        self, index: int, client: int, *, common: Mapping[str, Any], any_order: bool = False
    ) -> WireMessage:
        """Return the question to a real site, which has its own copy of the plan: which call, and public vectors."""
        call = self.call
        fields = dict(common) | {"call": self.name, "client": client}
        fields |= {"round": call.at.round, "use": call.at.use, "part": call.at.part}
        terms, arrays = pack_value(call.task.select_clients(index).named_fields(), "terms")
        if any_order:
            fields[TERMS] = terms
        if self._rule is not None:
            numbers, vectors = pack_value(_state_fields(self._rule), "rule")
            arrays |= vectors | {f"rule/{name}": np.array(float(value)) for name, value in numbers.items()}
        if call.candidates is not None:
            return WireMessage(fields, arrays | {"candidates": call.candidates.numpy()})
        return WireMessage(fields, arrays | {"start": client_rows(call.starts, index).numpy()})


@dataclass(frozen=True, eq=False)
class NodeTask:
    """A question as its node reads it: a training call to one client, and the facts of its release."""

    name: str
    """LEAVING, CHOOSE, or the kind of the call."""
    call: TrainingCall
    """The call without private steps and state: the node adds its own."""
    channel: Channel
    memory: StateRule | None = None
    plan: Mapping[str, Any] | None = None
    """The numbers in which the steps differ from the client's own plan."""
    kept: Tensor | None = None
    epsilon: float = 0.0
    line: int = 0

    @property
    def client(self) -> int:
        """Return the client that is asked."""
        return self.call.cohort[0]

    @classmethod
    def read(cls, message: WireMessage, client: int) -> "NodeTask":
        """Return the task in a message; raise InvalidInput if it is malformed or names an unknown state rule."""
        fields, arrays = message.fields, message.arrays
        try:
            name, plan = str(fields["call"]), fields.get("plan")
            if name not in QUESTIONS:
                invalid("call", name, "this version has no such question", f"known: {', '.join(QUESTIONS)}")
            factors = dict(fields.get("channel") or {"name": "server"})
            at = CallId(*map(_ledger_number, (fields["round"], fields["use"], fields.get("part", 0))))
            call = TrainingCall(
                call_kind(name),
                (client,),
                own_tensor(arrays["start"]),
                at,
                LocalTask(**unpack_value(fields["terms"], arrays, "terms")),
                linear={client: np.array(arrays["linear"])} if "linear" in arrays else {},
                gradient_tolerance=float(fields.get("gradient_tolerance") or 0.0),
                candidates=own_tensor(arrays["candidates"]) if "candidates" in arrays else None,
            )
            return cls(
                name,
                call,
                Channel(members=(client,), audience=frozenset({"public"}), **factors),
                _read_state_rule(fields.get("memory"), arrays),
                plan=None if plan is None else {name: plan[name] for name in PLAN},
                kept=own_tensor(arrays["kept"]) if "kept" in arrays else None,
                epsilon=float(fields.get("epsilon") or 0.0),
                line=int(fields.get("line", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            invalid("question", type(error).__name__, f"this version cannot read it ({error})")


def call_kind(name: str) -> CallKind:
    """Return the kind of the training call behind a question."""
    return {LEAVING: CallKind.TRAIN, CHOOSE: CallKind.RIGHT_ANSWERS}.get(name) or CallKind(name)


def _ledger_number(value: Any) -> int:
    """Return a round, use or part in the range that a ledger can hold."""
    if not 0 <= int(value) < 1 << 31:
        raise ValueError("rounds, uses and parts count from 0")
    return int(value)


def _state_fields(memory: StateRule) -> dict[str, Any]:
    # Rules travel by name with their numbers. Functions never do: a node that runs code it is sent enforces nothing.
    rule: Any = memory.rule
    if rule is None or type(rule).__name__ not in RULES:
        reason = "nodes do not know the rule for the state that its clients keep"
        refuse("--runtime", f"flower ({memory.name})", reason, "use --runtime simulator")
    return {part.name: getattr(rule, part.name) for part in dataclasses.fields(rule)}


def _read_state_rule(fields: Mapping[str, Any] | None, arrays: Mapping[str, NDArray[Any]]) -> StateRule | None:
    if fields is None:
        return None
    name = str(fields["rule"])
    if name not in RULES:
        invalid("memory", name, "this node does not know this state rule", f"known: {', '.join(RULES)}")
    return RULES[name](**unpack_value(fields["settings"], arrays, "rule")).memory()
