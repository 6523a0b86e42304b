"""Client executor for remote clients: asks them, checks their answers, and leaves out those that fail."""

import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sightline import mkl
from sightline.config import Experiment, to_toml
from sightline.data.load import data_root
from sightline.engine.build import BuiltExperiment
from sightline.errors import SightlineError, printable, refuse
from sightline.mechanisms import (
    ChannelMechanism,
    ClientOutput,
    ModelChoice,
    NoisedBy,
    ReleaseContext,
    Updates,
)
from sightline.plugins import TRANSPORT, locate_plugin
from sightline.runtimes.remote.message import (
    CHOOSE,
    LEAVING,
    MARKS,
    QUESTION,
    Question,
    WireMessage,
    comes_in_any_order,
    experiment_digest,
    own_tensor,
)
from sightline.topology import client_name
from sightline.training.call import Block, CallId, CallKind, StateAccess, TrainingCall
from sightline.training.local_work import BY_RULE

LARGEST_NORM = 1e6
"""A vector of larger norm is not a model update, whatever the mechanism."""
NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))
"""Accepted number formats, in this machine's byte order."""


@dataclass(frozen=True)
class ExpectedAnswer:
    """The expected form of an answer: a vector of `numbers` numbers and at most this norm."""

    numbers: int
    largest: float = LARGEST_NORM

    def wrong_with(self, answer: WireMessage, *, simulated: bool) -> str:
        """Return why an answer cannot be used, or ""; the values of simulated clients are not limited."""
        if "refused" in answer.fields:
            return f"refused: {answer.fields['refused']}"
        value = answer.arrays.get("value")
        if value is None or value.shape != (self.numbers,) or value.dtype not in NUMBERS:
            looks = "nothing" if value is None else f"{value.dtype} {value.shape}"
            return f"sent {looks} where ({self.numbers},) numbers were asked for"
        norm = torch.linalg.vector_norm(own_tensor(value), dtype=torch.float64).item()
        if simulated or norm <= self.largest:
            return ""
        if not math.isfinite(norm):
            return "sent numbers that are not finite"
        return f"sent a vector of norm {norm:.3g}, at most {self.largest:.3g} is possible"


def why_misdirected(answer: WireMessage, message: WireMessage) -> str:
    """Return why an answer does not belong to a question, or ""; a refusal always belongs.

    Only the client that was asked knows the random number of a question: an answer to an earlier round, to another
    client, or from a node that was not asked does not have it.
    """
    given, asked = ({name: fields.get(name) for name in MARKS} for fields in (answer.fields, message.fields))
    if given == asked or "refused" in answer.fields:
        return ""
    if given["client"] != asked["client"]:
        return f"the answer is signed as client {given['client']}"
    if given["round"] != asked["round"]:
        return f"answers a question of round {given['round']}"
    return "answers another question than the one that was asked"


def expected_of(built: BuiltExperiment, mechanism: ChannelMechanism, context: ReleaseContext) -> ExpectedAnswer:
    """Return the expected form of a member's part of the mechanism, bounded by the mechanism if it has a bound."""
    dimension = built.model.parameters
    largest = mechanism.largest_output(context, dimension=dimension, splitter=built.splitter)
    return ExpectedAnswer(dimension) if largest is None else ExpectedAnswer(dimension, largest)


ROWS_BYTES = 1 << 27
"""Upper limit for the memory that the answers of one turn take."""
LONGEST_REASON = 400
PATIENCE = 3
"""Number of consecutive requests without any usable answer after which the run stops."""


class NobodyAnswers(SightlineError):
    """Raised when no client answers for several requests: stopping is better than spending privacy on nothing."""


class Transport(Protocol):
    """Carries questions to nodes and returns their answers."""

    def ask(self, messages: Mapping[int, WireMessage], group: str) -> Mapping[int, WireMessage | str]:
        """Return client -> its answer, or a short reason why there is none, within the configured time."""

    def close(self) -> None:
        """Close the connection."""


