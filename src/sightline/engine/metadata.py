"""Facts that a run records once: settings, versions, the guarantee in sentences, caveats, and expected use."""

import dataclasses
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sightline import mkl
from sightline.accounting import large_delta_note
from sightline.config import Privacy
from sightline.engine.build import BuiltExperiment
from sightline.events import Unit
from sightline.ledger import write_parties
from sightline.models import is_given_model
from sightline.training import clipping_note
from sightline.training.dispatch import describe_device


def load_of(setting: BuiltExperiment) -> list[dict[str, Any]]:
    """Return how often clients and examples are used, for those that are sampled or scheduled.

    Guarantees: a function of public settings and sizes; the schedule, the cohorts and their streams are not used.
    """
    found: list[dict[str, Any]] = []
    sampler = next(iter(setting.samplers.values()))
    load = sampler.load(setting.algorithm.cohorts(setting.experiment))
    if load is not None:
        found.append({"who": "client", "steps_are": "rounds", "members": len(setting.clients)} | load)
    sizes = setting.federation.sizes.tolist()
    largest = max(setting.clients, key=lambda client: sizes[client])
    steps, samples = setting.mechanism.steps_of(largest), setting.experiment.sampling.samples
    if samples is not None and steps is not None and steps.allotment is not None:
        who = {"who": "example", "steps_are": "steps of the largest client", "members": sizes[largest]}
        found.append(who | steps.allotment.load(samples.epochs or 1))
    return found


def _samples_of(setting: BuiltExperiment) -> str:
    """Return how examples are drawn, or that batches have a fixed order."""
    experiment = setting.experiment
    ordered = experiment.privacy.unit == "sample" and experiment.privacy.noise == "correlated"
    return "fixed order" if ordered else experiment.samples_scheme


PACKAGES = ("sightline", "torch", "numpy", "scipy", "dp-accounting", "scikit-learn")

ADJACENCY = {
    "add_remove": "with or without that {unit} (its contribution zeroed out; all counts are public)",
    "replace": "with that {unit}'s data or any other in their place",
}


def facts_of(setting: BuiltExperiment, *, real_sites: bool = False) -> dict[str, Any]:
    """Return everything the report needs to know once; `real_sites` always draw their own noise."""
    experiment, federation, privacy = setting.experiment, setting.federation, setting.experiment.privacy
    return {
        "name": experiment.name,
        "rounds_planned": experiment.rounds,
        "seed": experiment.seed,
        **machine_facts(setting),
        "source": federation.source,
        "kind": str(federation.kind),
        "clients": len(federation.clients),
        "participants": write_parties(setting.participants),
        "classes": federation.classes,
        "input_shape": list(federation.input_shape),
        "vocabulary": federation.vocabulary,
        "outputs": setting.model.classes,
        "target_shape": list(setting.model.task.target_shape),
        "whole_targets": setting.model.task.whole,
        "sizes": federation.sizes.tolist(),
        "data_notes": [*federation.notes, *_speed_notes(setting)],
        "model": setting.model.name,
        "task": setting.model.task.name,
        "loss": setting.model.task.loss_name,
        "metric": setting.model.task.metric.name,
        "metrics": list(setting.model.task.kind.metrics),
        "parameters": setting.model.parameters,
        "algorithm": setting.algorithm.name,
        "algorithm_settings": dataclasses.asdict(setting.settings),
        "upcycle": experiment.algorithm.settings.get("upcycle"),
        "split": None if setting.splitter is None else setting.splitter.facts,
        "control": experiment.algorithm.settings.get("control"),
        "personal": setting.algorithm.personal,
        "topology": experiment.topology.kind,
        "resources": experiment.resources.model_dump() if experiment.resources else None,
        "unit": privacy.unit,
        "adjacency": privacy.adjacency,
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "where": privacy.place,
        "clip_norm": privacy.clip_norm if privacy.unit != "none" else None,
        "noise_multiplier": noise_multiplier(setting),
        "target_epsilon": privacy.epsilon,
        "stop_at_epsilon": privacy.stop_at_epsilon,
        "noise_source": "os" if real_sites else privacy.noise_source,
        "sampling": {
            "clients": experiment.sampling.clients.model_dump(exclude_none=True),
            "samples": {"scheme": _samples_of(setting)}
            | (experiment.sampling.samples.model_dump(exclude_none=True) if experiment.sampling.samples else {}),
        },
        "load": load_of(setting),
        **({"stream": stream} if (stream := setting.mechanism.describe_stream()) is not None else {}),
        **seen_by(setting),
        "notes": notes_of(setting),
        "trusted": list(setting.topology.trusted),
        "guarantee": describe_guarantee(setting),
        "caveats": list_caveats(setting, real_sites=real_sites),
    }


