"""The runs from which a run started: their ledgers, and the epsilon of all of them together."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sightline import accounting
from sightline.accounting import Accountant
from sightline.engine.record import DATABASE, RunRecord
from sightline.errors import SightlineError, invalid
from sightline.events import Event
from sightline.ledger import NOBODY, Ledger, Parties, Release, View, read_parties
from sightline.topology import PUBLIC, Line

MADE_BY = "sightline_ledger"
"""The metadata key of a model file that names the head of the ledger under which it was made."""
MOST_SUMS = 64
"""Largest number of composition sums that are accounted; above it the runs' epsilons are added instead."""

Composed = frozenset[tuple[Event, int]]
ANYBODY = ""
"""The subject of a composition that may belong to any client."""


def read_lines(facts: Mapping[str, Any]) -> dict[str, tuple[Line, ...]]:
    """Return every kind's observer lines from the facts of a run; one each if all observers of a kind see the same."""
    given = facts.get("lines") or {}
    return {
        kind: tuple(Line(str(who), read_parties(str(exempt))) for who, exempt in given.get(kind, [(name, "")]))
        for kind, name in dict(facts.get("observers") or {}).items()
    }


@dataclass(frozen=True, eq=False)
class EarlierRun:
    """A run whose model a later one started from, directly or through others."""

    facts: Mapping[str, Any]
    """`name`, `run_dir`, `head`, `unit`, `adjacency`, `observers`, `lines` of the run, and `same_data`."""
    ledger: Ledger
    _views: dict[str, View] = field(default_factory=dict, repr=False)

    @property
    def same_data(self) -> bool:
        """Whether its clients hold the data of the later run's clients, so that names mean the same subjects."""
        return bool(self.facts["same_data"])

    def compositions(self, observer: str) -> dict[str, set[Composed]]:
        """Return subject -> what `observer` may have seen of it; under ANYBODY if clients cannot be matched.

        Guarantees: what made the model counts against every observer, since all see what is computed from it. If the
        observer has no name here, or may be another party of that name, every untrusted observer is assumed.
        """
        known = self.ledger.has_participant(observer)
        untrusted = [line for some in read_lines(self.facts).values() for line in some]
        itself = frozenset({observer}) & NOBODY.union(*(line.exempt for line in untrusted))
        lines = [Line(observer, itself)] if known else []
        if not known or not self.same_data:
            lines += untrusted
        result: dict[str, set[Composed]] = defaultdict(set)
        for line in lines:
            for subject, seen in self._view(line.observer).by_subject(line.exempt).items():
                result[subject if self.same_data else ANYBODY].add(frozenset(seen.items()))
        return result

    def _view(self, observer: str) -> View:
        """Return what an observer saw, together with what the public saw."""
        if observer not in self._views:
            view = self.ledger.view(observer)
            # The model is public, so every observer also holds what the public saw.
            if observer != PUBLIC and self.ledger.has_participant(PUBLIC):
                public = self.ledger.view(PUBLIC).reached
                if any(id in public and id not in view.reached for id in range(len(self.ledger))):
                    view = self.ledger.view({observer, PUBLIC})
            self._views[observer] = view
        return self._views[observer]


