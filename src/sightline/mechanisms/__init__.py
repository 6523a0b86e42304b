"""Updates become bounded, sums carry their sensitivity, noise is added where trust ends."""

from sightline.mechanisms.client_state import (
    ClientState,
    LocalResult,
    StateAccess,
    StateRule,
    StateUpdate,
    effective_steps,
)
from sightline.mechanisms.clip_and_noise import (
    Aggregate,
    Bounded,
    clip_update,
    clipped_sum,
    sum_sensitivity,
    with_gaussian_noise,
)
from sightline.mechanisms.contract import Mechanism, NoisedBy, NoisedValue, ReleaseContext, ReleaseValues
from sightline.mechanisms.convex_segments import ConvexSegments
from sightline.mechanisms.correlated_noise import CorrelatedByTrust, CorrelatedMean, NoiseStreams
from sightline.mechanisms.dp_sgd import SampleAtClient, SampleAtServer, event_of
from sightline.mechanisms.gaussian_means import CentralMean, EveryoneNoisesMean, LocalMean, NoiseByTrust, PooledMean
from sightline.mechanisms.no_privacy import NoPrivacy
from sightline.mechanisms.registry import MECHANISMS, MechanismPlugin, build_mechanism
from sightline.mechanisms.samplers import (
    SAMPLERS,
    Cohort,
    Cohorts,
    CohortSampler,
    LocalSchedule,
    ScheduledCohorts,
    TurnsCohorts,
    active_places,
    build_sampler,
)
from sightline.mechanisms.schedule import Allotment, Schedules
from sightline.mechanisms.segments import SegmentSums, segment_rate
from sightline.mechanisms.selection import ModelChoice, choice_sharpness, draw_choice
from sightline.mechanisms.submodels import Splitter, build_splitter
from sightline.mechanisms.updates import (
    Block,
    CallId,
    ClientExecutor,
    ClientOutput,
    PrivateSteps,
    Public,
    RemoteNodes,
    Updates,
    combine_public,
    share_training,
    sum_weighted,
)

__all__ = [
    "MECHANISMS",
    "SAMPLERS",
    "Aggregate",
    "Allotment",
    "Block",
    "Bounded",
    "CallId",
    "CentralMean",
    "ClientExecutor",
    "ClientOutput",
    "ClientState",
    "Cohort",
    "CohortSampler",
    "Cohorts",
    "ConvexSegments",
    "CorrelatedByTrust",
    "CorrelatedMean",
    "EveryoneNoisesMean",
    "LocalMean",
    "LocalResult",
    "LocalSchedule",
    "Mechanism",
    "MechanismPlugin",
    "ModelChoice",
    "NoPrivacy",
    "NoiseByTrust",
    "NoiseStreams",
    "NoisedBy",
    "NoisedValue",
    "PooledMean",
    "PrivateSteps",
    "Public",
    "ReleaseContext",
    "ReleaseValues",
    "RemoteNodes",
    "SampleAtClient",
    "SampleAtServer",
    "ScheduledCohorts",
    "Schedules",
    "SegmentSums",
    "Splitter",
    "StateAccess",
    "StateRule",
    "StateUpdate",
    "TurnsCohorts",
    "Updates",
    "active_places",
    "build_mechanism",
    "build_sampler",
    "build_splitter",
    "choice_sharpness",
    "clip_update",
    "clipped_sum",
    "combine_public",
    "draw_choice",
    "effective_steps",
    "event_of",
    "segment_rate",
    "share_training",
    "sum_sensitivity",
    "sum_weighted",
    "with_gaussian_noise",
]
