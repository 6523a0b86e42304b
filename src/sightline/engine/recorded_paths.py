"""The paths of a run's local training: chosen when it begins, written into its journal, and never chosen again."""

from collections.abc import Callable
from dataclasses import replace

from sightline.engine.build import BuiltExperiment
from sightline.engine.record import RunRecord
from sightline.errors import invalid
from sightline.ledger import EntryKind
from sightline.training.measure_paths import missing_paths
from sightline.training.paths import BY_RULE, Paths, read_paths
from sightline.training.planned_work import choose_paths, local_work

ACCEPT = "--accept-changes"

ChoosePaths = Callable[[BuiltExperiment], Paths]
"""The paths of a run that begins."""


def paths_by_rule(setting: BuiltExperiment) -> Paths:
    """Those of clients on other machines than this one: every machine would measure something else."""
    return BY_RULE


def paths_by_measuring(setting: BuiltExperiment) -> Paths:
    """The fastest on this machine; by rule where `local.paths` or `SIGHTLINE_PATHS` says so."""
    return choose_paths(setting.experiment, setting.model, setting.federation.sizes.tolist())


def settle_paths(
    record: RunRecord, setting: BuiltExperiment, choose: ChoosePaths, *, begun: bool, accept: bool
) -> BuiltExperiment:
    """The setting with the paths of its run: chosen for a new one, those of its journal for one that goes on.

    Guarantees: what was measured since, the cache and the environment have no say in a run that has begun. A recorded
    path that does not exist on this machine is refused; who accepts the change goes on by rule there, and the change is
    treated as other code is: the interrupted round is made again with other noise.
    """
    known = record.journal.last(EntryKind.START, EntryKind.RESUME)
    if not known:  # a new run, or one of a version that kept no journal and had the rule's paths
        return setting if begun else replace(setting, paths=choose(setting))
    paths = read_paths(known[0].body.get("paths"))
    missing = missing_paths(setting.model, local_work(setting.experiment), paths)
    if missing and not accept:
        told = ", ".join(f"{field} = {path}" for field, path in missing.items())
        law = f"it trains by paths that do not exist on this machine: {told}"
        invalid("--resume", record.directory, law, f"go on where it began, or by rule with {ACCEPT}")
    return replace(setting, paths=replace(paths, **{field: getattr(BY_RULE, field) for field in missing}))