@dataclass(frozen=True, eq=False)
class EarlierRuns:
    """The chain of runs behind a model, the last one first; `unknown` says why their cost is not known, if so.

    Guarantees: `worst` is an upper bound on the epsilon of all runs composed, for every client that is in all of them.
    """

    runs: tuple[EarlierRun, ...]
    unknown: str = ""

    @property
    def same_data(self) -> bool:
        """Whether all runs were on the same data; if unknown, the clients are assumed to be the same."""
        return all(run.same_data for run in self.runs)

    def describe(self) -> list[dict[str, Any]]:
        """Return the runs for summaries and pages."""
        names = ("name", "run_dir", "releases")
        return [{name: run.facts.get(name) for name in names} for run in self.runs]

    def tell(self, *, counted: bool) -> str:
        """Return a sentence for users of such a model; `counted`: whether the budget includes all runs."""
        if self.unknown:
            return f"model.init: {self.unknown}; what all runs cost together is not known"
        data = "on the same data" if self.same_data else "on clients that are assumed to be the same"
        chain = ", ".join(str(run.facts["run_dir"]) for run in self.runs)
        way = "privacy.epsilon and stop_at_epsilon are for all of them"
        if not counted:
            way = "privacy.continue_ledger = true would keep the sum within privacy.epsilon and stop_at_epsilon"
        return f"model.init comes from {chain}, {data}: what they cost adds up with this run; {way}"

    def explain_unknown(self, unit: str, adjacency: str) -> str:
        """Return why the sum has no number next to a run of this unit and adjacency; empty if it has one."""
        if self.unknown:
            return self.unknown
        # Privacy losses of different units or adjacencies are about different changes of the data: their sum bounds
        # nothing.
        for run in self.runs:
            own = (run.facts.get("unit"), run.facts.get("adjacency"))
            if own != (unit, adjacency):
                return (
                    f"{run.facts['run_dir']} has unit {own[0]} and adjacency {own[1]}, which do not add up with these"
                )
        return ""

    def sums(self, subject: str, observer: str) -> list[Counter[Event]] | None:
        """Return what all earlier runs together may have shown `observer` of `subject`; None if there are too many."""
        parts = []
        for run in self.runs:
            result = run.compositions(observer)
            parts.append((result.get(subject) or {frozenset()}) if self.same_data else _any_of(result))
        if math.prod(map(len, parts)) > MOST_SUMS:
            return None
        return [_add(choice) for choice in product(*parts)]

    def worst(
        self, ledger: Ledger, lines: Iterable[Line], delta: float, accountant: Accountant,
        planned: Sequence[Release] = (),
    ) -> float:  # fmt: skip
        """Return the largest epsilon over several observer lines of the ledger and all earlier runs together."""
        return max((self._worst_of_line(ledger, line, delta, accountant, planned) for line in lines), default=0.0)

    def _worst_of_line(
        self, ledger: Ledger, line: Line, delta: float, accountant: Accountant, planned: Sequence[Release]
    ) -> float:
        held = ledger.view_with(planned, line.observer).by_subject(line.exempt)
        parts = [run.compositions(line.observer) for run in self.runs]
        parts.append({subject: {frozenset(seen.items())} for subject, seen in held.items()})
        groups = self._groups(parts, line.exempt)
        sums: set[Composed] = set()
        for group in groups:
            if math.prod(map(len, group)) > MOST_SUMS:
                return _added_epsilons(groups, delta, accountant)
            sums |= {frozenset(_add(choice).items()) for choice in product(*group)}
        return max((accounting.epsilon(dict(one), delta, accountant=accountant) for one in sums), default=0.0)

    def _groups(self, parts: list[dict[str, set[Composed]]], exempt: Parties) -> list[list[set[Composed]]]:
        """Return, for every distinguishable subject, what each run may have shown of it."""
        # Without a match of clients any client of one run may be any client of another: take the worst combination.
        if not self.same_data:
            return [[_any_of(part) for part in parts]]
        subjects = NOBODY.union(*parts) - exempt
        return [[part.get(subject) or {frozenset()} for part in parts] for subject in sorted(subjects)]


def _any_of(compositions: Mapping[str, set[Composed]]) -> set[Composed]:
    return set[Composed]().union(*compositions.values()) or {frozenset()}


def _add(choice: Iterable[Composed]) -> Counter[Event]:
    total: Counter[Event] = Counter()
    for composed in choice:
        total.update(dict(composed))
    return total


def _added_epsilons(groups: list[list[set[Composed]]], delta: float, accountant: Accountant) -> float:
    """Return the sum of the runs' worst epsilons, each at an equal share of delta (basic composition)."""
    columns = [set[Composed]().union(*column) for column in zip(*groups, strict=True)]
    share = delta / len(columns)
    return math.fsum(
        max(accounting.epsilon(dict(one), share, accountant=accountant) for one in column) for column in columns
    )


def find_earlier(init: Path | None, digest: str | None) -> EarlierRuns | None:
    """Return the runs behind the file from which training starts; None if no ledger is known to be behind it.

    `digest` is that of the data, if any. Raise if the file lies beside a ledger that cannot be read.
    """
    if init is None:
        return None
    # where the file really is comes first: a link or a copy in another run's folder must not borrow its ledger
    folders = (*list(init.resolve().parents)[:3], init.parent)
    directory = next((folder for folder in folders if (folder / DATABASE).exists()), None)
    if directory is not None:
        return _read_chain(init, directory, digest)
    made = _made_under(init)
    if made is None:
        return None
    return EarlierRuns((), f"{init} was made by a run whose ledger ({made[:12]}...) does not lie beside it")


