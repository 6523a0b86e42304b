"""The ledger: releases, how they are stored, and the flow of information through them."""

from sightline.ledger.export import SCHEMA, Pages, Row, export_ledger, read_export
from sightline.ledger.flow import Composition, View
from sightline.ledger.group_pairs import GroupPlan, LedgerPairs, Pairs, Rhythm, Threat, ledger_pairs, planned_pairs
from sightline.ledger.ledger import Ledger, Store
from sightline.ledger.release import (
    NOBODY,
    POST_PROCESSING,
    Draw,
    Parties,
    Release,
    parties,
    read_parties,
    release_from,
    write_parties,
)
from sightline.ledger.step_ledger import StepKind, StepLedger, read_ledger
from sightline.ledger.store import (
    GENESIS,
    Entry,
    EntryKind,
    Journal,
    LedgerDamaged,
    SqliteStore,
    connect_to_read,
    connect_to_write,
    digest_of,
    transaction,
)

__all__ = [
    "GENESIS",
    "NOBODY",
    "POST_PROCESSING",
    "SCHEMA",
    "Composition",
    "Draw",
    "Entry",
    "EntryKind",
    "GroupPlan",
    "Journal",
    "Ledger",
    "LedgerDamaged",
    "LedgerPairs",
    "Pages",
    "Pairs",
    "Parties",
    "Release",
    "Rhythm",
    "Row",
    "SqliteStore",
    "StepKind",
    "StepLedger",
    "Store",
    "Threat",
    "View",
    "connect_to_read",
    "connect_to_write",
    "digest_of",
    "export_ledger",
    "ledger_pairs",
    "parties",
    "planned_pairs",
    "read_export",
    "read_ledger",
    "read_parties",
    "release_from",
    "transaction",
    "write_parties",
]
