"""Data sets, ways to deal them to clients, and the federation that results."""

from sightline.data.federation import Client, Federation, Kind, Shard
from sightline.data.load import DatasetStatus, available_datasets, load_federation

__all__ = ["Client", "DatasetStatus", "Federation", "Kind", "Shard", "available_datasets", "load_federation"]