def _made_under(path: Path) -> str | None:
    """Return the head of the ledger that a model file names; None if it names none."""
    try:
        with safe_open(path, framework="np") as file:
            return (file.metadata() or {}).get(MADE_BY)
    except (OSError, SafetensorError):
        return None  # the file is refused where its tensors are read


def _read_chain(init: Path, directory: Path, digest: str | None) -> EarlierRuns:
    try:
        with RunRecord.open_to_read(directory) as record:
            record.verify()
            facts, ledger, before = record.facts, record.ledger(), list(record.earlier_runs())
            head = record.store.head()
            made = _made_under(init)
            stranger = made is not None and made != head and not record.store.has_hash(made)
        settings = (directory / "config.toml").read_text(encoding="utf-8", errors="replace")
    except (SightlineError, OSError) as error:
        reason = f"lies beside a ledger that cannot be read ({' '.join(str(error).split())[:200]})"
        invalid("model.init", init, reason, "restore the ledger: without it the privacy cost of the model is unknown")
    same = digest is not None and _read_digest(directory) == digest
    kept = ("name", "unit", "adjacency", "observers", "lines", "participants")
    own = {name: facts.get(name) for name in kept}
    own |= {"run_dir": str(directory), "head": head, "releases": len(ledger), "same_data": same}
    chain = [EarlierRun(own, ledger)]
    chain += [EarlierRun(dict(one) | {"same_data": same and one["same_data"]}, held) for one, held in before]
    # A run of an older version did not record what its own start had cost. Say so instead of counting it as free.
    unknown = str((facts.get("started_from") or {}).get("unknown") or "")
    if stranger:
        unknown = f"{init} was made under another ledger ({str(made)[:12]}...) than the one of {directory}"
    elif "started_from" not in facts and any(line.startswith("init = ") for line in settings.splitlines()):
        unknown = f"{directory} was itself started from a file, and says nothing of what that had cost"
    return EarlierRuns(tuple(chain), unknown)


def _read_digest(directory: Path) -> str:
    from sightline.engine.run_directory import DIGEST

    try:
        return (directory / DIGEST).read_text(encoding="utf-8").split()[0]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def stored_earlier(record: RunRecord) -> EarlierRuns | None:
    """Return the runs from which a run started, as recorded when it began."""
    stored = record.facts.get("started_from")
    if not stored:
        return None
    runs = (EarlierRun(facts, ledger) for facts, ledger in record.earlier_runs())
    return EarlierRuns(tuple(runs), str(stored.get("unknown") or ""))


def sum_up(earlier: EarlierRuns, facts: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return what a run and all before it cost together, per kind of observer; None if infinite or unknown."""
    unknown = earlier.explain_unknown(str(facts.get("unit")), str(facts.get("adjacency")))
    accountant, delta = Accountant(facts.get("accountant") or "pld"), float(facts.get("delta") or 0.0)
    observers = {
        kind: None if unknown else _finite(earlier.worst(ledger, lines, delta, accountant))
        for kind, lines in read_lines(facts).items()
    }
    worst = None if None in observers.values() or not observers else max(value or 0.0 for value in observers.values())
    result = {"epsilon": worst, "observers": observers, "runs": earlier.describe(), "same_data": earlier.same_data}
    return result | ({"unknown": unknown} if unknown else {})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def keep_earlier(record: RunRecord, earlier: EarlierRuns | None, *, counted: bool) -> EarlierRuns | None:
    """Return the earlier runs of a run in progress: recorded when it begins, read back when it resumes.

    `counted`: whether its budget includes them. Its noise then rests on their ledgers, which must not have changed.
    """
    if record.facts.get("started_from") is None:
        if earlier is not None and not record.facts.get("created"):
            record.add_earlier([(run.facts, run.ledger) for run in earlier.runs], earlier.unknown)
        return earlier
    # The copy in the run's own database counts, not the file beside model.init, which may have been replaced since.
    stored = stored_earlier(record)
    if counted and _heads(stored) != _heads(earlier):
        reason = "the ledger beside model.init changed since the run began"
        invalid("--resume", record.directory, reason, "restore it from a backup")
    return stored


def _heads(earlier: EarlierRuns | None) -> list[str]:
    return [] if earlier is None else [str(run.facts["head"]) for run in earlier.runs]
