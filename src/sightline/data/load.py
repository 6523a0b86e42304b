"""Find data sets on disk, list which are available, and load an experiment's federation from them."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data, Experiment
from sightline.data import partition as ways
from sightline.data.features import transform_table
from sightline.data.federation import Federation, Index, Kind, Partition, Request, Shard, Shift, Source, Table
from sightline.data.given import PYTHON, GivenData, read_given, settle_data, settle_experiment
from sightline.data.own import load_own
from sightline.data.partition import deal_clients, keep_fewer, lay_out, split_examples
from sightline.data.sources import SOURCES, find_source
from sightline.data.targets import as_task
from sightline.errors import invalid
from sightline.randomness import Purpose, Streams

VARIABLE = "SIGHTLINE_DATA"


def data_root(root: Path | None = None) -> Path:
    """Return the data folder: `root` if given, else SIGHTLINE_DATA, else `data/` in the working folder."""
    return Path(root) if root is not None else Path(os.environ.get(VARIABLE) or "data")


def folder_of(source: Source, root: Path) -> Path:
    """Return the source's folder; raise if files are missing."""
    folder = root / source.name
    missing = source.missing(folder)
    if missing:
        where = f"looked for {missing[0]} in {folder.absolute()}"
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        reason = f"{where}{more}, not found" if root.is_dir() else f"no data folder {root.absolute()} ({where}{more})"
        way_out = f"{VARIABLE} names the folder that holds {source.name}/, and `sightline datasets` tells how to get it"
        invalid("data.source", source.name, reason, way_out)
    return folder


@dataclass(frozen=True)
class DatasetStatus:
    """One line of `sightline datasets`."""

    name: str
    available: bool
    kind: str
    examples: str
    partitions: tuple[str, ...]
    options: tuple[str, ...]
    looked_in: str
    """The folder that was searched; empty if the data set needs no file."""
    missing: tuple[str, ...]
    how_to_get: str
    licence: str


def available_datasets(root: Path | None = None) -> list[DatasetStatus]:
    """Return the state of every registered source under `root` (default as in `data_root`); reads no file."""
    folder = data_root(root)
    return [_source_status(source, folder) for source in SOURCES.values()]


def _source_status(source: Source, root: Path) -> DatasetStatus:
    folder = root / source.name
    missing = source.missing(folder)
    where = f"put {_listed_files(source)} into {source.name}/ under the folder that {VARIABLE} names"
    return DatasetStatus(
        name=source.name,
        available=not missing,
        kind=str(source.kind),
        examples=source.examples,
        partitions=tuple(str(partition) for partition in source.partitions),
        options=tuple(source.options),
        looked_in=str(folder.absolute()) if source.files else "",
        missing=missing,
        how_to_get=f"{source.how_to_get}; {where}" if source.files else source.how_to_get,
        licence=source.licence,
    )


def _listed_files(source: Source) -> str:
    return ", ".join(source.files[0]) if source.files else ""


TRAIN, TEST, VALIDATION = 0, 1, 2
"""What a stream of sub-samples or splits is for (its `round`)."""
SHIFTS = {Partition.ROTATION: Shift.ROTATION, Partition.LABEL_SHIFT: Shift.LABELS}


def load_federation(
    settings: Data, *, streams: Streams, root: Path | None = None, task: str = "classification"
) -> Federation:
    """Read the source that `settings` name and deal it to clients, with the targets that `task` predicts.

    `root` is the data folder; by default the folder that SIGHTLINE_DATA names, else `data/` in the working folder. A
    source `package.module:function` is the user's own function, and a path is the user's own file or folder
    (docs/data.md).

    Guarantees: equal settings and streams give equal shards. Every client has a training example. Every shard has
    finite inputs and finite targets, labels being 0 .. classes - 1.
    """
    if settings.source == PYTHON:
        reason = "the examples were passed from Python and are not stored in the file"
        invalid("data.source", PYTHON, reason, "pass them again: sightline.run(..., data=...)")
    if settings.is_path:
        given = read_given(settings.source, None, settings.options)
        settled = settings.model_copy(update=settle_data(settings, given, task, source=settings.source))
        return deal_given(given, settled, streams, task)
    if ":" in settings.source:
        return load_own(settings, streams=streams, task=task)
    source = find_source(settings.source)
    _check_partition(source, settings)
    options = source.checked_options(settings.options)
    folder = folder_of(source, data_root(root)) if source.files else Path()
    table = as_task(source.read(Request(settings, streams, folder, options, task)), settings, task)
    table = transform_table(table, settings)
    return _build_federation(table, settings, options.get("users", ""), streams)


