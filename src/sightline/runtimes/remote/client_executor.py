"""A client's side of a round: its own part of the mechanism, computed on its own data."""

import json
import tomllib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from sightline import engine
from sightline.config import parse
from sightline.engine.build import BuiltExperiment
from sightline.engine.run_directory import SECRET
from sightline.errors import SightlineError, invalid
from sightline.mechanisms import (
    ChannelMechanism,
    ClientOutput,
    Cohort,
    Mechanism,
    ModelChoice,
    Public,
    ReleaseContext,
    Updates,
)
from sightline.mechanisms.samplers import Full
from sightline.randomness import Purpose, Streams
from sightline.runtimes.remote.message import CHOOSE, LEAVING, NodeTask, WireMessage
from sightline.runtimes.simulator import Simulator
from sightline.training.call import ClientState, PrivateSteps, StateAccess
from sightline.training.local_work import read_paths
from sightline.training.measure_paths import local_work, missing_paths


@dataclass(frozen=True, eq=False)
class Result:
    """The output of a client: the vector that it may send, and the state that it keeps."""

    value: Tensor
    rejected: bool
    kept: Tensor | None
    noised: bool = True
    """Whether the state was made from noised values only."""


class ClientSide:
    """Client side for the data in `built`, by the same code as the simulator.

    Guarantees: the value of `leaving` is what the mechanism releases, with the client's own noise where the mechanism
    noises at clients; the same streams give the same bits as in the simulator.
    """

    def __init__(self, built: BuiltExperiment, public: Streams, secret: Streams) -> None:
        self.built, self._public, self._secret = built, public, secret
        self._simulator = Simulator(built, public, secret)
        self._mechanism_with = lru_cache(maxsize=8)(self._with_noise)

    def with_built(self, built: BuiltExperiment) -> "ClientSide":
        """Return a client side with the same streams over other data."""
        return ClientSide(built, self._public, self._secret)

    def mechanism(self, noise: float | None, context: ReleaseContext) -> ChannelMechanism:
        """Return the experiment's mechanism with this client's noise, resolved for the channel that asks."""
        result = self.built.mechanism if noise is None else self._mechanism_with(noise)
        return result.at(context.channel)

    def _with_noise(self, noise: float) -> Mechanism:
        return self.built.mechanism.with_noise(dict.fromkeys(self.built.clients, noise))

    def updates_for(self, task: NodeTask, old: Tensor | None, *, noised: bool = True) -> Updates:
        """Return the client's update, not yet computed; `noised`: its state was made from noised values only."""
        client, call, recall = task.client, task.call, None
        if task.memory is not None:
            state = ClientState({} if old is None else {client: old}, noised=old is None or noised)
            recall = StateAccess(task.memory, state, self._simulator.dimension)
        starts = {client: Public(call.starts)}
        return Updates(Cohort((client,)), starts, self._simulator, call.at, call.task, recall, self.built.splitter)

    def release_context(self, task: NodeTask, *, next_id: int = 0) -> ReleaseContext:
        """Return the round as this client sees it: a channel of one member, and its own noise."""
        # A choice and a noisy update draw from different streams: noise is never shared between two values.
        purpose, at = Purpose.SELECTION if task.name == CHOOSE else Purpose.NOISE, task.call.at
        return ReleaseContext(
            time=at.round,
            unit=self.built.unit,
            adjacency=self.built.adjacency,
            channel=task.channel,
            sampler=Full(1),
            next_id=next_id,
            line=task.line,
            use=at.use,
            noise=lambda participant: self._secret.rng(purpose, round=at.round, participant=participant, use=at.use),
        )

    def compute_task(
        self, task: NodeTask, updates: Updates, context: ReleaseContext, mechanism: ChannelMechanism
    ) -> Result:
        """Return the result of a task."""
        outputs = {
            CHOOSE: lambda: self._choose_model(task, context),
            LEAVING: lambda: mechanism.client_outputs(updates, context),
        }
        _, value, rejected = single_output(outputs.get(task.name, lambda: self._raw_output(task, updates))())
        recall = updates.recall
        if recall is None:
            return Result(value, rejected, None)
        return Result(value, rejected, recall.after.get(task.client), recall.noised)

    def _choose_model(self, task: NodeTask, context: ReleaseContext) -> Iterator[ClientOutput]:
        choice = read_choice(task).draw_choices(self._simulator, context)[task.client]
        yield ClientOutput(task.client, torch.tensor([float(choice)]))

    def _raw_output(self, task: NodeTask, updates: Updates) -> Iterator[ClientOutput]:
        plans = [self._private_plan(task)] if task.plan else []
        parts = plans[0].splitter if plans else self.built.splitter
        for _, rows in self._simulator.run(replace(task.call, plans=plans, state=updates.recall, parts=parts)):
            yield ClientOutput(task.client, rows[0])

    def _private_plan(self, task: NodeTask) -> PrivateSteps:
        """Return the client's own plan with the numbers that the task asks for."""
        own = self.built.mechanism.facts.private_steps.get(task.client, PrivateSteps(1.0, 1.0, 1.0, 1, 1.0))
        asked = replace(own, **(task.plan or {}))
        # Correlated noise is charged for the planned batches and steps; any other number would not be covered.
        if own.strategy is not None and (asked.groups, asked.steps, asked.rate) != (own.groups, own.steps, own.rate):
            reason = "correlated noise is charged for the batches and steps of the experiment"
            invalid("plan", f"{asked.steps} steps", reason, "ask for those of the experiment")
        return asked


