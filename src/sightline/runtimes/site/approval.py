"""The owner's approval of an experiment: what it computes here, how often, with which noise and at which cost."""

import hashlib
import json
import math
import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sightline import accounting, engine
from sightline.config import FACTORY, Experiment, parse, to_toml
from sightline.data import Client
from sightline.engine.build import BuiltExperiment, list_plugins
from sightline.errors import InvalidInput, invalid, refuse
from sightline.events import Clear, Event, from_json, to_json
from sightline.ledger import Ledger, Release
from sightline.mechanisms import ChannelMechanism, NoisedBy, ReleaseContext, Updates
from sightline.mechanisms.contract import only_client
from sightline.randomness import Streams, write_secret
from sightline.runtimes.remote.client_executor import ClientSide, read_choice
from sightline.runtimes.remote.message import CHOOSE, LEAVING, NodeTask, WireMessage, experiment_digest
from sightline.runtimes.site.calls_of_kind import CallsOfKind, find_kind, gather_kinds
from sightline.runtimes.site.planned_calls import PlannedCall, record_calls
from sightline.runtimes.site.policy import POLICY, SitePolicy, check_signer, federation_of
from sightline.topology import PUBLIC, SERVER, client_name

APPROVALS = "approvals"
ENDED = "ended-"
# Clip norms outside this range get a remark in the description.
LEAST_CLIP, MOST_CLIP = 1e-4, 1e4
KINDS = {
    LEAVING: "its own part of the mechanism",
    CHOOSE: "a private choice of one of several models",
    "train": "a trained model, handed over without noise",
    "dp_sgd": "a model after clipped steps, handed over without noise",
    "gradient_sums": "a sum of clipped gradients, handed over without noise",
}


@dataclass(frozen=True, eq=False)
class Approval:
    """An experiment as its owner approved it for one run at one site; the site computes from this copy alone."""

    id: str
    digest: str
    experiment: str
    """The resolved TOML."""
    noise: float | None
    """This site's noise multiplier, calibrated here; None if the noise is an absolute amount."""
    data: str
    """Digest of the data that it was approved for."""
    calls: Sequence[PlannedCall]
    composition: Mapping[Event, int]
    """Events of the whole experiment that parties whom the site does not trust see of a protected unit."""
    epsilon: float
    """The same as one number, at the policy's delta."""
    signed_by: str = ""
    kinds: Sequence[CallsOfKind] = ()
    """Where calls come in any order: what may be asked, in place of `calls`."""

    @property
    def whole_list(self) -> list[PlannedCall]:
        """Return every call that may be asked for; of a kind, each at its limits."""
        return [*self.calls, *(kind.call for kind in self.kinds for _ in range(kind.times))]

    @cached_property
    def call_at(self) -> Mapping[tuple[int, int], PlannedCall]:
        """Return the calls by round and use."""
        return {call.position: call for call in self.calls}

    def find_call(self, message: WireMessage) -> tuple[PlannedCall, int | None]:
        """Return the call that a message names, and the number of its kind; raise InvalidInput if it is not planned."""
        fields: Any = {"part": 0} | dict(message.fields)
        kind, round, use, part = (fields.get(name) for name in ("call", "round", "use", "part"))
        if not all(type(number) is int for number in (round, use, part)):
            invalid("round, use, part", f"{round}, {use}, {part}", "are whole numbers")
        if self.kinds:
            return find_kind(self.kinds, message, kind, (round, use, part))
        call = self.call_at.get((round, use))
        if call is None or (call.part, call.kind) != (part, kind):
            at = f"{kind} in round {round}, use {use}, part {part}"
            invalid("call", at, "is not in the plan of the approved experiment")
        return call, None

    def to_json(self) -> str:
        """Return the approval as JSON text."""
        fields = {name: getattr(self, name) for name in ("id", "digest", "experiment", "noise", "data", "signed_by")}
        fields["calls"] = [asdict(call) for call in self.calls]
        fields |= {"kinds": [asdict(kind) for kind in self.kinds]} if self.kinds else {}
        fields["composition"] = [[to_json(event), times] for event, times in self.composition.items()]
        return json.dumps(fields | {"epsilon": self.epsilon})

    @classmethod
    def from_json(cls, text: str) -> "Approval":
        """Return the approval that `to_json` wrote; raise InvalidInput for anything else."""
        try:
            fields = json.loads(text)
            calls = [PlannedCall(**call) for call in fields.pop("calls")]
            kinds = [CallsOfKind(PlannedCall(**kind.pop("call")), **kind) for kind in fields.pop("kinds", [])]
            composition = {from_json(event): int(times) for event, times in fields.pop("composition")}
            return cls(calls=calls, composition=composition, kinds=kinds, **fields)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"approval={type(error).__name__}: a file in state/{APPROVALS} is damaged") from None