def machine_facts(setting: BuiltExperiment) -> dict[str, Any]:
    """Return versions, device, threads, MKL's mode and the paths of local training."""
    return {
        "sightline_version": version("sightline"),
        "versions": package_versions(),
        "device": describe_device(setting.model.device),
        "threads": torch.get_num_threads(),
        "mkl_cbwr": mkl.read_mode(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "paths": setting.paths.describe(),
    }


def notes_of(setting: BuiltExperiment) -> list[str]:
    """Return notes for the end of the run: on its topology, on slow private steps, on a large delta."""
    return [*setting.topology.notes, *_speed_notes(setting), *_delta_notes(setting)]


def _speed_notes(setting: BuiltExperiment) -> list[str]:
    """Return why private steps are slow, if they are."""
    note = clipping_note(setting.model) if setting.unit is Unit.SAMPLE else None
    return [note] if note else []


def _delta_notes(setting: BuiltExperiment) -> list[str]:
    """Return a warning if delta is so large that the guarantee says little."""
    if setting.unit is Unit.NONE:
        return []
    note = large_delta_note(setting.experiment.privacy.delta, *setting.protected)
    return [f"{note}."] if note else []


def package_versions() -> dict[str, str]:
    """Return the versions on which the numbers depend."""
    found = {package: _read_version(package) for package in PACKAGES}
    return {"python": platform.python_version()} | {name: said for name, said in found.items() if said is not None}


@cache
def _read_version(package: str) -> str | None:
    """Return the version of a package, read once; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def noise_multiplier(setting: BuiltExperiment) -> float | dict[str, float] | None:
    """Return z, or its range if every client has its own."""
    found = set(setting.mechanism.noise_multipliers(setting.clients).values())
    if not found:
        return None
    return found.pop() if len(found) == 1 else {"min": min(found), "max": max(found)}


def _trusted_with(setting: BuiltExperiment) -> str:
    """Return what a trusted server does with updates; cohorts are its secret unless turns are public."""
    clients = setting.experiment.sampling.clients
    public = clients.scheme == "turns" and clients.rate is None
    return " and add the noise" if public else ", add the noise and keep the cohorts secret"


def describe_cohorts(setting: BuiltExperiment) -> list[str]:
    """Return sentences on public turns, and on what cohorts of a fixed size hide below a trusted server."""
    experiment, clients = setting.experiment, setting.experiment.sampling.clients
    if clients.scheme == "turns":
        drawn = "" if clients.rate is None else f", and there each is drawn in secret with probability {clients.rate:g}"
        told = f"Clients take turns in {clients.groups} groups, one of them in a round: who is in which group is public"
        return [f"{told}{drawn}."]
    if experiment.sampling.clients.scheme != "fixed" or setting.unit is not Unit.CLIENT or not setting.topology.trusted:
        return []
    if setting.algorithm.remembers:
        return [
            f"Clients of {setting.algorithm.name} remember that they took part: cohorts of a fixed size are not "
            "claimed to hide anybody."
        ]
    return [
        "Every cohort has a fixed size and is drawn in secret. That is counted as what it is, not as Poisson sampling, "
        "and against a client who knows that it was not drawn itself."
    ]


def describe_guarantee(setting: BuiltExperiment) -> list[str]:
    """Return the guarantee in sentences."""
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return ["No privacy guarantee: updates are published without noise."]
    unit = {"client": "client", "sample": "single example of a client"}[privacy.unit]
    sentences = [
        f"Protects every {unit}: {ADJACENCY[privacy.adjacency].format(unit=unit)}, what is published is equally likely "
        "up to a factor of e^epsilon, plus delta.",
    ]
    if setting.topology.trusted:
        names = write_parties(frozenset(setting.topology.trusted))
        sentences.append(
            f"{setting.topology.trusted_clause(names)} the updates{_trusted_with(setting)}. "
            "The guarantee is against everybody else."
        )
        if not all(channel.trusted for channel in setting.topology.gathers) and privacy.place == "edge":
            sentences.append("Below every other edge each device adds noise of its own before anything leaves it.")
    else:
        sentences.append("Nobody is trusted: the noise is added by each client before anything leaves it.")
    sentences += describe_cohorts(setting)
    if privacy.stop_at_epsilon is not None:
        sentences.append(
            f"It stops before epsilon would exceed {privacy.stop_at_epsilon:g}. No data decide on the list of its "
            "releases, or they are claimed at their limit: the bound for the list covers an early end."
        )
    sentences += describe_schedule(setting)
    if setting.splitter is not None:
        sentences += setting.splitter.explain_guarantee({"client": "client", "sample": "example"}[privacy.unit])
    curvature = float(getattr(setting.settings, "mu", 0.0)) + setting.experiment.local.weight_decay
    rounds = setting.experiment.rounds
    sentences += setting.mechanism.explain_guarantee(rounds=rounds, delta=privacy.delta, curvature=curvature)
    if setting.algorithm.says:
        sentences.append(setting.algorithm.says)
    return sentences + list(setting.topology.notes)


def describe_schedule(setting: BuiltExperiment) -> list[str]:
    """Return what a schedule promises, for clients and for examples."""
    sampling, privacy = setting.experiment.sampling, setting.experiment.privacy
    told = []
    for who, sampler, hidden in (
        ("client", sampling.clients, privacy.unit == "client" and privacy.place == "server"),
        ("example", sampling.samples, True),
    ):
        if sampler is None or not sampler.scheduled:
            continue
        uses = f"exactly {sampler.uses} times" if sampler.uses else f"with probability {sampler.rate:g} once"
        told.append(f"Each {who} is used {uses} in each of {sampler.epochs or 1} schedule(s), drawn at random.")
        if hidden:
            told.append(
                "The schedule is a secret: the epsilon of a whole schedule is counted from its first round on, "
                "so that a run that stops early has spent it."
            )
    return told


def seen_by(setting: BuiltExperiment) -> dict[str, Any]:
    """Return the kinds of observers and their observer lines."""
    return {"observers": setting.topology.observers, "lines": lines_of(setting)}


def lines_of(setting: BuiltExperiment) -> dict[str, list[list[str]]] | None:
    """Return every line as (observer, exempt subjects); None if all observers of each kind see the same."""
    lines = setting.topology.lines
    if all(len(some) == 1 and not some[0].exempt for some in lines.values()):
        return None
    return {kind: [[line.observer, write_parties(line.exempt)] for line in some] for kind, some in lines.items()}


def describe_randomness(privacy: Privacy, *, real_sites: bool) -> list[str]:
    """Return where noise and sampling come from: the file's setting in a simulation, own entropy at real sites."""
    if not real_sites and privacy.noise_source == "seed":
        return [
            "Noise and sampling come from the seed: reproducible, and no protection against an observer who knows it. "
            'Use noise_source = "os" for real people\'s data.'
        ]
    cipher = "AES-256-CTR, keyed by the operating system's entropy in an owner-only file"
    if not real_sites:
        return [f"Noise and sampling come from {cipher}."]
    sites = f"Each site draws its batches, and the noise that it adds, from {cipher} of its own, not from the seed."
    if privacy.noise_source == "os":
        return [sites, f"The server draws from {cipher}."]
    return [sites, "The server draws from the seed; every site adds its own noise, so no guarantee rests on it."]


def list_caveats(setting: BuiltExperiment, *, real_sites: bool = False) -> list[str]:
    """Return what the guarantee does not cover."""
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return []
    notes = [
        *describe_randomness(privacy, real_sites=real_sites),
        "Accuracies, losses, timings and the count of rejected updates are diagnostics, outside the guarantee.",
        "Pair guarantees exclude collusion; a coalition sees the union of its members' views.",
        "Floating-point side channels and the tuning of hyper-parameters on private data are not accounted.",
    ]
    notes += _delta_notes(setting)
    if setting.earlier is not None:
        notes.append(f"{setting.earlier.tell(counted=bool(privacy.continue_ledger))}.")
    elif setting.experiment.model.init is not None:
        notes.append("The weights that training started from (model.init) are taken as public.")
    elif is_given_model(setting.experiment.model.name):
        notes.append("The model that was handed over (model=), with the weights that it held, is taken as public.")
    notes += setting.mechanism.list_caveats()
    notes += [
        f"The {plugin.kind.noun} {plugin.name} comes from {plugin.module}: its laws were checked by trying, not proven."
        for plugin in setting.plugins
    ]
    if setting.federation.notes and setting.experiment.data.reuse:
        notes.append("Every cluster gets the whole data set: epsilon is per copy of an example.")
    return notes