def read_choice(task: NodeTask) -> ModelChoice:
    """Return the choice that a task asks for."""
    models = task.call.starts[None] if task.call.candidates is None else task.call.candidates
    return ModelChoice(Cohort((task.client,)), tuple(Public(model) for model in models), task.epsilon)


def single_output(left: Iterator[ClientOutput]) -> ClientOutput:
    """Return the only member's output."""
    # Unpacking runs the generator to its end, so that its clean-up and state updates happen.
    (result,) = left
    return result


def answer_simulated(message: WireMessage, kept: MutableMapping[str, Tensor]) -> WireMessage:
    """Answer a question as the client that it names; `kept` holds that client's state and is updated.

    Guarantees: the same bits as the simulator, in any process. Mistakes come back as a refusal.
    """
    try:
        client = int(message.fields["client"])
        fields = message.fields
        side = load_client_side(
            str(fields["experiment"]), fields.get("data"), fields.get("folder"), str(fields.get("paths", "{}"))
        )
        task = NodeTask.read(message, client)
        name = "" if task.memory is None else f"{task.client}/{task.memory.name}"
        if task.kept is not None:
            kept[name] = task.kept
        updates = side.updates_for(task, kept.get(name), noised=side.built.mechanism.facts.keeps_noised)
        context = side.release_context(task)
        result = side.compute_task(task, updates, context, side.mechanism(message.fields.get("noise"), context))
    except SightlineError as error:
        return WireMessage({"refused": str(error)})
    arrays = {"value": result.value.numpy()}
    if result.kept is not None:
        kept[name] = result.kept
        arrays["kept"] = result.kept.numpy()
    return message.reply(client, {"rejected": result.rejected}, arrays)


@lru_cache(maxsize=2)
def load_client_side(experiment: str, data: str | None, folder: str | None, paths: str = "{}") -> ClientSide:
    """Return the client side of an experiment with the paths of its run; every process reads the data once."""
    built = engine.build_experiment(parse(tomllib.loads(experiment)), data_root=None if data is None else Path(data))
    built = replace(built, paths=read_paths(json.loads(paths)))
    if missing := missing_paths(built.model, local_work(built.experiment), built.paths):
        invalid("paths", missing, "the run uses these paths, and this machine lacks them", 'use local.paths = "rule"')
    public = Streams.from_seed(built.experiment.seed)
    from_os = built.experiment.privacy.noise_source == "os" and folder is not None
    return ClientSide(built, public, Streams.from_operating_system(Path(str(folder)) / SECRET) if from_os else public)