class Approvals:
    """The approvals of a site, one owner-only file each."""

    def __init__(self, state: Path) -> None:
        self._folder = state / APPROVALS

    def all(self) -> list[Approval]:
        """Return every approval, the oldest first."""
        paths = sorted(self._list_files("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [Approval.from_json(path.read_text(encoding="utf-8")) for path in paths]

    def of(self, digest: str) -> list[Approval]:
        """Return the approvals of one experiment, in the order in which they are used."""
        # The digest comes from a message and goes into a file pattern: anything but hex is refused.
        if not (len(digest) == 64 and set(digest) <= set("0123456789abcdef")):
            return []
        paths = self._list_files(f"{digest[:32]}-*.json")
        approvals = [Approval.from_json(path.read_text(encoding="utf-8")) for path in paths]
        same = (approval for approval in approvals if approval.digest == digest)
        return sorted(same, key=lambda approval: int(approval.id.partition("-")[2]))

    def _list_files(self, pattern: str) -> list[Path]:
        """Return the files that match; [] for a missing folder. Raises for a folder that cannot be read."""
        try:
            return [self._folder / name for name in os.listdir(self._folder) if fnmatchcase(name, pattern)]
        except FileNotFoundError:
            return []
        except OSError as error:
            reason = f"cannot be listed ({type(error).__name__})"
            invalid("state", self._folder, reason, "make the site's user its owner again")

    def next_id(self, digest: str) -> str:
        """Return the id of the next approval of an experiment; every run needs its own."""
        return f"{digest[:32]}-{len(self.of(digest)) + 1}"

    def ended_path(self, id: str) -> Path:
        """Return the path of the file that marks an approval as ended."""
        return self._folder / f"{ENDED}{id}"

    def ended(self) -> list[str]:
        """Return the ids of the approvals that have ended, as their files say."""
        names = (path.name for path in self._list_files(f"{ENDED}*") if path.suffix != ".tmp")
        return sorted(name.removeprefix(ENDED) for name in names)

    def put(self, approval: Approval) -> None:
        """Store an approval durably."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_secret(self._folder / f"{approval.id}.json", approval.to_json().encode())


def build_for_site(experiment: Experiment, policy: SitePolicy, data: Client) -> BuiltExperiment:
    """Build the experiment with this site's data at its own number; read no file that the experiment names."""
    _admit_experiment(experiment, policy, len(data.train))
    facts = {"classes": policy.classes, "vocabulary": policy.vocabulary}
    federation = federation_of(data, policy.client, experiment.data.clients, **facts)
    # The start vector arrives with the messages; a path in the experiment must not be opened here.
    start = experiment.model.init
    blank = experiment.model_copy(update={"model": experiment.model.model_copy(update={"init": None})})
    built = engine.build_experiment(policy.with_arithmetic(blank), federation=federation)
    if start is not None and built.model.constants:
        first = next(iter(built.model.constants))
        reason = f"frozen tensors and buffers are not sent to sites, and this site has its own {first!r}"
        refuse("model.init", start, reason, "let the factory read them from a file that every site has")
    return built


def draw_up_approval(
    experiment: Experiment, policy: SitePolicy, data: Client, *, id: str, signed_by: str = ""
) -> Approval:
    """Return what approving an experiment would mean: the plan of all its calls here, its noise and its cost.

    Guarantees: no message and no file of the experiment is read. Raise Refused for anything that the policy does not
    allow or that has no plan fixed beforehand.
    """
    built = engine.calibrate_noise(build_for_site(experiment, policy, data), real_nodes=True)
    calls, kinds, composition = _plan_calls(built, policy)
    return Approval(
        id=id,
        digest=experiment_digest(experiment),
        experiment=to_toml(experiment),
        noise=built.multipliers.get(policy.client),
        data=data_digest(data),
        calls=calls,
        composition=composition,
        epsilon=accounting.epsilon(composition, policy.delta),
        signed_by=signed_by,
        kinds=kinds,
    )


def check_approval(approval: Approval, policy: SitePolicy, data: Client) -> BuiltExperiment:
    """Return the approved experiment as built under the current policy; raise Refused if it would not be approved now.

    Guarantees: every key of the policy that decides about an approval is checked again, and what the plan reveals to
    parties whom the site does not trust now is part of what was reserved. A looser policy changes nothing: the plan,
    the noise and the cost stay those of the approval.
    """
    check_signer(policy, approval.signed_by)
    built = build_for_site(read_approved(approval), policy, data)
    noised = built
    if approval.noise is not None:
        noised = built.with_noise(dict.fromkeys(built.clients, approval.noise))
    calls, kinds, composition = _plan_calls(noised, policy)
    plans = [[asdict(part) for part in some] for some in (calls, kinds, approval.calls, approval.kinds)]
    same = json.dumps(plans[:2]) == json.dumps(plans[2:])
    # A server that became trusted since sees no more than was reserved.
    more = not policy.trust_server and Counter(composition) - Counter(approval.composition)
    if not same or more:
        reason = f"the current {POLICY} or version gives another plan than the approved one"
        refuse("approval", approval.id, reason, "approve the experiment again")
    return built


def _plan_calls(
    built: BuiltExperiment, policy: SitePolicy
) -> tuple[list[PlannedCall], list[CallsOfKind], dict[Event, int]]:
    """Return the calls in their order, or their kinds, and what all of them reveal.

    Raise Refused if an answer takes more steps than the policy allows.
    """
    calls = record_calls(built, policy.client)
    claims = _claim_calls(built, calls, policy)
    kinds = gather_kinds(calls, claims, built.experiment)
    longest = max((call.steps for call in (*calls, *(kind.call for kind in kinds))), default=0)
    if longest > policy.largest_steps:
        reason = f"this site makes at most largest_steps={policy.largest_steps} for one answer"
        refuse("local steps", longest, reason, "ask for fewer, or let the owner raise largest_steps")
    if not kinds:
        return calls, [], _whole_composition(built, claims, policy)
    # The cost is that of the whole list, whatever is asked in the end: see "The order may adapt" in the proofs.
    return [], kinds, dict(Counter(release.event for some in claims for release in some))


def data_digest(data: Client) -> str:
    """Return a hash that changes whenever a training example does."""
    return hashlib.sha256(data.train.x.tobytes() + data.train.y.tobytes()).hexdigest()


def own_claims(
    task: NodeTask, updates: Updates, context: ReleaseContext, mechanism: ChannelMechanism
) -> Sequence[Release]:
    """Return the claims of an answer as the site sees it: whatever leaves is seen by the server and the public.

    Only what the mechanism lets members noise is private before it leaves; everything else leaves without noise.
    """
    # The site derives the event from what it is about to do, never from what the server claims about it.
    everyone = frozenset({SERVER, PUBLIC})
    if task.name == CHOOSE:
        return [replace(release, audience=everyone) for release in read_choice(task).claim_choices(context)]
    if task.name == LEAVING and mechanism.noised_by is NoisedBy.CLIENT:
        return [replace(release, audience=everyone) for release in mechanism.claim_each(updates, context)]
    subject, what = only_client(task.client), f"{task.name}: handed to the server without noise"
    event, audience, source = Clear(), frozenset({SERVER}), client_name(task.client)
    return [context.make_release(source=source, event=event, audience=audience, what=what, subjects=subject)]


def _claim_calls(built: BuiltExperiment, calls: Sequence[PlannedCall], policy: SitePolicy) -> list[Sequence[Release]]:
    """Return the claims of every call; raise Refused for unnoised values if the site does not trust the server."""
    result = list[Sequence[Release]]()
    side = ClientSide(built, Streams.from_seed(0), Streams.from_seed(0))
    for call in calls:
        task = call.task_of(call.blank_vectors(built.model.parameters), policy.client)
        context = side.release_context(task, next_id=sum(map(len, result)))
        claims = own_claims(task, side.updates_for(task, None), context, built.mechanism.at(context.channel))
        if not policy.trust_server and any(release.event == Clear() for release in claims):
            reason = "hands values without noise to the server, which this site does not trust"
            refuse("experiment", built.experiment.name, reason, 'use where = "client", or trust_server = true')
        result.append(claims)
    return result


def _whole_composition(
    built: BuiltExperiment, claims: Sequence[Sequence[Release]], policy: SitePolicy
) -> dict[Event, int]:
    """Return the events that all claims together reveal to parties whom the site does not trust.

    If the server is trusted with unnoised values, what it publishes of them counts too: for every event the largest
    count that any untrusted observer sees, which covers each of them.
    """
    subject = client_name(policy.client)
    own = Ledger(participants={subject, SERVER, PUBLIC})
    for some in claims:
        own.append(some)
    if not policy.trust_server:
        return dict(own.composition(subject, {SERVER, PUBLIC}))
    planned = engine.plan_releases(built, real_nodes=True)
    lines = {line for seen in built.topology.lines.values() for line in seen if subject not in line.exempt}
    most = Counter[Event](own.composition(subject, PUBLIC))
    for observer in {line.observer for line in lines} - {SERVER}:
        most |= Counter(planned.composition(subject, observer))
    return dict(most)


def _admit_experiment(experiment: Experiment, policy: SitePolicy, examples: int) -> None:
    """Raise for anything that the policy does not allow or that no plan can cover."""
    privacy = experiment.privacy
    if policy.client >= experiment.data.clients:
        invalid("site.client", policy.client, f"the experiment has {experiment.data.clients} clients, numbered from 0")
    # Events of different units or adjacencies do not compose in one budget.
    if (privacy.unit, privacy.adjacency) != (policy.unit, policy.adjacency):
        reason = f"this site's budget is for unit={policy.unit}, adjacency={policy.adjacency}"
        refuse("privacy.unit", f"{privacy.unit}/{privacy.adjacency}", reason, "use the same in the experiment")
    if policy.unit == "client" and not policy.allow_large_delta:
        accounting.refuse_large_delta(f"{POLICY}: delta", policy.delta, experiment.data.clients, "clients")
    if experiment.sampling.samples is not None and experiment.sampling.samples.scheduled:
        reason = "a site draws new samples for every answer, but a schedule is drawn once for all rounds"
        refuse("sampling.samples.scheme", experiment.samples_scheme, reason, 'use scheme = "poisson"')
    _refuse_unplanned(experiment)
    resources = experiment.resources.settings if experiment.resources is not None else {}
    for section, settings in (("topology", experiment.topology.settings), ("resources", resources)):
        if settings.get("file") is not None:
            reason = "a site opens no file that an experiment names"
            refuse(f"{section}.file", settings["file"], reason, "describe it in the experiment itself")
    if FACTORY.fullmatch(experiment.model.name):
        check_model(experiment.model.name, policy.models)
    if (loss := experiment.model.loss) is not None:
        check_code("model.loss", loss, loss.partition(":")[0], policy.models, "models")
    # Before anything is imported: importing a module already runs its code.
    for plugin in list_plugins(experiment):
        check_code(plugin.kind.key, plugin.name, plugin.module, policy.plugins, "plugins")


def _refuse_unplanned(experiment: Experiment) -> None:
    """Raise Refused for what is chosen during the run and cannot be approved: control and a clip norm."""
    if experiment.algorithm.settings.get("control") is not None:
        reason = "adaptive control chooses steps and participation during the run, so there is no plan to approve"
        refuse("algorithm.control", "given", reason, "remove it for real sites")
    if experiment.privacy.adaptive_clipping is not None:
        reason = "the clip norm is chosen during the run, so there is no plan to approve"
        refuse("privacy.adaptive_clipping", "given", reason, "remove it for real sites")


def check_model(name: str, allowed: Mapping[str, str]) -> None:
    """Raise Refused for a model that the owner has not allowed, before any of it is imported."""
    check_code("model.name", name, name.partition(":")[0], allowed, "models")


def check_code(key: str, name: str, module: str, allowed: Mapping[str, str], table: str) -> None:
    """Raise Refused for code that the owner has not allowed by name and source hash, before any of it is imported."""
    if name not in allowed:
        reason = "this site runs only code that its owner has allowed"
        refuse(key, name, reason, f'add "{name}" = "SHA-256 of its source file" under [{table}] of {POLICY}')
    digest = hashlib.sha256(_source_of(key, module).read_bytes()).hexdigest()
    if digest != allowed[name].lower():
        reason = f"its source has SHA-256 {digest[:16]}..., which is not the allowed one"
        refuse(key, name, reason, f"review the file again, then write its hash under [{table}] of {POLICY}")


def _source_of(key: str, module: str) -> Path:
    """Return the source file of a module, found without importing the module or its packages."""
    where: Any = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), where)
        if spec is None:
            invalid(key, module, "no such module at this site")
        where = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        invalid(key, module, "has no source file to check")
    return Path(spec.origin)