def load_settled(experiment: Experiment, streams: Streams) -> tuple[Experiment, Federation]:
    """Read the file or folder that `data.source` names; return the experiment with its clients and the federation."""
    settings, task = experiment.data, experiment.model.target
    given = read_given(settings.source, None, settings.options)
    experiment = settle_experiment(experiment, given, source=settings.source)
    return experiment, deal_given(given, experiment.data, streams, task)


def deal_given(given: GivenData, settings: Data, streams: Streams, task: str = "classification") -> Federation:
    """Return the federation of given data: of the clients that they name, or dealt by the partition of the settings."""
    if settings.partition == "natural":
        return given.deal(settings, streams, task)
    _check_reuse(settings)
    table = as_task(given.as_table(settings, task), settings, task)
    if table.test is not None:
        # As for clients that bring their own: a given test set is the only one, and no examples are split.
        settings = settings.model_copy(update={"test_fraction": 0.0})
    return _build_federation(table, settings, settings.options.get("users", ""), streams)


def hold_validation(federation: Federation, fraction: float, streams: Streams) -> Federation:
    """Return the federation with a share of every client's training examples held out for validation.

    Guarantees: no example is in both. Every client keeps a training example, and holds one out if it has two. A
    fraction of 0 changes nothing. Raises for data that are at sites of their own.
    """
    if fraction == 0:
        return federation
    if federation.elsewhere:
        reason = "the examples are at sites of their own, which hold none out"
        invalid("data.validation_fraction", fraction, reason, "leave it out")
    clients = []
    for number, client in enumerate(federation.clients):
        rng = streams.rng(Purpose.SPLIT, round=VALIDATION, participant=number)
        kept, held = split_examples(np.arange(len(client.train)), test_fraction=fraction, rng=rng)
        train, validation = (client.train.take(np.sort(index)) for index in (kept, held))
        clients.append(replace(client, train=train, validation=validation))
    held_out = sum(len(client.validation or ()) for client in clients)
    note = f"data.validation_fraction: {held_out:,} training examples are held out; metrics on them are of private data"
    return replace(federation, clients=tuple(clients), notes=(*federation.notes, note))


def _build_federation(table: Table, settings: Data, users: str, streams: Streams) -> Federation:
    # Sub-sampling, partition and splits draw from separate streams: changing one does not change the others.
    rng = streams.rng(Purpose.SUBSAMPLE, round=TRAIN)
    _enough_examples(settings, len(table) if settings.train_samples is None else settings.train_samples)
    partition = Partition(settings.partition)
    natural, shift = partition is Partition.NATURAL, SHIFTS.get(partition, Shift.NONE)
    table = keep_fewer(table, name="data.train_samples", keep=settings.train_samples, rng=rng, every_owner=natural)
    _check_shift(table, settings, shift)
    parts = _deal_parts(table, settings, users, streams.rng(Purpose.PARTITION))
    clusters = ways.cluster_of(settings.clusters) if settings.clusters is not None else None
    clients, union = deal_clients(
        table, parts, test_fraction=settings.test_fraction, streams=streams, cluster=clusters, shift=shift
    )
    test = _common_test(table, settings, union, shift, streams)
    notes = (*table.notes, *_partition_notes(table, parts, settings, shift))
    return Federation(settings.source, clients, test, table.classes, table.kind, table.vocabulary, notes)


def _deal_parts(table: Table, settings: Data, users: str, rng: np.random.Generator) -> list[Index]:
    clients = settings.clients
    match Partition(settings.partition):
        case Partition.IID:
            return ways.deal_iid(len(table), clients=clients, rng=rng)
        case Partition.DIRICHLET:
            return ways.deal_dirichlet(table.labels, clients=clients, concentration=settings.concentration, rng=rng)
        case Partition.LABEL_SHARDS:
            each = settings.labels_per_client
            return ways.label_shards(table.labels, clients=clients, labels_per_client=each, rng=rng)
        case Partition.ROTATION | Partition.LABEL_SHIFT:
            return ways.deal_clusters(len(table), clusters=settings.clusters or (), reuse=settings.reuse, rng=rng)
        case Partition.BY_USER if users == "grouped":
            return ways.grouped_users(_owner_of(table), clients=clients, rng=rng)
        case Partition.BY_USER:
            return ways.one_user_each(_owner_of(table), clients=clients)
        case Partition.NATURAL:
            return ways.by_owner(_owner_of(table), clients=clients)


