"""The stored state of a site: each run's progress and answers, and checks that its files agree with each other.

A file that was lost or restored from a copy contradicts the others. The files are written in this order: the
reservation (`lifetime.sqlite`), the approval, the run's store (`approvals/`), the ledger (`budget.sqlite`), the count
of the answer (`lifetime.sqlite`). A crash between two of them leaves a state that passes: nothing has left yet.
"""

import datetime
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from sightline.errors import Refused, invalid, one_line
from sightline.ledger import LedgerDamaged
from sightline.randomness import write_secret
from sightline.runtimes.remote.client_executor import Result
from sightline.runtimes.remote.message import Arrays, WireMessage, own_tensor
from sightline.runtimes.site.approval import APPROVALS, Approval, read_approved
from sightline.runtimes.site.budget import LIFETIME, RESTORE, LifetimeBudget, LifetimeRecord, events_digest
from sightline.runtimes.site.policy import POLICY, SitePolicy

BUDGET = "budget.sqlite"
ROOT = "noise-root.secret"
NOISED, UNNOISED = "noised", "unnoised"


@dataclass(frozen=True)
class RunStore:
    """The stored state of one approved run: its progress, the answers of the last round, and the client state.

    Guarantees: the file is replaced atomically, so after a crash it holds the state before a change or after it.
    """

    path: Path

    def read(self) -> WireMessage:
        """Return the stored message, empty before the first question."""
        return WireMessage.from_bytes(self.path.read_bytes()) if self.path.exists() else WireMessage()

    @property
    def run(self) -> str | None:
        """Return the run that the approval is bound to, or None."""
        run = self.read().fields.get("run")
        return None if run is None else str(run)

    def written(self) -> datetime.datetime | None:
        """Return when the file was last replaced, or None before the first question."""
        return datetime.datetime.fromtimestamp(self.path.stat().st_mtime, datetime.UTC) if self.path.exists() else None

    @property
    def last(self) -> tuple[int, ...]:
        """Return the position of the last call that was begun, or a position before all calls."""
        return tuple(self.read().fields.get("last", (0, -1)))

    @property
    def begun(self) -> Counter[str]:
        """Return how many calls of each kind were begun, where calls come in any order."""
        return Counter(self.read().fields.get("begun_of_kind", {}))

    def begin(
        self, run: str, position: tuple[int, int], asked: str, *, recorded: int, mark: tuple[int, str],
        kind: int | None = None,
    ) -> None:  # fmt: skip
        """Bind the run and mark a call as begun: from now on only this exact question is answered for it.

        `recorded` is the number of this run's answers in the ledger: a call that a crash kept out of it does not count
        as begun. `mark` is the newest mark of the budget: a budget that later does not know it is an older copy.
        A call of a `kind` is counted in the same write.
        """
        stored = self.read()
        # Only the last round is kept: a resumed run repeats that round, and calls come in increasing order.
        round = f"{position[0]}."
        answers = {name: one for name, one in stored.fields.get("answers", {}).items() if name.startswith(round)}
        arrays = {n: a for n, a in stored.arrays.items() if not n.startswith("answer/") or n[7:] in answers}
        begun: dict[str, Any] = {"run": run, "last": list(position), "asked": asked}
        begun |= {"begun": recorded + 1, "mark": list(mark)}
        if kind is not None:
            begun["begun_of_kind"] = dict(self.begun + Counter([str(kind)]))
        self._write({**stored.fields, **begun, "answers": answers}, arrays)

    def put_answer(
        self, position: tuple[int, int], asked: str, answer: WireMessage, memory: str, result: Result
    ) -> None:
        """Store an answer and the client state that follows from it."""
        stored, name = self.read(), f"{position[0]}.{position[1]}"
        answers = {**stored.fields["answers"], name: {"asked": asked, "words": dict(answer.fields)}}
        kinds = dict(stored.fields.get("kinds", {}))
        arrays = {**stored.arrays, f"answer/{name}": answer.arrays["value"]}
        if result.kept is not None:
            kinds[memory] = NOISED if result.noised else UNNOISED
            arrays[f"kept/{memory}"] = result.kept.numpy()
        self._write({**stored.fields, "answers": answers, "kinds": kinds}, arrays)

    def _write(self, fields: Mapping[str, Any], arrays: Arrays) -> None:
        write_secret(self.path, WireMessage(fields, arrays).to_bytes())

    def answer_to(self, position: tuple[int, int], asked: str) -> WireMessage | None:
        """Return the stored answer to this exact question if it was asked in the last round, or None."""
        stored, name = self.read(), f"{position[0]}.{position[1]}"
        answer = stored.fields.get("answers", {}).get(name)
        if answer is None or answer["asked"] != asked:
            return None
        return WireMessage(answer["words"], {"value": stored.arrays[f"answer/{name}"]})

    def refuse_passed(self, position: tuple[int, int], asked: str) -> None:
        """Raise Refused for a call that is not after the last one, unless a crash kept that one from its answer."""
        fields = self.read().fields
        last = self.last
        # Fresh noise for a repeated call would give the server two noisy versions of one value, charged once.
        if position > last or (position == last and fields["asked"] == asked):
            return
        at = f"round {position[0]}, use {position[1]}"
        if position == last or f"{position[0]}.{position[1]}" in fields["answers"]:
            raise Refused(f"call={at}: answered already, with other vectors; a call is answered once")
        raise Refused(f"call={at}: the run is past it, at round {last[0]}, use {last[1]}; calls must come in order")

    def refuse_spent(self, kind: int, most: int, asked: str) -> None:
        """Raise Refused if all calls of a kind were begun, unless this question is the last one begun."""
        fields = self.read().fields
        if self.begun[str(kind)] >= most and fields.get("asked") != asked:
            raise Refused(f"call={most} of this kind: all that were approved have been asked for")

    def kept(self, memory: str) -> tuple[Tensor | None, bool]:
        """Return the client state, and whether it was made from noised values only."""
        stored = self.read()
        array = stored.arrays.get(f"kept/{memory}")
        return (None, True) if array is None else (own_tensor(array), stored.fields["kinds"][memory] == NOISED)

    def check_ledger(self, recorded: int) -> None:
        """Raise LedgerDamaged if the ledger has more or fewer answers of the run than were begun."""
        fields = self.read().fields
        begun = fields.get("begun", 0)
        last = ".".join(map(str, fields.get("last", ())))
        # A crash between `begin` and the ledger leaves one call begun and not recorded: that state is honest.
        unanswered = begun > 0 and last not in fields["answers"]
        if recorded not in ({begun, begun - 1} if unanswered else {begun}):
            refuse_missing_answers(BUDGET)


