"""Data sets, partitions into clients, and the resulting federation."""

from sightline.data.federation import Client, Federation, Kind, Shard
from sightline.data.given import PYTHON, GivenData, read_given, settle_data, settle_experiment
from sightline.data.load import (
    DatasetStatus,
    available_datasets,
    deal_given,
    hold_validation,
    load_federation,
    load_settled,
)

__all__ = [
    "PYTHON",
    "Client",
    "DatasetStatus",
    "Federation",
    "GivenData",
    "Kind",
    "Shard",
    "available_datasets",
    "deal_given",
    "hold_validation",
    "load_federation",
    "load_settled",
    "read_given",
    "settle_data",
    "settle_experiment",
]