def _owner_of(table: Table) -> NDArray[np.int64]:
    if table.owner is None:
        reason = "the data does not name the user of each example"
        invalid("data.partition", "by_user", reason, 'use "iid", or give them by user, e.g. in a column "client"')
    return table.owner


def _common_test(table: Table, settings: Data, union: Shard, shift: Shift, streams: Streams) -> Shard:
    """Return the source's own test split, transformed per cluster, else the union of the clients' test shards."""
    rng = streams.rng(Purpose.SUBSAMPLE, round=TEST)
    if table.test is None:
        if not len(union):
            reason = "this source has no test set, and the clients keep no examples for testing"
            invalid("data.test_fraction", settings.test_fraction, reason, "use 0.2 and two examples a client")
        return _fewer_of(union, settings.test_samples, rng)
    test = keep_fewer(table.test, name="data.test_samples", keep=settings.test_samples, rng=rng)
    clusters = settings.clusters or (1,)
    if len(clusters) == 1:
        return test.shard(np.arange(len(test)))
    rng = streams.rng(Purpose.PARTITION, round=TEST)
    # A global model is tested on what its clients see: each cluster's share is proportional to its number of clients.
    shares = ways.share_by_cluster(len(test), clusters=clusters, rng=rng)
    return lay_out(test, shares, range(len(clusters)), shift=shift)[1]


def _fewer_of(shard: Shard, keep: int | None, rng: np.random.Generator) -> Shard:
    if keep is None or keep == len(shard):
        return shard
    if keep > len(shard):
        invalid(
            "data.test_samples", keep, f"the clients keep {len(shard):,} test examples", f"use at most {len(shard)}"
        )
    return shard.take(np.sort(rng.permutation(len(shard))[:keep]))


def _check_partition(source: Source, settings: Data) -> None:
    if settings.partition not in source.partitions:
        reason = f"does not fit the source {source.name}"
        invalid("data.partition", settings.partition, reason, "use " + " or ".join(f'"{p}"' for p in source.partitions))
    _check_reuse(settings)


def _check_reuse(settings: Data) -> None:
    if settings.reuse and settings.clusters is None:
        reason = "only clusters can each get the whole data set"
        invalid("data.reuse", "true", reason, 'use partition = "rotation" or "label_shift", or reuse = false')


def _check_shift(table: Table, settings: Data, shift: Shift) -> None:
    count = len(settings.clusters or ())
    if shift is Shift.ROTATION and count > 4:
        invalid("data.clusters", settings.clusters, "there are only 4 quarter turns", "use at most 4 clusters")
    if shift is Shift.ROTATION and (table.kind is not Kind.IMAGE or table.x.shape[-1] != table.x.shape[-2]):
        invalid("data.partition", "rotation", "only square images can be rotated", 'use "label_shift"')
    if shift is Shift.LABELS and count > table.classes:
        reason = f"{table.classes} classes have only {table.classes} shifts"
        invalid("data.clusters", settings.clusters, reason, f"use at most {table.classes} clusters")


def _enough_examples(settings: Data, examples: int) -> None:
    needed = max(settings.clusters or (1,)) if settings.reuse else settings.clients
    if examples < needed:
        way_out = f"use at most {examples}" if settings.train_samples is None else "give more train_samples"
        invalid("data.clients", settings.clients, f"more clients than the {examples:,} examples", way_out)


def _partition_notes(table: Table, parts: list[Index], settings: Data, shift: Shift) -> list[str]:
    # Facts that are treated as public, or that limit what epsilon protects, must appear in the report.
    notes = []
    dealt = sum(len(part) for part in parts)
    if shift is Shift.ROTATION:
        notes.append("rotation: the images of cluster k are turned by k x 90 degrees, counter-clockwise")
    if shift is Shift.LABELS:
        notes.append(f"label_shift: in cluster k the label y is (y + k) mod {table.classes}")
    if Partition(settings.partition) is Partition.BY_USER and dealt < len(table):
        notes.append("by_user: the users with most examples; that they have most is treated as public")
    if settings.reuse:
        notes.append("reuse: every cluster gets the whole data set; epsilon protects one copy of an example")
    elif dealt < len(table):
        notes.append(f"{settings.partition}: {dealt:,} of {len(table):,} examples are dealt, the rest is not used")
    return notes
