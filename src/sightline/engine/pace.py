"""What a round may ask of its clients, and how much each channel counts: public decisions, checked here."""

import math
from collections.abc import Sequence
from typing import Any

from sightline.engine.setting import Setting
from sightline.errors import refuse
from sightline.mechanisms import Pace
from sightline.topology import Channel


def allowed(setting: Setting, wanted: Pace, planned: Pace, most_steps: int) -> Pace:
    """The pace, when the guarantee covers it: what is not named is as planned."""
    if setting.experiment.privacy.unit == "sample" and setting.experiment.privacy.place != "edge":
        law = "the number of private steps is part of the guarantee of single examples"
        refuse("pace.steps", wanted.steps, law, 'use unit = "client", or where = "edge" on a tree')
    steps = wanted.steps or planned.steps
    if steps is not None and steps > most_steps:
        refuse("pace.steps", steps, f"noise was calibrated for at most {most_steps} local steps", "choose fewer")
    return Pace(steps, wanted.learning_rate or planned.learning_rate, wanted.rates)


def paced(pace: Pace, planned: Pace) -> dict[str, Any]:
    """The pace as terms of a training call; nothing where the experiment's own holds."""
    found = {"steps": pace.steps, "learning_rate": pace.learning_rate}
    return {} if pace == planned else {name: value for name, value in found.items() if value is not None}


def shares_of(setting: Setting, channels: Sequence[Channel]) -> list[float]:
    """How much of a mean over channels is each channel's: by members for unit `client`, else by their data.

    Guarantees: a function of public counts only, whoever was drawn.
    """
    sizes = setting.federation.sizes.tolist()
    by_data = setting.experiment.privacy.unit != "client"
    weights = [math.fsum(sizes[n] for n in c.members) if by_data else float(len(c.members)) for c in channels]
    return [weight / math.fsum(weights) for weight in weights]
