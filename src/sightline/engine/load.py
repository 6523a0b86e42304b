"""How often a member is used over a whole run: what the settings say, never what the coins did."""

from typing import Any

from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import Allotment, SampleAtClient, SampleAtServer, ScheduledCohorts
from sightline.mechanisms.samplers import PoissonCohorts


def load_of(setting: BuiltExperiment) -> list[dict[str, Any]]:
    """One entry for the clients and one for the examples, where either takes part by coins or by a schedule.

    Guarantees: a function of public settings and sizes; the schedule, the cohorts and their streams are not looked at.
    """
    found = []
    sampler = next(iter(setting.samplers.values()))
    members = len(setting.clients)
    if isinstance(sampler, ScheduledCohorts):
        found.append(
            _scheduled_load("client", "rounds", members, sampler.allotment, setting.experiment.sampling.clients.epochs)
        )
    if isinstance(sampler, PoissonCohorts):
        steps = setting.algorithm.cohorts(setting.experiment).count
        found.append({"who": "client", "steps_are": "rounds", "members": members, "steps": steps, "rate": sampler.rate})
    if isinstance(setting.mechanism, SampleAtClient | SampleAtServer) and setting.experiment.sampling.samples:
        plans, sizes = setting.mechanism.plans, setting.federation.sizes.tolist()
        largest = max(plans, key=lambda client: sizes[client])
        allotment, epochs = plans[largest].allotment, setting.experiment.sampling.samples.epochs
        if allotment is not None:
            found.append(_scheduled_load("example", "steps of the largest client", sizes[largest], allotment, epochs))
    return found


def _scheduled_load(who: str, steps_are: str, members: int, allotment: Allotment, epochs: int | None) -> dict[str, Any]:
    return {
        "who": who,
        "steps_are": steps_are,
        "members": members,
        "steps": allotment.steps * (epochs or 1),
        "uses": allotment.uses,
        "chance": allotment.chance,
        "epochs": epochs or 1,
    }
