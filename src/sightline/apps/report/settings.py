"""What was run: settings, versions, randomness and the seal of the ledger."""

from collections.abc import Mapping
from typing import Any

from sightline.apps.report.numbers import format_count, format_short
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Section

NOISE_SOURCES = {
    "seed": "derived from the seed: reproducible, for simulation only",
    "os": "entropy of the operating system",
}


def settings_content(run: RunView) -> Content:
    """Two lists of facts, the resolved file, the versions, and the head of the hash chain."""
    return {
        "lists": [
            ("Training", _shown_facts(training_facts(run))),
            ("Privacy", _shown_facts(privacy_facts(run))),
            ("Machine", _shown_facts(machine_facts(run))),
        ],
        "settings": run.settings,
        "head": run.head,
    }


SECTION = Section("settings", "Settings", settings_content)


def training_facts(run: RunView) -> dict[str, Any]:
    """What was trained, on what, by which algorithm."""
    return {
        "data": run.fact("source"),
        "examples are": run.fact("kind"),
        "classes": run.fact("classes"),
        "model": run.fact("model"),
        "parameters": run.fact("parameters"),
        "algorithm": run.fact("algorithm"),
        **{f"algorithm.{name}": value for name, value in run.fact("algorithm_settings", {}).items()},
        **{f"split: {name}": value for name, value in (run.fact("split") or {}).items()},
        "topology": run.fact("topology"),
        **{f"sampling.{name}": value for name, value in run.fact("sampling", {}).items()},
    }


def privacy_facts(run: RunView) -> dict[str, Any]:
    """What was promised and by which noise."""
    names = ("unit", "adjacency", "where", "clip_norm", "noise_multiplier", "noise_std", "target_epsilon", "delta")
    source = run.fact("noise_source")
    return {
        **{name: run.fact(name) for name in names},
        "accountant": run.fact("accountant"),
        "noise": NOISE_SOURCES.get(source, source),
    }


def machine_facts(run: RunView) -> dict[str, Any]:
    """What it ran on."""
    versions = run.fact("versions", {})
    return {
        "seed": None if run.fact("seed") is None else str(run.fact("seed")),
        "device": run.fact("device"),
        "threads": run.fact("threads"),
        "MKL_CBWR": run.fact("mkl_cbwr"),
        "vector instructions": run.fact("cpu_capability"),
        "paths of local training": run.fact("paths"),
        "training processes": run.fact("workers"),
        "sightline": run.fact("sightline_version"),
        **{name: version for name, version in versions.items() if name != "sightline"},
    }


def _shown_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, setting_text(value)) for name, value in facts.items() if value is not None and value != {}]


def setting_text(value: Any) -> str:
    """A setting as text.

    >>> setting_text({"min": 0.5, "max": 1.25}), setting_text({"scheme": "poisson", "rate": 0.5})
    ('0.5 to 1.25', 'poisson, rate 0.5')
    >>> setting_text([1, 2]), setting_text(4810)
    ('1, 2', '4,810')
    """
    if isinstance(value, Mapping):
        if set(value) == {"min", "max"}:
            return f"{setting_text(value['min'])} to {setting_text(value['max'])}"
        parts = [
            setting_text(part) if name == "scheme" else f"{name} {setting_text(part)}" for name, part in value.items()
        ]
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(part) for part in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return format_count(value)
    return format_short(value) if isinstance(value, float) else str(value)
