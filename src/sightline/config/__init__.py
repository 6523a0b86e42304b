"""Experiment files: TOML to frozen, validated experiments."""

from sightline.config.experiment import (
    FACTORY,
    Algorithm,
    Augment,
    ClientSampler,
    Data,
    Experiment,
    Features,
    Local,
    Model,
    Privacy,
    Resources,
    Sampler,
    SampleSampler,
    Sampling,
    Topology,
)
from sightline.config.experiment_file import parse, read, to_toml
from sightline.config.rules import AdaptiveClipping, Correlated, Split

__all__ = [
    "FACTORY",
    "AdaptiveClipping",
    "Algorithm",
    "Augment",
    "ClientSampler",
    "Correlated",
    "Data",
    "Experiment",
    "Features",
    "Local",
    "Model",
    "Privacy",
    "Resources",
    "SampleSampler",
    "Sampler",
    "Sampling",
    "Split",
    "Topology",
    "parse",
    "read",
    "to_toml",
]
