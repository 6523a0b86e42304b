"""What a run says about itself: settings as they were used, and its promise in words."""

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sightline.engine.setting import Setting
from sightline.mechanisms import CentralMean, LocalMean, SampleAtClient, SampleAtServer

PACKAGES = ("sightline", "torch", "numpy", "scipy", "dp-accounting", "scikit-learn")

ADJACENCY = {
    "add_remove": "with or without that {unit} (its contribution zeroed out; all counts are public)",
    "replace": "with that {unit}'s data exchanged for any other",
}


def facts_of(setting: Setting) -> dict[str, Any]:
    """Everything the report needs to know once."""
    experiment, federation, privacy = setting.experiment, setting.federation, setting.experiment.privacy
    return {
        "name": experiment.name,
        "rounds_planned": experiment.rounds,
        "seed": experiment.seed,
        "sightline_version": version("sightline"),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "source": federation.source,
        "kind": str(federation.kind),
        "clients": len(federation.clients),
        "classes": federation.classes,
        "sizes": federation.sizes.tolist(),
        "data_notes": list(federation.notes),
        "model": setting.model.name,
        "parameters": setting.model.parameters,
        "algorithm": setting.algorithm.name,
        "algorithm_settings": dataclasses.asdict(setting.settings),
        "personal": setting.algorithm.personal,
        "topology": experiment.topology.kind,
        "unit": privacy.unit,
        "adjacency": privacy.adjacency,
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "where": privacy.place,
        "clip_norm": privacy.clip_norm if privacy.unit != "none" else None,
        "noise_multiplier": noise_multiplier(setting),
        "target_epsilon": privacy.epsilon,
        "stop_at_epsilon": privacy.stop_at_epsilon,
        "noise_source": privacy.noise_source,
        "sampling": {
            "clients": experiment.sampling.clients.model_dump(exclude_none=True),
            "samples": {"scheme": experiment.samples_scheme},
        },
        "observers": setting.topology.observers,
        "trusted": list(setting.topology.trusted),
        "guarantee": guarantee(setting),
        "caveats": caveats(setting),
    }


def versions() -> dict[str, str]:
    """The versions that the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def noise_multiplier(setting: Setting) -> float | dict[str, float] | None:
    """z, or its range when every client has its own."""
    mechanism = setting.mechanism
    if isinstance(mechanism, CentralMean | LocalMean):
        return mechanism.noise_multiplier
    if isinstance(mechanism, SampleAtClient | SampleAtServer):
        found = {plan.noise_multiplier for plan in mechanism.plans.values()}
        return found.pop() if len(found) == 1 else {"min": min(found), "max": max(found)}
    return None


def guarantee(setting: Setting) -> list[str]:
    """The promise, in sentences."""
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return ["No privacy guarantee: updates are published without noise."]
    unit = {"client": "client", "sample": "single example of a client"}[privacy.unit]
    sentences = [
        f"Protects every {unit}: what is published is almost as likely "
        + ADJACENCY[privacy.adjacency].format(unit=unit)
        + ".",
    ]
    if setting.topology.trusted:
        sentences.append(
            "The server is trusted: it receives the updates, adds the noise and keeps the cohorts secret. "
            "The guarantee is against everybody else."
        )
    else:
        sentences.append("Nobody is trusted: the noise is added by each client before anything leaves it.")
    scheme = setting.experiment.sampling.clients.scheme
    if scheme == "fixed" and privacy.adjacency == "add_remove" and privacy.unit == "client":
        sentences.append(
            "Cohorts of a fixed size under add/remove adjacency: no amplification by sampling is claimed. "
            'adjacency = "replace" accounts for it.'
        )
    if setting.algorithm.says:
        sentences.append(setting.algorithm.says)
    return sentences


def caveats(setting: Setting) -> list[str]:
    """What the guarantee does not cover."""
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return []
    source = (
        "Noise, cohorts and coins come from the seed: reproducible, and no protection against who knows the seed. "
        'Use noise_source = "os" for real people\'s data.'
        if privacy.noise_source == "seed"
        else "Noise, cohorts and coins come from the operating system's entropy, kept in an owner-only file."
    )
    notes = [
        source,
        "Accuracies, losses and the count of rejected updates are diagnostics of this run, outside the guarantee.",
        "Pair guarantees exclude collusion; a coalition sees the union of its members' views.",
        "Floating-point side channels and the tuning of hyper-parameters on private data are not accounted.",
    ]
    if setting.federation.notes and setting.experiment.data.reuse:
        notes.append("Data are dealt to several clusters anew: epsilon is per copy of an example.")
    return notes
