"""What H2FDP is compared with: hierarchical averaging without privacy, with local noise only, and on one subnet."""

from dataclasses import replace

from sightline.algorithms import h2fdp
from sightline.config import Experiment
from sightline.errors import invalid, refuse


def check_hfl(experiment: Experiment) -> None:
    """HFL is H2FDP without privacy."""
    h2fdp.check_experiment(experiment)
    if experiment.privacy.unit != "none":
        law = "hfl is hierarchical averaging without privacy"
        invalid("privacy.unit", experiment.privacy.unit, law, 'use unit = "none", or algorithm.name = "h2fdp"')


def check_hfl_dp(experiment: Experiment) -> None:
    """HFL-DP is H2FDP in which nobody is trusted."""
    _check_local(experiment)
    h2fdp.check_experiment(experiment)


def check_pedpfl(experiment: Experiment) -> None:
    """PEDPFL is HFL-DP with all devices in one subnet, or around one server."""
    check_hfl_dp(experiment)
    topology = experiment.topology
    given = topology.settings
    if topology.kind == "tree" and (given.get("subnets", 1) != 1 or "levels" in given or "file" in given):
        law = "pedpfl has all devices in one subnet"
        invalid("topology.subnets", given.get("subnets", "not 1"), law, 'use subnets = 1 alone, or kind = "star"')


def _check_local(experiment: Experiment) -> None:
    privacy, name = experiment.privacy, experiment.algorithm.name
    if privacy.unit != "client":
        law = f"{name} protects devices by noise of their own"
        invalid("privacy.unit", privacy.unit, law, 'use unit = "client"')
    if privacy.place != "client":
        law = f"in {name} nobody is trusted and every device adds noise"
        refuse("privacy.where", privacy.place, law, 'use where = "client"')


HFL = replace(h2fdp.ALGORITHM, name="hfl", check=check_hfl, says="")
HFL_DP = replace(h2fdp.ALGORITHM, name="hfl_dp", check=check_hfl_dp)
PEDPFL = replace(h2fdp.ALGORITHM, name="pedpfl", check=check_pedpfl, topologies=("star", "tree"))

BASELINES = (HFL, HFL_DP, PEDPFL)
