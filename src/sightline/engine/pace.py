"""What a round may ask of its clients, and how much each channel counts: public decisions, checked here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.engine.setting import BuiltExperiment
from sightline.errors import refuse
from sightline.mechanisms import LocalSchedule
from sightline.topology import Channel


def allow_schedule(
    setting: BuiltExperiment, wanted: LocalSchedule, planned: LocalSchedule, most_steps: int
) -> LocalSchedule:
    """The pace, when the guarantee covers it: what is not named is as planned."""
    if setting.experiment.privacy.unit == "sample" and setting.experiment.privacy.place != "edge":
        law = "the number of private steps is part of the guarantee of single examples"
        refuse("pace.steps", wanted.steps, law, 'use unit = "client", or where = "edge" on a tree')
    steps = wanted.steps or planned.steps
    if steps is not None and steps > most_steps:
        refuse("pace.steps", steps, f"noise was calibrated for at most {most_steps} local steps", "choose fewer")
    return LocalSchedule(steps, wanted.learning_rate or planned.learning_rate, wanted.rates)


def schedule_terms(pace: LocalSchedule, planned: LocalSchedule) -> dict[str, Any]:
    """The pace as terms of a training call; nothing where the experiment's own holds."""
    found = {"steps": pace.steps, "learning_rate": pace.learning_rate}
    return {} if pace == planned else {name: value for name, value in found.items() if value is not None}


def gradient_reach(terms: Mapping[str, Any], planned: LocalSchedule) -> float:
    """How far a training call goes for a gradient of one: learning rate x local steps."""
    rate = terms.get("learning_rate", planned.learning_rate) or 1.0
    return float(rate) * float(terms.get("steps", planned.steps) or 1)


def noise_at(setting: BuiltExperiment, channel: Channel) -> float:
    """z of what a channel releases: the largest that one of its members needs."""
    common = float(getattr(setting.mechanism, "noise_multiplier", 1.0))
    own = getattr(setting.mechanism, "multipliers", {})
    return channel.noise_factor * max(float(own.get(member, common)) for member in channel.members)


def shares_of(setting: BuiltExperiment, channels: Sequence[Channel]) -> list[float]:
    """How much of a mean over channels is each channel's: by members for unit `client`, else by their data.

    Guarantees: a function of public counts only, whoever was drawn.
    """
    sizes = setting.federation.sizes.tolist()
    by_data = setting.experiment.privacy.unit != "client"
    weights = [math.fsum(sizes[n] for n in c.members) if by_data else float(len(c.members)) for c in channels]
    return [weight / math.fsum(weights) for weight in weights]