def refuse_a_known_seed(experiment: Experiment) -> None:
    """Raise Refused if the server's noise would come from the seed: real sites have the experiment with its seed.

    If every member adds its own noise, the server draws nothing that a guarantee rests on.
    """
    privacy = experiment.privacy
    if privacy.noise_source == "seed" and privacy.unit != "none" and privacy.place != "client":
        reason = "every site knows the seed, so it could subtract the server's noise"
        refuse("privacy.noise_source", "seed", reason, 'use noise_source = "os", or where = "client"')


OpenTransport = Callable[[BuiltExperiment, Path], Transport]
"""(setting, run directory) -> the transport to simulated clients."""


def find_transport(name: str, built_in: Collection[str]) -> OpenTransport | None:
    """Return a plugin transport by its name, or None for a built-in runtime."""
    plugin = locate_plugin(TRANSPORT, name, built_in)
    if plugin is None:
        return None
    result = plugin.load_object()
    if not callable(result):
        plugin.refuse_type(result, "a function (setting, run directory) -> transport")
    return result  # type: ignore[no-any-return]


def simulated_clients(built: BuiltExperiment, directory: Path, post: Transport) -> "RemoteClients":
    """Return an executor whose clients run elsewhere by `client_executor.answer_simulated`, with equal bits."""
    fields = {"folder": str(directory.resolve()), "data": str(data_root(None).resolve())}
    if built.paths != BY_RULE:
        fields["paths"] = json.dumps(built.paths.describe())
    return RemoteClients(built, post, fields=fields, simulated=True)


