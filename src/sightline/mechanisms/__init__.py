"""Updates become bounded, sums carry their sensitivity, noise is added where trust ends."""

from sightline.mechanisms.by_trust import NoiseByTrust, PooledMean
from sightline.mechanisms.central import CentralMean
from sightline.mechanisms.choose import MECHANISMS, build_mechanism
from sightline.mechanisms.clip import Aggregate, Bounded, clip_update, clipped_sum, sum_sensitivity
from sightline.mechanisms.divided import share_training
from sightline.mechanisms.gaussian import with_gaussian_noise
from sightline.mechanisms.local import LocalMean
from sightline.mechanisms.mechanism import Mechanism, ReleaseValues, ReleaseContext
from sightline.mechanisms.memory import StateRule, LocalResult, StateAccess, StateUpdate, ClientState, effective_steps
from sightline.mechanisms.open import NoPrivacy
from sightline.mechanisms.pace import LocalSchedule
from sightline.mechanisms.public import Public, combine_public, sum_weighted
from sightline.mechanisms.samplers import SAMPLERS, Cohort, Cohorts, CohortSampler, ScheduledCohorts, build_sampler
from sightline.mechanisms.samplewise import SampleAtClient, SampleAtServer, event_of
from sightline.mechanisms.schedule import Allotment, Schedules
from sightline.mechanisms.segments import SegmentSums, segment_rate
from sightline.mechanisms.selection import ModelChoice, draw_choice, choice_sharpness
from sightline.mechanisms.splitter import Splitter, build_splitter
from sightline.mechanisms.worker import WHOLE_BATCH, Block, ClientOutput, RemoteNodes, CallId, PrivateSteps, Updates, ClientExecutor

__all__ = [
    "MECHANISMS",
    "SAMPLERS",
    "WHOLE_BATCH",
    "Aggregate",
    "Allotment",
    "ModelChoice",
    "Block",
    "Bounded",
    "NoiseByTrust",
    "CentralMean",
    "Cohort",
    "CohortSampler",
    "Cohorts",
    "ClientOutput",
    "LocalMean",
    "Mechanism",
    "StateRule",
    "LocalResult",
    "RemoteNodes",
    "CallId",
    "NoPrivacy",
    "ReleaseValues",
    "LocalSchedule",
    "PooledMean",
    "PrivateSteps",
    "Public",
    "StateAccess",
    "StateUpdate",
    "SampleAtClient",
    "SampleAtServer",
    "ReleaseContext",
    "ScheduledCohorts",
    "Schedules",
    "SegmentSums",
    "ClientState",
    "Splitter",
    "Updates",
    "ClientExecutor",
    "build_mechanism",
    "build_sampler",
    "build_splitter",
    "draw_choice",
    "clip_update",
    "clipped_sum",
    "combine_public",
    "share_training",
    "effective_steps",
    "event_of",
    "segment_rate",
    "sum_sensitivity",
    "choice_sharpness",
    "sum_weighted",
    "with_gaussian_noise",
]