def refuse_missing_answers(file: str) -> NoReturn:
    """Raise LedgerDamaged for a file that lacks answers that have left the site."""
    raise LedgerDamaged(one_line("state", file, "lacks answers that this site gave", "restore the newest state/"))


def prepare_state(folder: Path) -> Path:
    """Return the state folder of a site, made if it is missing; raise InvalidInput if another user owns it."""
    # Files that another user writes there could not be read by the site's own process.
    state = folder / "state"
    owned = state if state.exists() else folder
    if owned.stat().st_uid != os.geteuid():
        invalid("state", owned, "belongs to another user", "run this as its owner: runuser -u OWNER -- sightline ...")
    state.mkdir(mode=0o700, exist_ok=True)
    if (state / LIFETIME).exists() and not (state / ROOT).exists():
        _damaged(ROOT, "is gone, and answers may have left with noise from it")
    return state


def check_pinned(budget: LifetimeBudget, policy: SitePolicy, root: str) -> None:
    """Raise unless the noise root, by its fingerprint, and the site's number are those that the state began with."""
    if budget.pin(ROOT, root) != root:
        _damaged(ROOT, "is not the one that this state began with")
    number = budget.pin("client", str(policy.client))
    if number != str(policy.client):
        reason = f"this state belongs to client {number}"
        invalid(f"{POLICY}: client", policy.client, reason, "put the old value back")


def check_reservations(approvals: Sequence[Approval], ended: Collection[str], record: LifetimeRecord) -> None:
    """Raise LedgerDamaged unless every approval has its reservation, and every ended one is recorded as ended."""
    for approval in approvals:
        if record.events.get(approval.id) != events_digest(approval.composition):
            _damaged(LIFETIME, f"holds no reservation of approval {approval.id}")
    # The reverse is allowed: a crash between the two records of an ending leaves only the first.
    for id in ended:
        if id not in record.ended:
            _damaged(LIFETIME, f"does not know that approval {id} has ended")


def check_answers(runs: Mapping[str, Mapping[str, Any]], record: LifetimeRecord, joints: Collection[str]) -> None:
    """Raise LedgerDamaged unless every answer belongs to an approval, a reservation and a row of the ledger.

    `runs` holds the stored state of every approval's run, empty if no run has begun; `joints` are the ledger's names.
    """
    answers = [tuple(what.split(" ")[1:]) for what in record.counted if what.startswith("answer ")]
    for id, index in answers:
        if f"{id}, {index}" not in joints:
            _damaged(BUDGET, f"lacks answer {index} of approval {id}")
    for id in {joint.partition(", ")[0] for joint in joints}:
        if id not in record.events:
            _damaged(LIFETIME, f"holds no reservation of approval {id}, which has answered")
        if id not in runs:
            _damaged(APPROVALS, f"lacks approval {id}, which has answered")
    for run in runs.values():
        # Marks older than REMEMBERED are dropped from the record, so a missing number alone proves nothing.
        number, head = run.get("mark", (0, None))
        if number > max(record.marks) or (head is not None and record.marks.get(number, head) != head):
            _damaged(LIFETIME, f"is older than the run that knew change {number}")


def check_unit(approvals: Sequence[Approval], policy: SitePolicy) -> None:
    """Raise InvalidInput if the budget was spent on another unit: costs per example and per client do not add up."""
    for approval in approvals:
        privacy = read_approved(approval).privacy
        if (privacy.unit, privacy.adjacency) != (policy.unit, policy.adjacency):
            reason = f"the lifetime budget was begun for unit={privacy.unit}, adjacency={privacy.adjacency}"
            invalid(f"{POLICY}: unit", f"{policy.unit}/{policy.adjacency}", reason, "put the old values back")


def _damaged(file: str, reason: str) -> NoReturn:
    raise LedgerDamaged(one_line("state", file, f"it {reason}: it was lost, or it is an older copy", RESTORE))
