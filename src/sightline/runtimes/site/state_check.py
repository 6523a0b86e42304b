"""Consistency checks between the files of a site's state: a lost or restored file contradicts the others.

The files are written in this order: the reservation (`lifetime.sqlite`), the approval, the run's store (`approvals/`),
the ledger (`budget.sqlite`), the count of the answer (`lifetime.sqlite`). A crash between two of them leaves a state
that passes: nothing has left the site yet.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sightline.errors import invalid, one_line
from sightline.ledger import LedgerDamaged
from sightline.runtimes.site.approval import APPROVALS, Approval, read_approved
from sightline.runtimes.site.budget import LIFETIME, RESTORE, LifetimeBudget
from sightline.runtimes.site.budget_store import LifetimeRecord, events_digest
from sightline.runtimes.site.policy import POLICY, SitePolicy

BUDGET = "budget.sqlite"
ROOT = "noise-root.secret"


def prepare_state(folder: Path) -> Path:
    """Return the state folder of a site, made where it is missing; raise where this user must not work in it.

    Files that another user writes there could not be read by the site's own process.
    """
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
        invalid(
            f"{POLICY}: client", policy.client, f"this state was begun by client {number}", "put the old value back"
        )


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
    for id, place in answers:
        if f"{id}, {place}" not in joints:
            _damaged(BUDGET, f"lacks answer {place} of approval {id}")
    for id in {joint.partition(", ")[0] for joint in joints}:
        if id not in record.events:
            _damaged(LIFETIME, f"holds no reservation of approval {id}, which has answered")
        if id not in runs:
            _damaged(APPROVALS, f"lacks approval {id}, which has answered")
    for words in runs.values():
        # Marks older than REMEMBERED are dropped from the record, so a missing number alone proves nothing.
        number, head = words.get("mark", (0, None))
        if number > max(record.marks) or (head is not None and record.marks.get(number, head) != head):
            _damaged(LIFETIME, f"is older than the run that knew change {number}")


def check_unit(approvals: Sequence[Approval], policy: SitePolicy) -> None:
    """Raise InvalidInput if the budget was spent on another unit: costs per example and per client do not add up."""
    for approval in approvals:
        privacy = read_approved(approval).privacy
        if (privacy.unit, privacy.adjacency) != (policy.unit, policy.adjacency):
            law = f"the budget for life was begun for unit={privacy.unit}, adjacency={privacy.adjacency}"
            invalid(f"{POLICY}: unit", f"{policy.unit}/{policy.adjacency}", law, "put the old values back")


def _damaged(file: str, law: str) -> NoReturn:
    raise LedgerDamaged(one_line("state", file, f"it {law}: it was lost, or it is an older copy", RESTORE))