def read_approved(approval: Approval) -> Experiment:
    """Return the experiment of an approval."""
    return parse(tomllib.loads(approval.experiment))


def describe_approval(approval: Approval, policy: SitePolicy, shares: tuple[float, float]) -> list[str]:
    """Return lines that say what is computed, how often, with which noise, for whom, and at which cost.

    `shares` are the reserved shares of the lifetime budget, now and with this experiment: `LifetimeBudget.share_with`.
    """
    experiment, calls = read_approved(approval), approval.whole_list
    kinds = Counter(call.kind for call in calls)
    lines = [f"experiment {experiment.name}, digest {approval.digest}"]
    lines += [f"signed by {approval.signed_by}" if approval.signed_by else "not signed"]
    algorithm, model = experiment.algorithm.name, experiment.model.name
    model += "" if experiment.model.loss is None else f" with the loss {experiment.model.loss}"
    lines += [f"{algorithm} on {experiment.topology.kind}, model {model}, {experiment.rounds} rounds, one run"]
    for kind, times in {} if approval.kinds else kinds.items():
        steps = max(call.steps for call in calls if call.kind == kind)
        lines += [f"at most {times} answers of client-{policy.client}: {KINDS[kind]}, at most {steps} local steps each"]
    lines += [f"at most {kind.describe()}" for kind in approval.kinds]
    lines += ["the server decides on their order; all count, also those that it never asks for"] * bool(approval.kinds)
    kept = sorted({call.rule for call in calls if call.rule})
    lines += [f"kept at this site between answers: {', '.join(kept)}"] if kept else []
    lines += [_noise_line(approval, experiment), *_odd_clip_norms(tomllib.loads(approval.experiment))]
    whom = "everybody but the server, which is trusted" if policy.trust_server else "the server and everybody else"
    what = "one example" if policy.unit == "sample" else "all data of this site"
    lines += [f"seen by {whom}; protected is {what} ({policy.adjacency})"]
    # Epsilon is shown rounded up, never to the nearest.
    spent = math.ceil(approval.epsilon * 1e4) / 1e4 if math.isfinite(approval.epsilon) else math.inf
    lines += [f"epsilon {spent:g} at delta={policy.delta:g} for the whole length, reserved now"]
    before, after = shares
    used, left = percent_up(before), 100 - percent_up(after)
    cost = f"{percent_up(after - before):.1f} %" if math.isfinite(after) else "more than 100 %"
    then = f"{left:.1f} % are left then" if after <= 1 else "it does not fit"
    lifetime = f"the budget for life, epsilon {policy.epsilon:g}"
    return [*lines, f"that is {cost} of {lifetime}: {used:.1f} % are reserved before, {then}"]


