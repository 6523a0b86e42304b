"""R-DPCFL: clusters found from full-batch first updates, soft while they are, then chosen in private, then frozen."""

from dataclasses import dataclass

from sightline.algorithms import clustered
from sightline.algorithms.clustered import ASSIGNMENT, START, choose_clusters, draw_clusters, moved_to, train_clusters
from sightline.algorithms.clustered_settings import Selecting, complete_settings, refuse_trusted_server
from sightline.algorithms.contract import Algorithm, ClusterState, Round, State
from sightline.algorithms.mixture_points import KINDS
from sightline.algorithms.rdpcfl_first import CONFIDENCE, SCORES, mixture_metadata, run_first_round
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse
from sightline.mechanisms import Cohort, Public, combine_public


@dataclass(frozen=True)
class RDPCFL(Selecting):
    """Settings of R-DPCFL: the mixture is fitted to as many principal components of the updates as its centres span, to
    the paper's two, or to the updates as they are."""

    points: str = "spanning"

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.points) not in KINDS:
            invalid("algorithm.points", self.points, "no such points", did_you_mean(str(self.points), list(KINDS)))


def init_state(start: Public, clients: range, settings: RDPCFL) -> State:
    """One model for everybody until there are clusters."""
    return {START: start}


def run_round(state: State, r: Round, settings: RDPCFL) -> State:
    """Round one finds the clusters; in every later one clients train in theirs."""
    if SCORES not in state:
        everyone = r.everyone()
        return run_first_round(state, r, everyone, settings) if everyone.members else state
    cohort = r.sample()
    return train_clusters(place_clients(state, r, cohort, settings), r, cohort)


def place_clients(state: State, r: Round, cohort: Cohort, settings: RDPCFL) -> State:
    """Where everybody is in this round: up to E_c drawn afresh from the posteriors, then chosen, then frozen."""
    choices = settings.selection_rounds or 0
    last_drawn = int(state[SCORES].value[2])
    if r.time <= last_drawn:
        return moved_to(state, r, draw_clusters(r, state[CONFIDENCE]), "drawn")
    if r.time <= last_drawn + choices and settings.count != 1:  # also when one was found: see `last_soft`
        return moved_to(state, r, choose_clusters(state, r, cohort, settings.epsilon()), "chosen")
    if choices == 0:
        likeliest = combine_public(lambda rows: rows.argmax(1).float(), state[CONFIDENCE])
        return moved_to(state, r, likeliest, "kept")
    return moved_to(state, r, state[ASSIGNMENT], "kept")


def mixture_state(state: State) -> ClusterState | None:
    """Who is where, and what the mixture of the first round looks like."""
    return clustered.cluster_state(state, mixture_metadata(state) if SCORES in state else None)


def check_experiment(experiment: Experiment) -> None:
    """Refuse what has no full batch, or no release of each client's own."""
    refuse_trusted_server("rdpcfl", experiment)
    if experiment.local.steps is not None:
        law = "rdpcfl's first round is made of whole epochs, one step each"
        invalid("local.steps", experiment.local.steps, law, "give local.epochs")
    if experiment.privacy.mechanism != "gaussian":
        law = "rdpcfl's first round is one of full-batch gradient steps"
        refuse("privacy.mechanism", experiment.privacy.mechanism, law, 'use mechanism = "gaussian"')


SAYS = (
    "Clusters are found from the noisy updates of round one: one release per client, and all that the server makes "
    "of it is post-processing. Later choices of clusters are private too and counted. Who is in which cluster follows "
    "from released values: what is said of clients of the same and of other clusters holds for the clusters as they "
    "came out, and the worst of all kinds holds whatever they are."
)

ALGORITHM = Algorithm(
    "rdpcfl",
    RDPCFL,
    init_state,
    run_round,
    clustered.current_models,
    says=SAYS,
    check=check_experiment,
    topologies=("clusters",),
    complete=complete_settings,
    found=mixture_state,
)
