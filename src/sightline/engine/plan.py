"""The plan: the ledger that a run will write, made without any data, and the noise that keeps it within its target."""

from typing import Any, cast

import torch

from sightline import accounting
from sightline.engine.round import PlannedRound
from sightline.engine.setting import Setting
from sightline.events import Event, scaled
from sightline.ledger import Ledger
from sightline.mechanisms import Public, Worker
from sightline.randomness import Streams
from sightline.topology import client_name


class NoWorker:
    """Stands where the data would be: a plan never trains."""

    def __init__(self, sizes: list[int]) -> None:
        self.dimension = 1
        self.sizes = sizes


def plan(setting: Setting) -> Ledger:
    """Run the algorithm itself on nothing: the releases that the whole training makes when everybody takes part.

    Noise is as in `setting.mechanism`, one unit before calibration.
    """
    ledger = Ledger()
    worker = cast(Worker, NoWorker(setting.federation.sizes.tolist()))
    streams = Streams.from_seed(0)
    state: Any = setting.algorithm.init(Public(torch.zeros(1)), setting.clients, setting.settings)
    for time in range(1, setting.experiment.rounds + 1):
        state = setting.algorithm.round(state, PlannedRound(setting, ledger, worker, streams, time), setting.settings)
        state = {name: Public(value.value, ledger.frontier(value.sources)) for name, value in state.items()}
    return ledger


def calibrated(setting: Setting) -> Setting:
    """The setting with the noise that the experiment asks for: as given, or the least that meets `privacy.epsilon`."""
    privacy = setting.experiment.privacy
    if privacy.unit == "none":
        return setting
    if privacy.noise_multiplier is not None:
        multipliers = dict.fromkeys(setting.clients, privacy.noise_multiplier)
    else:
        multipliers = needed_noise(setting, plan(setting))
    return setting.with_mechanism(setting.mechanism.with_noise(multipliers))


def needed_noise(setting: Setting, planned: Ledger) -> dict[int, float]:
    """Per client, the least noise multiplier that keeps it within (epsilon, delta) against every untrusted observer."""
    solved: dict[frozenset[tuple[Event, int]], float] = {}
    needed = {}
    for client in setting.clients:
        views = [planned.composition(client_name(client), o) for o in setting.topology.observers.values()]
        worst = 0.0
        for composition in views:
            key = frozenset(composition.items())
            if key not in solved:
                solved[key] = _least_noise(setting, dict(composition))
            worst = max(worst, solved[key])
        needed[client] = worst
    return needed


def _least_noise(setting: Setting, composition: dict[Event, int]) -> float:
    privacy = setting.experiment.privacy
    return accounting.calibrate(
        lambda noise: {scaled(event, noise): times for event, times in composition.items()},
        epsilon=cast(float, privacy.epsilon),
        delta=privacy.delta,
        accountant=setting.accountant,
    )
