"""Run directories for the tests, made through the real store: RunRecord, Ledger and Release."""

import math
from pathlib import Path
from typing import Any

from sightline import accounting
from sightline.engine import RunRecord
from sightline.events import Adjacency, Clear, Event, Gaussian, Poisson, Repeat, Unit
from sightline.ledger import POST_PROCESSING, Release, parties

EVENT = Poisson(0.5, Gaussian(1.4321))

SETTINGS = 'name = "quickstart"\nseed = 0\nrounds = 30\n\n[data]\nsource = "digits"\n'

FACTS: dict[str, Any] = {
    "name": "quickstart",
    "status": "finished",
    "status_reason": "",
    "created": "2026-11-15T20:05:17+00:00",
    "seconds": 12.34,
    "rounds_planned": 30,
    "seed": 0,
    "sightline_version": "0.1.0",
    "versions": {"python": "3.11.2", "torch": "2.13.0", "numpy": "2.3.1"},
    "threads": 2,
    "source": "digits",
    "kind": "vector",
    "clients": 24,
    "classes": 10,
    "sizes": [12 + (7 * i * i) % 83 for i in range(24)],
    "data_notes": ["1,797 digits, a fifth of them kept apart as the common test set."],
    "model": "mlp",
    "parameters": 4810,
    "algorithm": "fedavg",
    "algorithm_settings": {},
    "topology": "star",
    "unit": "client",
    "adjacency": "add_remove",
    "delta": 1e-3,
    "accountant": "pld",
    "where": "server",
    "clip_norm": 1.0,
    "noise_multiplier": 1.4321,
    "noise_std": 1.4321,
    "target_epsilon": 8.0,
    "noise_source": "seed",
    "sampling": {"clients": {"scheme": "poisson", "rate": 0.5}, "samples": {"scheme": "shuffle"}},
    "observers": {"other clients": "client-0", "public": "public"},
    "trusted": ["server"],
    "guarantee": [
        "Each client is protected as a whole: with or without its updates, the published models are hard to tell apart.",
        "The server adds the noise and keeps secret who took part in which round; everybody else may see every model.",
    ],
    "caveats": [
        "The noise is reproducible from the seed: simulation only.",
        "Accuracies and losses are diagnostics outside the guarantee.",
    ],
}


def clients(number: int) -> frozenset[str]:
    return frozenset(f"client-{i}" for i in range(number))


def release(time: int, **fields: Any) -> Release:
    defaults: dict[str, Any] = {
        "source": "server",
        "subjects": clients(24),
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.ADD_REMOVE,
        "event": EVENT,
        "audience": parties(clients(24), "public"),
        "what": "noisy mean of the clipped updates",
    }
    return Release(time=time, **(defaults | fields))


def handover(time: int, number: int = 24, **fields: Any) -> Release:
    return release(
        time,
        source="clients",
        subjects=clients(number),
        event=Clear(),
        audience=parties("server"),
        what="clipped updates",
        **fields,
    )


def metrics(number: int, rounds: int, epsilon: dict[str, float | None]) -> dict[str, Any]:
    progress = number / rounds
    accuracy = 0.93 - 0.75 * math.exp(-5 * progress) + 0.012 * math.sin(1.7 * number)
    return {
        "test_accuracy": accuracy,
        "test_loss": 2.3 * math.exp(-3 * progress) + 0.25,
        "client_accuracy_mean": accuracy - 0.02 + 0.008 * math.cos(number),
        "client_accuracy_worst": max(0.0, accuracy - 0.3 + 0.05 * math.sin(0.9 * number)),
        "client_loss_mean": 2.2 * math.exp(-3 * progress) + 0.31,
        "epsilon": epsilon,
        "rejected": 0,
        "uplink_floats": 12 * 4810,
        "downlink_floats": 24 * 4810,
        "seconds": 0.4,
    }


def spent(number: int, rounds: int, kinds: dict[str, float | None]) -> dict[str, float | None]:
    """A plausible course of epsilon: it grows with the root of the rounds."""
    return {k: None if final is None else final * math.sqrt(number / rounds) for k, final in kinds.items()}


def write(
    directory: Path,
    facts: dict[str, Any],
    rounds: list[dict[str, Any]],
    releases: list[Release],
    settings: str = SETTINGS,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text(settings, encoding="utf-8")
    record = RunRecord.create(directory)
    record.remember_metadata(facts)
    record.ledger().append(releases)
    for number, row in enumerate(rounds, 1):
        record.add_round(number, row)
    record.close()
    return directory


def quickstart(directory: Path, *, rounds: int = 30, **changes: Any) -> Path:
    """Client-level privacy at a trusted server, as the quickstart runs it."""
    final = accounting.epsilon({EVENT: rounds}, FACTS["delta"])
    kinds: dict[str, float | None] = {"other clients": final, "public": final}
    rows = [metrics(number, rounds, spent(number, rounds, kinds)) for number in range(1, rounds + 1)]
    made = [r for time in range(1, rounds + 1) for r in (handover(time), release(time, inputs=()))]
    return write(directory, FACTS | {"rounds_planned": rounds} | changes, rows, made)


def without_privacy(directory: Path, *, rounds: int = 5) -> Path:
    """A run that adds no noise."""
    changes = {"unit": "none", "adjacency": None, "target_epsilon": None, "noise_multiplier": None, "trusted": []}
    changes |= {"guarantee": ["Nothing is promised: no noise was added."], "noise_std": None, "delta": 1e-5}
    kinds: dict[str, float | None] = {"other clients": None, "public": None}
    rows = [metrics(number, rounds, kinds) for number in range(1, rounds + 1)]
    made = [release(t, unit=Unit.NONE, event=Clear(), what="mean of updates") for t in range(1, rounds + 1)]
    return write(directory, FACTS | changes, rows, made)


def per_sample(directory: Path, *, rounds: int = 20, number: int = 6) -> Path:
    """Sample-level privacy at the clients, each with a noise and a rate of its own; the server is untrusted."""
    events: list[Event] = [Repeat(3, Poisson(0.1 + 0.01 * i, Gaussian(1.0 + 0.05 * i))) for i in range(number)]
    final = max(accounting.epsilon({event: rounds}, 1e-5) for event in events)
    kinds: dict[str, float | None] = dict.fromkeys(("other clients", "public", "server"), final)
    rows = [metrics(n, rounds, spent(n, rounds, kinds)) for n in range(1, rounds + 1)]
    rows[-1]["rejected"] = 2
    made: list[Release] = []
    for time in range(1, rounds + 1):
        sent = [
            release(
                time,
                source=f"client-{i}",
                subjects=parties(f"client-{i}"),
                unit=Unit.SAMPLE,
                event=events[i],
                audience=parties("server"),
                what="model update by DP-SGD",
            )
            for i in range(number)
        ]
        inputs = tuple(range(len(made), len(made) + number))
        model = release(
            time,
            subjects=frozenset(),
            unit=Unit.SAMPLE,
            event=POST_PROCESSING,
            audience=parties(clients(number), "public"),
            inputs=inputs,
            what="mean of the updates",
        )
        made += [*sent, model]
    facts = FACTS | {
        "unit": "sample",
        "where": "client",
        "clients": number,
        "sizes": [100 * (i + 1) for i in range(number)],
        "observers": {"other clients": "client-0", "public": "public", "server": "server"},
        "trusted": [],
        "delta": 1e-5,
        "target_epsilon": None,
        "noise_multiplier": {"min": 1.0, "max": 1.25},
        "rounds_planned": rounds,
    }
    return write(directory, facts, rows, made)
