r"""Where clients take turns: what an attacker adds up of the rounds, and how, when their noises belong together.

Of a stream y = x + C^-1 z the whitened C y = C x + z has independent noise. For a client whose turns are the rounds u
the log-likelihood ratio is, up to constants, u^T C^T C y: the sum over its turns j of q_j = (C^T C y)_j. With hidden
draws inside of groups C has no more bands than there are groups: the q_j of one client are independent, and each tells
of its own draw. Without correlated noise C is the identity, and q_j is the value of the round itself.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sightline.engine.build import BuiltExperiment
from sightline.mechanisms import active_places
from sightline.mechanisms.correlated_noise import build_stream
from sightline.topology import Channel

Matrix = NDArray[np.float64]
Seen = tuple[int, str]
"""(round, who published)."""


def take_turns(setting: BuiltExperiment) -> bool:
    """Whether clients take turns, so that a client is in some rounds only, and everybody knows in which."""
    return any(active_places(sampler, 1) is not None for sampler in setting.samplers.values())


def gram_matrix(setting: BuiltExperiment, rounds: int) -> Matrix:
    """C^T C of so many rounds; several streams one after the other know nothing of each other."""
    if setting.experiment.privacy.noise != "correlated":
        return np.eye(rounds)
    cohorts, workload = (
        setting.algorithm.cohorts(setting.experiment),
        partial(setting.algorithm.workload, setting.settings),
    )
    strategy = build_stream(setting.experiment, cohorts, workload).strategy
    column = np.zeros(max(rounds, strategy.steps))
    column[: len(strategy.coefficients)] = strategy.coefficients
    found = np.zeros((rounds, rounds))
    for first in range(0, rounds, strategy.steps):
        size = min(strategy.steps, rounds - first)
        lags = np.subtract.outer(np.arange(size), np.arange(size))
        matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
        found[first : first + size, first : first + size] = matrix.T @ matrix
    return found


def turn_weights(setting: BuiltExperiment, client: int, seen: Sequence[Seen]) -> Matrix:
    """(turns, values): a row for every turn of the client, which says how much of every value is in its q."""
    rows = []
    for who in dict.fromkeys(source for _, source in seen):
        channel = gathering_channel(setting, client, who)
        if channel is None:
            continue
        places = [place for place, (_, source) in enumerate(seen) if source == who]
        places.sort(key=lambda place: seen[place][0])
        gram, member = gram_matrix(setting, len(places)), channel.members.index(client)
        for step, place in enumerate(places):
            active = active_places(setting.sampler_of(channel), seen[place][0])
            if active is None or member in active:
                row = np.zeros(len(seen))
                row[places] = gram[step]
                rows.append(row)
    return np.array(rows).reshape(len(rows), len(seen))


def gathering_channel(setting: BuiltExperiment, client: int, who: str) -> Channel | None:
    """The channel by which a client is in what somebody publishes: its own, or one that gathers for the top."""
    place = setting.topology
    if who == place.top.name:
        return next((channel for channel in place.gathers if client in channel.members), None)
    own = (channel for channel in (*place.channels, *place.gathers) if channel.name == who)
    return next((channel for channel in own if client in channel.members), None)