def percent_up(share: float) -> float:
    """Return a share in percent, rounded up to a tenth.

    >>> percent_up(0.32801), percent_up(0.0), percent_up(1.0)
    (32.9, 0.0, 100.0)
    """
    return math.ceil(round(1000 * share, 6)) / 10 if math.isfinite(share) else share


def _odd_clip_norms(table: Mapping[str, Any], name: str = "") -> list[str]:
    """Return a line for every clip norm far from usual updates: too large leaves only noise, too small only zeros."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _odd_clip_norms(value, f"{name}{key}.")
        elif key.endswith("clip_norm") and isinstance(value, int | float) and not LEAST_CLIP <= value <= MOST_CLIP:
            usual = f"updates and gradients usually have norms from {LEAST_CLIP:g} to {MOST_CLIP:g}"
            lines += [f"note: {name}{key}={value:g}: {usual}; ask the researcher why"]
    return lines


def _noise_line(approval: Approval, experiment: Experiment) -> str:
    privacy = experiment.privacy
    amount = "an absolute amount, as the experiment says" if approval.noise is None else f"{approval.noise:.6g}"
    clipped = f", clip norm {privacy.clip_norm:g}" if privacy.clip_norm is not None else ""
    return f"mechanism {privacy.mechanism}, noise multiplier {amount}{clipped}, noised at the {privacy.place}"
