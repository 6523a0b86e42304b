"""Data sets, partitions into clients, and the resulting federation."""

from sightline.data.federation import Client, Federation, Kind, Shard
from sightline.data.load import DatasetStatus, available_datasets, load_federation
from sightline.data.own import PYTHON, GivenData, read_given

__all__ = [
    "PYTHON",
    "Client",
    "DatasetStatus",
    "Federation",
    "GivenData",
    "Kind",
    "Shard",
    "available_datasets",
    "load_federation",
    "read_given",
]
