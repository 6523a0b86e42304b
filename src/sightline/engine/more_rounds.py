"""More rounds on a run that has ended: the ledger continues, with the noise that its first rounds had.

The guarantee of the longer run is that of a run of all rounds, fixed from the start. It holds only if such a run would
have made the same first rounds, so both plans are compared, release by release, before anything is written.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from sightline.config import Experiment, parse
from sightline.engine.algorithm_laws import ROUNDS, check_first_algorithm
from sightline.engine.build import BuiltExperiment
from sightline.engine.checkpoint import (
    Checkpoint,
    check_identity,
    check_length,
    find_checkpoint,
    last_change,
    paths_by_rule,
    settle_paths,
)
from sightline.engine.earlier_runs import stored_earlier
from sightline.engine.plan import follow_plan, plan_releases
from sightline.engine.record import RunRecord
from sightline.engine.run_directory import ENDED, RUN_ID, SECRET
from sightline.errors import invalid, refuse
from sightline.events import Unit
from sightline.formatting import format_plural, format_upper
from sightline.ledger import EntryKind, Ledger, Release
from sightline.randomness import CIPHER, Streams

ADDED = "rounds_added"
"""The fact that says how many rounds were added; `config.toml` keeps the number that the noise was planned for."""
NEW_RUN = 'start a new run from its model: model.init = "RUN/model.safetensors", privacy.continue_ledger = true'

Rebuild = Callable[[Experiment], BuiltExperiment]
"""Builds an experiment on the data and the model of the run, without its noise."""


def count_added(directory: Path) -> int:
    """Return how many rounds were added to a run."""
    with RunRecord.open_to_read(directory) as record:
        return int(record.facts.get(ADDED) or 0)


def check_ended(directory: Path, record: RunRecord, more: int) -> None:
    """Raise unless the run in a directory has ended by itself and on this machine."""
    facts, added = record.facts, f"+{more}"
    if type(more) is not int or more < 1:
        invalid("--rounds", added, "is a whole number of rounds, at least one")
    if facts.get("status") not in ENDED:
        invalid("--rounds", added, f"the run in {directory} has not ended", f"sightline run --resume {directory} first")
    if facts["status"] == "stopped":
        invalid("--rounds", added, f"the run ended because its budget is spent ({facts.get('status_reason')})", NEW_RUN)
    if facts.get("status_reason"):
        invalid("--rounds", added, f"the run ended before its last planned round ({facts['status_reason']})", NEW_RUN)
    # A site approves one experiment with one number of rounds, and answers for no other.
    if (directory / RUN_ID).exists():
        invalid("--rounds", added, "its sites approved the original rounds only", NEW_RUN)


def plan_longer(built: BuiltExperiment, rebuild: Rebuild, rounds: int) -> BuiltExperiment:
    """Return the experiment as if `rounds` had been planned from the start, with the noise that it has.

    Raises `Refused` unless that plan begins with the releases that the shorter one has.
    """
    _refuse_fixed_lengths(built.experiment, rounds)
    plain = built.experiment.model_dump(mode="json", exclude_none=True)
    longer = rebuild(parse(plain | {"rounds": rounds}))
    if built.multipliers:
        longer = longer.with_noise(built.multipliers)
    if longer.settings != built.settings:
        _refuse_plan(built, rounds, f"{built.algorithm.name} plans for the number of rounds")
    # The check of a plugin covers its first rounds; the shorter run may have had fewer.
    check_first_algorithm(longer, lambda: follow_plan(longer, rounds=ROUNDS))
    first, whole = plan_releases(built), plan_releases(longer)
    if len(whole) < len(first) or any(one.body() != whole[one.id].body() for one in first):
        _refuse_plan(built, rounds, f"a run of {rounds} rounds would have made other releases from the start")
    # Releases of one joint event are charged once, for as many rounds as the event was planned for.
    joint = {release.joint for release in first if release.joint}
    if any(release.joint in joint for release in list(whole)[len(first) :]):
        _refuse_plan(built, rounds, "its releases are charged together, for the rounds that were planned")
    return longer


def _refuse_fixed_lengths(experiment: Experiment, rounds: int) -> None:
    """Raise `Refused` for what is drawn, or ends, for a fixed number of rounds."""
    added, planned = f"+{rounds - experiment.rounds}", experiment.rounds
    if experiment.privacy.noise == "correlated":
        refuse("--rounds", added, f"its correlated noise was planned for {planned} rounds", NEW_RUN)
    for sampler in (experiment.sampling.clients, experiment.sampling.samples):
        if sampler is not None and sampler.scheduled:
            refuse("--rounds", added, f"its schedule ({sampler.scheme}) was drawn for {planned} rounds", NEW_RUN)
    if experiment.local.schedule in ("cosine", "linear"):
        reason = f"its learning rate (local.schedule = {experiment.local.schedule}) has ended after {planned} rounds"
        refuse("--rounds", added, reason, NEW_RUN)
    if experiment.algorithm.settings.get("control") is not None:
        refuse("--rounds", added, f"algorithm.control has spread its steps over {planned} rounds", NEW_RUN)


def _refuse_plan(built: BuiltExperiment, rounds: int, reason: str) -> NoReturn:
    refuse("--rounds", f"+{rounds - built.experiment.rounds}", reason, NEW_RUN)


def reopen_run(
    record: RunRecord, before: BuiltExperiment, longer: BuiltExperiment, *, accept: bool, on_note: Callable[[str], None]
) -> None:
    """Let a run that has ended continue to the rounds of `longer`; state its new epsilon before anything is trained.

    Guarantees: every round that was made is complete and never made again; what was released stays counted.
    """
    directory, done = record.directory, before.experiment.rounds
    check_ended(directory, record, longer.experiment.rounds - done)
    settled = settle_paths(record, longer, paths_by_rule, begun=True, accept=accept)
    identity, changes = check_identity(record, settled, accept=accept)
    ledger = record.ledger_at_work(longer.participants)
    result = _last_checkpoint(record, before, longer, ledger)
    for note in describe_costs(record, longer.as_found(result.state), ledger, result):
        on_note(note)
    facts: dict[str, Any] = {ADDED: longer.experiment.rounds - _planned_first(record, done)}
    if longer.experiment.privacy.noise_source == "os":
        # The root of the first rounds was deleted at their end. Rounds are named in every stream, and no round is made
        # a second time, so the rounds to come may draw from another root.
        fresh = Streams.from_operating_system(directory / SECRET)
        facts |= {"noise_root": fresh.fingerprint, "noise_generator": CIPHER}
    # The round in this entry keeps a later resumption from going back behind it, where the old root would be needed.
    change = {"round": done, "since": last_change(record).since, "accepted": changes, "after": done, "wrong": ""}
    record.note(EntryKind.RESUME, identity | change)
    record.remember_metadata(facts | {"status": "running", "status_reason": ""})


def _planned_first(record: RunRecord, done: int) -> int:
    """Return the rounds that the noise was planned for, of a run that has ended after round `done`."""
    return done - int(record.facts.get(ADDED) or 0)


def _last_checkpoint(record: RunRecord, before: BuiltExperiment, longer: BuiltExperiment, ledger: Ledger) -> Checkpoint:
    """Return the checkpoint of the last round. Raises if it is missing, damaged, or the ledger does not end there."""
    done = before.experiment.rounds
    known = [entry.body["sha256"] for entry in record.journal.last(EntryKind.CHECKPOINT, most=None)]
    check_length(record.directory, len(ledger))
    result, wrong = find_checkpoint(record.directory, known)
    if result is not None and longer.algorithm.facts.finished(result.state):
        reason = f"{longer.algorithm.name} finished after {result.round} rounds"
        _refuse_plan(before, longer.experiment.rounds, reason)
    whole = result is not None and result.round == done and result.releases == len(ledger)
    if result is None or wrong or not whole or not record.store.vouches_for(result.releases, result.head):
        reason = f"the checkpoint of its last round, {done}, is missing or damaged"
        invalid("--rounds", record.directory, f"{reason}, and no round may run twice", "restore it from a backup")
    return result


def describe_costs(record: RunRecord, longer: BuiltExperiment, ledger: Ledger, checkpoint: Checkpoint) -> list[str]:
    """Return what the run has cost and what it will cost at most, for every kind of observer."""
    rounds, done = longer.experiment.rounds, checkpoint.round
    way = f"run={record.directory}: continues after round {done} to round {rounds}"
    if longer.unit is Unit.NONE:
        return [f"{way}; it promises no privacy"]
    rows, privacy = planned_rows(longer, checkpoint, ledger), longer.experiment.privacy
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, lines in longer.topology.lines.items():
        spent = ledger.worst_of(lines, privacy.delta, accountant=longer.accountant)
        cost = ledger.worst_of(lines, privacy.delta, accountant=longer.accountant, planned=rows)
        kinds.setdefault((format_upper(spent), format_upper(cost)), []).append(kind)
    costs = [
        f"against {' and '.join(some)} {now} now, at most {then} after round {rounds}"
        for (now, then), some in kinds.items()
    ]
    notes = [f"{way} with the same noise: epsilon {'; '.join(costs)}"]
    if privacy.epsilon is not None:
        planned = format_plural(_planned_first(record, done), "round")
        notes.append(f"privacy.epsilon={privacy.epsilon:g}: was for {planned} and does not hold for {rounds}")
    earlier = stored_earlier(record)
    if earlier is not None and not earlier.explain_unknown(privacy.unit, privacy.adjacency):
        every = [line for some in longer.topology.lines.values() for line in some]
        cost = earlier.worst(ledger, every, privacy.delta, longer.accountant, rows)
        notes.append(f"together with the runs that model.init comes from: epsilon at most {format_upper(cost)}")
    return notes


def planned_rows(longer: BuiltExperiment, checkpoint: Checkpoint, ledger: Ledger) -> list[Release]:
    """Return the planned releases after a checkpoint, numbered as they would follow the ledger."""
    plan, length = list(plan_releases(longer)), len(ledger)
    first = sum(release.time <= checkpoint.round for release in plan)
    # Values flowed as planned: the numbers are the same.
    if first == length and all(ledger[one.id].inputs == one.inputs for one in plan[:first]):
        return plan[first:]
    # Whatever reaches a later round does so through the state and what clients keep: take all of it for an input.
    held = {id for value in checkpoint.state.values() for id in value.sources}
    held |= {id for memory in checkpoint.memories.values() for id in memory.sources}

    def renumber(release: Release) -> Release:
        old = held if any(id < first for id in release.inputs) else set()
        new = {length + id - first for id in release.inputs if id >= first}
        return replace(release, inputs=tuple(sorted(old | new)))

    return [renumber(release) for release in plan[first:]]