class RemoteClients:
    """Client executor whose clients are reached through a `Transport`.

    Guarantees: answers are used in the order of the cohort, whatever order they arrive in. An answer that has the wrong
    shape, is not finite or is too large, or that belongs to another question or client, is left out, and `tell` is
    given the reason. With `simulated` clients any such answer stops the run, and the clients' states come back for the
    checkpoint. Real clients are told only which call of the approved experiment is meant and its public vectors; what
    they claim to keep is ignored.
    """

    def __init__(
        self,
        built: BuiltExperiment,
        post: Transport,
        *,
        fields: Mapping[str, Any],
        simulated: bool,
        tell: Callable[[int, int, str], None] | None = None,
        tell_answer: Callable[[int, int], None] = lambda round, client: None,
    ) -> None:
        # As in the simulator: the server's own sums must have the same bits.
        torch.set_num_threads(1)
        mkl.warn_unless_reproducible()
        self.dimension = built.model.parameters
        self.sizes = built.federation.sizes.tolist()
        self._built, self._post, self._simulated = built, post, simulated
        self._tell, self._tell_answer = tell, tell_answer
        self._sends_tasks = simulated
        self._fields = dict(fields)
        self._common = self._fields | {"experiment": to_toml(built.experiment)}
        self._digest = experiment_digest(built.experiment)
        self._known: set[tuple[int, str]] = set()
        self._in_vain = 0

    @property
    def nodes(self) -> "RemoteClients":
        """Return self: the members do their part of a mechanism themselves."""
        return self

    @property
    def steadfast(self) -> bool:
        """Return whether every client answers or the run stops, as in a simulation."""
        return self._simulated

    def close(self) -> None:
        """Close the transport."""
        self._post.close()

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield the outputs of the members' own part of the mechanism."""
        question = Question(LEAVING, updates.make_call(CallKind.TRAIN), context.channel, context.line)
        mechanism, members = self._built.mechanism.at(context.channel), updates.cohort.members
        noise = mechanism.noise_multipliers(members) if mechanism.noised_by is NoisedBy.CLIENT else None
        for client, answer in self._usable_answers(question, expected_of(self._built, mechanism, context), noise):
            yield ClientOutput(client, own_tensor(answer.arrays["value"]), bool(answer.fields.get("rejected", False)))

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return the model that each member chose by itself."""
        call = ballot.make_call(CallId(context.time, context.use))
        question = Question(CHOOSE, call, context.channel, epsilon=ballot.epsilon)
        answers = self._usable_answers(question, ExpectedAnswer(1, len(ballot.candidates) - 1.0))
        return {client: max(0, round(float(answer.arrays["value"][0]))) for client, answer in answers}

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield results sent without noise; nodes draw parts of models themselves, and count no right answers."""
        if call.kind is CallKind.RIGHT_ANSWERS:
            reason = "counts of right answers do not leave a node"
            refuse("right_answers", len(call.cohort), reason, "let the nodes choose")
        answers = self._usable_answers(Question(call.kind.value, call), ExpectedAnswer(self.dimension))
        return (([client], own_tensor(answer.arrays["value"])[None]) for client, answer in answers)

    def _usable_answers(
        self, question: Question, expected: ExpectedAnswer, noise: Mapping[int, float] | None = None
    ) -> Iterator[tuple[int, WireMessage]]:
        """Yield the usable answers in the order of the cohort."""
        cohort, at, state = question.call.cohort, question.call.at, question.call.state
        turn, answered = max(1, ROWS_BYTES // (4 * self.dimension)), 0
        for first in range(0, len(cohort), turn):
            indices = range(first, min(first + turn, len(cohort)))
            messages = {cohort[index]: self._message_for(question, index, noise) for index in indices}
            answers = self._post.ask(messages, f"{question.channel.name if question.channel else 'server'}/{at.round}")
            for client, message in messages.items():
                answer = answers.get(client, "no answer")
                why = answer if isinstance(answer, str) else self._why_wrong(expected, answer, message)
                if why or isinstance(answer, str):
                    # The release was claimed for everybody before anyone was asked, so the ledger stays an upper bound.
                    self._left_out(at.round, client, why)
                    continue
                answered += 1
                self._tell_answer(at.round, client)
                self._keep_state(client, answer, state)
                yield client, answer
        self._stop_if_nobody_answers(answered, len(cohort))

    def _why_wrong(self, expected: ExpectedAnswer, answer: WireMessage, message: WireMessage) -> str:
        return why_misdirected(answer, message) or expected.wrong_with(answer, simulated=self._simulated)

    def _message_for(self, question: Question, index: int, noise: Mapping[int, float] | None) -> WireMessage:
        client = question.call.cohort[index]
        if not self._sends_tasks:
            # A real site is sent no settings: it has its own approved copy, and would not believe others.
            fields = {"digest": self._digest, "run": self._fields.get("run", ""), QUESTION: secrets.token_hex(16)}
            any_order = comes_in_any_order(self._built.experiment)
            return question.site_message_for(index, client, common=fields, any_order=any_order)
        common = self._common | {"noise": (self._built.multipliers if noise is None else noise).get(client)}
        common[QUESTION] = secrets.token_hex(16)
        kept = self._restore_state(client, question.call.state)
        return question.message_for(index, client, common=common, kept=kept)

    def _restore_state(self, client: int, recall: StateAccess | None) -> Tensor | None:
        """Return a simulated client's state when a run is resumed; after that its node remembers it."""
        # Real clients keep their state at home; only simulated ones get it from the checkpoint.
        if not self._simulated or recall is None or (client, recall.memory.name) in self._known:
            return None
        self._known.add((client, recall.memory.name))
        return recall.kept(client)

    def _keep_state(self, client: int, answer: WireMessage, recall: StateAccess | None) -> None:
        if self._simulated and recall is not None and "kept" in answer.arrays:
            noised = self._built.mechanism.facts.keeps_noised
            recall.keep_value(client, own_tensor(answer.arrays["kept"]), noised=noised)

    def _left_out(self, round: int, client: int, why: str) -> None:
        why = printable(why, most=LONGEST_REASON)
        if self._tell is None:
            raise SightlineError(f"{client_name(client)}: {why}")
        self._tell(round, client, why)

    def _stop_if_nobody_answers(self, answered: int, asked: int) -> None:
        self._in_vain = self._in_vain + 1 if asked and not answered else 0
        if self._in_vain >= PATIENCE:
            raise NobodyAnswers(
                f"nodes={asked}: none gave a usable answer to {PATIENCE} questions in a row; see the reasons above, "
                "then continue with --resume"
            )
